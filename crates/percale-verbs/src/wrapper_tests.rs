//! Tests of the wrappers on a device of this machine, or of the double of libibverbs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;

/// Opens the first active port of this machine, or prints the reason why there is none.
fn adapter() -> Option<Adapter> {
    match Adapter::open() {
        Ok(adapter) => Some(adapter),
        Err(why) => {
            println!("skipped (RDMA): no verbs here: {why}");
            None
        }
    }
}

/// An active port.
struct Adapter {
    domain: Arc<ProtectionDomain>,
    path: Path,
    port: Port,
    gid: Gid,
}

impl Adapter {
    fn open() -> Result<Self, String> {
        for context in Context::open_all()? {
            let limits = context.limits().map_err(|error| error.to_string())?;
            for number in 1..=limits.ports {
                let port = context.port(number).map_err(|error| error.to_string())?;
                let Some((gid_index, gid)) = context.address(number, &port).filter(|_| port.active) else { continue };
                let domain = ProtectionDomain::new(&context).map_err(|error| error.to_string())?;
                let path = Path { port: number, gid_index, ethernet: port.ethernet };
                return Ok(Self { domain, path, port, gid });
            }
        }
        Err("no port is active".to_owned())
    }

    const fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    const fn path(&self) -> Path {
        self.path
    }

    const fn end(&self, pair: u32) -> QueuePairEnd {
        QueuePairEnd { pair, sequence: 5, lid: self.port.lid, gid: self.gid, mtu: self.port.mtu }
    }

    fn describe(&self) -> &str {
        self.domain.context().name()
    }
}

/// One end of a connection, with a page to send from and a page to receive into.
struct Side {
    queue: Arc<CompletionQueue>,
    pair: Arc<QueuePair>,
    buffers: Arc<MemoryRegion>,
    end: QueuePairEnd,
}

const PAGE: usize = 4096;

fn side(adapter: &Adapter) -> Side {
    let channel = CompletionChannel::new(adapter.domain().context()).expect("a channel");
    let queue = CompletionQueue::new(&channel, 32).expect("a queue");
    let rights = Rights::LOCAL_WRITE | Rights::REMOTE_WRITE | Rights::REMOTE_READ | Rights::BIND;
    let buffers = MemoryRegion::new(adapter.domain(), 2 * PAGE, rights).expect("a region");
    let pair =
        QueuePair::new(&queue, &buffers, PairSize { sends: 8, receives: 8, inline: 64, pieces: 1 }).expect("a pair");
    pair.prepare(adapter.path(), Rights::REMOTE_WRITE | Rights::REMOTE_READ).expect("a prepared pair");
    let end = adapter.end(pair.number());
    Side { queue, pair: Arc::new(pair), buffers, end }
}

fn sides(adapter: &Adapter) -> (Side, Side) {
    let (one, two) = (side(adapter), side(adapter));
    two.pair.post_receive(100, PAGE, PAGE).expect("a receive");
    one.pair.connect(adapter.path(), &one.end, &two.end).expect("a connected pair");
    two.pair.connect(adapter.path(), &two.end, &one.end).expect("a connected pair");
    (one, two)
}

impl Side {
    /// Returns the next completion. Waits for at most ten seconds. Only one may arrive at a time.
    fn next(&self) -> Completion {
        let until = Instant::now() + Duration::from_secs(10);
        let mut found = Vec::new();
        while found.is_empty() {
            self.queue.poll(|one| found.push(one)).expect("a queue that works");
            assert!(Instant::now() < until, "no completion arrived");
        }
        assert_eq!(found.len(), 1, "more than one completion: {found:?}");
        found[0]
    }

    fn fill(&self, offset: usize, bytes: &[u8]) {
        assert_eq!(self.buffers.copy_in(bytes, offset, bytes.len()), bytes.len());
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(self.buffers.copy_out(offset, len, &mut bytes), len);
        bytes
    }

    fn name(&self, offset: usize) -> u64 {
        self.buffers.as_ptr().wrapping_add(offset) as u64
    }
}

#[test]
fn messages_travel_with_their_immediate_data() {
    let Some(adapter) = adapter() else { return };
    let (one, two) = sides(&adapter);
    one.fill(0, b"through the device");
    one.pair.post_send(7, 0, 18, Some(0xfeed)).expect("a send");
    let sent = one.next();
    assert_eq!((sent.id, sent.status, sent.receive), (7, 0, false));
    let got = two.next();
    assert_eq!((got.id, got.status, got.receive, got.len, got.immediate), (100, 0, true, 18, Some(0xfeed)));
    assert_eq!(two.bytes(PAGE, 18), b"through the device");
}

#[test]
fn memory_outside_the_region_is_refused() {
    let Some(adapter) = adapter() else { return };
    let (one, _two) = sides(&adapter);
    for (offset, len) in [(2 * PAGE, 1), (0, 2 * PAGE + 1), (usize::MAX, 2), (1, usize::MAX)] {
        let refused = one.pair.post_send(1, offset, len, None).expect_err("outside");
        assert_eq!(refused.errno, libc::EFAULT, "{refused}");
        assert_eq!(one.pair.post_receive(1, offset, len).map_err(|error| error.errno), Err(libc::EFAULT));
    }
}

