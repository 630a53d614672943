//! Every raw posting call, and the public calls that the other two lists omit, each in a separate forked child. The
//! call must return an error. It must not hang or end the child by a signal.

#![expect(unsafe_code, reason = "posts operations and registers memory; each block states its own reason")]

use std::sync::atomic::{AtomicBool, Ordering};

use percale::address::Inserter;
use percale::address::vector::VectorOptions;
use percale::device::{Device, Interface};
use percale::pindown::monitor::imported::Notifier;
use percale::trigger::{DeferredWork, RawOperation, Work};
use percale::{
    Access, AddressSet, AddressVector, AtomicOp, AtomicWork, CompletionQueue, Counted, Counter, Datatype, Domain,
    Endpoint, Entry, ErrorCode, ErrorEntry, Event, EventQueue, LocalPiece, OpFlags, PeerAddress, PostError,
    ReceiveWork, RemoteMemory, RemotePieces, RmaWork, Segment, Segments, SendWork, VerbsAccess, WorkRequest,
};
use percale_conformance::device::driver_for;
use percale_conformance::peers::open_as_told;
use percale_conformance::process::Helper;
use percale_conformance::watchdog::Watchdog;

use crate::inherited_calls::{MOMENT, case, polled, two_endpoints};
use crate::inherited_objects::{Device as Registrar, done, harmless, while_busy};

crate::on!(shm, tcp: {
    posting_calls_on_inherited_objects_are_rejected,
});

/// Requirements: FLT-010.
fn posting_calls_on_inherited_objects_are_rejected(kind: &str) {
    let _watchdog = Watchdog::new("posting calls on inherited objects are rejected");
    let driver = driver_for(env!("CARGO_TARGET_TMPDIR")).map(|(name, library)| (name, library.display().to_string()));
    let driver = driver.as_ref().map(|(name, library)| (*name, library.as_str()));
    let set: Vec<_> = [("PERCALE_FABRIC", kind)].into_iter().chain(driver).collect();
    Helper::start("inherited-posts", &set).end();
}

const NONE: OpFlags = OpFlags::empty();
const FORKED: Result<(), PostError> = Err(PostError::Forked);

