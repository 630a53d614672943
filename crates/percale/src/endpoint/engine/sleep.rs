//! Going to sleep, on the endpoint's descriptor or on its bell alone.
//!
//! There are two kinds of sleepers. A *waiter* says when it is awake again ([`Engine::arm`], [`Engine::disarm`]); a
//! *watcher* does not ([`Engine::watch`]): a queue's reader, a task, somebody's event loop. Both may sleep at once, in
//! several threads of a shared endpoint or as tasks of one.
//!
//! While anybody sleeps, one of these holds: the bell is armed as it wakes him, and everything was looked at after that; or
//! the descriptor is readable, and whoever sleeps on the bell alone was woken. Only waiters do so, while the bell is all that
//! the endpoint has to wait for: what brings on something else wakes them ([`Engine::has_descriptor`]). So whoever arms,
//! finds something and does not sleep wakes the others, as he may leave some of it; whoever comes back leaves the bell armed
//! while others sleep; and work that only naps bring on wakes them ([`Poller::sent`](super::poller::Poller::sent)). Arming
//! empties the event, which may keep a sleeper that was just woken asleep: what it waits for is then told by whom it waits
//! with (its queue, its waker, the lock's condition).
//!
//! Every sleep ends after [`SLEEP`] at most, and looks at everything: peers can take each other's wake-ups away. Waiters sleep no longer;
//! of the tasks of an endpoint the [reactor](crate::endpoint::reactor) wakes one; and who sleeps on the descriptor in an event loop of
//! its own finds it readable by a timer, which is set whenever the endpoint is armed ([`Engine::watch_in_time`]).
//!
//! Some progress of a peer rings nothing: it makes room, or lets go of memory. While such progress is waited for, waiters take naps and
//! watchers do not sleep. If it does not come ([`PATIENCE`] looks found nothing), naps become longer, and watchers sleep until the timer
//! expires: a peer that was stopped costs next to no processor time.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ticks::set_timer;
use super::types::{Pending, Work};
use super::{Connector, Engine, LOOKS};
use crate::transport::Connection;
use crate::transport::any::AnyLink;
use crate::transport::shm::{Bell, Rouse};

/// How long to sleep at first while a link waits for its peer's progress.
const NAP: Duration = Duration::from_micros(500);

/// How often such a nap is doubled at most: 16 ms.
const DOUBLINGS: u32 = 5;

/// Looks that find nothing before naps are doubled the first time, and before watchers nap too.
pub(super) const PATIENCE: u32 = 64;

/// Looks between two doublings.
const STEADY: u32 = 16;

/// Looks in a row before a sleep that found nothing, while something was waited for that rings nothing.
#[derive(Debug, Default)]
pub(super) struct Idle {
    looks: u32,
    /// The results at the last of them.
    results: u64,
}

impl Idle {
    /// One more such look: how long to sleep after it.
    fn nap(&mut self, results: u64) -> Duration {
        if self.results != results {
            *self = Self { looks: 0, results };
        }
        self.looks = self.looks.saturating_add(1);
        let doublings = match self.looks.checked_sub(PATIENCE) {
            None => 0,
            Some(more) => (more / STEADY).saturating_add(1).min(DOUBLINGS),
        };
        NAP.saturating_mul(1 << doublings)
    }

    const fn is_long(&self) -> bool {
        self.looks >= PATIENCE
    }
}

/// How long to sleep at most. All local peers share the doorbell's page, so one that scribbles over it, or dies at the wrong moment, takes
/// the wake-up of another along: whoever sleeps looks by itself now and then.
pub(crate) const SLEEP: Duration = Duration::from_millis(100);

/// Who may be asleep.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    /// Those that will say that they are awake.
    waiters: u32,
    /// How many of these sleep on the bell's word.
    by_word: u32,
    /// There are, or were, others.
    watched: bool,
    /// Some of them look at nothing but the endpoint's own results, and nobody else tells them of those.
    bare: bool,
}

impl Sleepers {
    const fn any(&self) -> bool {
        self.watched || self.waiters > 0
    }

    /// How to wake them, and one more who sleeps thus.
    const fn and(&self, one: Rouse) -> Rouse {
        let word = self.by_word > 0 || !matches!(one, Rouse::Event);
        let event = self.watched || self.waiters > self.by_word || !matches!(one, Rouse::Word);
        match (word, event) {
            (true, false) => Rouse::Word,
            (true, true) => Rouse::Both,
            (false, _) => Rouse::Event,
        }
    }
}

/// What a waiter sleeps on.
#[derive(Debug)]
enum On {
    /// The endpoint's descriptor.
    Descriptor(Arc<OwnedFd>),
    /// The bell alone, which was armed thus.
    Bell(Arc<Bell>, Rouse),
}

