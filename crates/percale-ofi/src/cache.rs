//! The registration cache: the function table that C programs get from fi_open_ops(3) on a domain
//! (`include/percale_fi_ext.h`).
//!
//! `fi_open("mr_cache")` opens libfabric's own cache, which is not available to providers. C programs therefore import
//! their memory monitor and open caches through this table.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use percale::Domain as PercaleDomain;
use percale::domain::OpenedCache;
use percale::pindown::LookupError;
use percale::pindown::capi::{
    Answering, Answers, Attr, CacheOptions, Callbacks, FUNCTIONS, Failure, Functions, Opaque, OpenCache, Opened,
    answer, open_by,
};
use percale::pindown::monitor::imported::Notifier;
use percale::pindown::monitor::userfaultfd::Unseen;

use crate::abi::{FI_EBADFLAGS, FI_LOG_MR, fid, fid_domain};
use crate::domain::{Domain, DomainShared};
use crate::log;
use crate::object::Object;
use crate::{settings, windows};

/// The name of the table for fi_open_ops(3).
const NAME: &CStr = c"percale_registration_cache";

/// `struct percale_cache_ops`.
#[repr(C)]
struct Ops {
    size: usize,
    import_monitor: unsafe extern "C" fn(*mut fid_domain, Option<Answers>, *mut c_void) -> c_int,
    changed: unsafe extern "C" fn(*mut fid_domain, *const c_void, usize) -> c_int,
    changed_everything: unsafe extern "C" fn(*mut fid_domain) -> c_int,
    open: unsafe extern "C" fn(*mut fid_domain, *const Attr, *mut *mut OpenCache) -> c_int,
    pindown: &'static Functions,
}

static OPS: Ops =
    Ops { size: size_of::<Ops>(), import_monitor, changed, changed_everything, open, pindown: &FUNCTIONS };

/// Implements fi_open_ops(3) for a domain.
pub(crate) unsafe extern "C" fn open_ops(
    _domain: *mut fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    if name.is_null() || ops.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: the name ends with a zero byte.
    let name = unsafe { CStr::from_ptr(name) };
    if name == windows::NAME {
        // SAFETY: the client passed a writable location for the table.
        return unsafe { windows::open_ops(flags, ops) };
    }
    if name != NAME {
        return -libc::ENOSYS;
    }
    if flags != 0 {
        log::warning!(FI_LOG_MR, "fi_open_ops: flags {flags:#x} are not known");
        return -FI_EBADFLAGS;
    }
    // SAFETY: the client passed a writable location for the table.
    unsafe { ops.write(std::ptr::from_ref(&OPS).cast_mut().cast()) };
    0
}

/// Converts a result to an error code, and logs an error.
fn log_error(call: &str, result: Result<(), Failure>) -> c_int {
    if let Err(failure) = &result {
        log::warning!(FI_LOG_MR, "registration cache: {call}: {failure}");
    }
    answer(result.map(|()| 0))
}

/// Returns the part of a domain that its objects share.
///
/// # Safety
/// `domain` is null or an open domain.
unsafe fn shared<'a>(domain: *mut fid_domain) -> Result<&'a Arc<DomainShared>, Failure> {
    // SAFETY: the caller guarantees this.
    let domain = unsafe { Domain::of_class(domain.cast()) };
    domain.map(Domain::shared).ok_or_else(|| Failure::new(libc::EINVAL, "not a domain"))
}

unsafe extern "C" fn import_monitor(domain: *mut fid_domain, answers: Option<Answers>, context: *mut c_void) -> c_int {
    // SAFETY: the client passed null or an open domain.
    let result = unsafe { shared(domain) }.and_then(|shared| {
        let answering = Answering::new(answers, Opaque(context));
        let (notifier, imported) = Notifier::new(move |range, access| answering.ask(range, access))?;
        // SAFETY: the client meets the requirements of percale_fi_ext.h.
        let taken = unsafe { shared.percale.import_monitor(imported) };
        taken.map_err(|already| Failure::new(libc::EBUSY, already.to_string()))?;
        // Only one import can succeed, so the notifier has not been set before.
        shared.notifier.set(notifier).ok();
        Ok(())
    });
    log_error("import_monitor", result)
}

/// Returns the notifier of the monitor that was imported into a domain.
///
/// # Safety
/// The requirements of [`shared`] apply.
unsafe fn notifier<'a>(domain: *mut fid_domain) -> Result<&'a Notifier, Failure> {
    // SAFETY: the caller guarantees this.
    let shared = unsafe { shared(domain) }?;
    shared.notifier.get().ok_or_else(|| Failure::new(libc::EINVAL, "no monitor was imported into the domain"))
}

unsafe extern "C" fn changed(domain: *mut fid_domain, address: *const c_void, length: usize) -> c_int {
    // SAFETY: the client passed null or an open domain.
    let result = unsafe { notifier(domain) }.and_then(|notifier| {
        notifier.changed_at(address.addr() as u64, length as u64).map_err(LookupError::from)?;
        Ok(())
    });
    log_error("changed", result)
}

unsafe extern "C" fn changed_everything(domain: *mut fid_domain) -> c_int {
    // SAFETY: the client passed null or an open domain.
    log_error("changed_everything", unsafe { notifier(domain) }.map(Notifier::changed_everything))
}

unsafe extern "C" fn open(domain: *mut fid_domain, attr: *const Attr, cache: *mut *mut OpenCache) -> c_int {
    // SAFETY: the client passed null or an open domain.
    let shared = match unsafe { shared(domain) } {
        Ok(shared) => shared,
        Err(failure) => return log_error("open", Err(failure)),
    };
    // SAFETY: the client passes the attributes and the location that pindown.h requires.
    unsafe { open_by(attr, cache, |callbacks, wishes| open_as_set(shared, callbacks, wishes)) }
}

/// Opens a cache with the settings of the domain, except those that the caller overrides.
fn open_as_set(shared: &Arc<DomainShared>, callbacks: Callbacks, wishes: CacheOptions<'_>) -> Result<Opened, Failure> {
    if wishes.monitor.is_some() {
        return Err(Failure::new(libc::EINVAL, "attr->monitor must be NULL: FI_MR_CACHE_MONITOR selects the monitor"));
    }
    let domain: &PercaleDomain = &shared.percale;
    let mut settings = domain.cache_settings().clone();
    if let Some(bytes) = wishes.max_bytes {
        settings = settings.max_bytes(bytes);
    }
    if let Some(count) = wishes.max_count {
        settings = settings.max_count(count);
    }
    settings = match wishes.userfaultfd.unseen() {
        Unseen::NeverMade => settings.no_unseen_changes(),
        Unseen::GuardsRefused => settings.refuse_guards(),
        Unseen::Possible => settings,
    };
    settings = settings.merging(wishes.merging);
    if wishes.userfaultfd.checks_rights() {
        settings = settings.check_rights();
    }
    let OpenedCache { cache, notes } = domain.open_cache(&settings, callbacks)?;
    settings::log_notes(&notes);
    let kept: Arc<DomainShared> = Arc::clone(shared);
    Ok(Opened { cache, notifier: shared.notifier.get().cloned(), kept: Some(kept) })
}
