//! Deferred work (fi_trigger(3)): the commands for it that fi_control(3) executes on a domain.
//!
//! A queued structure belongs to the provider until the work has ended or was cancelled. Its fields are read when it is queued; its context then
//! keeps the number by which the work can be cancelled.

use std::ffi::{c_int, c_void};

use percale::Counter;
use percale::trigger::{DeferredWork, Work, WorkId};

use crate::abi::{
    FI_CANCEL_WORK, FI_FLUSH_WORK, FI_LOG_DOMAIN, FI_OP_ATOMIC, FI_OP_CNTR_ADD, FI_OP_CNTR_SET, FI_OP_COMPARE_ATOMIC,
    FI_OP_FETCH_ATOMIC, FI_OP_READ, FI_OP_RECV, FI_OP_SEND, FI_OP_TRECV, FI_OP_TSEND, FI_OP_WRITE, FI_QUEUE_WORK,
    fi_deferred_work, fid, fid_cntr, fid_domain, fid_ep,
};
use crate::counter::Count;
use crate::domain::{Domain, Shared};
use crate::endpoint::Endpoint;
use crate::endpoint::atomic::Description;
use crate::endpoint::trigger::Begins;
use crate::log;
use crate::object::Object;
use crate::region::raw_key;

/// fi_control(3) of a domain.
pub(crate) unsafe extern "C" fn control(domain: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: a domain of ours.
    let shared = unsafe { Domain::of(domain.cast::<fid_domain>()) }.shared();
    let result = match command {
        FI_QUEUE_WORK | FI_CANCEL_WORK if argument.is_null() => Err(libc::EINVAL),
        // SAFETY: with this command the argument is the client's work.
        FI_QUEUE_WORK => unsafe { queue(shared, argument.cast()) },
        // SAFETY: as above.
        FI_CANCEL_WORK => unsafe { cancel(shared, argument.cast()) },
        // SAFETY: with this command the argument is null or a counter.
        FI_FLUSH_WORK => unsafe { flush(shared, argument.cast()) },
        // SAFETY: passed on.
        _ => return unsafe { raw_key::domain_control(domain, command, argument) },
    };
    result.map_or_else(|code| -code, |()| 0)
}

/// Returns a counter of ours; otherwise logs a warning and returns `EINVAL`.
///
/// # Safety
/// Null, or some open object of the client's.
unsafe fn count<'a>(fid: *mut fid_cntr) -> Result<&'a Count, i32> {
    // SAFETY: promised by the caller.
    unsafe { Count::of_class(fid.cast()) }.ok_or_else(|| {
        log::warning!(FI_LOG_DOMAIN, "deferred work needs a counter of this provider here");
        libc::EINVAL
    })
}

/// The percale counter of such an object.
///
/// # Safety
/// As of [`count`].
unsafe fn counter(fid: *mut fid_cntr) -> Result<Counter, i32> {
    // SAFETY: passed on.
    unsafe { count(fid) }.map(|count| Counter::clone(&count.shared().percale))
}

/// # Safety
/// The work is as fi_trigger(3) requires, and so is all that it names, until it has ended or is cancelled.
unsafe fn queue(domain: &Shared, work: *mut fi_deferred_work) -> Result<(), i32> {
    // SAFETY: promised by the caller.
    let given = unsafe { work.read() };
    // SAFETY: promised by the caller.
    let triggering = unsafe { counter(given.triggering_cntr) }?;
    let counting = if given.completion_cntr.is_null() {
        None
    } else {
        // SAFETY: promised by the caller.
        let count = unsafe { count(given.completion_cntr) }?;
        count.shared().attach_work();
        Some(Counter::clone(&count.shared().percale))
    };
    // SAFETY: promised by the caller.
    let what = unsafe { what(&given) }.map_err(|refused| -(refused as i32))?;
    let request = DeferredWork { work: what, counter: triggering, threshold: given.threshold, counting };
    // SAFETY: the context is the provider's, and longer. The work has not begun, so the structure is still there.
    let named = |id: WorkId| unsafe { (&raw mut (*work).context).cast::<[u64; 3]>().write(id.to_words()) };
    // SAFETY: the client keeps the memory until the work has ended or is taken back.
    unsafe { domain.percale.queue_named_work(request, named) }.map_err(|error| {
        log::warning!(FI_LOG_DOMAIN, "FI_QUEUE_WORK: {error}");
        error.errno()
    })
}

