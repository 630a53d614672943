//! The protocol between the helper and the service manager that started it, such as systemd: a socket that the manager
//! has made (sd_listen_fds(3)), and messages about the state of the service (sd_notify(3)). Both are found through
//! environment variables. Without them, this module does nothing.
#![expect(unsafe_code, reason = "takes over a descriptor by its number; each block states its own reason")]

use std::env;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};

/// The number of the first passed descriptor.
const FIRST: RawFd = 3;

/// Set when the descriptor was taken over.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Returns the socket that the service manager passed to this process. Returns `None` if there is none, or if this
/// function has returned it before.
///
/// # Errors
/// `InvalidInput` if the manager passed several descriptors, or announced one that does not exist.
pub(super) fn passed_socket() -> io::Result<Option<OwnedFd>> {
    let count = passed_count(&|name| env::var(name).ok())?;
    if count == 0 || TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(None);
    }
    // SAFETY: the call takes no pointers, and changes nothing.
    if unsafe { libc::fcntl(FIRST, libc::F_GETFD) } < 0 {
        return Err(invalid("LISTEN_FDS announces a socket, but descriptor 3 is not open"));
    }
    // SAFETY: the manager passed the descriptor for this use, `TAKEN` ensures that it is taken over only once, and no
    // other code of the program owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(FIRST) };
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    Ok(Some(socket))
}

/// Returns the number of descriptors that the manager passed to this process: 0 or 1.
fn passed_count(variable: &dyn Fn(&str) -> Option<String>) -> io::Result<u32> {
    // The variables may be inherited from a process that was started by a manager.
    let is_ours = variable("LISTEN_PID").is_some_and(|id| id.parse() == Ok(std::process::id()));
    let Some(count) = variable("LISTEN_FDS").filter(|_| is_ours) else { return Ok(0) };
    match count.parse() {
        Ok(count @ 0..=1) => Ok(count),
        _ => Err(invalid(&format!(
            "LISTEN_FDS is {count}, but the helper takes one socket from a service manager; a drop-in that sets \
             ListenSequentialPacket=PATH adds a socket, unless the line before it is ListenSequentialPacket= (empty)"
        ))),
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// The connection to a service manager that waits for messages about the state of the service.
#[derive(Debug, Default)]
pub(super) struct StateMessages {
    manager: Option<(UnixDatagram, SocketAddr)>,
    /// The last message that was sent.
    last: String,
}

impl StateMessages {
    /// Finds the manager. Without one, messages are dropped.
    pub(super) fn from_environment() -> Self {
        let manager = env::var_os("NOTIFY_SOCKET").and_then(|name| {
            let address = match name.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
                _ => SocketAddr::from_pathname(&name),
            };
            let socket = UnixDatagram::unbound().ok()?;
            // A manager that does not read its messages must not delay clients.
            socket.set_nonblocking(true).ok()?;
            Some((socket, address.ok()?))
        });
        Self { manager, last: String::new() }
    }

    /// Sends a message, unless it is equal to the last one.
    pub(super) fn send(&mut self, message: String) {
        if let Some((socket, manager)) = &self.manager
            && self.last != message
        {
            // The service does not depend on the manager: a lost message is not an error.
            socket.send_to_addr(message.as_bytes(), manager).ok();
            self.last = message;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_another_process_are_not_taken_over() {
        let own = std::process::id().to_string();
        let count = |id: Option<&str>, count: Option<&str>| {
            passed_count(&|name| if name == "LISTEN_PID" { id } else { count }.map(str::to_owned))
        };
        assert_eq!(count(Some(&own), Some("1")).expect("one socket"), 1);
        assert_eq!(count(Some(&own), None).expect("no socket"), 0);
        assert_eq!(count(Some(&own), Some("0")).expect("no socket"), 0);
        assert_eq!(count(Some("1"), Some("1")).expect("the socket of another process"), 0);
        assert_eq!(count(Some("none"), Some("1")).expect("no process"), 0);
        assert_eq!(count(None, Some("1")).expect("no process"), 0);
        for wrong in ["2", "-1", "x"] {
            let error = count(Some(&own), Some(wrong)).expect_err("not one socket");
            let error = error.to_string();
            assert!(error.contains(&format!("LISTEN_FDS is {wrong}")), "{error}");
            // A drop-in that only adds a line passes two sockets.
            assert!(error.contains("ListenSequentialPacket= (empty)"), "{error}");
        }
    }

    #[test]
    fn a_state_is_sent_once() {
        let place = std::env::temp_dir().join(format!("pindown-notify-{}", std::process::id()));
        let manager = UnixDatagram::bind(&place).expect("bound");
        manager.set_nonblocking(true).expect("the mode can be set");
        let address = SocketAddr::from_pathname(&place).expect("a path");
        let socket = UnixDatagram::unbound().expect("a socket");
        let mut messages = StateMessages { manager: Some((socket, address)), last: String::new() };
        for message in ["READY=1", "STATUS=a", "STATUS=a", "STATUS=b"] {
            messages.send(message.into());
        }
        let mut received = Vec::new();
        let mut bytes = [0; 64];
        while let Ok(len) = manager.recv(&mut bytes) {
            received.push(String::from_utf8_lossy(&bytes[..len]).into_owned());
        }
        std::fs::remove_file(&place).expect("removed");
        assert_eq!(received, ["READY=1", "STATUS=a", "STATUS=b"]);
    }
}
