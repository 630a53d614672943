//! The compared data: envelopes, patterns, and the masks that make classes of patterns.
//!
//! A pattern is two words (tag, source) and for each a mask of the bits that it looks at: `!ignore` for the tag, and
//! all or nothing for the source. A message fits when its words agree with the pattern's under the masks. So patterns
//! with equal masks, which are a *class*, can be found in one hash table, under their words with the mask applied.

/// The matching data of a message when it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// The sender's tag; 0 for untagged messages.
    pub(crate) tag: u64,
    /// The sender's address in this endpoint's vector.
    pub(crate) source: u64,
}

/// The senders from which a receive takes messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Any sender.
    Any,
    /// Only this address (a directed receive).
    From(u64),
}

/// The condition that a message must meet for a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// The wanted tag; 0 for untagged messages.
    pub(crate) tag: u64,
    /// The bits in which the tags may differ.
    pub(crate) ignore: u64,
    /// The wanted sender.
    pub(crate) source: Source,
}

/// The two words that are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) tag: u64,
    pub(super) source: u64,
}

impl Key {
    #[inline]
    pub(super) fn of(pattern: &Pattern) -> Self {
        let source = match pattern.source {
            Source::Any => 0,
            Source::From(source) => source,
        };
        Self { tag: pattern.tag, source }
    }
}

impl From<Envelope> for Key {
    #[inline]
    fn from(envelope: Envelope) -> Self {
        Self { tag: envelope.tag, source: envelope.source }
    }
}

impl From<Key> for Envelope {
    #[inline]
    fn from(key: Key) -> Self {
        Self { tag: key.tag, source: key.source }
    }
}

/// The bits of both words that a class of patterns looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Masks {
    tag: u64,
    source: u64,
}

impl Masks {
    #[inline]
    pub(super) fn of(pattern: &Pattern) -> Self {
        let source = match pattern.source {
            Source::Any => 0,
            Source::From(_) => u64::MAX,
        };
        Self { tag: !pattern.ignore, source }
    }

    /// The pattern that these masks and this key were made from.
    #[inline]
    pub(super) fn pattern(self, key: Key) -> Pattern {
        let source = if self.source == 0 { Source::Any } else { Source::From(key.source) };
        Pattern { tag: key.tag, ignore: !self.tag, source }
    }

    /// The key with only the bits that count: the key of the class's hash table.
    #[inline]
    pub(super) fn apply(self, key: Key) -> Key {
        Key { tag: key.tag & self.tag, source: key.source & self.source }
    }

    /// Whether two keys agree in all bits that count.
    #[inline]
    pub(super) fn agree(self, one: Key, other: Key) -> bool {
        ((one.tag ^ other.tag) & self.tag) | ((one.source ^ other.source) & self.source) == 0
    }
}
