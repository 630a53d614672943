//! Decides which links to poll, and when.
//!
//! * Shared memory: a poll costs a load, so recently active links ("hot", about [`HOT`]) are polled in every round. The
//!   others ("cold") ring the doorbell bitmap, which is checked in every round while there are cold links.
//! * TCP: a poll costs a system call. The hot socket is polled in every round. If it has nothing to read, all sockets
//!   are polled by epoll, because between two rounds the application may have yielded the processor, which takes longer
//!   than both calls. A busy hot socket delays the others for at most [`SWEEP`] rounds. A crowded thread
//!   (`system::spin`) that has several sockets polls only epoll. While shared memory is busy, sockets are polled only
//!   every [`SWEEP`] rounds, unless the thread is crowded. If the hot socket is the only one, epoll can report nothing
//!   else and is polled every [`LONE_SWEEP`] rounds.
//! * Links that hold something to be sent, or for which sends wait ("busy"), are polled until nothing waits.

use std::sync::Arc;

use crate::transport::any::AnyLink;
use crate::transport::shm::Doorbell;
use crate::transport::{ConnectionId, Link};

/// If more links than this are polled in every round, an idle shared-memory link becomes cold.
const HOT: usize = 64;

/// Rounds between two polls of every socket.
const SWEEP: u32 = 16;

/// Like [`SWEEP`], but if there is only one socket: one more epoll_wait(2) in each wait for a message made messages of
/// 8 bytes slower by 8 %.
const LONE_SWEEP: u32 = 1024;

/// Rounds between two polls of all cold links.
const COLD_SWEEP: u32 = 4096;

/// The number of rounds without a message after which reads of the rings no longer pause between two polls.
const LATELY: u32 = 16;

/// Rounds without a message after which shared memory no longer delays the polls of sockets.
const QUIET: u32 = 64;

/// The state that the poller keeps for one link.
#[derive(Clone, Copy, Debug, Default)]
struct LinkMark {
    busy: bool,
    hot: bool,
}

/// Decides which links are polled, and when.
#[derive(Debug)]
pub(crate) struct Poller {
    /// Wakes sleeping threads and tasks.
    doorbell: Arc<Doorbell>,
    /// Links that are polled in every round.
    pub(super) hot: Vec<ConnectionId>,
    /// The index in `hot` of the link that was polled last when messages are taken from one link at a time.
    turn: usize,
    /// Links with something to send, or sends that wait for them.
    pub(super) busy: Vec<ConnectionId>,
    /// The empty list that will take the marks of the next round.
    spare: Vec<ConnectionId>,
    /// Whether the busy links are being polled. A link that stays busy then need not wake sleepers.
    looking: bool,
    marks: Vec<LinkMark>,
    /// Slot + 1 by doorbell bit; 0 if the bit belongs to no link.
    by_bit: Vec<u32>,
    /// The number of shared-memory links that are cold.
    cold: usize,
    rung: Vec<u32>,
    /// The number of shared-memory links, hot and cold. (Links over queue pairs are always hot, and not counted here.)
    rings: usize,
    /// The number of links over TCP and over queue pairs.
    pub(super) sockets: usize,
    /// The socket that was active last.
    pub(super) hot_socket: Option<ConnectionId>,
    round: u32,
    /// The number of calls of [`may_skip_others`](Self::may_skip_others), modulo [`SWEEP`].
    skipped: u32,
    /// Rounds since a hot link delivered a frame.
    quiet: u32,
    /// The index in `hot` of the link that is cooled next when there are too many.
    hand: u32,
    /// The hot link that delivered a frame last.
    pub(super) last: ConnectionId,
    /// Whether the thread that polls shares its processor with others. Then a round may take as long as their time
    /// slices.
    crowded: bool,
}

impl Poller {
    pub(super) const fn new(doorbell: Arc<Doorbell>) -> Self {
        Self {
            doorbell,
            hot: Vec::new(),
            turn: 0,
            hand: 0,
            busy: Vec::new(),
            spare: Vec::new(),
            looking: false,
            marks: Vec::new(),
            by_bit: Vec::new(),
            cold: 0,
            rung: Vec::new(),
            rings: 0,
            sockets: 0,
            hot_socket: None,
            round: 0,
            skipped: 0,
            quiet: 0,
            last: 0,
            crowded: false,
        }
    }

