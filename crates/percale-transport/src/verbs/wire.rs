//! A byte stream over one queue pair, which carries the frames of a link.
//!
//! Bytes are copied into slots of registered memory and sent as messages of at most [`SLOT`] bytes. The receiver copies
//! them out of the slot that the device chose, and posts that slot again. So a message is one piece of the stream,
//! independent of frame boundaries, and no user memory is registered.
//!
//! **Credits.** A message needs a posted receive, so each side counts credits (`credit`). A message never arrives at a
//! device without a posted receive. A side that does not read stops only the other side's sending.
//!
//! **End of the connection.** When a queue pair is destroyed, its peer is not notified. So the two sides keep the TCP
//! connection of the handshake, and send nothing over it. When that connection ends, the peer has ended. Data that was
//! acknowledged before has arrived by then, and is delivered first.
//!
//! Everything that the device or the peer reports is checked, including slots, numbers of bytes and numbers of credits.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::Rights;
use super::credit::{Credits, RECEIVES, SENDS};
use super::wire_pair::{COMPLETIONS, make_pair};
use super::{Adapter, Completion, CompletionQueue, Gid, MemoryRegion, Path, QueuePair, QueuePairEnd, status};
use crate::Broken;
use crate::local_memory::volatile::{Segments, ViewExt as _};
use crate::tcp::{Socket, Stream};

/// The maximum number of bytes of a message.
const SLOT: usize = 4 << 10;
/// After the end of the peer was detected, the link waits until no data has arrived for this time. Data takes a
/// different path than the end of the TCP connection, so it may arrive later.
const LAST_LOOKS: Duration = Duration::from_millis(20);

/// The bit of a request's identifier that marks a receive. The other bits contain the slot.
const RECEIVE: u64 = 1 << 62;
/// The bit of a request's identifier that marks a note.
const NOTE: u64 = 1 << 63;
/// The bit of a request's identifier that marks an access over another queue pair, which completes in the same queue.
const ACCESS: u64 = 1 << 61;
/// The bit of a request's identifier that marks the message that tests the connection.
const TRIAL: u64 = 1 << 60;

/// One end of the stream.
#[derive(Debug)]
pub struct Wire {
    pair: QueuePair,
    adapter: Arc<Adapter>,
    path: Path,
    ours: QueuePairEnd,
    /// The address of the connected peer.
    peer: OnceLock<Gid>,
    /// Whether the peer has sent its test message, which it may send only once.
    tried: bool,
    /// The TCP connection, once it is established. When it ends, the peer has ended.
    watched: Option<Arc<Socket>>,
    /// Descriptors of this wire for its owner's epoll set. They wake up a sleeping thread on asynchronous events of the
    /// device and when the device is lost.
    events: Vec<OwnedFd>,
    /// The credits. The slot of a message is its number in the ring.
    credits: Credits,
    /// The number of bytes that were posted. The next fields are the number of bytes of the first `delivered` messages,
    /// which are known to have arrived at the peer, and the number of those messages.
    bytes_sent: u64,
    bytes_delivered: u64,
    delivered: u64,
    /// The number of bytes in each slot that is in flight.
    lengths: [u32; SENDS],
    /// The slots with unread bytes, and the number of bytes in each.
    arrived: VecDeque<(usize, usize)>,
    /// The number of bytes of the first of these slots that were already read.
    taken: usize,
    /// Whether each receive is posted.
    posted: [bool; RECEIVES],
    /// The numbers and statuses of completed accesses.
    accesses: Vec<(u64, i32)>,
    /// If the end of the peer was detected, the time since which nothing has arrived.
    ended: Option<Instant>,
    failed: Option<Broken>,
}

impl Wire {
    /// Creates a wire that is not connected yet. [`ours`](Self::ours) is the data that the peer needs.
    ///
    /// # Errors
    /// The error that the device reports. ENOMEM usually means that the limit of locked memory is reached.
    pub fn new(adapter: &Arc<Adapter>) -> io::Result<Self> {
        let buffers = MemoryRegion::new(adapter.domain(), (SENDS + RECEIVES) * SLOT, Rights::LOCAL_WRITE)?;
        let pair = make_pair(&buffers)?;
        let path = adapter.look_again()?;
        pair.prepare(path, Rights::empty())?;
        let ours = adapter.end(pair.number())?;
        let mut wire = Self {
            pair,
            adapter: Arc::clone(adapter),
            path,
            ours,
            peer: OnceLock::new(),
            tried: false,
            watched: None,
            events: Vec::new(),
            credits: Credits::new(),
            bytes_sent: 0,
            bytes_delivered: 0,
            delivered: 0,
            lengths: [0; SENDS],
            arrived: VecDeque::new(),
            taken: 0,
            posted: [false; RECEIVES],
            accesses: Vec::new(),
            ended: None,
            failed: None,
        };
        for slot in 0..RECEIVES {
            wire.post_receive(slot)?;
        }
        Ok(wire)
    }

