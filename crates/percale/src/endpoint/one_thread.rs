//! A value that one thread at a time uses, and the text of the compiler's error for a program that would share it.
//!
//! Without this type the compiler would reject the same programs, because the value contains cells. Its error would name
//! these cells, once for each of them, and would suggest `std::sync::RwLock`.

#![expect(unsafe_code, reason = "only an explicit implementation of `Sync` can have a condition")]

/// A type that several threads may use at the same time. No type implements it: its purpose is the text of the error.
///
/// # Safety
/// The type has to be `Sync`.
#[diagnostic::on_unimplemented(
    message = "an `Endpoint` is used by one thread at a time; threads and tasks share a `SharedEndpoint`",
    label = "an `Endpoint` or one of its operations would be shared between threads here",
    note = "open the endpoint with `bind_shared` instead of `bind`, or convert it with `Endpoint::share`; clone the \
            `SharedEndpoint` for each thread or task",
    note = "or move the `Endpoint` itself to the one thread that uses it, or give each thread an endpoint of its own"
)]
pub(super) unsafe trait UsedByManyThreads {}

/// A value that is `Send` if `T` is, and never `Sync`.
pub(super) struct OneThread<T>(pub(super) T);

// SAFETY: a type for which the condition holds is `Sync`, and access to the value is the only access that a reference
// to its container gives.
unsafe impl<T: UsedByManyThreads> Sync for OneThread<T> {}