/// A promise to be woken; sleep, then [`Engine::disarm`].
#[derive(Debug)]
#[must_use = "whoever was promised to be woken has to say that he is awake"]
pub(crate) struct Armed {
    on: On,
    /// How long to sleep at most: less where a link waits for its peer to make room or progress, which rings nothing.
    longest: Duration,
}

impl Armed {
    /// Sleeps until it is woken or the deadline has passed; or for no reason.
    pub(crate) fn sleep(&self, deadline: Option<Instant>) {
        let look = self.longest;
        let left = deadline.map_or(look, |at| at.saturating_duration_since(Instant::now()).min(look));
        let epoll = match &self.on {
            On::Bell(bell, rouse) => return bell.sleep(*rouse, left),
            On::Descriptor(epoll) => epoll,
        };
        let left = rustix::time::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // Looked at with poll, not epoll_wait: whoever makes progress takes the events.
        let mut fds = [rustix::event::PollFd::new(&**epoll, rustix::event::PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => crate::later::later!(error: %error, "poll failed"),
        }
    }
}

#[cfg(all(test, not(loom)))]
impl Armed {
    /// How long it sleeps at most.
    pub(super) const fn longest(&self) -> Duration {
        self.longest
    }

    /// Sleeps until it is woken, without looks in between; or for no reason.
    pub(super) fn sleep_on_the_bell(&self, patience: Duration) {
        let On::Bell(bell, rouse) = &self.on else { panic!("there is more than the bell to wait for") };
        bell.sleep(*rouse, patience);
    }
}

fn no_looks(error: rustix::io::Errno) {
    crate::later::later!(warn: %error, "no timer: a task in an event loop may sleep on when a peer dies at the wrong moment");
}

impl Engine {
    /// Prepares to sleep: from here on whatever there is to do wakes. `None` if there is something to do already, or there
    /// are other [`results`](Self::results) than those that the caller looked at.
    pub(crate) fn arm(&mut self, looked: u64) -> Option<Armed> {
        let one = if self.has_only_the_bell() { Rouse::Word } else { Rouse::Event };
        let rouse = self.sleepers.and(one);
        let longest = self.look_asleep(looked, rouse)?;
        self.sleepers.waiters += 1;
        let on = if one == Rouse::Word {
            self.sleepers.by_word += 1;
            On::Bell(Arc::clone(&self.bell), rouse)
        } else {
            On::Descriptor(Arc::clone(&self.epoll))
        };
        Some(Armed { on, longest })
    }

    /// Whether there is nothing but the bell to wait for: no socket, no queue pair, no deadline of a connection.
    fn has_only_the_bell(&self) -> bool {
        self.poller.sockets == 0 && self.role.is_none()
    }

    /// There is something else to wait for now.
    pub(super) fn has_descriptor(&self) {
        if self.sleepers.by_word > 0 {
            self.bell.wake();
        }
    }

    /// Awake again after [`arm`](Self::arm): unless others sleep, peers need not ring.
    pub(crate) fn disarm(&mut self, armed: &Armed) {
        self.sleepers.waiters -= 1;
        self.bell.tell_processor();
        if matches!(armed.on, On::Bell(..)) {
            self.sleepers.by_word -= 1;
        }
        if !self.sleepers.any() {
            self.bell.disarm();
        } else if self.needs_naps() && !self.idle.is_long() {
            self.bell.wake(); // Nobody naps any more.
        }
    }

    /// As [`arm`](Self::arm), for a sleeper that does not say when it is awake: whether it may sleep. If not, the descriptor
    /// is readable.
    pub(crate) fn watch(&mut self) -> bool {
        self.sleepers.watched = true;
        if self.idle.is_long() {
            self.make_looks();
        }
        let calm = match self.look_asleep(self.results(), self.sleepers.and(Rouse::Event)) {
            None => false,
            Some(SLEEP) => true,
            // The timer was set, if there is one.
            Some(_) => self.idle.is_long() && self.looks.is_some(),
        };
        if !calm {
            self.bell.wake();
        }
        calm
    }

    /// As [`watch`](Self::watch), for a sleeper that only the descriptor wakes: it is also readable after [`SLEEP`].
    pub(crate) fn watch_in_time(&mut self) -> bool {
        if self.poller.has_rings() {
            self.make_looks();
        }
        self.watch()
    }

    /// Makes the timer, which is set when the endpoint is armed.
    fn make_looks(&mut self) {
        if self.looks.is_none() && self.process.is_here() {
            self.looks = self.timer(SLEEP, None, LOOKS).map_err(no_looks).ok();
        }
    }

