//! Binding and enabling regions, and reporting new pages of them (fi_mr(3): fi_mr_bind, fi_mr_enable, fi_mr_refresh).

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use percale::memory::region::CloseError;

use super::{Region, RegionPart};
use crate::abi::{FI_EBADFLAGS, FI_EOPBADSTATE, FI_LOG_MR, FI_REMOTE_WRITE, FI_WRITE, fi_mr_modify, fi_version, fid};
use crate::counter::{self, Count};
use crate::domain;
use crate::endpoint::{Endpoint, Setup};
use crate::log;
use crate::object::{Object, code};
use crate::registration::pieces::Pieces;

/// The first API version in which regions are closed before the objects that they are bound to. The fi_mr(3) page of
/// version 1.17 is the last that is known to require the opposite order.
const REGIONS_FIRST: u32 = fi_version(1, 18);

/// The objects that a region was bound to.
#[derive(Default)]
pub(super) struct RegionBindings {
    counters: Vec<Weak<counter::CounterShared>>,
    endpoint: Option<Weak<Setup>>,
    /// Set if the region is enabled once that endpoint is enabled.
    awaits_endpoint: bool,
    /// Set if fi_mr_enable was called. The region cannot be bound any more.
    fixed: bool,
}

impl RegionBindings {
    /// Returns whether a counter or endpoint that the region is bound to is still open and must be closed first
    /// (MR-070). Later pages of fi_mr(3) require that the region is closed before its endpoint and do not mention
    /// counters. Programs for these versions close regions first (AMB-01).
    pub(super) fn is_in_use(&self, domain: &domain::DomainShared) -> bool {
        let counted = self.counters.iter().any(|counter| counter.strong_count() > 0);
        let reached = self.endpoint.as_ref().is_some_and(|endpoint| endpoint.strong_count() > 0);
        domain.fabric.api_version < REGIONS_FIRST && (counted || reached)
    }
}

/// Binds a counter, which counts the writes of peers, or an endpoint, which becomes the only one through which peers
/// access the region.
pub(super) unsafe extern "C" fn bind(mr: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: the pointer is a region of this provider.
    let region = unsafe { Region::of(mr) };
    // SAFETY: the client passed an open object.
    if let Some(counter) = unsafe { Count::of_class(other) } {
        return code(region.count(counter.shared(), flags));
    }
    // SAFETY: as above.
    if let Some(endpoint) = unsafe { Endpoint::of_class(other) } {
        return code(region.restrict(endpoint.setup(), flags));
    }
    log::warning!(FI_LOG_MR, "fi_mr_bind: only counters and endpoints can be bound to regions");
    -libc::EINVAL
}

fn refused<T>(why: &str, code: i32) -> Result<T, i32> {
    log::warning!(FI_LOG_MR, "fi_mr_bind: {why}");
    Err(code)
}

impl Region {
    fn count(&self, counter: &Arc<counter::CounterShared>, flags: u64) -> Result<(), i32> {
        let Self { domain, part, .. } = self;
        if flags & !(FI_REMOTE_WRITE | FI_WRITE) != 0 || flags & FI_REMOTE_WRITE == 0 {
            return refused("a counter must be bound with FI_REMOTE_WRITE", FI_EBADFLAGS);
        }
        if !domain.rma_events.load(Ordering::Relaxed) {
            return refused("counting writes of peers requires the capability FI_RMA_EVENT", libc::ENOSYS);
        }
        if domain.regions.events && !part.wanted.events {
            return refused(
                "a region with a counter must be registered with FI_RMA_EVENT (FI_MR_RMA_EVENT)",
                libc::EINVAL,
            );
        }
        let mut state = part.lock();
        if state.bound.fixed {
            return refused("the region is already enabled", FI_EOPBADSTATE);
        }
        if !Arc::ptr_eq(counter.domain(), domain) {
            return refused("the counter belongs to another domain", libc::EINVAL);
        }
        let Some(region) = &mut state.region else {
            return refused("the registration has not completed", FI_EOPBADSTATE);
        };
        counter.await_regions()?;
        region.count(&counter.percale).map_err(|error| {
            log::warning!(FI_LOG_MR, "fi_mr_bind: {error}");
            error.errno()
        })?;
        counter.attach_region();
        state.bound.counters.push(Arc::downgrade(counter));
        Ok(())
    }

