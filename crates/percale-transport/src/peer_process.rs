//! The process at the other end of a local connection, and the descriptors that identify it.
//!
//! A process id identifies a process only until the process is reaped, and it does not change with exec. So no
//! operation here relies on the process id alone:
//! * the *pidfd* becomes readable when the process has exited;
//! * the *address space* (`/proc/PID/mem`, opened once) refers to the memory that the process had when the connection
//!   was made. Once the process has exited or executed another program, no thread runs in that memory any more, and
//!   reads and writes through the descriptor transfer nothing. They never reach another process, even if the process id
//!   is reused.
//!
//! Before each kernel copy that writes by process id, `shm::transfer` checks that the process was not reaped
//! (`is_reaped`). A check of its pidfd takes 0.3 µs (poll) to 0.5 µs (pidfd_send_signal), compared with 2.5 µs for a
//! copy of 4 KiB. So the pidfds of all peers are in one epoll set, which reports within 0.15 µs that none of the
//! processes has exited. The kernel marks the set before it can reuse the process id.
//!
//! [`ProcessEnded`] is the proof that no instruction of the peer will touch shared memory again. Only this module
//! creates it, so the end of a connection cannot be mistaken for the end of the process.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::system::interrupted::uninterrupted;

use crate::local_memory::kernel;
use crate::system::forked::{PerProcess, Process};

/// A peer process, identified by descriptors.
#[derive(Debug)]
pub struct PeerProcess {
    pid: i32,
    pidfd: OwnedFd,
    space: Result<OwnedFd, Errno>,
    /// The epoll set of all peers' pidfds, which contains this one. `None` if the set could not be created.
    exits: Option<Arc<ExitSet>>,
}

/// An epoll set of the pidfds of all local peers of this process.
#[derive(Debug)]
struct ExitSet {
    epoll: OwnedFd,
    process: Process,
}

/// The set of this process, which exists while it has local peers.
static EXITS: PerProcess<Mutex<Weak<ExitSet>>> = PerProcess::new();

impl ExitSet {
    /// Adds the pidfd to the set of this process, and returns the set.
    fn with(pidfd: &OwnedFd) -> io::Result<Arc<Self>> {
        let mut known = EXITS.get_or_make()?.lock().unwrap_or_else(PoisonError::into_inner);
        let set = match known.upgrade() {
            Some(set) => set,
            None => Arc::new(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, process: Process::current()? }),
        };
        *known = Arc::downgrade(&set);
        drop(known);
        epoll::add(&set.epoll, pidfd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(set)
    }

    /// Returns whether none of the processes has exited. Returns false if the kernel does not report it.
    #[inline]
    fn is_quiet(&self) -> bool {
        let mut event = [MaybeUninit::<epoll::Event>::uninit()];
        let ready = epoll::wait(&self.epoll, &mut event[..], Some(&Timespec::default()));
        matches!(ready, Ok((ready, _)) if ready.is_empty())
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // A forked child shares the set and must not remove anything from it. Its copy of the pidfd would also keep the
        // entry alive after this one is closed.
        if let Some(exits) = self.exits.as_ref().filter(|exits| exits.process.is_here()) {
            epoll::delete(&exits.epoll, &self.pidfd).ok();
        }
    }
}

/// How a process ended its use of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnded {
    /// The process has exited.
    Exited,
    /// The process has executed another program.
    Executed,
}

