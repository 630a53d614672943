//! Poll sets, which report which of several queues, counters and event queues are ready (fi_poll(3)).
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::{CompletionQueue, Counter, PollSet};
//! let (queue, counter) = (CompletionQueue::default(), Counter::new());
//! let set = PollSet::new();
//! set.add(&queue, "results")?;
//! set.add(&counter, "count")?;
//! counter.add(1);
//! let mut ready = [""; 2];
//! assert_eq!((set.poll(&mut ready), ready[0]), (1, "count"));
//! # Ok(()) }
//! ```

use std::io;
use std::sync::{Arc, MutexGuard};

use super::group::SourceGroup;
use super::source::{Member, Source};
use crate::system::forked::ProcessMutex;

/// Several sources, each with a name, which is a value that the caller chooses.
///
/// A queue or event queue is reported while it is not empty. A counter is reported if its value or its error value was
/// changed or set since the set last reported it, or since the counter was added.
pub struct PollSet<T> {
    group: Arc<SourceGroup>,
    named: ProcessMutex<NamedMembers<T>>,
}

struct NamedMembers<T> {
    /// A name is cloned and dropped without the lock, because that runs application code.
    list: Vec<(Arc<Member>, Arc<T>)>,
    /// The member that is checked first. It rotates, so that all members are reported in turn if the caller's slice is
    /// short.
    first: usize,
}

impl<T> std::fmt::Debug for PollSet<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PollSet({} members)", self.len())
    }
}

impl<T> Default for PollSet<T> {
    fn default() -> Self {
        Self { group: Arc::default(), named: ProcessMutex::new(NamedMembers { list: Vec::new(), first: 0 }) }
    }
}

impl<T> PollSet<T> {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Locks the names. Returns `None` in a forked child.
    fn lock(&self) -> Option<MutexGuard<'_, NamedMembers<T>>> {
        self.named.lock()
    }

    /// Adds a source under this name (fi_poll_add(3)). If the source is a member already, only its name is changed.
    ///
    /// # Errors
    /// If the system cannot watch the descriptors of the endpoints that feed the source, or in a forked child.
    pub fn add(&self, source: impl Into<Source>, name: T) -> io::Result<()> {
        let (source, name) = (source.into(), Arc::new(name));
        // The lock is not held, because this call uses the endpoints that feed the source.
        let added = self.group.add(source.clone())?;
        let mut named = self.lock().ok_or_else(|| io::Error::from_raw_os_error(libc::ECHILD))?;
        let replaced = match added {
            Some(member) if self.group.has(&member) => {
                named.list.push((member, name));
                None
            }
            Some(_) => None, // Another thread has removed it.
            None => {
                let known = named.list.iter_mut().find(|(member, _)| member.source.is_same(&source));
                known.map(|(_, known)| std::mem::replace(known, name))
            }
        };
        drop(named);
        drop(replaced);
        Ok(())
    }

    /// Returns the number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().map_or(0, |named| named.list.len())
    }

    /// Returns whether the set has no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Clone> PollSet<T> {
    /// Removes a source (fi_poll_del(3)). Returns its name if it was a member.
    pub fn remove(&self, source: impl Into<Source>) -> Option<T> {
        let source = source.into();
        self.group.remove(&source)?;
        let mut named = self.lock()?;
        let at = named.list.iter().position(|(member, _)| member.source.is_same(&source))?;
        let (_, name) = named.list.remove(at);
        drop(named);
        Some(Arc::unwrap_or_clone(name)) // A poll may be cloning it at this moment.
    }

    /// Drives the endpoints that feed the members, each once. Then stores the names of the members that are ready in
    /// `into`, as many as it has room for, and returns their number. If `into` is full before all members were checked,
    /// the next call begins with the first member that was not checked.
    pub fn poll(&self, into: &mut [T]) -> usize {
        self.group.wait.drive();
        let Some(mut named) = self.lock() else { return 0 };
        let (count, start) = (named.list.len(), named.first);
        let mut found = 0;
        let mut looked = 0;
        // The current members are checked once each. The list may change between two of them.
        while looked < count && !named.list.is_empty() {
            let at = (start + looked) % named.list.len();
            if found == into.len() {
                named.first = at;
                break;
            }
            looked += 1;
            let (member, name) = &named.list[at];
            if member.take_ready() {
                let name = Arc::clone(name);
                drop(named);
                into[found] = T::clone(&name);
                drop(name);
                found += 1;
                let Some(again) = self.lock() else { break };
                named = again;
            }
        }
        found
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Weak;

    use super::*;
    use crate::Counter;

    /// A name that uses its set whenever it is cloned or dropped.
    #[derive(Default)]
    struct Name(Weak<PollSet<Name>>);

    impl Name {
        fn uses(&self) {
            if let Some(set) = self.0.upgrade() {
                assert!(set.len() <= 2 && format!("{set:?}").contains("members"));
            }
        }
    }

    impl Clone for Name {
        fn clone(&self) -> Self {
            self.uses();
            Self(Weak::clone(&self.0))
        }
    }

    impl Drop for Name {
        fn drop(&mut self) {
            self.uses();
        }
    }

    #[test]
    fn names_may_call_the_poll_set_that_holds_them() {
        let set = Arc::new(PollSet::new());
        let name = || Name(Arc::downgrade(&set));
        let counters = [Counter::new(), Counter::new()];
        counters.iter().for_each(|counter| set.add(counter, name()).unwrap());
        set.add(&counters[0], name()).unwrap();
        counters.iter().for_each(|counter| counter.add(1));
        assert_eq!(set.poll(&mut [name(), name()]), 2);
        assert!(set.remove(&counters[0]).is_some() && set.remove(&counters[0]).is_none());
        counters[1].add(1);
        assert_eq!(set.poll(&mut [name(), name()]), 1);
    }
}
