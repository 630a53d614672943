//! Opens the subjects of measurements in both processes. These are [`percale`]'s messages and [`one_sided`] operations,
//! which use a [`node`] and memory in [`block`]s, and the plain programs that measure the machine's
//! [`limits`](crate::limits).

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use self::node::Node;
use self::one_sided::OneSided;
use self::percale::Percale;
use crate::failure::{Failure, Result};
use crate::limits::access::Access;
use crate::limits::copy::CopyLimit;
use crate::limits::ring::LimitRing;
use crate::limits::shared::{LimitSide, Shared};
use crate::limits::sockets::Sockets;
use crate::limits::twice::Twice;
use crate::subject::{DynSubject, Runner, SubjectKind};

mod block;
mod node;
mod one_sided;
mod percale;

/// The machines of the two sides.
pub(crate) enum MachinePlacement {
    /// One machine, with the memory of the programs for the limits.
    Local(OwnedFd),
    /// Two machines. The address is that of this machine as the other side sees it, without a port. The key is the
    /// authorization key, if there is one.
    Remote(SocketAddr, Option<Vec<u8>>),
}

impl MachinePlacement {
    /// Returns the authorization key, if there is one.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Local(_) => None,
            Self::Remote(_, key) => key.as_deref(),
        }
    }

    fn shared(&self) -> Result<Shared> {
        match self {
            Self::Local(memory) => Shared::map(memory),
            Self::Remote(..) => Err(Failure::Protocol("limits can be measured only on one machine".into())),
        }
    }
}

/// Opens a subject in the answering process. `address` is the address of the other side. Returns the address of this
/// side.
pub(crate) fn open_far(
    kind: SubjectKind,
    address: Option<&str>,
    place: &MachinePlacement,
) -> Result<(Box<dyn DynSubject>, Option<String>)> {
    Ok(match kind {
        SubjectKind::Ring => (Box::new(Runner::new(LimitRing::new(place.shared()?, LimitSide::Far))), None),
        SubjectKind::Copy => (Box::new(CopyLimit::new(place.shared()?, LimitSide::Far)), None),
        SubjectKind::Access(means) => (Box::new(Runner::new(Access::far(means, place.shared()?))), None),
        SubjectKind::Twice => (Box::new(Runner::new(Twice::new(place.shared()?, LimitSide::Far))), None),
        SubjectKind::Sockets => {
            let (sockets, address) = Sockets::listening()?;
            (Box::new(Runner::new(sockets)), Some(address))
        }
        SubjectKind::Percale(transport) => {
            let node = Node::open_far(transport, true, place, address)?;
            let here = node.address();
            (Box::new(Runner::new(Percale::new(node)?)), Some(here))
        }
        SubjectKind::OneSided(_) | SubjectKind::Bounced => {
            let node = Node::open_far(kind.transport(), kind != SubjectKind::Bounced, place, address)?;
            let here = node.address();
            (Box::new(Runner::new(OneSided::new(node)?)), Some(here))
        }
    })
}

/// Opens a subject in the measuring process. `exchange` is called with the address of this side. It opens the subject
/// in the other process and returns the address of that side.
pub(crate) fn open_near(
    kind: SubjectKind,
    place: &MachinePlacement,
    mut exchange: impl FnMut(Option<String>) -> Result<Option<String>>,
) -> Result<Box<dyn DynSubject>> {
    Ok(match kind {
        SubjectKind::Ring => {
            exchange(None)?;
            Box::new(Runner::new(LimitRing::new(place.shared()?, LimitSide::Near)))
        }
        SubjectKind::Copy => {
            exchange(None)?;
            Box::new(CopyLimit::new(place.shared()?, LimitSide::Near))
        }
        SubjectKind::Access(means) => {
            exchange(None)?;
            Box::new(Runner::new(Access::near(means, place.shared()?)?))
        }
        SubjectKind::Twice => {
            exchange(None)?;
            Box::new(Runner::new(Twice::new(place.shared()?, LimitSide::Near)))
        }
        SubjectKind::Sockets => {
            let address = exchange(None)?.ok_or_else(|| Failure::Protocol("no address".into()))?;
            Box::new(Runner::new(Sockets::connected(&address)?))
        }
        SubjectKind::Percale(transport) => {
            Box::new(Runner::new(Percale::new(Node::open_near(transport, true, place, exchange)?)?))
        }
        SubjectKind::OneSided(_) | SubjectKind::Bounced => {
            let node = Node::open_near(kind.transport(), kind != SubjectKind::Bounced, place, exchange)?;
            Box::new(Runner::new(OneSided::new(node)?))
        }
    })
}
