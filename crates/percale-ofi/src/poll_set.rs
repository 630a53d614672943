//! `fid_poll`: a poll set, which finds the queues and counters that have results (fi_poll(3)).

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use percale::completion::poll_set::PollSet;

use crate::abi::{FI_CLASS_POLL, FI_LOG_DOMAIN, fi_ops, fi_ops_poll, fi_poll_attr, fid, fid_domain, fid_poll};
use crate::counter::{self, Count};
use crate::domain::{self, Domain};
use crate::events::{self, Events};
use crate::log;
use crate::object::{self, Object, code};
use crate::queue::{self, Queue};

/// The maximum number of members that one call reports.
const BATCH: usize = 32;

#[repr(C)]
pub(crate) struct PollSetObject {
    fid: fid_poll,
    _domain: Arc<domain::DomainShared>,
    percale: PollSet<Name>,
    members: Mutex<Members>,
}

/// The identity of a member.
#[derive(Clone, Copy, Default)]
struct Name {
    /// The context of the member's object, which fi_poll(3) returns. Several members may have the same context.
    context: usize,
    /// The address of the member in memory.
    place: usize,
}

/// The members. Queues and counters must be polled in addition to percale's set, because their endpoints may be read
/// directly or have no lock. A member cannot be closed before it is removed; otherwise the set could neither be emptied
/// nor closed.
#[derive(Default)]
struct Members {
    queues: Vec<(Name, Arc<queue::QueueShared>)>,
    counters: Vec<Arc<counter::CounterShared>>,
    events: Vec<Arc<events::EventQueueShared>>,
}

// SAFETY: the type is `repr(C)`, and `fid` is its first field.
unsafe impl Object for PollSetObject {
    const CLASS: usize = FI_CLASS_POLL;
}

static FI: fi_ops = fi_ops { close: Some(close), ..fi_ops::REFUSING };
static OPS: fi_ops_poll =
    fi_ops_poll { size: size_of::<fi_ops_poll>(), poll: Some(poll), poll_add: Some(add), poll_del: Some(remove) };

/// Opens a poll set.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_poll_attr,
    pollset: *mut *mut fid_poll,
) -> c_int {
    // SAFETY: the pointer is a domain of this provider.
    let domain = unsafe { Domain::of(domain) }.shared();
    // SAFETY: the pointer is null or the client's attributes.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.flags != 0) {
        log::warning!(FI_LOG_DOMAIN, "fi_poll_open: flags must be 0");
        return -libc::EINVAL;
    }
    let fid = fid_poll {
        fid: object::head(FI_CLASS_POLL, std::ptr::null_mut(), &FI),
        ops: std::ptr::from_ref(&OPS).cast_mut(),
    };
    let set = PollSetObject { fid, _domain: Arc::clone(domain), percale: PollSet::new(), members: Mutex::default() };
    // SAFETY: the client passed a writable location for the set.
    unsafe { set.give(pollset) };
    0
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the pointer is a set of this provider.
    if !unsafe { PollSetObject::of(fid) }.percale.is_empty() {
        log::warning!(FI_LOG_DOMAIN, "fi_close: the poll set has members; remove them first");
        return -libc::EBUSY;
    }
    // SAFETY: `give` created the pointer from a box, and the client no longer uses it.
    drop(unsafe { Box::from_raw(fid.cast::<PollSetObject>()) });
    0
}

unsafe extern "C" fn add(pollset: *mut fid_poll, member: *mut fid, flags: u64) -> c_int {
    if flags != 0 || member.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: the pointer is a set of this provider, and the client passed an open object.
    code(unsafe { PollSetObject::of(pollset).add(member) })
}

unsafe extern "C" fn remove(pollset: *mut fid_poll, member: *mut fid, flags: u64) -> c_int {
    if flags != 0 || member.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: the pointer is a set of this provider, and the client passed an open object.
    code(unsafe { PollSetObject::of(pollset).remove(member) })
}

unsafe extern "C" fn poll(pollset: *mut fid_poll, to: *mut *mut c_void, count: c_int) -> c_int {
    let mut found = [Name::default(); BATCH];
    let room = usize::try_from(count).unwrap_or(0).min(BATCH);
    // SAFETY: the pointer is a set of this provider.
    let many = unsafe { PollSetObject::of(pollset) }.poll(&mut found[..room]);
    for (at, name) in found[..many].iter().enumerate() {
        // SAFETY: the client's array has `count` entries.
        unsafe { to.add(at).write(std::ptr::with_exposed_provenance_mut(name.context)) };
    }
    many as c_int
}

