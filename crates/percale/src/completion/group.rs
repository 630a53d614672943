//! The members of a poll set or wait set, and one [`Wait`] for all of them.
//!
//! The group's [`Wait`] follows those of its members ([`Follower`]). An endpoint that feeds a member is also attached
//! to the group, but only once, even if it feeds several members. A wake-up of a member's sleeping threads also wakes
//! those of the group.

use std::io;
use std::sync::{Arc, MutexGuard};

use super::source::{Member, Source};
use super::wait::{Driven, Follower, Wait};
use crate::system::forked::ProcessMutex;

/// The members of a poll set or wait set, and the `Wait` for all of them.
#[derive(Debug, Default)]
pub(super) struct SourceGroup {
    pub(super) wait: Wait,
    /// The list is replaced and never changed in place, so that members are checked without the lock.
    members: ProcessMutex<Arc<[Arc<Member>]>>,
}

impl SourceGroup {
    /// Locks the members. Returns `None` in a forked child.
    fn lock(&self) -> Option<MutexGuard<'_, Arc<[Arc<Member>]>>> {
        self.members.lock()
    }

    pub(super) fn members(&self) -> Arc<[Arc<Member>]> {
        self.lock().map_or_else(|| Arc::from([]), |members| Arc::clone(&members))
    }

    /// Returns whether this is a member.
    pub(super) fn has(&self, member: &Arc<Member>) -> bool {
        self.members().iter().any(|other| Arc::ptr_eq(other, member))
    }

    /// Adds a source. Returns `None` if it was a member already.
    ///
    /// # Errors
    /// If the system cannot watch the descriptors of the endpoints that feed the source, or in a forked child.
    pub(super) fn add(self: &Arc<Self>, source: Source) -> io::Result<Option<Arc<Member>>> {
        let mut members = self.lock().ok_or_else(|| io::Error::from_raw_os_error(libc::ECHILD))?;
        if members.iter().any(|member| member.source.is_same(&source)) {
            return Ok(None);
        }
        let member = Arc::new(Member::new(source));
        *members = members.iter().cloned().chain([Arc::clone(&member)]).collect();
        drop(members);
        let (group, driver) = (Arc::clone(self) as Arc<dyn Follower>, Arc::clone(&member) as Arc<dyn Driven>);
        let joined = member.source.wait().follow(&group).and_then(|()| self.wait.attach(&driver));
        if let Err(error) = joined {
            self.remove(&member.source);
            return Err(error);
        }
        Ok(Some(member))
    }

    /// Removes a member. Returns `None` if it was not a member.
    pub(super) fn remove(self: &Arc<Self>, source: &Source) -> Option<Arc<Member>> {
        let mut members = self.lock()?;
        let gone = members.iter().find(|member| member.source.is_same(source)).cloned()?;
        *members = members.iter().filter(|member| !Arc::ptr_eq(member, &gone)).cloned().collect();
        drop(members);
        self.wait.detach(&(Arc::clone(&gone) as Arc<dyn Driven>));
        gone.source.wait().leave(&(Arc::clone(self) as Arc<dyn Follower>));
        Some(gone)
    }

    /// Returns whether an endpoint that only its owner can drive reports to a member.
    pub(super) fn is_undriven(&self) -> bool {
        self.members().iter().any(|member| member.source.wait().is_undriven())
    }

    /// Returns whether any member is ready. Afterwards the changes of all counters count as reported.
    pub(super) fn take_ready(&self) -> bool {
        self.members().iter().fold(false, |any, member| member.take_ready() | any)
    }
}

impl Follower for SourceGroup {
    fn attached(&self, driver: &Arc<dyn Driven>) -> io::Result<()> {
        self.wait.attach(driver)
    }

    fn detached(&self, driver: &Arc<dyn Driven>) {
        if !self.members().iter().any(|member| member.source.wait().is_driven_by(driver)) {
            self.wait.detach(driver);
        }
    }

    fn woken(&self) {
        self.wait.notify();
    }
}
