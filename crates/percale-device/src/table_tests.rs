//! Tests of requests that a table rejects.

use std::os::fd::{AsFd, OwnedFd};

use super::*;
use crate::system::forked::in_a_child;

/// Opens a table. Prints a note and returns `None` if io_uring is forbidden.
fn table() -> Option<BufferTable> {
    match BufferTable::new(4) {
        Ok(table) => Some(table),
        Err(error) => {
            println!("skipped (io_uring): fixed buffers are not available ({error})");
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

fn number(pinned: &Pinned<Slot>) -> u32 {
    pinned.pin.number
}

fn code<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn invalid_file_offset_is_rejected() {
    let Some(table) = table() else { return };
    let (file, mut bytes) = (file(b"as it was"), *b"not this");
    let pinned = table.pin(range(&mut bytes), Access::LOCAL_WRITE).ok();
    for slot in [None, pinned.as_ref().map(number)] {
        for offset in [u64::MAX, u64::MAX - 1, 1 << 63] {
            for way in [Way::ToFile(offset), Way::FromFile(offset)] {
                // SAFETY: the bytes live until the call returns.
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

/// Requirements: FLT-010.
#[test]
fn forked_child_cannot_use_the_parent_table() {
    let Some(table) = table() else { return };
    let (file, mut bytes) = (file(b"the parent's"), [0_u8; 12]);
    let Ok(pinned) = table.pin(range(&mut bytes), Access::LOCAL_WRITE) else {
        return println!("skipped (io_uring): no memory can be pinned");
    };
    // Simulates another thread of the parent that holds the lock of the table.
    let locked = table.free();
    let slot = number(&pinned);
    assert!(in_a_child(|| {
        let pins = code(table.pin(range(&mut bytes), Access::LOCAL_WRITE));
        table.unpin(Slot { number: slot, table: table.0.number });
        let moves = [None, Some(slot)].map(|slot| {
            // SAFETY: the bytes live until the call returns.
            code(unsafe { table.transfer(slot, range(&mut bytes), Way::FromFile(0), file.as_fd()) })
        });
        let counts = (table.registered(), format!("{table:?}").len() > 10);
        let refused = Some(libc::ECHILD);
        (pins, moves, counts, bytes) == (refused, [refused; 2], (0, true), [0; 12])
    }));
    drop(locked);
    assert_eq!(table.registered(), 1);
    // SAFETY: as above.
    let moved = unsafe { table.transfer(Some(number(&pinned)), range(&mut bytes), Way::FromFile(0), file.as_fd()) };
    assert_eq!((moved.unwrap(), &bytes), (12, b"the parent's"));
    table.unpin(pinned.pin);
}

#[test]
fn slot_is_released_only_by_its_table() {
    let (Some(table), Some(other)) = (table(), table()) else { return };
    let mut bytes = [0; 8];
    let ours: Vec<_> = (0..3).map_while(|_| table.pin(range(&mut bytes), Access::LOCAL_WRITE).ok()).collect();
    let Some(first) = ours.first().filter(|_| ours.len() == 3) else {
        return println!("skipped (io_uring): memory cannot be pinned");
    };
    assert_eq!(other.registered(), 0);
    let theirs = other.pin(range(&mut bytes), Access::LOCAL_WRITE).unwrap();
    assert_eq!(number(first), number(&theirs), "the tables give the same numbers");
    // The lists of free slots of both tables stay unchanged.
    table.unpin(theirs.pin);
    assert_eq!((table.registered(), other.registered()), (3, 1));
    let next = table.pin(range(&mut bytes), Access::LOCAL_WRITE).unwrap();
    assert!(ours.iter().all(|one| number(one) != number(&next)), "two registrations have one slot");
    ours.into_iter().chain([next]).for_each(|one| table.unpin(one.pin));
    assert_eq!(table.registered(), 0);
}

#[test]
fn unknown_slot_is_rejected() {
    let Some(table) = table() else { return };
    let (file, mut bytes) = (file(b"as it was"), *b"not this");
    let Ok(pinned) = table.pin(range(&mut bytes), Access::LOCAL_WRITE) else {
        return println!("skipped (io_uring): memory cannot be pinned");
    };
    let slot = number(&pinned) + (1 << 16); // A number with the same low 16 bits. 
    // SAFETY: the bytes live until the call returns.
    let moved = unsafe { table.transfer(Some(slot), range(&mut bytes), Way::FromFile(0), file.as_fd()) };
    assert_eq!((code(moved), bytes), (Some(libc::EINVAL), *b"not this"));
    table.unpin(pinned.pin);
}
