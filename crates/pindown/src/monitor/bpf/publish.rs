//! Putting pages and rings where the programs find them, and taking them away.
//!
//! Each change of a map of maps waits for a grace period of the kernel's (RCU): some milliseconds in which the caller can do
//! nothing else. The helper leaves these changes to a thread, which makes all that have gathered at once: two grace periods to take
//! away and two to put, for any number of address spaces. A process that loads the programs for itself makes them directly.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use rustix::event::{EventfdFlags, eventfd};

use super::quota::Charge;
use super::sys;
use crate::monitor::thread;

/// The maps of maps.
#[derive(Debug)]
pub(super) struct Maps {
    pub(super) pages: OwnedFd,
    pub(super) bells: OwnedFd,
}

/// Whether the programs know a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Published {
    Pending = 0,
    Done = 1,
    Refused = 2,
}

/// [`Published`], written by the thread that publishes.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Arc<AtomicU8>);

impl Progress {
    pub(super) fn get(&self) -> Published {
        match self.0.load(Ordering::Acquire) {
            0 => Published::Pending,
            1 => Published::Done,
            _ => Published::Refused,
        }
    }

    fn set(&self, published: Published) {
        self.0.store(published as u8, Ordering::Release);
    }
}

/// A page to be put where the programs find it.
#[derive(Debug)]
pub(super) struct Put {
    pub(super) mm: u64,
    pub(super) name: u64,
    pub(super) page: Arc<OwnedFd>,
    pub(super) bell: Arc<OwnedFd>,
    pub(super) progress: Progress,
}

/// A page to be taken away.
#[derive(Debug)]
pub(super) struct Take {
    pub(super) mm: u64,
    pub(super) name: u64,
    /// Given back once the page is gone.
    pub(super) _charge: Option<Charge>,
}

/// One change.
#[derive(Debug)]
pub(super) enum Job {
    Put(Put),
    Take(Take),
}

/// Makes the changes, here or on a thread.
#[derive(Debug)]
pub(super) enum Publisher {
    Here(Maps),
    /// The thread's queue, and an eventfd that is readable after it has published something.
    Aside {
        jobs: Sender<Job>,
        published: Arc<OwnedFd>,
    },
}

impl Publisher {
    /// Starts a thread that makes the changes from now on.
    pub(super) fn aside(maps: Maps) -> io::Result<Self> {
        let published = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (jobs, queue) = mpsc::channel();
        let tell = Arc::clone(&published);
        thread::start("pindown-publish", move || work(&maps, &queue, &tell))?;
        Ok(Self::Aside { jobs, published })
    }

    /// Readable after something was published, until [`Self::clear`].
    pub(super) fn published(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Here(_) => None,
            Self::Aside { published, .. } => Some(published.as_fd()),
        }
    }

    pub(super) fn clear(&self) {
        if let Self::Aside { published, .. } = self {
            // An error means that nothing was published since.
            rustix::io::read(published, &mut [0_u8; 8][..]).ok();
        }
    }

    pub(super) fn put(&self, put: Put) {
        match self {
            Self::Here(maps) => put_all(maps, &[put]),
            Self::Aside { jobs, .. } => {
                if let Err(mpsc::SendError(Job::Put(put))) = jobs.send(Job::Put(put)) {
                    put.progress.set(Published::Refused);
                }
            }
        }
    }

    pub(super) fn take(&self, takes: Vec<Take>) {
        match self {
            Self::Here(maps) => take_all(maps, &takes),
            Self::Aside { jobs, .. } => {
                for take in takes {
                    // Without the thread nothing is published any more, and what was stays marked as ended.
                    jobs.send(Job::Take(take)).ok();
                }
            }
        }
    }
}

fn work(maps: &Maps, queue: &Receiver<Job>, published: &OwnedFd) {
    while let Ok(first) = queue.recv() {
        let (mut puts, mut takes, mut dropped) = (BTreeMap::new(), Vec::new(), Vec::new());
        for job in std::iter::once(first).chain(queue.try_iter()) {
            match job {
                Job::Put(put) => _ = puts.insert(put.name, put),
                // A page that is not there yet needs no further work. So what is to be taken was put earlier, and taking it
                // before the others are put keeps the order for each address space.
                Job::Take(take) => match puts.remove(&take.name) {
                    Some(_) => dropped.push(take),
                    None => takes.push(take),
                },
            }
        }
        drop(dropped);
        take_all(maps, &takes);
        drop(takes);
        put_all(maps, &puts.into_values().collect::<Vec<_>>());
        rustix::io::write(published, &1_u64.to_ne_bytes()).ok();
    }
}

/// Rings first: a program that finds a page finds its ring.
fn put_all(maps: &Maps, puts: &[Put]) {
    let pairs = |of: fn(&Put) -> (u64, i32)| puts.iter().map(of).unzip::<u64, i32, Vec<_>, Vec<_>>();
    let (names, bells) = pairs(|put| (put.name, put.bell.as_raw_fd()));
    let (spaces, pages) = pairs(|put| (put.mm, put.page.as_raw_fd()));
    let together = puts.is_empty()
        || sys::update_all(maps.bells.as_fd(), &names, &bells)
            .and_then(|()| sys::update_all(maps.pages.as_fd(), &spaces, &pages))
            .is_ok();
    for put in puts {
        let alone = |map: &OwnedFd, key: u64, fd: &OwnedFd| {
            sys::update(map.as_fd(), &key.to_ne_bytes(), &fd.as_raw_fd().to_ne_bytes(), false)
        };
        let done = together
            || alone(&maps.bells, put.name, &put.bell).and_then(|()| alone(&maps.pages, put.mm, &put.page)).is_ok();
        put.progress.set(if done { Published::Done } else { Published::Refused });
    }
}

fn take_all(maps: &Maps, takes: &[Take]) {
    let keys = |of: fn(&Take) -> u64| takes.iter().map(of).collect::<Vec<_>>();
    for (map, keys) in [(&maps.pages, keys(|take| take.mm)), (&maps.bells, keys(|take| take.name))] {
        if !keys.is_empty() && sys::delete_all(map.as_fd(), &keys).is_err() {
            for key in keys {
                // If it is not there, there is nothing to delete.
                sys::delete(map.as_fd(), &key.to_ne_bytes()).ok();
            }
        }
    }
}
