//! The memory that a safe operation owns while it is in progress.
//!
//! A [`Buffer`] contains bytes that can be sent, and in some cases received into. It owns its memory (or shares memory
//! that is never written), and the memory stays in place while the buffer itself is moved. The engine takes a buffer,
//! lends its memory to transports as a [`Segment`], and returns it when the operation has completed. Until then no
//! other code can access it, which makes the operation safe.

#![expect(unsafe_code, reason = "lends owned memory as segments; each block states its own reason")]

use std::borrow::Cow;
use std::sync::Arc;

use super::buffer_pool::{BufferPool, PoolPart};
use super::plain::{Plain, Values};
use super::sealed::{Allocation, AllocationExt as _};
use super::volatile::{Segment, Segments, SegmentsExt as _, View, ViewExt as _};

/// Memory for one operation. Types that own their bytes convert to it.
///
/// | from | can be received into | copies the bytes |
/// |---|---|---|
/// | `Vec<u8>`, `Box<[u8]>`, `String`, [`Allocation`] | yes | no |
/// | [`BufferPool::take`] | yes | no, and nothing is allocated |
/// | memory of plain values, by [`TypedMemory::into_buffer`](super::typed_memory::TypedMemory::into_buffer) | yes | no, but 24 bytes for the handle of a vector are allocated |
/// | `[u8; N]` | yes | yes, to the heap, because the bytes have to stay in place while the buffer moves |
/// | `Cow<'static, [u8]>`, `Cow<'static, str>` | if it is `Cow::Owned` | no |
/// | `&'static [u8]`, `&'static [u8; N]`, `&'static str`, `Arc<[u8]>` | no | no |
/// | `bytes::Bytes`, with the cargo feature `bytes` | no | no, but 32 bytes for the handle are allocated |
///
/// The default is an empty buffer, without an allocation.
pub struct Buffer {
    memory: Memory,
}

impl std::fmt::Debug for Buffer {
    /// Prints the kind and the length, never the content, which may be large or secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &self.memory {
            Memory::Heap(_) => "heap",
            Memory::Sealed(_) => "sealed",
            Memory::Pooled(_) => "pool",
            Memory::Values(_) => "values",
            Memory::Static(_) => "static",
            Memory::Shared(_) => "shared",
            #[cfg(feature = "bytes")]
            Memory::Bytes(_) => "bytes",
        };
        write!(f, "Buffer({kind}, {} bytes)", self.len())
    }
}

enum Memory {
    /// Also contains boxed slices. Pointers to the content of a vector stay valid when the vector is moved. For a box,
    /// the compiler may assume that they do not.
    Heap(Vec<u8>),
    Sealed(Allocation),
    /// A part of an allocation, which returns to its pool.
    Pooled(PoolPart),
    /// A vector of plain values.
    Values(Box<dyn Values>),
    Static(&'static [u8]),
    Shared(Arc<[u8]>),
    /// In a box, because a buffer has three words. The bytes themselves are not in the box.
    #[cfg(feature = "bytes")]
    Bytes(Box<bytes::Bytes>),
}

impl Buffer {
    /// Creates a buffer of `len` zeros to receive into.
    #[must_use]
    #[inline]
    pub fn zeroed(len: usize) -> Self {
        Self::from(vec![0; len])
    }

