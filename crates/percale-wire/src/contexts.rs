//! The numbers of the contexts that share an address (`endpoint::scalable`).
//!
//! A hello contains the number of a context in 16 bits. Contexts that peers can address are counted from 0. They are
//! followed by the contexts that only send and that peers cannot address. *Senders* are counted from [`FIRST_SENDER`]:
//! sender `FIRST_SENDER + n` is the sending half of context `n`, with a separate connection.

/// The number of the first sender. Smaller numbers belong to other contexts.
pub const FIRST_SENDER: u16 = 1 << 15;

/// The numbers of contexts that share an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contexts {
    /// The number of contexts, without the senders.
    pub all: u16,
    /// The number of contexts that peers can address, which are the first ones.
    pub named: u16,
    /// The number of senders.
    pub senders: u16,
}

impl Contexts {
    /// Returns whether there is a context with this number.
    #[must_use]
    #[inline]
    pub const fn has(self, number: u16) -> bool {
        match number.checked_sub(FIRST_SENDER) {
            Some(sender) => sender < self.senders,
            None => number < self.all,
        }
    }
}

/// Returns the number of sender `index`, if that sender can have a number.
#[must_use]
#[inline]
pub const fn sender(index: u16) -> Option<u16> {
    if index < FIRST_SENDER { FIRST_SENDER.checked_add(index) } else { None }
}

/// Returns the context to which the sender with this number belongs, or `None` if the number is not that of a sender.
#[must_use]
#[inline]
pub const fn half_of(number: u16) -> Option<u16> {
    number.checked_sub(FIRST_SENDER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_have_separate_context_numbers() {
        let contexts = Contexts { all: 3, named: 2, senders: 2 };
        let first = sender(0).unwrap();
        assert_eq!((half_of(first), half_of(first + 1), half_of(2)), (Some(0), Some(1), None));
        assert!(contexts.has(0) && contexts.has(2) && !contexts.has(3));
        assert!(contexts.has(first + 1) && !contexts.has(first + 2) && !contexts.has(u16::MAX));
        assert_eq!(sender(FIRST_SENDER), None);
    }
}
