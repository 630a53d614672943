//! Wait sets, which wait for several queues, counters and event queues at once (fi_poll(3), fi_wait).
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::{CompletionQueue, Counter, EventQueue, WaitSet};
//! # use std::time::Duration;
//! let (queue, counter, events) = (CompletionQueue::default(), Counter::new(), EventQueue::default());
//! let set = WaitSet::new();
//! set.add(&queue)?;
//! set.add(&counter)?;
//! set.add(&events)?;
//! events.write(1, *b"news")?;
//! set.wait(Some(Duration::from_secs(1)))?; // one of them is ready now: check each
//! assert!(events.read().is_some());
//! # Ok(()) }
//! ```

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::group::SourceGroup;
use super::source::Source;
use super::wait::WaitError;

/// Several sources that can be waited for at once. Clones are handles to the same set.
///
/// A queue or event queue ends a wait while it is not empty. A counter ends a wait when its value or its error value
/// has changed since the set last reported it, or since the counter was added. If several threads wait, each change
/// wakes up at least one of them. Waiting drives the endpoints that feed the members, each once per check.
#[derive(Clone, Default)]
pub struct WaitSet {
    group: Arc<SourceGroup>,
}

crate::short_debug!(WaitSet, "WaitSet");

impl WaitSet {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a source. Waiting threads check it from now on. Returns false if it was a member already.
    ///
    /// # Errors
    /// If the system cannot watch the descriptors of the endpoints that feed the source, or in a forked child.
    pub fn add(&self, source: impl Into<Source>) -> io::Result<bool> {
        self.group.add(source.into()).map(|member| member.is_some())
    }

    /// Removes a source. Returns false if it was not a member.
    pub fn remove(&self, source: impl Into<Source>) -> bool {
        self.group.remove(&source.into()).is_some()
    }

    /// Returns the number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.group.members().len()
    }

    /// Returns whether the set has no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drives the endpoints that feed the members, and waits until any member is ready, for at most `timeout` (`None`:
    /// no limit).
    ///
    /// # Errors
    /// If no member became ready in time, or the thread could not sleep. If no member is ready and an endpoint of one
    /// owner reports to a member, it fails immediately ([`WaitError::NotDriven`]).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), WaitError> {
        self.group.wait.until(timeout, || match self.group.take_ready() {
            true => Some(Ok(())),
            false => self.group.is_undriven().then_some(Err(WaitError::NotDriven)),
        })?
    }

    /// Returns a descriptor for the caller's own poll or epoll set. It is readable when any member may be ready. Before
    /// each sleep on it, [`try_wait`](Self::try_wait) must have returned true. One thread at a time may use it in this
    /// way.
    ///
    /// # Errors
    /// If no descriptor can be created, or in a forked child.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        self.group.wait.descriptor()
    }

    /// Returns whether the caller may sleep on the [`descriptor`](Self::descriptor) (fi_trywait(3)). Returns false if
    /// some member is ready, or reading can make progress. The caller then has to check every member before it tries
    /// again.
    ///
    /// # Errors
    /// If no descriptor can be created, or in a forked child.
    pub fn try_wait(&self) -> io::Result<bool> {
        let calm = self.group.wait.arm()?;
        Ok(!self.group.take_ready() && calm && !self.group.is_undriven())
    }
}
