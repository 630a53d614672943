//! Leases: a storage server lends a slice of its memory for 5 milliseconds to each request, and does not rely on the
//! client to return it.
//!
//! For each request the server binds a window of type 2 to a slice, for the peer that requested it, and sends the
//! window's description with a fenced message. The client writes, and returns the lease with a message that invalidates
//! the window. If it does not, the server invalidates the window after 5 milliseconds. A slice is lent again only after
//! its invalidation has completed. Then no peer is accessing the slice, and later accesses are rejected. The example
//! runs over shared memory and over TCP, if they are available.
//!
//! `cargo run -p percale --example leases`

use std::collections::VecDeque;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use percale::{
    Access, AddressVector, Bind, Domain, Endpoint, ErrorCode, Info, PeerAddress, Region, RemoteMemory, TransportKind,
    Window, WindowAccess, WindowType,
};

const SLICE: u64 = 4096;
const SLICES: usize = 4;
const LEASE: Duration = Duration::from_millis(5);
/// The number of requests of the client. The client keeps every third lease too long.
const REQUESTS: u64 = 60;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A slice that is lent, and the time at which the lease ends.
struct Lent {
    slice: usize,
    name: RemoteMemory,
    until: Instant,
}

struct Server<'s> {
    endpoint: &'s Endpoint,
    client: PeerAddress,
    region: &'s Region,
    windows: Vec<Window>,
    free: VecDeque<usize>,
    lent: Vec<Lent>,
    given_back: u64,
    expired: u64,
}

impl Server<'_> {
    /// Answers requests, and revokes expired leases, until `over` is set.
    fn serve(&mut self, over: &AtomicBool) -> Outcome<()> {
        let endpoint = self.endpoint;
        let mut request = endpoint.recv(vec![0; 8]).start()?;
        let mut waiting = 0_u64;
        while !over.load(Ordering::Acquire) || !self.lent.is_empty() {
            if request.is_ready() {
                let got = request.wait()?;
                match got.invalidated {
                    // The message returned a lease, and its key is invalid already.
                    Some(key) => self.reclaim(key),
                    None => waiting += 1,
                }
                request = endpoint.recv(vec![0; 8]).start()?;
            }
            if let Some(at) = self.lent.iter().position(|lent| lent.until <= Instant::now()) {
                let key = self.lent[at].name.key;
                match self.endpoint.invalidate(self.client, key).wait() {
                    Ok(()) => {
                        self.reclaim(key);
                        self.expired += 1;
                    }
                    // Busy: the peer is in the middle of a write and makes no progress. The slice is not lent again
                    // until the write has ended. KeyRejected: the peer's message that returns the lease arrived first,
                    // and this loop receives it.
                    Err(error) if error.errno() == ErrorCode::Busy.errno() => {}
                    Err(error) if error.errno() == ErrorCode::KeyRejected.errno() => {
                        self.lent[at].until = Instant::now() + LEASE;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            if waiting > 0
                && let Some(slice) = self.free.pop_front()
            {
                waiting -= 1;
                self.lend(slice)?;
            }
        }
        Ok(())
    }

    fn lend(&mut self, slice: usize) -> Outcome<()> {
        let start = slice as u64 * SLICE;
        let key = self.windows[slice].key().wrapping_add(1) as u8;
        let bind = Bind { range: start..start + SLICE, access: WindowAccess::WRITE, key };
        let mut name = self.endpoint.bind_window(self.client, &self.windows[slice], self.region, bind).start()?;
        let name = name.wait()?;
        self.endpoint.send(self.client, name.to_bytes().to_vec()).fenced().wait()?;
        self.lent.push(Lent { slice, name, until: Instant::now() + LEASE });
        Ok(())
    }

    fn reclaim(&mut self, key: u64) {
        if let Some(at) = self.lent.iter().position(|lent| lent.name.key == key) {
            self.free.push_back(self.lent.swap_remove(at).slice);
            self.given_back += 1;
        }
    }
}

/// Requests leases, writes, and returns the leases or keeps them too long. Returns how many late writes were rejected.
fn request(endpoint: &Endpoint, server: PeerAddress) -> Outcome<u64> {
    let mut refused = 0;
    for number in 0..REQUESTS {
        let mut answer = endpoint.recv(vec![0; RemoteMemory::BYTES]).start()?;
        endpoint.send(server, number.to_le_bytes().to_vec()).wait()?;
        let name = RemoteMemory::from_bytes(&answer.wait()?.to_vec())?;
        let bytes = vec![number as u8 | 0x80; SLICE as usize];
        // On a busy machine a lease may end before its first write.
        match endpoint.write(server, bytes.clone(), name).wait() {
            Ok(_) => {}
            Err(error) if error.errno() == ErrorCode::KeyRejected.errno() => refused += 1,
            Err(error) => return Err(error.into()),
        }
        if number % 3 == 0 {
            // The lease is kept too long. It is valid until a write returns an error. After that, no write of this
            // client has an effect.
            while endpoint.write(server, bytes.clone(), name).wait().is_ok() {}
            let late = endpoint.write(server, bytes, name).wait().expect_err("the lease has expired");
            assert_eq!(late.errno(), ErrorCode::KeyRejected.errno());
            refused += 1;
        } else {
            let back = endpoint.send(server, vec![0; 8]).invalidating(name.key).wait();
            if let Err(error) = back {
                assert_eq!(error.errno(), ErrorCode::KeyRejected.errno(), "not an expired lease: {error}");
            }
        }
    }
    Ok(refused)
}

fn main() -> Outcome<()> {
    for kind in [TransportKind::Shm, TransportKind::Tcp] {
        let info = Info::discover()?;
        if !info.transports().iter().any(|one| one.kind == kind && one.available) {
            println!("{kind}: not available here; `percale info` prints the reason");
            continue;
        }
        // In a real program the two endpoints would be in two processes, on one machine or two.
        let open = || -> Outcome<(Domain, AddressVector, Endpoint)> {
            let domain = info.domain().transport(kind).open()?;
            let vector = domain.address_vector().build()?;
            let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
            Ok((domain, vector, endpoint))
        };
        let ((domain, clients, endpoint), (_, servers, client)) = (open()?, open()?);
        let peer = servers.insert(endpoint.address())?;
        // The region's own key gives no rights.
        let region = domain.register(domain.allocate(SLICES * SLICE as usize)?, Access::empty())?;
        let windows = (0..SLICES).map(|_| domain.window(WindowType::TwoB)).collect::<Result<Vec<_>, _>>()?;
        let over = AtomicBool::new(false);
        let mut server = Server {
            endpoint: &endpoint,
            client: clients.insert(client.address())?,
            region: &region,
            windows,
            free: (0..SLICES).collect(),
            lent: Vec::new(),
            given_back: 0,
            expired: 0,
        };
        let refused = thread::scope(|scope| {
            let over = &over;
            let requests = scope.spawn(move || {
                let result = request(&client, peer);
                over.store(true, Ordering::Release);
                result // Closing the client sends its pending messages.
            });
            server.serve(over)?;
            requests.join().map_err(|_| "the client panicked")?
        })?;
        let (expired, back) = (server.expired, server.given_back - server.expired);
        assert!(expired >= REQUESTS / 3 && refused >= REQUESTS / 3, "{expired} expired, {refused} refused");
        println!("{kind}: {REQUESTS} leases: {back} returned, {expired} expired; {refused} late writes rejected");
    }
    Ok(())
}
