//! The values of [`Completion::status`](crate::Completion::status), which describe why a request failed.

use super::abi;

/// The queue pair entered the error state before the request was executed.
pub const WR_FLUSH_ERR: i32 = abi::WC_WR_FLUSH_ERR;
/// The peer's device found the request invalid.
pub const REM_INV_REQ_ERR: i32 = abi::WC_REM_INV_REQ_ERR;
/// The peer's device refused the access because of its key, its range or its rights.
pub const REM_ACCESS_ERR: i32 = abi::WC_REM_ACCESS_ERR;
/// The peer's device could not execute the request.
pub const REM_OP_ERR: i32 = abi::WC_REM_OP_ERR;
/// The peer's device did not acknowledge the request.
pub const RETRY_EXC_ERR: i32 = abi::WC_RETRY_EXC_ERR;
/// The peer had no receive posted.
pub const RNR_RETRY_EXC_ERR: i32 = abi::WC_RNR_RETRY_EXC_ERR;
