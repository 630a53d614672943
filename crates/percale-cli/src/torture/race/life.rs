//! Causes unusual states of a process with a cache: the process ID of an ancestor, closed descriptors, interrupting
//! signals.
#![expect(unsafe_code, reason = "forks, closes descriptors and sends signals; each block states why it is sound")]

use std::io::{self, Read, Write};
use std::os::fd::RawFd;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Runs `work` in a descendant of this process, which must have only this thread. The descendant has the same process
/// ID as one of its ancestors. That ancestor has executed `before`.
///
/// # Errors
/// Returns `PermissionDenied` if the kernel does not allow this process to create PID namespaces.
pub(super) fn in_descendant<T: Serialize + DeserializeOwned>(
    before: impl FnOnce() -> io::Result<()>,
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    new_namespace()?;
    in_child(|| {
        before()?;
        new_namespace()?;
        in_child(work)
    })
}

/// Makes a new PID namespace for the children of this process. The first child has process ID 1.
fn new_namespace() -> io::Result<()> {
    // SAFETY: the call accesses no memory.
    if unsafe { libc::unshare(libc::CLONE_NEWPID) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs `work` in a fork of this process, which must have only this thread.
fn in_child<T: Serialize + DeserializeOwned>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let (mut answer, mut answering) = io::pipe()?;
    // SAFETY: this is the only thread of the process, so no other thread holds a lock that the child needs.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(answer);
            let ended = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
            let ended = ended.map_err(io::Error::from).and_then(|()| has_reader(&answering));
            let worked = ended.and_then(|()| work()).map_err(|error| error.to_string());
            let line = serde_json::to_string(&worked).unwrap_or_default();
            let reported = answering.write_all(line.as_bytes());
            // SAFETY: the call ends the child, and runs no code that its parent has registered.
            unsafe { libc::_exit(i32::from(reported.is_err())) }
        }
        child => {
            drop(answering);
            let mut line = String::new();
            let received = answer.read_to_string(&mut line);
            let mut status = 0;
            // SAFETY: the kernel may write the status to the given variable.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            received?;
            let answer: Option<Result<T, String>> = serde_json::from_str(&line).ok();
            let none = || Err(format!("the child ended with status {status:#x}"));
            answer.unwrap_or_else(none).map_err(io::Error::other)
        }
    }
}

/// Fails with `BrokenPipe` if no process has the other end open. In this case the parent ended before the parent-death
/// signal of this process was set.
fn has_reader(pipe: &io::PipeWriter) -> io::Result<()> {
    let mut descriptors = [PollFd::new(pipe, PollFlags::empty())];
    poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    if descriptors[0].revents().contains(PollFlags::ERR) { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
}

/// Returns the open descriptors.
pub(super) fn descriptors() -> io::Result<Vec<RawFd>> {
    let names = std::fs::read_dir("/proc/self/fd")?.map(|entry| entry.map(|entry| entry.file_name()));
    let names = names.collect::<io::Result<Vec<_>>>()?;
    // One of the descriptors was used to read the directory.
    let numbers = names.iter().filter_map(|name| name.to_str()?.parse().ok());
    let is_open = |number: &RawFd| {
        // SAFETY: the call queries a descriptor and accesses no memory.
        unsafe { libc::fcntl(*number, libc::F_GETFD) != -1 }
    };
    Ok(numbers.filter(is_open).collect())
}

/// Closes descriptors that other values own. The caller must forget those values (`mem::forget`).
pub(super) fn close(numbers: &[RawFd]) {
    for number in numbers {
        // SAFETY: later operations of the owners on a closed descriptor fail or use another file. This is the purpose
        // of the test.
        unsafe { libc::close(*number) };
    }
}

/// The threads that receive signals.
#[derive(Default)]
pub(super) struct Interrupted(Mutex<Vec<libc::pid_t>>);

impl Interrupted {
    /// Adds the calling thread.
    pub(super) fn join(&self) {
        let thread = rustix::thread::gettid().as_raw_pid();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    /// Sends a signal to each of the threads.
    pub(super) fn interrupt(&self) {
        let process = rustix::process::getpid().as_raw_pid();
        for thread in &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // SAFETY: the call accesses no memory. A thread that has ended receives no signal.
            unsafe { libc::syscall(libc::SYS_tgkill, process, *thread, libc::SIGUSR1) };
        }
    }
}

/// Installs a signal handler that sleeps for a short time.
pub(super) fn give_way_on_signals() {
    // SAFETY: the handler only sleeps, which is async-signal-safe.
    unsafe { libc::signal(libc::SIGUSR1, give_way as extern "C" fn(libc::c_int) as libc::sighandler_t) };
}

extern "C" fn give_way(_signal: libc::c_int) {
    std::thread::sleep(Duration::from_micros(100));
}
