//! The state that a completion queue and its device share: whether the queue has failed.

use std::fmt::Debug;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::net::Shutdown;

/// A connected socket.
pub(super) trait WatchedSocket: AsFd + Debug + Send + Sync {}

impl<S: AsFd + Debug + Send + Sync> WatchedSocket for S {}

/// Whether a completion queue has failed, and the connection through which its user is woken up.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    pub(super) rang: AtomicBool,
    /// The connection to shut down when the queue fails.
    pub(super) connection: OnceLock<Arc<dyn WatchedSocket>>,
}

impl Alarm {
    /// Records that the queue has failed, and shuts down the connection.
    pub(super) fn ring(&self) {
        self.rang.store(true, Ordering::Release);
        if let Some(connection) = self.connection.get()
            && let Err(error) = rustix::net::shutdown(connection.as_fd(), Shutdown::Both)
        {
            crate::later::later!(debug: %error, "the connection of a failed completion queue was already closed");
        }
    }
}
