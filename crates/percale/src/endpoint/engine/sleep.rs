//! Puts waiters to sleep, on the endpoint's descriptor or on its doorbell alone.
//!
//! There are two kinds of sleepers. A *waiter* reports when it is awake again ([`Engine::arm`], [`Engine::disarm`]). A
//! *watcher*, such as the reader of a queue, a task or an event loop of the application, does not ([`Engine::watch`]).
//! Both may sleep at the same time, in several threads that share an endpoint or in several tasks.
//!
//! While a thread or task sleeps, one of these conditions holds:
//!
//! 1. The doorbell is armed in the mode that wakes this sleeper, and everything was polled after it was armed.
//! 2. The descriptor is readable, and sleepers that wait on the doorbell alone were woken.
//!
//! Only waiters sleep on the doorbell alone, and only while the doorbell is the endpoint's only source of events: a new
//! source of events wakes them ([`Engine::has_descriptor`]). Three rules follow. A thread that arms, finds work and
//! does not sleep wakes the others, since it may leave some of that work. A waiter that wakes up leaves the doorbell
//! armed while others sleep. When a link becomes busy, so that it makes progress only while a thread polls, the
//! sleepers are woken ([`Poller::sent`](super::poller::Poller::sent)). Arming empties the event, so a sleeper that was
//! just woken may stay asleep. That sleeper is then notified through the object with which it waits (its queue, its
//! waker, or the condition variable of the lock).
//!
//! Every sleep ends after [`SLEEP`] at most, and everything is polled then, because one peer can consume the wake-up of
//! another. Waiters limit their own sleep to that time. The [reactor](crate::endpoint::reactor) wakes one of the tasks
//! of an endpoint. For a sleeper that waits for the descriptor in its own event loop, a timer makes the descriptor
//! readable. The timer is set whenever the endpoint is armed ([`Engine::watch_in_time`]).
//!
//! Some progress of a peer does not ring the doorbell: the peer makes room in a ring, or releases memory. While the
//! endpoint waits for such progress, waiters take naps and watchers do not sleep. If the progress does not happen
//! ([`EMPTY_POLLS`](super::waiting::EMPTY_POLLS) polls found nothing), naps become longer, and watchers sleep until the
//! timer expires, so a stopped peer costs almost no processor time.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ticks::set_timer;
use super::types::{PendingOperation, QueuedWork};
use super::waiting::{NAP, SleepsOn};
use super::{Connector, Engine, LOOKS};
use crate::transport::ConnectionId;
use crate::transport::any::AnyLink;
use crate::transport::shm::{Doorbell, WakeMethod};

/// The maximum time of one sleep. All local peers share the doorbell's page, so a peer that overwrites it, or dies at
/// the wrong moment, can suppress the wake-up of another. Therefore each sleeper wakes up and polls at this interval.
pub(crate) const SLEEP: Duration = Duration::from_millis(100);

/// The object on which a waiter sleeps.
#[derive(Debug)]
enum SleepTarget {
    /// The endpoint's descriptor.
    Descriptor(Arc<OwnedFd>),
    /// The doorbell alone, armed in this mode.
    Doorbell(Arc<Doorbell>, WakeMethod),
}

impl SleepTarget {
    const fn kind(&self) -> SleepsOn {
        match self {
            Self::Descriptor(_) => SleepsOn::Descriptor,
            Self::Doorbell(..) => SleepsOn::Doorbell,
        }
    }
}

/// A registered waiter, which will be woken. The caller sleeps, then calls [`Engine::disarm`].
#[derive(Debug)]
#[must_use = "the thread that may be woken must record that it is awake"]
pub(crate) struct Armed {
    on: SleepTarget,
    /// The maximum time to sleep. It is shorter while a link waits for its peer to make room or progress, because that
    /// does not ring the doorbell.
    longest: Duration,
}

impl Armed {
    /// Sleeps until it is woken or the deadline has passed. May wake up spuriously.
    pub(crate) fn sleep(&self, deadline: Option<Instant>) {
        let look = self.longest;
        let left = deadline.map_or(look, |at| at.saturating_duration_since(Instant::now()).min(look));
        let epoll = match &self.on {
            SleepTarget::Doorbell(doorbell, wake_method) => return doorbell.sleep(*wake_method, left),
            SleepTarget::Descriptor(epoll) => epoll,
        };
        let left = rustix::time::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // This uses poll, not epoll_wait: the thread that makes progress takes the events.
        let mut fds = [rustix::event::PollFd::new(&**epoll, rustix::event::PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => crate::later::later!(error: %error, "poll failed"),
        }
    }
}

#[cfg(all(test, not(loom)))]
impl Armed {
    /// Returns the maximum time of the sleep.
    pub(super) const fn longest(&self) -> Duration {
        self.longest
    }

