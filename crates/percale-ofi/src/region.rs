//! `fid_mr`: memory that peers may access (fi_mr(3)).

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use percale::memory::region::{CloseError, RegisterError};
use percale::memory::volatile::IOV_LIMIT;
use percale::{Access, Counter, RawRegion, Segment};

use crate::abi::{
    FI_CLASS_MR, FI_ENABLE, FI_ENOKEY, FI_EOPBADSTATE, FI_HMEM_SYSTEM, FI_KEY_NOTAVAIL, FI_LOG_MR, FI_REMOTE_WRITE,
    FI_RMA_EVENT, FI_WRITE, fi_mr_attr, fi_ops, fi_ops_mr, fid, fid_mr,
};
use crate::counter::Count;
use crate::domain::{self, Domain};
use crate::endpoint::Endpoint;
use crate::log;
use crate::object::{self, Object, code};

/// The flags that a registration may have.
const KNOWN: u64 = FI_RMA_EVENT;

#[repr(C)]
pub(crate) struct Region {
    fid: fid_mr,
    domain: Arc<domain::Shared>,
    wanted: Wanted,
    state: Mutex<State>,
}

/// What was asked for.
struct Wanted {
    pieces: Pieces,
    access: Access,
    base: u64,
    key: Option<u64>,
}

enum Pieces {
    Some(Vec<Segment>),
    /// The whole address space.
    Everything,
}

#[derive(Default)]
struct State {
    counter: Option<Arc<Counter>>,
    bound: bool,
    /// None before the region is enabled.
    region: Option<RawRegion>,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Object for Region {
    const CLASS: usize = FI_CLASS_MR;
}

static FI: fi_ops = fi_ops { close: Some(close), bind: Some(bind), control: Some(control), ..fi_ops::REFUSING };
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
    // SAFETY: one piece; the rest is the client's.
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
    // SAFETY: the client's, as fi_mr(3) has them.
    unsafe { register_as(domain, &raw const attr, flags, mr) }
}

unsafe extern "C" fn register_as(domain: *mut fid, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr) -> c_int {
    // SAFETY: a domain of ours.
    let domain = unsafe { Domain::of(domain) }.shared();
    if attr.is_null() {
        return -libc::EINVAL;
    }
    if flags & !KNOWN != 0 {
        log::warning!(FI_LOG_MR, "fi_mr_regattr: flags {:#x} are not supported", flags & !KNOWN);
        return -crate::abi::FI_EBADFLAGS;
    }
    // The tail is not there for callers of older versions: only the fields that every version has are read.
    macro_rules! field {
        ($field:ident) => {
            // SAFETY: the client's attributes, at least as long as the first version has them.
            unsafe { (&raw const (*attr).$field).read() }
        };
    }
    let (first, count) = (field!(mr_iov), field!(iov_count));
    if first.is_null() || count == 0 {
        return -libc::EINVAL;
    }
    let versioned = domain.fabric.api_version >= (1 << 16 | 9);
    if versioned && field!(iface) != FI_HMEM_SYSTEM {
        log::warning!(FI_LOG_MR, "fi_mr_regattr: memory of devices (iface {}) is not supported", field!(iface));
        return -libc::ENOSYS;
    }
    if field!(auth_key_size) != 0 {
        log::warning!(
            FI_LOG_MR,
            "fi_mr_regattr: authorization keys of single regions are not supported; give one to the domain"
        );
        return -libc::EOPNOTSUPP;
    }
    // SAFETY: the client gives `count` pieces.
    let pieces = unsafe { std::slice::from_raw_parts(first, count) };
    let everything = matches!(pieces, [only] if only.iov_base.is_null() && only.iov_len == usize::MAX);
    if !everything && count > IOV_LIMIT {
        log::warning!(
            FI_LOG_MR,
            "fi_mr_regattr: {count} pieces are more than the {IOV_LIMIT} of a region (mr_iov_limit)"
        );
        return -libc::EINVAL;
    }
    let base = if domain.regions.virtual_addresses { pieces[0].iov_base.addr() as u64 } else { field!(offset) };
    let wanted = Wanted {
        pieces: if everything {
            Pieces::Everything
        } else {
            // SAFETY: the client keeps the memory as fi_mr(3) has it until the region is closed.
            Pieces::Some(
                pieces.iter().map(|piece| unsafe { Segment::new(piece.iov_base.cast(), piece.iov_len) }).collect(),
            )
        },
        access: Access::from_bits_truncate(field!(access)),
        base,
        key: (!domain.regions.our_keys).then(|| field!(requested_key)),
    };
    let later = domain.regions.by_endpoint || (domain.regions.events && flags & FI_RMA_EVENT != 0);
    let fid = fid_mr {
        fid: object::head(FI_CLASS_MR, field!(context), &FI),
        mem_desc: std::ptr::null_mut(),
        key: wanted.key.unwrap_or(FI_KEY_NOTAVAIL),
    };
    let mut region = Region { fid, domain: Arc::clone(domain), wanted, state: Mutex::default() };
    if !later {
        match region.enable() {
            Ok(key) => region.fid.key = key,
            Err(code) => return -code,
        }
    }
    // SAFETY: the client wants the region there.
    unsafe { region.give(mr) };
    0
}

