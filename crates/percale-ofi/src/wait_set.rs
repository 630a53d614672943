//! `fid_wait`: a wait set, which waits for several queues and counters at once (fi_poll(3)).

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use percale::completion::wait::WaitError;
use percale::completion::wait_set::WaitSet;

use crate::abi::{
    FI_CLASS_WAIT, FI_LOG_FABRIC, FI_WAIT_FD, FI_WAIT_SET, FI_WAIT_UNSPEC, FI_WAIT_YIELD, fi_ops, fi_ops_wait,
    fi_wait_attr, fid, fid_wait,
};
use crate::fabric;
use crate::object::{self, Object};
use crate::{log, waiting};

/// The part of a wait set that its members share.
#[derive(Debug)]
pub(crate) struct WaitSetShared {
    _fabric: Arc<fabric::FabricShared>,
    percale: WaitSet,
}

/// Membership in a wait set. Dropping it ends the membership.
#[derive(Debug)]
pub(crate) struct Membership {
    set: Arc<WaitSetShared>,
    source: percale::completion::source::Source,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.set.percale.remove(self.source.clone());
    }
}

object::object!(pub(crate) Set: FI_CLASS_WAIT, fid_wait, WaitSetShared);

static FI: fi_ops = fi_ops { close: Some(close), control: Some(control), ..fi_ops::REFUSING };
static OPS: fi_ops_wait = fi_ops_wait { size: size_of::<fi_ops_wait>(), wait: Some(wait) };

/// Opens a wait set.
///
/// # Safety
/// `attr` is null or readable, and `waitset` is writable.
pub(crate) unsafe fn open(
    fabric: &Arc<fabric::FabricShared>,
    attr: *const fi_wait_attr,
    waitset: *mut *mut fid_wait,
) -> c_int {
    // SAFETY: the caller guarantees this.
    let attr = unsafe { attr.as_ref() };
    let object = attr.map_or(FI_WAIT_UNSPEC, |attr| attr.wait_obj);
    if !matches!(object, FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_YIELD) || attr.is_some_and(|attr| attr.flags != 0) {
        log::warning!(
            FI_LOG_FABRIC,
            "fi_wait_open: wait object {object} is not supported (FI_WAIT_UNSPEC, FD and YIELD are)"
        );
        return -libc::ENOSYS;
    }
    let fid = fid_wait {
        fid: object::head(FI_CLASS_WAIT, std::ptr::null_mut(), &FI),
        ops: std::ptr::from_ref(&OPS).cast_mut(),
    };
    let shared = Arc::new(WaitSetShared { _fabric: Arc::clone(fabric), percale: WaitSet::new() });
    // SAFETY: the client passed a writable location for the set.
    unsafe { Set { fid, shared }.give(waitset) };
    0
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the pointer is a set of this provider, and the client no longer uses it.
    unsafe { Set::close(fid, Set::shared) }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the pointer is a set of this provider.
    let set = unsafe { Set::of(fid) };
    // SAFETY: the client passes the arguments that fi_control(3) requires.
    unsafe { waiting::control(FI_WAIT_FD, || set.shared.percale.descriptor(), command, argument) }
}

unsafe extern "C" fn wait(waitset: *mut fid_wait, timeout: c_int) -> c_int {
    // SAFETY: the pointer is a set of this provider.
    let set = unsafe { Set::of(waitset) };
    match set.shared.percale.wait(u64::try_from(timeout).ok().map(Duration::from_millis)) {
        Ok(()) => 0,
        Err(WaitError::TimedOut) => -libc::ETIMEDOUT,
        Err(WaitError::System(error)) => -percale::error_number(&error),
        Err(_) => -libc::EIO,
    }
}

/// Returns 0 if the client may sleep on the set's descriptor (fi_trywait(3)), and -FI_EAGAIN otherwise.
pub(crate) fn try_wait(set: &WaitSetShared) -> c_int {
    match set.percale.try_wait() {
        Ok(true) => 0,
        Ok(false) => -libc::EAGAIN,
        Err(error) => -percale::error_number(&error),
    }
}

/// Adds a queue or counter to the wait set if it is opened with FI_WAIT_SET.
///
/// # Errors
/// Returns the negative error code if there is no wait set, or if the set cannot take more members.
///
/// # Safety
/// With FI_WAIT_SET, `set` is null or an open wait set of this provider.
pub(crate) unsafe fn membership(
    wait: u32,
    set: *mut fid_wait,
    source: impl Into<percale::completion::source::Source>,
) -> Result<Option<Membership>, c_int> {
    // SAFETY: the caller guarantees this.
    if wait == FI_WAIT_SET { unsafe { join(set, source) }.map(Some) } else { Ok(None) }
}

/// Adds a queue or counter to the wait set that its attributes name.
///
/// # Safety
/// `waitset` is null or an open wait set of this provider.
unsafe fn join(
    waitset: *mut fid_wait,
    source: impl Into<percale::completion::source::Source>,
) -> Result<Membership, c_int> {
    // SAFETY: the caller guarantees this.
    let Some(set) = (unsafe { Set::of_class(waitset.cast()) }) else {
        log::warning!(FI_LOG_FABRIC, "FI_WAIT_SET without a wait set");
        return Err(-libc::EINVAL);
    };
    let membership = Membership { set: Arc::clone(&set.shared), source: source.into() };
    match set.shared.percale.add(membership.source.clone()) {
        Ok(_) => Ok(membership),
        Err(error) => Err(-percale::error_number(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::fid_cntr;
    use crate::testing::{self, Client};

    #[test]
    fn closed_counter_does_not_end_waits_of_its_set() {
        let client = Client::open(|_| ());
        let set = client.wait_set();
        let count = |counter: *mut fid_cntr| {
            // SAFETY: the counter is open.
            assert_eq!(unsafe { (*(*counter).ops).add.unwrap()(counter, 1) }, 0);
        };
        // SAFETY: the set is open.
        let waited = || unsafe { wait(set, 0) };
        let counter = client.counter(FI_WAIT_SET, set);
        assert_eq!(waited(), -libc::ETIMEDOUT);
        count(counter);
        assert_eq!(waited(), 0);
        count(counter);
        assert_eq!(testing::close(counter), 0);
        assert_eq!(waited(), -libc::ETIMEDOUT);
        assert_eq!(testing::close(set), 0);
    }
}
