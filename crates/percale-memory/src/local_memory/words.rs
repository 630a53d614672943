//! 64-bit words that several threads, or several processes, access. All accesses are atomic and within bounds.
//!
//! A word of shared memory may contain any value that another process wrote there, so its value must be checked.

#![expect(unsafe_code, reason = "references to words of a mapping; each block states its own reason")]

use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use rustix::mm::Advice;
use zerocopy::FromZeros;

use super::mapping::Mapping;
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};

/// The words of a shared mapping.
#[derive(Clone, Debug)]
pub struct Words {
    start: NonNull<AtomicU64>,
    len: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: the words are atomics, and the mapping exists as long as there is a handle to it.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Returns all whole words of a mapping. If the mapping is read-only, its words must not be stored to.
    ///
    /// # Errors
    /// Does not fail in practice, because mappings begin at pages.
    pub fn of(mapping: Mapping) -> io::Result<Self> {
        let start = NonNull::new(mapping.as_ptr().cast::<AtomicU64>()).filter(|start| start.is_aligned());
        let start = start.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { start, len: mapping.len() / size_of::<AtomicU64>(), mapping: Arc::new(mapping) })
    }

    /// Returns the word at index `at`, if there is one.
    #[inline]
    pub fn get(&self, at: usize) -> Option<&AtomicU64> {
        if at >= self.len {
            return None;
        }
        // SAFETY: the word is within the mapping.
        let word = unsafe { self.start.add(at) };
        // SAFETY: the word is aligned, and mapped as long as `self` lives. All other accesses are atomic, or are made
        // by a process that violates the protocol. In that case the value is wrong but the access is valid.
        Some(unsafe { word.as_ref() })
    }

    /// Returns the `len` words that start at index `at`, if there are that many.
    #[inline]
    pub fn slice(&self, at: usize, len: usize) -> Option<&[AtomicU64]> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return None;
        }
        // SAFETY: the words are within the mapping.
        let start = unsafe { self.start.add(at) };
        // SAFETY: as in `get`, for each of the words.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) })
    }

    /// Returns the first `N` words, if there are that many, as a separate handle.
    #[inline]
    pub fn array<const N: usize>(&self) -> Option<Array<N>> {
        (N <= self.len).then(|| Array { start: self.start.cast(), _owner: Owner::Mapped(Arc::clone(&self.mapping)) })
    }
}

/// Words of this process or of a mapping. Both are accessed in the same way, without a check of the kind.
#[derive(Clone, Debug)]
pub struct Array<const N: usize> {
    start: NonNull<[AtomicU64; N]>,
    _owner: Owner<N>,
}

