//! A byte stream over one queue pair: what a link's frames travel in.
//!
//! Bytes are copied into slots of registered memory and sent as messages of at most [`SLOT`] bytes; the receiver copies them
//! out of the slot that the device chose, and posts that slot anew. So a message is one piece of the stream, whatever
//! frames it holds, and nothing of the user's memory is registered.
//!
//! **Credits.** A message needs a posted receive, so each side counts (`credit`): a message never arrives at a device without a receive, and a side
//! that does not read stops the other side and nothing else.
//!
//! **The end.** A queue pair that goes away sends nothing to its peer. So the two sides keep the TCP connection over which they met, and send nothing
//! over it: the end of that connection is the end of the peer. What was acknowledged before has arrived by then, and is delivered first.
//!
//! Everything that the device or the peer reports is checked: which slot, how many bytes, how many credits.

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
use super::{Adapter, Completion, CompletionQueue, End, Gid, MemoryRegion, Path, QueuePair, status};
use crate::Broken;
use crate::local_memory::volatile::{Segments, ViewExt as _};
use crate::tcp::{Socket, Stream};

/// Bytes of a message at most.
const SLOT: usize = 4 << 10;
/// How long the peer's last bytes are looked for after its end was seen, since something came last: they travel another way than the end of
/// the other connection.
const LAST_LOOKS: Duration = Duration::from_millis(20);

/// In a request's number: a receive, into the slot that the other bits name.
const RECEIVE: u64 = 1 << 62;
/// In a request's number: a note.
const NOTE: u64 = 1 << 63;
/// In a request's number: an access over another queue pair, which completes here.
const ACCESS: u64 = 1 << 61;
/// In a request's number: the message that tries the connection out.
const TRIAL: u64 = 1 << 60;

/// One end of the stream.
#[derive(Debug)]
pub struct Wire {
    pair: QueuePair,
    adapter: Arc<Adapter>,
    path: Path,
    ours: End,
    /// The address that it is connected to.
    peer: OnceLock<Gid>,
    /// The peer has tried the connection out, which it may do once.
    tried: bool,
    /// The TCP connection, once it is established. Its end is the end of the peer.
    watched: Option<Arc<Socket>>,
    /// Descriptors of this wire's own, for its owner's epoll: they wake a sleeping thread on the device's asynchronous events and when the device is
    /// lost.
    events: Vec<OwnedFd>,
    /// What may be sent, what was sent, and what the peer has to be notified of. A message's slot is its number in the ring.
    credits: Credits,
    /// Bytes that were posted; those of the first `delivered` messages, which are known to be with the peer; and the number of those messages.
    bytes_sent: u64,
    bytes_delivered: u64,
    delivered: u64,
    /// How many bytes each slot that is under way holds.
    lengths: [u32; SENDS],
    /// Slots with bytes to be read: which, and how many bytes.
    arrived: VecDeque<(usize, usize)>,
    /// How many bytes of the first of them were read.
    taken: usize,
    /// Which receives are posted.
    posted: [bool; RECEIVES],
    /// Accesses that completed: their numbers and statuses.
    accesses: Vec<(u64, i32)>,
    /// The peer's end was seen; since when nothing has come.
    ended: Option<Instant>,
    failed: Option<Broken>,
}

impl Wire {
    /// Makes one, not connected yet: [`ours`](Self::ours) is what the peer must know.
    ///
    /// # Errors
    /// The error that the device reports; ENOMEM mostly means that the limit of locked memory is reached.
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

    /// What the peer must know to connect.
    #[must_use]
    pub const fn ours(&self) -> End {
        self.ours
    }

    /// Connects. The peer must have done so, too, before this side sends.
    ///
    /// # Errors
    /// The error that the device reports, which may be about the peer's address.
    pub fn connect(&self, peer: &End) -> io::Result<()> {
        self.pair.connect(self.path, &self.ours, peer)?;
        self.peer.get_or_init(|| peer.gid);
        Ok(())
    }

    /// Sends a message of no bytes, and waits for the acknowledgement of the peer's device: then each reaches the other. For the side that
    /// connects last, before anything else is sent.
    ///
    /// # Errors
    /// The error that the device reports; ETIMEDOUT if nothing comes.
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

    /// The address that it is connected to, once it is.
    pub(super) fn peer(&self) -> Option<Gid> {
        self.peer.get().copied()
    }

    /// Takes the TCP connection, which is established, and over which nothing is sent any more. Its end is the end of the peer.
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

