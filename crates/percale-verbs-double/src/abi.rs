//! The structures and constants of libibverbs. They are percale's declarations, which a test compares with the C
//! headers.

#[allow(
    dead_code,
    unreachable_pub,
    clippy::all,
    reason = "percale-verbs uses definitions that this library does not need"
)]
#[path = "../../percale-verbs/src/abi/numbers.rs"]
mod numbers;
#[allow(
    dead_code,
    unreachable_pub,
    clippy::all,
    reason = "percale-verbs uses definitions that this library does not need"
)]
#[path = "../../percale-verbs/src/abi/types.rs"]
mod types;

use std::ffi::c_int;

pub(crate) use numbers::*;
pub(crate) use types::*;

// Constants that percale does not use.
pub(crate) const QPS_RESET: c_int = 0;
pub(crate) const WR_SEND_WITH_INV: c_int = 9;
pub(crate) const WC_LOC_LEN_ERR: c_int = 1;
pub(crate) const WC_LOC_QP_OP_ERR: c_int = 2;
pub(crate) const WC_LOC_PROT_ERR: c_int = 4;
pub(crate) const WC_MW_BIND_ERR: c_int = 6;
pub(crate) const EVENT_QP_FATAL: c_int = 1;
pub(crate) const EVENT_QP_ACCESS_ERR: c_int = 3;
pub(crate) const EVENT_PORT_ACTIVE: c_int = 9;
pub(crate) const EVENT_PORT_ERR: c_int = 10;
pub(crate) const EVENT_GID_CHANGE: c_int = 18;
/// The kinds of completions.
pub(crate) const WC_SEND: c_int = 0;
pub(crate) const WC_RDMA_WRITE: c_int = 1;
pub(crate) const WC_RDMA_READ: c_int = 2;
pub(crate) const WC_BIND_MW: c_int = 5;
pub(crate) const WC_LOCAL_INV: c_int = 6;
/// The state of a port that is down.
pub(crate) const PORT_DOWN: c_int = 1;
