//! Message contents that identify their sender, receiver and number. Also checks the order of messages.
//!
//! The remote completion data of a message is an [`Identity`]. The bytes of the message are computed from it and from
//! the port of the target endpoint. Therefore a receiver can check that a message is complete, is addressed to this
//! endpoint, and is not a duplicate.

use std::collections::{BTreeMap, HashMap, HashSet};

/// The contents of the remote completion data of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    /// The life of the endpoint that sent the message.
    pub(super) sender: u16,
    /// The number of the message among those of its sender.
    pub(super) number: u32,
    /// The length of the message.
    pub(super) len: usize,
}

impl Identity {
    pub(super) fn pack(self) -> u64 {
        u64::from(self.sender) << 51 | u64::from(self.number & 0xff_ffff) << 27 | self.len as u64
    }

    pub(super) fn unpack(data: u64) -> Self {
        let len = (data & 0x7ff_ffff) as usize;
        Self { sender: (data >> 51) as u16, number: (data >> 27 & 0xff_ffff) as u32, len }
    }
}

fn word(data: u64, port: u16, index: usize) -> u64 {
    let seed = data.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(port).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (seed ^ index as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(23)
}

/// Returns the contents of a message to the endpoint with this port.
pub(super) fn contents(data: u64, port: u16) -> Vec<u8> {
    let mut bytes = vec![0; Identity::unpack(data).len];
    for (index, part) in bytes.chunks_mut(8).enumerate() {
        let word = word(data, port, index).to_le_bytes();
        part.copy_from_slice(&word[..part.len()]);
    }
    bytes
}

/// Checks the contents of a message that arrived at this port. Returns a description of the error, or `None`. Only the
/// received part of a truncated message is checked.
pub(super) fn examine(data: u64, bytes: &[u8], truncated: bool, port: u16) -> Option<String> {
    let identity = Identity::unpack(data);
    if bytes.len() != identity.len && !(truncated && bytes.len() < identity.len) {
        return Some(format!("{identity:?} arrived with {} bytes", bytes.len()));
    }
    let same = |port| {
        bytes
            .chunks(8)
            .enumerate()
            .position(|(index, part)| part != &word(data, port, index).to_le_bytes()[..part.len()])
    };
    let at = same(port)?;
    if bytes.len() >= 8 {
        // Searches for another port for which the contents would be correct.
        let first = u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default());
        if let Some(other) = (1..=u16::MAX).find(|&other| word(data, other, 0) == first && same(other).is_none()) {
            return Some(format!("{identity:?} was sent to port {other} and arrived at port {port}"));
        }
    }
    let wrong = bytes
        .chunks(8)
        .enumerate()
        .filter(|(index, part)| *part != &word(data, port, *index).to_le_bytes()[..part.len()])
        .count();
    let seen = &bytes[at * 8..bytes.len().min(at * 8 + 16)];
    Some(format!("{identity:?} has wrong contents: {wrong} words, from byte {} on, there {seen:02x?}", at * 8))
}

/// The numbers of the messages of each sender and class, in the order of the receives that received them.
#[derive(Debug, Default)]
pub(super) struct Order {
    seen: HashSet<(u16, u32)>,
    taken: HashMap<(u16, u8), BTreeMap<u64, u32>>,
}

impl Order {
    /// Records that a message was received by the receive with number `posted` of its class. Returns a description of
    /// the error if the message is a duplicate or out of order.
    pub(super) fn note(&mut self, class: u8, posted: Option<u64>, identity: Identity) -> Option<String> {
        if !self.seen.insert((identity.sender, identity.number)) {
            return Some(format!("{identity:?} was received twice"));
        }
        let posted = posted?;
        let taken = self.taken.entry((identity.sender, class)).or_default();
        let before = taken.range(..posted).next_back().map(|(&at, &number)| (at, number));
        let after = taken.range(posted..).next().map(|(&at, &number)| (at, number));
        taken.insert(posted, identity.number);
        if taken.len() > 500 {
            taken.pop_first();
        }
        let wrong = before.is_some_and(|(_, number)| number > identity.number)
            || after.is_some_and(|(_, number)| number < identity.number);
        wrong.then(|| {
            format!(
                "{identity:?} of class {class} is out of order: receive {posted} took it, the one before took {before:?} \
                 and the one after took {after:?}"
            )
        })
    }
}