    /// Returns the data that the peer needs to connect.
    #[must_use]
    pub const fn ours(&self) -> QueuePairEnd {
        self.ours
    }

    /// Connects the queue pair. The peer has to connect too before this side sends.
    ///
    /// # Errors
    /// The error that the device reports, which may refer to the peer's address.
    pub fn connect(&self, peer: &QueuePairEnd) -> io::Result<()> {
        self.pair.connect(self.path, &self.ours, peer)?;
        self.peer.get_or_init(|| peer.gid);
        Ok(())
    }

    /// Sends a message without data, and waits for the acknowledgement of the peer's device, which proves that each
    /// side reaches the other. The side that connects last calls this before it sends anything else.
    ///
    /// # Errors
    /// The error that the device reports; ETIMEDOUT if no acknowledgement arrives.
    pub(crate) fn try_out(&mut self, limit: Duration) -> io::Result<()> {
        self.pair.post_send(TRIAL, 0, 0, None)?;
        let queue = Arc::clone(self.pair.queue());
        match queue.finish(TRIAL, limit, |one| self.completed(&one))? {
            Some(0) => Ok(()),
            Some(status) => {
                crate::later::later!(debug: status, "a queue pair's first message was not acknowledged");
                Err(io::Error::from_raw_os_error(libc::EHOSTUNREACH))
            }
            None => Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
        }
    }

    /// Returns the address of the peer, once connected.
    pub(super) fn peer(&self) -> Option<Gid> {
        self.peer.get().copied()
    }

    /// Takes over the established TCP connection, over which nothing more is sent. When it ends, the peer has ended.
    ///
    /// # Errors
    /// If there are no descriptors left.
    #[doc(hidden)]
    pub fn watch(&mut self, connection: Socket) -> io::Result<()> {
        let context = self.adapter.domain().context();
        self.events = vec![context.as_fd().try_clone_to_owned()?, context.gone().try_clone_to_owned()?];
        let connection = Arc::new(connection);
        self.pair.queue().ends(&connection);
        self.watched = Some(connection);
        Ok(())
    }

