//! Memory windows, which libfabric does not define: the function table that C programs get from fi_open_ops(3) on a
//! domain (`include/percale_fi_ext.h`).

use std::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use percale::memory::window::WindowState;
use percale::{TypeTwo, Window, WindowAccess, WindowType};

use crate::abi::{FI_EBADFLAGS, FI_LOG_MR, fi_addr_t, fid_domain, fid_ep, fid_mr};
use crate::domain::{self, Domain};
use crate::endpoint::{Bound, Endpoint};
use crate::log;
use crate::object::Object;
use crate::region::Region;

/// The name of the table for fi_open_ops(3).
pub(crate) const NAME: &CStr = c"percale_windows";

/// `struct percale_window`.
pub(crate) struct Opened {
    fid: *mut fid_domain,
    /// Keeps the domain open as long as the window is open.
    _domain: Arc<domain::DomainShared>,
    /// `None` once the window is closed.
    window: Mutex<Option<Window>>,
}

/// `struct percale_window_info`.
#[repr(C)]
pub(crate) struct Info {
    kind: c_int,
    state: c_int,
    key: u64,
    domain: *mut fid_domain,
}

/// `struct percale_window_range`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct WindowRange {
    mr: *mut fid_mr,
    offset: u64,
    length: u64,
    access: u64,
}

/// `struct percale_window_ops`.
#[repr(C)]
pub(crate) struct Ops {
    size: usize,
    type_two: unsafe extern "C" fn(*mut fid_domain) -> c_int,
    open: unsafe extern "C" fn(*mut fid_domain, c_int, *mut *mut Opened) -> c_int,
    close: unsafe extern "C" fn(*mut Opened) -> c_int,
    query: unsafe extern "C" fn(*mut Opened, *mut Info) -> c_int,
    bind: unsafe extern "C" fn(*mut Opened, *const WindowRange, *mut u64, *mut u64) -> c_int,
    post_bind: unsafe extern "C" fn(
        *mut fid_ep,
        fi_addr_t,
        *mut Opened,
        *const WindowRange,
        u8,
        *mut u64,
        *mut u64,
        *mut c_void,
        u64,
    ) -> isize,
    post_invalidate: unsafe extern "C" fn(*mut fid_ep, fi_addr_t, u64, *mut c_void, u64) -> isize,
    send_invalidate: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, fi_addr_t, u64, *mut c_void, u64) -> isize,
}

pub(crate) static OPS: Ops =
    Ops { size: size_of::<Ops>(), type_two, open, close, query, bind, post_bind, post_invalidate, send_invalidate };

/// The window types with their numbers in C.
const TYPES: [(c_int, WindowType); 3] = [(1, WindowType::One), (2, WindowType::TwoA), (3, WindowType::TwoB)];

fn number(kind: WindowType) -> c_int {
    TYPES.iter().find(|(_, other)| *other == kind).map_or(0, |(number, _)| *number)
}

fn refused(call: &str, why: &dyn std::fmt::Display, code: i32) -> c_int {
    log::warning!(FI_LOG_MR, "windows: {call}: {why}");
    -code
}

impl Opened {
    /// Returns the window behind a client's pointer.
    ///
    /// # Safety
    /// `window` is null or an open window.
    unsafe fn of<'a>(window: *mut Self) -> Option<&'a Self> {
        // SAFETY: the caller guarantees this.
        unsafe { window.as_ref() }
    }

    fn window(&self) -> MutexGuard<'_, Option<Window>> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the range that a window is to be bound to.
///
/// # Safety
/// `part` is null or names an open region.
unsafe fn part<'a>(part: *const WindowRange) -> Option<(&'a Region, Bound)> {
    // SAFETY: the caller guarantees this.
    let WindowRange { mr, offset, length, access } = unsafe { part.as_ref().copied() }?;
    // SAFETY: the caller guarantees this.
    let region = unsafe { Region::of_class(mr.cast()) }?;
    let access = u8::try_from(access).ok().and_then(WindowAccess::from_bits)?;
    Some((region, Bound { range: offset..offset.checked_add(length)?, access }))
}

unsafe extern "C" fn type_two(domain: *mut fid_domain) -> c_int {
    // SAFETY: the client passed null or an open domain.
    match unsafe { Domain::of_class(domain.cast()) }.map(|domain| domain.shared().percale.type_two()) {
        Some(TypeTwo::A) => number(WindowType::TwoA),
        Some(TypeTwo::B) => number(WindowType::TwoB),
        None => -libc::EINVAL,
    }
}

unsafe extern "C" fn open(domain: *mut fid_domain, kind: c_int, window: *mut *mut Opened) -> c_int {
    let kind = TYPES.iter().find(|(number, _)| *number == kind);
    // SAFETY: the client passed null or an open domain.
    let (Some(opened), Some((_, kind)), false) = (unsafe { Domain::of_class(domain.cast()) }, kind, window.is_null())
    else {
        return -libc::EINVAL;
    };
    match opened.shared().percale.window(*kind) {
        Ok(made) => {
            let _domain = Arc::clone(opened.shared());
            let made = Box::new(Opened { fid: domain, _domain, window: Mutex::new(Some(made)) });
            // SAFETY: the client passed a writable location.
            unsafe { window.write(Box::into_raw(made)) };
            0
        }
        Err(error) => refused("open", &error, error.errno()),
    }
}

