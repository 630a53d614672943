//! Inserts pages and rings into the maps in which the programs find them, and removes them.
//!
//! Each change of a map of maps waits for an RCU grace period of the kernel: a few milliseconds in which the calling
//! thread is blocked. The helper therefore makes these changes on threads. Each thread makes all changes that have
//! accumulated at once, with two grace periods to remove and two to insert, for any number of address spaces. Threads
//! that wait for a grace period at the same time wait for the same one, so a program that connects need not wait until
//! the changes for other programs are finished. A process that loads the programs for itself makes the changes
//! directly.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::sys;
use super::waiting::{Changes, PageInsertion, PageRemoval, PendingChanges, Published};
use crate::monitor::thread;

/// The maps of maps: pages by address space, and rings by name.
#[derive(Debug)]
pub(super) struct Maps {
    pub(super) pages: OwnedFd,
    pub(super) doorbells: OwnedFd,
}

/// The number of publishing threads.
const THREADS: usize = 4;

/// Makes the changes, on the calling thread or on publishing threads.
#[derive(Debug)]
pub(super) enum Publisher {
    Here(Maps),
    Aside(Aside),
}

impl Publisher {
    /// Starts publishing threads, which make all later changes.
    pub(super) fn aside(maps: Maps) -> io::Result<Self> {
        let published = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(PublisherState { maps, queue: Mutex::default(), came: Condvar::new(), published });
        let aside = Aside(Arc::clone(&shared));
        for number in 0..THREADS {
            let shared = Arc::clone(&shared);
            thread::start(&format!("pindown-pub-{number}"), move || shared.work())?;
        }
        Ok(Self::Aside(aside))
    }

    /// Returns a descriptor that is readable after something was published, until [`Self::clear`].
    pub(super) fn published(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Here(_) => None,
            Self::Aside(Aside(shared)) => Some(shared.published.as_fd()),
        }
    }

    pub(super) fn clear(&self) {
        if let Self::Aside(Aside(shared)) = self {
            // An error means that nothing was published since.
            rustix::io::read(&shared.published, &mut [0_u8; 8][..]).ok();
        }
    }

    pub(super) fn put(&self, put: PageInsertion) {
        match self {
            Self::Here(maps) => put_all(maps, &[put]),
            Self::Aside(Aside(shared)) => {
                shared.lock().waiting.put(put);
                shared.came.notify_one();
            }
        }
    }

    pub(super) fn take(&self, takes: Vec<PageRemoval>) {
        match self {
            Self::Here(maps) => take_all(maps, &takes),
            Self::Aside(Aside(shared)) => {
                let mut queue = shared.lock();
                // Changes that turn out to be unnecessary are dropped, which releases their charges.
                takes.into_iter().for_each(|take| drop(queue.waiting.take(take)));
                drop(queue);
                shared.came.notify_one();
            }
        }
    }
}

/// The publishing threads. They end once they have made the changes that wait when this is dropped.
#[derive(Debug)]
pub(super) struct Aside(Arc<PublisherState>);

impl Drop for Aside {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.came.notify_all();
    }
}

/// The state that the threads share.
#[derive(Debug)]
struct PublisherState {
    maps: Maps,
    queue: Mutex<Queue>,
    /// Signalled when a change waits, or when there will be no more changes.
    came: Condvar,
    /// An eventfd that is readable after something was published.
    published: OwnedFd,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: PendingChanges,
    has_ended: bool,
}

impl PublisherState {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of one thread. A thread that has made its changes checks for further ones itself, so changes that had
    /// to wait for its changes need no signal.
    fn work(&self) {
        let mut queue = self.lock();
        loop {
            let Some(batch) = queue.waiting.next() else {
                if queue.has_ended {
                    return;
                }
                queue = self.came.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            // One signal may stand for several batches, and this thread takes one.
            if !queue.waiting.is_empty() {
                self.came.notify_one();
            }
            drop(queue);
            match &batch.changes {
                Changes::Puts(puts) => put_all(&self.maps, puts),
                Changes::Takes(takes) => take_all(&self.maps, takes),
            }
            queue = self.lock();
            queue.waiting.done(batch);
            rustix::io::write(&self.published, &1_u64.to_ne_bytes()).ok();
        }
    }
}

/// Inserts rings first, so that a program that finds a page also finds its ring.
fn put_all(maps: &Maps, puts: &[PageInsertion]) {
    let pairs = |of: fn(&PageInsertion) -> (u64, i32)| puts.iter().map(of).unzip::<u64, i32, Vec<_>, Vec<_>>();
    let (names, doorbells) = pairs(|put| (put.name, put.doorbell.as_raw_fd()));
    let (spaces, pages) = pairs(|put| (put.mm, put.page.as_raw_fd()));
    let together = puts.is_empty()
        || sys::update_all(maps.doorbells.as_fd(), &names, &doorbells)
            .and_then(|()| sys::update_all(maps.pages.as_fd(), &spaces, &pages))
            .is_ok();
    for put in puts {
        let alone = |map: &OwnedFd, key: u64, fd: &OwnedFd| {
            sys::update(map.as_fd(), &key.to_ne_bytes(), &fd.as_raw_fd().to_ne_bytes(), false)
        };
        let done = together
            || alone(&maps.doorbells, put.name, &put.doorbell)
                .and_then(|()| alone(&maps.pages, put.mm, &put.page))
                .is_ok();
        put.progress.set(if done { Published::Done } else { Published::Refused });
    }
}

fn take_all(maps: &Maps, takes: &[PageRemoval]) {
    let keys = |of: fn(&PageRemoval) -> u64| takes.iter().map(of).collect::<Vec<_>>();
    for (map, keys) in [(&maps.pages, keys(|take| take.mm)), (&maps.doorbells, keys(|take| take.name))] {
        if !keys.is_empty() && sys::delete_all(map.as_fd(), &keys).is_err() {
            for key in keys {
                // If the element is not there, there is nothing to delete.
                sys::delete(map.as_fd(), &key.to_ne_bytes()).ok();
            }
        }
    }
}
