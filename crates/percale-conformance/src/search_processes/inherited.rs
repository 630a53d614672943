//! Calls on inherited objects in a forked child. Each call must return an error or have no effect. None may kill or
//! hang the child.

#![expect(unsafe_code, reason = "forks, and ends the child without running destructors")]

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use percale::endpoint::Ownership;
use percale::{Access, Entry, PeerAddress};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::worker_endpoint::WorkerEndpoint;

/// A child, and the pipe on which it reports its position.
#[derive(Debug)]
pub(super) struct Child {
    pid: Pid,
    says: OwnedFd,
    since: Instant,
}

/// The timeout for the child.
const CHILD_TIMEOUT: Duration = Duration::from_secs(20);

impl Child {
    /// Forks. The child makes the calls.
    pub(super) fn start<A: Ownership>(worker_endpoint: &mut WorkerEndpoint<A>) -> Option<Self> {
        let (says, hears) = rustix::pipe::pipe().ok()?;
        // SAFETY: the child makes only calls that must be rejected, and exits without unwinding.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let quiet = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| calls(worker_endpoint, hears)));
            // SAFETY: the call ends only this process.
            unsafe { libc::_exit(if quiet.is_ok() { 0 } else { 7 }) };
        }
        Some(Self { pid: Pid::from_raw(pid)?, says, since: Instant::now() })
    }

    /// Returns `None` while the child runs. After it has ended, returns the description of an error, if there was one.
    pub(super) fn ended(&mut self) -> Option<Option<String>> {
        match waitpid(Some(self.pid), WaitOptions::NOHANG) {
            Ok(None) if self.since.elapsed() < CHILD_TIMEOUT => None,
            Ok(None) => {
                super::ignored(rustix::process::kill_process(self.pid, rustix::process::Signal::KILL));
                super::ignored(waitpid(Some(self.pid), WaitOptions::empty()));
                Some(Some(format!("a forked child hangs in {}", self.last())))
            }
            Ok(Some((_, status))) if status.exit_status() == Some(0) => Some(None),
            Ok(Some((_, status))) => {
                let (exit, signal) = (status.exit_status(), status.terminating_signal());
                Some(Some(format!("a forked child ended with {exit:?}, signal {signal:?}, in {}", self.last())))
            }
            Err(_) => Some(None),
        }
    }

    fn last(&self) -> String {
        let mut text = String::new();
        let Ok(says) = self.says.as_fd().try_clone_to_owned() else { return text };
        // The child has exited, and no other process has the pipe open for writing.
        drop(std::fs::File::from(says).take(4000).read_to_string(&mut text));
        text.lines().last().unwrap_or("nothing").to_owned()
    }
}

fn calls<A: Ownership>(worker_endpoint: &mut WorkerEndpoint<A>, says: OwnedFd) {
    let mut says = std::fs::File::from(says);
    let mut at = |what: &str| drop(writeln!(says, "{what}"));
    let endpoint = worker_endpoint.endpoint;
    let peer = PeerAddress(0);
    let mut entries = [Entry::default(); 4];
    at("inject");
    assert!(endpoint.inject(peer, b"child").is_err(), "a child injects");
    at("poll");
    super::ignored(endpoint.poll(&mut entries));
    at("try_wait");
    endpoint.try_wait();
    at("progress");
    endpoint.progress();
    at("polling a future");
    for task in &mut worker_endpoint.tasks {
        drop(task.poll(true));
    }
    at("send");
    drop(endpoint.send(peer, vec![1; 100_000]).start());
    at("receive");
    let mut context = Context::from_waker(Waker::noop());
    if let Ok(receiving) = endpoint.recv(vec![1]).start() {
        let mut receiving = Box::pin(receiving);
        drop(receiving.as_mut().poll(&mut context));
    }
    at("wait_for");
    if let Ok(mut receiving) = endpoint.recv(vec![1]).start() {
        drop(receiving.wait_for(Duration::from_millis(10)));
    }
    at("wait");
    endpoint.wait(Some(Duration::from_millis(10)));
    at("wait without a timeout");
    drop(endpoint.recv(vec![1]).wait());
    at("cancel");
    endpoint.cancel(1);
    at("read_error");
    drop(endpoint.read_error());
    at("describe_peers");
    drop(endpoint.describe_peers());
    at("address");
    super::ignored(endpoint.address());
    at("events");
    drop(worker_endpoint.events.read());
    at("vector");
    drop(worker_endpoint.vector.insert("127.0.0.1:9"));
    at("register");
    drop(endpoint.domain().register(vec![0; 4096], Access::REMOTE_READ));
    at("allocate");
    drop(endpoint.domain().allocate(4096));
    at("endpoint");
    drop(endpoint.domain().endpoint().bind("127.0.0.1:0"));
    at("dropping futures");
    worker_endpoint.tasks.clear();
    at("the end");
}

use std::future::Future;