impl Region {
    /// Registers what was asked for; returns the key.
    fn enable(&self) -> Result<u64, i32> {
        let Self { domain, wanted, .. } = self;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(region) = &state.region {
            return Ok(region.key());
        }
        let mut registration = domain.percale.registration(wanted.access).base(wanted.base);
        if let Some(key) = wanted.key {
            registration = registration.key(key);
        }
        if let Some(counter) = &state.counter {
            registration = registration.counter(counter);
        }
        let region = match &wanted.pieces {
            // SAFETY: the client vouches for the memory as fi_mr(3) has it: it is there with FI_MR_ALLOCATED; without, only the
            // kernel touches it.
            Pieces::Some(pieces) => unsafe { registration.raw(pieces, domain.regions.allocated) },
            // SAFETY: as above, of all memory.
            Pieces::Everything => unsafe { registration.everything() },
        };
        match region {
            Ok(region) => Ok(state.region.insert(region).key()),
            Err(error) => {
                log::warning!(FI_LOG_MR, "fi_mr_reg: {error}");
                Err(if matches!(error, RegisterError::KeyTaken(_)) { FI_ENOKEY } else { error.errno() })
            }
        }
    }
}

/// A counter, for what peers write; or an endpoint, whose peers the region is for (every endpoint of the domain is served).
unsafe extern "C" fn bind(mr: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: a region of ours.
    let region = unsafe { Region::of(mr) };
    let mut state = region.state.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: some open object of the client's.
    if let Some(counter) = unsafe { Count::of_class(other) } {
        if flags & !(FI_REMOTE_WRITE | FI_WRITE) != 0 || flags & FI_REMOTE_WRITE == 0 {
            log::warning!(FI_LOG_MR, "fi_mr_bind: a counter counts FI_REMOTE_WRITE, not {flags:#x}");
            return -crate::abi::FI_EBADFLAGS;
        }
        counter.shared().attach_region();
        let counter = &counter.shared().percale;
        if let Some(region) = &state.region
            && !region.count(counter)
        {
            log::warning!(FI_LOG_MR, "fi_mr_bind: the region has a counter");
            return -libc::EINVAL;
        }
        state.counter = Some(Arc::clone(counter));
        return 0;
    }
    // SAFETY: as above.
    if unsafe { Endpoint::of_class(other) }.is_some() {
        state.bound = true;
        return 0;
    }
    -libc::EINVAL
}

unsafe extern "C" fn control(mr: *mut fid, command: c_int, _argument: *mut c_void) -> c_int {
    // SAFETY: a region of ours.
    let region = unsafe { Region::of(mr) };
    match command {
        FI_ENABLE => {
            if region.domain.regions.by_endpoint && !region.state.lock().unwrap_or_else(PoisonError::into_inner).bound {
                log::warning!(
                    FI_LOG_MR,
                    "fi_mr_enable: the region must first be bound to an endpoint (FI_MR_ENDPOINT)"
                );
                return -FI_EOPBADSTATE;
            }
            code(region.enable().map(|key| {
                // SAFETY: a region of ours, whose key nobody reads before it is enabled.
                unsafe { (&raw mut (*mr.cast::<fid_mr>()).key).write(key) };
            }))
        }
        _ => -libc::ENOSYS,
    }
}

unsafe extern "C" fn close(mr: *mut fid) -> c_int {
    // SAFETY: a region of ours.
    let region = unsafe { Region::of(mr) };
    let mut state = region.state.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(raw) = state.region.take()
        && let Err(CloseError::Busy(raw)) = raw.close()
    {
        log::warning!(
            FI_LOG_MR,
            "fi_close: a peer in the middle of an access to the region does not move; close it again later"
        );
        state.region = Some(raw);
        return -libc::EBUSY;
    }
    drop(state);
    // SAFETY: `give` made it of a box, and the client gives it up.
    drop(unsafe { Box::from_raw(mr.cast::<Region>()) });
    0
}

/// Raw keys come with their engine.
pub(crate) unsafe extern "C" fn domain_control(_domain: *mut fid, _command: c_int, _argument: *mut c_void) -> c_int {
    -libc::ENOSYS
}