#[test]
fn an_armed_queue_makes_its_channel_readable() {
    use std::os::fd::AsFd;
    let Some(adapter) = adapter() else { return };
    let (one, two) = sides(&adapter);
    let readable = |wait: i64| {
        let mut fds =
            [rustix::event::PollFd::from_borrowed_fd(two.queue.channel().as_fd(), rustix::event::PollFlags::IN)];
        let wait = rustix::time::Timespec { tv_sec: wait, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&wait)).expect("a poll") == 1
    };
    two.queue.arm().expect("an armed queue");
    assert!(!readable(0), "a completion was reported");
    one.pair.post_send(1, 0, 1, None).expect("a send");
    assert!(readable(10), "the completion was not reported");
    two.queue.drain_notifications();
    assert!(!readable(0), "the completion was reported twice");
    assert_eq!(two.next().id, 100);
}

#[test]
fn failed_pair_flushes_posted_requests() {
    let Some(adapter) = adapter() else { return };
    let (_one, two) = sides(&adapter);
    two.pair.fail().expect("a failed pair");
    let got = two.next();
    assert_eq!((got.id, got.status != 0), (100, true), "{}", two.queue.explain(got.status));
}

/// If the receiver has no receive posted, the sender gets an error instead of waiting forever. In a `Wire`, credits
/// prevent this situation.
#[test]
fn a_receiver_without_a_receive_is_an_error_for_the_sender() {
    let Some(adapter) = adapter() else { return };
    let (one, two) = sides(&adapter);
    one.pair.post_send(1, 0, 8, None).expect("a send");
    assert_eq!((one.next().status, two.next().id), (0, 100));
    one.pair.post_send(2, 0, 8, None).expect("a send");
    let refused = one.next();
    assert_eq!((refused.id, refused.status), (2, abi::WC_RNR_RETRY_EXC_ERR), "{}", one.queue.explain(refused.status));
}

#[test]
fn pair_with_objects_of_two_devices_is_rejected() {
    double::on("device double0; device double1", || {
        let contexts = Context::open_all().expect("two devices");
        let [one, two] = &contexts[..] else { panic!("{} devices", contexts.len()) };
        let queue = CompletionQueue::new(&CompletionChannel::new(one).expect("a channel"), 8).expect("a queue");
        let domain = ProtectionDomain::new(two).expect("a domain");
        let buffers = MemoryRegion::new(&domain, PAGE, Rights::LOCAL_WRITE).expect("a region");
        let made = QueuePair::new(&queue, &buffers, PairSize { sends: 1, receives: 1, inline: 0, pieces: 1 });
        assert_eq!(made.err().map(|error| error.errno), Some(libc::EINVAL));
    });
}

#[test]
fn memory_windows_of_both_types_grant_and_revoke_access() {
    let Some(adapter) = adapter() else { return };
    let (_, a2, b2) = adapter.domain().context().limits().expect("limits").windows;
    for kind in [WindowKind::One, WindowKind::Two] {
        if kind == WindowKind::Two && !a2 && !b2 {
            println!("skipped (RDMA windows): {} has no windows of type 2", adapter.describe());
            continue;
        }
        let (one, two) = sides(&adapter);
        let window = Window::new(adapter.domain(), kind).expect("a window");
        let binding = |len| Binding {
            memory: Backing::Region(Arc::clone(&two.buffers), 64, len),
            rights: Rights::REMOTE_WRITE | Rights::REMOTE_READ,
        };
        let unbound = window.remote_key();
        window.bind(&two.pair, 1, &binding(128)).expect("a bind");
        let bound = two.next();
        assert_eq!((bound.id, bound.status), (1, 0), "{kind:?}: {}", two.queue.explain(bound.status));
        let key = window.remote_key();
        assert_ne!(key, unbound, "a bind gives a new key");
        one.fill(0, b"windowed");
        one.pair.post_write(2, 0, 8, (two.name(64), key)).expect("a write");
        let written = one.next();
        assert_eq!((written.id, written.status), (2, 0), "{kind:?}: {}", one.queue.explain(written.status));
        assert_eq!(two.bytes(64, 8), b"windowed");
        if kind == WindowKind::Two {
            assert_eq!(window.bind(&two.pair, 3, &binding(128)).map_err(|error| error.errno), Err(libc::EBUSY));
            let foreign = window.invalidate(&one.pair, 3).map_err(|error| error.errno);
            assert_eq!(foreign, Err(libc::EPERM), "the window was bound over another queue pair");
            window.invalidate(&two.pair, 3).expect("an invalidation");
            assert_eq!(window.invalidate(&two.pair, 4).map_err(|error| error.errno), Err(libc::EINVAL));
        } else {
            window.bind(&two.pair, 3, &binding(0)).expect("an unbinding");
        }
        let taken = two.next();
        assert_eq!((taken.id, taken.status), (3, 0), "{kind:?}: {}", two.queue.explain(taken.status));
        one.fill(0, b"too late");
        one.pair.post_write(5, 0, 8, (two.name(64), key)).expect("a write");
        let refused = one.next();
        assert_ne!(refused.status, 0, "{kind:?}: a revoked key still works");
        assert_eq!(two.bytes(64, 8), b"windowed", "{kind:?}: bytes were written with a revoked key");
    }
}

#[test]
fn objects_may_be_dropped_in_any_order() {
    let Some(adapter) = adapter() else { return };
    let context = Arc::clone(adapter.domain().context());
    let (one, two) = sides(&adapter);
    drop(adapter);
    let Side { queue, pair, buffers, .. } = one;
    drop(buffers);
    drop(queue);
    pair.post_send(1, 0, 8, None).expect("a queue pair keeps its queue and its buffers");
    assert_eq!(two.next().len, 8);
    drop(two);
    drop(pair);
    assert!(context.limits().is_ok());
}
