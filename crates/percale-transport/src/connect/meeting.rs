//! The meeting of two local endpoints over an abstract Unix socket: it verifies the process at the other end, and
//! exchanges the resources that each side needs from the other.
//!
//! The name of the acceptor's socket is derived from its incarnation. The initiator sends the token that it received
//! over TCP. Each side opens a pidfd of the other process, and its address space, *before* it sends its half of the
//! meeting. This half contains a random challenge that the other side has to return. The process that returns it was
//! alive after both descriptors were opened, so its process id had not been reused at that time. All operations are
//! non-blocking. Any failure is a [`Degraded`], and the connection continues over TCP.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use zerocopy::little_endian::{U32, U64};

use super::degraded::Degraded;
use super::liveness::{self, Credentials, WatchedObjects};
use super::mailbox::{LocalDoorbell, ShmParts};
use super::{listen, passing};
use crate::local_memory::kernel;
use crate::peer_process::PeerProcess;
use crate::shm::Mappings;
use crate::system::forked::{PerProcess, word_of_this_process};
use crate::system::interrupted::uninterrupted;
use crate::system::process_socket::ProcessSocket;
use crate::system::random::random;
use crate::wire::hello::{Incarnation, Token};
use crate::wire::meeting::{Confirm, MeetingAnswer, MeetingHalf, MeetingOffer};
use crate::wire::refusal_reason::RefusalReason;

/// A random word of this process, by which peers identify its memory: they read or write it together with the data that
/// they copy by process id. A forked child does not inherit the word, and creates its own if it needs one.
static WORD: PerProcess<Mutex<Option<&'static AtomicU64>>> = PerProcess::new();

/// Returns the word, which is created and filled on first use.
fn word() -> std::io::Result<&'static AtomicU64> {
    let mut word = WORD.get_or_make()?.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(word) = *word {
        return Ok(word);
    }
    let new = word_of_this_process()?;
    new.store(u64::from_ne_bytes(random()?), Ordering::Relaxed);
    *word = Some(new);
    Ok(new)
}

/// A bit of the local doorbell that is not owned by a link yet.
struct ReservedBit {
    doorbell: Arc<dyn LocalDoorbell>,
    bit: u32,
    given: bool,
}

impl ReservedBit {
    fn of(doorbell: &Arc<dyn LocalDoorbell>) -> Result<Self, Degraded> {
        let bit = doorbell.allocate().ok_or(Degraded::because(RefusalReason::DoorbellFull))?;
        Ok(Self { doorbell: Arc::clone(doorbell), bit, given: false })
    }

    fn give(mut self) -> u32 {
        self.given = true;
        self.bit
    }
}

impl Drop for ReservedBit {
    fn drop(&mut self) {
        if !self.given {
            self.doorbell.release(self.bit);
        }
    }
}

/// The resources that the other side passed, after all checks.
struct PassedResources {
    half: MeetingHalf,
    doorbell: OwnedFd,
    event: OwnedFd,
    mappings: Option<Mappings>,
}

/// The descriptors that a pair may use.
#[derive(Clone, Copy, Debug)]
pub(super) enum DescriptorBudget {
    /// All except some that are reserved for connections over TCP. A TCP connection needs one descriptor, and a pair
    /// needs several.
    Spare,
    /// All, because there is no other transport.
    All,
}

impl DescriptorBudget {
    /// The number of descriptors that pairs leave free. If a quarter of the process's limit is smaller, they leave that
    /// quarter free instead.
    const SPARE: u64 = 256;

    /// Checks whether there is room for a pair, given the newest descriptor. The kernel always assigns the lowest free
    /// number.
    fn check(self, newest: RawFd) -> Result<(), Degraded> {
        let limit = kernel::limit(libc::RLIMIT_NOFILE);
        let (Self::Spare, Some(limit)) = (self, limit) else { return Ok(()) };
        let most = limit.saturating_sub((limit / 4).min(Self::SPARE));
        let is_free = u64::try_from(newest).is_ok_and(|newest| newest < most);
        is_free.then_some(()).ok_or(Degraded::because(RefusalReason::Descriptors))
    }
}

