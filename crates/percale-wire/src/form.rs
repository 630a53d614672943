//! The form of a frame: the flags, the length and the unused fields that the frames of each kind have.
//!
//! A link checks the form of every frame before it reads the payload ([`Head::check`]). A frame with another form was
//! not sent by percale, and breaks the connection over which it arrived. The form states nothing about the values of
//! fields that are used, or about the state of the connection: the modules that use the values check these.

use std::fmt;

use zerocopy::little_endian::U64;

use super::control::CONTROL_BYTES;
use super::head::{AtomicHead, Flags, FrameKind, Head, Offer, RMA_EAGER, ReadHead, WriteNotice};
use super::located::LocatedBytes;
use super::queue_pair::OfferedBytes;

/// The longest payload of a message, and of a write, in one frame of a byte stream. It is about the size of a socket's
/// buffers.
pub const STREAM_EAGER: usize = 512 << 10;

/// The longest payload of one [`FrameKind::Data`] frame of a byte stream. Other frames may be sent between two of them.
pub const STREAM_DATA: usize = 256 << 10;

/// The length of the payload of a [`FrameKind::Pull`] in a ring.
pub const RING_PULL: usize = 40;

/// The length of the payload of a [`FrameKind::Resolved`].
pub const RESOLVED_BYTES: usize = 48;

/// The length of the payload of a [`FrameKind::Assist`].
pub const ASSIST_BYTES: usize = 32;

/// The longest payload of an atomic operation, or of an answer with data: the data and its parameters.
const ACCESS: usize = RMA_EAGER + 64;

/// The number of kinds, including the number 0, which is not a kind.
const KINDS: usize = FrameKind::Revoked as usize + 1;

/// The defect of a frame whose form is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormError {
    /// Frames of this kind are not sent over this kind of connection.
    Kind,
    /// Frames of this kind do not have these flags.
    Flags,
    /// The payload is shorter than any payload of this kind.
    Short,
    /// The payload is longer than any payload of this kind.
    Long,
    /// A field that has no meaning in this frame is not 0.
    Unused,
}

impl FormError {
    /// Returns the defect as text.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Kind => "invalid frame kind for this transport",
            Self::Flags => "a frame with flags that its kind does not have",
            Self::Short => "a frame that is too short for its kind",
            Self::Long => "a frame with more payload bytes than its kind allows",
            Self::Unused => "a frame with a value in an unused field",
        }
    }
}

impl fmt::Display for FormError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The form of the frames of one kind.
#[derive(Clone, Copy, Debug)]
struct Form {
    /// The valid combinations of flags: bit `n` is set if [`Flags`] with the bits `n` are valid.
    flags: u64,
    /// The length of the shortest payload.
    shortest: u32,
    /// The difference between the longest and the shortest payload.
    span: u32,
    /// The bits of the tag that are 0 in every frame: none or all.
    no_tag: u64,
    /// Whether `data` is used without [`Flags::DATA`].
    plain_data: bool,
}

/// The forms of the kinds over one kind of connection.
#[derive(Clone, Copy, Debug)]
pub struct Forms([Form; KINDS]);

/// The forms of frames in a byte stream.
pub static STREAM: Forms = Forms::new(true);

/// The forms of frames in a ring of shared memory.
pub static RING: Forms = Forms::new(false);

/// Returns the set of these combinations of flags.
const fn any_of(combinations: &[Flags]) -> u64 {
    let (mut set, mut at) = (0, 0);
    while at < combinations.len() {
        set |= 1_u64.wrapping_shl(combinations[at].bits() as u32);
        at = at.wrapping_add(1);
    }
    set
}

const NONE: Flags = Flags::empty();
const DATA: Flags = Flags::DATA;
const ID: Flags = Flags::ID;
const DATA_ID: Flags = DATA.union(ID);
const ACK: Flags = ID.union(Flags::ACK);
const DATA_ACK: Flags = ACK.union(DATA);
const INVALIDATES: Flags = DATA_ACK.union(Flags::INVALIDATE);

