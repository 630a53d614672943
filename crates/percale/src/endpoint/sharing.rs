//! Turns an endpoint of one owner into one that many threads share.

use std::io;

use super::ownership::reach::EngineAccess;
use super::ownership::{Owned, Shared};
use super::{Endpoint, SharedEndpoint, automatic};

/// An endpoint could not be shared, because the system refused resources that waiting threads need. The endpoint is
/// unchanged.
#[derive(Debug, thiserror::Error)]
#[error("the endpoint cannot be shared: {error}; raise the limit on open files, or use fewer endpoints")]
#[non_exhaustive]
pub struct ShareError {
    /// The system's error.
    #[source]
    pub error: io::Error,
    /// The endpoint, which still has one owner.
    pub endpoint: Box<Endpoint>,
}

impl ShareError {
    /// Returns the libfabric code.
    #[must_use]
    pub fn errno(&self) -> i32 {
        crate::system::call::errno(&self.error).unwrap_or(libc::EIO)
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
            return Err(ShareError { error, endpoint: Box::new(self) });
        }
        let Self { access, descriptor, domain, answer_timeout, peer } = self;
        let access = Shared::new(access.into_engine());
        match automatic::attach(&access, &descriptor) {
            Ok(()) => Ok(Endpoint { access, descriptor, domain, answer_timeout, peer }),
            Err(error) => {
                let access = Owned::new(access.into_engine());
                let endpoint = Box::new(Endpoint { access, descriptor, domain, answer_timeout, peer });
                Err(ShareError { error, endpoint })
            }
        }
    }
}
