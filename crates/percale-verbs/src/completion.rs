//! Completion channels and completion queues.

#![expect(unsafe_code, reason = "calls to libibverbs; each block states its own reason")]

use std::ffi::CStr;
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::abi;
use super::alarm::Alarm;
use super::context::{Context, note};
use super::error::{ObjectPointer, VerbsError};

/// A completion channel, which is a descriptor that becomes readable when an armed queue gets a completion. The
/// descriptor is non-blocking.
#[derive(Debug)]
pub struct CompletionChannel {
    ptr: ObjectPointer<abi::CompChannel>,
    context: Arc<Context>,
}

impl CompletionChannel {
    /// Creates a channel.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let ptr = unsafe { (context.library().ibv_create_comp_channel)(context.as_ptr()) };
        let ptr = ObjectPointer::given("ibv_create_comp_channel", ptr)?;
        let channel = Self { ptr, context: Arc::clone(context) };
        rustix::io::ioctl_fionbio(channel.as_fd(), true)
            .map_err(|error| VerbsError { call: "a completion channel", errno: error.raw_os_error() })?;
        Ok(Arc::new(channel))
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`.
        let fd = unsafe { (*self.ptr.as_ptr()).fd };
        // SAFETY: the descriptor is open as long as the channel exists.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        if !self.context.is_here() {
            return;
        }
        // SAFETY: its queues keep the channel alive, so none is left. It is destroyed only once.
        let errno = unsafe { (self.context.library().ibv_destroy_comp_channel)(self.ptr.as_ptr()) };
        note("ibv_destroy_comp_channel", errno);
    }
}

/// The completion of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The identifier of the request.
    pub id: u64,
    /// Whether the request was a receive. Undefined if the request failed.
    pub receive: bool,
    /// 0, or the status of libibverbs that describes the error ([`CompletionQueue::explain`]).
    pub status: i32,
    /// For a receive: the number of bytes received.
    pub len: u32,
    /// For a receive: the immediate data of the message.
    pub immediate: Option<u32>,
    /// For a receive: the key that the message has invalidated.
    pub invalidated: Option<u32>,
}

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    ptr: ObjectPointer<abi::Cq>,
    channel: Arc<CompletionChannel>,
    alarm: Arc<Alarm>,
}

/// The maximum number of completions that one poll removes.
pub const POLLED: usize = 16;

impl CompletionQueue {
    /// Creates a queue for `entries` completions, which notifies `channel`.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn new(channel: &Arc<CompletionChannel>, entries: u32) -> Result<Arc<Self>, VerbsError> {
        let context = &channel.context;
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: the context and the channel are open. The queue has no user context.
        let ptr = unsafe {
            (context.library().ibv_create_cq)(context.as_ptr(), entries, null_mut(), channel.ptr.as_ptr(), 0)
        };
        let (ptr, alarm) = (ObjectPointer::given("ibv_create_cq", ptr)?, Arc::default());
        context.watch(ptr.as_ptr(), &alarm);
        Ok(Arc::new(Self { ptr, channel: Arc::clone(channel), alarm }))
    }

    /// Sets the connection that is shut down if the queue fails. A thread that sleeps on the connection then wakes up,
    /// and the peer sees the end of the connection.
    pub fn ends(&self, connection: &Arc<impl AsFd + Debug + Send + Sync + 'static>) {
        self.alarm.connection.get_or_init(|| connection.clone());
        if self.has_failed() {
            self.alarm.ring();
        }
    }

    /// Returns whether the queue has failed, for example because it overflowed. Nothing completes any more after that.
    #[inline]
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.alarm.rang.load(Ordering::Acquire)
    }

    /// Returns the device.
    #[must_use]
    #[inline]
    pub fn context(&self) -> &Arc<Context> {
        &self.channel.context
    }

    /// Returns the channel that the queue notifies.
    #[must_use]
    #[inline]
    pub const fn channel(&self) -> &Arc<CompletionChannel> {
        &self.channel
    }

    #[inline]
    pub(super) const fn as_ptr(&self) -> *mut abi::Cq {
        self.ptr.as_ptr()
    }

    /// Removes available completions, at most [`POLLED`], and passes each to `each`. Returns their number.
    ///
    /// # Errors
    /// If the device returns an error, or the queue has failed.
    #[inline]
    pub fn poll(&self, mut each: impl FnMut(Completion)) -> Result<usize, VerbsError> {
        let Some(poll) = self.context().ops().poll_cq else { return Err(VerbsError::unsupported("ibv_poll_cq")) };
        if self.has_failed() {
            return Err(VerbsError { call: "the completion queue failed", errno: libc::EIO });
        }
        let mut taken = [abi::Wc::default(); POLLED];
        // SAFETY: the queue is alive, and the call writes at most as many entries as there are.
        let count = unsafe { poll(self.as_ptr(), POLLED as i32, taken.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| VerbsError { call: "ibv_poll_cq", errno: libc::EIO })?;
        for one in taken.iter().take(count) {
            let has = |flag: i32| one.wc_flags & flag.cast_unsigned() != 0;
            each(Completion {
                id: one.wr_id,
                receive: one.opcode & abi::WC_RECV != 0,
                status: one.status,
                len: one.byte_len,
                immediate: has(abi::WC_WITH_IMM).then(|| u32::from_be(one.imm_data)),
                invalidated: has(abi::WC_WITH_INV).then_some(one.imm_data),
            });
        }
        Ok(count.min(POLLED))
    }

    /// Waits until the request with this identifier has completed, and returns its status. Other completions are passed
    /// to `other`. Returns `None` if this takes longer than `limit`.
    ///
    /// # Errors
    /// If the device returns an error, or the queue has failed.
    pub fn finish(
        &self,
        id: u64,
        limit: Duration,
        mut other: impl FnMut(Completion),
    ) -> Result<Option<i32>, VerbsError> {
        let until = Instant::now() + limit;
        let mut status = None;
        loop {
            self.poll(|one| {
                if one.id == id && status.is_none() {
                    status = Some(one.status);
                } else {
                    other(one);
                }
            })?;
            if status.is_some() || Instant::now() > until {
                return Ok(status);
            }
            std::thread::yield_now();
        }
    }

    /// Requests a notification on the channel for the next completion. Completions that are already in the queue do not
    /// cause a notification, so the caller has to poll after this call.
    ///
    /// # Errors
    /// The error that the device reports.
    #[inline]
    pub fn arm(&self) -> Result<(), VerbsError> {
        let call = "ibv_req_notify_cq";
        let Some(arm) = self.context().ops().req_notify_cq else { return Err(VerbsError::unsupported(call)) };
        // SAFETY: the queue is alive.
        VerbsError::check(call, unsafe { arm(self.as_ptr(), 0) })
    }

    /// Reads the notifications of the channel, so that its descriptor is no longer readable. This must be the only
    /// armed queue of the channel.
    #[inline]
    pub fn drain_notifications(&self) {
        let library = self.context().library();
        let (mut queue, mut context) = (null_mut(), null_mut());
        let mut events = 0;
        // SAFETY: the channel is alive and does not block. The call writes two pointers.
        while unsafe { (library.ibv_get_cq_event)(self.channel.ptr.as_ptr(), &raw mut queue, &raw mut context) } == 0 {
            debug_assert_eq!(queue, self.as_ptr(), "only one queue of the channel is armed");
            events += 1;
        }
        if events > 0 {
            // SAFETY: this number of events of the queue was read and not acknowledged.
            unsafe { (library.ibv_ack_cq_events)(self.as_ptr(), events) };
        }
    }

    /// Returns the description of a status.
    #[must_use]
    pub fn explain(&self, status: i32) -> String {
        // SAFETY: the call accepts any number and returns a constant text.
        let text = unsafe { (self.context().library().ibv_wc_status_str)(status) };
        if text.is_null() {
            return format!("status {status}");
        }
        // SAFETY: the text ends with a zero byte and is never freed.
        format!("{} ({status})", unsafe { CStr::from_ptr(text) }.to_string_lossy())
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if !self.context().is_here() {
            return;
        }
        self.context().unwatch_events(self.as_ptr());
        // SAFETY: its queue pairs keep the queue alive, so none is left. Every event was acknowledged. It is destroyed
        // only once.
        let errno = unsafe { (self.context().library().ibv_destroy_cq)(self.as_ptr()) };
        note("ibv_destroy_cq", errno);
    }
}
