//! Cells: the numbers that a table keeps about itself.

use crate::local_memory::words::Array;

/// The numbers that a table keeps about itself.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(super) enum Cell {
    /// Entries up to here may be in use.
    End,
    /// Entries in use.
    Used,
    /// Entries below the end that are free.
    Removed,
    /// No free entry is before this one.
    Hint,
    /// Ranges that are complete.
    Ranges,
    /// The tag of the IPv6 entry that was written last.
    Tag,
    /// Changes so far.
    Changes,
    /// Removals so far, twice; odd while one is under way.
    Removals,
    /// A writer is writing, or died while it wrote.
    Writing,
}

/// The number of cells.
pub(super) const CELLS: usize = Cell::Writing as usize + 1;

/// The cells, reached in the same way for both kinds of store.
pub(super) type Cells = Array<CELLS>;
