//! Capabilities: the supported ones, their names, and those of an answer (fi_getinfo(3)).

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
/// Directions of messages.
const MESSAGES: u64 = FI_SEND | FI_RECV;
/// Directions of access to memory.
const ACCESSES: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// Capabilities without costs, which every answer has. Both kinds of peers are among them also where the transport is pinned to one: a client that
/// requires both would not get an answer otherwise, and operations to peers that the pinned transport cannot reach fail with that reason.
const FREE: u64 = DOMAIN | FI_FENCE | FI_MULTI_RECV;

/// Capabilities of domains.
pub(super) const DOMAIN: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SHARED_AV;
/// Capabilities of the transmitting side.
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
/// Capabilities of the receiving side.
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

/// The capabilities of an endpoint of a type, for clients of an interface version: for those of 2.x `FI_XPU` has another meaning, which is not
/// supported.
pub(super) const fn offered(kind: u32, api: u32) -> u64 {
    let both =
        FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | MESSAGES | ACCESSES | FREE | FI_RMA_EVENT | FI_HMEM | FI_TRIGGER;
    let both = if api < fi_version(2, 0) { both | FI_XPU } else { both };
    // A connected endpoint has one peer, so there are no sources to distinguish.
    if kind == FI_EP_RDM { both | FI_SOURCE | FI_DIRECTED_RECV | FI_NAMED_RX_CTX | FI_COLLECTIVE } else { both }
}

/// The capabilities that an endpoint has if the application requested `asked`.
pub(super) const fn granted(offered: u64, asked: u64) -> u64 {
    // FI_HMEM is for applications that name the kind of memory that they register (fi_mr(3)), FI_XPU for those with operations that devices start.
    if asked == 0 { offered & !(FI_HMEM | FI_XPU) } else { implied(asked) | FREE & offered }
}

/// If no direction is named, all directions are meant.
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

    /// The capabilities of this side of an endpoint with `whole`, if `asked` was requested for this side; the error is
    /// the unsupported ones.
    pub(super) const fn granted(self, whole: u64, asked: u64) -> Result<u64, u64> {
        // Many programs copy an endpoint's capabilities to both sides.
        let own = asked & !((TRANSMIT | RECEIVE | DOMAIN) & !self.caps());
        let here = whole & self.caps();
        if own & !here != 0 {
            return Err(own & !here);
        }
        if own & PRIMARY == 0 { Ok(here) } else { Ok((implied(own) | FREE) & here) }
    }
}

/// The names of capabilities, for messages.
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

/// The names of bits; a bit without a name as a number.
pub(super) fn bits(value: u64, names: &[(u64, &str)]) -> String {
    let known: Vec<String> = names.iter().filter(|(bit, _)| value & bit != 0).map(|(_, name)| (*name).into()).collect();
    let rest = names.iter().fold(value, |rest, (bit, _)| rest & !bit);
    let rest = (rest != 0 || known.is_empty()).then(|| format!("{rest:#x}"));
    known.into_iter().chain(rest).collect::<Vec<_>>().join(" | ")
}
