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
    use std::mem::offset_of;

    use percale::{Entry, PeerAddress};

    use super::*;
    use crate::abi::fi_version;

    /// The content of the fields and bytes that are not written.
    const UNTOUCHED: u64 = 0x5A5A_5A5A_5A5A_5A5A;

    /// The memory of a program of an older version ends before the fields that were added later.
    #[test]
    fn error_entry_ends_where_it_ends_in_the_version_of_the_program() {
        const WORDS: usize = size_of::<fi_cq_err_entry>() / 8;
        let [data, size, source] = [
            offset_of!(fi_cq_err_entry, err_data),
            offset_of!(fi_cq_err_entry, err_data_size),
            offset_of!(fi_cq_err_entry, src_addr),
        ]
        .map(|offset| offset / 8);
        let entry = Entry { context: 7, tag: 9, source: PeerAddress(3), ..Entry::default() };
        let error = ErrorEntry::truncated(entry, 5);
        for (minor, end) in [(0, size), (4, size), (5, source), (17, source), (19, source), (20, WORDS), (21, WORDS)] {
            let mut words = [UNTOUCHED; WORDS];
            // SAFETY: the words have the size and alignment of the entry of the newest version.
            unsafe { write(&error, words.as_mut_ptr().cast(), fi_version(1, minor)) };
            let at = |word: usize| words[word];
            assert_eq!(at(offset_of!(fi_cq_err_entry, op_context) / 8), 7, "1.{minor}");
            assert_eq!(at(offset_of!(fi_cq_err_entry, tag) / 8), 9, "1.{minor}");
            assert_eq!(at(offset_of!(fi_cq_err_entry, olen) / 8), 5, "1.{minor}");
            assert!(words[end..].iter().all(|word| *word == UNTOUCHED), "1.{minor}: written behind the entry");
            if end == size {
                assert_eq!(at(data), 0, "1.{minor}: a pointer to no error data");
                continue;
            }
            assert_eq!((at(data), at(size)), (UNTOUCHED, 0), "1.{minor}: no error data in the buffer of the program");
            if end == WORDS {
                assert_eq!(at(source), 3, "1.{minor}: the sender");
            }
        }
    }

    #[test]
    fn text_is_cut_to_the_buffer_and_terminated() {
        let words = text(1);
        let len = words.to_bytes_with_nul().len();
        for room in [0, 1, 8, len - 1, len, len + 1] {
            let mut buffer = vec![b'.'; len + 8];
            // SAFETY: the buffer is longer than `room`.
            unsafe { copy(words, buffer.as_mut_ptr().cast(), room) };
            let (inside, outside) = buffer.split_at(room.min(len));
            if let Some((last, start)) = inside.split_last() {
                assert_eq!((*last, start), (0, &words.to_bytes()[..start.len()]), "{room}");
            }
            assert!(outside.iter().all(|byte| *byte == b'.'), "{room}");
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
