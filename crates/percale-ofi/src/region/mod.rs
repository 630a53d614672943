//! `fid_mr`: memory that peers may access (fi_mr(3)).
//!
//! * [`request`]: reads the arguments of a registration ([`Wanted`])
//! * [`binding`]: counters and endpoints, enabling, refreshing
//! * [`raw_key`]: raw keys
//!
//! A region is added to percale's domain when it is registered. If an event reports the completion of the registration,
//! the region is added when the event is created for its reader. Until the region is enabled it is in the disabled
//! state: its key is in use, and no peer can access it.

mod binding;
pub(crate) mod raw_key;
mod request;

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use percale::memory::region::RegisterError;
use percale::{Event, RawRegion};

use self::binding::RegionBindings;
use crate::abi::{
    FI_CLASS_MR, FI_ENABLE, FI_ENOKEY, FI_EOPBADSTATE, FI_GET_RAW_MR, FI_KEY_NOTAVAIL, FI_LOG_MR, FI_REFRESH,
    fi_mr_attr, fi_ops, fi_ops_mr, fid, fid_mr,
};
use crate::domain::{self, Domain};
use crate::log;
use crate::object::{self, Object, code};
use crate::registration::Wanted;
use crate::registration::pieces::Pieces;

#[repr(C)]
pub(crate) struct Region {
    fid: fid_mr,
    domain: Arc<domain::DomainShared>,
    part: Arc<RegionPart>,
}

/// The part of a region behind the client's structure.
struct RegionPart {
    wanted: Arc<Wanted>,
    state: Mutex<RegionState>,
}

struct RegionState {
    /// The client's structure, while it is open.
    fid: *mut fid_mr,
    /// The event queue's number of the registration, if an event reports its completion.
    number: Option<u64>,
    /// `None` before the registration has completed.
    region: Option<RawRegion>,
    bound: RegionBindings,
}

// SAFETY: the client's structure is valid until the region is closed, and closing first removes the pointer under the
// lock.
unsafe impl Send for RegionState {}

// SAFETY: the type is `repr(C)`, and `fid` is its first field.
unsafe impl Object for Region {
    const CLASS: usize = FI_CLASS_MR;
}

static FI: fi_ops =
    fi_ops { close: Some(close), bind: Some(binding::bind), control: Some(control), ..fi_ops::REFUSING };
pub(crate) static OPS: fi_ops_mr = fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg: Some(register),
    regv: Some(register_pieces),
    regattr: Some(register_as),
};

unsafe extern "C" fn register(
    domain: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let piece = libc::iovec { iov_base: buf.cast_mut(), iov_len: len };
    // SAFETY: there is one piece, and the client passed the other arguments.
    unsafe { register_pieces(domain, &raw const piece, 1, access, offset, key, flags, mr, context) }
}

unsafe extern "C" fn register_pieces(
    domain: *mut fid,
    pieces: *const libc::iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let attr =
        fi_mr_attr { mr_iov: pieces, iov_count: count, access, offset, requested_key, context, ..fi_mr_attr::ZERO };
    // SAFETY: the client passes the arguments that fi_mr(3) requires.
    unsafe { register_as(domain, &raw const attr, flags, mr) }
}

unsafe extern "C" fn register_as(domain: *mut fid, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr) -> c_int {
    // SAFETY: the pointer is a domain of this provider.
    let domain = unsafe { Domain::of(domain) }.shared();
    if mr.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: the client passes attributes and memory as fi_mr(3) requires.
    let wanted = match unsafe { request::read(domain, attr, flags) } {
        Ok(wanted) => Arc::new(wanted),
        Err(code) => return -code,
    };
    let state = RegionState { fid: std::ptr::null_mut(), number: None, region: None, bound: RegionBindings::default() };
    let part = Arc::new(RegionPart { wanted, state: Mutex::new(state) });
    let later = domain.registrations.get();
    let fid = fid_mr {
        fid: object::head(FI_CLASS_MR, part.wanted.context, &FI),
        mem_desc: std::ptr::null_mut(),
        key: FI_KEY_NOTAVAIL,
    };
    let region = Box::into_raw(Box::new(Region { fid, domain: Arc::clone(domain), part: Arc::clone(&part) }));
    part.lock().fid = region.cast();
    let begun = match later {
        None => part.complete(domain).unwrap_or(Ok(())),
        Some(events) => {
            // The client's pointer is written before any thread can read the event (MR-061).
            // SAFETY: the client passed a writable location for the region.
            unsafe { mr.write(region.cast()) };
            // The region keeps the domain open; the event does not.
            let number = events.name_region(region.cast(), part.wanted.context);
            part.lock().number = Some(number);
            let (part, domain) = (Arc::downgrade(&part), Arc::downgrade(domain));
            let context = number;
            // If the region is closed before the event is read, there is no event.
            let made = events.percale.write_later(move || {
                let completed = part.upgrade()?.complete(&*domain.upgrade()?)?;
                Some(match completed {
                    Ok(()) => Event::Registered { context },
                    Err(errno) => Event::RegistrationFailed { context, errno, reason: String::new() },
                })
            });
            made.map_err(|full| {
                events.forget_region(number);
                full.errno()
            })
        }
    };
    if let Err(code) = begun {
        // SAFETY: the object was created above and is not shared: neither the client nor an event refers to it.
        drop(unsafe { Box::from_raw(region) });
        return -code;
    }
    if later.is_none() {
        // SAFETY: the client passed a writable location for the region.
        unsafe { mr.write(region.cast()) };
    }
    0
}

