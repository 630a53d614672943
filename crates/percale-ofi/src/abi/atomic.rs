//! Atomic operations on remote memory.

use std::ffi::{c_int, c_void};

use super::{fi_addr_t, fi_ioc, fi_rma_ioc, fid_ep};

structures! { STRUCTURES;
    /// The limits of an atomic operation.
    fi_atomic_attr {
        /// The maximum number of elements.
        count: usize,
        /// The size of an element in bytes.
        size: usize,
    }

    /// An atomic operation.
    fi_msg_atomic {
        /// The operands.
        msg_iov: *const fi_ioc,
        /// Local descriptors, or null.
        desc: *mut *mut c_void,
        /// The number of pieces.
        iov_count: usize,
        /// The peer.
        addr: fi_addr_t,
        /// The remote memory.
        rma_iov: *const fi_rma_ioc,
        /// The number of pieces.
        rma_iov_count: usize,
        /// The data type of the elements (`FI_INT8`, ...).
        datatype: u32,
        /// The operation (`FI_MIN`, ...).
        op: u32,
        /// The context of the operation.
        context: *mut c_void,
        /// Remote completion data.
        data: u64,
    }

    /// The result buffers of a fetching operation in deferred work.
    fi_msg_fetch {
        /// The memory.
        msg_iov: *mut fi_ioc,
        /// Local descriptors, or null.
        desc: *mut *mut c_void,
        /// The number of pieces.
        iov_count: usize,
    }

    /// The comparison operands of a comparing operation in deferred work.
    fi_msg_compare {
        /// The memory.
        msg_iov: *const fi_ioc,
        /// Local descriptors, or null.
        desc: *mut *mut c_void,
        /// The number of pieces.
        iov_count: usize,
    }
}