    /// Records that a link took a frame. The link may still hold some bytes of the frame.
    #[inline]
    pub(super) fn sent(&mut self, slot: ConnectionId, link: &AnyLink) {
        if !matches!(link, AnyLink::Shm(_)) || !link.is_idle() {
            self.sent_slow(slot, link);
        }
    }

    #[inline(never)]
    fn sent_slow(&mut self, slot: ConnectionId, link: &AnyLink) {
        if matches!(link, AnyLink::Tcp(_)) {
            self.hot_socket = Some(slot);
        }
        if !link.is_idle() && self.waits(slot) && !self.looking {
            self.doorbell.wake(); // Sleepers that fell asleep before this have to take naps now.
        }
    }

    /// Marks this socket, the only link of the endpoint, as hot: it is polled in every round from the first.
    pub(super) const fn make_hot(&mut self, slot: ConnectionId) {
        (self.hot_socket, self.quiet) = (Some(slot), QUIET + 1);
    }

    /// Marks a link as busy because something waits for it. Returns whether it was not busy before.
    pub(super) fn waits(&mut self, slot: ConnectionId) -> bool {
        let mark = self.mark(slot);
        if mark.busy {
            return false;
        }
        mark.busy = true;
        self.busy.push(slot);
        true
    }

    fn mark(&mut self, slot: ConnectionId) -> &mut LinkMark {
        if self.marks.len() <= slot as usize {
            self.marks.resize(slot as usize + 1, LinkMark::default());
        }
        &mut self.marks[slot as usize]
    }

    /// Takes the list of busy links in order to poll them. The caller marks the links that stay busy again, then
    /// returns the list.
    pub(super) fn take_busy(&mut self) -> Vec<ConnectionId> {
        for &slot in &self.busy {
            self.marks[slot as usize].busy = false;
        }
        self.looking = true;
        // The list of the round before takes the marks of this one.
        std::mem::replace(&mut self.busy, std::mem::take(&mut self.spare))
    }

    /// Returns the list for reuse.
    pub(super) fn return_busy(&mut self, mut list: Vec<ConnectionId>) {
        self.looking = false;
        list.clear();
        self.spare = list;
    }

    /// Returns whether cold links have to be polled although no peer rang.
    #[inline]
    pub(super) fn cold_are_due(&self) -> bool {
        self.round.is_multiple_of(COLD_SWEEP)
    }

    /// Called in a round in which a hot link was active. Returns whether everything else can wait for another round:
    /// false at every [`SWEEP`]th call, otherwise true.
    #[inline]
    pub(super) fn may_skip_others(&mut self) -> bool {
        self.skipped = (self.skipped + 1) % SWEEP;
        self.skipped != 0
    }

    /// Begins a new round. Returns whether every socket is due, and whether sockets are due at all.
    #[inline]
    pub(super) fn round(&mut self) -> (bool, bool) {
        self.round = self.round.wrapping_add(1);
        self.quiet = self.quiet.saturating_add(1);
        let sweep = self.round.is_multiple_of(SWEEP);
        (sweep, sweep || self.crowded || self.quiet > QUIET)
    }

    /// Returns whether only epoll is polled, without a separate poll of the hot socket. The next message may come from
    /// any peer, so the poll of the hot socket would usually be unnecessary: in a ring of processes, two system calls
    /// in each round cost a quarter of the time of a hop.
    #[inline]
    pub(super) const fn asks_epoll_alone(&self) -> bool {
        self.crowded && self.sockets > 1
    }

    /// Returns whether epoll is polled after the hot socket. `received` states whether that socket delivered a frame,
    /// `sweep` whether every socket is due.
    #[inline]
    pub(super) fn asks_epoll(&self, received: bool, sweep: bool) -> bool {
        if self.sockets > 1 || self.hot_socket.is_none() {
            return sweep || !received;
        }
        sweep && self.round.is_multiple_of(LONE_SWEEP)
    }

    /// Returns whether a hot link delivered a frame in this round or the one before it.
    #[inline]
    pub(super) const fn was_active(&self) -> bool {
        self.quiet <= 1
    }