impl Region {
    /// Calls `f` with percale's region. Returns `None` if the region is not registered yet.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&RawRegion) -> R) -> Option<R> {
        self.part.lock().region.as_ref().map(f)
    }
}

impl RegionPart {
    fn lock(&self) -> MutexGuard<'_, RegionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the region must be enabled explicitly after its registration.
    fn waits(&self, domain: &domain::DomainShared) -> bool {
        domain.regions.by_endpoint || domain.regions.events && self.wanted.events
    }

    /// Registers the region and stores its key in the client's structure. Returns `None` if that structure is closed.
    fn complete(&self, domain: &domain::DomainShared) -> Option<Result<(), i32>> {
        let mut state = self.lock();
        (!state.fid.is_null()).then(|| self.make(&mut state, domain))
    }

    fn make(&self, state: &mut RegionState, domain: &domain::DomainShared) -> Result<(), i32> {
        let mut region = self.registered(domain)?;
        let key = if domain.regions.raw { FI_KEY_NOTAVAIL } else { region.key() };
        if !self.waits(domain) && (!domain.regions.notify || self.is_there()) {
            region.enable().map_err(|error| error.errno())?;
        }
        let description =
            domain.descriptions.give((domain.regions.local || domain.regions.collective).then_some(&self.wanted));
        // SAFETY: the structure is open, because the state refers to it.
        unsafe { (&raw mut (*state.fid).key).write(key) };
        // SAFETY: as above.
        unsafe { (&raw mut (*state.fid).mem_desc).write(description) };
        state.region = Some(region);
        Ok(())
    }

    /// Registers a percale region in the disabled state.
    fn registered(&self, domain: &domain::DomainShared) -> Result<RawRegion, i32> {
        let wanted = &self.wanted;
        let mut registration = domain.percale.registration(wanted.access).base(wanted.base).disabled();
        if let Some(device) = wanted.device {
            registration = registration.device(device);
        }
        if let Some(key) = wanted.key {
            registration = registration.key(key);
        }
        if domain.regions.raw {
            registration = registration.raw_key();
        }
        if let Some(key) = &wanted.authorization {
            registration = registration.authorization_key(key);
        }
        let region = match &wanted.pieces {
            // SAFETY: the client passes memory that is valid as fi_mr(3) requires. With FI_MR_ALLOCATED it is mapped;
            // otherwise only the kernel accesses it.
            Pieces::Some(pieces) => unsafe { registration.raw(pieces, domain.regions.allocated) },
            // SAFETY: as above, for all memory.
            Pieces::Everything => unsafe { registration.everything() },
        };
        region.map_err(|error| {
            log::warning!(FI_LOG_MR, "fi_mr_reg: {error}");
            if matches!(error, RegisterError::KeyTaken(_)) { FI_ENOKEY } else { error.errno() }
        })
    }

    /// Returns whether all of the memory is mapped now.
    fn is_there(&self) -> bool {
        let Pieces::Some(pieces) = &self.wanted.pieces else { return true };
        if self.wanted.device.is_some() {
            return true; // Otherwise it would not have been registered.
        }
        let writes = self.wanted.access.contains(percale::Access::REMOTE_WRITE);
        pieces.iter().all(|piece| percale::memory::is_mapped(*piece, writes))
    }
}

unsafe extern "C" fn control(mr: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the pointer is a region of this provider.
    let region = unsafe { Region::of(mr) };
    match command {
        FI_ENABLE => code(region.enable()),
        // SAFETY: the client passed the argument that FI_REFRESH requires.
        FI_REFRESH => code(unsafe { region.refresh(argument.cast()) }),
        FI_GET_RAW_MR => {
            let state = region.part.lock();
            let Some(registered) = &state.region else { return -FI_EOPBADSTATE };
            // SAFETY: the client passed the argument that FI_GET_RAW_MR requires.
            unsafe { raw_key::copy(argument.cast(), region.part.wanted.base, &registered.raw_key()) }
        }
        _ => -libc::ENOSYS,
    }
}

unsafe extern "C" fn close(mr: *mut fid) -> c_int {
    // SAFETY: the pointer is a region of this provider.
    let region = unsafe { Region::of(mr) };
    let mut state = region.part.lock();
    if state.bound.is_in_use(&region.domain) {
        log::warning!(FI_LOG_MR, "fi_close: the counter or endpoint of the region is open; close it first");
        return -libc::EBUSY;
    }
    if let Some(raw) = state.region.take()
        && let Err(error) = raw.close()
    {
        log::warning!(FI_LOG_MR, "fi_close: {error}");
        let code = -error.errno();
        state.region = Some(error.into_inner());
        return code;
    }
    state.fid = std::ptr::null_mut();
    let number = state.number.take();
    drop(state);
    if let (Some(number), Some(events)) = (number, region.domain.registrations.get()) {
        events.forget_region(number);
    }
    region.domain.descriptions.take_back(region.fid.mem_desc);
    // SAFETY: the pointer was created from a box, and the client no longer uses it.
    drop(unsafe { Box::from_raw(mr.cast::<Region>()) });
    0
}