    fn restrict(&self, endpoint: &Arc<Setup>, flags: u64) -> Result<(), i32> {
        if flags != 0 {
            return refused("flags must be 0 for an endpoint", FI_EBADFLAGS);
        }
        if !Arc::ptr_eq(endpoint.domain(), &self.domain) {
            return refused("the endpoint belongs to another domain", libc::EINVAL);
        }
        let mut state = self.part.lock();
        if state.bound.fixed {
            return refused("the region is already enabled", FI_EOPBADSTATE);
        }
        // Without FI_MR_ENDPOINT a region belongs to the domain, even if it is bound to an endpoint (BIND-012).
        if self.domain.regions.by_endpoint
            && let Some(bound) = &state.bound.endpoint
            && !std::ptr::eq(bound.as_ptr(), Arc::as_ptr(endpoint))
        {
            return refused("the region is already bound to another endpoint", libc::EINVAL);
        }
        state.bound.endpoint = Some(Arc::downgrade(endpoint));
        Ok(())
    }

    /// Implements fi_mr_enable.
    pub(super) fn enable(&self) -> Result<(), i32> {
        let Self { domain, part, .. } = self;
        let mut guard = part.lock();
        let state = &mut *guard;
        let Some(region) = &mut state.region else {
            log::warning!(FI_LOG_MR, "fi_mr_enable: the registration has not completed; wait for its event");
            return Err(FI_EOPBADSTATE);
        };
        if domain.regions.by_endpoint && !region.is_enabled() {
            let Some(endpoint) = state.bound.endpoint.as_ref().and_then(Weak::upgrade) else {
                log::warning!(
                    FI_LOG_MR,
                    "fi_mr_enable: the region must be bound to an endpoint first (FI_MR_ENDPOINT)"
                );
                return Err(FI_EOPBADSTATE);
            };
            let Some(id) = endpoint.id_or_later(|| {
                let (part, notify) = (Arc::downgrade(part), domain.regions.notify);
                Box::new(move |id| part.upgrade().map_or(Ok(()), |part| part.endpoint_opened(id, notify)))
            }) else {
                (state.bound.fixed, state.bound.awaits_endpoint) = (true, true);
                return Ok(());
            };
            region.restrict(id);
        }
        // With FI_MR_MMU_NOTIFY, a region with missing pages is enabled only when the client reports that they are
        // present (BIND-013).
        if !domain.regions.notify || part.is_there() {
            region.enable().map_err(busy)?;
        }
        state.bound.fixed = true;
        Ok(())
    }

    /// Returns whether the region was enabled or need not be enabled.
    fn is_enabled(&self, fixed: bool) -> bool {
        fixed || !self.part.waits(&self.domain)
    }

