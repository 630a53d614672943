//! What a table refuses.

use std::os::fd::{AsFd, OwnedFd};

use super::*;
use crate::memory::forked::in_a_child;

/// `None`, with a word about it, where io_uring is forbidden.
fn table() -> Option<BufferTable> {
    match BufferTable::new(4) {
        Ok(table) => Some(table),
        Err(error) => {
            println!("skipped: io_uring with fixed buffers is not available ({error})");
            None
        }
    }
}

fn file(content: &[u8]) -> OwnedFd {
    let file = rustix::fs::memfd_create("percale-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(rustix::io::write(&file, content), Ok(content.len()));
    file
}

fn content(file: &OwnedFd) -> Vec<u8> {
    let mut bytes = [0; 64];
    let len = rustix::io::pread(file, &mut bytes, 0).unwrap();
    bytes[..len].to_vec()
}

fn range(bytes: &mut [u8]) -> Range {
    Range::new(bytes.as_mut_ptr().expose_provenance() as u64, bytes.len() as u64).unwrap()
}

fn code<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn an_offset_that_no_file_has_is_refused() {
    let Some(table) = table() else { return };
    let (file, mut bytes) = (file(b"as it was"), *b"not this");
    let pinned = table.pin(range(&mut bytes), Access::LOCAL_WRITE).ok();
    for slot in [None, pinned.map(|pinned| pinned.pin)] {
        for offset in [u64::MAX, u64::MAX - 1, 1 << 63] {
            for way in [Way::ToFile(offset), Way::FromFile(offset)] {
                // SAFETY: the bytes live until it returns.
                let moved = unsafe { table.transfer(slot, range(&mut bytes), way, file.as_fd()) };
                assert_eq!(code(moved), Some(libc::EINVAL), "{way:?}, slot {slot:?}");
            }
        }
    }
    assert_eq!((content(&file), bytes), (b"as it was".to_vec(), *b"not this"));
    // SAFETY: as above.
    let moved = unsafe { table.transfer(None, range(&mut bytes), Way::ToFile(2), file.as_fd()) };
    assert_eq!((moved.unwrap(), content(&file)), (8, b"asnot this".to_vec()));
}

#[test]
fn flt_010_a_forked_child_moves_and_pins_nothing_through_its_parents_table() {
    let Some(table) = table() else { return };
    let (file, mut bytes) = (file(b"the parent's"), [0_u8; 12]);
    let Ok(pinned) = table.pin(range(&mut bytes), Access::LOCAL_WRITE) else {
        return println!("skipped: no memory can be pinned");
    };
    // As if another thread of the parent were in the table.
    let locked = table.free();
    assert!(in_a_child(|| {
        let pins = code(table.pin(range(&mut bytes), Access::LOCAL_WRITE));
        table.unpin(pinned.pin);
        let moves = [None, Some(pinned.pin)].map(|slot| {
            // SAFETY: the bytes live until it returns.
            code(unsafe { table.transfer(slot, range(&mut bytes), Way::FromFile(0), file.as_fd()) })
        });
        let counts = (table.registered(), format!("{table:?}").len() > 10);
        let refused = Some(libc::ECHILD);
        (pins, moves, counts, bytes) == (refused, [refused; 2], (0, true), [0; 12])
    }));
    drop(locked);
    assert_eq!(table.registered(), 1);
    // SAFETY: as above.
    let moved = unsafe { table.transfer(Some(pinned.pin), range(&mut bytes), Way::FromFile(0), file.as_fd()) };
    assert_eq!((moved.unwrap(), &bytes), (12, b"the parent's"));
    table.unpin(pinned.pin);
}