    /// As [`watch_in_time`](Self::watch_in_time), for a sleeper that waits for entries of the endpoint's own queue, or for safe operations.
    pub(crate) fn watch_results(&mut self) -> bool {
        self.sleepers.bare = true;
        self.watch_in_time()
    }

    /// Lets the descriptor become readable after [`SLEEP`], not before, if it is to be so for any sleeper. Never, once no peer has the bell's
    /// page.
    fn look_later(&self) {
        self.look_again_after(if self.poller.has_rings() { SLEEP } else { Duration::ZERO });
    }

    fn look_again_after(&self, time: Duration) {
        if let Some(looks) = &self.looks
            && let Err(error) = set_timer(looks, time)
        {
            no_looks(error);
        }
    }

    /// Arms the bell, then looks at everything once more. `None` if that found something; else how long to sleep at most.
    fn look_asleep(&mut self, looked: u64, rouse: Rouse) -> Option<Duration> {
        if !self.process.is_here() || matches!(self.connector, Connector::Sim(_)) {
            return None; // Simulated time passes only while somebody looks.
        }
        if rouse != Rouse::Word {
            self.bell.drain();
            self.look_later();
        }
        self.bell.arm(rouse);
        let fenced = self.fence_hot();
        // Whoever published before the mark could be seen is found by this look at everything.
        let mut any = self.connector.has_notices();
        any |= self.progress();
        if self.poller.has_cold() && self.core.has_room() {
            any |= self.poll_cold();
        }
        any |= rouse != Rouse::Event && !self.has_only_the_bell(); // Since that look.
        // Results may come without anything that arrived: of a send that found room just now, say.
        if any || self.results() != looked || self.core.watched.is_eager() {
            if self.sleepers.any() {
                self.bell.wake();
            } else {
                self.bell.disarm();
            }
            if any {
                self.idle = Idle::default();
            }
            return None;
        }
        if fenced && !self.needs_naps() {
            self.idle = Idle::default();
            return Some(SLEEP);
        }
        let nap = self.idle.nap(self.results());
        // What a peer publishes without a fence may have been missed by this look: the next comes soon.
        let nap = if fenced { nap } else { NAP };
        if self.sleepers.watched && self.idle.is_long() {
            self.look_again_after(nap);
        }
        Some(nap)
    }

    /// Whether something is under way that goes on only when somebody looks.
    fn needs_naps(&self) -> bool {
        self.core.has_answers()
            || !self.core.left.is_empty()
            || self.core.watched.any()
            || self.poller.is_working(&self.links)
            || self.poller.busy.iter().any(|&slot| self.waits_for_window(slot))
    }

    /// Whether what waits first for this peer is about a window: it waits for others' accesses to end, which rings nothing.
    fn waits_for_window(&self, slot: Connection) -> bool {
        matches!(self.core.peers.get(slot).pending.front(), Some(Pending { work: Work::Window(..), .. }))
    }

    /// Makes sure that whatever a hot link's peer publishes from here on is published after it could see the mark.
    /// False if that could not be done.
    fn fence_hot(&mut self) -> bool {
        let mut barrier = false;
        for &slot in &self.poller.hot {
            match self.links.get_mut(slot as usize) {
                Some(Some(AnyLink::Shm(link))) => barrier |= link.prepare_sleep(),
                Some(Some(AnyLink::Verbs(link))) => link.arm(),
                _ => {}
            }
        }
        !barrier || Bell::barrier()
    }

    /// For a waiter that lets others run: whether it is a peer on this processor that was heard of last, or one that is not of this
    /// machine's shared memory. (A local one may not have told yet where it runs.)
    pub(crate) fn is_called_from_here(&mut self) -> bool {
        if !self.process.is_here() {
            return false; // What is shared is not even mapped here.
        }
        for &slot in &self.poller.hot {
            if let Some(Some(AnyLink::Shm(link))) = self.links.get_mut(slot as usize) {
                // To sleep beside a peer that streams takes a barrier on all processors, which costs more than its fences.
                link.end_stream();
            }
        }
        let here = self.bell.tell_processor();
        match self.links.get(self.poller.last as usize) {
            Some(Some(AnyLink::Shm(link))) => link.peer_processor() == Some(here),
            _ => true,
        }
    }

    /// Makes whoever sleeps on the descriptor look again.
    pub(crate) fn ring(&self) {
        self.bell.wake();
    }

    /// Makes those look again who sleep on the descriptor and wait for results.
    pub(crate) fn tell_sleepers(&self) {
        if self.sleepers.bare || self.sleepers.waiters > 0 {
            self.bell.wake();
        }
    }

    /// Grows with every result that a sleeper may be waiting for.
    pub(crate) fn results(&self) -> u64 {
        self.core.operations.finished() + self.core.reported + self.core.queue.pushed()
    }
}
