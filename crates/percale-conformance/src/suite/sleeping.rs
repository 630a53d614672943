//! Threads and tasks that sleep on an endpoint's descriptor: in poll(2), in a waiting call, or as tasks.

use std::future::{Future, IntoFuture};
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use percale::Progress;
use rustix::event::{PollFd, PollFlags, poll};

use super::waiting::{PEER, inject, two, two_in, two_shared};
use crate::fabric::{Peers, Real};
use crate::memory::{Memory, content, same};
use crate::mesh::{MANY, Mesh, Receive, Send};
use crate::random::Random;
use crate::watchdog::Watchdog;

/// One side sleeps on the descriptor whenever that is permitted. The other side sends after pauses of various lengths.
///
/// Requirements: CMP-015.
pub fn a_sleeper_is_woken_and_no_message_is_missed<F: Peers + Real>() {
    const ROUNDS: u64 = 400;
    let _watchdog = Watchdog::new("a sleeper is woken");
    let (sleeper, waker) = two::<F>();
    let slept = std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut random = Random::new(crate::random::seed());
            for round in 0..ROUNDS {
                if round % 4 == 0 {
                    std::thread::sleep(Duration::from_micros(random.below(300) as u64));
                }
                inject(&waker, round, &round.to_le_bytes());
                let receiving = waker.tagged_recv(round, 0, vec![0; 8]);
                assert_eq!(receiving.wait().expect("an echo").to_vec(), round.to_le_bytes());
            }
        });
        let sleeping = scope.spawn(move || {
            let mut slept = 0;
            for round in 0..ROUNDS {
                let mut receiving = sleeper.tagged_recv(round, 0, vec![0; 8]).start().expect("a receive");
                while !receiving.is_ready() {
                    // The endpoint's own queue stays empty, so only the descriptor can wake the thread up.
                    if sleeper.try_wait() {
                        let fd = sleeper.as_fd();
                        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], None) {
                            Ok(_) | Err(rustix::io::Errno::INTR) => slept += 1,
                            Err(error) => panic!("poll: {error}"),
                        }
                    }
                }
                let got = receiving.wait().expect("a message").to_vec();
                assert_eq!(got, round.to_le_bytes());
                inject(&sleeper, round, &got);
            }
            // The last injected message may not have been sent yet.
            for _ in 0..1000 {
                sleeper.progress();
            }
            slept
        });
        sleeping.join().expect("the sleeper")
    });
    println!("{}: slept {slept} times in {ROUNDS} rounds", F::NAME);
    assert!(slept > 0);
}

/// Arming checks for results once more. If a send completes in that check, the thread must not sleep.
///
/// Requirements: CMP-015.
pub fn arming_detects_a_result_of_the_last_poll<F: Peers + Real>() {
    let mesh = Mesh::<F>::connected(2);
    let mut sent: u64 = 0;
    let source = Memory::content(1, 8);
    while mesh.try_send(0, mesh.peer(1), Send::of(source).silent()).is_ok() {
        sent += 1;
    }
    // Safe operations own their buffers and may wait for room.
    let waiting = mesh.endpoint(0).send(mesh.peer(1), vec![1; 8]).start().expect("a send");
    // Endpoint 0 does nothing while endpoint 1 receives the messages.
    let target = Memory::blank(8);
    let take = |_: &u64| {
        let received = mesh.receive(1, Receive::into(target));
        (0..MANY).any(|_| {
            mesh.turn_one(1);
            mesh.take(received).is_some()
        })
    };
    let taken = (0..sent).take_while(take).count();
    println!("{}: room was available after {taken} of {sent} messages were received", F::NAME);
    assert!(!mesh.endpoint(0).try_wait(), "there is room for the send that waits");
    assert!(mesh.finish(waiting).is_ok());
}

