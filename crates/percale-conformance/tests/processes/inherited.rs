//! A forked child opens its own domain in addition to the inherited objects. This does not make objects of the parent
//! usable in the child, and does not affect the parent or its peer.

#![expect(
    unsafe_code,
    reason = "maps memory where the parent has memory that the child does not inherit; each block states its own reason"
)]

use std::future::IntoFuture;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use percale::{Access, Allocation, Buffer, Event, PeerAddress, PostError, Region, RemoteMemory};
use percale_conformance::memory::{content, same};
use percale_conformance::peers::{Open, open_in};
use percale_conformance::process::{Helper, fork, print_line, variable};
use percale_conformance::watchdog::Watchdog;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::onesided::{Lines, WAIT_TIMEOUT, open_as_told, open_kind, work};

crate::on!(shm, untrusting, tcp, verbs: {
    child_with_a_new_domain_does_not_disturb_its_parent,
    child_future_is_woken_in_a_new_domain,
    child_memory_at_parent_addresses_is_not_overwritten,
});

const LEN: usize = 300_000;
/// The tag of the last message of the peer. The parent waits for it as a task does.
const AWAITED: u64 = 9;
/// The contents of the child's memory.
const CHILDS: u8 = 0xc4;

/// The objects of the parent, which its child inherits.
struct Parents {
    open: Open,
    peer: PeerAddress,
    regions: [Region; 2],
    allocation: Allocation,
}

/// The role of the parent. It receives the command for its child, forks, and reports how the child ended.
pub(crate) fn parent() {
    let open = open_as_told();
    let peer = open.insert(&variable("PERCALE_PEER"));
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let sealed = open.domain.allocate(LEN).expect("memory");
    let regions = [Buffer::from(content(1, LEN)), sealed.into()].map(|memory| open.domain.register(memory, both));
    let regions = regions.map(|region| region.expect("a region"));
    let allocation = open.domain.allocate(2 << 20).expect("memory");
    let keys = regions.each_ref().map(Region::key);
    print_line(&format!("{} {} {}", open.endpoint.address(), keys[0], keys[1]));
    let awaited = open.endpoint.tagged_recv(AWAITED, 0, vec![0; 8]).from(peer);
    block_on(awaited).expect("the task is woken").expect("a message");
    print_line("awaited");
    let mut parents = Some(Parents { open, peer, regions, allocation });
    let lines = Lines::new();
    loop {
        let open = &parents.as_ref().expect("only a child process takes the value").open;
        let Some(line) = lines.try_next() else {
            work(open);
            continue;
        };
        match &*line {
            "end" => return,
            "send" => {
                let sending = open.endpoint.tagged_send(peer, 2, content(2, LEN)).delivered().start().expect("a send");
                sending.wait_for(WAIT_TIMEOUT).expect("the send");
                print_line("sent");
            }
            "receive" => {
                let receiving = open.endpoint.tagged_recv(1, 0, vec![0; LEN]).from(peer).start().expect("a receive");
                same(&receiving.wait_for(WAIT_TIMEOUT).expect("a message").to_vec(), &content(1, LEN), "a message");
                print_line("received");
            }
            part => {
                let places = shared_with_peers();
                let child = fork(|| {
                    // SAFETY: the call sets the timer of this process, which ends the process if it hangs.
                    unsafe { libc::alarm(100) };
                    let planted = places.iter().map(|&(start, len)| plant(start, len)).collect::<Vec<_>>();
                    let good = child(part, &mut parents, &planted);
                    good && planted.iter().all(|bytes| bytes.iter().all(|&byte| byte == CHILDS))
                });
                let ended = waitpid(Pid::from_raw(child), WaitOptions::empty()).expect("the child");
                let (_, status) = ended.expect("the child's status");
                print_line(&format!("{:?} {:?}", status.exit_status(), status.terminating_signal()));
            }
        }
    }
}

