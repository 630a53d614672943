//! Tests that events other than messages also wake a sleeping endpoint.

use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread::Thread;

use super::*;
use crate::endpoint::Shared;
use crate::endpoint::safe::{Operation, Received};
use crate::local_memory::doorbell::DoorbellExt as _;
use crate::transport::any::AnyLink;
use crate::{Counter, SharedEndpoint};

/// A time longer than any step of these tests takes.
const LONG: Duration = Duration::from_secs(60);

/// Requirements: CMP-015.
#[test]
fn connection_wakes_endpoint_sleeping_on_doorbell() {
    let (server, client) = (TestEndpoint::new("shm"), TestEndpoint::new("shm"));
    let to_server = client.peer(&server);
    std::thread::scope(|threads| {
        let calling = threads.spawn(move || {
            std::thread::sleep(Duration::from_millis(20)); // The server is asleep by now.
            client.endpoint.tagged_inject(to_server, 1, &[1; 8]).unwrap();
            client
        });
        let armed = until(&[&server], || {
            server.engine(|engine| {
                let looked = engine.results();
                engine.arm(looked)
            })
        });
        let since = Instant::now();
        while since.elapsed() < LONG && !server.engine(|engine| engine.connector.has_notices()) {
            armed.sleep_on_doorbell(LONG);
        }
        assert!(since.elapsed() < LONG, "the sleeper was not woken");
        server.engine(|engine| engine.disarm(&armed));
        let client = calling.join().unwrap();
        until(&[&server, &client], || {
            server.engine(|engine| engine.core.messages.table(true).holds_any().then_some(()))
        });
    });
}

/// Returns whether an endpoint's descriptor is readable, so that its sleepers wake up.
fn is_readable(of: &TestEndpoint) -> bool {
    crate::completion::wait::tests::is_readable(&of.endpoint)
}

/// A store to a variable sends no notification, so a sleeping thread has to check the variable from the moment at which
/// an operation waits for it.
///
/// Requirements: CMP-015.
#[test]
fn operation_that_waits_for_a_variable_wakes_a_sleeper() {
    let owner = TestEndpoint::new("shm");
    until(&[], || owner.endpoint.try_wait().then_some(()));
    assert!(!is_readable(&owner), "there is nothing to do");
    let variable = owner.domain.variable();
    let receive = owner.endpoint.recv(vec![0; 8]).when_written(&variable).start().unwrap();
    assert!(is_readable(&owner), "a thread that sleeps on the descriptor is not woken");
    drop(receive);
}

/// Returns an endpoint at which a sleeper waits for the descriptor.
fn watched() -> TestEndpoint {
    let watched = TestEndpoint::new("shm");
    until(&[&watched], || watched.engine(Engine::watch).then_some(()));
    assert!(!is_readable(&watched));
    watched
}

/// A thread that is about to sleep and finds a result does not sleep. It may leave some of the work to the other
/// sleepers.
///
/// Requirements: CMP-015.
#[test]
fn thread_that_finds_work_wakes_other_sleepers() {
    let watched = watched();
    let looked = watched.engine(|engine| engine.results()) + 1;
    assert!(watched.engine(|engine| engine.arm(looked)).is_none(), "the thread has not seen all results");
    assert!(is_readable(&watched));
}

/// Writing a variable wakes no thread, so a sleeper has to check the variable. When the thread that did so stops
/// waiting, another sleeper does it.
///
/// Requirements: CMP-015.
#[test]
fn thread_that_stops_checking_a_variable_wakes_other_sleepers() {
    let watched = watched();
    let variable = watched.domain.variable();
    let receive = watched.endpoint.recv(vec![0; 8]).when_written(&variable).start().unwrap();
    let armed = until(&[&watched], || watched.engine(|engine| engine.arm(engine.results())));
    assert!(armed.longest() < crate::endpoint::engine::sleep::SLEEP, "{armed:?}");
    assert!(!is_readable(&watched), "the waiter checks the variable");
    watched.engine(|engine| engine.disarm(&armed));
    assert!(is_readable(&watched));
    assert!(!watched.engine(Engine::watch), "the other sleeper does not check the variable");
    drop(receive);
}

