//! The replacement of `verbs` in a build without that feature, in which no adapter can be opened.
//!
//! The types have no values. They have the methods that modules outside `verbs` call, so that those modules need few
//! conditions.

use std::convert::Infallible;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::local_memory::volatile::Segments;
use crate::region::{AccessOrigin, Keys, RemoteMemory};
use crate::system::process_socket::ProcessSocket;
use crate::tcp::TcpOptions;
use crate::wire::queue_pair::{Gid, QueuePairEnd};

/// A port of an RDMA device. This build has none, because it lacks the feature `verbs`.
#[derive(Debug)]
pub struct Adapter(Infallible);

impl Adapter {
    /// Always returns an error, because this build cannot open a port.
    ///
    /// # Errors
    /// Always. The error names the feature that this build lacks.
    pub fn open() -> Result<Arc<Self>, String> {
        Err("this build has no `verbs` support: build with the feature `verbs`".to_owned())
    }

    /// Describes the device, the port and the address as text.
    #[must_use]
    pub fn describe_all(&self) -> String {
        match self.0 {}
    }

    #[doc(hidden)]
    pub fn is_here(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn note_unreached(&self, _: Gid) {
        match self.0 {}
    }

    pub(crate) fn was_unreached(&self, _: Gid) -> bool {
        match self.0 {}
    }
}

/// Returns the error number of an error that prevented the creation of a queue pair.
pub(crate) fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().filter(|errno| *errno > 0).unwrap_or(libc::EIO)
}

/// A byte stream over a queue pair.
#[derive(Debug)]
pub struct Wire(Infallible);

impl Wire {
    #[doc(hidden)]
    pub fn new(adapter: &Arc<Adapter>) -> io::Result<Self> {
        match adapter.0 {}
    }

    #[doc(hidden)]
    pub fn ours(&self) -> QueuePairEnd {
        match self.0 {}
    }

    #[doc(hidden)]
    pub fn connect(&self, _: &QueuePairEnd) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn try_out(&mut self, _: Duration) -> io::Result<()> {
        match self.0 {}
    }
}

/// The registrations of the memory of operations. It is empty in this build.
#[derive(Clone, Debug)]
pub struct Pins;

/// The reason why an access was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum PostFailure {
    Full,
    Unreachable,
    Broken,
}

/// A link over a queue pair.
#[derive(Debug)]
pub struct VerbsLink(Infallible);

#[doc(hidden)]
impl VerbsLink {
    pub fn new(
        wire: Wire,
        _: ProcessSocket,
        _: TcpOptions,
        _: Option<Arc<Keys>>,
        _: AccessOrigin,
        _: Pins,
    ) -> io::Result<Self> {
        match wire.0 {}
    }

    pub fn reaches(&mut self, _: &RemoteMemory, _: bool) -> bool {
        match self.0 {}
    }

    pub fn longest_access(&self) -> u64 {
        match self.0 {}
    }

    pub fn post_access(&mut self, _: bool, _: &RemoteMemory, _: &Segments, _: u32) -> Result<(), PostFailure> {
        match self.0 {}
    }

    pub fn has_background_work(&self) -> bool {
        match self.0 {}
    }

    pub fn flush_queued(&mut self) {
        match self.0 {}
    }

    pub(crate) fn unacknowledged(&self) -> Option<(u64, u64)> {
        match self.0 {}
    }

    pub fn completions(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }

    pub fn watches(&self) -> std::iter::Empty<BorrowedFd<'_>> {
        match self.0 {}
    }

    pub fn arm(&mut self) {
        match self.0 {}
    }

    pub fn look(&mut self) -> bool {
        match self.0 {}
    }

    pub fn describe(&self) -> String {
        match self.0 {}
    }

    pub fn linger(self, _: Duration) -> bool {
        match self.0 {}
    }
}

crate::absent::absent_link!(VerbsLink);
