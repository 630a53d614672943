//! Poll sets: which of several queues, counters and event queues have something (fi_poll(3)).
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::group::Group;
use super::source::{Member, Source};

/// Several sources, each with a value of the caller's that names it.
///
/// A queue or event queue has something while anything waits in it. A counter has something when its value or its error value was
/// changed, or set, since the set last told so, or since the counter was added.
#[derive(Debug)]
pub struct PollSet<T> {
    group: Arc<Group>,
    named: Mutex<Named<T>>,
}

#[derive(Debug)]
struct Named<T> {
    list: Vec<(Arc<Member>, T)>,
    /// Who is looked at first, so that all have their turn where the caller asks for few.
    first: usize,
}

impl<T> Default for PollSet<T> {
    fn default() -> Self {
        Self { group: Arc::default(), named: Mutex::new(Named { list: Vec::new(), first: 0 }) }
    }
}

impl<T> PollSet<T> {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Named<T>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a source under this name (fi_poll_add(3)). If it is a member already, only its name is changed.
    ///
    /// # Errors
    /// If the system refuses to watch the descriptors of the endpoints that feed it.
    pub fn add(&self, source: impl Into<Source>, name: T) -> io::Result<()> {
        let source = source.into();
        let mut named = self.lock();
        if let Some(member) = self.group.add(source.clone())? {
            named.list.push((member, name));
        } else if let Some((_, known)) = named.list.iter_mut().find(|(member, _)| member.source.is_same(&source)) {
            *known = name;
        }
        Ok(())
    }

    /// Removes a source (fi_poll_del(3)); its name, if it was a member.
    pub fn remove(&self, source: impl Into<Source>) -> Option<T> {
        let source = source.into();
        let mut named = self.lock();
        self.group.remove(&source)?;
        let at = named.list.iter().position(|(member, _)| member.source.is_same(&source))?;
        Some(named.list.remove(at).1)
    }

    /// How many members there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().list.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Clone> PollSet<T> {
    /// Drives the endpoints that feed the members, each once; then puts the names of those that have something into `into`, as many
    /// as there is room for, and returns how many. Where there are more, the next call begins with those.
    pub fn poll(&self, into: &mut [T]) -> usize {
        self.group.wait.drive();
        let mut named = self.lock();
        let Named { list, first } = &mut *named;
        let (count, start) = (list.len(), *first);
        let mut found = 0;
        for (slot, at) in (start..start + count).map(|at| at % count).enumerate() {
            if found == into.len() {
                *first = (start + slot) % count;
                break;
            }
            let (member, name) = &list[at];
            if member.take_news() {
                into[found].clone_from(name);
                found += 1;
            }
        }
        found
    }
}
