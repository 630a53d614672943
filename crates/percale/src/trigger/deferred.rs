//! The calls that queue and cancel deferred work.

#![expect(unsafe_code, reason = "operations on memory that the caller guarantees to be valid")]

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::work::{DeferredWork, Work, WorkError};
use crate::completion::counter::{Condition, Counter, Due, fire, taken_back};
use crate::conditions::lines::{WorkId, take_all_back};
use crate::conditions::variable::{Variable, Variables};
use crate::device::{Device, DeviceError};
use crate::domain::Domain;
use crate::endpoint::work::PostError;

impl Domain {
    /// Queues deferred work (FI_QUEUE_WORK), which begins automatically. From now on, its endpoint and the endpoints
    /// that increment the counter make progress without calls by the application. Reading and waiting for the counter
    /// that counts the end of the work also drives its endpoint. The success of the work is reported only to that
    /// counter, unless the operation's flags request a completion. Its failure is also reported to the endpoint's
    /// completion queue. Work that still waits when the domain ends (with its last handle and endpoint) is canceled.
    ///
    /// # Errors
    /// See [`WorkError`]. If an error is returned, nothing was queued.
    ///
    /// # Safety
    /// The requirements for posting the operation must hold from this call until the work has ended or was canceled.
    pub unsafe fn queue_work(&self, work: DeferredWork) -> Result<WorkId, WorkError> {
        let mut id = None;
        // SAFETY: guaranteed by the caller.
        unsafe { self.queue_named_work(work, |name| id = Some(name)) }?;
        Ok(id.expect("`named` was called with the id"))
    }

    /// Like [`queue_work`](Self::queue_work), but calls `named` with the id before the work can begin, because a thread
    /// that observes the end of the work may free the memory in which the id is stored. `named` must not use
    /// the triggering counter, and must not call a function that accesses all counters
    /// ([`flush_work`](Self::flush_work) without a counter): the counter's line is locked during the call.
    ///
    /// # Errors
    /// Those of [`queue_work`](Self::queue_work).
    ///
    /// # Safety
    /// As for [`queue_work`](Self::queue_work).
    pub unsafe fn queue_named_work(&self, work: DeferredWork, named: impl FnOnce(WorkId)) -> Result<(), WorkError> {
        self.check_process(&work.counter)?;
        let owner = self.owner()?;
        let DeferredWork { work, counter, threshold, counting } = work;
        // Work is rejected before any endpoint is automated. Afterwards only starting a thread or watching a descriptor
        // can fail. An endpoint whose thread was started before such an error keeps it, which changes no result.
        let mut user = None;
        let due = match work {
            Work::Add(..) | Work::Set(..) if counting.is_some() => return Err(WorkError::CountedTwice),
            Work::Add(other, count) => Due::Add(other, count),
            Work::Set(other, value) => Due::Set(other, value),
            Work::Transfer(endpoint, operation) => {
                if !Arc::ptr_eq(&endpoint.domain().inner, &self.inner) {
                    return Err(WorkError::OtherDomain);
                }
                let due = endpoint.deferred(&operation, &counter, counting.clone())?;
                endpoint.automate()?;
                if let Some(counting) = &counting {
                    endpoint.drive_for(counting)?;
                }
                user = Some(endpoint);
                due
            }
        };
        counter.automate()?;
        let mut id = None;
        self.defer(owner, due, &counter, threshold, |name| {
            id = Some(name);
            named(name);
        })?;
        // An endpoint that was closed in the meantime may have searched for its work before this work was in the line.
        if let (Some(endpoint), Some(id)) = (user, id)
            && endpoint.is_closed()
        {
            self.cancel_work(&id);
        }
        Ok(())
    }

    /// Creates a variable that has not been written, for one operation
    /// ([`post_when_written`](crate::SharedEndpoint::post_when_written)).
    #[must_use]
    pub fn variable(&self) -> Variable {
        Variables::take(&self.inner.variables)
    }

