//! Lanes and uses: the hot path.

use std::ffi::{c_int, c_void};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{Failure, answer};
use super::registrar::Callbacks;
use super::{OpenCache, own, place};
use crate::access::Access;
use crate::cache::{Lane, TICKET_BITS, Use};
use crate::range::Range;

/// `struct pindown_use`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct UseOfLane {
    pub(super) local_key: u64,
    pub(super) remote_key: u64,
    /// What ends it and which lane began it; 0 once it has ended.
    pub(super) ticket: u64,
}

/// `struct pindown_lane`.
pub(crate) struct OpenLane {
    lane: Lane<Callbacks>,
    /// The upper bits of its tickets, never 0: one that another lane gave is not ended here.
    name: u64,
    _open: Arc<()>,
}

/// What belongs to the use in a ticket; the rest is the lane's.
const OF_USE: u64 = (1 << TICKET_BITS) - 1;

/// Lanes opened so far.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// A name that no other lane has had of the last 2^29.
fn name() -> u64 {
    (OPENED.fetch_add(1, Ordering::Relaxed) << 1 | 1) << TICKET_BITS
}

/// Opens a lane.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pindown_lane_open(cache: *const OpenCache, lane: *mut *mut OpenLane) -> c_int {
    // SAFETY: the caller's promise is the same.
    answer(unsafe { own(cache) }.and_then(|own| {
        let place = place(lane, "lane")?;
        let lane = Box::new(OpenLane { lane: own.cache.lane(), name: name(), _open: Arc::clone(&own.lanes) });
        // SAFETY: not null, and the caller's promise that a pointer may be written there.
        unsafe { place.write(Box::into_raw(lane)) };
        Ok(0)
    }))
}

/// Closes it, unless uses are under way.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pindown_lane_close(lane: *mut OpenLane) -> c_int {
    // SAFETY: the caller's promise: null, or an open lane.
    let opened = unsafe { lane.as_ref() };
    answer(opened.ok_or_else(|| Failure::null("lane")).and_then(|opened| {
        if !opened.lane.is_idle() && !opened.lane.forked() {
            return Err(Failure::new(libc::EBUSY, "uses of the lane are under way: end them first"));
        }
        // SAFETY: made by `Box::into_raw` in `pindown_lane_open`, and nobody uses it any more: the caller's promise.
        drop(unsafe { Box::from_raw(lane) });
        Ok(0)
    }))
}

/// A registration of these bytes with at least these rights.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pindown_get(
    lane: *const OpenLane,
    address: *const c_void,
    length: usize,
    access: u32,
    used: *mut UseOfLane,
) -> c_int {
    // SAFETY: the caller's promise: null, or an open lane that no other thread uses now.
    let Some(lane) = (unsafe { lane.as_ref() }) else { return Failure::null("lane").answer() };
    if used.is_null() {
        return Failure::null("use").answer();
    }
    let Some(access) = Access::from_bits(access) else {
        return Failure::unknown_access(access).answer();
    };
    let result = match Range::new(address.addr() as u64, length as u64) {
        Ok(range) => lane.lane.get(range, access),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(got) => {
            let (local_key, remote_key) = (got.local_key(), got.remote_key());
            let got = UseOfLane { local_key, remote_key, ticket: lane.name | got.into_ticket() };
            // SAFETY: not null, and the caller's promise that a use may be written there.
            unsafe { used.write(got) };
            0
        }
        Err(error) => Failure::from(error).answer(),
    }
}

/// The operation has completed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pindown_end(lane: *const OpenLane, used: *mut UseOfLane) -> c_int {
    // SAFETY: the caller's promise: null, or an open lane that no other thread uses now.
    let Some(lane) = (unsafe { lane.as_ref() }) else { return Failure::null("lane").answer() };
    // SAFETY: the caller's promise: null, or a use that nobody else touches now.
    let Some(used) = (unsafe { used.as_mut() }) else { return Failure::null("use").answer() };
    if used.ticket & !OF_USE != lane.name {
        return not_of_lane(used.ticket);
    }
    lane.lane.end(Use::from_ticket(mem::take(&mut used.ticket) & OF_USE));
    0
}

#[cold]
fn not_of_lane(ticket: u64) -> c_int {
    let why = if ticket == 0 { "the use has ended before" } else { "the use belongs to another lane, or is none" };
    Failure::invalid(why).answer()
}
