//! Capabilities: which there are, what they are called, and which an answer has (fi_getinfo(3)).

use crate::abi::*;

/// What an application asks for explicitly, and gets only then.
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
/// What costs nothing, so that every answer has it. Both kinds of peers also where the transport is pinned to one: a client that
/// looks for both would not see us, and what the pinned transport cannot reach fails with that reason.
const FREE: u64 = DOMAIN | FI_FENCE | FI_MULTI_RECV;

/// Of domains.
pub(super) const DOMAIN: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SHARED_AV;
/// Of the transmitting side.
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
/// Of the receiving side.
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

/// What an endpoint of a type can do, for clients of an interface version: to those of 2.x `FI_XPU` means something else, which is not here.
pub(super) const fn offered(kind: u32, api: u32) -> u64 {
    let both =
        FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | MESSAGES | ACCESSES | FREE | FI_RMA_EVENT | FI_HMEM | FI_TRIGGER;
    let both = if api < fi_version(2, 0) { both | FI_XPU } else { both };
    // A connected endpoint has one peer: there is nobody to tell from others.
    if kind == FI_EP_RDM { both | FI_SOURCE | FI_DIRECTED_RECV | FI_NAMED_RX_CTX | FI_COLLECTIVE } else { both }
}

/// What an endpoint has whose application asked for `asked`.
pub(super) const fn granted(offered: u64, asked: u64) -> u64 {
    // FI_HMEM is for who names the kinds of memory that it registers (fi_mr(3)), FI_XPU for who has devices set operations off.
    if asked == 0 { offered & !(FI_HMEM | FI_XPU) } else { implied(asked) | FREE & offered }
}

/// Directions are all meant if none is named.
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

    /// What this side of an endpoint with `whole` has, of which `asked` was asked for this side; or what cannot be.
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

/// Capabilities as people write them.
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

/// The names of bits; what has none as a number.
pub(super) fn bits(value: u64, names: &[(u64, &str)]) -> String {
    let known: Vec<String> = names.iter().filter(|(bit, _)| value & bit != 0).map(|(_, name)| (*name).into()).collect();
    let rest = names.iter().fold(value, |rest, (bit, _)| rest & !bit);
    let rest = (rest != 0 || known.is_empty()).then(|| format!("{rest:#x}"));
    known.into_iter().chain(rest).collect::<Vec<_>>().join(" | ")
}
