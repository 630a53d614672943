//! The function tables of endpoints, and of contexts that only send or only receive (fi_endpoint(3), scalable
//! endpoints).

use super::context_slot::EndpointKind;
use super::{atomic, described, message, rma, tagged};
use crate::abi::{fi_ops_atomic, fi_ops_msg, fi_ops_rma, fi_ops_tagged};

/// The function tables of an object.
pub(super) struct Tables {
    pub(super) messages: &'static fi_ops_msg,
    pub(super) tagged: &'static fi_ops_tagged,
    pub(super) rma: &'static fi_ops_rma,
    pub(super) atomic: &'static fi_ops_atomic,
}

/// Builds the tables of each half from those of complete endpoints.
macro_rules! tables {
    ($name:ident: $messages:expr, $tagged:expr, $rma:expr, $atomic:expr) => {
        mod $name {
            use super::*;

            const MESSAGES: fi_ops_msg = $messages;
            const TAGGED: fi_ops_tagged = $tagged;
            static ALL_MESSAGES: fi_ops_msg = MESSAGES;
            static SENDS: fi_ops_msg = fi_ops_msg {
                recv: fi_ops_msg::REFUSING.recv,
                recvv: fi_ops_msg::REFUSING.recvv,
                recvmsg: fi_ops_msg::REFUSING.recvmsg,
                ..MESSAGES
            };
            static RECEIVES: fi_ops_msg = fi_ops_msg {
                recv: MESSAGES.recv,
                recvv: MESSAGES.recvv,
                recvmsg: MESSAGES.recvmsg,
                ..fi_ops_msg::REFUSING
            };
            static ALL_TAGGED: fi_ops_tagged = TAGGED;
            static TAGGED_SENDS: fi_ops_tagged = fi_ops_tagged {
                recv: fi_ops_tagged::REFUSING.recv,
                recvv: fi_ops_tagged::REFUSING.recvv,
                recvmsg: fi_ops_tagged::REFUSING.recvmsg,
                ..TAGGED
            };
            static TAGGED_RECEIVES: fi_ops_tagged = fi_ops_tagged {
                recv: TAGGED.recv,
                recvv: TAGGED.recvv,
                recvmsg: TAGGED.recvmsg,
                ..fi_ops_tagged::REFUSING
            };
            static RMA: fi_ops_rma = $rma;
            static NO_RMA: fi_ops_rma = fi_ops_rma::REFUSING;
            static ATOMIC: fi_ops_atomic = $atomic;
            static NO_ATOMIC: fi_ops_atomic = fi_ops_atomic::REFUSING;

            pub(super) const fn of(half: EndpointKind) -> Tables {
                match half {
                    EndpointKind::Both => {
                        Tables { messages: &ALL_MESSAGES, tagged: &ALL_TAGGED, rma: &RMA, atomic: &ATOMIC }
                    }
                    EndpointKind::Transmit => {
                        Tables { messages: &SENDS, tagged: &TAGGED_SENDS, rma: &RMA, atomic: &ATOMIC }
                    }
                    EndpointKind::Receive => {
                        Tables { messages: &RECEIVES, tagged: &TAGGED_RECEIVES, rma: &NO_RMA, atomic: &NO_ATOMIC }
                    }
                }
            }
        }
    };
}

tables!(plain: message::TABLE, tagged::TABLE, rma::TABLE, atomic::TABLE);
tables!(looked_at: described::MESSAGES, described::TAGGED, described::RMA, described::ATOMIC);

/// Returns the tables of an object. With `local`, its operations check descriptors (FI_MR_LOCAL).
pub(super) const fn tables(half: EndpointKind, local: bool) -> Tables {
    if local { looked_at::of(half) } else { plain::of(half) }
}
