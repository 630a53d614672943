//! Memory for raw operations, and contents that can be verified.
//!
//! [`Memory`] is never freed, so an operation may use it for any length of time, even after the end of its test.
//! Therefore a test that posts a raw operation need not ensure the lifetime of its memory. The memory is accessed only
//! through its pointer, by the thread that drives the endpoints.

#![expect(
    unsafe_code,
    reason = "reads and writes memory that is lent to operations; each block states why it is valid"
)]

use std::marker::PhantomData;

use percale::{Endpoint, PostError, ReceiveWork, Segment, Segments, SharedReceive};

/// Posts a shared receive into memory that is never freed.
///
/// # Errors
/// Returns the errors of [`SharedReceive::post_recv`].
pub fn post_shared(shared: &SharedReceive, work: &ReceiveWork) -> Result<(), PostError> {
    // SAFETY: the suite's memory lives as long as the process, and is read only after the operation is over.
    unsafe { shared.post_recv(work) }
}

/// Posts a receive into memory that is never freed.
///
/// # Errors
/// Returns the errors of [`Endpoint::post_recv`].
pub fn post_receive(endpoint: &Endpoint, work: &ReceiveWork) -> Result<(), PostError> {
    // SAFETY: as above.
    unsafe { endpoint.post_recv(work) }
}

/// Memory that is never freed. Copies refer to the same memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    segment: Segment,
    /// Makes the type `!Send` and `!Sync`, like a raw pointer.
    life: PhantomData<*mut u8>,
}

impl Memory {
    fn new(ptr: *mut u8, len: usize) -> Self {
        // SAFETY: the memory is never freed, and is written only by operations and by `write`.
        Self { segment: unsafe { Segment::new(ptr, len) }, life: PhantomData }
    }

    /// Allocates memory with these contents.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let leaked: &'static mut [u8] = Box::leak(bytes.to_vec().into_boxed_slice());
        Self::new(leaked.as_mut_ptr(), leaked.len())
    }

    /// Allocates memory filled with `0xEE`.
    #[must_use]
    pub fn blank(len: usize) -> Self {
        Self::of(&vec![0xEE; len])
    }

    /// Allocates memory with the [`content`] for this number.
    #[must_use]
    pub fn content(number: u64, len: usize) -> Self {
        Self::of(&content(number, len))
    }

    /// Maps memory with these contents, in separate pages at an address that the kernel chooses.
    ///
    /// # Panics
    /// Panics if memory cannot be mapped.
    #[must_use]
    pub fn mapped(bytes: &[u8]) -> Self {
        let (allowed, private) =
            (rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE, rustix::mm::MapFlags::PRIVATE);
        // SAFETY: creates a new mapping at an address that the kernel chooses, so no existing memory is affected.
        let ptr = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes.len(), allowed, private) };
        let ptr = ptr.expect("memory").cast::<u8>();
        // SAFETY: the mapping is as long as the bytes, and is not used elsewhere yet.
        unsafe { ptr.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Self::new(ptr, bytes.len())
    }

    /// Reserves addresses that are never backed by memory, for copies that the kernel rejects. This process must not
    /// read or write them.
    ///
    /// # Panics
    /// Panics if there are no free addresses.
    #[must_use]
    pub fn unmapped(len: usize) -> Self {
        let (none, private) = (rustix::mm::ProtFlags::empty(), rustix::mm::MapFlags::PRIVATE);
        // SAFETY: creates a new mapping at an address that the kernel chooses, so no existing memory is affected.
        let ptr = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, none, private) };
        Self::new(ptr.expect("addresses").cast(), len)
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.segment.len()
    }

    /// Returns whether the length is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.segment.is_empty()
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.segment.as_ptr().addr() as u64
    }

    /// Returns a subrange of the memory.
    ///
    /// # Panics
    /// Panics if the subrange is not within the memory.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Self {
        assert!(offset + len <= self.len(), "the part lies within the memory");
        Self { segment: self.segment.slice(offset, len), life: PhantomData }
    }

    /// Returns the memory as one segment.
    #[must_use]
    pub const fn segment(&self) -> Segment {
        self.segment
    }

    /// Returns the memory in the form that operations accept.
    #[must_use]
    pub fn segments(&self) -> Segments {
        Segments::one(self.segment)
    }

    /// Returns the contents.
    #[must_use]
    pub fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.read_into(&mut bytes);
        bytes
    }

    /// Copies the beginning of the memory to `to`.
    ///
    /// # Panics
    /// Panics if the memory is shorter than `to`.
    pub fn read_into(&self, to: &mut [u8]) {
        assert!(to.len() <= self.len(), "the destination is longer than the memory");
        // SAFETY: the segment belongs to this value and is never freed, and `to` does not overlap it.
        unsafe { std::ptr::copy_nonoverlapping(self.segment.as_ptr(), to.as_mut_ptr(), to.len()) };
    }

    /// Writes `bytes` to the beginning of the memory.
    ///
    /// # Panics
    /// Panics if the memory is shorter than `bytes`.
    pub fn write(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len(), "the bytes fit");
        // SAFETY: the segment belongs to this value and is never freed, and `bytes` does not overlap it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.segment.as_ptr(), bytes.len()) };
    }
}

/// Returns the contents of a message. They depend on its number, its length and the position of each byte.
#[must_use]
pub fn content(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    crate::random::Random::new(number.wrapping_mul(0x1000_0001).wrapping_add(len as u64)).fill(&mut bytes);
    bytes
}

/// Panics with the position of the first difference unless `got` equals `wanted`. (`assert_eq!` would print megabytes.)
#[track_caller]
pub fn same(got: &[u8], wanted: &[u8], what: &str) {
    assert_eq!(got.len(), wanted.len(), "{what}: length");
    // Without optimization, this is much faster than the search for the position.
    if got == wanted {
        return;
    }
    if let Some(at) = got.iter().zip(wanted).position(|(got, wanted)| got != wanted) {
        panic!("{what}: byte {at} of {} is {:#04x}, not {:#04x}", wanted.len(), got[at], wanted[at]);
    }
}