/// One side of a meeting.
pub(super) struct Meeting {
    side: usize,
    control: ProcessSocket,
    watched: WatchedObjects,
    who: Credentials,
    bit: ReservedBit,
    ours: MeetingHalf,
    pair: OwnedFd,
    passed: Option<PassedResources>,
}

impl Meeting {
    fn new(
        side: usize,
        control: ProcessSocket,
        doorbell: &Arc<dyn LocalDoorbell>,
        room: DescriptorBudget,
        pair: impl FnOnce() -> Result<OwnedFd, Degraded>,
    ) -> Result<Self, (ProcessSocket, Degraded)> {
        let gathered = (|| {
            let who = liveness::credentials(control.as_fd())?;
            if who.uid != rustix::process::geteuid().as_raw() {
                return Err(Degraded::because(RefusalReason::AnotherUser));
            }
            let pidfd = liveness::peer_pidfd(control.as_fd(), who.pid).map_err(Degraded::from).map_err(|error| {
                if error.why == RefusalReason::Descriptors {
                    error
                } else {
                    Degraded { why: RefusalReason::PeerUnknown, ..error }
                }
            })?;
            let process = Arc::new(PeerProcess::new(who.pid, pidfd)?);
            let duplicate = control.try_clone()?;
            room.check(duplicate.as_raw_fd())?;
            let watched = WatchedObjects { process, control: duplicate };
            let bit = ReservedBit::of(doorbell)?;
            let word = word()?;
            let ours = MeetingHalf {
                bit: U32::new(bit.bit),
                reserved: U32::new(0),
                word_address: U64::new(std::ptr::from_ref(word).addr() as u64),
                word_value: U64::new(word.load(Ordering::Relaxed)),
                challenge: U64::new(u64::from_ne_bytes(random()?)),
            };
            Ok((who, watched, bit, ours, pair()?))
        })();
        match gathered {
            Ok((who, watched, bit, ours, pair)) => {
                Ok(Self { side, control, watched, who, bit, ours, pair, passed: None })
            }
            Err(degraded) => Err((control, degraded)),
        }
    }

    /// Starts the initiator's side: connects to the acceptor's socket and sends the offer.
    pub(super) fn call(
        doorbell: &Arc<dyn LocalDoorbell>,
        acceptor: &Incarnation,
        token: Token,
        room: DescriptorBudget,
    ) -> Result<Self, Degraded> {
        let (control, address) = listen::unix_socket(acceptor)?;
        uninterrupted(|| rustix::net::connect(&control, &address))?;
        let meeting = Self::new(0, control, doorbell, room, || {
            let pair = doorbell.make_pair()?;
            passing::check_memory(pair.as_fd(), doorbell.pair_bytes())?;
            Ok(pair)
        })
        .map_err(|(_, degraded)| degraded)?;
        let [page, event] = doorbell.descriptors().ok_or(Degraded::because(RefusalReason::ShmNotAllowed))?;
        let descriptors = [meeting.pair.as_fd(), page, event];
        passing::send(meeting.control.as_fd(), &MeetingOffer::new(token, meeting.ours), &descriptors)?;
        Ok(meeting)
    }