fn child(part: &str, parents: &mut Option<Parents>, planted: &[&'static [u8]]) -> bool {
    let own = open_kind(&variable("PERCALE_FABRIC"), |domain| domain);
    let other = open_in(&own.domain, "127.0.0.1:0", |endpoint| endpoint);
    match part {
        "drop" => {
            let inherited = parents.as_ref().expect("the child inherited the objects");
            refused(inherited);
            talk(&own, &other, content(3, LEN).into());
            refused(inherited);
            let Parents { open, regions: [region, sealed], allocation, .. } =
                parents.take().expect("the child inherited the objects");
            drop(allocation);
            drop(region.close().expect("no access is in progress in the child"));
            drop(sealed);
            drop(open);
            talk(&own, &other, content(4, LEN).into());
            true
        }
        "await" => {
            let to = other.vector.insert(own.endpoint.address().to_string()).expect("an address");
            let receiving = own.endpoint.tagged_recv(AWAITED, 0, vec![0; 8]);
            std::thread::scope(|scope| {
                let sender = scope.spawn(move || {
                    // The other thread sleeps by then.
                    std::thread::sleep(Duration::from_millis(300));
                    let sending = other.endpoint.tagged_send(to, AWAITED, vec![7; 8]).start();
                    sending.expect("a send").wait_for(WAIT_TIMEOUT).is_ok()
                });
                let woken = block_on(receiving).is_some_and(|got| got.is_ok_and(|got| got.to_vec() == [7; 8]));
                sender.join().is_ok_and(|sent| sent) && woken
            })
        }
        _ => {
            // The parent's arenas are not mapped here, but other memory may be mapped at their addresses.
            let long = planted.iter().filter(|bytes| bytes.len() >= 1 << 20).count();
            planted.iter().for_each(|&bytes| talk(&own, &other, bytes.into()));
            let mut memory = own.domain.allocate(1000).expect("memory");
            memory.fill(3);
            let right = memory.to_vec() == [3; 1000];
            talk(&own, &other, memory.into());
            let Parents { allocation, regions: [region, sealed], .. } =
                parents.as_ref().expect("the child inherited the objects");
            let quiet = std::panic::take_hook();
            std::panic::set_hook(Box::new(|_| ()));
            let reported = [
                std::panic::catch_unwind(|| allocation.to_vec()).is_err(),
                std::panic::catch_unwind(AssertUnwindSafe(|| sealed.read(0, &mut [0; 8]))).is_err(),
            ];
            std::panic::set_hook(quiet);
            // Memory outside of arenas belongs to the child like any other memory.
            region.read(0, &mut [0; 8]);
            right && long > 0 && reported == [true; 2]
        }
    }
}

/// Checks that the parent's endpoint and domain return errors in the child.
fn refused(inherited: &Parents) {
    let Parents { open, peer, .. } = inherited;
    assert_eq!(open.endpoint.inject(*peer, b"child"), Err(PostError::Forked));
    assert!(open.endpoint.send(*peer, vec![1; LEN]).wait().is_err());
    assert!(open.endpoint.recv(vec![1]).wait().is_err());
    assert!(!open.endpoint.progress());
    assert!(!open.endpoint.wait(Some(Duration::from_millis(20))));
    let error = open.domain.endpoint().vector(&open.vector).bind("127.0.0.1:0").expect_err("no endpoint");
    assert_eq!(error.errno(), libc::ECHILD);
    let error = open.domain.scalable_endpoint().bind("127.0.0.1:0").expect_err("no endpoint");
    assert_eq!(error.errno(), libc::ECHILD);
}

/// Sends from one endpoint of this process to another one.
fn talk(to: &Open, from: &Open, bytes: Buffer) {
    let peer = from.vector.insert(to.endpoint.address().to_string()).expect("an address");
    let receiving = to.endpoint.tagged_recv(1, 0, vec![0; bytes.len()]).start().expect("a receive");
    let expected = bytes.len();
    let sending = from.endpoint.tagged_send(peer, 1, bytes).delivered().start().expect("a send");
    let until = Instant::now() + WAIT_TIMEOUT;
    while !(receiving.is_ready() & sending.is_ready()) {
        assert!(Instant::now() < until, "a message within {WAIT_TIMEOUT:?}");
    }
    let got = receiving.wait().expect("a message").to_vec();
    let sent = sending.wait().expect("the send").buffer.into_vec();
    assert_eq!(got.len(), expected);
    same(&got, &sent, "a message of the child's own");
}

/// Returns the addresses of the memory that percale shares with peers in this process. A child does not inherit that
/// memory.
fn shared_with_peers() -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
    let ours = maps.lines().filter(|line| line.contains("memfd:percale"));
    let places = ours.filter_map(|line| line.split(' ').next()?.split_once('-'));
    let address = |digits| usize::from_str_radix(digits, 16).expect("an address");
    places.map(|(start, end)| (address(start), address(end) - address(start))).collect()
}

