//! The target's record of one peer: its end of the peer's queue pair, and the grants to the peer.
//!
//! A region is granted by registering it with its rights. A window is granted by binding one of the device's windows,
//! over this queue pair, to a registration without rights for peers ([`Extent`] defines the extent of that
//! registration).
//!
//! The record outlives its link while a region that was granted to the peer is being closed. Locks are taken in this
//! order: a window's grants, its region's grants, the record. The grants of two regions or of two windows are never
//! locked at the same time.

#![expect(unsafe_code, reason = "registers regions' memory; the block states its reason")]

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::super::window_use::{Extent, WindowUse};
use super::super::{Backing, Binding, ProtectionDomain, QueuePair, Registration, Rights};
use super::record::{GrantMethod, GrantRecord, NOBODYS, Record, WindowBacking};
use super::windows::{BindFailure, PeerWindows};
use crate::local_memory::rundown::{AnnouncementLine, Snapshot};
use crate::local_memory::volatile::{Segment, SegmentsExt as _};
use crate::region::{Access, Grantee, Registered};
use crate::wire::located::{AccessGrant, LocateAnswer};

/// The target's record of one peer: its end of the queue pair and the grants.
#[derive(Debug)]
pub(super) struct VerbsGrantee {
    domain: Arc<ProtectionDomain>,
    /// How windows are granted, or `None` if they are not.
    using: Option<WindowUse>,
    record: Mutex<Record>,
    /// Whether there is something to report to the peer. It is read without the lock.
    any_news: AtomicBool,
}

/// The locked record.
struct Locked<'a> {
    record: MutexGuard<'a, Record>,
    any_news: &'a AtomicBool,
}

impl Deref for Locked<'_> {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.record
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Record {
        &mut self.record
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.record.any_gone || self.record.needs_error_notice() {
            self.any_news.store(true, Ordering::Release);
        }
    }
}

impl VerbsGrantee {
    /// Creates the record of a peer. The target's end of the peer's queue pair belongs to this protection domain.
    pub(super) fn new(domain: Arc<ProtectionDomain>, using: Option<WindowUse>) -> Self {
        let record = Mutex::new(Record::new(using));
        Self { domain, using, record, any_news: AtomicBool::new(false) }
    }

    pub(super) const fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Returns whether this key was used for a grant that the peer has not confirmed to be unused.
    #[cfg(all(test, not(loom)))]
    pub(super) fn was_used(&self, key: u32) -> bool {
        self.record().was_used(key)
    }