/// A thread that sleeps on the descriptor is woken up even if another waiter has started and stopped waiting in
/// between.
///
/// Requirements: CMP-015.
pub fn sleeper_is_woken_after_another_waiter_has_stopped<F: Real>() {
    let _watchdog = Watchdog::new("sleeper is woken after another waiter has stopped");
    let (a, b) = two_shared::<F>(Progress::Manual, |endpoint| endpoint);
    std::thread::scope(|scope| {
        scope.spawn(|| b.tagged_recv(1, 0, vec![0; 5]).wait().expect("a message"));
        a.tagged_send(PEER, 1, "first").delivered().wait().expect("a send");
    });
    let other = || assert!(!b.wait(Some(Duration::from_millis(1))), "the endpoint's own queue stays empty");
    // The sleeper is a thread in poll(2).
    let mut receiving = b.tagged_recv(2, 0, vec![0; 6]).start().expect("a receive");
    while !b.try_wait() {
        b.progress();
    }
    other();
    inject(&a, 2, b"second");
    let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
    let fd = b.as_fd();
    assert_eq!(
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)),
        Ok(1),
        "the descriptor did not become readable"
    );
    assert_eq!(receiving.wait().expect("a message").to_vec(), b"second");
    // The sleeper is a task.
    let mut receiving = pin!(b.tagged_recv(3, 0, vec![0; 5]).into_future());
    let waker = fall_asleep(receiving.as_mut());
    other();
    inject(&a, 3, b"third");
    assert_eq!(block_on(receiving, &waker).expect("a message").to_vec(), b"third");
}

/// A task sleeps, and its endpoint then gets work that makes progress only while the endpoint is polled. The task is
/// woken up to poll it.
///
/// Requirements: CMP-016.
pub fn sleeping_task_progresses_work_posted_later<F: Peers + Real>() {
    const COUNT: u64 = 24;
    const LEN: usize = 400_000;
    let _watchdog = Watchdog::new("sleeping task progresses work posted later");
    // Disable the timer that checks for silent peers, which would also wake the task after several seconds.
    let (a, b) = two_in::<F>(|domain| domain.peer_timeout(Duration::ZERO));
    std::thread::scope(|scope| {
        let (posted, all_posted) = std::sync::mpsc::channel();
        scope.spawn(move || {
            b.tagged_recv(0, 0, vec![0; 8]).wait().expect("the first message");
            all_posted.recv().expect("all is posted");
            for number in 1..=COUNT {
                let got = b.tagged_recv(number, 0, vec![0; LEN]).wait().expect("a long message");
                same(&got.to_vec(), &content(number, LEN), "a long message");
            }
            b.tagged_send(PEER, 99, "thanks").delivered().wait().expect("the answer");
        });
        inject(&a, 0, &[0; 8]);
        let mut answer = pin!(a.tagged_recv(99, 0, vec![0; 6]).into_future());
        let waker = fall_asleep(answer.as_mut());
        let post = |number| a.tagged_send(PEER, number, content(number, LEN)).start().expect("a send");
        let sends: Vec<_> = (1..=COUNT).map(post).collect();
        posted.send(()).expect("the receiver still runs");
        assert_eq!(block_on(answer, &waker).expect("the answer").to_vec(), b"thanks");
        sends.into_iter().for_each(|mut sending| drop(sending.wait().expect("a send")));
    });
}

