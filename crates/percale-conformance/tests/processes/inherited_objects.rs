//! Every call on the objects of a domain other than endpoints, each in a separate forked child. The call must return an
//! error. It must not hang or end the child by a signal. Threads of the parent are in the middle of such calls when it
//! forks, and the parent uses all objects afterwards.

#![expect(unsafe_code, reason = "posts operations and registers memory; each block states its own reason")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use percale::address::Inserter;
use percale::memory::region::PendingError;
use percale::pindown::{Access as PinAccess, Pinned, Range, Registrar};
use percale::trigger::RawOperation;
use percale::{
    Access, AddressSet, AddressVector, AtomicOp, Bind, Collective, CollectiveWork, Counter, Datatype, Domain, Endpoint,
    Event, EventQueue, Info, OpFlags, PeerAddress, PollSet, ReceiveWork, Segment, Segments, SharedReceive, ViewError,
    WaitSet, Window, WindowAccess, WindowType,
};
use percale_conformance::peers::open_as_told;
use percale_conformance::process::Helper;
use percale_conformance::watchdog::Watchdog;

use crate::inherited_calls::{MOMENT, case, polled, two_endpoints};

crate::on!(shm, tcp: {
    calls_on_inherited_domain_objects_are_rejected,
});

/// Requirements: FLT-010.
fn calls_on_inherited_domain_objects_are_rejected(kind: &str) {
    let _watchdog = Watchdog::new("calls on inherited domain objects are rejected");
    Helper::start("inherited-objects", &[("PERCALE_FABRIC", kind)]).end();
}

const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
const WINDOW: WindowAccess = WindowAccess::WRITE;

/// A device that pins nothing.
pub(crate) struct Device;

impl Registrar for Device {
    type Pin = u64;

    fn pin(&self, range: Range, _access: PinAccess) -> std::io::Result<Pinned<u64>> {
        Ok(Pinned { pin: range.start(), local_key: 0, remote_key: 0 })
    }

    fn unpin(&self, _start: u64) {}
}

/// Returns true. Used for a call that cannot return an error, and that must not hang or end the child.
pub(crate) fn harmless<T>(_: T) -> bool {
    true
}

/// Like [`harmless`], for a call without a result.
pub(crate) fn done(call: impl FnOnce()) -> bool {
    call();
    true
}

/// Calls `fork` while threads repeatedly execute these functions.
pub(crate) fn while_busy(what: &[&(dyn Fn(&AtomicBool) + Sync)], fork: impl FnOnce()) {
    /// Stops the threads, even if a case fails.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for work in what {
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    work(over);
                }
            });
        }
        let _over = Over(&over);
        std::thread::sleep(Duration::from_millis(20));
        fork();
    });
}

fn vectors(domain: &Domain) {
    let name = format!("inherited-{}", std::process::id());
    let named = domain.address_vector().name(name).build().expect("a named vector");
    let own = domain.address_vector().build().expect("a vector");
    let (here, there) = ("127.0.0.1:7", "127.0.0.1:8");
    for (who, vector) in [("named vector", &named), ("vector", &own)] {
        let peer = vector.insert(here).expect("an address");
        let events = EventQueue::new(16);
        let mut inserter = Some(Inserter::new(vector, &events));
        let before = vector.len();
        // The iterator runs while the vector is locked, so the vector is locked when the process forks.
        let endless = |over: &AtomicBool| {
            let addresses = std::iter::from_fn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                None::<SocketAddr>
            });
            drop(vector.insert_many(addresses));
        };
        while_busy(&[&endless], || vector_calls(who, vector, peer, &mut inserter, there.parse().expect("an address")));
        assert_eq!((vector.len(), vector.lookup(peer)), (before, Some(here.parse().expect("an address"))));
        inserter
            .take()
            .expect("a child took it")
            .insert_many([there.parse().expect("an address")], 1)
            .expect("inserted");
        assert_eq!(vector.len(), before + 1, "{who}");
        vector.remove(peer).expect("the peer is in the vector");
    }
}