    /// Reads the answer at the initiator. Returns `true` once the answer has arrived and was confirmed.
    pub(super) fn read_answer(&mut self) -> Result<bool, Degraded> {
        let Some((answer, descriptors)) = passing::receive::<MeetingAnswer>(self.control.as_fd())? else {
            return Ok(false);
        };
        let bad = Degraded::because(RefusalReason::BadResources);
        let (why, errno) = answer.outcome().ok_or(bad)?;
        if why != RefusalReason::SameHost {
            return Err(Degraded { why, errno: errno.cast_signed() });
        }
        if answer.echo != self.ours.challenge {
            return Err(Degraded::because(RefusalReason::PeerUnknown));
        }
        let [peer_doorbell, event] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| bad)?;
        self.take(answer.half, peer_doorbell, event)?;
        passing::send(self.control.as_fd(), &Confirm::new(answer.half.challenge), &[])?;
        Ok(true)
    }

    /// Answers an offer as the acceptor. A failure is reported to the initiator, which then chooses TCP.
    pub(super) fn answer(
        doorbell: &Arc<dyn LocalDoorbell>,
        control: ProcessSocket,
        offer: &MeetingOffer,
        descriptors: Vec<OwnedFd>,
        room: DescriptorBudget,
    ) -> Result<Self, Degraded> {
        let bad = Degraded::because(RefusalReason::BadResources);
        let received = <[OwnedFd; 3]>::try_from(descriptors).map_err(|_| bad);
        let result = match received {
            Ok([pair, peer_doorbell, event]) => Self::new(1, control, doorbell, room, || {
                passing::check_memory(pair.as_fd(), doorbell.pair_bytes())?;
                Ok(pair)
            })
            .and_then(|mut meeting| match meeting.take(offer.half, peer_doorbell, event) {
                Ok(()) => Ok(meeting),
                Err(degraded) => Err((meeting.control, degraded)),
            }),
            Err(degraded) => Err((control, degraded)),
        };
        match result {
            Ok(meeting) => {
                let answer = MeetingAnswer::new(RefusalReason::SameHost, 0, offer.half.challenge, meeting.ours);
                let descriptors = doorbell.descriptors().ok_or(Degraded::because(RefusalReason::ShmNotAllowed))?;
                passing::send(meeting.control.as_fd(), &answer, &descriptors)?;
                Ok(meeting)
            }
            Err((control, degraded)) => {
                let answer =
                    MeetingAnswer::new(degraded.why, degraded.number(), offer.half.challenge, MeetingHalf::default());
                passing::send(control.as_fd(), &answer, &[])?;
                Err(degraded)
            }
        }
    }

    /// Reads the confirmation at the acceptor. Returns `true` once the initiator has confirmed.
    pub(super) fn read_confirm(&self) -> Result<bool, Degraded> {
        let Some((confirm, descriptors)) = passing::receive::<Confirm>(self.control.as_fd())? else { return Ok(false) };
        if !descriptors.is_empty() || confirm != Confirm::new(self.ours.challenge) {
            return Err(Degraded::because(RefusalReason::PeerUnknown));
        }
        Ok(true)
    }

    fn take(&mut self, half: MeetingHalf, doorbell: OwnedFd, event: OwnedFd) -> Result<(), Degraded> {
        passing::check_memory(doorbell.as_fd(), self.bit.doorbell.doorbell_bytes())?;
        passing::check_event(&event)?;
        // This process cannot use the memory if it cannot map it. At this point the connection can still change to
        // another transport.
        let mappings = self.bit.doorbell.map(self.pair.as_fd(), doorbell.as_fd())?;
        self.passed = Some(PassedResources { half, doorbell, event, mappings });
        Ok(())
    }

    /// Returns the socket, to be watched for packets.
    pub(super) const fn control(&self) -> &ProcessSocket {
        &self.control
    }

    /// Ends the meeting. Returns the parts of the link, the objects to watch from now on, and the credentials of the
    /// peer process. Returns `None` if the other side has not passed anything yet.
    pub(super) fn into_parts(self, cma: bool) -> Option<(ShmParts, WatchedObjects, Credentials)> {
        let PassedResources { half, doorbell, event, mappings } = self.passed?;
        let parts = ShmParts {
            side: self.side,
            pair: self.pair,
            my_bit: self.bit.give(),
            peer_doorbell: doorbell,
            mappings,
            peer_event: event,
            peer_bit: half.bit.get(),
            control: self.control,
            peer_nonce: (half.word_address.get(), half.word_value.get()),
            cma,
            process: Arc::clone(&self.watched.process),
        };
        Some((parts, self.watched, self.who))
    }
}