    /// Readable when something was completed after [`arm`](Self::arm).
    #[must_use]
    pub fn completions(&self) -> BorrowedFd<'_> {
        self.pair.queue().channel().as_fd()
    }

    /// Readable when [`look`](Self::look) should be called.
    pub fn watches(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.watched.iter().map(|socket| socket.as_fd()).chain(self.events.iter().map(OwnedFd::as_fd))
    }

    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub(super) fn fail_pair(&self) {
        self.pair.fail().expect("a queue pair in error");
    }

    /// Device, port and address, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        self.adapter.describe()
    }

    /// Makes the next completion wake a thread that sleeps on the descriptor. Completions that are there already do not wake it.
    pub fn arm(&mut self) {
        self.pair.queue().hush();
        if let Err(error) = self.pair.queue().arm() {
            self.fail(Broken::Died(error.to_string()));
        }
    }

    /// Looks whether the end of the peer or of the device was reported.
    #[cold]
    pub fn look(&mut self) {
        let context = self.adapter.domain().context();
        context.look();
        if let Some(why) = context.lost() {
            self.fail(Broken::Died(why));
        }
        if self.pair.queue().has_failed() {
            self.fail(Broken::Died("the RDMA device gave its completion queue up".to_owned()));
        }
        let Some(connection) = &self.watched else { return };
        match rustix::net::recv(&**connection, &mut [0u8; 16], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((0, _)) => _ = self.ended.get_or_insert_with(Instant::now),
            Ok(_) => self.fail(Broken::Protocol("bytes came over a connection that has nothing to say".into())),
            Err(Errno::TIMEDOUT) => {
                self.fail(Broken::Timeout("its host did not answer the probes of the connection".into()));
            }
            Err(_) => _ = self.ended.get_or_insert_with(Instant::now),
        }
    }

    /// Returns whether the stream carries nothing any more.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.failed.is_some() || self.ended.is_some()
    }

    /// The queue in which queue pairs for accesses complete, too: with numbers that [`access_id`] made.
    pub(super) const fn queue(&self) -> &Arc<CompletionQueue> {
        self.pair.queue()
    }

    /// The port.
    pub(super) const fn adapter(&self) -> &Arc<Adapter> {
        &self.adapter
    }

    /// Accesses that have completed: their numbers and statuses. A caller that takes the list puts it back, emptied.
    pub(super) const fn accesses(&mut self) -> &mut Vec<(u64, i32)> {
        &mut self.accesses
    }

    /// A status in words.
    pub(super) fn explain(&self, status: i32) -> String {
        self.pair.queue().explain(status)
    }

    /// Bytes that were sent, and those of them that are with the peer's device, or were.
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

    /// Gives a slot back to the device.
    fn repost(&mut self, slot: usize) {
        if self.failed.is_none()
            && let Err(error) = self.post_receive(slot)
        {
            self.fail(Broken::Died(error.to_string()));
        }
    }

    /// Takes all completions, and returns how many there were. No wake-up follows for completions that are left in the queue.
    #[inline]
    fn take(&mut self) -> usize {
        let mut all = 0;
        // No percale peer sends more than the queue holds. The rest has its turn at the next call.
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
            return self.went_wrong(one);
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

    /// A message has come.
    fn received(&mut self, slot: usize, one: &Completion) -> Result<(), &'static str> {
        let posted = self.posted.get_mut(slot).ok_or("a receive into no slot")?;
        if !std::mem::replace(posted, false) || one.len as usize > SLOT {
            return Err("a receive that was not posted");
        }
        if one.invalidated.is_some() {
            return Err("a message that invalidates one of our keys"); // Some devices let it, over any queue pair.
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
    fn went_wrong(&mut self, one: &Completion) {
        let text = self.pair.queue().explain(one.status);
        self.fail(match one.status {
            status::RETRY_EXC_ERR | status::RNR_RETRY_EXC_ERR => {
                Broken::Timeout(format!("its device did not answer: {text}"))
            }
            status::WR_FLUSH_ERR => Broken::Died(format!("the queue pair is in error: {text}")),
            _ => Broken::Died(format!("a request failed: {text}")),
        });
    }

    /// Sends credits to the peer for slots that were posted anew, once they are so many that the peer may be waiting for them.
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

/// What a request is called that is an access with this number.
pub(super) const fn access_id(number: u64) -> u64 {
    ACCESS | number & (ACCESS - 1)
}

/// The slot of a message.
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

    /// Returns whether everything that was sent is acknowledged, everything that arrived is read, and no end was seen.
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