    /// Returns whether a message came so recently that the next one may come very soon.
    #[inline]
    pub(super) const fn was_recently_active(&self) -> bool {
        self.quiet <= LATELY
    }

    /// Returns whether sockets are polled in every round.
    #[inline]
    pub(super) const fn looks_at_sockets(&self) -> bool {
        self.sockets > 0 && (self.crowded || self.quiet > QUIET)
    }

    /// Returns whether the thread that polls shared its processor with others when it last yielded it.
    #[inline]
    pub(super) const fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// Sets whether the thread that polls shares its processor with others.
    pub(super) const fn set_crowded(&mut self, crowded: bool) {
        self.crowded = crowded;
    }

    /// Returns whether a read may spin on the rings for a while: nothing waits to be sent, sockets have to wait anyway
    /// because shared memory is busy (or there are no sockets), and the thread is not crowded.
    #[inline]
    pub(super) fn may_linger(&self) -> bool {
        !self.crowded && self.busy.is_empty() && (self.sockets == 0 || self.quiet <= QUIET)
    }

    /// Returns whether there are only hot links to poll, and the thread is not crowded.
    #[inline]
    pub(super) const fn is_calm(&self) -> bool {
        !self.crowded && (self.sockets | self.cold) == 0 && self.busy.is_empty()
    }

    /// Returns the next hot link in round-robin order. There must be at least one.
    pub(super) fn next_turn(&mut self) -> ConnectionId {
        self.turn = if self.turn + 1 < self.hot.len() { self.turn + 1 } else { 0 };
        self.hot[self.turn]
    }

    /// Records that a hot link delivered a frame in this round.
    #[inline]
    pub(super) fn received(&mut self, slot: ConnectionId) {
        (self.quiet, self.last) = (0, slot);
    }

    /// Adds a shared-memory link, which is hot at first.
    pub(super) fn add_shm(&mut self, slot: ConnectionId, bit: u32) {
        if self.by_bit.len() <= bit as usize {
            self.by_bit.resize(bit as usize + 1, 0);
        }
        self.by_bit[bit as usize] = slot + 1;
        self.rings += 1;
        self.add_polled(slot);
    }

    /// Adds a link that is polled in every round.
    pub(super) fn add_polled(&mut self, slot: ConnectionId) {
        self.mark(slot).hot = true;
        self.hot.push(slot);
    }

    /// Returns whether there are shared-memory links. Their peers map the doorbell's page.
    pub(super) const fn has_rings(&self) -> bool {
        self.rings > 0
    }

    /// Returns whether any link is cold.
    #[inline]
    pub(super) fn has_cold(&self) -> bool {
        self.cold > 0
    }

    /// If too many links are hot, makes one of them cold and returns it.
    pub(super) fn overflow(&mut self, links: &[Option<AnyLink>]) -> Option<ConnectionId> {
        if self.hot.len() <= HOT {
            return None;
        }
        for _ in 0..self.hot.len() {
            let index = (self.hand as usize + 1) % self.hot.len();
            self.hand = index as u32;
            let slot = self.hot[index];
            if matches!(links.get(slot as usize), Some(Some(AnyLink::Shm(link))) if link.is_idle()) {
                self.hot.swap_remove(index);
                self.marks[slot as usize].hot = false;
                self.cold += 1;
                return Some(slot);
            }
        }
        None
    }

    /// Makes a cold link hot. Returns false if it was hot already.
    pub(super) fn warm(&mut self, slot: ConnectionId) -> bool {
        let mark = self.mark(slot);
        if mark.hot {
            return false;
        }
        mark.hot = true;
        self.hot.push(slot);
        self.cold -= 1;
        true
    }

    /// Returns whether a link is hot.
    pub(super) fn is_hot(&self, slot: ConnectionId) -> bool {
        self.marks.get(slot as usize).is_some_and(|mark| mark.hot)
    }

    /// Takes the list of cold links with peers that rang. The caller returns the list with
    /// [`return_rung`](Self::return_rung).
    pub(super) fn take_rung(&mut self, doorbell: &Doorbell) -> Vec<ConnectionId> {
        let mut rung = std::mem::take(&mut self.rung);
        rung.clear();
        let by_bit = &self.by_bit;
        doorbell.take_rung(|bit| {
            // A peer may set any bit: bits that belong to no link are ignored.
            if let Some(&slot) = by_bit.get(bit as usize)
                && slot != 0
            {
                rung.push(slot - 1);
            }
        });
        rung
    }

