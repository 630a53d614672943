//! Opens the subjects of measurements in both processes. These are [`percale`]'s messages and [`one_sided`] operations
//! by the raw API, which use a [`node`] and memory in [`block`]s; the same by the [`safe`] API; and the plain programs
//! that measure the machine's [`limits`](crate::limits).

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use self::node::Node;
use self::one_sided::OneSided;
use self::percale::Percale;
use self::safe::messages::SafeMessages;
use self::safe::one_sided::SafeOneSided;
use crate::failure::{Failure, Result};
use crate::limits::access::Access;
use crate::limits::copy::CopyLimit;
use crate::limits::ring::LimitRing;
use crate::limits::shared::{LimitSide, Shared};
use crate::limits::sockets::Sockets;
use crate::limits::twice::Twice;
use crate::row::Api;
use crate::subject::{DynSubject, LenderRunner, Runner, SubjectKind};

mod block;
mod exposed;
mod node;
mod one_sided;
mod percale;
mod safe;

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
        SubjectKind::Percale(_, api) | SubjectKind::OneSided(_, api) | SubjectKind::Bounced(api) => {
            let node = Node::open_far(kind.transport(), copies_by_kernel(kind), place, address)?;
            let here = node.address();
            (open_percale(kind, api, node)?, Some(here))
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
        SubjectKind::Percale(_, api) | SubjectKind::OneSided(_, api) | SubjectKind::Bounced(api) => {
            let node = Node::open_near(kind.transport(), copies_by_kernel(kind), place, exchange)?;
            open_percale(kind, api, node)?
        }
    })
}

/// Returns whether the kernel may copy between the processes.
const fn copies_by_kernel(kind: SubjectKind) -> bool {
    !matches!(kind, SubjectKind::Bounced(_))
}

/// Opens a subject of percale on its endpoint.
fn open_percale(kind: SubjectKind, api: Api, node: Node) -> Result<Box<dyn DynSubject>> {
    Ok(match (kind, api) {
        (SubjectKind::Percale(..), Api::Safe) => Box::new(LenderRunner::new(SafeMessages::new(node))),
        (SubjectKind::Percale(..), Api::Raw) => Box::new(Runner::new(Percale::new(node)?)),
        (_, Api::Safe) => Box::new(LenderRunner::new(SafeOneSided::new(node)?)),
        (_, Api::Raw) => Box::new(Runner::new(OneSided::new(node)?)),
    })
}