fn vector_calls(
    who: &str,
    vector: &AddressVector,
    peer: PeerAddress,
    inserter: &mut Option<Inserter>,
    there: SocketAddr,
) {
    let case = |name: &str, call: &mut dyn FnMut() -> bool| case(&format!("{who}: {name}"), call);
    case("insert", &mut || vector.insert(there).is_err());
    case("insert_many", &mut || vector.insert_many([there]).is_err());
    case("insert_outcomes", &mut || vector.insert_outcomes([Ok(there)]).is_err());
    case("insert_all", &mut || vector.insert_all([there])[0].is_err());
    case("insert_service", &mut || vector.insert_service("127.0.0.1", "8").is_err());
    case("insert_symmetric", &mut || vector.insert_symmetric("127.0.0.1", 2, "8", 2).is_err());
    case("remove", &mut || vector.remove(peer).is_err());
    case("lookup", &mut || harmless(vector.lookup(peer)));
    case("find", &mut || vector.find(there).is_none());
    case("changes", &mut || vector.changes() == 0);
    case("removals", &mut || vector.removals() == 0);
    case("len", &mut || vector.is_empty());
    case("numbers_in_memory", &mut || vector.numbers_in_memory().is_none());
    let used = inserter.as_ref().expect("an inserter");
    case("inserter: insert_many", &mut || used.insert_many([there], 1).is_err());
    case("inserter: insert_service", &mut || used.insert_service("127.0.0.1", "8", 1).is_err());
    case("inserter: insert_symmetric", &mut || used.insert_symmetric("127.0.0.1", 2, "8", 2, 1).is_err());
    case("inserter: drop", &mut || inserter.take().is_some());
}

fn shared_receives(domain: &Domain) {
    let shared: SharedReceive = domain.shared_receive();
    let mut held = Some(shared.recv(vec![0; 8]).expect("a receive"));
    let mut future = Box::pin(shared.tagged_recv(1, 0, vec![0; 8]).expect("a receive"));
    assert!(polled(&mut future).is_none());
    let churn = |_: &AtomicBool| drop(shared.recv(vec![0; 8]));
    while_busy(&[&churn, &churn], || {
        for _ in 0..3 {
            case("shared receive: recv", || shared.recv(vec![0; 8]).is_err());
            case("shared receive: tagged_recv", || shared.tagged_recv(1, 0, vec![0; 8]).is_err());
            case("shared receive: recv_from", || shared.recv_from(PeerAddress::UNSPECIFIED, None, vec![0; 8]).is_err());
            case("shared receive: post_recv", || {
                let segments = Segments::EMPTY;
                let flags = OpFlags::empty();
                let work = ReceiveWork { from: PeerAddress::UNSPECIFIED, segments, tag: None, context: 1, flags };
                // SAFETY: the work has no memory.
                unsafe { shared.post_recv(&work) }.is_err()
            });
            case("shared receive: cancel", || !shared.cancel(1));
            case("shared receive: set_multi_receive_minimum", || {
                shared.set_multi_receive_minimum(7);
                harmless(())
            });
            case("shared receiving: is_ready", || held.as_ref().is_some_and(|held| held.is_ready()));
            case("shared receiving: cancel", || held.as_ref().is_some_and(|held| !held.cancel()));
            case("shared receiving: take", || {
                held.take().is_some_and(|held| held.take().is_some_and(|end| end.is_err()))
            });
            case("shared receiving: drop", || held.take().is_some());
            case("shared receiving: poll", || polled(&mut future).is_some_and(|end| end.is_err()));
        }
    });
    assert!(held.expect("a child took it").cancel() && polled(&mut future).is_none(), "the receives are unchanged");
}