    /// Like [`variable`](Self::variable), but for programs and streams of this device, which access it at
    /// [`Variable::device_address`].
    ///
    /// # Errors
    /// The error of the device's driver; [`DeviceError::Missing`] in a forked child.
    pub fn device_variable(&self, device: Device) -> Result<Variable, DeviceError> {
        if !self.inner.is_here() {
            let what = "the domain belongs to the parent process of this fork".to_owned();
            return Err(DeviceError::Missing { interface: device.interface(), what });
        }
        Variables::take_mapped(&self.inner.variables, device.driver())
    }

    /// Adds `count` to a counter when another counter has counted this many successes and errors. From now on, the
    /// endpoints that increment the other counter make progress without calls by the application.
    ///
    /// # Errors
    /// [`WorkError::System`] if the system cannot start a thread, or if this domain has no number because the process
    /// has opened too many domains. [`WorkError::Post`] in a forked child.
    pub fn defer_add(&self, to: &Counter, count: u64, when: (&Counter, u64)) -> Result<WorkId, WorkError> {
        self.defer_change(Due::Add(to.clone(), count), when)
    }

    /// Like [`defer_add`](Self::defer_add), but sets the counter's value.
    ///
    /// # Errors
    /// Those of [`defer_add`](Self::defer_add).
    pub fn defer_set(&self, to: &Counter, value: u64, when: (&Counter, u64)) -> Result<WorkId, WorkError> {
        self.defer_change(Due::Set(to.clone(), value), when)
    }

    fn defer_change(&self, due: Due, (counter, threshold): (&Counter, u64)) -> Result<WorkId, WorkError> {
        self.check_process(counter)?;
        let owner = self.owner()?;
        counter.automate()?;
        let mut id = None;
        self.defer(owner, due, counter, threshold, |name| id = Some(name))?;
        Ok(id.expect("`named` was called with the id"))
    }

    fn defer(
        &self,
        owner: NonZeroU32,
        due: Due,
        counter: &Counter,
        threshold: u64,
        named: impl FnOnce(WorkId),
    ) -> Result<(), WorkError> {
        // The lock is held, so that a flush finds all work that was queued before, and the counter for which it waits.
        let mut lines = self.inner.deferred.lines.lock().ok_or(PostError::Forked)?;
        let is_due = counter.queue(Condition::Ends(threshold), Some(owner), due, |ticket, known| {
            if !known {
                lines.add(counter);
            }
            // Unlocked before the call, because `named` may queue other work.
            drop(lines);
            named(WorkId { counter: counter.place_in_memory(), ticket });
        });
        let is_due = is_due.ok_or(PostError::Forked)?;
        if is_due {
            fire(counter);
        }
        Ok(())
    }

    /// Returns an error in a forked child, where the work would belong to the parent, or would wait for a counter of the
    /// parent, which begins no work in the child.
    fn check_process(&self, counter: &Counter) -> Result<(), PostError> {
        if self.inner.is_here() && counter.is_here() { Ok(()) } else { Err(PostError::Forked) }
    }

    /// Returns the number that marks this domain's work.
    fn owner(&self) -> io::Result<NonZeroU32> {
        self.inner.deferred.number.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))
    }

    /// Cancels queued work (FI_CANCEL_WORK), which then never begins. Returns false if it has begun or was canceled
    /// already.
    pub fn cancel_work(&self, work: &WorkId) -> bool {
        let counter = self.inner.deferred.lines.lock().and_then(|lines| lines.at(work.counter));
        let Some(counter) = counter else { return false };
        let taken = counter.take_back(|waiting| waiting.cancel(work.ticket, self.inner.deferred.number)).flatten();
        taken.is_some_and(|due| {
            taken_back(due);
            true
        })
    }

    /// Cancels all work of this domain that waits for this counter, or for any counter if `None` (FI_FLUSH_WORK).
    /// Returns the number of canceled operations.
    pub fn flush_work(&self, counter: Option<&Counter>) -> usize {
        let counters = match counter {
            Some(counter) => vec![counter.clone()],
            None => self.inner.deferred.lines.lock().map_or_else(Vec::new, |lines| lines.all()),
        };
        self.inner.deferred.number.map_or(0, |owner| take_all_back(counters, owner))
    }
}
