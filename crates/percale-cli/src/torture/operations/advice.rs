//! Operations that advise the kernel about memory (madvise(2)), lock memory, or change rights.

use std::io;

use libc::{PROT_NONE, PROT_READ};

use super::{ExecutionMode, Operation, Tools};
use crate::memory_range::READ_WRITE;
use crate::torture::kinds::Trait;
use crate::torture::memory::{Memory, Origin};

/// Advice values since Linux 6.13.
const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

/// From <linux/mempolicy.h>: move pages that are on other nodes.
const MPOL_MF_MOVE: usize = 1 << 1;

/// Advice on the registered part.
macro_rules! advice {
    ($name:literal, $advice:expr) => {
        advice!($name, $advice, ExecutionMode::Call)
    };
    ($name:literal, $advice:expr, $way:expr) => {
        Operation {
            name: $name,
            needs: &[Trait::Own],
            apply: |memory, _| memory.memory_range.advise(memory.registered, $advice),
            way: $way,
        }
    };
}

const fn own(
    name: &'static str,
    way: ExecutionMode,
    apply: fn(&mut Memory, &mut Tools) -> io::Result<()>,
) -> Operation {
    Operation { name, needs: &[Trait::Own], apply, way }
}

pub(super) const ALL: &[Operation] = &[
    advice!("madvise DONTNEED", libc::MADV_DONTNEED),
    own("madvise DONTNEED middle page", ExecutionMode::Call, |memory, _| {
        memory.memory_range.advise(memory.middle()?, libc::MADV_DONTNEED)
    }),
    advice!("madvise DONTNEED_LOCKED", libc::MADV_DONTNEED_LOCKED),
    advice!("madvise FREE", libc::MADV_FREE),
    advice!("madvise REMOVE", libc::MADV_REMOVE),
    advice!("madvise PAGEOUT", libc::MADV_PAGEOUT, ExecutionMode::Once),
    advice!("madvise COLD", libc::MADV_COLD),
    advice!("madvise COLLAPSE", libc::MADV_COLLAPSE, ExecutionMode::Once),
    advice!("madvise MERGEABLE", libc::MADV_MERGEABLE, ExecutionMode::Once),
    advice!("madvise POPULATE_WRITE", libc::MADV_POPULATE_WRITE),
    advice!("madvise HUGEPAGE", libc::MADV_HUGEPAGE, ExecutionMode::Once),
    advice!("madvise NOHUGEPAGE", libc::MADV_NOHUGEPAGE, ExecutionMode::Once),
    advice!("madvise WILLNEED", libc::MADV_WILLNEED),
    advice!("madvise DONTFORK", libc::MADV_DONTFORK, ExecutionMode::Once),
    advice!("madvise WIPEONFORK", libc::MADV_WIPEONFORK, ExecutionMode::Once),
    own("madvise GUARD_INSTALL", ExecutionMode::Call, |memory, _| {
        memory.memory_range.advise(memory.registered, MADV_GUARD_INSTALL)?;
        memory.memory_range.advise(memory.registered, MADV_GUARD_REMOVE)
    }),
    own("madvise GUARD_INSTALL middle page", ExecutionMode::Call, |memory, _| {
        memory.memory_range.advise(memory.middle()?, MADV_GUARD_INSTALL)?;
        memory.memory_range.advise(memory.middle()?, MADV_GUARD_REMOVE)
    }),
    own("process_madvise DONTNEED", ExecutionMode::Call, |memory, _| {
        memory.memory_range.advise_process(memory.registered, libc::MADV_DONTNEED)
    }),
    own("process_madvise COLD", ExecutionMode::Call, |memory, _| {
        memory.memory_range.advise_process(memory.registered, libc::MADV_COLD)
    }),
    own("process_madvise GUARD_INSTALL", ExecutionMode::Call, |memory, _| {
        memory.memory_range.advise_process(memory.registered, MADV_GUARD_INSTALL)?;
        memory.memory_range.advise(memory.registered, MADV_GUARD_REMOVE)
    }),
    own("io_uring madvise DONTNEED", ExecutionMode::Worker, |memory, tools| {
        tools.ring.advise(memory.registered, libc::MADV_DONTNEED)
    }),
    own("io_uring madvise REMOVE", ExecutionMode::Worker, |memory, tools| {
        tools.ring.advise(memory.registered, libc::MADV_REMOVE)
    }),
    own("io_uring madvise COLD", ExecutionMode::Worker, |memory, tools| {
        tools.ring.advise(memory.registered, libc::MADV_COLD)
    }),
    own("mprotect none", ExecutionMode::Once, |memory, _| {
        memory.memory_range.protect(memory.registered, PROT_NONE)?;
        memory.lost_rights = true;
        Ok(())
    }),
    own("mprotect read-only", ExecutionMode::Once, |memory, _| {
        memory.memory_range.protect(memory.registered, PROT_READ)?;
        memory.lost_rights = true;
        Ok(())
    }),
    own("mprotect middle page read-only", ExecutionMode::Once, |memory, _| {
        memory.memory_range.protect(memory.middle()?, PROT_READ)?;
        memory.lost_rights = true;
        Ok(())
    }),
    own("mprotect none and back", ExecutionMode::Call, |memory, _| {
        memory.memory_range.protect(memory.registered, PROT_NONE)?;
        memory.memory_range.protect(memory.registered, READ_WRITE)
    }),
    own("mprotect executable", ExecutionMode::Once, |memory, _| {
        memory.memory_range.protect(memory.registered, READ_WRITE | libc::PROT_EXEC)
    }),
    own("mlock", ExecutionMode::Once, |memory, _| {
        memory.memory_range.call(libc::SYS_mlock, memory.registered, [0; 4]).map(drop)
    }),
    own("mlock and munlock", ExecutionMode::Call, |memory, _| {
        memory.memory_range.call(libc::SYS_mlock, memory.registered, [0; 4])?;
        memory.memory_range.call(libc::SYS_munlock, memory.registered, [0; 4]).map(drop)
    }),
    own("mbind MOVE", ExecutionMode::Once, |memory, _| {
        let policy = libc::MPOL_PREFERRED as usize;
        memory.memory_range.call(libc::SYS_mbind, memory.registered, [policy, 0, 0, MPOL_MF_MOVE]).map(drop)
    }),
    own("mseal", ExecutionMode::Once, |memory, _| {
        if matches!(memory.origin, Origin::Stack(_)) {
            return Err(io::Error::other("a thread whose stack is sealed cannot exit"));
        }
        memory.memory_range.call(libc::SYS_mseal, memory.registered, [0; 4])?;
        if matches!(memory.origin, Origin::Mapped | Origin::Segment(_)) {
            memory.origin = Origin::Sealed;
        }
        Ok(())
    }),
    own("msync", ExecutionMode::Once, |memory, _| {
        memory.memory_range.call(libc::SYS_msync, memory.registered, [libc::MS_SYNC as usize, 0, 0, 0]).map(drop)
    }),
];
