//! The memory ranges of a registration.

use percale::Segment;

/// The memory ranges of a registration.
pub(crate) enum Pieces {
    Some(Vec<Segment>),
    /// The complete address space.
    Everything,
}

impl Pieces {
    /// Returns whether all these bytes are in one of the pieces.
    pub(crate) fn hold(&self, address: usize, len: usize) -> bool {
        let Self::Some(pieces) = self else { return true };
        let within = |piece: &Segment| {
            let offset = address.checked_sub(piece.as_ptr().addr());
            offset.is_some_and(|offset| offset <= piece.len() && len <= piece.len() - offset)
        };
        pieces.iter().any(within)
    }
}