    /// Returns the length in bytes, which is the number of bytes that are sent, or the maximum that is received. For a
    /// vector this is its length, not its capacity.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        match &self.memory {
            Memory::Heap(bytes) => bytes.len(),
            Memory::Sealed(allocation) => allocation.len(),
            Memory::Pooled(part) => part.len(),
            Memory::Values(values) => values.location().1,
            Memory::Static(bytes) => bytes.len(),
            Memory::Shared(bytes) => bytes.len(),
            #[cfg(feature = "bytes")]
            Memory::Bytes(bytes) => bytes.len(),
        }
    }

    /// Returns whether the buffer has no bytes.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the buffer can be received into, which requires that it is the only owner of its bytes.
    #[must_use]
    #[inline]
    pub const fn is_writable(&self) -> bool {
        matches!(self.memory, Memory::Heap(_) | Memory::Sealed(_) | Memory::Pooled(_) | Memory::Values(_))
    }

    /// Returns the bytes, or `None` for an [`Allocation`] and for a buffer of a [`BufferPool`]. Peers may be writing an
    /// allocation, so its bytes have to be [copied](Self::copy_to).
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match &self.memory {
            Memory::Heap(bytes) => Some(bytes),
            Memory::Sealed(_) | Memory::Pooled(_) => None,
            Memory::Values(values) => Some(values.as_bytes()),
            Memory::Static(bytes) => Some(bytes),
            Memory::Shared(bytes) => Some(bytes),
            #[cfg(feature = "bytes")]
            Memory::Bytes(bytes) => Some(bytes),
        }
    }

    /// Copies the bytes starting at `offset` into `to`. Returns the number of bytes copied.
    #[inline]
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) -> usize {
        let offset = offset.min(self.len());
        let count = to.len().min(self.len() - offset);
        match &self.memory {
            Memory::Sealed(allocation) => allocation.read(offset, &mut to[..count]),
            Memory::Pooled(part) => {
                Segments::one(part.segment()).copy_to(offset, &mut to[..count]);
            }
            Memory::Heap(bytes) => to[..count].copy_from_slice(&bytes[offset..offset + count]),
            Memory::Values(values) => to[..count].copy_from_slice(&values.as_bytes()[offset..offset + count]),
            Memory::Static(bytes) => to[..count].copy_from_slice(&bytes[offset..offset + count]),
            Memory::Shared(bytes) => to[..count].copy_from_slice(&bytes[offset..offset + count]),
            #[cfg(feature = "bytes")]
            Memory::Bytes(bytes) => to[..count].copy_from_slice(&bytes[offset..offset + count]),
        }
        count
    }

    /// Copies `from` to the bytes starting at `offset`. Returns the number of bytes copied, which is limited by the
    /// length of the buffer, and is 0 if the buffer is not [writable](Self::is_writable).
    #[inline]
    pub fn copy_from(&mut self, offset: usize, from: &[u8]) -> usize {
        if !self.is_writable() {
            return 0;
        }
        let offset = offset.min(self.len());
        let from = &from[..from.len().min(self.len() - offset)];
        match &mut self.memory {
            Memory::Heap(bytes) => bytes[offset..offset + from.len()].copy_from_slice(from),
            Memory::Sealed(allocation) => allocation.write(offset, from),
            Memory::Pooled(part) => {
                View::of(from).copy_into(&Segments::one(part.segment()), offset);
            }
            Memory::Values(values) => values.as_mut_bytes()[offset..offset + from.len()].copy_from_slice(from),
            _ => unreachable!("the buffer is writable"),
        }
        from.len()
    }

    /// Shortens the buffer to its first `len` bytes. Later operations send or receive only these. If the buffer has at
    /// most `len` bytes, nothing changes. The memory is kept, except that a copy replaces an `Arc<[u8]>` and a vector of
    /// other values than bytes. A buffer of a [`BufferPool`] has its full length when it is taken from the pool again.
    pub fn truncate(&mut self, len: usize) {
        if len >= self.len() {
            return;
        }
        match &mut self.memory {
            Memory::Heap(bytes) => bytes.truncate(len),
            Memory::Sealed(allocation) => allocation.truncate(len),
            Memory::Pooled(part) => part.truncate(len),
            Memory::Values(values) => self.memory = Memory::Heap(values.as_bytes()[..len].to_vec()),
            Memory::Static(bytes) => *bytes = &bytes[..len],
            Memory::Shared(bytes) => *bytes = Arc::from(&bytes[..len]),
            #[cfg(feature = "bytes")]
            Memory::Bytes(bytes) => bytes.truncate(len),
        }
    }

    /// Converts the buffer to a vector: the one from which it was created, or a copy of any other memory. (If there is
    /// no other handle to its memory, `bytes::Bytes` may be converted without a copy.)
    #[must_use]
    #[inline]
    pub fn into_vec(self) -> Vec<u8> {
        match self.memory {
            Memory::Heap(bytes) => bytes,
            Memory::Sealed(allocation) => allocation.to_vec(),
            Memory::Pooled(part) => Segments::one(part.segment()).to_vec(),
            Memory::Values(values) => values.as_bytes().to_vec(),
            Memory::Static(bytes) => bytes.to_vec(),
            Memory::Shared(bytes) => bytes.to_vec(),
            #[cfg(feature = "bytes")]
            Memory::Bytes(bytes) => Vec::from(*bytes),
        }
    }

    /// Converts the buffer to the allocation from which it was created.
    ///
    /// # Errors
    /// If it was not created from an allocation. The error contains the buffer.
    #[inline]
    pub fn into_allocation(self) -> Result<Allocation, IntoAllocationError> {
        match self.memory {
            Memory::Sealed(allocation) => Ok(allocation),
            memory => Err(IntoAllocationError { buffer: Self { memory } }),
        }
    }
}

