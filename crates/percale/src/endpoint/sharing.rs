//! From one owner to many threads.

use std::io;

use super::ownership::reach::Reach;
use super::ownership::{Owned, Shared};
use super::{Endpoint, SharedEndpoint, automatic};

/// An endpoint could not be shared: the system refused what those who wait for it need. It is as it was.
#[derive(Debug, thiserror::Error)]
#[error("the endpoint cannot be shared: {error}; raise the limit on open files, or use fewer endpoints")]
#[non_exhaustive]
pub struct ShareError {
    /// What the system says.
    #[source]
    pub error: io::Error,
    /// Still its owner's.
    pub endpoint: Box<Endpoint>,
}

impl ShareError {
    /// The libfabric code.
    #[must_use]
    pub fn errno(&self) -> i32 {
        crate::memory::call::errno(&self.error).unwrap_or(libc::EIO)
    }
}

impl Endpoint {
    /// Lets many threads use it from now on, as if it had been opened so
    /// ([`bind_shared`](super::EndpointBuilder::bind_shared)). What is under way goes on.
    ///
    /// # Errors
    /// If the system refuses descriptors, or in a forked child; the endpoint is in the error.
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