/// The posting calls of an endpoint with one owner, or of a shared endpoint. None of them uses memory.
macro_rules! posting_calls {
    ($who:literal, $endpoint:expr, $peer:expr, $remote:expr) => {{
        let (endpoint, peer, remote): (_, PeerAddress, RemoteMemory) = ($endpoint, $peer, $remote);
        let (segments, segment, context) = (Segments::EMPTY, Segment::EMPTY, 1);
        let send = SendWork { peer, segments, tag: None, data: None, context, flags: NONE };
        let receive = ReceiveWork { from: PeerAddress::UNSPECIFIED, segments, tag: None, context, flags: NONE };
        let rma =
            RmaWork { peer, local: segments, remote: RemotePieces::one(remote), data: None, context, flags: NONE };
        let atomic = AtomicWork {
            peer,
            op: AtomicOp::Sum,
            datatype: Datatype::U64,
            operand: segments,
            compare: None,
            result: None,
            remote,
            data: None,
            context,
            flags: NONE,
        };
        // SAFETY: here and below, the work has no memory.
        case(concat!($who, ": post_send"), || FORKED == unsafe { endpoint.post_send(&send) });
        case(concat!($who, ": post_send_one"), || {
            // SAFETY: as above.
            FORKED == unsafe { endpoint.post_send_one(peer, segment, None, None, context, NONE) }
        });
        // SAFETY: as above.
        case(concat!($who, ": post_recv"), || FORKED == unsafe { endpoint.post_recv(&receive) });
        case(concat!($who, ": post_recv_one"), || {
            // SAFETY: as above.
            FORKED == unsafe { endpoint.post_recv_one(PeerAddress::UNSPECIFIED, segment, None, context, NONE) }
        });
        // SAFETY: as above.
        case(concat!($who, ": post_write"), || FORKED == unsafe { endpoint.post_write(&rma) });
        // SAFETY: as above.
        case(concat!($who, ": post_read"), || FORKED == unsafe { endpoint.post_read(&rma) });
        case(concat!($who, ": post_write_one"), || {
            // SAFETY: as above.
            FORKED == unsafe { endpoint.post_write_one(peer, segment, remote, context, NONE) }
        });
        case(concat!($who, ": post_read_one"), || {
            // SAFETY: as above.
            FORKED == unsafe { endpoint.post_read_one(peer, segment, remote, context, NONE) }
        });
        // SAFETY: as above.
        case(concat!($who, ": post_atomic"), || FORKED == unsafe { endpoint.post_atomic(&atomic) });
        case(concat!($who, ": post_fetch_add"), || {
            // SAFETY: as above.
            FORKED == unsafe { endpoint.post_fetch_add(peer, segment, segment, remote, context, NONE) }
        });
        case(concat!($who, ": post_compare_swap"), || {
            // SAFETY: as above.
            FORKED == unsafe { endpoint.post_compare_swap(peer, [segment; 2], segment, remote, context, NONE) }
        });
        case(concat!($who, ": post_work"), || {
            let pieces: [LocalPiece; 0] = [];
            // SAFETY: as above.
            unsafe { endpoint.post_work(peer, WorkRequest::Send(None), &pieces, context, NONE) }.is_err()
        });
        case(concat!($who, ": tagged_inject"), || endpoint.tagged_inject(peer, 1, b"child") == FORKED);
        case(concat!($who, ": inject_with"), || endpoint.inject_with(peer, b"child", None, Some(1)) == FORKED);
        case(concat!($who, ": tagged_send"), || endpoint.tagged_send(peer, 1, vec![1]).wait().is_err());
        case(concat!($who, ": tagged_recv"), || endpoint.tagged_recv(1, 0, vec![1]).wait().is_err());
        case(concat!($who, ": fetch_atomic"), || {
            endpoint.fetch_atomic(peer, AtomicOp::Sum, remote.at(0..8), 1_u64).wait().is_err()
        });
        case(concat!($who, ": compare_atomic"), || {
            endpoint.compare_atomic(peer, AtomicOp::Cswap, remote.at(0..8), 1_u64, 2).wait().is_err()
        });
        case(concat!($who, ": address"), || endpoint.address().port() == 0);
        case(concat!($who, ": domain"), || harmless(endpoint.domain().cache_settings().clone()));
        case(concat!($who, ": set_multi_receive_minimum"), || harmless(endpoint.set_multi_receive_minimum(7)));
        case(concat!($who, ": multi_receive_minimum"), || endpoint.multi_receive_minimum() == 0);
        case(concat!($who, ": is_closed"), || !endpoint.is_closed());
        case(concat!($who, ": is_held_by_windows"), || !endpoint.is_held_by_windows());
        case(concat!($who, ": count"), || endpoint.count(Counted::SENDS, &Counter::new()) == FORKED);
    }};
}

/// Tests a completion queue, a counter and an event queue that threads use while the process forks.
fn completion() {
    let (queue, counter, events) = (CompletionQueue::default(), Counter::new(), EventQueue::new(16));
    let fill = |_: &AtomicBool| {
        if queue.reserve().is_ok() {
            queue.push(Entry::default());
        }
        _ = queue.read(&mut [Entry::default(); 4]);
    };
    let count = |_: &AtomicBool| counter.set(counter.value() / 2);
    let send_line = |_: &AtomicBool| {
        events.push(Event::Lost { count: 1 });
        drop(events.read());
    };
    while_busy(&[&fill, &count, &send_line], || {
        for _ in 0..10 {
            case("queue: reserve", || queue.reserve().is_err());
            case("queue: push", || done(|| queue.push(Entry::default())));
            case("queue: push_error", || {
                done(|| queue.push_error(ErrorEntry::new(Entry::default(), ErrorCode::Canceled)))
            });
            case("queue: update", || queue.update(|ring| ring.len()) == 0);
            case("queue: is_empty", || queue.is_empty());
            case("counter: read", || harmless((counter.read(), counter.read_error(), counter.value())));
            case("counter: add_error", || done(|| counter.add_error(1)));
            case("counter: set", || done(|| counter.set(7)));
            case("counter: set_error", || done(|| counter.set_error(7)));
            case("counter: has_work", || !counter.has_work());
            case("counter: wait_since", || counter.wait_since(u64::MAX, 0, None).is_err());
            case("counter: descriptor", || counter.descriptor().is_err());
            case("events: push", || done(|| events.push(Event::Lost { count: 1 })));
            case("events: an inserter of the child", || {
                let vector = AddressVector::new(VectorOptions::default()).expect("a vector");
                let insertion = Inserter::new(&vector, &events).insert_many([([127, 0, 0, 1], 0).into()], 1);
                insertion.is_ok_and(|insertion| insertion.outcome().is_some()) && events.is_empty()
            });
            case("events: write_later", || events.write_later(|| None).is_err());
            case("events: is_empty", || events.is_empty());
        }
    });
}

