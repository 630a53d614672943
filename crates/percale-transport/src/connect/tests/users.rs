//! Tests of processes of other users at the Unix socket. They are identified by the user that the kernel reports.

#![expect(unsafe_code, reason = "one thread of a test becomes another user; the block states its own reason")]

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use super::*;
use crate::connect::meeting::{DescriptorBudget, Meeting};
use crate::wire::meeting::{MeetingHalf, MeetingOffer};
use crate::wire::refusal_reason::RefusalReason;

/// Calls `act` as another user. Returns `None` if this user cannot change to another.
fn as_another_user<R: Send>(act: impl FnOnce() -> R + Send) -> Option<R> {
    let done = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: takes only numbers. The raw system call applies only to the calling thread, unlike the function
            // of libc.
            let become_other = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65_534, -1) };
            (become_other == 0).then(act)
        });
        thread.join().unwrap()
    });
    if done.is_none() {
        println!("skipped (root): only root can become another user");
    }
    done
}

fn descriptors(doorbell: &TestDoorbell) -> Vec<OwnedFd> {
    let pair = doorbell.make_pair().unwrap();
    vec![pair, doorbell.memory.try_clone().unwrap(), doorbell.event.try_clone().unwrap()]
}

/// Requirements: FLT-007.
#[test]
fn shared_memory_setup_with_another_user_is_rejected() {
    let doorbell = TestDoorbell::new(PAIR);
    let local = Arc::clone(&doorbell) as Arc<dyn LocalDoorbell>;
    let pair = || {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, listen::FLAGS | SocketFlags::CLOEXEC, None)
    };
    // All other conditions are met: an offer of this user is accepted.
    let offer = MeetingOffer::new([1; 16], MeetingHalf::default());
    let (ours, _theirs) = pair().unwrap();
    assert!(Meeting::answer(&local, ours.into(), &offer, descriptors(&doorbell), DescriptorBudget::Spare).is_ok());
    let Some((ours, theirs)) = as_another_user(|| pair().unwrap()) else { return };
    let degraded = Meeting::answer(&local, ours.into(), &offer, descriptors(&doorbell), DescriptorBudget::Spare)
        .err()
        .expect("a process of another user is not accepted");
    assert_eq!(degraded.why, RefusalReason::AnotherUser);
    let (answer, passed) = passing::receive::<crate::wire::meeting::MeetingAnswer>(theirs.as_fd()).unwrap().unwrap();
    assert_eq!(answer.outcome().map(|(why, _)| why), Some(RefusalReason::AnotherUser));
    assert!(passed.is_empty(), "a rejected peer gets no descriptor");

    // The reverse case: another user listens at the address of a peer.
    let incarnation = Incarnation::random().unwrap();
    let listener = as_another_user(|| {
        let (listener, address) = listen::unix_socket(&incarnation).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        listener
    });
    let degraded = Meeting::call(&local, &incarnation, [1; 16], DescriptorBudget::Spare)
        .err()
        .expect("a process of another user is not accepted");
    assert_eq!(degraded.why, RefusalReason::AnotherUser);
    drop(listener);
    assert_eq!(doorbell.in_use(), 0);
}

/// Requirements: FLT-007.
#[test]
fn calls_of_another_user_use_no_unix_socket_slot() {
    let [one, two] = services();
    let long = |options: &mut EndpointOptions| options.timeouts = ConnectTimeouts::of(Duration::from_secs(600));
    let (a, b) = (Peer::with(&one, long), Peer::with(&two, long));
    let incarnation = b.registration.incarnation();
    let call = || {
        let (socket, address) = listen::unix_socket(&incarnation).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        socket
    };
    let Some(socket) = as_another_user(call) else { return };
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    assert_eq!(
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })),
        Ok(1),
        "the connection is neither answered nor closed"
    );
    assert!(!matches!(rustix::net::recv(&socket, &mut [0; 8], RecvFlags::DONTWAIT), Ok((1.., _))));
    a.registration.connect(1, b.address());
    assert!(matches!(a.up().link, EstablishedTransport::Shm(_)));
}