impl PollSetObject {
    fn members(&self) -> std::sync::MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a member. If the member is in the set already, only its context is updated.
    ///
    /// # Safety
    /// `member` is an open object of the client.
    unsafe fn add(&self, member: *mut fid) -> Result<(), i32> {
        // SAFETY: the caller guarantees this.
        let context = unsafe { (*member).context }.expose_provenance();
        let system = |error: std::io::Error| percale::error_number(&error);
        // The lock is held while percale's set changes, so that concurrent calls cannot give the two sets different
        // members.
        let mut members = self.members();
        // SAFETY: the caller guarantees this.
        if let Some(queue) = unsafe { Queue::of_class(member) } {
            let queue = queue.shared();
            let name = Name { context, place: Arc::as_ptr(queue).addr() };
            self.percale.add(&queue.percale, name).map_err(system)?;
            match members.queues.iter_mut().find(|(_, other)| Arc::ptr_eq(other, queue)) {
                Some((known, _)) => *known = name,
                None => members.queues.push((name, Arc::clone(queue))),
            }
            return Ok(());
        }
        // SAFETY: the caller guarantees this.
        if let Some(counter) = unsafe { Count::of_class(member) } {
            let counter = counter.shared();
            let name = Name { context, place: Arc::as_ptr(counter).addr() };
            self.percale.add(&counter.percale, name).map_err(system)?;
            push_once(&mut members.counters, counter);
            return Ok(());
        }
        // SAFETY: the caller guarantees this.
        if let Some(events) = unsafe { Events::of_class(member) } {
            let events = events.shared();
            let name = Name { context, place: Arc::as_ptr(events).addr() };
            self.percale.add(&events.percale, name).map_err(system)?;
            push_once(&mut members.events, events);
            return Ok(());
        }
        log::warning!(FI_LOG_DOMAIN, "fi_poll_add: only completion queues, counters and event queues can be polled");
        Err(libc::EINVAL)
    }

    /// Removes a member.
    ///
    /// # Safety
    /// The requirements of [`add`](Self::add) apply.
    unsafe fn remove(&self, member: *mut fid) -> Result<(), i32> {
        let mut members = self.members();
        // SAFETY: the caller guarantees this.
        let removed = if let Some(queue) = unsafe { Queue::of_class(member) } {
            members.queues.retain(|(_, other)| !Arc::ptr_eq(other, queue.shared()));
            self.percale.remove(&queue.shared().percale)
        // SAFETY: the caller guarantees this.
        } else if let Some(counter) = unsafe { Count::of_class(member) } {
            members.counters.retain(|other| !Arc::ptr_eq(other, counter.shared()));
            self.percale.remove(&counter.shared().percale)
        // SAFETY: the caller guarantees this.
        } else if let Some(events) = unsafe { Events::of_class(member) } {
            members.events.retain(|other| !Arc::ptr_eq(other, events.shared()));
            self.percale.remove(&events.shared().percale)
        } else {
            None
        };
        removed.map(drop).ok_or(libc::EINVAL)
    }

    /// Writes the contexts of the members that have results. Returns their number.
    fn poll(&self, found: &mut [Name]) -> usize {
        let members = self.members();
        for counter in &members.counters {
            counter.progress();
        }
        for (_, queue) in &members.queues {
            queue.drive();
        }
        let mut many = self.percale.poll(found);
        for (name, queue) in &members.queues {
            let is_told = |found: &[Name]| found.iter().any(|other| other.place == name.place);
            if many < found.len() && !is_told(&found[..many]) && queue.has_direct_results() {
                found[many] = *name;
                many += 1;
            }
        }
        many
    }
}

fn push_once<T>(members: &mut Vec<Arc<T>>, member: &Arc<T>) {
    if !members.iter().any(|other| Arc::ptr_eq(other, member)) {
        members.push(Arc::clone(member));
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;
    use crate::abi::{FI_EBUSY, FI_WAIT_NONE};
    use crate::info::tests::made;
    use crate::testing::{self, Client};

    /// A set that keeps a member also keeps driving the endpoints of the member.
    #[test]
    fn removed_members_are_not_kept_by_their_poll_set() {
        let client = Client::open(|_| ());
        // SAFETY: the domain is open.
        let set = made(|place| unsafe { open(client.domain, null_mut(), place) });
        let members: [*mut fid; 3] =
            [client.queue().cast(), client.counter(FI_WAIT_NONE, null_mut()).cast(), client.events().cast()];
        for member in members {
            // SAFETY: the set and the member are open.
            assert_eq!(unsafe { add(set, member, 0) }, 0);
            assert_eq!(testing::close(member), -FI_EBUSY);
            // SAFETY: as above.
            assert_eq!(unsafe { remove(set, member, 0) }, 0);
            assert_eq!(testing::close(member), 0);
        }
        assert_eq!(testing::close(set), 0);
    }
}