fn windows(domain: &Domain, one: &Endpoint, to_two: PeerAddress) {
    let region = domain.register(vec![0; 4096], BOTH).expect("a region");
    let shown = domain.window(WindowType::One).expect("a window");
    let mut window = domain.window(WindowType::One).expect("a window");
    let bound = window.bind(&region, 0..8, WINDOW).expect("bound");
    let two: Window = domain.window(WindowType::TwoB).expect("a window");
    let (bind, counter) = (Bind { range: 0..8, access: WINDOW, key: 1 }, Counter::new());
    let mut given = Some(window);
    let churn = |_: &AtomicBool| {
        drop(domain.window(WindowType::One));
        _ = (shown.state(), shown.key());
    };
    while_busy(&[&churn, &churn], || {
        for _ in 0..3 {
            case("domain: window", || domain.window(WindowType::One).is_err());
            case("window: state", || harmless(shown.state()));
            case("window: key", || shown.key() & 0xFF == 0);
            case("window: bind", || given.as_mut().is_some_and(|window| window.bind(&region, 0..8, WINDOW).is_err()));
            case("window: close", || given.take().is_some_and(|window| window.close().is_err()));
            case("window: drop", || given.take().is_some());
            case("endpoint: bind_window", || one.bind_window(to_two, &two, &region, bind.clone()).start().is_err());
            case("endpoint: post_bind", || one.post_bind(to_two, &two, &region, &bind, 0, OpFlags::empty()).is_err());
            case("endpoint: invalidate", || one.invalidate(to_two, 1).start().is_err());
            case("endpoint: post_invalidate", || one.post_invalidate(to_two, 1, 0, OpFlags::empty()).is_err());
            case("domain: allows", || !domain.allows(bound, Access::REMOTE_WRITE));
        }
    });
    assert!(domain.allows(bound, Access::REMOTE_WRITE), "the window is unchanged");
    let mut operation = Some(one.bind_window(to_two, &two, &region, bind).start().expect("a bind"));
    case("window operation: is_ready", || operation.as_ref().is_some_and(|operation| operation.is_ready()));
    case("window operation: wait", || operation.take().is_some_and(|mut operation| operation.wait().is_err()));
    case("window operation: drop", || operation.take().is_some());
    operation.expect("a child took it").wait().expect("the window is bound");
    // Accesses that wait for a counter remain outstanding.
    let remote = region.remote();
    let start = || one.read(to_two, remote, vec![0; 4096]).when(&counter, 1).start().expect("a read");
    let (mut access, mut future) = (Some(start()), Box::pin(start()));
    assert!(polled(&mut future).is_none());
    case("access: is_ready", || access.as_ref().is_some_and(|access| access.is_ready()));
    case("access: wait", || access.take().is_some_and(|mut access| access.wait().is_err()));
    case("access: wait_for", || access.take().is_some_and(|mut access| access.wait_for(MOMENT).is_err()));
    case("access: wait_until", || access.take().is_some_and(|mut access| access.wait_until(None).is_err()));
    case("access: cancel", || access.as_ref().is_some_and(|access| !access.cancel()));
    case("access: drop", || access.take().is_some());
    case("access: poll", || polled(&mut future).is_some_and(|end| end.is_err()));
    case("endpoint: read", || one.read(to_two, remote, vec![0; 4096]).wait().is_err());
    case("endpoint: write", || one.write(to_two, vec![0; 4096], remote).wait().is_err());
    case("endpoint: fetch_add", || one.fetch_add(to_two, remote.at(0..8), 1_u64).wait().is_err());
    case("endpoint: compare_swap", || one.compare_swap(to_two, remote.at(0..8), 1_u64, 2).wait().is_err());
    case("endpoint: inject_write", || one.inject_write(to_two, &[1; 8], remote.at(0..8), None).is_err());
    drop((access, future));
}

