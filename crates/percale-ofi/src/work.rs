//! Deferred work (fi_trigger(3)): the commands that fi_control(3) executes on a domain for it.
//!
//! A queued structure belongs to the provider until the work has ended or was cancelled. Its fields are read when it is
//! queued. After that, its context stores the number by which the work can be cancelled.

use std::ffi::{c_int, c_void};

use percale::Counter;
use percale::trigger::{DeferredWork, Work, WorkId};

use crate::abi::{
    FI_CANCEL_WORK, FI_FLUSH_WORK, FI_LOG_DOMAIN, FI_OP_ATOMIC, FI_OP_CNTR_ADD, FI_OP_CNTR_SET, FI_OP_COMPARE_ATOMIC,
    FI_OP_FETCH_ATOMIC, FI_OP_READ, FI_OP_RECV, FI_OP_SEND, FI_OP_TRECV, FI_OP_TSEND, FI_OP_WRITE, FI_QUEUE_WORK,
    fi_deferred_work, fid, fid_cntr, fid_domain, fid_ep,
};
use crate::counter::Count;
use crate::domain::{Domain, DomainShared};
use crate::endpoint::Endpoint;
use crate::endpoint::atomic::Description;
use crate::endpoint::trigger::StartMode;
use crate::log;
use crate::object::Object;
use crate::region::raw_key;

/// Implements fi_control(3) for a domain.
pub(crate) unsafe extern "C" fn control(domain: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the pointer is a domain of this provider.
    let shared = unsafe { Domain::of(domain.cast::<fid_domain>()) }.shared();
    let result = match command {
        FI_QUEUE_WORK | FI_CANCEL_WORK if argument.is_null() => Err(libc::EINVAL),
        // SAFETY: with this command the argument is the client's work structure.
        FI_QUEUE_WORK => unsafe { queue(shared, argument.cast()) },
        // SAFETY: as above.
        FI_CANCEL_WORK => unsafe { cancel(shared, argument.cast()) },
        // SAFETY: with this command the argument is null or a counter.
        FI_FLUSH_WORK => unsafe { flush(shared, argument.cast()) },
        // SAFETY: the caller upholds the same contract.
        _ => return unsafe { raw_key::domain_control(domain, command, argument) },
    };
    result.map_or_else(|code| -code, |()| 0)
}

/// Returns the counter behind `fid`. If it is not a counter of this provider, logs a warning and returns `EINVAL`.
///
/// # Safety
/// `fid` is null or an open object of the client.
unsafe fn count<'a>(fid: *mut fid_cntr) -> Result<&'a Count, i32> {
    // SAFETY: the caller guarantees this.
    unsafe { Count::of_class(fid.cast()) }.ok_or_else(|| {
        log::warning!(FI_LOG_DOMAIN, "deferred work: a counter is missing, or is not a counter of this provider");
        libc::EINVAL
    })
}

/// Returns the percale counter of such an object.
///
/// # Safety
/// The requirements of [`count`] apply.
unsafe fn counter(fid: *mut fid_cntr) -> Result<Counter, i32> {
    // SAFETY: the caller upholds the same contract.
    unsafe { count(fid) }.map(|count| Counter::clone(&count.shared().percale))
}

/// Queues work.
///
/// # Safety
/// The work, and everything that it refers to, meets the requirements of fi_trigger(3) until it has ended or was
/// cancelled.
unsafe fn queue(domain: &DomainShared, work: *mut fi_deferred_work) -> Result<(), i32> {
    // SAFETY: the caller guarantees this.
    let given = unsafe { work.read() };
    // SAFETY: the caller guarantees this.
    let triggering = unsafe { counter(given.triggering_cntr) }?;
    let counting = if given.completion_cntr.is_null() {
        None
    } else {
        // SAFETY: the caller guarantees this.
        let count = unsafe { count(given.completion_cntr) }?;
        count.shared().attach_work();
        Some(Counter::clone(&count.shared().percale))
    };
    // SAFETY: the caller guarantees this.
    let what = unsafe { what(&given) }.map_err(|refused| -(refused as i32))?;
    let request = DeferredWork { work: what, counter: triggering, threshold: given.threshold, counting };
    // SAFETY: the provider owns the context, which is at least this long. The work has not begun, so the structure
    // still exists.
    let named = |id: WorkId| unsafe { (&raw mut (*work).context).cast::<[u64; 3]>().write(id.to_words()) };
    // SAFETY: the client keeps the memory valid until the work has ended or was cancelled.
    unsafe { domain.percale.queue_named_work(request, named) }.map_err(|error| {
        log::warning!(FI_LOG_DOMAIN, "FI_QUEUE_WORK: {error}");
        error.errno()
    })
}

