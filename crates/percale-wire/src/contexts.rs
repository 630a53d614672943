//! The numbers of the contexts that share an address (`endpoint::scalable`).
//!
//! A hello has a number of 16 bits for a context. Contexts that peers can name count up from 0, and behind them count those that only send and that
//! peers cannot name. *Senders* count up from [`FIRST_SENDER`]: sender `FIRST_SENDER + n` is the sending half of context `n`, with a connection of
//! its own.

/// The number of the first sender. Smaller numbers are those of other contexts.
pub const FIRST_SENDER: u16 = 1 << 15;

/// How many contexts share an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contexts {
    /// How many there are besides the senders.
    pub all: u16,
    /// How many of these peers can name: the first ones.
    pub named: u16,
    /// How many senders there are.
    pub senders: u16,
}

impl Contexts {
    /// Returns whether there is a context of this number.
    #[must_use]
    #[inline]
    pub const fn has(self, number: u16) -> bool {
        match number.checked_sub(FIRST_SENDER) {
            Some(sender) => sender < self.senders,
            None => number < self.all,
        }
    }
}

/// The number of sender `index`, if it can have one.
#[must_use]
#[inline]
pub const fn sender(index: u16) -> Option<u16> {
    if index < FIRST_SENDER { FIRST_SENDER.checked_add(index) } else { None }
}

/// Returns the context that the sender of this number is the sending half of; `None` if it is no sender.
#[must_use]
#[inline]
pub const fn half_of(number: u16) -> Option<u16> {
    number.checked_sub(FIRST_SENDER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_have_numbers_of_their_own() {
        let contexts = Contexts { all: 3, named: 2, senders: 2 };
        let first = sender(0).unwrap();
        assert_eq!((half_of(first), half_of(first + 1), half_of(2)), (Some(0), Some(1), None));
        assert!(contexts.has(0) && contexts.has(2) && !contexts.has(3));
        assert!(contexts.has(first + 1) && !contexts.has(first + 2) && !contexts.has(u16::MAX));
        assert_eq!(sender(FIRST_SENDER), None);
    }
}
