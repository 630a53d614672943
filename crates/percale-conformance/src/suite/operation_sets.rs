//! Sets of operations in flight, and waits for any or all of a few operations.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use percale::endpoint::safe::{
    Cause, OperationError, OperationSet, PushCause, TimedOut, wait_all, wait_all_until, wait_any, wait_any_until,
};
use percale::endpoint::{EndpointHandle, Shared};
use percale::{Buffer, ErrorCode, PostError, Progress};

use super::waiting::{PEER, inject, two, two_shared};
use super::wakers::driven_by_its_waker;
use crate::fabric::{Peers, Real, Transport};
use crate::memory::{content, same};
use crate::mesh::{MANY, Mesh, Receive};
use crate::watchdog::Watchdog;

/// A set of receives at the second endpoint of a mesh, with their tags as keys.
type Receives<'m> = OperationSet<&'m percale::endpoint::Owned, percale::endpoint::safe::Received, u64>;

fn receives<F: Transport>(mesh: &Mesh<F>, capacity: usize) -> Receives<'_> {
    mesh.endpoint(1).operation_set(capacity)
}

#[track_caller]
fn push<'m, F: Transport>(mesh: &'m Mesh<F>, set: &mut Receives<'m>, tag: u64) {
    let receive = mesh.endpoint(1).tagged_recv(tag, 0, vec![0; 8]).start().expect("a receive");
    set.push(receive, tag).expect("there is room");
}

#[track_caller]
fn is_canceled(error: &OperationError) {
    assert!(matches!(error.cause(), Cause::Completion(entry) if entry.error == ErrorCode::Canceled), "{error}");
}

/// Members end in another order than that in which they were added.
pub fn operation_set_returns_results_in_order_of_completion<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let mut set = receives(&mesh, 8);
    assert!(set.is_empty() && set.next().is_none() && set.try_next().is_none());
    for _ in 0..3 {
        (0..8).for_each(|tag| push(&mesh, &mut set, tag));
        assert_eq!((set.len(), set.capacity(), set.is_full(), set.try_next().is_none()), (8, 8, true, true));
        let order = [5, 2, 7, 0, 1, 6, 4, 3];
        order.iter().for_each(|tag| mesh.inject(0, 1, Some(*tag), &content(*tag, 8)));
        for (turn, tag) in order.into_iter().enumerate() {
            let (key, got) = match turn % 3 {
                0 => mesh.until(|| set.try_next()),
                1 => mesh.until(|| set.next_for(Duration::ZERO).ok()).expect("a result"),
                _ => mesh.finish(set.next_ended()).expect("a result"),
            };
            same(&got.expect("a message").to_vec(), &content(tag, 8), "the message of the key");
            assert_eq!((key, set.len()), (tag, 7 - turn));
        }
        assert!(set.is_empty() && set.next().is_none());
    }
}

/// The error returns the operation, which continues, and the key.
pub fn full_operation_set_refuses_further_operations<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let mut set = receives(&mesh, 1);
    push(&mesh, &mut set, 1);
    let receive = |tag| mesh.endpoint(1).tagged_recv(tag, 0, vec![0; 8]).start().expect("a receive");
    let refused = set.push(receive(2), 2).expect_err("it is full");
    assert_eq!((refused.cause, refused.key, refused.cause.errno()), (PushCause::Full(1), 2, libc::EAGAIN));
    mesh.inject(0, 1, Some(2), &content(2, 8));
    same(&mesh.finish(refused.operation).expect("a message").to_vec(), &content(2, 8), "the message");
    mesh.inject(0, 1, Some(1), &content(1, 8));
    assert_eq!(mesh.until(|| set.try_next()).0, 1);
    push(&mesh, &mut set, 3);
    assert_eq!(receives(&mesh, 0).push(receive(4), 4).expect_err("it is full").cause, PushCause::Full(0));
    if !F::ALONE {
        let mut other = mesh.endpoint(0).operation_set(1);
        let refused = other.push(receive(5), 5).expect_err("the endpoint is another one");
        assert_eq!((refused.cause, refused.cause.errno()), (PushCause::OtherEndpoint, libc::EINVAL));
        assert!(other.is_empty() && refused.operation.cancel());
    }
}