fn regions(domain: &Domain) {
    let (memory, counter) = (vec![0_u8; 4096], Counter::new());
    // SAFETY: the memory lives as long as the region, and no code writes it.
    let segment = unsafe { Segment::new(memory.as_ptr().cast_mut(), memory.len()) };
    // SAFETY: the memory outlives the region, no code writes it, and peers may only read it.
    let mut raw = unsafe { domain.registration(Access::REMOTE_READ).raw(&[segment], true) }.expect("a region");
    let mut region = domain.register(vec![7; 4096], BOTH).expect("a region");
    let allocated = domain.register(domain.allocate(64).expect("memory"), BOTH).expect("a region");
    let view = allocated.view();
    let local = region.remote();
    let raw_key = region.raw_key();
    let events = EventQueue::new(16);
    let mut pending = Some(domain.registration(BOTH).begin(vec![0; 64], &events, 1).expect("room"));
    let mut mapped = Some(domain.map_raw(raw_key.as_bytes()).expect("a key"));
    let churn = |_: &AtomicBool| drop(domain.register(vec![0; 64], BOTH));
    let map = |_: &AtomicBool| drop(domain.map_raw(&[1; 8]));
    while_busy(&[&churn, &churn, &map], || {
        for _ in 0..3 {
            case("domain: register", || domain.register(vec![0; 64], BOTH).is_err());
            case("domain: registration with a raw key", || {
                domain.registration(BOTH).raw_key().own(vec![0; 64]).is_err()
            });
            case("domain: registration later", || domain.registration(BOTH).begin(vec![0; 64], &events, 1).is_err());
            case("pending region: finish", || {
                pending.take().is_some_and(|pending| matches!(pending.finish(), Err(PendingError::Failed(_))))
            });
            case("pending region: drop", || pending.take().is_some());
            case("region: remote", || region.remote() == local);
            case("region: local_key", || region.local_key().is_err());
            case("region: enable", || region.enable().is_err());
            case("region: disable", || region.disable().is_err());
            case("region: refresh", || region.refresh(|| ()).is_err());
            case("region: write to a copy", || {
                region.write(0, &[1; 8]);
                harmless(())
            });
            case("region: view of a copy", || region.view().write_at(0, 1_u64).is_ok());
            case("region: view", || allocated.view().write_at(0, 1_u64) == Err(ViewError::Forked));
            case("region: slice", || {
                allocated.slice(8..16).is_ok_and(|part| part.view().read_at::<u64>(0) == Err(ViewError::Forked))
            });
            case("view: slice", || view.slice(8..).is_ok_and(|part| part.read_at::<u8>(0) == Err(ViewError::Forked)));
            case("view: read_at", || view.read_at::<u64>(0) == Err(ViewError::Forked));
            case("view: write_at", || view.write_at(0, 1_u64) == Err(ViewError::Forked));
            case("view: copy_to", || view.copy_to(0, &mut [0; 8]) == Err(ViewError::Forked));
            case("view: copy_from", || view.copy_from(0, &[1; 8]) == Err(ViewError::Forked));
            case("view: atomic", || view.atomic::<u64>(0).is_err_and(|error| error == ViewError::Forked));
            case("raw region: count", || raw.count(&counter).is_err());
            case("region: count", || region.count(&counter).is_err());
            case("domain: map_raw", || domain.map_raw(raw_key.as_bytes()).is_err());
            case("mapped key: drop", || mapped.take().is_some());
        }
    });
    let mut byte = [0];
    region.read(0, &mut byte);
    assert_eq!(byte, [7], "the region is unchanged");
    assert_eq!(view.read_at::<[u8; 64]>(0), Ok([0; 64]), "the allocation is as it was");
    let mut raw = Some(raw);
    case("raw region: close", || raw.take().is_some_and(|raw| harmless(raw.close())));
    assert!(events.read().is_some_and(|event| matches!(event, Event::Registered { .. })));
    assert!(pending.expect("a child took it").finish().is_ok());
    raw.expect("a child took it").close().expect("closed");
    drop(region.close().expect("closed"));
}

