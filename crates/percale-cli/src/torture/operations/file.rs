//! Changes of the mapped file by this or another process.

use std::io;

use rustix::fd::AsFd;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, ftruncate};

use super::process::{truncate, truncate_by_handle};
use super::{ExecutionMode, Operation, Tools};
use crate::torture::kinds::Trait;
use crate::torture::memory::Memory;

const fn file(
    name: &'static str,
    way: ExecutionMode,
    apply: fn(&mut Memory, &mut Tools) -> io::Result<()>,
) -> Operation {
    Operation { name, needs: &[Trait::File], apply, way }
}

/// The flags for punching a hole.
fn punch() -> FallocateFlags {
    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
}

pub(super) const ALL: &[Operation] = &[
    file("ftruncate", ExecutionMode::Call, |memory, _| {
        ftruncate(memory.file()?, memory.offset())?;
        Ok(ftruncate(memory.file()?, memory.whole.len())?)
    }),
    file("ftruncate last page", ExecutionMode::Call, |memory, _| {
        ftruncate(memory.file()?, memory.last()?.start() - memory.whole.start())?;
        Ok(ftruncate(memory.file()?, memory.whole.len())?)
    }),
    file("ftruncate grow", ExecutionMode::Once, |memory, _| Ok(ftruncate(memory.file()?, 2 * memory.whole.len())?)),
    file("ftruncate by another process", ExecutionMode::Other, |memory, tools| {
        let path = memory.path()?;
        tools.helper()?.truncate(&path, memory.offset())?;
        tools.helper()?.truncate(&path, memory.whole.len())
    }),
    file("fallocate PUNCH_HOLE", ExecutionMode::Call, |memory, _| {
        Ok(fallocate(memory.file()?, punch(), memory.offset(), memory.registered.len())?)
    }),
    file("fallocate PUNCH_HOLE middle page", ExecutionMode::Call, |memory, _| {
        let offset = memory.middle()?.start() - memory.whole.start();
        Ok(fallocate(memory.file()?, punch(), offset, memory.unit)?)
    }),
    file("fallocate PUNCH_HOLE by another process", ExecutionMode::Other, |memory, tools| {
        let path = memory.path()?;
        tools.helper()?.allocate(&path, punch().bits(), memory.offset(), memory.registered.len())
    }),
    file("fallocate ZERO_RANGE", ExecutionMode::Once, |memory, _| {
        Ok(fallocate(memory.file()?, FallocateFlags::ZERO_RANGE, memory.offset(), memory.registered.len())?)
    }),
    file("fallocate COLLAPSE_RANGE", ExecutionMode::Once, |memory, _| {
        fallocate(memory.file()?, FallocateFlags::COLLAPSE_RANGE, memory.offset(), memory.unit)?;
        Ok(ftruncate(memory.file()?, memory.whole.len())?)
    }),
    file("fallocate INSERT_RANGE", ExecutionMode::Once, |memory, _| {
        Ok(fallocate(memory.file()?, FallocateFlags::INSERT_RANGE, memory.offset(), memory.unit)?)
    }),
    file("fallocate COLLAPSE_RANGE by another process", ExecutionMode::Other, |memory, tools| {
        let path = memory.path()?;
        let mode = FallocateFlags::COLLAPSE_RANGE.bits();
        tools.helper()?.allocate(&path, mode, memory.offset(), memory.unit)?;
        tools.helper()?.truncate(&path, memory.whole.len())
    }),
    file("open O_TRUNC", ExecutionMode::Once, |memory, _| {
        drop(rustix::fs::open(memory.path()?, OFlags::RDWR | OFlags::TRUNC | OFlags::CLOEXEC, Mode::empty())?);
        Ok(ftruncate(memory.file()?, memory.whole.len())?)
    }),
    file("open_by_handle_at O_TRUNC", ExecutionMode::Once, |memory, _| {
        truncate_by_handle(memory.file()?.as_fd())?;
        Ok(ftruncate(memory.file()?, memory.whole.len())?)
    }),
    file("truncate by path", ExecutionMode::Once, |memory, _| {
        let path = memory.path()?;
        truncate(&path, memory.offset())?;
        truncate(&path, memory.whole.len())
    }),
    file("page cache dropped, then ftruncate", ExecutionMode::Once, |memory, tools| {
        drop_cache(memory, tools)?;
        ftruncate(memory.file()?, memory.offset())?;
        Ok(ftruncate(memory.file()?, memory.whole.len())?)
    }),
    file("page cache dropped, then ftruncate by another process", ExecutionMode::Other, |memory, tools| {
        drop_cache(memory, tools)?;
        let path = memory.path()?;
        tools.helper()?.truncate(&path, memory.offset())?;
        tools.helper()?.truncate(&path, memory.whole.len())
    }),
    file("page cache dropped", ExecutionMode::Once, drop_cache),
    file("write to the file", ExecutionMode::Once, |memory, _| {
        let bytes = vec![0x5a; memory.registered.len() as usize];
        let written = rustix::io::pwrite(memory.file()?, &bytes, memory.offset())?;
        if written == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }),
    file("io_uring fallocate PUNCH_HOLE", ExecutionMode::Worker, |memory, tools| {
        let mode = punch().bits() as i32;
        tools.ring.allocate(memory.file()?.as_fd(), mode, memory.offset(), memory.registered.len())
    }),
    file("io_uring ftruncate", ExecutionMode::Worker, |memory, tools| {
        tools.ring.truncate(memory.file()?.as_fd(), memory.offset())?;
        tools.ring.truncate(memory.file()?.as_fd(), memory.whole.len())
    }),
];

fn drop_cache(memory: &mut Memory, _: &mut Tools) -> io::Result<()> {
    let file = memory.file()?;
    rustix::fs::fsync(file)?;
    Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
}