    fn record(&self) -> Locked<'_> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { record, any_news: &self.any_news }
    }

    /// Replaces the queue pair and returns the former one. Windows that were bound over the former one are no longer
    /// granted.
    pub(super) fn change_pair(self: &Arc<Self>, pair: Option<QueuePair>) -> Option<Arc<QueuePair>> {
        let mut record = self.record();
        let ended = record.end_windows();
        let former = record.change_pair(pair.map(Arc::new));
        drop(record);
        self.forget(ended);
        former
    }

    /// Removes grants that have ended from their regions. Such a region may be granted to the peer again.
    fn forget(self: &Arc<Self>, ended: Vec<(u32, Weak<Registered>)>) {
        let me: Arc<dyn Grantee> = Arc::clone(self) as _;
        for (number, region) in ended {
            // If the device has failed to end an object, the grant stays, so that a thread that closes the region waits
            // for it.
            if let Some(region) = region.upgrade().filter(|_| !self.is_stuck()) {
                region.grants().forget(number, &me);
            }
        }
    }

    /// Grants a region or a window to the peer.
    pub(super) fn grant(self: &Arc<Self>, region: &Arc<Registered>) -> LocateAnswer {
        let me: Arc<dyn Grantee> = Arc::clone(self) as _;
        let rights = region.rights();
        let (reads, writes) = (rights.contains(Access::REMOTE_READ), rights.contains(Access::REMOTE_WRITE));
        // Locked until the grant is recorded. So a thread that closes the region, or attaches a counter for its writes,
        // either finds the grant or has finished before the grant is made.
        let mut grants = region.grants();
        let Some(memory) = reachable(region).filter(|_| reads || writes) else { return LocateAnswer::Executed };
        let address = memory.as_ptr().expose_provenance() as u64;
        let named = |number, remote_key| {
            let (base, len) = (region.base(), region.len());
            LocateAnswer::Granted(AccessGrant { number, reads, writes, remote_key, base, len, address })
        };
        if let Some(number) = grants.find(&me) {
            let record = self.record();
            if let Some(GrantRecord::Granted { way, .. }) = record.get(number) {
                return named(number, way.remote_key());
            }
            if record.is_stuck() {
                return LocateAnswer::Unknown;
            }
            drop(record);
            grants.forget(number, &me); // The grant no longer exists. Grant the region again.
        }
        if grants.is_closed() {
            return LocateAnswer::Unknown;
        }
        let mut device = Rights::empty();
        device.set(Rights::REMOTE_READ, reads);
        device.set(Rights::REMOTE_WRITE, writes);
        let made = match region.beneath() {
            None => self.by_registration(memory, device),
            Some(beneath) => self.by_window(beneath, memory, device),
        };
        let (number, way, mut record) = match made {
            Ok(made) => made,
            Err(located) => {
                if self.is_stuck() {
                    // The stuck object may belong to this region. Because of this grant, a thread that closes the
                    // region waits for it.
                    let _open = grants.add(me, NOBODYS); // The region is not closed while its grants are locked.
                }
                return located;
            }
        };
        if !grants.add(me, number) {
            unreachable!("the region is not closed while its grants are locked");
        }
        let (key, region, remote_key) = (region.key(), Arc::downgrade(region), way.remote_key());
        record.put(number, GrantRecord::Granted { key, region, way });
        named(number, remote_key)
    }

    /// Registers memory for the peer.
    fn register(&self, memory: Segment, rights: Rights) -> Result<Registration, LocateAnswer> {
        // SAFETY: the owner of the region or of the window allows peers to access the memory. The memory stays valid
        // until the revocation of the grant has completed (`has_retired`), and while windows hold their region. The
        // registration ends before that: with the grant, or with the last window that is bound to it. If the device
        // fails to end it, the revocation does not complete.
        let registration = unsafe { Registration::new(&self.domain, memory.as_ptr(), memory.len(), rights) };
        registration.map_err(|error| {
            crate::later::later!(warn: %error, len = memory.len(), "cannot register a region: its accesses are executed by this process");
            LocateAnswer::Executed
        })
    }

    /// Grants the memory of a region by registering it.
    fn by_registration(
        &self,
        memory: Segment,
        mut rights: Rights,
    ) -> Result<(u32, GrantMethod, Locked<'_>), LocateAnswer> {
        // A device requires the local right in addition to the remote one.
        rights.set(Rights::LOCAL_WRITE, rights.contains(Rights::REMOTE_WRITE));
        let registration = Arc::new(self.register(memory, rights)?);
        let mut record = self.record();
        let number = if record.was_used(registration.keys().1) {
            Err(LocateAnswer::Unknown) // Not at the moment, because late accesses may use this key.
        } else {
            record.take().ok_or(LocateAnswer::Executed)
        };
        match number {
            Ok(number) => Ok((number, GrantMethod::Registration(registration), record)),
            Err(located) => {
                record.end_registration(registration);
                Err(located)
            }
        }
    }

    /// Grants the memory of a window by binding one of the device's windows to it.
    fn by_window(
        self: &Arc<Self>,
        beneath: &Weak<Registered>,
        memory: Segment,
        rights: Rights,
    ) -> Result<(u32, GrantMethod, Locked<'_>), LocateAnswer> {
        let using = self.using.as_ref().filter(|_| !self.record().refuses()).ok_or(LocateAnswer::Executed)?;
        let (under, registration) = self.under(using, beneath, memory, rights)?;
        let mut record = self.record();
        let Some(number) = record.take() else {
            drop(registration); // The record can end the registration only if it holds the only reference.
            record.leave(under);
            return Err(LocateAnswer::Executed);
        };
        let binding = Binding { memory: Backing::Registration(registration, memory), rights };
        let bound = record.bind(&self.domain, &binding);
        drop(binding); // The same applies to the binding.
        match bound {
            Ok(window) => Ok((number, GrantMethod::Window { window, under }, record)),
            Err(why) => {
                record.give_back(number);
                record.leave(under);
                Err(if why == BindFailure::Later { LocateAnswer::Unknown } else { LocateAnswer::Executed })
            }
        }
    }

    /// Returns the registration to which a window is bound. The registration alone does not give peers any rights.
    fn under(
        self: &Arc<Self>,
        using: &WindowUse,
        beneath: &Weak<Registered>,
        memory: Segment,
        rights: Rights,
    ) -> Result<(WindowBacking, Arc<Registration>), LocateAnswer> {
        let region = beneath.upgrade().ok_or(LocateAnswer::Unknown)?;
        let own = || {
            let mut own = Rights::BIND;
            own.set(Rights::LOCAL_WRITE, rights.contains(Rights::REMOTE_WRITE));
            let registration = Arc::new(self.register(memory, own)?);
            Ok((WindowBacking::Own(Arc::clone(&registration)), registration))
        };
        let Some(whole) = reachable(&region).filter(|_| using.extent == Extent::Region) else { return own() };
        // Locked until the registration is recorded, so that a thread that closes the region finds it.
        let mut grants = region.grants();
        if let Some((number, registration)) = self.record().beneath(&region) {
            return Ok((WindowBacking::Shared(number), registration));
        }
        if grants.is_closed() {
            // The region was dropped while its window is still open. The window keeps the memory until the window
            // itself is revoked.
            return own();
        }
        let mut all = Rights::BIND;
        all.set(Rights::LOCAL_WRITE, region.windows().may_change());
        let number = self.record().take().ok_or(LocateAnswer::Executed)?;
        let registration = self.register(whole, all).inspect_err(|_| self.record().give_back(number))?;
        let registration = Arc::new(registration);
        if !grants.add_beneath(Arc::clone(self) as _, number) {
            unreachable!("the region is not closed while its grants are locked");
        }
        let (region, beneath) = (Arc::downgrade(&region), Arc::clone(&registration));
        let made = GrantRecord::Beneath { region, registration: beneath, windows: 1, ends: false };
        self.record().put(number, made);
        Ok((WindowBacking::Shared(number), registration))
    }

    /// Returns whether the device has failed to end a window or registration. In this case no other queue pair is
    /// created, because the peer could access the memory over it.
    pub(super) fn is_stuck(&self) -> bool {
        self.record().is_stuck()
    }

    /// Returns the changes to report to the peer: the numbers and keys of ended grants, and whether the queue pair is
    /// in the error state.
    pub(super) fn take_changes(&self) -> (Vec<(u32, u64)>, bool) {
        if !self.any_news.swap(false, Ordering::AcqRel) {
            return (Vec::new(), false);
        }
        let (mut record, mut gone) = (self.record(), Vec::new());
        record.any_gone = false;
        for (number, entry) in record.all_mut() {
            if let GrantRecord::Gone { key, reported, .. } = entry
                && !std::mem::replace(reported, true)
            {
                gone.push((number, *key));
            }
        }
        let is_over = record.take_error_notice();
        (gone, is_over)
    }

    /// Returns whether there is something to report to the peer.
    pub(super) fn has_changes(&self) -> bool {
        self.any_news.load(Ordering::Relaxed)
    }

    /// Handles the peer's confirmation that no outstanding request uses the ended grant `number` any more. A number
    /// that was already released is ignored.
    ///
    /// # Errors
    /// If the grant exists and the peer was not notified of its end.
    pub(super) fn forgotten(&self, number: u32) -> Result<(), &'static str> {
        let mut record = self.record();
        match record.get(number) {
            Some(GrantRecord::Gone { reported: true, .. }) => record.give_back(number),
            Some(_) => return Err("acknowledgement of a grant that was not revoked"),
            None => {}
        }
        Ok(())
    }

    /// Ends everything that was granted, because the link has ended. First ends the windows, then the queue pair, then
    /// the rest.
    pub(super) fn end(self: &Arc<Self>) {
        if !self.domain.context().is_here() {
            return;
        }
        drop(self.change_pair(None));
        let mut ended = Vec::new();
        let mut record = self.record();
        for (number, entry) in record.all() {
            if let GrantRecord::Granted { region, .. } | GrantRecord::Beneath { region, .. } = entry {
                ended.push((number, region.clone()));
            }
        }
        ended.iter().for_each(|(number, _)| record.revoke(*number));
        drop(record);
        self.forget(ended);
    }

    /// Sets the queue pair to the error state, as a device may do.
    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub(super) fn fail(&self) {
        self.record().pair().expect("a queue pair").fail().expect("a queue pair in error");
    }

    /// Returns the number of regions that are registered for their windows.
    #[cfg(all(test, not(loom)))]
    pub(super) fn beneath(&self) -> usize {
        self.record().all().filter(|(_, entry)| matches!(entry, GrantRecord::Beneath { .. })).count()
    }

    /// Describes as text what the peer can access.
    pub(super) fn describe(&self) -> String {
        let record = self.record();
        let (regions, windows) = record.granted();
        match &record.windows {
            Some(PeerWindows { binds, .. }) => {
                format!("the peer has direct access to {regions} regions and {windows} windows ({binds} binds)")
            }
            None => format!("the peer has direct access to {regions} regions"),
        }
    }
}