tables! { TABLES;
    /// Atomic operations.
    fi_ops_atomic {
        /// Changes remote memory.
        write(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, dest_addr: fi_addr_t, addr: u64, key: u64,
            datatype: u32, op: u32, context: *mut c_void,
        ) -> isize;
        /// Like `write`, from several pieces.
        writev(
            ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t, addr: u64,
            key: u64, datatype: u32, op: u32, context: *mut c_void,
        ) -> isize;
        /// Like `writev`, with a message structure and flags.
        writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize;
        /// Like `write`, without a completion.
        inject(
            ep: *mut fid_ep, buf: *const c_void, count: usize, dest_addr: fi_addr_t, addr: u64, key: u64, datatype: u32,
            op: u32,
        ) -> isize;
        /// Changes remote memory and fetches the previous contents.
        readwrite(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, dest_addr: fi_addr_t, addr: u64, key: u64, datatype: u32, op: u32,
            context: *mut c_void,
        ) -> isize;
        /// Like `readwrite`, with several pieces.
        readwritev(
            ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize, resultv: *mut fi_ioc,
            result_desc: *mut *mut c_void, result_count: usize, dest_addr: fi_addr_t, addr: u64, key: u64, datatype: u32,
            op: u32, context: *mut c_void,
        ) -> isize;
        /// Like `readwritev`, with a message structure and flags.
        readwritemsg(
            ep: *mut fid_ep, msg: *const fi_msg_atomic, resultv: *mut fi_ioc, result_desc: *mut *mut c_void,
            result_count: usize, flags: u64,
        ) -> isize;
        /// Changes remote memory if a comparison holds, and fetches the previous contents.
        compwrite(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, compare: *const c_void,
            compare_desc: *mut c_void, result: *mut c_void, result_desc: *mut c_void, dest_addr: fi_addr_t, addr: u64,
            key: u64, datatype: u32, op: u32, context: *mut c_void,
        ) -> isize;
        /// Like `compwrite`, with several pieces.
        compwritev(
            ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize, comparev: *const fi_ioc,
            compare_desc: *mut *mut c_void, compare_count: usize, resultv: *mut fi_ioc, result_desc: *mut *mut c_void,
            result_count: usize, dest_addr: fi_addr_t, addr: u64, key: u64, datatype: u32, op: u32, context: *mut c_void,
        ) -> isize;
        /// Like `compwritev`, with a message structure and flags.
        compwritemsg(
            ep: *mut fid_ep, msg: *const fi_msg_atomic, comparev: *const fi_ioc, compare_desc: *mut *mut c_void,
            compare_count: usize, resultv: *mut fi_ioc, result_desc: *mut *mut c_void, result_count: usize, flags: u64,
        ) -> isize;
        /// Returns whether `write` supports an operation, and its maximum number of elements.
        writevalid(ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int;
        /// Returns whether `readwrite` supports an operation.
        readwritevalid(ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int;
        /// Returns whether `compwrite` supports an operation.
        compwritevalid(ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int;
    }
}

constants! { CONSTANTS: u32;
    FI_INT8 = 0, "8 bits, signed.";
    FI_UINT8 = 1, "8 bits, unsigned.";
    FI_INT16 = 2, "16 bits, signed.";
    FI_UINT16 = 3, "16 bits, unsigned.";
    FI_INT32 = 4, "32 bits, signed.";
    FI_UINT32 = 5, "32 bits, unsigned.";
    FI_INT64 = 6, "64 bits, signed.";
    FI_UINT64 = 7, "64 bits, unsigned.";
    FI_FLOAT = 8, "32-bit floating point.";
    FI_DOUBLE = 9, "64-bit floating point.";
    FI_FLOAT_COMPLEX = 10, "Complex number of two 32-bit floating-point numbers.";
    FI_DOUBLE_COMPLEX = 11, "Complex number of two 64-bit floating-point numbers.";
    FI_LONG_DOUBLE = 12, "C's long double.";
    FI_LONG_DOUBLE_COMPLEX = 13, "Complex number of two C long doubles.";
    FI_INT128 = 14, "128 bits, signed.";
    FI_UINT128 = 15, "128 bits, unsigned.";
    FI_FLOAT16 = 16, "16-bit floating point (2.x).";
    FI_BFLOAT16 = 17, "Brain floating point (2.x).";
    FI_FLOAT8_E4M3 = 18, "8-bit floating point, 3 bits of fraction (2.x).";
    FI_FLOAT8_E5M2 = 19, "8-bit floating point, 2 bits of fraction (2.x).";
    FI_DATATYPE_LAST = 14, "The end of the list of types in 1.x headers.";
    FI_VOID = 256, "No type; collectives only.";
    FI_MIN = 0, "Minimum.";
    FI_MAX = 1, "Maximum.";
    FI_SUM = 2, "Sum.";
    FI_PROD = 3, "Product.";
    FI_LOR = 4, "Logical or.";
    FI_LAND = 5, "Logical and.";
    FI_BOR = 6, "Bitwise or.";
    FI_BAND = 7, "Bitwise and.";
    FI_LXOR = 8, "Logical exclusive or.";
    FI_BXOR = 9, "Bitwise exclusive or.";
    FI_ATOMIC_READ = 10, "Read.";
    FI_ATOMIC_WRITE = 11, "Write.";
    FI_CSWAP = 12, "Swap if equal.";
    FI_CSWAP_NE = 13, "Swap if not equal.";
    FI_CSWAP_LE = 14, "Swap if the comparand is less or equal.";
    FI_CSWAP_LT = 15, "Swap if the comparand is less.";
    FI_CSWAP_GE = 16, "Swap if the comparand is greater or equal.";
    FI_CSWAP_GT = 17, "Swap if the comparand is greater.";
    FI_MSWAP = 18, "Swap the bits that are set in a mask.";
    FI_DIFF = 19, "Difference (2.x).";
    FI_ATOMIC_OP_LAST = 19, "The end of the list of operations in 1.x headers.";
    FI_NOOP = 256, "No operation; collectives only.";
}
