//! The constants of libibverbs' interface that percale uses.

use std::ffi::{c_int, c_uint};

/// Defines each constant, and the list of all constants with their C names, which the layout test compares.
macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident: $kind:ty = $value:expr, $c:literal;)*) => {
        $($(#[$doc])* pub(crate) const $name: $kind = $value;)*

        /// The C name and the value of every constant.
        #[cfg(test)]
        pub(crate) const ALL: &[(&str, i64)] = &[$(($c, $value as i64)),*];
    };
}

numbers! {
    /// The state of an active port.
    PORT_ACTIVE: c_int = 4, "IBV_PORT_ACTIVE";
    /// The link layer of a port with Ethernet.
    LINK_LAYER_ETHERNET: u8 = 2, "IBV_LINK_LAYER_ETHERNET";
    /// The largest MTU (4,096 bytes). The smallest MTU (256 bytes) is 1.
    MTU_4096: c_int = 5, "IBV_MTU_4096";
    /// The queue pair type of reliable connections.
    QPT_RC: c_int = 2, "IBV_QPT_RC";
    /// States of queue pairs.
    QPS_INIT: c_int = 1, "IBV_QPS_INIT";
    QPS_RTR: c_int = 2, "IBV_QPS_RTR";
    QPS_RTS: c_int = 3, "IBV_QPS_RTS";
    QPS_ERR: c_int = 6, "IBV_QPS_ERR";
    /// The attributes that a modification sets.
    QP_STATE: c_int = 1, "IBV_QP_STATE";
    QP_ACCESS_FLAGS: c_int = 1 << 3, "IBV_QP_ACCESS_FLAGS";
    QP_PKEY_INDEX: c_int = 1 << 4, "IBV_QP_PKEY_INDEX";
    QP_PORT: c_int = 1 << 5, "IBV_QP_PORT";
    QP_AV: c_int = 1 << 7, "IBV_QP_AV";
    QP_PATH_MTU: c_int = 1 << 8, "IBV_QP_PATH_MTU";
    QP_TIMEOUT: c_int = 1 << 9, "IBV_QP_TIMEOUT";
    QP_RETRY_CNT: c_int = 1 << 10, "IBV_QP_RETRY_CNT";
    QP_RNR_RETRY: c_int = 1 << 11, "IBV_QP_RNR_RETRY";
    QP_RQ_PSN: c_int = 1 << 12, "IBV_QP_RQ_PSN";
    QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13, "IBV_QP_MAX_QP_RD_ATOMIC";
    QP_MIN_RNR_TIMER: c_int = 1 << 15, "IBV_QP_MIN_RNR_TIMER";
    QP_SQ_PSN: c_int = 1 << 16, "IBV_QP_SQ_PSN";
    QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17, "IBV_QP_MAX_DEST_RD_ATOMIC";
    QP_DEST_QPN: c_int = 1 << 20, "IBV_QP_DEST_QPN";
    /// Rights of regions, windows and queue pairs.
    ACCESS_LOCAL_WRITE: c_int = 1, "IBV_ACCESS_LOCAL_WRITE";
    ACCESS_REMOTE_WRITE: c_int = 1 << 1, "IBV_ACCESS_REMOTE_WRITE";
    ACCESS_REMOTE_READ: c_int = 1 << 2, "IBV_ACCESS_REMOTE_READ";
    ACCESS_MW_BIND: c_int = 1 << 4, "IBV_ACCESS_MW_BIND";
    /// Kinds of windows.
    MW_TYPE_1: c_int = 1, "IBV_MW_TYPE_1";
    MW_TYPE_2: c_int = 2, "IBV_MW_TYPE_2";
    /// Capabilities of a device.
    DEVICE_MEM_WINDOW: c_uint = 1 << 17, "IBV_DEVICE_MEM_WINDOW";
    DEVICE_MEM_WINDOW_TYPE_2A: c_uint = 1 << 23, "IBV_DEVICE_MEM_WINDOW_TYPE_2A";
    DEVICE_MEM_WINDOW_TYPE_2B: c_uint = 1 << 24, "IBV_DEVICE_MEM_WINDOW_TYPE_2B";
    /// Kinds of requests.
    WR_RDMA_WRITE: c_int = 0, "IBV_WR_RDMA_WRITE";
    WR_SEND: c_int = 2, "IBV_WR_SEND";
    WR_SEND_WITH_IMM: c_int = 3, "IBV_WR_SEND_WITH_IMM";
    WR_RDMA_READ: c_int = 4, "IBV_WR_RDMA_READ";
    WR_LOCAL_INV: c_int = 7, "IBV_WR_LOCAL_INV";
    WR_BIND_MW: c_int = 8, "IBV_WR_BIND_MW";
    /// Flags of a request.
    SEND_FENCE: c_int = 1, "IBV_SEND_FENCE";
    SEND_SIGNALED: c_int = 1 << 1, "IBV_SEND_SIGNALED";
    SEND_INLINE: c_int = 1 << 3, "IBV_SEND_INLINE";
    /// Completion statuses.
    WC_WR_FLUSH_ERR: c_int = 5, "IBV_WC_WR_FLUSH_ERR";
    WC_REM_INV_REQ_ERR: c_int = 9, "IBV_WC_REM_INV_REQ_ERR";
    WC_REM_ACCESS_ERR: c_int = 10, "IBV_WC_REM_ACCESS_ERR";
    WC_REM_OP_ERR: c_int = 11, "IBV_WC_REM_OP_ERR";
    WC_RETRY_EXC_ERR: c_int = 12, "IBV_WC_RETRY_EXC_ERR";
    WC_RNR_RETRY_EXC_ERR: c_int = 13, "IBV_WC_RNR_RETRY_EXC_ERR";
    /// A bit that is set in the opcode of all receive completions.
    WC_RECV: c_int = 1 << 7, "IBV_WC_RECV";
    /// Flags of a completion.
    WC_WITH_IMM: c_int = 1 << 1, "IBV_WC_WITH_IMM";
    WC_WITH_INV: c_int = 1 << 3, "IBV_WC_WITH_INV";
    /// Asynchronous events of a device.
    EVENT_CQ_ERR: c_int = 0, "IBV_EVENT_CQ_ERR";
    EVENT_DEVICE_FATAL: c_int = 8, "IBV_EVENT_DEVICE_FATAL";
}