fn domain_calls(domain: &Domain, endpoint: &percale::SharedEndpoint) {
    let (when, vector) = (Counter::new(), domain.address_vector().build().expect("a vector"));
    let work = || {
        let flags = NONE;
        let from = PeerAddress::UNSPECIFIED;
        let receive = ReceiveWork { from, segments: Segments::EMPTY, tag: None, context: 1, flags };
        let work = Work::Transfer(endpoint.clone(), RawOperation::Receive(receive));
        DeferredWork { work, counter: when.clone(), threshold: 100, counting: None }
    };
    let device = Device::new(Interface::Cuda, 0).expect("a device, or its double");
    let events = EventQueue::new(16);
    let inserter = Inserter::new(&vector, &events);
    let (_notifier, imported) = Notifier::new(|_, _| true).expect("a monitor");
    let mut imported = Some(imported);
    let churn = |_: &AtomicBool| drop(domain.variable());
    while_busy(&[&churn], || {
        // SAFETY: the work has no memory.
        case("domain: queue_work", || unsafe { domain.queue_work(work()) }.is_err());
        // SAFETY: as above.
        case("domain: queue_named_work", || unsafe { domain.queue_named_work(work(), |_| ()) }.is_err());
        case("domain: import_monitor", || {
            // SAFETY: no memory is registered with the domain's caches.
            imported.take().is_some_and(|imported| unsafe { domain.import_monitor(imported) }.is_err())
        });
        case("domain: open_cache", || domain.open_cache(domain.cache_settings(), Registrar).is_err());
        case("domain: cache_settings", || harmless(domain.cache_settings().clone()));
        case("domain: fixed_buffers", || domain.fixed_buffers(1).is_err());
        case("domain: address_vector", || harmless(domain.address_vector().build()));
        case("domain: allocate", || harmless(domain.allocate(1 << 16)));
        case("domain: allocate_of", || harmless(domain.allocate_of::<u64>(100)));
        case("domain: buffer_pool", || {
            domain
                .buffer_pool(2, 100)
                .is_ok_and(|pool| pool.take().is_some_and(|mut own| own.copy_from(0, b"own") == 3))
        });
        case("domain: register_typed", || domain.register_typed(vec![0_u64; 8], Access::REMOTE_READ).is_err());
        case("domain: transports", || harmless(domain.transports()));
        case("domain: scalable_endpoint", || domain.scalable_endpoint().bind("127.0.0.1:0").is_err());
        case("domain: shared_receive", || harmless(domain.shared_receive()));
        case("domain: device_variable", || domain.device_variable(device).is_err());
        case("domain: type_two", || harmless(domain.type_two()));
        case("domain: scope", || {
            let mut memory = [0; 64];
            domain.scope(|scope| scope.register(&mut memory, Access::REMOTE_READ).is_err())
        });
        case("domain: register_verbs", || domain.register_verbs(vec![0; 64], VerbsAccess::LOCAL_WRITE).is_err());
        case("domain: verbs_registration", || {
            domain.verbs_registration(VerbsAccess::LOCAL_WRITE).is_ok_and(|made| made.own(vec![0; 64]).is_err())
        });
        case("inserter: id", || harmless(inserter.id()));
        case("inserter: insert_outcomes", || inserter.insert_outcomes(Vec::new(), 1, Box::new(|_| ())).is_err());
        case("inserter: start_service", || inserter.start_service("127.0.0.1", "8", 1, Box::new(|_| ())).is_err());
        case("inserter: start_symmetric", || {
            inserter.start_symmetric(("127.0.0.1", 2), ("8", 2), 1, Box::new(|_| ())).is_err()
        });
        case("vector: is_empty", || vector.is_empty());
        case("vector: options", || harmless(vector.options()));
    });
    let variable = domain.variable();
    case("variable: address", || harmless((variable.address(), variable.device_address())));
    case("variable: value", || harmless(variable.value()));
    case("variable: is_written", || harmless(variable.is_written()));
}