impl Buffer {
    /// Creates a buffer of a vector of plain values.
    pub(super) fn of_values(values: Box<dyn Values>) -> Self {
        Self { memory: Memory::Values(values) }
    }

    /// Returns the vector of which [`of_values`](Self::of_values) made the buffer, or the buffer if it was made of
    /// something else.
    pub(super) fn into_values<T: Plain>(self) -> Result<Vec<T>, Self> {
        match self.memory {
            Memory::Values(values) if values.as_any().is::<Vec<T>>() => {
                let values = values.into_any().downcast::<Vec<T>>();
                Ok(*values.unwrap_or_else(|_| unreachable!("the type was checked")))
            }
            memory => Err(Self { memory }),
        }
    }
}

impl Default for Buffer {
    #[inline]
    fn default() -> Self {
        Self::from(Vec::new())
    }
}

/// The error of [`Buffer::into_allocation`]: the buffer was not created from an [`Allocation`].
#[derive(Debug, thiserror::Error)]
#[error("the buffer was not created from an Allocation; use into_vec")]
pub struct IntoAllocationError {
    buffer: Buffer,
}

impl IntoAllocationError {
    /// Returns the libfabric code for this error (positive).
    #[must_use]
    pub const fn errno(&self) -> i32 {
        libc::EINVAL
    }

    /// Returns the buffer, which is unchanged.
    #[must_use]
    pub fn into_inner(self) -> Buffer {
        self.buffer
    }
}

/// Lends a [`Buffer`] to an operation. This is for the crates of percale, not for programs.
#[doc(hidden)]
pub trait BufferExt: Sized {
    /// Checks that the memory exists in this process. Memory that percale allocated does not exist in a forked child.
    /// All other memory of the child is a copy of its parent's.
    ///
    /// # Panics
    /// If percale allocated the memory, and this is a forked child.
    #[track_caller]
    fn check_here(&self);

    /// Returns the allocation that contains the memory, if percale allocated it.
    fn as_allocation(&self) -> Option<&Allocation>;

    /// Drops the buffer, for a caller that may have borrowed or locked an engine. If the destructor of the memory may be
    /// application code, a separate thread runs it.
    fn drop_under_lock(self);

    /// Returns the memory as a segment to be read by an operation. Until that operation has completed, the caller keeps
    /// the buffer, does not access it, and does not write through the segment.
    fn segment_for_send(&self) -> Segment;

    /// Returns the memory as a segment to be written by an operation, or `None` if the buffer is not the only owner of
    /// the memory. Until that operation has completed, the caller keeps the buffer and does not access it.
    fn segment_for_receive(&mut self) -> Option<Segment>;
}

impl BufferExt for Buffer {
    #[inline]
    fn drop_under_lock(self) {
        match self.memory {
            // The owner of these bytes may be any object (`Bytes::from_owner`).
            #[cfg(feature = "bytes")]
            Memory::Bytes(bytes) => crate::later::drop_elsewhere(bytes),
            memory => drop(memory),
        }
    }

    #[inline]
    fn check_here(&self) {
        if let Some(allocation) = self.as_allocation() {
            allocation.check_here();
        }
    }

