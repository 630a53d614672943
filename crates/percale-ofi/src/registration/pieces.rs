//! The memory that a registration names.

use percale::Segment;

/// The memory of a registration.
pub(crate) enum Pieces {
    Some(Vec<Segment>),
    /// The whole address space.
    Everything,
}

impl Pieces {
    /// Whether bytes are all in one of the pieces.
    pub(crate) fn hold(&self, address: usize, len: usize) -> bool {
        let Self::Some(pieces) = self else { return true };
        let within = |piece: &Segment| {
            let offset = address.checked_sub(piece.as_ptr().addr());
            offset.is_some_and(|offset| offset <= piece.len() && len <= piece.len() - offset)
        };
        pieces.iter().any(within)
    }
}