/// Reads the operation of the work.
///
/// # Safety
/// As of [`queue`].
unsafe fn what(given: &fi_deferred_work) -> Result<Work, isize> {
    const INVALID: isize = -(libc::EINVAL as isize);
    let op = given.op;
    // SAFETY: all members are pointers.
    if given.op_type <= FI_OP_CNTR_ADD && unsafe { op.msg }.is_null() {
        log::warning!(FI_LOG_DOMAIN, "FI_QUEUE_WORK: the work names no operation");
        return Err(INVALID);
    }
    let begins = Begins::Deferred;
    let (endpoint, operation) = match given.op_type {
        kind @ (FI_OP_RECV | FI_OP_SEND) => {
            // SAFETY: the member that the type says.
            let op = unsafe { &*op.msg };
            // SAFETY: promised by the caller.
            let endpoint = unsafe { endpoint(op.ep, kind == FI_OP_RECV) }?;
            // SAFETY: promised by the caller.
            (endpoint, unsafe { endpoint.message(kind == FI_OP_RECV, &(&op.msg).into(), begins, op.flags) }?)
        }
        kind @ (FI_OP_TRECV | FI_OP_TSEND) => {
            // SAFETY: as above.
            let op = unsafe { &*op.tagged };
            let receives = kind == FI_OP_TRECV;
            // SAFETY: as above.
            let endpoint = unsafe { endpoint(op.ep, receives) }?;
            // SAFETY: as above.
            (endpoint, unsafe { endpoint.message(receives, &(&op.msg).into(), begins, op.flags) }?)
        }
        kind @ (FI_OP_READ | FI_OP_WRITE) => {
            // SAFETY: as above.
            let op = unsafe { &*op.rma };
            // SAFETY: as above.
            let endpoint = unsafe { endpoint(op.ep, false) }?;
            // SAFETY: as above.
            (endpoint, unsafe { endpoint.rma_operation(kind == FI_OP_WRITE, &raw const op.msg, begins, op.flags) }?)
        }
        FI_OP_ATOMIC => {
            // SAFETY: as above.
            let op = unsafe { &*op.atomic };
            // SAFETY: as above.
            let endpoint = unsafe { endpoint(op.ep, false) }?;
            let description = Description { msg: &raw const op.msg, compare: None, result: None };
            // SAFETY: as above.
            (endpoint, unsafe { endpoint.atomic_operation(description, begins, op.flags) }?)
        }
        FI_OP_FETCH_ATOMIC => {
            // SAFETY: as above.
            let op = unsafe { &*op.fetch_atomic };
            let result = Some((op.fetch.msg_iov, op.fetch.iov_count));
            // SAFETY: as above.
            let endpoint = unsafe { endpoint(op.ep, false) }?;
            let description = Description { msg: &raw const op.msg, compare: None, result };
            // SAFETY: as above.
            (endpoint, unsafe { endpoint.atomic_operation(description, begins, op.flags) }?)
        }
        FI_OP_COMPARE_ATOMIC => {
            // SAFETY: as above.
            let op = unsafe { &*op.compare_atomic };
            let result = Some((op.fetch.msg_iov, op.fetch.iov_count));
            let compare = Some((op.compare.msg_iov, op.compare.iov_count));
            // SAFETY: as above.
            let endpoint = unsafe { endpoint(op.ep, false) }?;
            let description = Description { msg: &raw const op.msg, compare, result };
            // SAFETY: as above.
            (endpoint, unsafe { endpoint.atomic_operation(description, begins, op.flags) }?)
        }
        kind @ (FI_OP_CNTR_SET | FI_OP_CNTR_ADD) => {
            // SAFETY: as above.
            let op = unsafe { &*op.cntr };
            // SAFETY: promised by the caller.
            let counter = unsafe { counter(op.cntr) }.map_err(|code| -(code as isize))?;
            return Ok(if kind == FI_OP_CNTR_SET {
                Work::Set(counter, op.value)
            } else {
                Work::Add(counter, op.value)
            });
        }
        other => {
            log::warning!(FI_LOG_DOMAIN, "FI_QUEUE_WORK: there is no operation of type {other}");
            return Err(-(libc::ENOSYS as isize));
        }
    };
    Ok(Work::Transfer(endpoint.for_work()?.clone(), operation))
}

/// # Safety
/// Null, or some open object of the client's.
unsafe fn endpoint<'a>(fid: *mut fid_ep, receives: bool) -> Result<&'a Endpoint, isize> {
    // SAFETY: promised by the caller.
    let endpoint = unsafe { Endpoint::of_class(fid.cast()) };
    endpoint.filter(|endpoint| endpoint.setup().half().posts(receives)).ok_or_else(|| {
        log::warning!(
            FI_LOG_DOMAIN,
            "FI_QUEUE_WORK: the operation names no endpoint of this provider that can have it"
        );
        -(libc::EINVAL as isize)
    })
}

/// # Safety
/// Null, or some open object of the client's.
unsafe fn flush(domain: &Shared, of: *mut fid_cntr) -> Result<(), i32> {
    // SAFETY: passed on.
    let of = if of.is_null() { None } else { Some(unsafe { counter(of) }?) };
    domain.percale.flush_work(of.as_ref());
    Ok(())
}

/// # Safety
/// The work was queued.
unsafe fn cancel(domain: &Shared, work: *mut fi_deferred_work) -> Result<(), i32> {
    // SAFETY: the context is ours to read, and longer.
    let words = unsafe { (&raw const (*work).context).cast::<[u64; 3]>().read() };
    // AMB-39: work that has begun continues.
    if domain.percale.cancel_work(&WorkId::from_words(words)) { Ok(()) } else { Err(libc::ENOENT) }
}