    /// Returns a descriptor that is readable when something has completed after [`arm`](Self::arm).
    #[must_use]
    pub fn completions(&self) -> BorrowedFd<'_> {
        self.pair.queue().channel().as_fd()
    }

    /// Returns the descriptors that become readable when [`look`](Self::look) should be called.
    pub fn watches(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.watched.iter().map(|socket| socket.as_fd()).chain(self.events.iter().map(OwnedFd::as_fd))
    }

    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub(super) fn fail_pair(&self) {
        self.pair.fail().expect("a queue pair in error");
    }

    /// Describes the device, the port and the address as text.
    #[must_use]
    pub fn describe(&self) -> String {
        self.adapter.describe()
    }

    /// Requests a wake-up of a thread that sleeps on the descriptor for the next completion. Completions that have
    /// already arrived do not cause a wake-up.
    pub fn arm(&mut self) {
        self.pair.queue().drain_notifications();
        if let Err(error) = self.pair.queue().arm() {
            self.fail(Broken::Died(error.to_string()));
        }
    }

    /// Checks whether the end of the peer or of the device was reported.
    #[cold]
    pub fn look(&mut self) {
        let context = self.adapter.domain().context();
        context.look();
        if let Some(why) = context.lost() {
            self.fail(Broken::Died(why));
        }
        if self.pair.queue().has_failed() {
            self.fail(Broken::Died("the completion queue of the RDMA device failed".to_owned()));
        }
        let Some(connection) = &self.watched else { return };
        match rustix::net::recv(&**connection, &mut [0u8; 16], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((0, _)) => _ = self.ended.get_or_insert_with(Instant::now),
            Ok(_) => self.fail(Broken::Protocol("unexpected bytes on the idle TCP connection".into())),
            Err(Errno::TIMEDOUT) => {
                self.fail(Broken::Timeout("its host did not answer the probes of the connection".into()));
            }
            Err(_) => _ = self.ended.get_or_insert_with(Instant::now),
        }
    }

    /// Returns whether the stream has failed or the peer has ended.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.failed.is_some() || self.ended.is_some()
    }

    /// Returns the queue in which the queue pairs for accesses complete as well, with identifiers from [`access_id`].
    pub(super) const fn queue(&self) -> &Arc<CompletionQueue> {
        self.pair.queue()
    }

    /// Returns the adapter.
    pub(super) const fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// Returns the numbers and statuses of completed accesses. A caller that takes the list puts an empty list back.
    pub(super) const fn accesses(&mut self) -> &mut Vec<(u64, i32)> {
        &mut self.accesses
    }

    /// Returns the description of a status.
    pub(super) fn explain(&self, status: i32) -> String {
        self.pair.queue().explain(status)
    }

    /// Returns the number of bytes that were sent, and the number of bytes that are known to have arrived at the peer's
    /// device.
    #[must_use]
    pub const fn progress(&self) -> (u64, u64) {
        (self.bytes_sent, self.bytes_delivered)
    }

    fn fail(&mut self, why: Broken) {
        crate::later::later!(debug: %why, "a queue pair's connection failed");
        self.failed.get_or_insert(why);
    }

    fn post_receive(&mut self, slot: usize) -> io::Result<()> {
        self.pair.post_receive(RECEIVE | slot as u64, receive_offset(slot), SLOT)?;
        self.posted[slot] = true;
        Ok(())
    }

    /// Posts a receive into a slot again.
    fn repost(&mut self, slot: usize) {
        if self.failed.is_none()
            && let Err(error) = self.post_receive(slot)
        {
            self.fail(Broken::Died(error.to_string()));
        }
    }

    /// Processes all completions, and returns their number. A completion that is left in the queue would not cause a
    /// wake-up.
    #[inline]
    fn take(&mut self) -> usize {
        let mut all = 0;
        // A conforming peer never sends more than the queue holds. The next call processes the rest.
        while all < COMPLETIONS {
            let count = self.take_some();
            all += count;
            if count < super::POLLED {
                break;
            }
        }
        all
    }

    #[inline]
    fn take_some(&mut self) -> usize {
        let mut some = [None; super::POLLED];
        let mut count = 0;
        let polled = self.pair.queue().poll(|one| {
            if let Some(place) = some.get_mut(count) {
                *place = Some(one);
                count += 1;
            }
        });
        if let Err(error) = polled {
            self.fail(Broken::Died(error.to_string()));
        }
        for one in some.iter().take(count).flatten() {
            self.completed(one);
        }
        count
    }

    fn completed(&mut self, one: &Completion) {
        if one.id & (ACCESS | RECEIVE | NOTE) == ACCESS {
            return self.accesses.push((one.id & !ACCESS, one.status));
        }
        if one.status != 0 {
            return self.handle_error(one);
        }
        let result = match one.id {
            id if id & RECEIVE != 0 => self.received((id & !RECEIVE) as usize, one),
            NOTE => self.credits.acknowledge_note(),
            id => self.credits.acknowledge(id),
        };
        if let Err(what) = result {
            self.fail(Broken::Protocol(format!("the device completed {what}")));
        }
        while self.delivered < self.credits.delivered() {
            self.bytes_delivered += u64::from(self.lengths[ring(self.delivered)]);
            self.delivered += 1;
        }
    }

    /// Handles a message that has arrived.
    fn received(&mut self, slot: usize, one: &Completion) -> Result<(), &'static str> {
        let posted = self.posted.get_mut(slot).ok_or("completion of a receive with an invalid slot")?;
        if !std::mem::replace(posted, false) || one.len as usize > SLOT {
            return Err("a receive that was not posted");
        }
        if one.invalidated.is_some() {
            // Some devices allow such a message over any queue pair.
            return Err("message that invalidates a local key");
        }
        if one.len == 0 && one.immediate.is_none() && !std::mem::replace(&mut self.tried, true) {
            self.repost(slot);
            return Ok(());
        }
        let immediate = one.immediate.unwrap_or(0);
        if let Err(what) = self.credits.come(one.len == 0, immediate, self.arrived.len()) {
            self.fail(Broken::Protocol(what.into()));
        } else if one.len == 0 {
            self.repost(slot);
        } else {
            self.arrived.push_back((slot, one.len as usize));
        }
        Ok(())
    }

    #[cold]
    fn handle_error(&mut self, one: &Completion) {
        let text = self.pair.queue().explain(one.status);
        self.fail(match one.status {
            status::RETRY_EXC_ERR | status::RNR_RETRY_EXC_ERR => {
                Broken::Timeout(format!("the peer's device did not answer: {text}"))
            }
            status::WR_FLUSH_ERR => Broken::Died(format!("the queue pair is in error: {text}")),
            _ => Broken::Died(format!("a request failed: {text}")),
        });
    }

    /// Returns credits for slots that were posted again, once there are so many that the peer may be waiting for them.
    fn give_back(&mut self) {
        let Some(owed) = self.credits.note().filter(|_| self.failed.is_none()) else { return };
        match self.pair.post_send(NOTE, 0, 0, Some(owed)) {
            Ok(()) => self.credits.noted(),
            Err(error) => self.fail(Broken::Died(error.to_string())),
        }
    }

    /// Sends the first `len` bytes of the next slot.
    #[inline]
    fn send_slot(&mut self, len: usize) -> bool {
        let number = self.credits.next();
        let slot = ring(number);
        if let Err(error) = self.pair.post_send(number, slot * SLOT, len, self.credits.owed()) {
            self.fail(Broken::Died(error.to_string()));
            return false;
        }
        self.lengths[slot] = len as u32;
        self.credits.spend();
        self.bytes_sent += len as u64;
        true
    }

    const fn error(&self) -> Errno {
        match self.failed {
            Some(Broken::Timeout(_)) => Errno::TIMEDOUT,
            _ => Errno::CONNRESET,
        }
    }
}