    /// Sleeps on the doorbell, without polls in between, until it is woken or the given time has passed. May wake up
    /// spuriously.
    pub(super) fn sleep_on_doorbell(&self, timeout: Duration) {
        let SleepTarget::Doorbell(doorbell, wake_method) = &self.on else {
            panic!("the waiter does not sleep on a doorbell")
        };
        doorbell.sleep(*wake_method, timeout);
    }
}

fn no_poll_timer(error: rustix::io::Errno) {
    crate::later::later!(warn: %error, "no timer: tasks in an event loop may detect the exit of a peer late");
}

impl Engine {
    /// Prepares to sleep: from now on new work wakes the caller. Returns `None` if there is work already, or if the
    /// number of [`results`](Self::results) differs from `looked`, the number that the caller last saw.
    pub(crate) fn arm(&mut self, looked: u64) -> Option<Armed> {
        let one = if self.has_only_doorbell() { WakeMethod::Word } else { WakeMethod::Event };
        let wake_method = self.waiting.mode_with(one);
        let longest = self.poll_before_sleep(looked, wake_method)?;
        let on = if one == WakeMethod::Word {
            SleepTarget::Doorbell(Arc::clone(&self.doorbell), wake_method)
        } else {
            SleepTarget::Descriptor(Arc::clone(&self.epoll))
        };
        self.waiting.add_sleeper(on.kind());
        Some(Armed { on, longest })
    }

    /// Returns whether the doorbell is the endpoint's only source of events: it has no socket and no queue pair, and is
    /// neither a listener nor an endpoint of one connection.
    fn has_only_doorbell(&self) -> bool {
        self.poller.sockets == 0 && self.role.is_none()
    }

    /// Wakes sleepers that wait on the doorbell alone, because there is another source of events now.
    pub(super) fn has_descriptor(&self) {
        if self.waiting.any_on_doorbell() {
            self.doorbell.wake();
        }
    }

    /// Ends the sleep that [`arm`](Self::arm) prepared. Disarms the doorbell unless others sleep, so peers need not
    /// ring.
    pub(crate) fn disarm(&mut self, armed: &Armed) {
        self.waiting.wake_up(armed.on.kind());
        self.doorbell.publish_processor();
        if !self.waiting.any() {
            self.doorbell.disarm();
        } else if self.needs_naps() && !self.waiting.naps_long() {
            self.doorbell.wake(); // This waiter takes no more naps, so another sleeper has to take them.
        }
    }

    /// Like [`arm`](Self::arm), but for a sleeper that does not report when it is awake. Returns whether the sleeper
    /// may sleep. If not, the descriptor is readable.
    pub(crate) fn watch(&mut self) -> bool {
        self.waiting.watch();
        if self.waiting.naps_long() {
            self.make_poll_timer();
        }
        let calm = match self.poll_before_sleep(self.results(), self.waiting.mode_with(WakeMethod::Event)) {
            None => false,
            Some(SLEEP) => true,
            // The timer was set, if there is one.
            Some(_) => self.waiting.naps_long() && self.looks.is_some(),
        };
        if !calm {
            self.doorbell.wake();
        }
        calm
    }

    /// Like [`watch`](Self::watch), but for a sleeper that only the descriptor wakes: while there are shared-memory
    /// links, the descriptor also becomes readable after [`SLEEP`].
    pub(crate) fn watch_in_time(&mut self) -> bool {
        if self.poller.has_rings() {
            self.make_poll_timer();
        }
        self.watch()
    }

    /// Creates the timer that is set when the endpoint is armed.
    fn make_poll_timer(&mut self) {
        if self.looks.is_none() && self.process.is_here() {
            self.looks = self.timer(SLEEP, None, LOOKS).map_err(no_poll_timer).ok();
        }
    }

    /// Like [`watch_in_time`](Self::watch_in_time), but for a sleeper that waits for entries of the endpoint's own
    /// queue, or for safe operations.
    pub(crate) fn watch_results(&mut self) -> bool {
        self.waiting.watch_results();
        self.watch_in_time()
    }

    /// Sets the timer, if a sleeper needs it, to make the descriptor readable after [`SLEEP`]. Stops the timer if no
    /// peer maps the doorbell's page.
    fn set_poll_timer(&self) {
        self.set_timer_after(if self.poller.has_rings() { SLEEP } else { Duration::ZERO });
    }

