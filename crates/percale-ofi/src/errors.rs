//! Conversion of failed operations to the error entries of fi_cq_readerr(3).

use std::ffi::{CStr, c_char, c_int, c_void};

use percale::{ErrorCode, ErrorEntry};

use crate::abi::{FI_LOG_CQ, fi_cq_err_entry};
use crate::address::source;
use crate::log;

/// The first version of the interface in which an error entry has a field for the source address.
const WITH_SOURCE: u32 = (1 << 16) | 20;
/// The first version in which the client may pass a buffer, with its size, for error data.
pub(crate) const WITH_DATA_SIZE: u32 = (1 << 16) | 5;

/// All error codes with their texts. The number of a code is its position, counted from 1.
const ALL: [(ErrorCode, &CStr); 18] = [
    (ErrorCode::Truncated, c"the message was longer than the buffer that it was received into"),
    (ErrorCode::Canceled, c"the operation was cancelled"),
    (ErrorCode::NoMessage, c"no matching message has arrived"),
    (ErrorCode::PeerDied, c"the peer process exited or its connection was lost"),
    (ErrorCode::Closed, c"the peer closed the connection"),
    (ErrorCode::NotConnected, c"the peer is not connected"),
    (ErrorCode::Refused, c"the connection was refused"),
    (ErrorCode::Unreachable, c"no route to the peer"),
    (ErrorCode::TimedOut, c"the peer did not answer in time"),
    (ErrorCode::Protocol, c"the peer violated the protocol"),
    (ErrorCode::Fault, c"the operation's memory cannot be read or written"),
    (ErrorCode::Denied, c"the access is not allowed"),
    (ErrorCode::Misaligned, c"the target of an atomic operation is not aligned to its size"),
    (ErrorCode::KeyRejected, c"the peer rejected the key"),
    (ErrorCode::UnknownAddress, c"the address is not in the address vector"),
    (ErrorCode::NoMemory, c"out of memory"),
    (ErrorCode::NoDescriptors, c"no file descriptors left"),
    (ErrorCode::Io, c"input/output error"),
];

/// Returns the number of an error code for clients.
pub(crate) fn number(code: ErrorCode) -> c_int {
    ALL.iter().position(|(other, _)| *other == code).map_or(0, |at| at as c_int + 1)
}

/// Returns the text for an error number.
pub(crate) fn text(number: c_int) -> &'static CStr {
    let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    at.and_then(|at| ALL.get(at)).map_or(c"unknown error", |(_, text)| *text)
}

/// Copies a text, cut to the size of the buffer.
///
/// # Safety
/// `to` is null or writable for `room` bytes.
pub(crate) unsafe fn copy(text: &CStr, to: *mut c_char, room: usize) {
    if to.is_null() || room == 0 {
        return;
    }
    let bytes = text.to_bytes();
    let count = bytes.len().min(room - 1);
    // SAFETY: the caller guarantees this.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), count) };
    // SAFETY: `count` is less than `room`.
    unsafe { to.add(count).write(0) };
}

/// Writes an error entry in the layout of the client's version of the interface.
///
/// # Safety
/// `to` is readable and writable for the size of an error entry in that version.
pub(crate) unsafe fn write(error: &ErrorEntry, to: *mut fi_cq_err_entry, api_version: u32) {
    log::note!(FI_LOG_CQ, "an operation failed: {error}");
    let entry = &error.entry;
    let pointer = |address: u64| -> *mut c_void { std::ptr::with_exposed_provenance_mut(address as usize) };
    macro_rules! put {
        ($($field:ident: $value:expr),+ $(,)?) => {
            // SAFETY: the caller guarantees this, and every version has these fields.
            $(unsafe { (&raw mut (*to).$field).write($value) };)+
        };
    }
    put! {
        op_context: pointer(entry.context),
        flags: entry.flags.bits(),
        len: entry.len as usize,
        buf: pointer(entry.buffer),
        data: entry.data,
        tag: entry.tag,
        olen: error.overflow as usize,
        err: error.errno(),
        prov_errno: number(error.error),
    }
    // Error entries have no data beyond these fields. The client's buffer is not changed, and its size is set to 0.
    if api_version >= WITH_DATA_SIZE {
        put! { err_data_size: 0 }
    } else {
        put! { err_data: std::ptr::null_mut() }
    }
    if api_version >= WITH_SOURCE {
        put! { src_addr: source(entry) }
    }
}

#[cfg(test)]
mod tests {
    use percale::{Entry, PeerAddress};

    use super::*;
    use crate::abi::fi_version;

    /// Fields that the client's version does not have are beyond the end of its entry.
    #[test]
    fn error_entries_end_where_the_clients_version_ends() {
        let error = ErrorEntry::new(Entry { source: PeerAddress(5), ..Entry::default() }, ErrorCode::Canceled);
        for (version, has_data_size, has_source) in [
            (fi_version(1, 0), false, false),
            (fi_version(1, 4), false, false),
            (fi_version(1, 5), true, false),
            (fi_version(1, 17), true, false),
            (fi_version(1, 19), true, false),
            (fi_version(1, 20), true, true),
            (fi_version(2, 0), true, true),
        ] {
            let mut buffer = [0_u8; 8];
            let (err_data, err_data_size) = (buffer.as_mut_ptr().cast(), buffer.len());
            let mut entry = fi_cq_err_entry { err_data, err_data_size, src_addr: 77, ..fi_cq_err_entry::ZERO };
            // SAFETY: the entry has the size of the last version.
            unsafe { write(&error, &raw mut entry, version) };
            assert_eq!(entry.err, libc::ECANCELED, "{version:#x}");
            assert_eq!(entry.err_data.is_null(), !has_data_size, "{version:#x}");
            assert_eq!(entry.err_data_size, if has_data_size { 0 } else { buffer.len() }, "{version:#x}");
            assert_eq!(entry.src_addr, if has_source { 5 } else { 77 }, "{version:#x}");
        }
    }

    #[test]
    fn every_error_code_has_a_text() {
        for (at, (code, words)) in ALL.iter().enumerate() {
            assert_eq!(number(*code), at as c_int + 1);
            assert_eq!(text(number(*code)), *words);
            assert_eq!(words.to_str().unwrap(), code.to_string());
        }
        assert!(text(0).to_str().unwrap().contains("unknown error"));
    }
}