#[derive(Clone, Debug)]
enum Owner<const N: usize> {
    Here(#[expect(dead_code, reason = "it keeps the words alive")] Arc<[AtomicU64; N]>),
    Mapped(#[expect(dead_code, reason = "it keeps the words alive")] Arc<Mapping>),
}

// SAFETY: the words are atomics, and their owner exists as long as there is a handle to it.
unsafe impl<const N: usize> Send for Array<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for Array<N> {}

impl<const N: usize> Array<N> {
    /// Allocates words of this process, all 0.
    #[inline]
    pub fn here() -> Self {
        let words = Arc::new([const { AtomicU64::new(0) }; N]);
        Self { start: NonNull::from(&*words), _owner: Owner::Here(words) }
    }
}

impl<const N: usize> Deref for Array<N> {
    type Target = [AtomicU64; N];

    #[inline]
    fn deref(&self) -> &Self::Target {
        // SAFETY: the owner has `N` aligned words there, and keeps them as long as `self` lives.
        unsafe { self.start.as_ref() }
    }
}

/// The minimum number of words that are put into huge pages, if the system has them. Without huge pages, random
/// accesses to so much memory would need page tables that do not fit in the processor's caches. This takes at most a
/// quarter more memory than ordinary pages.
const HUGE_FROM: usize = 1 << 20;

/// The number of words in a huge page of 2 MiB.
const HUGE: usize = 1 << 18;

/// Words of this process, all 0 at first. They are allocated when they are first needed, and do not move after that.
///
/// An access takes two loads, because there is no state besides the length, which is 0 until the words exist.
#[derive(Debug)]
pub struct OnceWords {
    start: AtomicPtr<AtomicU64>,
    len: AtomicUsize,
    /// The length after the allocation.
    size: usize,
    /// The allocation, which contains the words and the memory before the first huge page. It is set before the length.
    made: OnceLock<Box<[AtomicU64]>>,
}

impl OnceWords {
    /// Creates the value for `size` words, without allocating them.
    #[inline]
    pub fn new(size: usize) -> Self {
        let nowhere = NonNull::dangling().as_ptr();
        Self { start: AtomicPtr::new(nowhere), len: AtomicUsize::new(0), size, made: OnceLock::new() }
    }

    /// Returns the words, or an empty slice before they are allocated.
    #[inline]
    pub fn get(&self) -> &[AtomicU64] {
        // Acquire: the start was written before the length.
        let len = self.len.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        // SAFETY: either no words at an aligned address, or `len` of the allocated words, which do not move as long as
        // `self` lives.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Returns the words. Allocates them first if needed. Returns `None` if there is no memory.
    #[cold]
    pub fn make(&self) -> Option<&[AtomicU64]> {
        if self.made.get().is_none() {
            let slack = if self.size < HUGE_FROM { 0 } else { HUGE };
            let len = self.size.checked_add(slack)?;
            // If another thread was faster, its words are used.
            let _theirs = self.made.set(<[AtomicU64]>::new_box_zeroed_with_elems(len).ok()?);
        }
        let made = self.made.get()?;
        let words = if self.size < HUGE_FROM { made.get(..self.size)? } else { in_huge_pages(made, self.size)? };
        // All threads that reach this point store the same value.
        self.start.store(words.as_ptr().cast_mut(), Ordering::Relaxed);
        self.len.store(self.size, Ordering::Release);
        Some(words)
    }
}

/// Returns `len` of the words, starting where a huge page may start, and advises the kernel to use huge pages there.
/// Contents do not change.
fn in_huge_pages(words: &[AtomicU64], len: usize) -> Option<&[AtomicU64]> {
    let skipped = words.as_ptr().align_offset(HUGE * size_of::<AtomicU64>());
    let words = words.get(skipped..)?.get(..len)?;
    let start = words.as_ptr().cast_mut().cast();
    // SAFETY: the range is memory of these words only; the advice does not change them.
    let advised = unsafe { rustix::mm::madvise(start, size_of_val(words), Advice::LinuxHugepage) };
    // The advice fails if the system's settings exclude huge pages. In this case ordinary pages are used.
    crate::later::later!(trace: len, ?advised, "huge pages for words");
    Some(words)
}

#[cfg(all(loom, test))]
mod models {
    use loom::sync::Arc;

    use super::*;
    use crate::sync::explore;

    #[test]
    fn loom_concurrently_created_words_are_shared() {
        explore(None, 15000, || {
            let words = Arc::new(OnceWords::new(4));
            let maker = |value| {
                let words = Arc::clone(&words);
                loom::thread::spawn(move || {
                    let made = words.make().unwrap();
                    made[value as usize].store(value, std::sync::atomic::Ordering::Relaxed);
                    made.as_ptr() as usize
                })
            };
            let makers = [maker(1), maker(2)];
            let seen = words.get();
            assert!(seen.is_empty() || seen.len() == 4);
            let early = (!seen.is_empty()).then_some(seen.as_ptr() as usize);
            let [first, second] = makers.map(|maker| maker.join().unwrap());
            assert_eq!(first, second);
            assert!(early.is_none_or(|early| early == first));
            let values = [1, 2].map(|at: usize| words.get()[at].load(std::sync::atomic::Ordering::Relaxed));
            assert_eq!(values, [1, 2]);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    use super::super::mapping::sealed_memfd;
    use super::*;

    #[test]
    fn words_of_two_mappings_are_shared_and_bounded() {
        let fd = sealed_memfd("percale-test", 4096, 4096).unwrap();
        let words = || Words::of(Mapping::of(fd.as_fd(), 4096).unwrap()).unwrap();
        let (ours, theirs) = (words(), words());
        ours.get(511).unwrap().store(7, Ordering::Relaxed);
        assert_eq!(theirs.slice(510, 2).unwrap()[1].load(Ordering::Relaxed), 7);
        assert!(ours.get(512).is_none() && ours.slice(511, 2).is_none() && ours.slice(usize::MAX, 2).is_none());
        let array = theirs.array::<4>().unwrap();
        drop(theirs);
        ours.get(3).unwrap().store(9, Ordering::Relaxed);
        assert_eq!(array[3].load(Ordering::Relaxed), 9);
        assert!(ours.array::<513>().is_none());
        assert_eq!(Array::<2>::here()[1].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn words_are_made_once() {
        let words = OnceWords::new(3);
        assert!(words.get().is_empty());
        words.make().unwrap()[2].store(5, Ordering::Relaxed);
        assert_eq!(words.make().unwrap().iter().map(|word| word.load(Ordering::Relaxed)).sum::<u64>(), 5);
        assert_eq!(words.get().len(), 3);
        assert!(OnceWords::new(usize::MAX).make().is_none());
        assert!(OnceWords::new(usize::MAX / 16).make().is_none());
    }

    #[test]
    fn many_words_begin_at_a_huge_page() {
        let words = OnceWords::new(HUGE_FROM + 7);
        let made = words.make().unwrap();
        assert_eq!(made.as_ptr().addr() % (2 << 20), 0);
        assert!(made.iter().step_by(4096).chain(made.last()).all(|word| word.swap(1, Ordering::Relaxed) == 0));
        assert_eq!((words.get().len(), words.get().as_ptr()), (HUGE_FROM + 7, made.as_ptr()));
    }
}