fn triggered(domain: &Domain, one: &Endpoint) {
    let (when, to) = (Counter::new(), Counter::new());
    let work = domain.defer_add(&to, 1, (&when, 1)).expect("queued");
    let variable = domain.variable();
    let mut dropped = Some(domain.variable());
    let receive = || {
        let flags = OpFlags::empty();
        let from = PeerAddress::UNSPECIFIED;
        RawOperation::Receive(ReceiveWork { from, segments: Segments::EMPTY, tag: None, context: 1, flags })
    };
    let churn = |_: &AtomicBool| {
        let work = domain.defer_add(&to, 1, (&when, 100)).expect("queued");
        domain.cancel_work(&work);
        drop(domain.variable());
    };
    while_busy(&[&churn, &churn], || {
        for _ in 0..3 {
            case("domain: defer_add", || domain.defer_add(&to, 1, (&when, 1)).is_err());
            case("domain: defer_set", || domain.defer_set(&to, 1, (&when, 1)).is_err());
            case("domain: cancel_work", || !domain.cancel_work(&work));
            case("domain: flush_work", || domain.flush_work(None) == 0);
            case("domain: flush_work of a counter", || domain.flush_work(Some(&when)) == 0);
            case("domain: variable", || !domain.variable().is_written());
            case("variable: write", || {
                variable.write();
                harmless(())
            });
            case("variable: drop", || dropped.take().is_some());
            // SAFETY: the operations have no memory.
            case("endpoint: post_when", || unsafe { one.post_when(&receive(), &when, 1) }.is_err());
            // SAFETY: as above.
            case("endpoint: post_when_written", || unsafe { one.post_when_written(&receive(), &variable) }.is_err());
            case("counter: work of the child", || {
                let own = open_as_told();
                // SAFETY: the operation has no memory.
                let posted = unsafe { own.endpoint.post_when(&receive(), &when, 1) }.is_err();
                let given_back = own.endpoint.recv(vec![7; 8]).when(&when, 1).start();
                let given_back = given_back.is_err_and(|error| error.buffer().is_some());
                let added = own.domain.defer_add(&to, 1, (&when, 1)).is_err();
                posted && given_back && added && own.domain.defer_set(&when, 1, (&to, 1)).is_err()
            });
        }
    });
    assert!(!variable.is_written());
    when.add(1);
    assert_eq!(to.value(), 1, "the work is unchanged");
}

fn collectives(one: &Endpoint, two: &Endpoint, members: &AddressSet, to_two: PeerAddress) {
    let (joining, mut other) = (one.join(members).expect("a join"), two.join(members).expect("a join"));
    let mut joining = Some(joining);
    case("join: is_ready", || joining.as_ref().is_some_and(|joining| joining.is_ready()));
    case("join: wait", || joining.take().is_some_and(|mut joining| joining.wait().is_err()));
    case("join: drop", || joining.take().is_some());
    let mut joining = joining.expect("a child took it");
    while !joining.is_ready() | !other.is_ready() {}
    let (group, other) = (joining.wait().expect("a group"), other.wait().expect("a group"));
    let (id, mut group) = (group.id(), Some(group));
    let barrier = || group.as_ref().expect("a group").barrier();
    let (mut under_way, mut future) = (Some(barrier().start().expect("a barrier")), None);
    case("group: barrier", || barrier().wait().is_err());
    case("group: broadcast", || group.as_ref().is_some_and(|group| group.broadcast(0, vec![0; 8]).start().is_err()));
    case("collective: is_ready", || under_way.as_ref().is_some_and(|under_way| under_way.is_ready()));
    case("collective: wait", || under_way.take().is_some_and(|mut under_way| under_way.wait().is_err()));
    case("collective: drop", || under_way.take().is_some());
    future.replace(Box::pin(barrier().start().expect("a barrier")));
    let future = future.as_mut().expect("a future");
    assert!(polled(future).is_none());
    case("collective: poll", || polled(future).is_some_and(|end| end.is_err()));
    case("endpoint: join", || one.join(members).is_err());
    case("endpoint: join_group", || one.join_group(members, 1).is_err());
    case("endpoint: leave_group", || {
        one.leave_group(id);
        harmless(())
    });
    case("endpoint: rank_in", || one.rank_in(id).is_none());
    case("endpoint: rank_of", || one.rank_of(id, to_two).is_none());
    case("endpoint: outstanding_in", || one.outstanding_in(id) == 0);
    case("endpoint: post_collective", || {
        let (op, datatype, flags) = (AtomicOp::Sum, Datatype::U8, OpFlags::empty());
        let (source, result) = (Segment::EMPTY, Segment::EMPTY);
        let work = CollectiveWork {
            group: id,
            what: Collective::Barrier,
            op,
            datatype,
            count: 0,
            source,
            result,
            context: 0,
            flags,
        };
        // SAFETY: the work has no memory.
        unsafe { one.post_collective(&work) }.is_err()
    });
    case("group: drop", || group.take().is_some());
    // Post both barriers of the parent's side.
    let theirs = [other.barrier().start().expect("a barrier"), other.barrier().start().expect("a barrier")];
    let mut under_way = under_way.expect("a child took it");
    while !under_way.is_ready() | !theirs[0].is_ready() | !theirs[1].is_ready() {}
    under_way.wait().expect("the barrier");
}