    #[inline]
    fn as_allocation(&self) -> Option<&Allocation> {
        match &self.memory {
            Memory::Sealed(allocation) => Some(allocation),
            Memory::Pooled(part) => Some(part.allocation()),
            _ => None,
        }
    }

    #[inline]
    fn segment_for_send(&self) -> Segment {
        let (start, len) = match &self.memory {
            Memory::Sealed(allocation) => return allocation.segment(),
            Memory::Pooled(part) => return part.segment(),
            // No slice of the vector is created, because an operation may be writing other parts of it.
            Memory::Heap(bytes) => (Vec::as_ptr(bytes), Vec::len(bytes)),
            Memory::Values(values) => values.location(),
            Memory::Static(bytes) => (bytes.as_ptr(), bytes.len()),
            Memory::Shared(bytes) => (bytes.as_ptr(), bytes.len()),
            #[cfg(feature = "bytes")]
            Memory::Bytes(bytes) => (bytes.as_ptr(), bytes.len()),
        };
        // SAFETY: the memory is on the heap or static, so it stays in place while the buffer moves, and it lives as
        // long as the buffer, which the caller keeps. It is written only by an operation that receives into the buffer.
        // A `Bytes` contains the address of its bytes, which are constant as long as a handle to them exists.
        unsafe { Segment::new(start.cast_mut(), len) }
    }

    #[inline]
    fn segment_for_receive(&mut self) -> Option<Segment> {
        match &mut self.memory {
            // SAFETY: as above; the pointer comes from an exclusive borrow, and the caller does not access the vector
            // while the segment is in use.
            Memory::Heap(bytes) => Some(unsafe { Segment::new(bytes.as_mut_ptr(), bytes.len()) }),
            Memory::Sealed(allocation) => Some(allocation.segment()),
            Memory::Pooled(part) => Some(part.segment()),
            Memory::Values(values) => {
                let bytes = values.as_mut_bytes();
                // SAFETY: as above.
                Some(unsafe { Segment::new(bytes.as_mut_ptr(), bytes.len()) })
            }
            Memory::Static(_) | Memory::Shared(_) => None,
            #[cfg(feature = "bytes")]
            Memory::Bytes(_) => None,
        }
    }
}

/// Returns a segment of exclusively borrowed memory, for a region that is closed before the borrow ends.
#[inline]
pub fn borrowed(bytes: &mut [u8]) -> Segment {
    // SAFETY: the borrow is exclusive and, as the caller guarantees, outlives all use of the segment. During that time
    // the borrower accesses the memory only through the segment.
    unsafe { Segment::new(bytes.as_mut_ptr(), bytes.len()) }
}

/// Like [`borrowed`], for a region that peers may only read.
#[inline]
pub fn borrowed_to_read(bytes: &[u8]) -> Segment {
    // SAFETY: the borrow outlives all use of the segment, as the caller guarantees, and the memory is not written.
    unsafe { Segment::new(bytes.as_ptr().cast_mut(), bytes.len()) }
}

impl From<Vec<u8>> for Buffer {
    #[inline]
    fn from(bytes: Vec<u8>) -> Self {
        Self { memory: Memory::Heap(bytes) }
    }
}

impl From<Box<[u8]>> for Buffer {
    #[inline]
    fn from(bytes: Box<[u8]>) -> Self {
        Self::from(bytes.into_vec())
    }
}

impl From<String> for Buffer {
    #[inline]
    fn from(text: String) -> Self {
        Self::from(text.into_bytes())
    }
}

impl From<Allocation> for Buffer {
    #[inline]
    fn from(allocation: Allocation) -> Self {
        Self { memory: Memory::Sealed(allocation) }
    }
}

impl BufferPool {
    /// Takes a buffer of the pool, with its full length. It contains the bytes of its last use, and at first zeros.
    /// Returns `None` if all buffers are in use, or in a forked child of the process that created the pool. Memory is
    /// never allocated.
    #[must_use]
    #[inline]
    pub fn take(&self) -> Option<Buffer> {
        Some(Buffer { memory: Memory::Pooled(self.take_part()?) })
    }
}

