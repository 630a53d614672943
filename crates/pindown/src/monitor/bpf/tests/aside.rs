//! A helper on a kernel that cannot reject descriptors, like those before Linux 6.16.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::super::wire::{self, HelperMessage};
use super::super::{Helper, Limits, Monitor};
use super::{alone, monitor};

/// Returns a connection with unsent bytes. Its last close takes as long as the test.
fn slow() -> (TcpListener, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    stream.set_nonblocking(true).expect("the mode can be set");
    while (&stream).write(&[0; 1 << 16]).is_ok() {}
    linger(&stream, 3600);
    (listener, stream)
}

/// Sets how many seconds the last close of the stream may take.
fn linger(stream: &TcpStream, seconds: i32) {
    let linger = libc::linger { l_onoff: i32::from(seconds > 0), l_linger: seconds };
    let (level, option, len) = (libc::SOL_SOCKET, libc::SO_LINGER, size_of::<libc::linger>() as u32);
    // SAFETY: the option has this type.
    let set = unsafe { libc::setsockopt(stream.as_raw_fd(), level, option, (&raw const linger).cast(), len) };
    assert_eq!(set, 0);
}

/// Requirements: MON-034.
#[test]
fn slow_descriptors_are_closed_in_a_separate_thread() {
    let _alone = alone();
    if monitor().is_none() {
        return;
    }
    let path = std::env::temp_dir().join(format!("pindown-aside-{}", std::process::id()));
    let mut helper = Helper::open(&path, Limits { per_user: 6, ..Limits::default() }).expect("the helper listens");
    helper.accept_descriptors();
    // The helper serves as long as this process lives.
    std::thread::spawn(move || helper.serve());
    let open = || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("a socket");
        connect(&socket, &SocketAddrUnix::new(&path).expect("a path")).expect("the helper listens");
        socket
    };
    let (listeners, closing): (Vec<_>, Vec<_>) = [1, 2]
        .map(|messages| {
            let (listener, stream) = slow();
            let socket = open();
            // The first message is read with its descriptor; a message after an invalid one stays unread.
            for fds in [&[][..], &[stream.as_fd()][..]].iter().skip(2 - messages) {
                let hello = HelperMessage::Hello { version: if fds.is_empty() { 77 } else { wire::VERSION } };
                if wire::send(socket.as_fd(), hello, fds, SendFlags::empty()).is_err() {
                    // The helper has closed the connection before, so the descriptor is closed here.
                    linger(&stream, 0);
                }
            }
            // From here on the helper has the last copy, unless it has closed the connection, and its copy with it, in
            // the meantime.
            (listener, std::thread::spawn(|| drop(stream)))
        })
        .into_iter()
        .unzip();
    let served = Monitor::from_helper(&path).expect("a helper that is closing descriptors still accepts clients");
    assert!(!served.page().busy());
    // Descriptors that are not closed yet stay charged; the limit leaves room for this.
    drop(Monitor::from_helper(&path).expect("within the limit"));
    // Dropping a listener resets its connections, so the closes end.
    drop(listeners);
    closing.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
    // The helper's thread ends with the process, without removing the socket.
    std::fs::remove_file(&path).expect("the socket exists");
}
