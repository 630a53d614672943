//! Messages about connections between two endpoints that each have a single connection ([`FrameKind::Control`]).
//!
//! An endpoint that needs a connection sends a *request* to a listener. The listener's owner rejects the request, or
//! accepts it and assigns an endpoint to it. *Granted* contains the address of that endpoint, and the requester
//! connects to it. The data of either side, at most [`DATA_LIMIT`] bytes, is at the end of the payload. Nothing here is
//! trusted: a frame that cannot be parsed ends the connection over which it arrived.

use std::net::SocketAddr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::address::AddressBytes;
use super::head::{Flags, FrameKind, Head};
use percale_memory::local_memory::volatile::{View, ViewExt as _};

/// The maximum number of bytes that either side passes to the other with its request, acceptance or rejection.
pub const DATA_LIMIT: usize = 256;

/// The maximum length of a payload.
pub const CONTROL_BYTES: usize = size_of::<GrantedBytes>() + DATA_LIMIT;

/// The reasons why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rejection {
    /// The listener's owner rejected the request.
    Owner = 1,
    /// Too many requests wait at the listener.
    Backlog = 2,
    /// The listener's owner has discarded the request.
    Unanswered = 3,
}

impl Rejection {
    /// Returns the reason as text.
    #[must_use]
    #[inline]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Owner => "the listener's owner rejected the request",
            Self::Backlog => "too many requests wait at the listener; try again later",
            Self::Unanswered => "the listener's owner dropped the request without a reply",
        }
    }
}

/// A control frame, as plain values.
#[derive(Clone, PartialEq, Eq)]
pub enum Control {
    /// The sender requests a connection.
    Request {
        /// Data for the listener's owner.
        data: Vec<u8>,
    },
    /// The request is accepted.
    Granted {
        /// The address of the endpoint that will have the connection.
        address: SocketAddr,
        /// Whether that endpoint listens on every interface. If so, it is reached at the IP address of the listener.
        anywhere: bool,
        /// The incarnation of that endpoint.
        incarnation: u128,
        /// Data for the requester.
        data: Vec<u8>,
    },
    /// The request is rejected.
    Rejected {
        /// The reason.
        why: Rejection,
        /// Data for the requester.
        data: Vec<u8>,
    },
}

impl std::fmt::Debug for Control {
    /// Prints the kind of the frame, without the incarnation and the applications' data.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Request { .. } => "Control::Request",
            Self::Granted { .. } => "Control::Granted",
            Self::Rejected { .. } => "Control::Rejected",
        })
    }
}

/// The start of the payload of *granted*.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct GrantedBytes {
    address: AddressBytes,
    incarnation: [u8; 16],
    anywhere: u8,
    reserved: [u8; 3],
}

/// The kinds of the frame, in the head's `id`.
const REQUEST: u32 = 1;
const GRANTED: u32 = 2;
const REJECTED: u32 = 3;

impl Control {
    /// Returns the frame: its head and payload.
    #[must_use]
    pub fn to_frame(&self) -> (Head, Vec<u8>) {
        let (id, tag, payload) = match self {
            Self::Request { data } => (REQUEST, 0, data.clone()),
            Self::Granted { address, anywhere, incarnation, data } => {
                let granted = GrantedBytes {
                    address: AddressBytes::of(*address),
                    incarnation: incarnation.to_be_bytes(),
                    anywhere: u8::from(*anywhere),
                    reserved: [0; 3],
                };
                (GRANTED, 0, [granted.as_bytes(), data].concat())
            }
            Self::Rejected { why, data } => (REJECTED, *why as u64, data.clone()),
        };
        (Head { kind: FrameKind::Control, flags: Flags::ID, len: payload.len() as u32, tag, data: 0, id }, payload)
    }