fn group_calls(one: &Endpoint, two: &Endpoint, members: &AddressSet) {
    let (joining, mut other) = (one.join(members).expect("a join"), two.join(members).expect("a join"));
    let mut joining = Some(joining);
    case("join: wait_for", || joining.take().is_some_and(|mut joining| joining.wait_for(MOMENT).is_err()));
    let mut joining = joining.expect("a child took it");
    while !joining.is_ready() | !other.is_ready() {}
    let (group, _other) = (joining.wait().expect("a group"), other.wait().expect("a group"));
    let (sum, word) = (AtomicOp::Sum, Datatype::U64);
    case("group: id", || harmless((group.id(), group.rank(), group.size())));
    case("group: allreduce", || group.allreduce(sum, word, vec![0; 8]).wait().is_err());
    case("group: reduce", || group.reduce(0, sum, word, vec![0; 8]).wait().is_err());
    case("group: reduce_scatter", || group.reduce_scatter(sum, word, vec![0; 16]).wait().is_err());
    case("group: allgather", || group.allgather(vec![0; 16]).wait().is_err());
    case("group: alltoall", || group.alltoall(vec![0; 16]).wait().is_err());
    case("group: scatter", || group.scatter(0, vec![0; 16]).wait().is_err());
    case("group: gather", || group.gather(0, vec![0; 16]).wait().is_err());
    let mut under_way = Some(group.barrier().start().expect("a barrier"));
    case("collective: wait_for", || under_way.take().is_some_and(|mut barrier| barrier.wait_for(MOMENT).is_err()));
}

fn fixed_buffers(domain: &Domain) {
    let Ok(buffers) = domain.fixed_buffers(4) else { return println!("skipped (io_uring): it is not allowed here") };
    let lane = buffers.lane();
    let mut page = vec![0_u8; 1 << 16];
    let file = std::fs::File::open("/proc/self/exe").expect("a file");
    lane.read(&mut page, &file, 0).expect("the file's first bytes");
    case("fixed buffers: lane", || buffers.lane().read(&mut page, &file, 0).is_err());
    case("fixed buffers: table", || harmless((buffers.table().made(), buffers.table().registered())));
    case("fixed buffers: stats", || harmless((buffers.stats(), buffers.explanation(), buffers.ordinary_transfers())));
    case("fixed buffers: sweep", || done(|| buffers.sweep()));
    case("fixed buffers: flush", || done(|| buffers.flush()));
    case("fixed lane: write", || lane.write(&page, &file, 0).is_err());
    case("fixed lane: read", || lane.read(&mut page, &file, 0).is_err());
    case("fixed lane: send", || lane.send(&page, &file).is_err());
    case("fixed lane: receive", || lane.receive(&mut page, &file).is_err());
}

/// The role of the parent process. Its children make the calls.
pub(crate) fn parent() {
    let open = open_as_told();
    let domain = &open.domain;
    let (vector, one, two) = two_endpoints(domain);
    let [to_one, to_two] = [&one, &two].map(|endpoint| vector.insert(endpoint.address()).expect("an address"));
    let (got, sent) = (two.recv(vec![0; 8]).start(), one.send(to_two, vec![1; 8]).start());
    let (got, sent) = (got.expect("a receive"), sent.expect("a send"));
    while !got.is_ready() || !sent.is_ready() {
        one.progress();
        two.progress();
    }
    let region = domain.register(vec![0; 4096], Access::REMOTE_READ | Access::REMOTE_WRITE).expect("a region");
    let remote = region.remote();
    posting_calls!("endpoint", &one, to_two, remote);
    let shared = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0").expect("an endpoint");
    let drive = |over: &AtomicBool| {
        while !over.load(Ordering::Relaxed) {
            shared.progress();
        }
    };
    while_busy(&[&drive], || posting_calls!("shared endpoint", &shared, to_two, remote));
    let mut own = Some(domain.endpoint().vector(&vector).bind("127.0.0.1:0").expect("an endpoint"));
    case("endpoint: share", || own.take().is_some_and(|endpoint| endpoint.share().is_err()));
    case("endpoint: close", || own.take().is_some_and(|endpoint| harmless(endpoint.close())));
    let mut many = Some(one.recv(vec![0; 64]).many().expect("a receive"));
    case("many: wait", || many.as_mut().is_some_and(|many| many.wait().is_err()));
    let mut awaited = one.recv(vec![0; 64]).many().expect("a receive");
    case("many: next_message", || {
        polled(&mut Box::pin(awaited.next_message())).flatten().is_some_and(|next| next.is_err())
    });
    case("many: finish", || many.take().is_some_and(|many| harmless(many.finish())));
    completion();
    domain_calls(domain, &shared);
    fixed_buffers(domain);
    let members: AddressSet = [to_one, to_two].into_iter().collect();
    group_calls(&one, &two, &members);
}
