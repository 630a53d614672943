//! Wait sets: several queues, counters and event queues waited for at once (fi_poll(3), fi_wait).
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
//! set.wait(Some(Duration::from_secs(1)))?; // now one of them has something: look at each
//! assert!(events.read().is_some());
//! # Ok(()) }
//! ```

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::group::Group;
use super::source::Source;
use super::wait::WaitError;

/// Several sources, waited for at once. Each handle is the same set.
///
/// A queue or event queue ends a wait while it holds anything. A counter ends a wait when its value or its error value has changed
/// since the set last reported it, or since the counter was added; of several threads that wait, each change wakes at least one.
/// Waiting drives the endpoints that feed the members, each once a look.
#[derive(Clone, Default)]
pub struct WaitSet {
    group: Arc<Group>,
}

crate::short_debug!(WaitSet, "WaitSet");

impl WaitSet {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a source; waiting threads look at it from now on. Returns false if it was a member already.
    ///
    /// # Errors
    /// If the system refuses to watch the descriptors of the endpoints that feed it; in a forked child.
    pub fn add(&self, source: impl Into<Source>) -> io::Result<bool> {
        self.group.add(source.into()).map(|member| member.is_some())
    }

    /// Removes a source; false if it was no member.
    pub fn remove(&self, source: impl Into<Source>) -> bool {
        self.group.remove(&source.into()).is_some()
    }

    /// How many members there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.group.members().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits, driving the endpoints that feed the members, until any of them has something; at most `timeout` (`None`: forever).
    ///
    /// # Errors
    /// If none had anything in time, or the thread could not sleep; at once if none has anything and an endpoint of one owner reports to a
    /// member.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), WaitError> {
        self.group.wait.until(timeout, || match self.group.take_news() {
            true => Some(Ok(())),
            false => self.group.is_undriven().then_some(Err(WaitError::NotDriven)),
        })?
    }

    /// One descriptor for the caller's own poll or epoll set, readable when any member may have something. Before each sleep on it,
    /// [`try_wait`](Self::try_wait) must have returned true. One thread at a time may use it so.
    ///
    /// # Errors
    /// If the system has no descriptor to give.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        self.group.wait.descriptor()
    }

    /// Whether the caller may sleep on the [`descriptor`](Self::descriptor) (fi_trywait(3)): false if some member has something, or
    /// there is progress to be made by reading. Then look at every member before the next try.
    ///
    /// # Errors
    /// If the system has no descriptor to give.
    pub fn try_wait(&self) -> io::Result<bool> {
        let calm = self.group.wait.arm()?;
        Ok(!self.group.take_news() && calm && !self.group.is_undriven())
    }
}
