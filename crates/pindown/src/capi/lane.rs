//! Lanes and uses: the fast path.

use std::ffi::{c_int, c_void};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{Failure, answer};
use super::registrar::Callbacks;
use super::{OpenCache, own, place};
use crate::access::Access;
use crate::cache::{Begun, Lane, LookupError, TICKET_BITS, Use};
use crate::range::Range;

/// `struct pindown_use`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UseOfLane {
    pub(super) local_key: u64,
    pub(super) remote_key: u64,
    /// Identifies the use and the lane that began it; 0 once it has ended.
    pub(super) ticket: u64,
}

/// `struct pindown_lane`.
#[derive(Debug)]
pub struct OpenLane {
    lane: Lane<Callbacks>,
    /// The upper bits of the lane's tickets, never 0, by which a use of another lane is detected.
    name: u64,
    _open: Arc<()>,
}

impl OpenLane {
    /// Converts a use to the caller's structure.
    #[inline(always)]
    fn name(&self, got: Use) -> UseOfLane {
        let (local_key, remote_key) = (got.local_key(), got.remote_key());
        UseOfLane { local_key, remote_key, ticket: self.name | got.into_ticket() }
    }
}

/// The bits of a ticket that belong to the use; the others are the lane's name.
const OF_USE: u64 = (1 << TICKET_BITS) - 1;

/// The number of lanes opened so far.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// Returns a name that none of the last 2^28 lanes has had.
fn name() -> u64 {
    (OPENED.fetch_add(1, Ordering::Relaxed) << 1 | 1) << TICKET_BITS
}

/// Opens a lane.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_lane_open(cache: *const OpenCache, lane: *mut *mut OpenLane) -> c_int {
    // SAFETY: the caller meets the same requirements.
    answer(unsafe { own(cache) }.and_then(|own| {
        let place = place(lane, "lane")?;
        let lane = Box::new(OpenLane { lane: own.cache.lane(), name: name(), _open: Arc::clone(&own.lanes) });
        // SAFETY: not null, and the caller guarantees that a pointer may be written there.
        unsafe { place.write(Box::into_raw(lane)) };
        Ok(0)
    }))
}

/// Closes a lane, unless uses are under way.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_lane_close(lane: *mut OpenLane) -> c_int {
    // SAFETY: the caller guarantees that it is null or an open lane.
    let opened = unsafe { lane.as_ref() };
    answer(opened.ok_or_else(|| Failure::null("lane")).and_then(|opened| {
        if !opened.lane.is_idle() && !opened.lane.forked() {
            return Err(Failure::new(libc::EBUSY, "uses of the lane are under way: end them first"));
        }
        // SAFETY: made by `Box::into_raw` in `pindown_lane_open`, and the caller guarantees that it is not in use.
        drop(unsafe { Box::from_raw(lane) });
        Ok(0)
    }))
}

/// Gets a registration of these bytes with at least these rights.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_get(
    lane: *const OpenLane,
    address: *const c_void,
    length: usize,
    access: u32,
    used: *mut UseOfLane,
) -> c_int {
    // SAFETY: the caller guarantees that it is null or an open lane that no other thread uses now.
    let lane = unsafe { lane.as_ref() };
    let (Some(lane), false, Some(rights), Ok(range)) =
        (lane, used.is_null(), Access::from_bits(access), Range::new(address.addr() as u64, length as u64))
    else {
        return get_failed(lane.is_none(), used.is_null(), access, address.addr() as u64, length as u64);
    };
    match lane.lane.hit(range, rights) {
        Ok(got) => {
            // SAFETY: not null, and the caller guarantees that a use may be written there.
            unsafe { used.write(lane.name(got)) };
            0
        }
        Err(begun) => {
            // SAFETY: as for this function, and the pointer is not null.
            unsafe { get_slowly(lane, range, rights, begun, used) }
        }
    }
}

/// Finds or makes a registration after the fast path found none.
///
/// # Safety
/// A use may be written to `used`.
#[cold]
#[inline(never)]
unsafe fn get_slowly(lane: &OpenLane, range: Range, access: Access, begun: Begun, used: *mut UseOfLane) -> c_int {
    match lane.lane.get_slowly(range, access, begun) {
        Ok(got) => {
            // SAFETY: the caller meets the same requirements.
            unsafe { used.write(lane.name(got)) };
            0
        }
        Err(error) => Failure::from(error).answer(),
    }
}

/// Returns a failure that names the invalid argument.
#[cold]
#[inline(never)]
fn get_failed(no_lane: bool, no_use: bool, access: u32, address: u64, length: u64) -> c_int {
    let failure = match (no_lane, no_use, Range::new(address, length)) {
        (true, ..) => Failure::null("lane"),
        (_, true, _) => Failure::null("use"),
        (_, _, Err(error)) => LookupError::from(error).into(),
        _ => Failure::unknown_access(access),
    };
    failure.answer()
}

/// Returns a lane and one of its uses.
///
/// # Errors
/// Returns the error code if either is null, or if the use does not belong to this lane.
///
/// # Safety
/// The lane is null, or an open lane that no other thread uses now. The use is null, or valid and accessed by no other
/// code now.
#[inline(always)]
unsafe fn use_of<'a>(lane: *const OpenLane, used: *mut UseOfLane) -> Result<(&'a OpenLane, &'a mut UseOfLane), c_int> {
    // SAFETY: guaranteed by the caller.
    let lane = unsafe { lane.as_ref() };
    // SAFETY: guaranteed by the caller.
    let used = unsafe { used.as_mut() };
    let (Some(lane), Some(used)) = (lane, used) else {
        return Err(end_failed(None));
    };
    if used.ticket & !OF_USE != lane.name {
        return Err(end_failed(Some(used.ticket)));
    }
    Ok((lane, used))
}

/// Ends a use, after its operation has completed.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_end(lane: *const OpenLane, used: *mut UseOfLane) -> c_int {
    // SAFETY: the caller meets the same requirements.
    let (lane, used) = match unsafe { use_of(lane, used) } {
        Ok(found) => found,
        Err(code) => return code,
    };
    lane.lane.end_ticket(mem::take(&mut used.ticket) & OF_USE);
    0
}

/// Holds a use for an operation that may take a long time: the use then delays only the unpinning of its own
/// registration.
#[cfg_attr(feature = "c-symbols", unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pindown_hold(lane: *const OpenLane, used: *mut UseOfLane) -> c_int {
    // SAFETY: the caller meets the same requirements.
    let (lane, used) = match unsafe { use_of(lane, used) } {
        Ok(found) => found,
        Err(code) => return code,
    };
    let held = lane.lane.hold(lane.lane.of_ticket(used.ticket & OF_USE));
    used.ticket = lane.name | held.into_ticket();
    0
}

#[cold]
#[inline(never)]
fn end_failed(ticket: Option<u64>) -> c_int {
    Failure::invalid(match ticket {
        None => "lane or use is NULL",
        Some(0) => "the use has already ended",
        Some(_) => "the use belongs to another lane, or is invalid",
    })
    .answer()
}