fn sets() {
    let (counter, other) = (Counter::new(), Counter::new());
    let (waits, polls) = (WaitSet::new(), PollSet::new());
    waits.add(&counter).expect("a member");
    polls.add(&counter, 1_u32).expect("a member");
    let churn = |_: &AtomicBool| {
        let counter = Counter::new();
        waits.add(&counter).expect("a member");
        polls.add(&counter, 2).expect("a member");
        // The lock of the shared counter's followers is held when the process forks.
        drop(WaitSet::new().add(&other));
        drop(waits.wait(Some(Duration::ZERO)));
        polls.poll(&mut [0]);
        waits.remove(&counter);
        polls.remove(&counter);
    };
    while_busy(&[&churn, &churn], || {
        for _ in 0..5 {
            case("wait set: add", || waits.add(&other).is_err());
            case("wait set: remove", || !waits.remove(&counter));
            case("wait set: len", || waits.is_empty());
            case("wait set: wait", || waits.wait(None).is_err());
            case("wait set: descriptor", || waits.descriptor().is_err());
            case("wait set: try_wait", || waits.try_wait().is_err());
            case("poll set: add", || polls.add(&other, 3).is_err());
            case("poll set: remove", || polls.remove(&counter).is_none());
            case("poll set: len", || polls.is_empty());
            case("poll set: poll", || polls.poll(&mut [0]) == 0);
            case("counter: a member of a set of the child", || {
                WaitSet::new().add(&other).is_err() && PollSet::new().add(&other, 1).is_err()
            });
            case("poll set: debug", || harmless(format!("{polls:?}{waits:?}")));
        }
    });
    counter.add(1);
    waits.wait(None).expect("the counter has changed");
    assert_eq!((waits.len(), polls.poll(&mut [0])), (1, 1));
}

fn connections(domain: &Domain) {
    let listener = domain.listener().bind("127.0.0.1:0").expect("a listener");
    let address = listener.address().to_string();
    let client = domain.endpoint().connect_shared(&address, b"hello").expect("an endpoint");
    let progress = |_: &AtomicBool| _ = (client.progress(), listener.progress());
    let mut request = loop {
        if let Some(Event::ConnectionRequest(request)) = listener.events().read() {
            break Some(request);
        }
        client.progress();
    };
    while_busy(&[&progress, &progress], || {
        case("listener: address", || harmless(listener.address()));
        case("listener: events", || listener.events().read().is_none());
        case("listener: pending", || listener.pending() == 0);
        case("listener: progress", || !listener.progress());
        case("listener: set_backlog", || {
            listener.set_backlog(1);
            harmless(())
        });
        case("request: data", || request.as_ref().is_some_and(|request| request.data() == b"hello"));
        case("request: reject", || request.as_ref().is_some_and(|request| request.reject(b"no").is_err()));
        case("request: accept", || {
            request.as_ref().is_some_and(|request| domain.endpoint().accept(request, b"yes").is_err())
        });
        case("request: drop", || request.take().is_some());
        case("domain: connect", || domain.endpoint().connect(&address, b"child").is_err());
        case("connection: accept", || request.as_ref().is_some_and(|request| client.accept(request, b"yes").is_err()));
        case("connection: connect", || client.connect(&address, b"child").is_err());
        case("connection: wait_connected", || client.wait_connected(None).is_err());
        case("connection: connection_state", || client.connection_state().is_none());
        case("connection: peer_address", || client.peer_address().is_none());
        case("connection: shutdown", || client.shutdown().is_err());
    });
    let server = domain.endpoint().accept_shared(&request.expect("a child took it"), b"yes").expect("accepted");
    while client.wait_connected(Some(MOMENT)).is_err() {
        _ = (server.progress(), listener.progress());
    }
}

