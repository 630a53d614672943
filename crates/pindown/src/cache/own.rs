//! Registrations that the application makes and removes itself. The cache reports to the application when their memory
//! changes. Look-ups do not return these registrations, and changes do not remove them. (The interface follows section
//! VI.A of paper 002, which docs/requirements.md lists.)

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use super::handles::{Handle, Registration, UnknownHandle};
use super::miss::PendingRegistration;
use super::{Cache, LookupError, Shared};
use crate::access::Access;
use crate::journal::WaitingThread;
use crate::monitor::Watched;
use crate::range::Range;
use crate::registrar::{Pinned, Registrar};

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The memory of this registration changed: it must not be used again.
    Changed(Handle),
    /// [`Cache::interrupt`] was called.
    Interrupted,
    /// The timeout expired.
    TimedOut,
}

/// The longest sleep of a wait: a waiting thread that is not woken checks for changes after this time.
const SLICE: Duration = Duration::from_millis(100);

/// The longest sleep of a wait while the monitor is in the middle of a report.
const UNSETTLED_SLICE: Duration = Duration::from_millis(1);

/// The result of one check for changes.
enum CheckResult {
    /// All reports are processed. Contains a registration that has changed, if there is one.
    Told(Option<Handle>),
    /// The monitor is in the middle of a report.
    Unsettled,
}

impl<R: Registrar> Cache<R> {
    /// Pins these bytes until [`Self::deregister`]. Registrations may overlap; each has its own handle.
    ///
    /// # Errors
    /// A [`LookupError`]; nothing remains pinned then.
    pub fn register(&self, range: Range, access: Access) -> Result<Registration, LookupError> {
        let shared = &*self.0;
        if shared.journal.forked() {
            return Err(LookupError::Forked);
        }
        let pages = range.pages();
        let (ticket, busy) = {
            let mut table = shared.table();
            shared.settle(&mut table);
            (table.begin(pages), shared.journal.busy())
        };
        let mut unfinished = PendingRegistration { shared, ticket, is_look_up: false, watched: None };
        let watched = unfinished.watch(pages, access);
        let pinned = shared.pin(pages, access);
        std::mem::forget(unfinished);
        let mut table = shared.table();
        let settled = shared.settle(&mut table);
        let undisturbed = table.end(ticket);
        let Pinned { pin, local_key, remote_key } = match pinned {
            Ok(pinned) => pinned,
            Err(source) => {
                drop(table);
                shared.unwatch(watched.ok());
                return Err(LookupError::Registrar { range: pages, source });
            }
        };
        let Watched { inode, locked } = watched.ok().unwrap_or_default();
        let sound = watched.is_ok_and(|watched| settled && undisturbed && !busy && shared.is_still(&watched));
        let unwatched = watched.err();
        let handle = table.handles.insert(pin, pages, (inode, locked), unwatched.is_none() && !sound);
        Ok(Registration { handle, local_key, remote_key, unwatched })
    }

    /// Unpins the memory of a registration that [`Self::register`] made, even if it was reported as changed.
    ///
    /// # Errors
    /// [`UnknownHandle`] if the registration was deregistered before.
    pub fn deregister(&self, handle: Handle) -> Result<(), UnknownHandle> {
        if self.0.journal.forked() {
            return Err(UnknownHandle(handle));
        }
        let out = self.0.table().handles.remove(handle).ok_or(UnknownHandle(handle))?;
        self.0.let_go([out]);
        Ok(())
    }

    /// Returns a registration of memory that changed before this call. Returns each registration once, and `None` if
    /// there is none. To avoid using a stale registration, call this function before each use of one, until it returns
    /// `None`.
    pub fn check(&self) -> Option<Handle> {
        loop {
            match self.0.check() {
                CheckResult::Told(changed) => return changed,
                // The monitor is in the middle of a report that this call must not miss.
                CheckResult::Unsettled => std::thread::yield_now(),
            }
        }
    }

    /// Waits until [`Self::check`] would return a registration, for at most `timeout`, or without a limit if it is
    /// `None`. If several threads wait, each report of a change wakes at least one of them at once, and the others
    /// check every 100 ms.
    ///
    /// # Errors
    /// Errors of poll(2).
    pub fn wait(&self, timeout: Option<Duration>) -> std::io::Result<Waited> {
        let shared = &*self.0;
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let doorbell = shared.monitor.doorbell();
        // From now on each report of a change wakes this thread. The first check finds changes that were reported
        // before.
        let waiting = doorbell.map(WaitingThread::on);
        loop {
            let slice = match shared.check() {
                CheckResult::Told(Some(handle)) => return Ok(Waited::Changed(handle)),
                CheckResult::Told(None) => SLICE,
                // The monitor may be in the middle of a report. Or it may have exited, and then every check returns
                // this.
                CheckResult::Unsettled => UNSETTLED_SLICE,
            };
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let is_over = left.is_some_and(|left| left.is_zero());
            let left = left.map_or(slice, |left| left.min(slice));
            let left_ns = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut fds = [&shared.interrupt; 2].map(|interrupt| PollFd::new(interrupt, PollFlags::IN));
            if let Some(waiting) = &waiting {
                fds[1] = PollFd::from_borrowed_fd(waiting.descriptor(), PollFlags::IN);
            }
            match rustix::event::poll(&mut fds, Some(&left_ns)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if fds.iter().any(|fd| fd.revents().intersects(PollFlags::NVAL | PollFlags::ERR | PollFlags::HUP)) {
                // The application has closed one of the descriptors, so poll(2) no longer sleeps.
                std::thread::sleep(left);
            } else if !fds[0].revents().is_empty() {
                let mut count = [0; 8];
                // Another waiting thread may have taken the interrupt; then this one continues to wait.
                if rustix::io::read(&shared.interrupt, &mut count).is_ok() {
                    return Ok(Waited::Interrupted);
                }
            }
            if is_over {
                return Ok(Waited::TimedOut);
            }
            if let Some(waiting) = &waiting {
                waiting.silence();
            }
        }
    }

    /// Ends one wait: one that is under way, or otherwise the next one. Each call ends another wait.
    pub fn interrupt(&self) {
        // The write can fail only after 2^64 interrupts that no wait has taken.
        rustix::io::write(&self.0.interrupt, &1_u64.to_ne_bytes()).ok();
    }
}

impl<R: Registrar> Shared<R> {
    /// Checks for a change, once.
    fn check(&self) -> CheckResult {
        if self.journal.forked() {
            return CheckResult::Told(None);
        }
        let mut table = self.table();
        if !self.settle(&mut table) {
            return CheckResult::Unsettled;
        }
        table.handles.compare_files(&self.journal);
        CheckResult::Told(table.handles.next_changed())
    }

    /// Creates the descriptor that interrupts a wait. It counts interrupts; each read takes one.
    pub(super) fn interrupt() -> std::io::Result<OwnedFd> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        rustix::event::eventfd(0, flags).map_err(crate::calls::named("eventfd2"))
    }
}
