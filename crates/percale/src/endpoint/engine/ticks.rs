//! The timer that detects silent TCP peers, even while all users of the endpoint sleep on its descriptor.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::{Connector, Engine, TICKS};
use crate::transport::ConnectionId;
use crate::transport::any::AnyLink;

fn time(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

/// Sets a timer to expire once, after this time (zero: never). Discards an expiration that was not read.
pub(super) fn set_timer(timer: &OwnedFd, after: Duration) -> rustix::io::Result<()> {
    let spec = Itimerspec { it_interval: time(Duration::ZERO), it_value: time(after) };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &spec).map(drop)
}

impl Engine {
    /// Starts the timer that detects silent peers, even while all users of the endpoint sleep on its descriptor.
    pub(super) fn start_ticks(&mut self) {
        let Connector::Service { tcp, .. } = &self.connector else { return };
        if self.ticks.is_some() || tcp.timeout.is_zero() {
            return;
        }
        let period = (tcp.timeout / 4).clamp(Duration::from_millis(50), Duration::from_secs(5));
        match self.timer(period, Some(period), TICKS) {
            Ok(fd) => self.ticks = Some(fd),
            Err(error) => {
                crate::later::later!(warn: %error, "no timer: an unreachable host is detected only by keepalive")
            }
        }
    }

    /// Creates a timer in the endpoint's epoll set.
    pub(super) fn timer(&self, first: Duration, period: Option<Duration>, name: u64) -> rustix::io::Result<OwnedFd> {
        // Zero would disarm the timer.
        let first = time(first.max(Duration::from_nanos(1)));
        let spec = Itimerspec { it_interval: time(period.unwrap_or_default()), it_value: first };
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        timerfd_settime(&fd, TimerfdTimerFlags::empty(), &spec)?;
        epoll::add(&*self.epoll, &fd, epoll::EventData::new_u64(name), epoll::EventFlags::IN)?;
        Ok(fd)
    }

    /// Closes the connections to TCP peers if the peer's host has not answered anything for too long.
    #[cold]
    pub(super) fn tick(&mut self) {
        if let Some(ticks) = &self.ticks {
            let mut count = [0; 8];
            if rustix::io::read(ticks, &mut count).is_err() {
                return; // Another thread took this tick.
            }
        }
        for slot in 0..self.links.len() {
            if let Some(Some(AnyLink::Tcp(link))) = self.links.get_mut(slot)
                && link.is_unanswered(self.core.peers.get(slot as ConnectionId).address())
            {
                let broken = link.give_up();
                self.down(slot as ConnectionId, &broken);
            }
        }
    }
}