/// The flags of a message with its payload. A message has a number if it requests an acknowledgement.
const EAGER: &[Flags] = &[NONE, DATA, ACK, DATA_ACK, INVALIDATES];
/// The flags of an offer of a message.
const OFFERED: &[Flags] = &[ID, DATA_ID, ACK, DATA_ACK, INVALIDATES];
/// The flags of a request of an access. A write that carries completion data is not a part of another access.
const ACCESSES: &[Flags] = &[DATA_ID, DATA_ID.union(Flags::PART)];
const WRITES: &[Flags] = &[DATA_ID, DATA_ID.union(Flags::PART), DATA_ID.union(Flags::TELLS)];

impl Form {
    /// No frame has this form.
    const INVALID: Self = Self { flags: 0, shortest: 0, span: 0, no_tag: 0, plain_data: false };

    /// Creates the form of frames with one of these combinations of flags and a payload of these lengths.
    const fn new(flags: &[Flags], shortest: usize, longest: usize) -> Self {
        let span = (longest as u32).saturating_sub(shortest as u32);
        Self { flags: any_of(flags), shortest: shortest as u32, span, no_tag: 0, plain_data: false }
    }

    /// Creates the form of frames with a payload of this length.
    const fn exactly(flags: &[Flags], len: usize) -> Self {
        Self::new(flags, len, len)
    }

    /// Returns whether this combination of flags is valid.
    #[inline(always)]
    const fn has(&self, flags: Flags) -> bool {
        self.flags.wrapping_shr(flags.bits() as u32) & 1 != 0
    }

    const fn without_tag(self) -> Self {
        Self { no_tag: u64::MAX, ..self }
    }

    const fn with_plain_data(self) -> Self {
        Self { plain_data: true, ..self }
    }

    /// Returns the form of the frames of a kind.
    const fn of(kind: FrameKind, stream: bool) -> Self {
        use FrameKind as K;
        // A ring has its own limit, which depends on its size.
        let eager = if stream { STREAM_EAGER } else { u32::MAX as usize };
        let offer = size_of::<Offer>();
        match kind {
            // The tag of an untagged message is not read.
            K::Message | K::Tagged => Self::new(EAGER, 0, eager),
            K::MessageOffer | K::TaggedOffer => Self::exactly(OFFERED, offer),
            K::Pull => Self::exactly(&[ID], if stream { size_of::<U64>() } else { RING_PULL }),
            // The end of a pull that failed has a reason if the pull was announced by a read, over a stream.
            K::Data if stream => Self::new(&[ID, DATA_ID], 0, STREAM_DATA),
            K::Data => Self::new(&[ID], 0, eager),
            K::Pulled | K::Offers | K::Counts => Self::exactly(&[ID], 0).without_tag(),
            K::Ack => Self::exactly(&[ID], 0),
            K::Bye | K::Nothing => Self::exactly(&[NONE], 0).without_tag(),
            K::Transport if !stream => Self::exactly(&[NONE], 0),
            K::Write => Self::new(WRITES, 0, eager),
            K::WriteOffer => Self::exactly(ACCESSES, offer),
            K::Read => Self::exactly(ACCESSES, size_of::<ReadHead>()),
            K::ReadData => Self::new(&[ID, DATA_ID], 0, ACCESS).without_tag(),
            K::ReadOffer => Self::exactly(&[ID], offer),
            K::Atomic => Self::new(ACCESSES, size_of::<AtomicHead>(), ACCESS),
            K::Done => Self::exactly(&[ID, DATA_ID], 0),
            K::Wrote => Self::exactly(&[ID, DATA_ID], size_of::<WriteNotice>()),
            K::Resolve if !stream => Self::exactly(&[DATA_ID], 0).without_tag(),
            K::Resolved if !stream => Self::exactly(&[ID], RESOLVED_BYTES).without_tag(),
            K::Assist if !stream => Self::exactly(&[DATA_ID], ASSIST_BYTES),
            K::Control => Self::new(&[ID], 0, CONTROL_BYTES),
            K::Collective => Self::new(&[DATA], 0, eager),
            K::CollectiveOffer => Self::exactly(&[DATA_ID], offer),
            K::QueuePair if stream => Self::exactly(&[ID], size_of::<OfferedBytes>()).without_tag(),
            K::Locate if stream => Self::exactly(&[ID], 0).without_tag().with_plain_data(),
            K::Located if stream => Self::exactly(&[ID], size_of::<LocatedBytes>()).without_tag(),
            K::Revoked if stream => Self::exactly(&[ID], 0).with_plain_data(),
            K::Transport | K::Resolve | K::Resolved | K::Assist => Self::INVALID,
            K::QueuePair | K::Locate | K::Located | K::Revoked => Self::INVALID,
        }
    }
}