impl From<&'static [u8]> for Buffer {
    fn from(bytes: &'static [u8]) -> Self {
        Self { memory: Memory::Static(bytes) }
    }
}

impl<const N: usize> From<&'static [u8; N]> for Buffer {
    fn from(bytes: &'static [u8; N]) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl From<&'static str> for Buffer {
    fn from(text: &'static str) -> Self {
        Self::from(text.as_bytes())
    }
}

impl From<Arc<[u8]>> for Buffer {
    #[inline]
    fn from(bytes: Arc<[u8]>) -> Self {
        Self { memory: Memory::Shared(bytes) }
    }
}

impl<const N: usize> From<[u8; N]> for Buffer {
    /// Copies the bytes to the heap.
    #[inline]
    fn from(bytes: [u8; N]) -> Self {
        Self::from(Vec::from(bytes))
    }
}

impl From<Cow<'static, [u8]>> for Buffer {
    #[inline]
    fn from(bytes: Cow<'static, [u8]>) -> Self {
        match bytes {
            Cow::Borrowed(bytes) => Self::from(bytes),
            Cow::Owned(bytes) => Self::from(bytes),
        }
    }
}

impl From<Cow<'static, str>> for Buffer {
    #[inline]
    fn from(text: Cow<'static, str>) -> Self {
        match text {
            Cow::Borrowed(text) => Self::from(text),
            Cow::Owned(text) => Self::from(text),
        }
    }
}

#[cfg(feature = "bytes")]
impl From<bytes::Bytes> for Buffer {
    #[inline]
    fn from(bytes: bytes::Bytes) -> Self {
        Self { memory: Memory::Bytes(Box::new(bytes)) }
    }
}

