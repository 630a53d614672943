//! An outstanding safe operation as a task, which is polled after it was woken.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

use percale::Buffer;
use percale::endpoint::safe::{OperationError, Received};

/// The result of an operation.
#[derive(Debug)]
pub(super) enum OperationEnd {
    Sent(Result<percale::Buffer, OperationError>),
    Received(Result<Received, OperationError>),
    Accessed(Result<Buffer, OperationError>),
}

#[derive(Debug)]
pub(super) struct Flag {
    woken: AtomicBool,
    thread: Thread,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// A safe operation, polled as a task.
pub(super) struct Task {
    future: Pin<Box<dyn Future<Output = OperationEnd>>>,
    flag: Arc<Flag>,
    /// The class of a receive.
    pub(super) class: Option<u8>,
    /// The class of a send.
    pub(super) send: Option<u8>,
    /// The number of the receive in its class.
    pub(super) number: u64,
    /// The port of the peer.
    pub(super) port: u16,
    pub(super) what: &'static str,
    pub(super) since: Instant,
    /// When a receive should have ended.
    pub(super) due: Option<Instant>,
    /// Whether it was reported as overdue.
    pub(super) reported: bool,
    /// The request to which it belongs.
    pub(super) call: Option<u64>,
    /// The tag of the region that it reads.
    pub(super) region: Option<u64>,
    pub(super) detail: u64,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task({}, class {:?}, port {})", self.what, self.class, self.port)
    }
}

impl Task {
    pub(super) fn new(
        future: Pin<Box<dyn Future<Output = OperationEnd>>>,
        class: Option<u8>,
        number: u64,
        port: u16,
        what: &'static str,
    ) -> Self {
        let flag = Arc::new(Flag { woken: AtomicBool::new(true), thread: std::thread::current() });
        let (since, due, reported, call, region, send) = (Instant::now(), None, false, None, None, None);
        Self { future, flag, class, send, number, port, what, since, due, reported, call, region, detail: 0 }
    }

    /// Returns whether the task was woken after the last poll.
    pub(super) fn is_woken(&self) -> bool {
        self.flag.woken.load(Ordering::SeqCst)
    }

    /// Polls the task if it was woken, or if `anyway` is set.
    pub(super) fn poll(&mut self, anyway: bool) -> Option<OperationEnd> {
        if !self.flag.woken.swap(false, Ordering::SeqCst) && !anyway {
            return None;
        }
        let waker = Waker::from(Arc::clone(&self.flag));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(end) => Some(end),
            Poll::Pending => None,
        }
    }
}
