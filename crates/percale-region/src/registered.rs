//! A region in the table of its domain: the rights of peers, and the grants to peers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::access_origin::{AccessOrigin, AccessScope};
use super::counters::RegionCounters;
use super::on_device::{self, whole};
use super::windows::WindowCounts;
#[cfg(any(test, feature = "testing"))]
use crate::local_memory::access::AccessExt as _;
use crate::local_memory::access::{Access, Refusal, admit};
use crate::local_memory::atomic::{AtomicRequest, KindExt as _};
use crate::local_memory::kernel;
use crate::local_memory::rundown::{Pin, Snapshot};
use crate::local_memory::sealed::Located;
use crate::local_memory::volatile::{Segments, SegmentsExt as _, View, ViewExt as _};
use crate::system::forked::Process;
use percale_device::Device;

/// A peer to which regions are granted for direct access.
pub trait Grantee: std::fmt::Debug + Send + Sync {
    /// Revokes the grant, or starts to revoke it, without waiting. Accesses that the peer announced before may still be
    /// in progress.
    fn revoke(&self, entry: u32);

    /// Returns whether the peer announces its accesses without fences, so that a fence on its behalf is needed before a
    /// snapshot.
    fn is_unfenced(&self) -> bool;

    /// Signals a peer that announces without fences to use fences again, after a fence on its behalf was needed.
    fn ask_to_fence(&self);

    /// Returns a snapshot of the peer's announcement.
    fn snapshot(&self) -> Snapshot;

    /// Returns whether a revoked entry is void, and either the access that was announced at the time of the snapshot
    /// has ended or the peer's process has ended. Checks once, without waiting.
    fn has_retired(&self, entry: u32, snapshot: Snapshot) -> bool;

    /// Releases a revoked entry that has retired, so that it can be used for another grant.
    fn release(&self, entry: u32);
}

/// A grant of a region.
#[derive(Debug)]
pub struct RegionGrant {
    /// The peer.
    pub to: Arc<dyn Grantee>,
    /// The number by which the peer identifies the grant.
    pub entry: u32,
    /// Whether this is a registration for windows. Such a grant does not give the peer access to the region itself.
    beneath: bool,
}

/// The grants of a region. The list is either open to new grants or permanently closed.
#[derive(Debug, Default)]
pub struct RegionGrants {
    list: Vec<RegionGrant>,
    closed: bool,
}

impl RegionGrants {
    /// Records a grant. Returns false if the region was revoked in the meantime. In this case nothing may be granted.
    #[must_use]
    #[inline]
    pub fn add(&mut self, to: Arc<dyn Grantee>, entry: u32) -> bool {
        if !self.closed {
            self.list.push(RegionGrant { to, entry, beneath: false });
        }
        !self.closed
    }

    /// Like [`add`](Self::add), for the registration to which a peer's windows are bound. This grant ends with the
    /// region.
    #[must_use]
    #[inline]
    pub fn add_beneath(&mut self, to: Arc<dyn Grantee>, entry: u32) -> bool {
        if !self.closed {
            self.list.push(RegionGrant { to, entry, beneath: true });
        }
        !self.closed
    }

    /// Returns whether the region was revoked.
    #[inline]
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Removes and returns the grants that give peers access to the region itself. New grants may be made at once.
    #[inline]
    pub(super) fn take(&mut self) -> Vec<RegionGrant> {
        let (kept, taken) = std::mem::take(&mut self.list).into_iter().partition(|grant: &RegionGrant| grant.beneath);
        self.list = kept;
        taken
    }

    /// Returns whether the region itself is not granted to any peer.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.list.iter().all(|grant| grant.beneath)
    }

    /// Returns the entry of the grant of the region to this peer.
    #[inline]
    pub fn find(&self, to: &Arc<dyn Grantee>) -> Option<u32> {
        let is_its = |grant: &&RegionGrant| !grant.beneath && Arc::ptr_eq(&grant.to, to);
        self.list.iter().find(is_its).map(|grant| grant.entry)
    }

    /// Removes a grant to a peer, after it has ended.
    #[inline]
    pub fn forget(&mut self, entry: u32, to: &Arc<dyn Grantee>) {
        self.list.retain(|grant| grant.entry != entry || !Arc::ptr_eq(&grant.to, to));
    }

    /// Closes the list to new grants, and returns the existing ones.
    #[inline]
    pub(super) fn close(&mut self) -> Vec<RegionGrant> {
        self.closed = true;
        std::mem::take(&mut self.list)
    }
}