#[cfg(feature = "bytes")]
impl From<Buffer> for bytes::Bytes {
    /// Returns the memory of the buffer, or a copy if percale allocated it, because peers may be writing such memory.
    fn from(buffer: Buffer) -> Self {
        match buffer.memory {
            Memory::Heap(bytes) => Self::from(bytes),
            Memory::Sealed(allocation) => Self::from(allocation.to_vec()),
            Memory::Pooled(part) => Self::from(Segments::one(part.segment()).to_vec()),
            Memory::Values(values) => Self::from(values.as_bytes().to_vec()),
            Memory::Static(bytes) => Self::from_static(bytes),
            Memory::Shared(bytes) => Self::from_owner(bytes),
            Memory::Bytes(bytes) => *bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_memory::buffer_pool::BufferPoolExt as _;
    use crate::local_memory::sealed::allocate;

    fn all() -> Vec<Buffer> {
        let mut allocation = allocate(5).unwrap();
        allocation.write(0, b"hello");
        let mut pooled = crate::local_memory::buffer_pool::BufferPool::new(1, 5).unwrap().take().unwrap();
        assert_eq!(pooled.copy_from(0, b"hello"), 5);
        vec![
            pooled,
            crate::local_memory::typed_memory::TypedMemory::into_buffer(b"hello".map(u8::cast_signed).to_vec()),
            Buffer::from(b"hello".to_vec()),
            Buffer::from(b"hello".to_vec().into_boxed_slice()),
            Buffer::from(String::from("hello")),
            Buffer::from(allocation),
            Buffer::from("hello"),
            Buffer::from(b"hello"),
            Buffer::from(Arc::<[u8]>::from(*b"hello")),
            Buffer::from(*b"hello"),
            Buffer::from(Cow::Borrowed(b"hello".as_slice())),
            Buffer::from(Cow::<'static, [u8]>::Owned(b"hello".to_vec())),
            Buffer::from(Cow::Borrowed("hello")),
            Buffer::from(Cow::<'static, str>::Owned(String::from("hello"))),
            #[cfg(feature = "bytes")]
            Buffer::from(bytes::Bytes::from_static(b"hello")),
            #[cfg(feature = "bytes")]
            Buffer::from(bytes::Bytes::from(b"well, hello".to_vec()).slice(6..)),
            #[cfg(feature = "bytes")]
            Buffer::from(bytes::Bytes::from_owner(*b"hello")),
        ]
    }

    #[test]
    fn every_buffer_kind_can_be_sent_and_returns_its_bytes() {
        for buffer in all() {
            assert_eq!(Segments::one(buffer.segment_for_send()).to_vec(), b"hello");
            let mut part = [0; 9];
            assert_eq!(buffer.copy_to(2, &mut part), 3);
            assert_eq!(&part[..3], b"llo");
            assert_eq!(buffer.copy_to(9, &mut part), 0);
            assert_eq!(buffer.as_slice().unwrap_or(b"hello"), b"hello");
            assert_eq!(buffer.into_vec(), b"hello");
        }
    }

    #[test]
    fn receive_requires_owned_memory_that_stays_in_place() {
        for mut buffer in all() {
            let segment = buffer.segment_for_receive();
            assert_eq!(segment.is_some(), buffer.is_writable());
            let Some(segment) = segment else { continue };
            let moved = Box::new(buffer);
            assert_eq!(View::of(b"WORLD").copy_into(&Segments::one(segment), 0), 5);
            assert_eq!(moved.into_vec(), b"WORLD");
        }
    }

    #[test]
    fn bytes_are_copied_into_writable_buffers_only() {
        for mut buffer in all() {
            let copied = if buffer.is_writable() { [2, 0] } else { [0, 0] };
            assert_eq!([buffer.copy_from(3, b"PPP"), buffer.copy_from(9, b"P")], copied);
            assert_eq!(buffer.into_vec(), if copied[0] == 2 { b"helPP" } else { b"hello" });
        }
    }

    #[test]
    fn every_buffer_kind_can_be_shortened() {
        for mut buffer in all() {
            let writable = buffer.is_writable();
            buffer.truncate(6);
            assert_eq!(buffer.len(), 5);
            buffer.truncate(2);
            assert_eq!((buffer.len(), buffer.is_writable()), (2, writable));
            assert_eq!(Segments::one(buffer.segment_for_send()).to_vec(), b"he");
            buffer.truncate(0);
            assert!(buffer.into_vec().is_empty());
        }
    }

    #[test]
    fn allocation_is_returned_at_the_same_address() {
        let allocation = allocate(100).unwrap();
        let address = allocation.as_ptr();
        assert_eq!(Buffer::from(allocation).into_allocation().unwrap().as_ptr(), address);
        let error = Buffer::from("text").into_allocation().unwrap_err();
        assert_eq!(error.into_inner().as_slice(), Some(b"text".as_slice()));
    }

    #[test]
    fn buffer_consists_of_three_words() {
        assert_eq!(size_of::<Buffer>(), 24);
        assert_eq!(size_of::<Option<Buffer>>(), 24);
    }

    #[test]
    fn default_buffer_is_empty_and_writable() {
        let buffer = Buffer::default();
        assert!(buffer.is_empty() && buffer.is_writable());
    }

    #[test]
    fn owned_cow_is_writable_and_borrowed_cow_is_not() {
        assert!(Buffer::from(Cow::<'static, str>::Owned(String::from("text"))).is_writable());
        assert!(!Buffer::from(Cow::Borrowed("text")).is_writable());
    }

    /// The memory stays in place while the buffer moves, and is freed with it.
    #[cfg(feature = "bytes")]
    #[test]
    fn bytes_are_lent_at_their_own_address() {
        let bytes = bytes::Bytes::from(b"well, hello".to_vec()).slice(6..);
        let address = bytes.as_ptr();
        let buffer = Buffer::from(bytes.clone());
        assert_eq!(buffer.segment_for_send().as_ptr().cast_const(), address);
        let moved = Box::new(buffer);
        assert_eq!(moved.segment_for_send().as_ptr().cast_const(), address);
        assert!(!bytes.is_unique());
        assert_eq!(bytes::Bytes::from(*moved).as_ptr(), address);
        assert!(bytes.is_unique());
    }

    #[cfg(feature = "bytes")]
    #[test]
    fn every_buffer_kind_converts_to_bytes() {
        for buffer in all() {
            assert_eq!(bytes::Bytes::from(buffer), b"hello".as_slice());
        }
    }
}
