//! Operations that unmap memory, map over it, move it, grow it or shrink it.

use std::io;

use libc::{MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_PRIVATE, MREMAP_DONTUNMAP, MREMAP_MAYMOVE, SYS_remap_file_pages};

use super::{ExecutionMode, Operation, Tools};
use crate::memory_range::{READ_WRITE, range};
use crate::torture::kinds::Trait;
use crate::torture::memory::{Memory, Origin};
use crate::torture::origins::Segment;

/// Private anonymous memory.
const ANONYMOUS: i32 = MAP_PRIVATE | MAP_ANONYMOUS;

const fn call(
    name: &'static str,
    needs: &'static [Trait],
    apply: fn(&mut Memory, &mut Tools) -> io::Result<()>,
) -> Operation {
    Operation { name, needs, apply, way: ExecutionMode::Call }
}

const fn once(
    name: &'static str,
    needs: &'static [Trait],
    apply: fn(&mut Memory, &mut Tools) -> io::Result<()>,
) -> Operation {
    Operation { name, needs, apply, way: ExecutionMode::Once }
}

pub(super) const ALL: &[Operation] = &[
    call("munmap all", &[Trait::Own], |memory, _| memory.memory_range.unmap(memory.registered)),
    call("munmap more than all", &[Trait::Mapped], |memory, _| memory.memory_range.unmap(memory.whole)),
    call("munmap first page", &[Trait::Own], |memory, _| memory.memory_range.unmap(memory.page(0)?)),
    call("munmap middle page", &[Trait::Own], |memory, _| memory.memory_range.unmap(memory.middle()?)),
    call("munmap last page", &[Trait::Own], |memory, _| memory.memory_range.unmap(memory.last()?)),
    once("munmap next page", &[Trait::Own], munmap_next),
    call("mmap anonymous over all", &[Trait::Own], |memory, _| {
        memory.memory_range.map(memory.registered, READ_WRITE, ANONYMOUS, None)
    }),
    call("mmap anonymous over middle page", &[Trait::Own], |memory, _| {
        memory.memory_range.map(memory.middle()?, READ_WRITE, ANONYMOUS, None)
    }),
    call("mmap the same over all", &[Trait::Mapped], |memory, _| memory.map_same(memory.registered, 0)),
    once("mmap next to it", &[Trait::Mapped], |memory, _| {
        memory.memory_range.map(memory.spare()?[0], READ_WRITE, ANONYMOUS, None)
    }),
    call("mremap away", &[Trait::Mapped], |memory, _| {
        let to = range(memory.spare()?[1].start(), memory.registered.len())?;
        memory.memory_range.remap(memory.registered, to.len(), 0, Some(to)).map(drop)
    }),
    call("mremap middle page away", &[Trait::Mapped], |memory, _| {
        let to = range(memory.spare()?[1].start(), memory.unit)?;
        memory.memory_range.remap(memory.middle()?, to.len(), 0, Some(to)).map(drop)
    }),
    call("mremap onto it", &[Trait::Mapped], mremap_onto),
    call("mremap shrink", &[Trait::Own], |memory, _| {
        let len = memory.registered.len() - memory.unit;
        memory.memory_range.remap(memory.registered, len, 0, None).map(drop)
    }),
    once("mremap grow in place", &[Trait::Mapped], mremap_grow),
    once("mremap grow by moving", &[Trait::Mapped], |memory, _| {
        memory.memory_range.remap(memory.whole, 2 * memory.whole.len(), MREMAP_MAYMOVE, None).map(drop)
    }),
    call("mremap DONTUNMAP", &[Trait::Mapped], |memory, _| {
        let to = range(memory.spare()?[1].start(), memory.registered.len())?;
        memory.memory_range.remap(memory.registered, to.len(), MREMAP_DONTUNMAP, Some(to)).map(drop)
    }),
    call("remap_file_pages", &[Trait::Shared], |memory, _| {
        // Maps the first page of the file at the first registered page.
        memory.memory_range.call(SYS_remap_file_pages, memory.page(0)?, [0, 0, 0, 0]).map(drop)
    }),
    once("brk shrink and grow", &[Trait::Heap], |memory, _| match &memory.origin {
        Origin::Heap(heap) => heap.swing(memory.registered.start() + memory.registered.len() / 2),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }),
    once("brk grow and shrink", &[Trait::Heap], |memory, _| match &memory.origin {
        Origin::Heap(heap) => heap.swing(memory.whole.end() + memory.whole.len()),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }),
    call("shmdt", &[Trait::Segment], |memory, _| Segment::detach(memory.whole)),
    call("shmat SHM_REMAP another", &[Trait::Segment], |memory, _| {
        let other = Segment::new(memory.whole.len())?;
        memory.memory_range.attach(other.id(), memory.whole, libc::SHM_REMAP)
    }),
    call("shmat SHM_REMAP the same", &[Trait::Segment], |memory, _| match &memory.origin {
        Origin::Segment(segment) => memory.memory_range.attach(segment.id(), memory.whole, libc::SHM_REMAP),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }),
    once("shmat SHM_REMAP over it", &[Trait::Mapped], |memory, _| {
        let other = Segment::new(memory.whole.len())?;
        memory.memory_range.attach(other.id(), memory.whole, libc::SHM_REMAP)
    }),
    once("free", &[Trait::BigChunk], |memory, _| match &mut memory.origin {
        Origin::Chunks(chunks) => {
            chunks.free();
            Ok(())
        }
        _ => Err(io::ErrorKind::Unsupported.into()),
    }),
    once("realloc", &[Trait::BigChunk], |memory, _| match &mut memory.origin {
        Origin::Chunks(chunks) => {
            chunks.grow();
            Ok(())
        }
        _ => Err(io::ErrorKind::Unsupported.into()),
    }),
    once("free and malloc_trim", &[Trait::SmallChunk], |memory, _| {
        let whole = memory.whole;
        match &mut memory.origin {
            Origin::Chunks(chunks) => chunks.trim(whole),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }),
    once("thread exit", &[Trait::Stack], |memory, _| match &mut memory.origin {
        Origin::Stack(stack) => {
            stack.end();
            Ok(())
        }
        _ => Err(io::ErrorKind::Unsupported.into()),
    }),
    once("dlclose", &[Trait::Library], |memory, _| match &mut memory.origin {
        Origin::Library(library) => {
            library.close();
            Ok(())
        }
        _ => Err(io::ErrorKind::Unsupported.into()),
    }),
];

/// Unmaps a page of the same mapping that is not registered.
fn munmap_next(memory: &mut Memory, _: &mut Tools) -> io::Result<()> {
    let next = range(memory.registered.end(), memory.unit)?;
    memory.memory_range.unmap(next)
}

/// Moves other memory of the same kind to the addresses of this memory.
fn mremap_onto(memory: &mut Memory, _: &mut Tools) -> io::Result<()> {
    let from = range(memory.spare()?[1].start(), memory.registered.len())?;
    if matches!(memory.origin, Origin::Segment(_)) {
        memory.memory_range.map(from, READ_WRITE, ANONYMOUS, None)?;
    } else {
        let anonymous = memory.flags & MAP_ANONYMOUS != 0;
        let file = memory.file.as_ref().filter(|_| !anonymous);
        let file = file.map(|file| (rustix::fd::AsFd::as_fd(file), memory.offset()));
        memory.memory_range.map(from, READ_WRITE, memory.flags, file)?;
    }
    memory.memory_range.remap(from, from.len(), 0, Some(memory.registered)).map(drop)
}

/// Grows the mapping into the free addresses after it.
fn mremap_grow(memory: &mut Memory, _: &mut Tools) -> io::Result<()> {
    let [behind, _] = memory.spare()?;
    memory.memory_range.unmap(behind)?;
    let grown = memory.memory_range.remap(memory.whole, memory.whole.len() + memory.unit, 0, None);
    // New mappings must not be placed at addresses of the memory range.
    let rest = range(behind.start() + memory.unit, behind.len() - memory.unit)?;
    memory.memory_range.map(rest, libc::PROT_NONE, ANONYMOUS | MAP_FIXED_NOREPLACE, None)?;
    grown.map(drop)
}
