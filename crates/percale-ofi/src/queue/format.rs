//! The formats of completion entries.

use std::ffi::c_void;

use percale::Entry;

use crate::abi::{
    FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_TAGGED, FI_CQ_FORMAT_UNSPEC, fi_addr_t,
    fi_cq_data_entry, fi_cq_entry, fi_cq_msg_entry, fi_cq_tagged_entry,
};
use crate::address::source;

/// The formats in increasing order of content: each contains all fields of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Context,
    Message,
    Data,
    Tagged,
}

impl Format {
    /// Converts an `FI_CQ_FORMAT_*` value. FI_CQ_FORMAT_UNSPEC selects the shortest format.
    pub(crate) const fn of(number: u32) -> Option<Self> {
        Some(match number {
            FI_CQ_FORMAT_UNSPEC | FI_CQ_FORMAT_CONTEXT => Self::Context,
            FI_CQ_FORMAT_MSG => Self::Message,
            FI_CQ_FORMAT_DATA => Self::Data,
            FI_CQ_FORMAT_TAGGED => Self::Tagged,
            _ => return None,
        })
    }

    /// Writes results in the client's format.
    ///
    /// # Safety
    /// `to` is writable for that many entries of this format. `sources` is null or writable for that many addresses.
    #[inline]
    pub(crate) unsafe fn write(self, entries: &[Entry], to: *mut c_void, sources: *mut fi_addr_t) {
        match self {
            // SAFETY: the caller upholds the same contract.
            Self::Tagged => unsafe { each(entries, to, tagged) },
            // SAFETY: the caller upholds the same contract.
            Self::Data => unsafe { each(entries, to, data) },
            // SAFETY: the caller upholds the same contract.
            Self::Message => unsafe { each(entries, to, message) },
            // SAFETY: the caller upholds the same contract.
            Self::Context => unsafe { each(entries, to, |entry| fi_cq_entry { op_context: pointer(entry.context) }) },
        }
        if !sources.is_null() {
            // SAFETY: the caller upholds the same contract.
            unsafe { each(entries, sources.cast(), source) };
        }
    }
}

/// Writes one value for each entry.
///
/// # Safety
/// `to` is writable for that many `T`.
#[inline]
unsafe fn each<T>(entries: &[Entry], to: *mut c_void, form: impl Fn(&Entry) -> T) {
    let to = to.cast::<T>();
    for (at, entry) in entries.iter().enumerate() {
        // SAFETY: the caller guarantees this.
        unsafe { to.add(at).write(form(entry)) };
    }
}

/// Converts a context or a buffer address back to the pointer that the client passed.
#[inline]
const fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

#[inline]
const fn message(entry: &Entry) -> fi_cq_msg_entry {
    fi_cq_msg_entry { op_context: pointer(entry.context), flags: entry.flags.bits(), len: entry.len as usize }
}

#[inline]
const fn data(entry: &Entry) -> fi_cq_data_entry {
    let fi_cq_msg_entry { op_context, flags, len } = message(entry);
    fi_cq_data_entry { op_context, flags, len, buf: pointer(entry.buffer), data: entry.data }
}

#[inline]
const fn tagged(entry: &Entry) -> fi_cq_tagged_entry {
    let fi_cq_data_entry { op_context, flags, len, buf, data } = data(entry);
    fi_cq_tagged_entry { op_context, flags, len, buf, data, tag: entry.tag }
}