    /// Returns the list for reuse.
    pub(super) fn return_rung(&mut self, list: Vec<ConnectionId>) {
        self.rung = list;
    }

    /// Removes a link that is closed. `shared` states whether it was a shared-memory link.
    pub(super) fn forget(&mut self, slot: ConnectionId, shared: bool) {
        if shared && !self.is_hot(slot) {
            self.cold -= 1;
        }
        self.rings -= usize::from(shared);
        *self.mark(slot) = LinkMark::default();
        self.hot.retain(|&hot| hot != slot);
        self.busy.retain(|&busy| busy != slot);
        self.by_bit.iter_mut().filter(|entry| **entry == slot + 1).for_each(|entry| *entry = 0);
        if self.hot_socket == Some(slot) {
            self.hot_socket = None;
        }
    }

    /// Returns whether some link still holds bytes that only further progress sends.
    pub(super) fn is_working(&self, links: &[Option<AnyLink>]) -> bool {
        let working = |slot: &ConnectionId| {
            links.get(*slot as usize).is_some_and(|link| link.as_ref().is_some_and(|link| !link.is_idle()))
        };
        self.busy.iter().any(working)
    }
}

#[cfg(all(test, not(loom)))]
impl Poller {
    /// Records that a hot link is cold, as if too many links were hot.
    pub(super) fn cool(&mut self, slot: ConnectionId) {
        self.hot.retain(|&hot| hot != slot);
        self.mark(slot).hot = false;
        self.cold += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how often the hot socket and epoll are polled in this number of rounds. `received` states whether the
    /// hot socket delivers frames.
    fn looks(poller: &mut Poller, rounds: u32, received: bool) -> (u32, u32) {
        let (mut hot, mut all) = (0, 0);
        for _ in 0..rounds {
            let (sweep, sockets) = poller.round();
            if sockets {
                let alone = poller.asks_epoll_alone();
                hot += u32::from(!alone);
                all += u32::from(alone || poller.asks_epoll(received, sweep));
            }
        }
        (hot, all)
    }

    fn poller(sockets: usize) -> Poller {
        let mut poller = Poller::new(Arc::new(Doorbell::new().expect("a doorbell")));
        poller.sockets = sockets;
        poller.make_hot(0);
        poller
    }

    #[test]
    fn idle_hot_socket_does_not_delay_others() {
        assert_eq!(looks(&mut poller(2), 64, false), (64, 64));
        assert_eq!(looks(&mut poller(1), LONE_SWEEP, false), (LONE_SWEEP, 1), "there is no other socket");
    }

    #[test]
    fn busy_hot_socket_delays_others_by_at_most_one_sweep() {
        let mut poller = poller(2);
        for _ in 0..3 {
            assert_eq!(looks(&mut poller, SWEEP, true), (SWEEP, 1));
        }
    }

    /// A peer can ring after its connection has ended.
    #[test]
    fn ring_for_an_ended_connection_polls_no_link() {
        let mut poller = poller(0);
        let doorbell = Arc::clone(&poller.doorbell);
        poller.add_shm(3, 5);
        poller.add_shm(4, 6);
        poller.forget(3, true);
        [5, 6, 7].into_iter().for_each(|bit| doorbell.ring(bit));
        assert_eq!(poller.take_rung(&doorbell), [4]);
        // The next connection with this bit is polled.
        poller.add_shm(8, 5);
        doorbell.ring(5);
        assert_eq!(poller.take_rung(&doorbell), [8]);
    }

    #[test]
    fn crowded_thread_polls_only_epoll_in_every_round() {
        let mut poller = poller(3);
        poller.set_crowded(true);
        assert_eq!(looks(&mut poller, 64, false), (0, 64));
        // This is also true while shared memory is busy, which otherwise delays the polls of sockets.
        poller.received(7);
        assert_eq!(looks(&mut poller, SWEEP, false), (0, SWEEP));
        poller.set_crowded(false);
        poller.received(7);
        assert_eq!(looks(&mut poller, SWEEP, false), (1, 1));
    }
}
