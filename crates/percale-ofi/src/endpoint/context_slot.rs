//! The part that the contexts of a scalable endpoint share, and the place of each context in it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use percale::endpoint::BindError;
use percale::{EndpointBuilder, ScalableEndpoint};

use crate::abi::{
    FI_EBADFLAGS, FI_ENOAV, FI_LOG_EP_CTRL, FI_READ, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SEND, FI_WRITE,
};
use crate::domain;
use crate::log;
use crate::port::Port;
use crate::vector;

/// The kind of an endpoint: a complete one, or one of the contexts of a scalable endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointKind {
    /// Sends and receives.
    Both,
    /// Sends, and accesses the memory of peers.
    Transmit,
    /// Receives, and peers access memory through it.
    Receive,
}

impl EndpointKind {
    /// Rejects binding flags of the other half.
    pub(super) fn allows(self, flags: u64) -> Result<(), i32> {
        let others = match self {
            Self::Both => 0,
            Self::Transmit => FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE,
            Self::Receive => FI_SEND | FI_READ | FI_WRITE,
        };
        if flags & others == 0 {
            return Ok(());
        }
        log::warning!(FI_LOG_EP_CTRL, "fi_ep_bind: flags {:#x} are not valid for a {self:?} context", flags & others);
        Err(FI_EBADFLAGS)
    }

    /// Returns whether receives (if `receives` is set) or other operations can be posted to this half.
    pub(crate) fn posts(self, receives: bool) -> bool {
        self == Self::Both || receives == (self == Self::Receive)
    }
}

/// A context of a scalable endpoint.
pub(super) struct ContextSlot {
    pub(super) whole: Arc<ScalableParts>,
    pub(super) half: EndpointKind,
    pub(super) index: u16,
}

impl ContextSlot {
    /// Opens percale's endpoint.
    ///
    /// # Errors
    /// Returns the positive error code if the scalable endpoint cannot be opened. The inner result contains percale's
    /// error.
    pub(super) fn open(&self, builder: EndpointBuilder<'_>, locked: bool) -> Result<Result<Port, BindError>, i32> {
        let whole = self.whole.percale()?;
        let sends = self.half == EndpointKind::Transmit;
        Ok(if locked {
            let opened = match sends {
                true => whole.open_sender_shared(self.index, builder),
                false => whole.open_shared(self.index, builder),
            };
            opened.map(Port::of_all)
        } else {
            let opened = match sends {
                true => whole.open_sender(self.index, builder),
                false => whole.open(self.index, builder),
            };
            // SAFETY: the client serializes all use of the context and of the objects that drive it (see `drivers`).
            opened.map(|endpoint| unsafe { Port::owned(endpoint) })
        })
    }
}

/// The part of a scalable endpoint that its contexts share.
pub(super) struct ScalableParts {
    pub(super) domain: Arc<domain::DomainShared>,
    pub(super) authorization: Option<Vec<u8>>,
    /// The numbers of transmit and receive contexts.
    pub(super) counts: [u16; 2],
    pub(super) state: Mutex<ScalableState>,
}

pub(super) struct ScalableState {
    pub(super) source: Option<SocketAddr>,
    pub(super) vector: Option<Arc<vector::VectorShared>>,
    pub(super) percale: Option<ScalableEndpoint>,
}

impl ScalableParts {
    pub(super) fn state(&self) -> MutexGuard<'_, ScalableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bound address vector.
    pub(super) fn vector(&self) -> Result<Arc<vector::VectorShared>, i32> {
        self.state().vector.clone().ok_or_else(|| {
            log::warning!(FI_LOG_EP_CTRL, "fi_enable: a scalable endpoint needs an address vector; bind one");
            FI_ENOAV
        })
    }

    /// Returns percale's scalable endpoint, and opens it at its address first if necessary.
    pub(super) fn percale(&self) -> Result<ScalableEndpoint, i32> {
        let mut state = self.state();
        if let Some(percale) = &state.percale {
            return Ok(percale.clone());
        }
        let source = state.source.unwrap_or_else(|| self.domain.wildcard());
        let [transmit, receive] = self.counts;
        let builder = self.domain.percale.scalable_endpoint();
        let mut builder = builder.contexts(receive).senders(transmit);
        if let Some(key) = &self.authorization {
            builder = builder.authorization_key(key.clone());
        }
        let percale = builder.bind(source.to_string()).map_err(|error| {
            log::warning!(FI_LOG_EP_CTRL, "fi_enable: {error}");
            error.errno()
        })?;
        Ok(state.percale.insert(percale).clone())
    }

    /// Binds the address (fi_enable(3)).
    pub(super) fn enable(&self) -> Result<(), i32> {
        self.vector()?;
        self.percale().map(drop)
    }
}