/// The timeout of a wait removes no member.
pub fn operation_set_timeout_keeps_members<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let mut set = receives(&mesh, 4);
    assert!(matches!(set.next_for(Duration::ZERO), Ok(None)), "an empty set does not wait");
    push(&mesh, &mut set, 1);
    for _ in 0..3 {
        assert!(matches!(set.next_for(Duration::ZERO), Err(TimedOut)));
        assert_eq!(set.next_until(Some(Instant::now())).err().map(|late| late.errno()), Some(libc::ETIMEDOUT));
        assert_eq!(set.len(), 1);
    }
    mesh.inject(0, 1, Some(1), &content(1, 8));
    assert_eq!(mesh.until(|| set.next_for(Duration::ZERO).ok()).expect("a result").0, 1);
    assert!(matches!(set.next_for(Duration::MAX), Ok(None)));
}

/// Canceled members stay until their results were taken. Those of a dropped set are canceled, and take no message.
pub fn dropped_operation_set_cancels_its_operations<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let mut set = receives(&mesh, 10);
    (0..10).for_each(|tag| push(&mesh, &mut set, tag));
    mesh.inject(0, 1, Some(3), &content(3, 8));
    mesh.settle(0, 1);
    mesh.turns(MANY);
    assert_eq!((set.cancel_all(), set.cancel_all(), set.len()), (9, 0, 10));
    let (key, got) = set.next().expect("a result");
    assert_eq!((key, got.expect("a message").to_vec()), (3, content(3, 8)));
    let canceled = std::iter::from_fn(|| set.next()).map(|(key, end)| {
        let error = end.expect_err("it was canceled");
        is_canceled(&error);
        assert_eq!(error.into_buffer().map(|buffer| buffer.len()), Some(8));
        key
    });
    let canceled: BTreeSet<_> = canceled.collect();
    assert_eq!(canceled, (0..10).filter(|tag| *tag != 3).collect());
    // A set that is dropped.
    (0..10).for_each(|tag| push(&mesh, &mut set, tag));
    drop(set);
    let bytes: Arc<[u8]> = content(1, F::BULK).into();
    let mut sends = mesh.endpoint(0).operation_set(4);
    for tag in 20..24 {
        let send = mesh.endpoint(0).tagged_send(mesh.peer(1), tag, Arc::clone(&bytes));
        sends.push(send.start().expect("a send"), tag).expect("there is room");
    }
    drop(sends);
    for tag in 0..10 {
        mesh.inject(0, 1, Some(tag), &content(tag, 8));
        let receive = mesh.endpoint(1).tagged_recv(tag, 0, vec![0; 8]);
        same(&mesh.finish(receive).expect("a message").to_vec(), &content(tag, 8), "the message of no dropped receive");
    }
    // A send that was not canceled keeps its buffer until the peer has received it.
    mesh.settle(0, 1);
    for tag in 20..24 {
        let peeked = mesh.receive(1, Receive::peek(percale::OpFlags::empty()).tag(tag, 0));
        if mesh.report(peeked).is_ok() {
            let receive = mesh.endpoint(1).tagged_recv(tag, 0, vec![0; F::BULK]);
            same(&mesh.finish(receive).expect("a message").to_vec(), &bytes, "the message of a dropped send");
        }
    }
    mesh.until(|| (Arc::strong_count(&bytes) == 1).then_some(()));
}

