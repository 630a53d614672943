//! Memory that is not made by mmap(2) alone.

use std::io;

use crate::memory_range::range;
use crate::torture::memory::{Memory, MemoryShape, Origin};
use crate::torture::origins::{Chunks, Heap, Library, Segment, Stack};

/// Makes memory that begins at the first page boundary after `address`.
fn adopted(address: u64, origin: Origin) -> io::Result<Memory> {
    let shape = MemoryShape::small();
    let start = address.next_multiple_of(shape.unit);
    Ok(Memory::adopted(range(start, shape.bytes())?, shape.registered(start)?, origin))
}

pub(super) fn segment() -> io::Result<Memory> {
    let shape = MemoryShape::small();
    let mut memory = Memory::reserved(shape, libc::MAP_SHARED)?;
    memory.origin = Origin::Segment(Segment::new(shape.bytes())?);
    memory.establish(0)?;
    memory.open_file();
    Ok(memory)
}

pub(super) fn heap() -> io::Result<Memory> {
    let shape = MemoryShape::small();
    let (heap, base) = Heap::new(shape.unit, shape.bytes())?;
    adopted(base, Origin::Heap(heap))
}

pub(super) fn stack() -> io::Result<Memory> {
    let (stack, inside) = Stack::new()?;
    adopted(inside, Origin::Stack(stack))
}

pub(super) fn big_chunk() -> io::Result<Memory> {
    let (chunks, first) = Chunks::big();
    adopted(first, Origin::Chunks(chunks))
}

pub(super) fn small_chunks() -> io::Result<Memory> {
    let (chunks, middle) = Chunks::small();
    adopted(middle, Origin::Chunks(chunks))
}

pub(super) fn library() -> io::Result<Memory> {
    let (library, data) = Library::load()?;
    Ok(Memory::adopted(data, data, Origin::Library(library)))
}