/// A region in the table of its domain. Immutable except for its grants.
pub struct Registered {
    pub(super) key: u64,
    pub(super) access: Access,
    /// The rights of peers, in the form that checks compare.
    pub(super) rights: Access,
    /// The number of windows that are bound to the region, and which windows may be bound.
    pub(super) windows: WindowCounts,
    /// For a window: the region to which it is bound.
    pub(super) beneath: Option<Weak<Self>>,
    /// The local key that the owner uses.
    pub(super) local: OnceLock<u32>,
    /// The endpoints and peers through which accesses may arrive.
    pub(super) through: AccessScope,
    /// The authorization key of these endpoints ([`AccessOrigin::authority`]).
    pub(super) authority: u64,
    /// The address that peers use for the first byte.
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) memory: Segments,
    /// Whether the memory is mapped for as long as the region exists, so that threads of this process may access it.
    /// Otherwise only the kernel may access it.
    pub(super) backed: bool,
    /// The device to which the memory belongs, if it is not host memory. Only the device's driver accesses it.
    pub(super) device: Option<Device>,
    /// The sealed arena that contains the memory.
    pub(super) located: Option<Located>,
    pub(super) pin: Pin,
    pub(super) grants: Mutex<RegionGrants>,
    /// A number that distinguishes this region from every other region of this process. It is chosen when it is first
    /// sent to a peer.
    pub(super) generation: OnceLock<u64>,
    pub(super) counters: RegionCounters,
    /// The process that registered the region. In a forked child of that process no peer accesses the region.
    pub(super) process: Process,
}

crate::short_debug!(Registered, "Registered");

#[doc(hidden)]
#[expect(clippy::len_without_is_empty, reason = "no caller needs `is_empty`")]
impl Registered {
    /// Creates a region without a domain, which tests revoke through its pin.
    #[cfg(any(test, feature = "testing"))]
    pub fn for_test(memory: Segments) -> Arc<Self> {
        Arc::new(Self {
            key: 1,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
            rights: (Access::REMOTE_READ | Access::REMOTE_WRITE).remote_rights(),
            windows: WindowCounts::new(true, true),
            beneath: None,
            local: OnceLock::new(),
            through: AccessScope::Domain,
            authority: 0,
            base: 0,
            len: memory.len() as u64,
            memory,
            backed: true,
            device: None,
            located: None,
            pin: Pin::default(),
            grants: Mutex::default(),
            generation: OnceLock::new(),
            counters: RegionCounters::default(),
            process: Process::current().expect("a page"),
        })
    }

    /// Returns a copy of the region for accesses through other endpoints. No thread has entered the copy, it is not
    /// granted to any peer, and no window is bound to it. No window can be bound to a disabled copy.
    pub(super) fn copy_with_scope(&self, through: AccessScope) -> Self {
        let windows = WindowCounts::new(self.windows.are_allowed(), self.windows.may_change());
        if through == AccessScope::Nobody {
            windows.abandon();
        }
        Self {
            key: self.key,
            access: self.access,
            rights: self.rights,
            windows,
            beneath: self.beneath.clone(),
            local: self.local.clone(),
            through,
            authority: self.authority,
            base: self.base,
            len: self.len,
            memory: self.memory,
            backed: self.backed,
            device: self.device,
            located: self.located.clone(),
            pin: Pin::default(),
            grants: Mutex::default(),
            generation: OnceLock::new(),
            counters: self.counters.clone(),
            process: self.process,
        }
    }

    /// Returns whether an access of this origin is admitted.
    #[inline]
    pub fn admits(&self, via: AccessOrigin) -> bool {
        self.through.admits(via) && self.authority == via.authority
    }

    /// Returns the rights of peers.
    #[inline]
    pub const fn rights(&self) -> Access {
        self.rights
    }

    /// Returns the rights with which the region was registered.
    #[inline]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Returns the endpoints and peers through which accesses may arrive.
    #[inline]
    pub const fn through(&self) -> AccessScope {
        self.through
    }

    /// Returns the number of windows that are bound to the region, and which windows may be bound.
    #[inline]
    pub const fn windows(&self) -> &WindowCounts {
        &self.windows
    }

    /// Returns the region to which this is bound, if this is a window.
    #[inline]
    pub const fn beneath(&self) -> Option<&Weak<Self>> {
        self.beneath.as_ref()
    }

    /// Returns the key.
    #[inline]
    pub const fn key(&self) -> u64 {
        self.key
    }

    /// Returns the address that peers use for the first byte.
    #[inline]
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// Returns the length in bytes.
    #[inline]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns the addresses of the memory. It may be accessed only inside [`pin`](Self::pin).
    #[inline]
    pub const fn place(&self) -> &Segments {
        &self.memory
    }

    /// Returns whether threads of this process may access the memory.
    #[inline]
    pub const fn is_backed(&self) -> bool {
        self.backed
    }

    /// Returns the device to which the memory belongs, if it is not host memory.
    #[inline]
    pub const fn device(&self) -> Option<Device> {
        self.device
    }

    /// Returns the sealed arena that contains all of the memory, if there is one.
    #[inline]
    pub const fn located(&self) -> Option<&Located> {
        self.located.as_ref()
    }

    /// Returns the pin, which counts the threads of this process that are inside.
    #[inline]
    pub const fn pin(&self) -> &Pin {
        &self.pin
    }

