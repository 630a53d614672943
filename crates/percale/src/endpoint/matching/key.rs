//! The data that matching compares: envelopes, patterns, and the masks that define classes of patterns.
//!
//! A pattern has two words (tag and source), and for each word a mask of the bits that it compares: `!ignore` for the
//! tag, and all or no bits for the source. A message fits when its words equal the pattern's words under the masks.
//! Patterns with equal masks form a *class*. All patterns of a class can be found in one hash table under their masked
//! words.

/// The matching data of a message when it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// The sender's tag; 0 for untagged messages.
    pub(crate) tag: u64,
    /// The number of the sender: its connection number, or in a shared receive context the source that the pool
    /// assigned.
    pub(crate) source: u64,
}

/// The senders from which a receive takes messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceFilter {
    /// Any sender.
    Any,
    /// Only the sender with this number (a directed receive).
    From(u64),
}

/// The condition that a message must meet for a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// The requested tag; 0 for untagged messages.
    pub(crate) tag: u64,
    /// The bits in which the tags may differ.
    pub(crate) ignore: u64,
    /// The requested sender.
    pub(crate) source: SourceFilter,
}

/// The two words that are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MatchKey {
    pub(super) tag: u64,
    pub(super) source: u64,
}

impl MatchKey {
    #[inline]
    pub(super) fn of(pattern: &Pattern) -> Self {
        let source = match pattern.source {
            SourceFilter::Any => 0,
            SourceFilter::From(source) => source,
        };
        Self { tag: pattern.tag, source }
    }
}

impl From<Envelope> for MatchKey {
    #[inline]
    fn from(envelope: Envelope) -> Self {
        Self { tag: envelope.tag, source: envelope.source }
    }
}

impl From<MatchKey> for Envelope {
    #[inline]
    fn from(key: MatchKey) -> Self {
        Self { tag: key.tag, source: key.source }
    }
}

/// The bits of both words that a class of patterns compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Masks {
    tag: u64,
    source: u64,
}

impl Masks {
    #[inline]
    pub(super) fn of(pattern: &Pattern) -> Self {
        let source = match pattern.source {
            SourceFilter::Any => 0,
            SourceFilter::From(_) => u64::MAX,
        };
        Self { tag: !pattern.ignore, source }
    }

    /// Returns whether the source is compared.
    #[inline]
    pub(super) fn compares_source(self) -> bool {
        self.source != 0
    }

    /// Returns the pattern from which these masks and this key were made.
    #[inline]
    pub(super) fn pattern(self, key: MatchKey) -> Pattern {
        let source = if self.source == 0 { SourceFilter::Any } else { SourceFilter::From(key.source) };
        Pattern { tag: key.tag, ignore: !self.tag, source }
    }

    /// Returns the key with only the bits that the masks select, which is the key in the class's hash table.
    #[inline]
    pub(super) fn apply(self, key: MatchKey) -> MatchKey {
        MatchKey { tag: key.tag & self.tag, source: key.source & self.source }
    }

    /// Returns whether two keys agree in all bits that the masks select.
    #[inline]
    pub(super) fn agree(self, one: MatchKey, other: MatchKey) -> bool {
        ((one.tag ^ other.tag) & self.tag) | ((one.source ^ other.source) & self.source) == 0
    }
}