/// Operations that end when they are posted, and operations whose results were taken, are members like others.
pub fn operation_set_takes_operations_that_have_ended<F: Transport>() {
    let mesh = Mesh::<F>::connected(2);
    let mut sends = mesh.endpoint(0).operation_set(16);
    for number in 0..16 {
        let send = mesh.endpoint(0).tagged_send(mesh.peer(1), number, content(number, 8)).start().expect("a send");
        sends.push(send, number).expect("there is room");
    }
    for number in 0..16 {
        let (key, sent) = mesh.until(|| sends.try_next());
        assert_eq!((key, sent.expect("a send").into_vec()), (number, content(number, 8)));
        let receive = mesh.endpoint(1).tagged_recv(number, 0, vec![0; 8]);
        same(&mesh.finish(receive).expect("a message").to_vec(), &content(number, 8), "the message");
    }
    let mut set = receives(&mesh, 4);
    let receive = |tag| mesh.endpoint(1).tagged_recv(tag, 0, vec![0; 8]).start().expect("a receive");
    let (mut taken, ended, waits) = (receive(1), receive(2), receive(3));
    assert!(taken.cancel() && taken.wait().is_err() && taken.is_taken());
    assert!(wait_any(std::slice::from_mut(&mut taken)).is_none(), "its error was returned");
    assert!(ended.cancel());
    set.push(waits, 3).expect("there is room");
    set.push(ended, 2).expect("there is room");
    set.push(taken, 1).expect("there is room");
    let (key, end) = set.next().expect("a result");
    assert_eq!(key, 2);
    is_canceled(&end.expect_err("it was canceled"));
    let (key, end) = set.next().expect("a result");
    assert!(key == 1 && matches!(end.expect_err("it was taken").cause(), Cause::Taken));
    assert!(set.try_next().is_none() && set.len() == 1);
}

/// The results of many operations in flight come with their keys.
pub fn operation_set_of_a_thousand_returns_every_result<F: Transport>() {
    const COUNT: u64 = 1000;
    let mesh = Mesh::<F>::connected(2);
    let mut set = receives(&mesh, COUNT as usize);
    (0..COUNT).for_each(|tag| push(&mesh, &mut set, tag));
    // 7 and the number of receives have no common divisor.
    let order = (0..COUNT).map(|step| step * 7 % COUNT);
    order.clone().for_each(|tag| mesh.inject(0, 1, Some(tag), &content(tag, 8)));
    for tag in order {
        let (key, got) = mesh.until(|| set.try_next());
        assert_eq!((key, got.expect("a message").to_vec()), (tag, content(tag, 8)));
    }
    assert!(set.is_empty());
}

/// A thread that waits for a set, and a task that awaits it, are woken by the end of any member.
pub fn operation_set_wait_ends_when_any_member_ends<F: Peers + Real>() {
    let _watchdog = Watchdog::new("operation set wait ends when any member ends");
    let (a, b) = two_shared::<F>(Progress::Manual, |endpoint| endpoint);
    let mut set: OperationSet<Shared, _, u64> = b.operation_set(8);
    for tag in 0..8 {
        set.push(b.tagged_recv(tag, 0, vec![0; 8]).start().expect("a receive"), tag).expect("there is room");
    }
    let later = |tag: u64| {
        let a = a.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            a.tagged_send(PEER, tag, content(tag, 8)).wait().expect("a send");
        })
    };
    for tag in [6, 1, 4, 3, 7, 0, 5] {
        let sends = later(tag);
        let (key, got) = match tag % 3 {
            0 => set.next().expect("a result"),
            1 => driven_by_its_waker(set.next_ended()).expect("a result"),
            _ => driven_by_its_waker(std::future::poll_fn(|context| set.poll_next(context))).expect("a result"),
        };
        assert_eq!((key, got.expect("a message").to_vec()), (tag, content(tag, 8)));
        sends.join().expect("no panic");
    }
    // A set that borrows nothing can be moved to another thread.
    let waits = std::thread::spawn(move || set.next().expect("a result").0);
    later(2).join().expect("no panic");
    assert_eq!(waits.join().expect("no panic"), 2);
}