    /// Returns whether this is the process of its domain, and not a forked child of it.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.process.is_here()
    }

    /// Locks and returns the grants to peers.
    #[inline]
    pub fn grants(&self) -> MutexGuard<'_, RegionGrants> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that no other region of this process has or had, even under the same key. It is never 0. Peers
    /// return it with their reports about the region, because the owner chooses the key and may have assigned it to
    /// another region in the meantime.
    #[inline]
    pub fn generation(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        *self.generation.get_or_init(|| NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the counters of writes by peers.
    #[inline]
    pub const fn counters(&self) -> &RegionCounters {
        &self.counters
    }

    /// Checks an access. Returns the offset of its first byte.
    #[inline]
    pub fn check(&self, address: u64, len: u64, wanted: Access) -> Result<u64, Refusal> {
        admit(self.rights.contains(wanted), (self.base, self.len), (address, len))
    }

    /// Makes an access, if the region is not revoked. A revocation waits until it has ended.
    #[inline(always)]
    fn inside<R>(&self, access: impl FnOnce() -> Result<R, Refusal>) -> Result<R, Refusal> {
        let _inside = self.pin.enter().ok_or(Refusal::Key)?;
        access()
    }

    /// Writes bytes for a peer.
    pub fn store(&self, address: u64, from: View<'_>) -> Result<(), Refusal> {
        let offset = self.check(address, from.len() as u64, Access::REMOTE_WRITE)?;
        self.inside(|| {
            let to = self.memory.slice(offset as usize, from.len());
            if self.backed {
                from.copy_into(&to, 0);
                return Ok(());
            }
            match self.device {
                None => kernel::store(&to, from).map_err(|_| Refusal::Fault),
                Some(device) => on_device::store(device, &to, from),
            }
        })
    }

    /// Calls `then` with the bytes that a peer reads, and returns its result.
    pub fn load<R>(&self, address: u64, len: u64, then: impl FnOnce(&Segments) -> R) -> Result<R, Refusal> {
        let offset = self.check(address, len, Access::REMOTE_READ)?;
        self.inside(|| {
            let from = self.memory.slice(offset as usize, len as usize);
            if self.backed {
                return Ok(then(&from));
            }
            if let Some(device) = self.device {
                return on_device::load(device, &from).map(|copy| then(&copy.as_ref().map_or(Segments::EMPTY, whole)));
            }
            let bytes = kernel::load(&from).map_err(|_| Refusal::Fault)?;
            Ok(Segments::lend(&bytes, then))
        })
    }

    /// Changes elements for a peer. If `fetched` is not empty, it receives their previous values.
    pub fn change(&self, address: u64, request: &AtomicRequest<'_>, fetched: &mut [u8]) -> Result<(), Refusal> {
        let len = request.len();
        let offset = self.check(address, len as u64, request.kind.rights(request.op))?;
        self.inside(|| {
            if len == 0 {
                return Ok(());
            }
            let target = self.memory.slice(offset as usize, len);
            let [target] = target.as_slice() else {
                // The length is not that of whole elements, or an element spans two segments.
                return Err(Refusal::Misaligned);
            };
            if let Some(device) = self.device {
                return on_device::change(device, *target, request, fetched);
            }
            if !self.backed {
                kernel::populate(*target).map_err(|_| Refusal::Fault)?;
            }
            request.apply(*target, fetched).map_err(|_| Refusal::Misaligned)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::revocation::Revocation;
    use crate::stuck::StuckPeer;

    #[test]
    fn revoked_region_is_granted_to_no_peer() {
        let region = Registered::for_test(Segments::EMPTY);
        let peer = || -> Arc<dyn Grantee> { Arc::<StuckPeer>::default() };
        assert!(region.grants().add(peer(), 0));
        let mut revocation = Revocation::start(Arc::clone(&region));
        assert!(!region.grants().add(peer(), 1) && !region.grants().add_beneath(peer(), 2));
        assert!(region.grants().is_closed() && region.grants().is_empty());
        assert!(!revocation.is_over(), "the first peer is accessing the region");
    }

    #[test]
    fn revocation_waits_for_threads_that_are_inside() {
        let region = Registered::for_test(Segments::EMPTY);
        let inside = region.pin().enter().unwrap();
        let mut revocation = Revocation::start(Arc::clone(&region));
        assert!(region.pin().enter().is_none());
        assert!(!revocation.is_over());
        drop(inside);
        assert!(revocation.is_over());
    }

    #[test]
    fn access_of_a_peer_is_inside_until_it_has_ended() {
        let region = Registered::for_test(Segments::EMPTY);
        let result = region.inside(|| {
            region.pin().revoke();
            assert!(!region.pin().is_quiet(), "memory is returned during the access");
            Ok(7)
        });
        assert_eq!(result, Ok(7));
        assert!(region.pin().is_quiet());
        assert_eq!(region.inside(|| Ok(7)), Err(Refusal::Key));
    }
}