unsafe extern "C" fn close(window: *mut Opened) -> c_int {
    // SAFETY: the client passed null or an open window.
    let Some(opened) = (unsafe { Opened::of(window) }) else { return -libc::EINVAL };
    let mut place = opened.window();
    if let Some(held) = place.take()
        && let Err(busy) = held.close()
    {
        *place = Some(busy);
        return refused("close", &"timeout: a peer has not finished its access", libc::EBUSY);
    }
    drop(place);
    // SAFETY: `open` created the pointer from a box, and the client no longer uses it.
    drop(unsafe { Box::from_raw(window) });
    0
}

unsafe extern "C" fn query(window: *mut Opened, info: *mut Info) -> c_int {
    // SAFETY: the client passed null or an open window.
    let Some(opened) = (unsafe { Opened::of(window) }) else { return -libc::EINVAL };
    let place = opened.window();
    let (Some(window), false) = (&*place, info.is_null()) else { return -libc::EINVAL };
    let state = match window.state() {
        WindowState::Unbound => 0,
        WindowState::Bound(_) => 1,
        WindowState::Revoking(_) => 2,
    };
    let description = Info { kind: number(window.kind()), state, key: window.key(), domain: opened.fid };
    // SAFETY: the client passed a writable location.
    unsafe { info.write(description) };
    0
}

/// Writes the key and address by which peers access a window.
///
/// # Safety
/// Both are null or writable.
unsafe fn name(remote: percale::RemoteMemory, key: *mut u64, address: *mut u64) {
    for (value, place) in [(remote.key, key), (remote.address, address)] {
        if !place.is_null() {
            // SAFETY: the caller guarantees this.
            unsafe { place.write(value) };
        }
    }
}

unsafe extern "C" fn bind(window: *mut Opened, to: *const WindowRange, key: *mut u64, address: *mut u64) -> c_int {
    // SAFETY: the client passed an open window and a valid range.
    let (Some(opened), Some((region, bound))) = (unsafe { Opened::of(window) }, unsafe { part(to) }) else {
        return -libc::EINVAL;
    };
    let mut place = opened.window();
    let Some(window) = &mut *place else { return -libc::EINVAL };
    match region.with(|region| window.bind(region, bound.range, bound.access)) {
        Some(Ok(remote)) => {
            // SAFETY: the client passed null or writable locations.
            unsafe { name(remote, key, address) };
            0
        }
        Some(Err(error)) => refused("bind", &error, error.errno()),
        None => refused("bind", &"the registration has not completed", libc::EINVAL),
    }
}

unsafe extern "C" fn post_bind(
    ep: *mut fid_ep,
    peer: fi_addr_t,
    window: *mut Opened,
    to: *const WindowRange,
    byte: u8,
    key: *mut u64,
    address: *mut u64,
    context: *mut c_void,
    flags: u64,
) -> isize {
    // SAFETY: the client passed an open window and a valid range.
    let (Some(opened), Some((region, bound))) = (unsafe { Opened::of(window) }, unsafe { part(to) }) else {
        return -(libc::EINVAL as isize);
    };
    let place = opened.window();
    let Some(window) = &*place else { return -(libc::EINVAL as isize) };
    // SAFETY: the pointer is an endpoint of this provider.
    let endpoint = unsafe { Endpoint::of(ep) };
    let posted = region.with(|region| endpoint.bind_window(peer, window, region, bound, byte, context, flags));
    match posted {
        Some(Ok(remote)) => {
            // SAFETY: the client passed null or writable locations.
            unsafe { name(remote, key, address) };
            0
        }
        Some(Err(code)) => code,
        None => -(libc::EINVAL as isize),
    }
}

unsafe extern "C" fn post_invalidate(
    ep: *mut fid_ep,
    peer: fi_addr_t,
    key: u64,
    context: *mut c_void,
    flags: u64,
) -> isize {
    // SAFETY: the pointer is an endpoint of this provider.
    unsafe { Endpoint::of(ep) }.invalidate_window(peer, key, context, flags)
}

unsafe extern "C" fn send_invalidate(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    peer: fi_addr_t,
    key: u64,
    context: *mut c_void,
    flags: u64,
) -> isize {
    // SAFETY: the pointer is an endpoint of this provider, and the client passed a valid buffer.
    unsafe { Endpoint::of(ep).send_invalidating((buf, len), peer, key, context, flags) }
}

/// Implements fi_open_ops(3) for the windows table.
///
/// # Safety
/// `ops` is writable.
pub(crate) unsafe fn open_ops(flags: u64, ops: *mut *mut c_void) -> c_int {
    if flags != 0 {
        log::warning!(FI_LOG_MR, "fi_open_ops: flags {flags:#x} are not known");
        return -FI_EBADFLAGS;
    }
    // SAFETY: the client passed a writable location for the table.
    unsafe { ops.write(std::ptr::from_ref(&OPS).cast_mut().cast()) };
    0
}