impl PeerProcess {
    /// Creates an object for the process `pid` (in the namespace of this process) with this pidfd. If the descriptor
    /// was opened by process id, the caller has to verify afterwards that the peer was alive at that time.
    ///
    /// # Errors
    /// If no descriptor can be created. It is not an error if the address space cannot be opened; see
    /// [`space`](Self::space).
    pub fn new(pid: i32, pidfd: OwnedFd) -> io::Result<Self> {
        let open = || rustix::fs::open(format!("/proc/{pid}/mem"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let space = uninterrupted(open);
        if let Err(error @ (Errno::MFILE | Errno::NFILE)) = space {
            return Err(error.into());
        }
        let exits = ExitSet::with(&pidfd).ok();
        let mut process = Self { pid, pidfd, space, exits };
        // If the peer still has the process id now, it also had it when the file was opened.
        if process.has_exited() {
            process.space = Err(Errno::SRCH);
        }
        Ok(process)
    }

    /// Like [`new`](Self::new), for a process id. The process has to be alive, like this process or a child that was
    /// not reaped.
    ///
    /// # Errors
    /// The error of `pidfd_open`, or those of [`new`](Self::new).
    #[cfg(test)]
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        use rustix::process::{Pid, PidfdFlags, pidfd_open};
        let number = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
        Self::new(pid, pidfd_open(number, PidfdFlags::empty())?)
    }

    /// Returns an object for tests, as if the process had ended and its process id were reused by `pid`.
    #[cfg(test)]
    pub(crate) const fn with_number(mut self, pid: i32) -> Self {
        self.pid = pid;
        self
    }

    /// Returns the process id. The caller has to verify the result of an operation that uses the process id.
    #[inline]
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the pidfd, which is readable once the process has exited.
    #[inline]
    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Returns a descriptor of the address space, in which offsets are addresses, or the error with which the kernel
    /// refused to open it.
    pub fn space(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.space.as_ref().map(AsFd::as_fd).map_err(|error| *error)
    }

    /// Returns how the process has ended, or `None` if it has not. Without an address space only an exit is detected.
    /// Makes one or two system calls, and one more if the address space no longer exists.
    pub fn ended(&self) -> Option<ProcessEnded> {
        if self.has_exited() {
            return Some(ProcessEnded::Exited);
        }
        // Nothing is mapped at address 0, so the read never transfers anything. It fails while the address space
        // exists, and succeeds with 0 bytes after that.
        let space = self.space.as_ref().ok()?;
        let read = uninterrupted(|| rustix::io::pread(space, &mut [0_u8; 1], 0));
        (read == Ok(0)).then(|| if self.has_program() { ProcessEnded::Executed } else { ProcessEnded::Exited })
    }

    /// Returns whether the process with this process id executes a program. A process that exits releases its memory
    /// before the pidfd reports the exit.
    fn has_program(&self) -> bool {
        rustix::fs::readlink(format!("/proc/{}/exe", self.pid), Vec::new()).is_ok()
    }

    /// Returns whether the process was reaped, so that its process id may have been reused. The result is exact, and
    /// fast if no peer has exited.
    #[inline]
    pub(crate) fn is_reaped(&self) -> bool {
        if self.exits.as_ref().is_some_and(|exits| exits.is_quiet()) {
            return false;
        }
        kernel::is_reaped(self.pidfd())
    }

    fn has_exited(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let polled = uninterrupted(|| rustix::event::poll(&mut fds, Some(&Timespec::default())));
        polled.is_ok() && !fds[0].revents().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    /// Requirements: FLT-002.
    #[test]
    fn process_end_is_detected_on_exit_and_exec() {
        let mut child = Command::new("sh")
            .args(["-c", "echo; read line; exec sleep 100"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Wait until the shell runs. Before that, the child is a fork of this process.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let process = PeerProcess::of(child.id().cast_signed()).unwrap();
        if let Err(error) = process.space() {
            println!("skipped (CMA): /proc/PID/mem cannot be opened ({error})");
            child.kill().unwrap();
            child.wait().unwrap();
            return;
        }
        assert_eq!(process.ended(), None);
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        while process.ended().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(process.ended(), Some(ProcessEnded::Executed));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(process.ended(), Some(ProcessEnded::Exited));
    }

    /// The exit of another peer is not mistaken for the exit of this one, and does not delay its detection.
    ///
    /// Requirements: FLT-002.
    #[test]
    fn exited_process_id_is_detected_as_reaped() {
        let start = || Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (mut first, mut second) = (start(), start());
        let [one, two] = [&first, &second].map(|child| PeerProcess::of(child.id().cast_signed()).unwrap());
        assert!(one.exits.is_some() && two.exits.is_some());
        assert!(!one.is_reaped() && !two.is_reaped());
        first.kill().unwrap();
        first.wait().unwrap();
        assert!(one.is_reaped() && !two.is_reaped());
        second.kill().unwrap();
        second.wait().unwrap();
        assert!(one.is_reaped() && two.is_reaped());
        drop((one, two));
        let third = PeerProcess::of(std::process::id().cast_signed()).unwrap();
        assert!(!third.is_reaped());
    }

    /// The peer exits, and another process gets its id before the address space is opened.
    #[test]
    fn address_space_of_a_process_with_a_reused_id_is_not_used() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pidfd = PeerProcess::of(child.id().cast_signed()).unwrap().pidfd().try_clone_to_owned().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let process = PeerProcess::new(std::process::id().cast_signed(), pidfd).unwrap();
        assert_eq!(process.space().err(), Some(Errno::SRCH));
        assert_eq!(process.ended(), Some(ProcessEnded::Exited));
    }

    #[test]
    fn this_process_is_alive() {
        let process = PeerProcess::of(std::process::id().cast_signed()).unwrap();
        assert_eq!(process.ended(), None);
    }
}