impl Forms {
    const fn new(stream: bool) -> Self {
        let (mut forms, mut number) = ([Form::INVALID; KINDS], 0);
        while number < KINDS {
            if let Some(kind) = FrameKind::from_u8(number as u8) {
                forms[number] = Form::of(kind, stream);
            }
            number = number.wrapping_add(1);
        }
        Self(forms)
    }
}

impl Head {
    /// Checks the form of the frame with this head.
    ///
    /// # Errors
    /// The defect of the frame.
    #[inline(always)]
    pub const fn check(&self, forms: &Forms) -> Result<(), FormError> {
        let form = &forms.0[self.kind as usize];
        let has = form.has(self.flags);
        let fits = self.len.wrapping_sub(form.shortest) <= form.span;
        let data = self.data == 0 || self.flags.contains(Flags::DATA) || form.plain_data;
        let id = self.id == 0 || self.flags.contains(Flags::ID);
        if has && fits && data && id && self.tag & form.no_tag == 0 { Ok(()) } else { Err(self.defect(form)) }
    }

    #[cold]
    const fn defect(&self, form: &Form) -> FormError {
        if form.flags == 0 {
            FormError::Kind
        } else if !form.has(self.flags) {
            FormError::Flags
        } else if self.len < form.shortest {
            FormError::Short
        } else if self.len.wrapping_sub(form.shortest) > form.span {
            FormError::Long
        } else {
            FormError::Unused
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn head(kind: FrameKind, flags: Flags, len: usize) -> Head {
        Head { kind, flags, len: len as u32, tag: 0, data: 0, id: 0 }
    }

    /// Requirements: FLT-008.
    #[test]
    fn frames_of_another_form_are_invalid() {
        let message = head(FrameKind::Message, NONE, STREAM_EAGER);
        assert_eq!(message.check(&STREAM), Ok(()));
        for (wrong, defect) in [
            (Head { len: message.len + 1, ..message }, FormError::Long),
            (Head { flags: Flags::ACK, ..message }, FormError::Flags),
            (Head { flags: Flags::ID, ..message }, FormError::Flags),
            (Head { flags: Flags::INVALIDATE.union(DATA), ..message }, FormError::Flags),
            (Head { data: 1, ..message }, FormError::Unused),
            (Head { id: 1, ..message }, FormError::Unused),
            (head(FrameKind::Pull, ID, 7), FormError::Short),
            (head(FrameKind::Pull, ID, 9), FormError::Long),
            (head(FrameKind::Pulled, ID, 1), FormError::Long),
            (Head { tag: 1, ..head(FrameKind::Pulled, ID, 0) }, FormError::Unused),
            (head(FrameKind::Transport, NONE, 0), FormError::Kind),
            (head(FrameKind::Resolve, DATA_ID, 0), FormError::Kind),
        ] {
            assert_eq!(wrong.check(&STREAM), Err(defect), "{wrong:?}");
        }
        assert_eq!(head(FrameKind::Transport, NONE, 0).check(&RING), Ok(()));
        assert_eq!(head(FrameKind::Locate, ID, 0).check(&RING), Err(FormError::Kind));
        assert_eq!(Head { data: 5, ..head(FrameKind::Locate, ID, 0) }.check(&STREAM), Ok(()));
    }

    #[test]
    fn every_kind_has_a_form_over_some_transport() {
        for number in 0..=u8::MAX {
            let Some(kind) = FrameKind::from_u8(number) else { continue };
            let forms = [&STREAM, &RING].map(|forms| forms.0[kind as usize]);
            assert!(forms.iter().any(|form| form.flags != 0), "{kind:?}");
            // Only these combinations fit into the set.
            assert!(Flags::all().bits() < 64);
        }
    }
}
