//! Binds and invalidates windows of type 2.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::{Access, Bind, WindowAccess, WindowType};
//! # let domain = percale::Info::discover()?.best()?.open()?;
//! # let vector = domain.address_vector().build()?;
//! # let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
//! # let peer = vector.insert("127.0.0.1:7471")?;
//! let region = domain.register(vec![0; 1 << 20], Access::empty())?;
//! let window = domain.window(WindowType::TwoB)?;
//! let bind = Bind { range: 0..4096, access: WindowAccess::WRITE, key: 1 };
//! let name = endpoint.bind_window(peer, &window, &region, bind).wait()?;
//! endpoint.send(peer, name.to_bytes().to_vec()).wait()?;          // now the peer may write
//! endpoint.invalidate(peer, name.key).wait()?;             // from here on the peer may not write
//! # Ok(()) }
//! ```

use std::future::IntoFuture;

use super::future::Started;
use super::operation::Operation;
use super::outcome::Outcome;
use super::request::posted;
use super::{OperationError, SendRequest};
use crate::endpoint::Endpoint;
use crate::endpoint::engine::types::Notify;
use crate::endpoint::ownership::Ownership;
use crate::endpoint::window_work::{Bind, WindowPost, WindowWork};
use crate::endpoint::work::{OpFlags, PostError};
use crate::local_memory::buffer::Buffer;
use crate::memory::region::Bindable;
use crate::memory::window::Window;
use crate::region::RemoteMemory;
use crate::types::PeerAddress;

/// A bind or an invalidation that is not posted yet. The result of a bind is the name by which the peer accesses the
/// window.
#[must_use = "nothing is done before start, wait or await"]
pub struct WindowRequest<'e, A: Ownership, R> {
    endpoint: &'e Endpoint<A>,
    work: Result<(WindowWork, R), PostError>,
}

crate::short_debug!(for [A: Ownership, R] WindowRequest<'_, A, R>, "WindowRequest");

impl<A: Ownership> Endpoint<A> {
    /// Creates a request to bind a window of type 2 for a peer, in order with the messages to that peer: see
    /// [`post_bind`](Self::post_bind).
    pub fn bind_window(
        &self,
        peer: PeerAddress,
        window: &Window,
        region: &impl Bindable,
        bind: Bind,
    ) -> WindowRequest<'_, A, RemoteMemory> {
        let post = WindowPost::bind(peer, window, region, &bind).map_err(PostError::from);
        WindowRequest { endpoint: self, work: post.map(|(post, remote)| (post.keep(), remote)) }
    }

    /// Creates a request to invalidate a key of a window of type 2 that was bound through this endpoint: see
    /// [`post_invalidate`](Self::post_invalidate).
    pub fn invalidate(&self, peer: PeerAddress, key: u64) -> WindowRequest<'_, A, ()> {
        WindowRequest { endpoint: self, work: Ok((WindowPost::invalidate(peer, key).keep(), ())) }
    }
}

impl<A: Ownership> SendRequest<'_, A> {
    /// Makes the peer invalidate one of its windows of type 2, which it has bound for this endpoint, before it receives
    /// the message. See [`OpFlags::INVALIDATE`]. This replaces [`data`](Self::data).
    pub fn invalidating(mut self, key: u64) -> Self {
        self.data = Some(key);
        self.flags |= OpFlags::INVALIDATE;
        self
    }
}

impl<'e, A: Ownership, R: Outcome<Known = Option<R>>> WindowRequest<'e, A, R> {
    /// Makes the operation start only after all earlier operations to this peer have completed.
    pub fn fenced(mut self) -> Self {
        if let Ok((work, _)) = &mut self.work {
            work.flags |= OpFlags::FENCE;
        }
        self
    }

    /// Posts the operation.
    ///
    /// # Errors
    /// If the operation cannot be posted.
    pub fn start(self) -> Result<Operation<A::Handle<'e>, R>, OperationError> {
        let Self { endpoint, work } = self;
        let (mut work, outcome) = work.map_err(|cause| OperationError::new(cause, None))?;
        let id = endpoint.access.with(|engine| {
            let id = engine.core.operations.start(Buffer::from(Vec::new()));
            work.context = id.to_u64();
            posted(engine, id, |engine| engine.post_window(&work.post(), Notify::Operation))
        })?;
        Ok(Operation::in_progress(endpoint.access.handle(), id, Some(outcome)))
    }

    /// Posts the operation and waits for it.
    ///
    /// # Errors
    /// If the operation cannot be posted, or fails.
    pub fn wait(self) -> Result<R, OperationError> {
        self.start()?.wait()
    }
}

impl<'e, A: Ownership, R: Outcome<Known = Option<R>>> IntoFuture for WindowRequest<'e, A, R> {
    type Output = Result<R, OperationError>;
    type IntoFuture = Started<Operation<A::Handle<'e>, R>>;

    fn into_future(self) -> Self::IntoFuture {
        Started::new(self.start())
    }
}
