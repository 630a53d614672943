//! The results of operations.

use std::convert::Infallible;

use super::Received;
use crate::completion::entry::Entry;
use crate::local_memory::buffer::Buffer;
use crate::region::RemoteMemory;

/// The result of an [`Operation`](super::Operation): the buffer of a send, a read, a write or a collective; a
/// [`Received`] message; the previous value of a number; the name of a window; `()`; or a [`Group`](super::Group).
/// Sealed: no other crate can implement it.
pub trait Outcome: Sized + sealed::Sealed {
    /// The part of the result that is known when the operation is posted: `()`, or an `Option` with the whole result,
    /// which is `None` if the result was taken.
    #[doc(hidden)]
    type Known: Default;

    /// Makes the result of an operation that had a slot. Returns `None` if it was taken.
    #[doc(hidden)]
    fn of(entry: &Entry, buffer: Buffer, known: &mut Self::Known) -> Option<Self>;

    /// What the handle of an operation that ended when it was posted stores of the result. [`Infallible`] if there are
    /// no such operations with this result, so their handles are small.
    #[doc(hidden)]
    type AtOnce;

    /// Makes the result of an access that was made at once, from its buffer or from the previous value of a number.
    /// `None` if there is no such access with this result.
    #[doc(hidden)]
    fn at_once(buffer: Buffer, word: [u8; 8]) -> Option<Self::AtOnce> {
        let _ = (buffer, word);
        None
    }

    /// Makes the result from what the handle stores.
    #[doc(hidden)]
    fn of_at_once(result: Self::AtOnce) -> Self;
}

pub(super) mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for Buffer {}
impl Outcome for Buffer {
    type Known = ();
    type AtOnce = Self;

    #[inline(always)]
    fn of_at_once(buffer: Self) -> Self {
        buffer
    }

    #[inline(always)]
    fn of(_: &Entry, buffer: Buffer, (): &mut ()) -> Option<Self> {
        Some(buffer)
    }

    #[inline(always)]
    fn at_once(buffer: Buffer, _: [u8; 8]) -> Option<Self> {
        Some(buffer)
    }
}

impl sealed::Sealed for Received {}
impl Outcome for Received {
    type Known = ();
    type AtOnce = Infallible;

    fn of_at_once(never: Infallible) -> Self {
        match never {}
    }

    #[inline(always)]
    fn of(entry: &Entry, buffer: Buffer, (): &mut ()) -> Option<Self> {
        Some(Self::new(buffer, entry))
    }
}

impl sealed::Sealed for RemoteMemory {}
/// The name of a window that was bound.
impl Outcome for RemoteMemory {
    type Known = Option<Self>;
    type AtOnce = Infallible;

    fn of_at_once(never: Infallible) -> Self {
        match never {}
    }

    fn of(_: &Entry, _: Buffer, name: &mut Option<Self>) -> Option<Self> {
        name.take()
    }
}

impl sealed::Sealed for () {}
impl Outcome for () {
    type Known = Option<Self>;
    type AtOnce = Infallible;

    fn of_at_once(never: Infallible) -> Self {
        match never {}
    }

    fn of(_: &Entry, _: Buffer, result: &mut Option<Self>) -> Option<Self> {
        result.take()
    }
}