fn builders(domain: &Domain) {
    let scalable = domain.scalable_endpoint().contexts(2).bind("127.0.0.1:0").expect("an endpoint");
    let mut context = Some(scalable.open(0, domain.endpoint()).expect("a context"));
    let churn = |_: &AtomicBool| drop(scalable.open_shared(1, domain.endpoint()));
    while_busy(&[&churn], || {
        for _ in 0..3 {
            case("scalable endpoint: address", || scalable.address().port() != 0);
            case("scalable endpoint: open", || scalable.open(1, domain.endpoint()).is_err());
            case("scalable endpoint: open_shared", || scalable.open_shared(1, domain.endpoint()).is_err());
            case("scalable endpoint: open_sender", || scalable.open_sender(1, domain.endpoint()).is_err());
            case("scalable endpoint: open_sender_shared", || {
                scalable.open_sender_shared(1, domain.endpoint()).is_err()
            });
            case("context: drop", || context.take().is_some());
            case("domain: endpoint", || domain.endpoint().bind("127.0.0.1:0").is_err());
            case("domain: endpoint for many threads", || domain.endpoint().bind_shared("127.0.0.1:0").is_err());
            case("domain: endpoint of one connection", || domain.endpoint().bind_single("127.0.0.1:0").is_err());
            case("domain: listener", || domain.listener().bind("127.0.0.1:0").is_err());
            case("domain: scalable endpoint", || domain.scalable_endpoint().bind("127.0.0.1:0").is_err());
        }
    });
    drop(scalable.open(1, domain.endpoint()).expect("a context"));
    let cache = domain.registration_cache(Device).expect("a cache");
    let lane = cache.lane();
    let bytes = vec![0_u8; 4096];
    let range = || Range::of(&bytes).expect("a range");
    let get = |_: &AtomicBool| {
        let lane = cache.lane();
        lane.end(lane.get(range(), PinAccess::empty()).expect("a registration"));
    };
    while_busy(&[&get, &get], || {
        for _ in 0..3 {
            case("domain: registration_cache", || domain.registration_cache(Device).is_err());
            case("cache: get", || lane.get(range(), PinAccess::empty()).is_err());
            case("cache: a new lane", || cache.lane().get(range(), PinAccess::empty()).is_err());
            case("cache: flush and sweep", || harmless((cache.flush(), cache.sweep())));
            case("cache: stats", || harmless((cache.stats(), cache.explanation())));
        }
    });
    lane.end(lane.get(range(), PinAccess::empty()).expect("a registration"));
    let discovered = Info::discover().expect("discovery");
    case("a builder that was inherited opens the child's own domain", || {
        let domain = discovered.domain().open().expect("a domain");
        domain.endpoint().bind("127.0.0.1:0").is_ok()
    });
}

/// The role of the parent process. Its children make the calls.
pub(crate) fn parent() {
    let open = open_as_told();
    let domain = &open.domain;
    let (vector, one, two) = two_endpoints(domain);
    let [to_one, to_two] = [&one, &two].map(|endpoint| vector.insert(endpoint.address()).expect("an address"));
    let members: AddressSet = [to_one, to_two].into_iter().collect();
    vectors(domain);
    shared_receives(domain);
    sets();
    triggered(domain, &one);
    regions(domain);
    builders(domain);
    connections(domain);
    windows(domain, &one, to_two);
    collectives(&one, &two, &members, to_two);
}
