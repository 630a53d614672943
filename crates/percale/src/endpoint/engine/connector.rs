//! The source of an endpoint's connections.

use std::sync::Arc;

use crate::transport::connect::{EndpointRegistration, Mailbox};
use crate::transport::tcp::TcpOptions;

/// The source of an endpoint's connections.
#[derive(Debug)]
pub(crate) enum Connector {
    /// The domain's service thread.
    Service {
        /// The registration of the endpoint with the service thread.
        registration: EndpointRegistration,
        /// Where the service thread leaves notices.
        mailbox: Arc<Mailbox>,
        /// The options of sockets.
        tcp: TcpOptions,
        /// Whether the endpoint makes no connections itself. Peers that are not connected then cannot be reached.
        answer_only: bool,
    },
    /// A simulated network.
    Sim(crate::transport::sim::SimPort),
    /// No source, because the endpoint is closed.
    Closed,
}

impl Connector {
    #[inline]
    pub(super) fn has_notices(&self) -> bool {
        match self {
            Self::Service { mailbox, .. } => mailbox.has_notices(),
            Self::Sim(port) => port.has_notices(),
            Self::Closed => false,
        }
    }
}