    /// Parses a frame.
    ///
    /// # Errors
    /// A description of the defect.
    pub fn parse(head: &Head, payload: View<'_>) -> Result<Self, &'static str> {
        let data = |from: usize| {
            let len = payload.len().checked_sub(from).ok_or("control frame too short")?;
            if len > DATA_LIMIT {
                return Err("too much data in a connection request or reply");
            }
            Ok(payload.to_vec().split_off(from))
        };
        if head.flags != Flags::ID || head.data != 0 || (head.id != REJECTED && head.tag != 0) {
            return Err("a malformed control frame");
        }
        match head.id {
            REQUEST => Ok(Self::Request { data: data(0)? }),
            GRANTED => {
                let data = data(size_of::<GrantedBytes>())?;
                let granted = payload.read::<GrantedBytes>(0).ok_or("control frame too short")?;
                if granted.anywhere > 1 || granted.reserved != [0; 3] {
                    return Err("a malformed grant of a connection");
                }
                let address = granted.address.parse().map_err(|_| "a connection to an invalid address")?;
                let (anywhere, incarnation) = (granted.anywhere == 1, u128::from_be_bytes(granted.incarnation));
                Ok(Self::Granted { address, anywhere, incarnation, data })
            }
            REJECTED => {
                let why = match head.tag {
                    1 => Rejection::Owner,
                    2 => Rejection::Backlog,
                    3 => Rejection::Unanswered,
                    _ => return Err("a request that was rejected with an unknown reason"),
                };
                Ok(Self::Rejected { why, data: data(0)? })
            }
            _ => Err("an unknown control frame"),
        }
    }
}

/// Parses arbitrary bytes as a control frame, and checks that encoding the result gives the same bytes.
///
/// # Panics
/// If the bytes differ.
#[cfg(any(test, fuzzing))]
pub fn fuzz_control(bytes: &[u8]) {
    let Some((&[flags, id, tag], payload)) = bytes.split_first_chunk() else { return };
    let flags = Flags::from_bits_retain(flags);
    let head =
        Head { kind: FrameKind::Control, flags, len: payload.len() as u32, tag: tag.into(), data: 0, id: id.into() };
    if let Ok(control) = Control::parse(&head, View::of(payload)) {
        let (again, written) = control.to_frame();
        assert_eq!((again, &written[..]), (head, payload));
        assert!(written.len() <= CONTROL_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(head: &Head, payload: &[u8]) -> Result<Control, &'static str> {
        Control::parse(head, View::of(payload))
    }

    fn granted(data: Vec<u8>) -> Control {
        Control::Granted { address: "10.1.2.3:4".parse().unwrap(), anywhere: true, incarnation: 5 << 100, data }
    }

    proptest! {
        /// Requirements: CON-017.
        #[test]
        fn any_control_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            fuzz_control(&bytes);
        }

        /// Requirements: CON-017.
        #[test]
        fn damaged_frame_is_rejected_or_valid(
            which in 0..3_usize, len in 0..=DATA_LIMIT, at in 0..400_usize, value: u8
        ) {
            let data = vec![7; len];
            let all = [Control::Request { data: data.clone() }, granted(data.clone()),
                Control::Rejected { why: Rejection::Owner, data }];
            let (head, mut payload) = all[which].to_frame();
            prop_assert_eq!(parse(&head, &payload), Ok(all[which].clone()));
            if let Some(byte) = payload.get_mut(at) {
                *byte = value;
            }
            if let Ok(read) = parse(&head, &payload) {
                prop_assert_eq!(read.to_frame(), (head, payload));
            }
        }
    }

    /// Requirements: CON-017.
    #[test]
    fn invalid_control_frames_are_rejected() {
        let (head, payload) = granted(vec![1; DATA_LIMIT]).to_frame();
        assert_eq!(payload.len(), CONTROL_BYTES);
        assert!(parse(&head, &payload).is_ok(), "as much data as is allowed");
        for len in [0, 1, 39] {
            assert!(parse(&head, &payload[..len]).is_err(), "a grant of {len} bytes");
        }
        let long = [payload.clone(), vec![1]].concat();
        assert!(parse(&head, &long).is_err(), "too much data");
        for (at, value) in [(0, 5), (2, 0), (36, 2), (37, 1), (39, 1)] {
            let mut wrong = payload.clone();
            wrong[at] = value;
            if at == 2 {
                wrong[3] = 0; // Port 0.
            }
            assert!(parse(&head, &wrong).is_err(), "byte {at}");
        }
        for wrong in [
            Head { id: 0, ..head },
            Head { id: 4, ..head },
            Head { tag: 1, ..head },
            Head { data: 1, ..head },
            Head { flags: Flags::empty(), ..head },
            Head { flags: Flags::ID | Flags::DATA, ..head },
            Head { id: REJECTED, tag: 0, ..head },
            Head { id: REJECTED, tag: 4, ..head },
            Head { id: REQUEST, tag: 0, ..head }, // 296 bytes of data.
        ] {
            assert!(parse(&wrong, &payload).is_err(), "{wrong:?}");
        }
    }
}