/// Returns the request identifier of the access with this number.
pub(super) const fn access_id(number: u64) -> u64 {
    ACCESS | number & (ACCESS - 1)
}

/// Returns the slot of a message.
const fn ring(number: u64) -> usize {
    (number % SENDS as u64) as usize
}

/// Returns the offset of a receive's slot in the buffers.
const fn receive_offset(slot: usize) -> usize {
    (SENDS + slot) * SLOT
}

#[doc(hidden)]
impl Stream for Wire {
    fn read(&mut self, into: &Segments, tail: &mut [u8]) -> Result<usize, Errno> {
        let came = self.take();
        let (mut done, room) = (0, into.len() + tail.len());
        while done < room
            && let Some(&(slot, len)) = self.arrived.front()
        {
            let bytes = self.pair.buffers().view(receive_offset(slot) + self.taken, len - self.taken);
            let copied = match done.checked_sub(into.len()) {
                None => bytes.copy_into(into, done),
                Some(at) => bytes.read_into(&mut tail[at..]),
            };
            (done, self.taken) = (done + copied, self.taken + copied);
            if self.taken == len {
                self.arrived.pop_front();
                self.taken = 0;
                self.repost(slot);
                self.credits.read();
            }
        }
        self.give_back();
        if done > 0 {
            return Ok(done);
        }
        if self.failed.is_some() {
            return Err(self.error());
        }
        match &mut self.ended {
            Some(since) if came == 0 && since.elapsed() >= LAST_LOOKS => Ok(0),
            Some(since) => {
                if came > 0 {
                    *since = Instant::now();
                }
                Err(Errno::AGAIN)
            }
            None => Err(Errno::AGAIN),
        }
    }

    fn write(&mut self, prefix: &[u8], from: &Segments) -> Result<usize, Errno> {
        if !self.credits.has_room() {
            self.take();
        }
        let (mut done, all) = (0, prefix.len() + from.len());
        while done < all {
            if self.failed.is_some() {
                return Err(self.error());
            }
            if !self.credits.has_room() {
                return if done > 0 { Ok(done) } else { Err(Errno::AGAIN) };
            }
            let (buffers, slot) = (self.pair.buffers(), ring(self.credits.next()) * SLOT);
            let front = buffers.copy_in(&prefix[done.min(prefix.len())..], slot, SLOT);
            let at = (done + front).saturating_sub(prefix.len());
            let filled = front + buffers.gather(from, at, slot + front, SLOT - front);
            if !self.send_slot(filled) {
                return Err(self.error());
            }
            done += filled;
        }
        Ok(done)
    }

    /// Returns whether everything that was sent is acknowledged, everything that arrived was read, and no end was
    /// detected.
    #[inline]
    fn is_calm(&self) -> bool {
        self.credits.is_calm() && self.ended.is_none() && self.failed.is_none() && self.arrived.is_empty()
    }

    fn failure(&self) -> Option<&Broken> {
        self.failed.as_ref()
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "removed_tests.rs"]
mod removed_tests;

#[cfg(all(test, not(loom)))]
#[path = "wire_double_tests.rs"]
mod double_tests;