/// A set that always has a result still makes progress on its other members.
pub fn operation_set_makes_progress_while_results_wait<F: Peers + Real>() {
    let mesh = Mesh::<F>::connected(2);
    let mut set = receives(&mesh, 4);
    push(&mesh, &mut set, 1);
    let canceled = || {
        let receive = mesh.endpoint(1).tagged_recv(2, 0, vec![0; 8]).start().expect("a receive");
        assert!(receive.cancel());
        receive
    };
    set.push(canceled(), 2).expect("there is room");
    mesh.inject(0, 1, Some(1), &content(1, 8));
    mesh.turn_one(0);
    loop {
        set.push(canceled(), 2).expect("there is room");
        if set.next().expect("a result").0 == 1 {
            break;
        }
    }
}

struct Ignores;

impl Wake for Ignores {
    fn wake(self: Arc<Self>) {}
}

/// A dropped future leaves no waker in the set, and loses no result.
pub fn dropped_future_of_an_operation_set_leaves_no_waker<F: Real>() {
    let _watchdog = Watchdog::new("dropped future of an operation set leaves no waker");
    let (_a, b) = two::<F>();
    let counts = Arc::new(Ignores);
    let mut set = b.operation_set(2);
    set.push(b.tagged_recv(1, 0, vec![0; 8]).start().expect("a receive"), "a").expect("there is room");
    let mut receive = b.tagged_recv(2, 0, vec![0; 8]).start().expect("a receive");
    let waker = Waker::from(Arc::clone(&counts));
    // The receive waits for its own task until it becomes a member.
    for _ in 0..60 {
        assert!(Pin::new(&mut receive).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    set.push(receive, "b").expect("there is room");
    for _ in 0..50 {
        let mut next = set.next_ended();
        for _ in 0..60 {
            assert!(Pin::new(&mut next).poll(&mut Context::from_waker(&waker)).is_pending());
        }
    }
    drop(waker);
    while Arc::strong_count(&counts) > 1 {
        std::thread::sleep(Duration::from_millis(1)); // The thread that wakes tasks may be about to call it.
    }
    assert_eq!(set.cancel_all(), 2);
    let Poll::Ready(Some(_)) = Pin::new(&mut set.next_ended()).poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("both members have ended")
    };
    assert!(set.next().is_some() && set.next().is_none());
}

/// Closing a shared endpoint ends the members of its sets, and further receives are refused.
pub fn closed_endpoint_ends_the_members_of_its_sets<F: Peers + Real>() {
    let _watchdog = Watchdog::new("closed endpoint ends the members of its sets");
    let (_a, b) = two_shared::<F>(Progress::Manual, |endpoint| endpoint);
    let mut set = b.operation_set(4);
    for tag in 0..4 {
        set.push(b.tagged_recv(tag, 0, vec![0; 8]).start().expect("a receive"), tag).expect("there is room");
    }
    let waits = std::thread::spawn(move || {
        let ends = std::iter::from_fn(|| set.next()).map(|(key, end)| (key, end.is_err()));
        ends.collect::<BTreeSet<_>>()
    });
    std::thread::sleep(Duration::from_millis(20));
    b.shut();
    assert_eq!(waits.join().expect("no panic"), (0..4).map(|tag| (tag, true)).collect());
    let refused = b.tagged_recv(4, 0, vec![0; 8]).start().expect_err("the endpoint is closed");
    assert!(matches!(refused.cause(), Cause::Post(PostError::Closed)), "{refused}");
}

/// The first message of a few receives.
fn any<H: EndpointHandle>(
    operations: &mut [percale::endpoint::safe::Operation<H, percale::endpoint::safe::Received>],
) -> usize {
    let (index, got) = wait_any(operations).expect("there are operations");
    same(&got.expect("a message").to_vec(), &content(index as u64, 8), "the message");
    index
}

/// Waits for operations of one endpoint and of several.
pub fn wait_any_returns_each_operation_once<F: Peers + Real>() {
    let _watchdog = Watchdog::new("wait_any returns each operation once");
    let (a, b) = two_shared::<F>(Progress::Manual, |endpoint| endpoint);
    let (c, d) = two_shared::<F>(Progress::Manual, |endpoint| endpoint);
    let later = |tag: u64, from: &percale::SharedEndpoint| {
        let from = from.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            inject(&from, tag, &content(tag, 8));
            from.tagged_send(PEER, 99, content(99, 8)).wait().expect("a send"); // The message before it has left.
        })
    };
    for (at, from) in [([&b, &b, &b], [&a, &a, &a]), ([&b, &d, &b], [&a, &c, &a])] {
        let receive = |tag: usize| at[tag].tagged_recv(tag as u64, 0, vec![0; 8]).start().expect("a receive");
        let mut receives = [0, 1, 2].map(receive);
        assert!(wait_any_until(&mut receives, Some(Instant::now())).is_err());
        for tag in [1, 0, 2] {
            let sends = later(tag as u64, from[tag]);
            assert_eq!(any(&mut receives), tag);
            sends.join().expect("no panic");
        }
        assert!(wait_any(&mut receives).is_none(), "all results were taken");
        let mut receives = [0, 1, 2].map(receive);
        let late = wait_all_until(&mut receives, Some(Instant::now()));
        assert!(late.iter().all(|end| matches!(end, Err(error) if matches!(error.cause(), Cause::TimedOut))));
        let sends = [2, 0, 1].map(|tag| later(tag as u64, from[tag]));
        for (tag, got) in wait_all(&mut receives).into_iter().enumerate() {
            same(&got.expect("a message").to_vec(), &content(tag as u64, 8), "the message");
        }
        sends.into_iter().for_each(|sends| sends.join().expect("no panic"));
        assert!(wait_all(&mut receives).iter().all(Result::is_err), "all results were taken");
    }
    let none: &mut [percale::endpoint::safe::Operation<Shared, Buffer>] = &mut [];
    assert!(wait_any(none).is_none() && wait_all(none).is_empty());
}