    fn set_timer_after(&self, time: Duration) {
        if let Some(looks) = &self.looks
            && let Err(error) = set_timer(looks, time)
        {
            no_poll_timer(error);
        }
    }

    /// Arms the doorbell, then polls everything once more. Returns `None` if that found work, otherwise the maximum
    /// time to sleep.
    fn poll_before_sleep(&mut self, looked: u64, wake_method: WakeMethod) -> Option<Duration> {
        if !self.process.is_here() || matches!(self.connector, Connector::Sim(_)) {
            return None; // Simulated time passes only while a thread polls.
        }
        if wake_method != WakeMethod::Word {
            self.doorbell.drain();
            self.set_poll_timer();
        }
        self.doorbell.arm(wake_method);
        let fenced = self.fence_hot_links();
        // This poll finds the frames that peers published before they could see that the doorbell is armed.
        let mut any = self.connector.has_notices();
        any |= self.progress();
        if self.poller.has_cold() && self.core.has_room() {
            any |= self.poll_cold();
        }
        any |= wake_method != WakeMethod::Event && !self.has_only_doorbell(); // There is another source of events now.
        // Results may appear although nothing arrived, for example because a link took a waiting send.
        if any || self.results() != looked || self.core.triggered.is_eager() {
            if self.waiting.any() {
                self.doorbell.wake();
            } else {
                self.doorbell.disarm();
            }
            if any {
                self.waiting.shorten_naps();
            }
            return None;
        }
        if fenced && !self.needs_naps() {
            self.waiting.shorten_naps();
            return Some(SLEEP);
        }
        let results = self.results();
        let nap = self.waiting.nap(results);
        // This poll may have missed frames that a peer published without a fence, so the next poll comes soon.
        let nap = if fenced { nap } else { NAP };
        if self.waiting.is_watched() && self.waiting.naps_long() {
            self.set_timer_after(nap);
        }
        Some(nap)
    }

    /// Returns whether some operation makes progress only when a thread polls.
    fn needs_naps(&self) -> bool {
        self.core.peers.has_answers()
            || !self.core.left.is_empty()
            || self.core.triggered.has_watched()
            || self.poller.is_working(&self.links)
            || self.poller.busy.iter().any(|&slot| self.waits_for_window(slot))
    }

    /// Returns whether the first operation that waits for this peer binds or invalidates a window. Such an operation
    /// waits for accesses of other peers to end, which does not ring the doorbell.
    fn waits_for_window(&self, slot: ConnectionId) -> bool {
        matches!(self.core.peers.get(slot).first(), Some(PendingOperation { work: QueuedWork::Window(..), .. }))
    }

    /// Ensures that everything that the peer of a hot link publishes from now on is published after the peer could see
    /// that the doorbell is armed. Returns false if this is not possible.
    fn fence_hot_links(&mut self) -> bool {
        let mut barrier = false;
        for &slot in &self.poller.hot {
            match self.links.get_mut(slot as usize) {
                Some(Some(AnyLink::Shm(link))) => barrier |= link.prepare_sleep(),
                Some(Some(AnyLink::Verbs(link))) => link.arm(),
                _ => {}
            }
        }
        !barrier || Doorbell::barrier()
    }

    /// Returns whether the link that was active last has a peer on this processor, or is not a shared-memory link. A
    /// waiter that yields the processor calls this: a local peer on the same processor may not have had the time to
    /// publish.
    pub(crate) fn is_called_from_here(&mut self) -> bool {
        if !self.process.is_here() {
            return false; // The shared memory is not even mapped here.
        }
        for &slot in &self.poller.hot {
            if let Some(Some(AnyLink::Shm(link))) = self.links.get_mut(slot as usize) {
                // Sleeping while a peer streams requires a barrier on all processors, which costs more than the peer's
                // fences.
                link.end_stream();
            }
        }
        let here = self.doorbell.publish_processor();
        match self.links.get(self.poller.last as usize) {
            Some(Some(AnyLink::Shm(link))) => link.peer_processor() == Some(here),
            _ => true,
        }
    }

    /// Wakes all sleepers, so they poll again.
    pub(crate) fn ring(&self) {
        self.doorbell.wake();
    }

    /// Wakes the sleepers if some of them may wait for the endpoint's results.
    pub(crate) fn wake_sleepers(&self) {
        if self.waiting.any_for_results() {
            self.doorbell.wake();
        }
    }

    /// Returns a number that grows with every result that a sleeper may wait for.
    pub(crate) fn results(&self) -> u64 {
        self.core.operations.finished() + self.core.reporting.results()
    }
}
