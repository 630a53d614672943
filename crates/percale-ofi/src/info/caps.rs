//! Capabilities: those that are supported, their names, and those of a returned `fi_info` (fi_getinfo(3)).

use crate::abi::*;

/// Capabilities that an application gets only if it requests them explicitly.
const PRIMARY: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | FI_DIRECTED_RECV
    | FI_HMEM
    | FI_TRIGGER
    | FI_XPU
    | FI_NAMED_RX_CTX
    | FI_COLLECTIVE;
/// The directions of messages.
const MESSAGES: u64 = FI_SEND | FI_RECV;
/// The directions of memory access.
const ACCESSES: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// Capabilities without a cost, which every `fi_info` has. They include local and remote peers even if the transport is
/// restricted to one kind: a client that requires both would get no `fi_info` otherwise. An operation to a peer that
/// the selected transport cannot reach fails, and the error contains this reason.
const FREE: u64 = DOMAIN | FI_FENCE | FI_MULTI_RECV;

/// The capabilities of domains.
pub(super) const DOMAIN: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SHARED_AV;
/// The capabilities of the transmitting side.
const TRANSMIT: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | FI_SEND
    | FI_READ
    | FI_WRITE
    | FI_FENCE
    | FI_HMEM
    | FI_TRIGGER
    | FI_XPU
    | FI_NAMED_RX_CTX
    | FI_COLLECTIVE;
/// The capabilities of the receiving side.
const RECEIVE: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_DIRECTED_RECV
    | FI_MULTI_RECV
    | FI_SOURCE
    | FI_RMA_EVENT
    | FI_HMEM
    | FI_TRIGGER
    | FI_XPU
    | FI_COLLECTIVE;

/// Returns the capabilities of an endpoint of type `kind` for clients of interface version `api`. In versions 2.x
/// `FI_XPU` has another meaning, which is not supported.
pub(super) const fn offered(kind: u32, api: u32) -> u64 {
    let both =
        FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | MESSAGES | ACCESSES | FREE | FI_RMA_EVENT | FI_HMEM | FI_TRIGGER;
    let both = if api < fi_version(2, 0) { both | FI_XPU } else { both };
    // A connected endpoint has one peer, so there are no sources to distinguish.
    if kind == FI_EP_RDM { both | FI_SOURCE | FI_DIRECTED_RECV | FI_NAMED_RX_CTX | FI_COLLECTIVE } else { both }
}

/// Returns the capabilities of an endpoint for which the application requested `requested`.
pub(super) const fn granted(offered: u64, requested: u64) -> u64 {
    // FI_HMEM is for applications that name the kind of memory in registrations (fi_mr(3)). FI_XPU is for applications
    // with operations that devices start.
    if requested == 0 { offered & !(FI_HMEM | FI_XPU) } else { implied(requested) | FREE & offered }
}

/// Adds all directions if no direction is requested.
const fn implied(mut caps: u64) -> u64 {
    if caps & (FI_MSG | FI_TAGGED | FI_COLLECTIVE) != 0 && caps & MESSAGES == 0 {
        caps |= MESSAGES;
    }
    if caps & (FI_RMA | FI_ATOMIC) != 0 && caps & ACCESSES == 0 {
        caps |= ACCESSES;
    }
    caps
}

/// A side of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Transmit,
    Receive,
}

impl Side {
    const fn caps(self) -> u64 {
        match self {
            Self::Transmit => TRANSMIT,
            Self::Receive => RECEIVE,
        }
    }

    /// Returns the capabilities of this side of an endpoint with the capabilities `whole`, if `requested` was requested
    /// for this side. The error contains the unsupported capabilities.
    pub(super) const fn granted(self, whole: u64, requested: u64) -> Result<u64, u64> {
        // Many programs copy an endpoint's capabilities to both sides.
        let own = requested & !((TRANSMIT | RECEIVE | DOMAIN) & !self.caps());
        let here = whole & self.caps();
        if own & !here != 0 {
            return Err(own & !here);
        }
        if own & PRIMARY == 0 { Ok(here) } else { Ok((implied(own) | FREE) & here) }
    }
}

/// Returns the names of capabilities, for messages.
pub(super) fn names(caps: u64) -> String {
    macro_rules! table {
        ($($name:ident)+) => { [$(($name, stringify!($name))),+] };
    }
    let all = table! {
        FI_MSG FI_RMA FI_TAGGED FI_ATOMIC FI_MULTICAST FI_COLLECTIVE FI_READ FI_WRITE FI_RECV FI_SEND FI_REMOTE_READ FI_REMOTE_WRITE
        FI_MULTI_RECV FI_TRIGGER FI_FENCE FI_AV_USER_ID FI_PEER FI_XPU FI_TAGGED_DIRECTED_RECV FI_TAGGED_MULTI_RECV FI_HMEM
        FI_EXACT_DIRECTED_RECV FI_RMA_PMEM FI_SOURCE_ERR FI_LOCAL_COMM FI_REMOTE_COMM FI_SHARED_AV FI_RMA_EVENT FI_SOURCE
        FI_NAMED_RX_CTX FI_DIRECTED_RECV
    };
    bits(caps, &all)
}

/// Returns the names of bits. A bit without a name is shown as a number.
pub(super) fn bits(value: u64, names: &[(u64, &str)]) -> String {
    let known: Vec<String> = names.iter().filter(|(bit, _)| value & bit != 0).map(|(_, name)| (*name).into()).collect();
    let rest = names.iter().fold(value, |rest, (bit, _)| rest & !bit);
    let rest = (rest != 0 || known.is_empty()).then(|| format!("{rest:#x}"));
    known.into_iter().chain(rest).collect::<Vec<_>>().join(" | ")
}