/// A set returns the result of each member once, with its buffer, even if another thread closes the endpoint between two
/// timed waits.
pub fn closing_between_timed_waits_loses_no_member<F: Peers + Real>() {
    const MEMBERS: u64 = 4;
    let _watchdog = Watchdog::new("closing between timed waits loses no member");
    let fabric = F::new(29);
    let domain = fabric.domain(|domain| domain);
    let vector = domain.address_vector().build().expect("a vector");
    for round in 0..300 {
        let endpoint = domain.endpoint().vector(&vector).bind_shared(fabric.address()).expect("an endpoint");
        let mut set = endpoint.operation_set(MEMBERS as usize);
        for tag in 0..MEMBERS {
            set.push(endpoint.tagged_recv(tag, 0, vec![0; 8]).start().expect("a receive"), tag).expect("there is room");
        }
        let ended = std::thread::scope(|scope| {
            let waits = scope.spawn(move || {
                let mut ended = Vec::new();
                loop {
                    match set.next_for(Duration::ZERO) {
                        Ok(Some((tag, end))) => {
                            let buffer = end.expect_err("there is no message").into_buffer();
                            assert_eq!(buffer.map(|buffer| buffer.len()), Some(8), "in round {round}: receive {tag}");
                            ended.push(tag);
                        }
                        Ok(None) => return ended,
                        Err(TimedOut) => {}
                    }
                }
            });
            for _ in 0..round * 10 {
                std::hint::spin_loop();
            }
            endpoint.shut();
            waits.join().expect("no panic")
        });
        let once: BTreeSet<u64> = ended.iter().copied().collect();
        assert_eq!((ended.len() as u64, once.len() as u64), (MEMBERS, MEMBERS), "in round {round}: {ended:?}");
    }
}