/// Maps memory of the child at an address where the parent has other memory.
fn plant(start: usize, len: usize) -> &'static [u8] {
    let (at, flags) = (std::ptr::without_provenance_mut(start), MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
    // SAFETY: the mapping is new, and replaces none.
    let mapped = unsafe { rustix::mm::mmap_anonymous(at, len, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let mapped = mapped.expect("the range is unmapped in the child").cast::<u8>();
    // SAFETY: this range was just mapped.
    unsafe { mapped.write_bytes(CHILDS, len) };
    // SAFETY: the bytes stay mapped, and no code writes them, which is what the test checks.
    unsafe { std::slice::from_raw_parts(mapped, len) }
}

/// A waker that unparks a thread.
struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Waits for a future in the same way as a task: polls it only after it was woken. Returns `None` if it is never woken.
fn block_on<R>(future: impl IntoFuture<Output = R>) -> Option<R> {
    let mut future = pin!(future.into_future());
    let unpark = Arc::new(Unpark { thread: std::thread::current(), woken: AtomicBool::new(true) });
    let waker = Waker::from(Arc::clone(&unpark));
    let until = Instant::now() + WAIT_TIMEOUT;
    while Instant::now() < until {
        if unpark.woken.swap(false, Ordering::SeqCst) {
            if let Poll::Ready(ready) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Some(ready);
            }
        } else {
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }
    None
}

/// Requirements: FLT-010.
fn child_with_a_new_domain_does_not_disturb_its_parent(kind: &str) {
    has_a_child_that(kind, "drop");
}

/// Requirements: FLT-010.
fn child_future_is_woken_in_a_new_domain(kind: &str) {
    has_a_child_that(kind, "await");
}

/// Requirements: FLT-010.
fn child_memory_at_parent_addresses_is_not_overwritten(kind: &str) {
    has_a_child_that(kind, "memory");
}

/// The peer uses all objects of the parent while the parent forks one child after another.
fn has_a_child_that(kind: &str, part: &str) {
    let _watchdog = Watchdog::new("a child with a domain of its own");
    let open = open_kind(kind, |domain| domain);
    let own = open.endpoint.address().to_string();
    let mut helper = Helper::start("parent", &[("PERCALE_FABRIC", kind), ("PERCALE_PEER", &own)]);
    let printed = helper.receive_line();
    let [address, keys @ ..] = &printed.split(' ').collect::<Vec<_>>()[..] else { panic!("{printed}") };
    let peer = open.insert(address);
    // The parent sleeps by then.
    std::thread::sleep(Duration::from_millis(300));
    open.inject(peer, AWAITED, b"awaited!");
    while helper.try_receive_line().is_none() {
        work(&open);
    }
    let names =
        [0, 1].map(|at: usize| RemoteMemory { key: keys[at].parse().expect("a key"), address: 0, len: LEN as u64 });
    let use_all = |helper: &mut Helper, number| {
        for name in names {
            let write = open.endpoint.write(peer, content(number, LEN), name).start().expect("a write");
            write.wait_for(WAIT_TIMEOUT).expect("the write");
            let read = open.endpoint.read(peer, name, vec![0; LEN]).start().expect("a read");
            same(&read.wait_for(WAIT_TIMEOUT).expect("the read").into_vec(), &content(number, LEN), "the written data");
        }
        let sending = open.endpoint.tagged_send(peer, 1, content(1, LEN)).delivered().start().expect("a send");
        helper.send_line("receive");
        sending.wait_for(WAIT_TIMEOUT).expect("the send");
        assert_eq!(helper.receive_line(), "received");
        let receiving = open.endpoint.tagged_recv(2, 0, vec![0; LEN]).from(peer).start().expect("a receive");
        helper.send_line("send");
        same(&receiving.wait_for(WAIT_TIMEOUT).expect("a message").to_vec(), &content(2, LEN), "a message");
        assert_eq!(helper.receive_line(), "sent");
        while let Some(event) = open.events.read() {
            assert!(matches!(event, Event::Connected { .. }), "{event:?}");
        }
    };
    for number in 5..8 {
        use_all(&mut helper, number);
        helper.send_line(part);
        assert_eq!(helper.receive_line(), "Some(0) None", "how the child ended");
    }
    use_all(&mut helper, 8);
    helper.send_line("end");
    helper.end();
}
