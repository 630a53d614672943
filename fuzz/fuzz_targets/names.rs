//! Parses arbitrary values that a peer may send to an application: descriptions of memory, parts of them, raw keys, and
//! numbers of groups, operations and types.
#![no_main]

use std::sync::OnceLock;

use percale::memory::region::{RAW_KEY_BYTES, RemoteMemory};
use percale::{AtomicOp, Datatype, Domain, Info};

fn domain() -> &'static Domain {
    static DOMAIN: OnceLock<Domain> = OnceLock::new();
    DOMAIN.get_or_init(|| Info::discover().expect("a machine").domain().open().expect("a domain"))
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(name) = RemoteMemory::from_bytes(bytes) {
        assert_eq!(name.to_bytes(), bytes, "a name is read as it was written");
    }
    let (name, range) = bytes.split_at(bytes.len().min(RemoteMemory::BYTES));
    if let (Ok(name), Some((start, rest))) = (RemoteMemory::from_bytes(name), range.split_first_chunk())
        && let Some((end, _)) = rest.split_first_chunk()
    {
        let (start, end) = (u64::from_le_bytes(*start), u64::from_le_bytes(*end));
        let fits = start <= end && end <= name.len;
        assert_eq!(name.slice(start..end).is_ok(), fits, "{start}..{end} of {name:?}");
    }
    let mapped = domain().map_raw(bytes);
    assert_eq!(mapped.is_ok(), matches!(bytes.len(), 8 | RAW_KEY_BYTES));
    for byte in bytes {
        let (op, datatype) = (AtomicOp::from_u8(*byte), Datatype::from_u8(*byte));
        assert!(op.is_none_or(|op| op as u8 == *byte) && datatype.is_none_or(|datatype| datatype as u8 == *byte));
    }
});
