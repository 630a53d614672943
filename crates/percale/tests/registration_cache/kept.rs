//! Memory that is registered once and found again in the cache.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::thread;

use percale::pindown::Access;
use percale::{CacheSettings, device::BufferTable};

use crate::memory::{Memory, fill, filled, page};
use crate::world::{World, import};

/// Requirements: RCACHE-001, MR-015.
#[test]
fn two_transfers_of_one_buffer_share_a_registration() {
    let Some(world) = World::open(CacheSettings::default(), 16) else { return };
    let mut memory = Memory::new(16);
    for round in 0..50 {
        memory.fill(round);
        world.save(memory.bytes());
        world.fetch(memory.bytes_mut(), round + 100);
    }
    assert_eq!(world.made(), 1, "both directions use one registration");
    assert_eq!(world.pinned(), 16);
    assert_eq!(world.buffers.ordinary_transfers(), 0);
    assert_eq!(world.stats().hits, 99, "{:?}", world.stats());
}

/// Requirements: RCACHE-003.
#[test]
fn a_registration_serves_every_part_of_its_range() {
    let Some(world) = World::open(CacheSettings::default(), 16) else { return };
    let mut memory = Memory::new(8);
    memory.fill(3);
    world.save(memory.bytes());
    let len = memory.bytes().len();
    for (start, end) in [(0, 1), (1, len), (page(), 3 * page()), (len - 1, len), (page() - 1, page() + 1)] {
        world.save(&memory.bytes()[start..end]);
    }
    world.fetch(&mut memory.bytes_mut()[page() + 5..][..100], 9);
    assert_eq!(world.made(), 1);
    assert_eq!(world.pinned(), 8);
}

/// Requirements: RCACHE-004.
#[test]
fn a_registration_stays_when_its_transfer_is_over() {
    let Some(world) = World::open(CacheSettings::default(), 16) else { return };
    let mut memory = Memory::new(4);
    world.save(memory.bytes());
    assert_eq!((world.registered(), world.pinned()), (1, 4), "idle, and kept");
    let other = Memory::new(2);
    world.save(other.bytes());
    assert_eq!((world.registered(), world.pinned()), (2, 6));
    world.replace(&mut memory);
    assert_eq!((world.registered(), world.pinned()), (1, 2), "a change ends it");
    world.buffers.flush();
    assert_eq!((world.registered(), world.pinned()), (0, 0));
}

/// Creates the two ends of a TCP connection.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    (near, listener.accept().expect("accepted").0)
}

/// Requirements: RCACHE-024.
#[test]
fn any_memory_can_be_sent_and_received_into() {
    static READ_ONLY: [u8; 5000] = [7; 5000];
    let Some(world) = World::open(CacheSettings::default(), 64) else { return };
    let (near, far) = connection();
    let exchange = |from: &[u8], into: &mut [u8]| {
        let (lane, near) = (world.buffers.lane(), &near);
        thread::scope(|scope| {
            // A send ends when the other end has received the bytes.
            scope.spawn(move || {
                let mut sent = 0;
                while sent < from.len() {
                    sent += lane.send(&from[sent..], near).expect("sent");
                }
            });
            let mut came = 0;
            while came < from.len() {
                came += world.lane.receive(&mut into[came..], &far).expect("received");
            }
        });
        assert!(from == into, "{} bytes", from.len());
    };
    let mut on_stack = [0_u8; 3000];
    fill(&mut on_stack, 1);
    let mut in_box = Box::new([0_u8; 3000]);
    exchange(&on_stack, &mut in_box[..]);
    let mut mapped = Memory::new(30);
    exchange(&filled(30 * page(), 2), mapped.bytes_mut());
    exchange(&mapped.bytes()[123..9999], &mut [0; 9999 - 123]);
    exchange(&[], &mut []);
    assert_eq!(world.buffers.ordinary_transfers(), 0, "all of it is pinned");
    // Memory that this process may not write is not pinned, but can still be transferred.
    exchange(&READ_ONLY, &mut vec![0; 5000]);
    assert!(world.buffers.ordinary_transfers() >= 1);
    // Memory that the program frees now changes without notification, but its registrations were removed before.
    world.buffers.flush();
    drop(near);
    assert_eq!(world.lane.receive(&mut [0; 8], &far).expect("the end"), 0);
    assert!(world.lane.send(&[0; 8], std::fs::File::open("/dev/null").expect("there")).is_err(), "no socket");
    world.buffers.flush();
}

/// Requirements: RCACHE-024.
#[test]
fn unix_sockets_and_pipes_transfer_registered_memory() {
    let Some(world) = World::open(CacheSettings::default(), 8) else { return };
    let (near, mut far) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let mut memory = Memory::new(2);
    far.write_all(&filled(5000, 4)).expect("room");
    assert_eq!(world.lane.receive(&mut memory.bytes_mut()[..5000], &near).expect("received"), 5000);
    assert!(memory.bytes()[..5000] == filled(5000, 4));
    assert_eq!(world.lane.send(&memory.bytes()[..5000], &near).expect("sent"), 5000);
    assert_eq!(world.lane.receive(memory.bytes_mut(), &far).expect("received"), 5000);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    (&writer).write_all(&filled(100, 5)).expect("room");
    assert_eq!(world.lane.receive(memory.bytes_mut(), &reader).expect("read"), 100);
    assert!(memory.bytes()[..100] == filled(100, 5));
    assert_eq!(world.made(), 1);
}

/// Requirements: RCACHE-027, MR-015.
#[test]
fn application_registrations_stay_until_closed() {
    let _alone = crate::world::alone();
    let domain = crate::world::domain(CacheSettings::default());
    let notifier = import(&domain);
    let table = match BufferTable::new(8) {
        Ok(table) => table,
        Err(why) => return eprintln!("SKIPPED (io_uring): {why}"),
    };
    let cache = domain.registration_cache(table.clone()).expect("a cache");
    let (mut own, mut cached) = (Memory::new(2), Memory::new(2));
    let registration = cache.register(own.range(), Access::LOCAL_WRITE).expect("registered");
    let lane = cache.lane();
    lane.end(lane.get(cached.range(), Access::LOCAL_WRITE).expect("registered"));
    assert_eq!((table.registered(), cache.check()), (2, None));
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (0, 1), "registrations of the application are not looked up");
    own.replace(|range| notifier.changed(range));
    cached.replace(|range| notifier.changed(range));
    cache.sweep();
    assert_eq!(table.registered(), 1, "only the cached registration was removed");
    assert_eq!(
        (cache.check(), cache.check()),
        (Some(registration.handle), None),
        "the change of the other registration is reported once"
    );
    cache.deregister(registration.handle).expect("the registration exists");
    assert_eq!(table.registered(), 0);
}