// The device enforces the grants, so there are no fences and no announcements.
impl Grantee for VerbsGrantee {
    fn revoke(&self, entry: u32) {
        // In a forked child the grants and the queue pair belong to the parent.
        if self.domain.context().is_here() {
            self.record().revoke(entry);
        }
    }

    fn is_unfenced(&self) -> bool {
        false
    }

    fn ask_to_fence(&self) {}

    fn snapshot(&self) -> Snapshot {
        AnnouncementLine::default().snapshot()
    }

    fn has_retired(&self, entry: u32, _: Snapshot) -> bool {
        if !self.domain.context().is_here() {
            return true;
        }
        let mut record = self.record();
        record.advance(entry);
        record.end_stuck();
        !record.is_stuck() && !record.is_leaving(entry)
    }

    fn release(&self, _: u32) {} // The entry is released when the peer has confirmed the revocation.
}

/// Returns the memory of a region or a window if the device may access it. The memory must exist as long as the region,
/// must be in one segment of host memory, and must not have counters that writes would have to update.
fn reachable(region: &Registered) -> Option<Segment> {
    let plain = region.is_backed() && region.device().is_none() && region.counters().is_empty();
    region.place().only().filter(|memory| plain && !memory.is_empty() && memory.len() as u64 == region.len())
}
