//! The classes of messages. The first byte of a tag is the class. It determines which receives match.

/// Messages that any untagged receive matches.
pub(super) const UNTAGGED: u8 = 0;
/// Tagged messages for which receives are always posted.
pub(super) const TAGGED: u8 = 1;
/// Answers to requests. Their receives match only their sender.
pub(super) const ANSWER: u8 = 2;
/// Messages for receives that are posted late.
pub(super) const LATE: u8 = 3;
/// Messages for receives that may be too short.
pub(super) const SHORT: u8 = 4;
/// Messages that share a buffer.
pub(super) const MULTI: u8 = 5;
/// Messages for receives of a shared context.
pub(super) const POOLED: u8 = 6;
/// Answers to abandoned requests. They are received so that their sends complete.
pub(super) const LATE_ANSWER: u8 = 7;
/// Messages for receives into memory that cannot be written.
pub(super) const BAD: u8 = 8;

/// Returns the tag of the first message of a class, and the bits that its receives ignore.
pub(super) const fn tag(class: u8) -> Option<(u64, u64)> {
    if class == UNTAGGED { None } else { Some(((class as u64) << 56, (1 << 56) - 1)) }
}
