//! Turns an endpoint of one owner into one that many threads share, and the errors that return an endpoint.

use std::io;
use std::sync::{Mutex, PoisonError};

use super::ownership::reach::EngineAccess;
use super::ownership::{Owned, Ownership, Shared};
use super::{Endpoint, SharedEndpoint, automatic};

/// The error of [`Endpoint::share`]: the system refused resources that waiting threads need. It contains the endpoint,
/// which is unchanged.
#[derive(thiserror::Error)]
#[error("the endpoint cannot be shared: {error}; raise the limit on open files, or use fewer endpoints")]
pub struct ShareError {
    error: io::Error,
    endpoint: Contained<Owned>,
}

crate::short_debug!(ShareError, "ShareError", error: |this| this.error.to_string());

impl ShareError {
    /// Returns the system's error.
    #[must_use]
    pub const fn error(&self) -> &io::Error {
        &self.error
    }

    /// Returns whether the same call may succeed later although neither it nor the program is changed, which is the
    /// case if the system had no memory or descriptors left.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        crate::system::call::is_shortage(&self.error)
    }

    /// Returns the endpoint, which still has one owner.
    #[must_use]
    pub fn into_inner(self) -> Endpoint {
        self.endpoint.into_inner()
    }

    /// Returns the libfabric code.
    #[must_use]
    pub fn errno(&self) -> i32 {
        crate::system::call::errno(&self.error).unwrap_or(libc::EIO)
    }
}

/// The error of [`Endpoint::close`]: the endpoint was not closed, because windows of type 2A are bound through it. It
/// contains the endpoint, which continues to work.
///
/// The error is `Send` and `Sync`, so `?` converts it to `Box<dyn Error + Send + Sync>` and to similar types. Dropping
/// it drops the endpoint, which unbinds the windows and closes the endpoint.
#[derive(thiserror::Error)]
#[error(
    "the endpoint was not closed, because windows of type 2A are bound through it; invalidate or deallocate the windows \
     and close the endpoint again, or close it anyway with shut"
)]
pub struct EndpointCloseError<A: Ownership = Owned> {
    endpoint: Contained<A>,
}

crate::short_debug!(for [A: Ownership] EndpointCloseError<A>, "EndpointCloseError", reason: |this| this.to_string());

impl<A: Ownership> EndpointCloseError<A> {
    pub(super) fn new(endpoint: Endpoint<A>) -> Self {
        Self { endpoint: Contained::new(endpoint) }
    }

    /// Returns the endpoint, which is unchanged.
    #[must_use]
    pub fn into_inner(self) -> Endpoint<A> {
        self.endpoint.into_inner()
    }

    /// Returns whether the same call may succeed later although neither it nor the program is changed. Always false: the
    /// windows have to be invalidated or deallocated first.
    #[must_use]
    pub const fn is_retriable(&self) -> bool {
        false
    }

    /// Returns the libfabric code, which is that of a busy object.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        libc::EBUSY
    }
}

/// An endpoint in an error. The mutex, which is never locked, makes the error `Sync` without unsafe code: an endpoint of
/// one owner is only `Send`, and the error never returns a reference to it. The box keeps results short.
struct Contained<A: Ownership>(Box<Mutex<Endpoint<A>>>);

impl<A: Ownership> Contained<A> {
    fn new(endpoint: Endpoint<A>) -> Self {
        Self(Box::new(Mutex::new(endpoint)))
    }

    fn into_inner(self) -> Endpoint<A> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Endpoint {
    /// Shares the endpoint: many threads can use it from now on, as if it had been opened by
    /// [`bind_shared`](super::EndpointBuilder::bind_shared). Operations under way continue.
    ///
    /// # Errors
    /// If the system refuses descriptors, or in a forked child. The error contains the endpoint.
    pub fn share(self) -> Result<SharedEndpoint, ShareError> {
        if !self.access.is_here() {
            let error = io::Error::from_raw_os_error(libc::ECHILD);
            return Err(ShareError { error, endpoint: Contained::new(self) });
        }
        let Self { access, descriptor, domain, answer_timeout, peer } = self;
        let access = Shared::new(access.into_engine());
        match automatic::attach(&access, &descriptor) {
            Ok(()) => Ok(Endpoint { access, descriptor, domain, answer_timeout, peer }),
            Err(error) => {
                let access = Owned::new(access.into_engine());
                let endpoint = Contained::new(Endpoint { access, descriptor, domain, answer_timeout, peer });
                Err(ShareError { error, endpoint })
            }
        }
    }
}