/// All local peers can write to the doorbell's page. The endpoint finds the message of a peer before it sleeps even if
/// its link is not polled in every round and another peer has cleared its bit.
///
/// Requirements: FLT-007.
#[test]
fn message_is_found_before_sleep_although_a_peer_clears_its_bit() {
    let (server, client) = (TestEndpoint::new("shm"), TestEndpoint::new("shm"));
    connect(&server, &client);
    let (to_server, slot) = (client.peer(&server), server.slot(&client));
    until(&[&server, &client], || {
        server.engine(|engine| match &mut engine.links[slot as usize] {
            Some(AnyLink::Shm(link)) => link.set_cold().then_some(()),
            other => panic!("{other:?}"),
        })
    });
    server.engine(|engine| engine.poller.cool(slot));
    client.endpoint.tagged_inject(to_server, 5, &[5; 8]).unwrap();
    server.engine(|engine| {
        assert_eq!(engine.doorbell.take_rung(|_| ()), 1, "the peer rings for its message");
        assert!(engine.arm(engine.results()).is_none(), "the endpoint sleeps although a message has arrived");
        assert!(engine.core.messages.table(true).holds_any());
    });
}

/// A way to sleep until a message has arrived.
type Sleep = fn(&SharedEndpoint, &Counter, Operation<Shared, Received>);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn sleep_as_a_task(_: &SharedEndpoint, _: &Counter, receiving: Operation<Shared, Received>) {
    let mut receiving = pin!(receiving);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    while receiving.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        std::thread::park();
    }
}

/// Sleeps without a timeout, like an event loop.
fn sleep_on(descriptor: BorrowedFd<'_>) {
    let mut polled = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut polled, None).unwrap();
}

fn sleep_on_the_endpoint(endpoint: &SharedEndpoint, _: &Counter, receiving: Operation<Shared, Received>) {
    use std::os::fd::AsFd;
    while !receiving.is_ready() {
        if endpoint.try_wait() {
            sleep_on(endpoint.as_fd());
        }
    }
}

fn sleep_on_the_counters_descriptor(_: &SharedEndpoint, counter: &Counter, receiving: Operation<Shared, Received>) {
    while counter.read() < 2 {
        if counter.try_wait().unwrap() && counter.value() < 2 {
            sleep_on(counter.descriptor().unwrap());
        }
    }
    drop(receiving);
}

/// A peer that clears the mark of a sleeper again and again, or dies after it has cleared it, cannot suppress the
/// wake-up for a message of another peer forever, because every sleep ends.
///
/// Requirements: RES-008, FLT-007.
#[test]
fn sleep_ends_although_a_peer_clears_wakeup_marks() {
    let ways: [(&str, Sleep); 5] = [
        ("a task", sleep_as_a_task),
        ("on the endpoint's descriptor", sleep_on_the_endpoint),
        ("on a counter's descriptor", sleep_on_the_counters_descriptor),
        ("at a counter", |_, counter, receiving| {
            counter.wait(2, None).unwrap();
            drop(receiving);
        }),
        ("in a wait", |_, _, mut receiving| drop(receiving.wait().unwrap())),
    ];
    for (way, sleep) in ways {
        let (client, counter) = (TestEndpoint::new("shm"), Counter::new());
        let domain = Info::discover().unwrap().domain().transport("shm".parse().unwrap()).open().unwrap();
        let vector = domain.address_vector().build().unwrap();
        let builder = domain.endpoint().vector(&vector).receive_counter(&counter);
        let endpoint: &SharedEndpoint = Box::leak(Box::new(builder.bind_shared("127.0.0.1:0").unwrap()));
        let to_server = client.vector.insert(endpoint.address()).unwrap();
        let connected = endpoint.tagged_recv(1, 0, vec![0; 8]).start().unwrap();
        client.endpoint.tagged_inject(to_server, 1, &[1; 8]).unwrap();
        until(&[&client], || connected.is_ready().then_some(()));
        drop(connected);

        let doorbell = endpoint.access.with_here(|engine| Arc::clone(&engine.doorbell));
        let (over, stolen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (says, done) = mpsc::channel();
        let sleeper = std::thread::spawn(move || {
            sleep(endpoint, &counter, endpoint.tagged_recv(2, 0, vec![0; 8]).start().unwrap());
            says.send(()).unwrap();
        });
        let thief = {
            let (over, stolen) = (Arc::clone(&over), Arc::clone(&stolen));
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    stolen.fetch_add(u32::from(doorbell.steal()), Ordering::Relaxed);
                    std::thread::yield_now();
                }
            })
        };
        // The waiter is about to sleep, or asleep, when its mark is cleared.
        until(&[], || (stolen.load(Ordering::Relaxed) > 0).then_some(()));
        client.endpoint.tagged_inject(to_server, 2, &[1; 8]).unwrap();
        done.recv_timeout(event_timeout()).unwrap_or_else(|error| panic!("the sleeper was not woken ({way}): {error}"));
        over.store(true, Ordering::Relaxed);
        sleeper.join().unwrap();
        thief.join().unwrap();
    }
}
