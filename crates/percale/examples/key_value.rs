//! A key-value store on remote reads: clients read the server's table directly, without its CPU if the transport
//! permits that. They write by calls, which the server carries out one after the other.
//!
//! A read may see an entry that the server is changing. Therefore each entry contains a checksum, and the client reads
//! the entry again if the checksum is wrong.
//!
//! `cargo run -p percale --example key_value`

use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::thread;

use percale::rpc::{Client, RpcError, Server, Service};
use percale::{Access, Info, PeerAddress, Region, RemoteMemory, SharedEndpoint};

const SERVICE: Service = Service { number: 2, request_limit: ENTRY, requests: 16, calls: 16 };
/// The length of an entry: checksum (8 bytes), key (8 bytes), value.
const ENTRY: usize = 64;
const VALUE: usize = ENTRY - 16;
const ENTRIES: u64 = 1024;
/// The number of entries in which a key may be, from its place onwards.
const PROBES: u64 = 8;
const KEYS: u64 = 200;
const CLIENTS: usize = 3;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;
type Entry = [u8; ENTRY];

fn hash(bytes: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Returns the numbers of the entries in which a key may be.
fn places(key: u64) -> impl Iterator<Item = u64> {
    (0..PROBES).map(move |probe| hash(&key).wrapping_add(probe) % ENTRIES)
}

fn entry(key: u64, value: &[u8]) -> Entry {
    let mut entry = [0; ENTRY];
    entry[8..16].copy_from_slice(&key.to_le_bytes());
    entry[16..16 + value.len()].copy_from_slice(value);
    let sum = hash(&&entry[8..]);
    entry[..8].copy_from_slice(&sum.to_le_bytes());
    entry
}

/// Returns the key and the value of an entry. `None` if it is being changed.
fn parse(entry: &[u8]) -> Option<(u64, &[u8])> {
    let word = |at: usize| Some(u64::from_le_bytes(entry.get(at..at + 8)?.try_into().ok()?));
    if word(0)? != hash(&entry.get(8..)?) {
        return None;
    }
    Some((word(8)?, entry.get(16..)?))
}

/// Carries out the calls: an empty one returns the name of the table, others write an entry. Ends at a call of one
/// byte.
fn serve(endpoint: &SharedEndpoint, mut table: Region) -> Result<(), RpcError> {
    let mut server = Server::new(endpoint, SERVICE)?;
    loop {
        let request = server.next_request()?;
        let answer = match request.bytes() {
            [] => table.remote().to_bytes().to_vec(),
            [_] => return request.reply("bye").wait(),
            bytes => match parse(bytes).map(|(key, _)| key) {
                Some(key) => {
                    let free = places(key).find(|place| {
                        let mut found = [0; 16];
                        table.read(*place as usize * ENTRY, &mut found);
                        found == [0; 16] || found[8..] == key.to_le_bytes()
                    });
                    free.inspect(|place| table.write(*place as usize * ENTRY, bytes));
                    vec![free.is_some().into()]
                }
                None => vec![0],
            },
        };
        // A client that has disconnected gets no answer.
        drop(request.reply(answer).wait());
    }
}

/// Reads the value of a key.
fn get(endpoint: &SharedEndpoint, server: PeerAddress, table: RemoteMemory, key: u64) -> Outcome<Option<Vec<u8>>> {
    for place in places(key) {
        let start = place * ENTRY as u64;
        loop {
            let read = endpoint.read(server, table.slice(start..start + ENTRY as u64)?, vec![0; ENTRY]);
            let bytes = read.wait()?.into_vec();
            match parse(&bytes) {
                Some((found, value)) if found == key => return Ok(Some(value.to_vec())),
                Some(_) => break,
                None if bytes.iter().all(|&byte| byte == 0) => return Ok(None),
                None => {} // The server is changing this entry.
            }
        }
    }
    Ok(None)
}

fn main() -> Outcome<()> {
    // In a real program the server and its clients would be different processes, on one machine or many.
    let domain = Info::discover()?.best()?.open()?;
    let server = domain.endpoint().bind_shared("127.0.0.1:0")?;
    let vector = domain.address_vector().build()?;
    let peer = vector.insert(server.address())?;
    let table = domain.register(domain.allocate(ENTRIES as usize * ENTRY)?, Access::REMOTE_READ)?;
    let client = |number: u64| -> Outcome<u64> {
        let endpoint = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
        let client = Client::new(&endpoint, SERVICE);
        let table = RemoteMemory::from_bytes(&client.call(peer, &[])?.wait()?)?;
        let mut found = 0;
        for round in 0..KEYS * 4 {
            // It reads the keys that it wrote before, which other clients may have written since.
            let (turn, back) = (round / 4, round % 4);
            let (key, byte) = (1 + (turn + KEYS - back) * 7 % KEYS, number as u8 + 1);
            if back == 0 {
                assert_eq!(client.call(peer, &entry(key, &[byte; VALUE]))?.wait()?, [1], "there is room");
            } else if let Some(value) = get(&endpoint, peer, table, key)? {
                assert!(value[0] != 0 && value.iter().all(|one| *one == value[0]), "the value of one client");
                found += 1;
            } else {
                assert!(turn < back, "the key was written");
            }
        }
        Ok(found)
    };
    thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&server, table));
        let clients: Vec<_> = (0..CLIENTS as u64).map(|number| scope.spawn(move || client(number))).collect();
        let mut found = 0;
        for client in clients {
            found += client.join().map_err(|_| "a client panicked")??;
        }
        let endpoint = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0")?;
        Client::new(&endpoint, SERVICE).call(peer, &[0])?.wait()?;
        serving.join().map_err(|_| "the server panicked")??;
        println!("{CLIENTS} clients read {found} values");
        Ok(())
    })
}
