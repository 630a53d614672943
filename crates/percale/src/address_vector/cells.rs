//! Cells, which contain the counts and marks of a table.

use crate::local_memory::words::Array;

/// The counts and marks of a table.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(super) enum TableField {
    /// The end of the entries that may be in use.
    End,
    /// The number of entries in use.
    Used,
    /// The number of free entries below the end.
    Removed,
    /// An index below which no entry is free.
    Hint,
    /// The number of complete ranges.
    Ranges,
    /// The tag of the IPv6 entry that was written last.
    Tag,
    /// The number of changes so far.
    Changes,
    /// Twice the number of removals so far, plus 1 while a removal is under way.
    Removals,
    /// Set while a writer is writing. It remains set if the writer dies.
    Writing,
}

/// The number of cells.
pub(super) const CELLS: usize = TableField::Writing as usize + 1;

/// The cells, which are accessed in the same way for both kinds of store.
pub(super) type TableFields = Array<CELLS>;