/// Reads the operation of the work.
///
/// # Safety
/// The requirements of [`queue`] apply.
unsafe fn what(given: &fi_deferred_work) -> Result<Work, isize> {
    const INVALID: isize = -(libc::EINVAL as isize);
    let op = given.op;
    // SAFETY: all members of the union are pointers.
    if given.op_type <= FI_OP_CNTR_ADD && unsafe { op.msg }.is_null() {
        log::warning!(FI_LOG_DOMAIN, "FI_QUEUE_WORK: the work has no operation");
        return Err(INVALID);
    }
    let begins = StartMode::Deferred;
    let (endpoint, operation) = match given.op_type {
        kind @ (FI_OP_RECV | FI_OP_SEND) => {
            // SAFETY: the operation type selects this member.
            let op = unsafe { &*op.msg };
            // SAFETY: the caller guarantees this.
            let endpoint = unsafe { endpoint(op.ep, kind == FI_OP_RECV) }?;
            // SAFETY: the caller guarantees this.
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
            // SAFETY: the caller guarantees this.
            let counter = unsafe { counter(op.cntr) }.map_err(|code| -(code as isize))?;
            return Ok(if kind == FI_OP_CNTR_SET {
                Work::Set(counter, op.value)
            } else {
                Work::Add(counter, op.value)
            });
        }
        other => {
            log::warning!(FI_LOG_DOMAIN, "FI_QUEUE_WORK: unknown operation type {other}");
            return Err(-(libc::ENOSYS as isize));
        }
    };
    Ok(Work::Transfer(endpoint.for_work()?.clone(), operation))
}

/// Returns the endpoint of an operation. Logs a warning if the endpoint does not support the operation.
///
/// # Safety
/// `fid` is null or an open object of the client.
unsafe fn endpoint<'a>(fid: *mut fid_ep, receives: bool) -> Result<&'a Endpoint, isize> {
    // SAFETY: the caller guarantees this.
    let endpoint = unsafe { Endpoint::of_class(fid.cast()) };
    endpoint.filter(|endpoint| endpoint.setup().half().posts(receives)).ok_or_else(|| {
        log::warning!(
            FI_LOG_DOMAIN,
            "FI_QUEUE_WORK: the endpoint of the operation is not one of this provider that supports it"
        );
        -(libc::EINVAL as isize)
    })
}

/// Cancels the queued work of one counter, or of all counters if `of` is null.
///
/// # Safety
/// `of` is null or an open object of the client.
unsafe fn flush(domain: &DomainShared, of: *mut fid_cntr) -> Result<(), i32> {
    // SAFETY: the caller upholds the same contract.
    let of = if of.is_null() { None } else { Some(unsafe { counter(of) }?) };
    domain.percale.flush_work(of.as_ref());
    Ok(())
}

/// Cancels work.
///
/// # Safety
/// The work was queued.
unsafe fn cancel(domain: &DomainShared, work: *mut fi_deferred_work) -> Result<(), i32> {
    // SAFETY: the provider may read the context, which is at least this long.
    let words = unsafe { (&raw const (*work).context).cast::<[u64; 3]>().read() };
    // AMB-39: work that has begun continues.
    if domain.percale.cancel_work(&WorkId::from_words(words)) { Ok(()) } else { Err(libc::ENOENT) }
}