/// A thread that sleeps on the descriptor of an idle endpoint uses no processor time until a message arrives. If local
/// peers share the page of the doorbell, the thread checks the page every 100 ms.
///
/// Requirements: RES-007.
pub fn an_idle_sleeper_takes_no_processor_time<F: Peers + Real>() {
    let _watchdog = Watchdog::new("an idle sleeper takes no processor time");
    // Disable the timer that checks for silent TCP peers.
    let (sleeper, waker) = two_in::<F>(|domain| domain.peer_timeout(Duration::ZERO));
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        scope.spawn(move || {
            let receiving = sleeper.tagged_recv(1, 0, vec![0; 5]).wait().expect("a message");
            assert_eq!(receiving.to_vec(), b"first");
            let mut receiving = sleeper.tagged_recv(2, 0, vec![0; 6]).start().expect("a receive");
            sender.send(rustix::thread::gettid()).expect("the test checks this thread");
            let fd = sleeper.as_fd();
            while !receiving.is_ready() {
                if sleeper.try_wait() {
                    poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).expect("sleep");
                }
            }
            assert_eq!(receiving.wait().expect("a message").to_vec(), b"second");
        });
        waker.tagged_send(PEER, 1, "first").delivered().wait().expect("a send");
        let task = format!("/proc/self/task/{}", receiver.recv().expect("the sleeper").as_raw_nonzero());
        // The nanoseconds of processor time, and the number of times that the thread was scheduled. The value between
        // them is not used.
        let taken = || std::fs::read_to_string(format!("{task}/schedstat")).expect("the thread exists");
        let asleep = || {
            let stat = std::fs::read_to_string(format!("{task}/stat")).expect("the thread exists");
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
        };
        let turns = |taken: &str| taken.split_whitespace().nth(2).and_then(|turns| turns.parse::<u64>().ok());
        // The thread may spin for a short time before it sleeps on the descriptor. It is idle only when two checks
        // agree.
        let idle = || {
            let before = taken();
            std::thread::sleep(Duration::from_millis(50));
            asleep() && taken() == before
        };
        while !idle() {}
        let (before, since) = (taken(), std::time::Instant::now());
        std::thread::sleep(Duration::from_millis(500));
        let after = taken();
        if F::NAME == "shm" {
            let turns = turns(&after).expect("a number") - turns(&before).expect("a number");
            // A check may take two time slices if other tasks need the processor.
            let looks = since.elapsed().as_millis() as u64 / 100 + 1;
            assert!(turns <= 2 * looks, "the thread was scheduled {turns} times for {looks} checks");
        } else {
            assert_eq!(after, before, "processor time in ns, time in the queue, turns");
        }
        inject(&waker, 2, b"second");
    });
}

/// A waker that unparks the thread that runs one future.
struct Unpark {
    thread: std::thread::Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Polls a future that has no result yet until it sleeps, which means that it no longer requests another poll.
fn fall_asleep(mut future: Pin<&mut impl Future>) -> Arc<Unpark> {
    let waker = Arc::new(Unpark { thread: std::thread::current(), woken: AtomicBool::new(true) });
    while waker.woken.swap(false, Ordering::SeqCst) {
        assert!(future.as_mut().poll(&mut Context::from_waker(&Arc::clone(&waker).into())).is_pending());
        std::thread::yield_now();
    }
    waker
}

/// Runs a future that sleeps. It is polled only when its waker is called.
fn block_on<R>(mut future: Pin<&mut impl Future<Output = R>>, waker: &Arc<Unpark>) -> R {
    loop {
        while !waker.woken.swap(false, Ordering::SeqCst) {
            std::thread::park();
        }
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&Arc::clone(waker).into())) {
            return result;
        }
    }
}

/// An endpoint sleeps after its peers were closed: no timer of a peer keeps its descriptor readable.
///
/// Requirements: RES-007.
pub fn endpoint_sleeps_after_its_peers_left<F: Peers + Real>() {
    let timeout = Duration::from_millis(200); // With this timeout, timers expire every 50 ms.
    let mut mesh = Mesh::<F>::with(2, |domain| domain.peer_timeout(timeout), |_, endpoint| endpoint);
    mesh.connect();
    mesh.close(1);
    let endpoint = mesh.endpoint(0);
    mesh.until(|| endpoint.describe_peers().iter().all(|(_, how)| how.starts_with("loopback")).then_some(()));
    let limit = rustix::time::Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
    // Events of the close may wake it once or twice. A timer that is never read would wake it forever.
    let quiet = (0..20).any(|_| {
        mesh.turns(10);
        endpoint.try_wait()
            && poll(&mut [PollFd::new(&endpoint.as_fd(), PollFlags::IN)], Some(&limit)).expect("a poll") == 0
    });
    assert!(quiet, "the descriptor stays readable");
}
