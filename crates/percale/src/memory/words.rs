//! 64-bit words that several threads, or several processes, work on: always atomics, always within bounds.
//!
//! What a word of shared memory says is whatever another process wrote there: it is a number to be checked, nothing more.

#![expect(unsafe_code, reason = "references to words of a mapping; each block states its own reason")]

use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::mapping::Mapping;

/// The words of a shared mapping.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    start: NonNull<AtomicU64>,
    len: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: the words are atomics, and the mapping stays for as long as there is a handle to it.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// All whole words of a mapping. Of one that is mapped for reading none may be stored to.
    ///
    /// # Errors
    /// Never in practice: mappings begin at pages.
    pub(crate) fn of(mapping: Mapping) -> io::Result<Self> {
        let start = NonNull::new(mapping.as_ptr().cast::<AtomicU64>()).filter(|start| start.is_aligned());
        let start = start.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { start, len: mapping.len() / size_of::<AtomicU64>(), mapping: Arc::new(mapping) })
    }

    /// The word at `at`, if there is one.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<&AtomicU64> {
        if at >= self.len {
            return None;
        }
        // SAFETY: within the mapping.
        let word = unsafe { self.start.add(at) };
        // SAFETY: aligned, and mapped for as long as `self` lives; whoever else accesses it does so atomically, or is a process
        // that breaks the rules, which makes the value wrong but not the access.
        Some(unsafe { word.as_ref() })
    }

    /// So many words from `at` on, if there are.
    pub(crate) fn slice(&self, at: usize, len: usize) -> Option<&[AtomicU64]> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return None;
        }
        // SAFETY: within the mapping.
        let start = unsafe { self.start.add(at) };
        // SAFETY: as in `get`, for each of them.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) })
    }

    /// The first `N` words, if there are so many, as a handle of their own.
    pub(crate) fn array<const N: usize>(&self) -> Option<Array<N>> {
        (N <= self.len).then(|| Array { start: self.start.cast(), _owner: Owner::Mapped(Arc::clone(&self.mapping)) })
    }
}

/// Words that are found without looking whether they are shared: here, or in a mapping.
#[derive(Clone, Debug)]
pub(crate) struct Array<const N: usize> {
    start: NonNull<[AtomicU64; N]>,
    _owner: Owner<N>,
}

#[derive(Clone, Debug)]
enum Owner<const N: usize> {
    Here(#[expect(dead_code, reason = "it keeps the words")] Arc<[AtomicU64; N]>),
    Mapped(#[expect(dead_code, reason = "it keeps the words")] Arc<Mapping>),
}

// SAFETY: the words are atomics, and their owner stays for as long as there is a handle to it.
unsafe impl<const N: usize> Send for Array<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for Array<N> {}

impl<const N: usize> Array<N> {
    /// Words of this process, all 0.
    pub(crate) fn here() -> Self {
        let words = Arc::new([const { AtomicU64::new(0) }; N]);
        Self { start: NonNull::from(&*words), _owner: Owner::Here(words) }
    }
}

impl<const N: usize> Deref for Array<N> {
    type Target = [AtomicU64; N];

    #[inline]
    fn deref(&self) -> &Self::Target {
        // SAFETY: the owner has so many words there, aligned, and keeps them for as long as `self` lives.
        unsafe { self.start.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    use super::super::mapping::sealed_memfd;
    use super::*;

    #[test]
    fn words_of_two_mappings_are_the_same_and_end_where_they_end() {
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
}