    /// Implements fi_mr_refresh. With FI_MR_MMU_NOTIFY, peers cannot access the region during the call. Without it, the
    /// memory is looked up at each access, and the call does nothing (AMB-10).
    ///
    /// # Safety
    /// `modify` meets the requirements of fi_mr_refresh(3).
    pub(super) unsafe fn refresh(&self, modify: *const fi_mr_modify) -> Result<(), i32> {
        let Self { domain, part, .. } = self;
        // SAFETY: the caller guarantees this.
        let (first, count) = unsafe { named(modify) }?;
        // SAFETY: the client passed `count` pieces.
        let pieces = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(first, count) } };
        if !pieces.iter().all(|piece| part.wanted.pieces.hold(piece.iov_base.addr(), piece.iov_len)) {
            log::warning!(FI_LOG_MR, "fi_mr_refresh: the range is outside the region");
            return Err(libc::EINVAL);
        }
        let mut guard = part.lock();
        let state = &mut *guard;
        let Some(region) = &mut state.region else { return Err(FI_EOPBADSTATE) };
        if !domain.regions.notify || !self.is_enabled(state.bound.fixed) || state.bound.awaits_endpoint {
            return Ok(());
        }
        region.disable().map_err(busy)?;
        if !part.has(pieces) {
            log::warning!(
                FI_LOG_MR,
                "fi_mr_refresh: some of the memory is not mapped; the region is not accessible until it is"
            );
            return Err(libc::EFAULT);
        }
        region.enable().map_err(busy)
    }
}

impl RegionPart {
    /// Enables the region as requested. Called when the only endpoint through which peers access the region has its
    /// number.
    fn endpoint_opened(&self, id: u64, notify: bool) -> Result<(), i32> {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.bound.awaits_endpoint = false;
        let Some(region) = &mut state.region else { return Ok(()) };
        region.restrict(id);
        if !notify || self.is_there() {
            region.enable().map_err(busy)?;
        }
        Ok(())
    }

    /// Returns whether these pieces are mapped. If `pieces` is empty, checks the complete region.
    fn has(&self, pieces: &[libc::iovec]) -> bool {
        let writes = self.wanted.access.contains(percale::Access::REMOTE_WRITE);
        let mapped = |piece: &libc::iovec| {
            // SAFETY: the client's memory is inside the region, and is only checked for presence.
            let piece = unsafe { percale::Segment::new(piece.iov_base.cast(), piece.iov_len) };
            percale::memory::is_mapped(piece, writes)
        };
        match &self.wanted.pieces {
            Pieces::Some(_) if pieces.is_empty() => self.is_there(),
            _ => pieces.iter().all(mapped),
        }
    }
}

fn busy(error: CloseError<()>) -> i32 {
    log::warning!(FI_LOG_MR, "a region remains disabled: {error}");
    error.errno()
}

/// Returns the pieces that a refresh names. No pieces stand for the complete region.
///
/// # Safety
/// `modify` meets the requirements of fi_mr_refresh(3).
unsafe fn named(modify: *const fi_mr_modify) -> Result<(*const libc::iovec, usize), i32> {
    macro_rules! field {
        ($($field:ident).+) => {
            // SAFETY: every version has these fields.
            unsafe { (&raw const (*modify).$($field).+).read() }
        };
    }
    if field!(flags) != 0 {
        return Err(FI_EBADFLAGS);
    }
    let (first, count) = (field!(attr.mr_iov), field!(attr.iov_count));
    Ok(if first.is_null() { (first, 0) } else { (first, count) })
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;
    use crate::abi::{FI_EBUSY, FI_RMA, FI_RMA_EVENT, FI_WAIT_NONE};
    use crate::testing::{self, Client};

    #[test]
    fn version_decides_whether_a_region_is_closed_before_its_counter() {
        for (minor, first) in [(17, -FI_EBUSY), (18, 0), (19, 0)] {
            let client = Client::open_as(fi_version(1, minor), 0, |hints| hints.info.caps = FI_RMA | FI_RMA_EVENT);
            let counter = client.counter(FI_WAIT_NONE, null_mut());
            let mut memory = [0_u8; 8];
            let region = client.region(memory.as_mut_ptr(), memory.len(), FI_REMOTE_WRITE, 7, FI_RMA_EVENT);
            assert_eq!(testing::bind(region, counter, FI_REMOTE_WRITE), 0);
            assert_eq!(testing::close(region), first, "1.{minor}");
            assert_eq!(testing::close(counter), 0);
            if first != 0 {
                assert_eq!(testing::close(region), 0);
            }
        }
    }
}
