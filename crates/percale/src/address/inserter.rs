//! Asynchronous insertion, which reports its outcome to an event queue.
//!
//! Insertions are performed in the order of the calls, so indices are the same as if each call had waited for its
//! insertion. An insertion that needs no resolver is performed within the call if no other insertion is pending. All
//! others are performed by a thread, which is started for the first of them, or by the callers if no thread can be
//! started. Each insertion reports an [`Event::AddressFailed`] for each address that failed, and then one
//! [`Event::AddressesInserted`]. A run of consecutive addresses that failed for the same reason occupies one entry of
//! the event queue, which is read as one event for each address. One lock guards the queue of insertions. It is not
//! held while names are resolved.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use crate::address_vector::error::AddressError;
use crate::address_vector::inserted::Inserted;
use crate::address_vector::vector::AddressVector;
use crate::address_vector::{name, symmetric};
use crate::completion::event::{Event, EventQueue};
use crate::deferred_actions::contained;
use crate::system::forked::Process;
use crate::system::thread::start_thread;

/// Inserts addresses into one vector without waiting. Dropping it cancels the insertions that have not begun and need a
/// resolver; their addresses fail with [`AddressError::Canceled`]. The drop waits for all other insertions.
pub struct Inserter {
    shared: Arc<InserterState>,
    /// The thread, and the process that contains it.
    worker: Mutex<Option<(JoinHandle<()>, Process)>>,
}

crate::short_debug!(Inserter, "Inserter");

/// A handle to an asynchronous insertion.
#[derive(Clone)]
pub struct Insertion(Arc<OnceLock<Inserted>>);

crate::short_debug!(Insertion, "Insertion");

impl Insertion {
    /// Returns the outcome when the insertion has ended. It is set before the insertion's events are reported.
    #[must_use]
    pub fn outcome(&self) -> Option<&Inserted> {
        self.0.get()
    }
}

#[derive(Debug)]
struct InserterState {
    id: u64,
    vector: AddressVector,
    events: EventQueue,
    queue: Mutex<JobQueue>,
    /// The process that created the queue. In a forked child, a thread of the parent may still appear to hold the lock.
    /// `None` if the process could not be determined.
    process: Option<Process>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct JobQueue {
    jobs: VecDeque<Job>,
    /// Whether a job is being performed.
    busy: bool,
    closing: bool,
}

/// The addresses to insert.
#[derive(Debug)]
enum NewAddresses {
    Addresses(Vec<Result<SocketAddr, AddressError>>),
    Service { node: String, service: String },
    Symmetric { node: String, nodes: usize, service: String, services: usize },
}

type Done = Box<dyn FnOnce(&Inserted) + Send>;

struct Job {
    what: NewAddresses,
    context: u64,
    done: Done,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("what", &self.what).field("context", &self.context).finish_non_exhaustive()
    }
}

impl NewAddresses {
    /// Returns the number of addresses.
    fn len(&self) -> u64 {
        match self {
            Self::Addresses(addresses) => addresses.len() as u64,
            Self::Service { .. } => 1,
            Self::Symmetric { nodes, services, .. } => (nodes * services) as u64,
        }
    }

    /// Returns whether no address needs a resolver.
    fn is_immediate(&self) -> bool {
        match self {
            Self::Addresses(_) => true,
            Self::Service { node, .. } | Self::Symmetric { node, .. } => name::is_literal(node),
        }
    }

    fn put(self, vector: &AddressVector) -> Inserted {
        let count = self.len();
        let failed = |error| {
            let mut inserted = Inserted::default();
            inserted.failed(count, error);
            inserted
        };
        match self {
            Self::Addresses(addresses) => vector.insert_outcomes(addresses).unwrap_or_else(failed),
            Self::Service { node, service } => match vector.insert_service(&node, &service) {
                Ok(peer) => {
                    let mut inserted = Inserted::default();
                    inserted.there(peer, 1);
                    inserted
                }
                Err(error) => failed(error),
            },
            Self::Symmetric { node, nodes, service, services } => {
                vector.insert_symmetric(&node, nodes, &service, services).unwrap_or_else(failed)
            }
        }
    }
}

impl Inserter {
    /// Creates an inserter for `vector` that reports to `events`.
    #[must_use]
    pub fn new(vector: &AddressVector, events: &EventQueue) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let shared = InserterState {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            vector: vector.clone(),
            events: events.clone(),
            queue: Mutex::default(),
            process: Process::current().ok(),
            changed: Condvar::new(),
        };
        Self { shared: Arc::new(shared), worker: Mutex::new(None) }
    }

    /// Returns the identifier of this inserter in its events.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// Inserts addresses, like [`AddressVector::insert_many`]. `context` is returned in the events.
    ///
    /// # Errors
    /// If the vector cannot be changed. In this case there are no events.
    pub fn insert_many(
        &self,
        addresses: impl IntoIterator<Item = SocketAddr>,
        context: u64,
    ) -> Result<Insertion, AddressError> {
        self.keep(|done| self.insert_outcomes(addresses.into_iter().map(Ok).collect(), context, done))
    }

    /// Inserts a node and a service, like [`AddressVector::insert_service`]. An unknown name is reported by an event.
    ///
    /// # Errors
    /// If the vector cannot be changed, or the service has no port. In this case there are no events.
    pub fn insert_service(&self, node: &str, service: &str, context: u64) -> Result<Insertion, AddressError> {
        self.keep(|done| self.start_service(node, service, context, done))
    }

    /// Inserts a range, like [`AddressVector::insert_symmetric`]. Unknown names are reported by events.
    ///
    /// # Errors
    /// If the vector cannot be changed, or the range is not possible. In this case there are no events.
    pub fn insert_symmetric(
        &self,
        node: &str,
        nodes: usize,
        service: &str,
        services: usize,
        context: u64,
    ) -> Result<Insertion, AddressError> {
        self.keep(|done| self.start_symmetric((node, nodes), (service, services), context, done))
    }

    fn keep(&self, start: impl FnOnce(Done) -> Result<(), AddressError>) -> Result<Insertion, AddressError> {
        let insertion = Insertion(Arc::default());
        let place = Arc::clone(&insertion.0);
        // Only this insertion sets the outcome, and only once.
        start(Box::new(move |inserted| drop(place.set(inserted.clone()))))?;
        Ok(insertion)
    }

    /// Inserts addresses. An error in the list counts as the failure of the address at its position. `done` is called
    /// with the outcome before the events are reported.
    ///
    /// # Errors
    /// If the vector cannot be changed. In this case `done` is not called.
    pub fn insert_outcomes(
        &self,
        addresses: Vec<Result<SocketAddr, AddressError>>,
        context: u64,
        done: Box<dyn FnOnce(&Inserted) + Send>,
    ) -> Result<(), AddressError> {
        self.submit(Job { what: NewAddresses::Addresses(addresses), context, done })
    }

    /// Like [`insert_service`](Self::insert_service), with `done` as in [`insert_outcomes`](Self::insert_outcomes).
    ///
    /// # Errors
    /// As for [`insert_service`](Self::insert_service). In case of an error, `done` is not called.
    pub fn start_service(
        &self,
        node: &str,
        service: &str,
        context: u64,
        done: Box<dyn FnOnce(&Inserted) + Send>,
    ) -> Result<(), AddressError> {
        name::port_of(service)?;
        let what = NewAddresses::Service { node: node.to_owned(), service: service.to_owned() };
        self.submit(Job { what, context, done })
    }

    /// Like [`insert_symmetric`](Self::insert_symmetric), with `done` as in [`insert_outcomes`](Self::insert_outcomes).
    ///
    /// # Errors
    /// As for [`insert_symmetric`](Self::insert_symmetric). In case of an error, `done` is not called.
    pub fn start_symmetric(
        &self,
        (node, nodes): (&str, usize),
        (service, services): (&str, usize),
        context: u64,
        done: Box<dyn FnOnce(&Inserted) + Send>,
    ) -> Result<(), AddressError> {
        symmetric::check((node, nodes), (service, services), self.shared.vector.options().family)?;
        let (node, service) = (node.to_owned(), service.to_owned());
        self.submit(Job { what: NewAddresses::Symmetric { node, nodes, service, services }, context, done })
    }

    fn is_here(&self) -> bool {
        self.shared.process.is_none_or(Process::is_here)
    }

    fn submit(&self, job: Job) -> Result<(), AddressError> {
        if !self.is_here() {
            return Err(AddressError::Forked);
        }
        if self.shared.vector.options().read_only {
            return Err(AddressError::ReadOnly);
        }
        let mut queue = self.shared.lock();
        if queue.jobs.is_empty() && !queue.busy && job.what.is_immediate() {
            // Later calls are queued behind this one, so that the order is kept. The lock is not held, because `done`
            // is application code.
            queue.busy = true;
            drop(queue);
            self.shared.perform_job(job);
            let mut queue = self.shared.lock();
            queue.busy = false;
            if queue.jobs.is_empty() {
                return Ok(());
            }
        } else {
            queue.jobs.push_back(job);
            drop(queue);
        }
        self.start_jobs();
        Ok(())
    }

    /// Makes the thread perform the queued jobs or, if it cannot be started, performs them in the caller. The caller
    /// must not hold the queue's lock.
    fn start_jobs(&self) {
        self.shared.changed.notify_one();
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.as_ref().is_none_or(|(_, process)| !process.is_here()) {
            let shared = Arc::clone(&self.shared);
            let thread = || start_thread("percale-insert", move || shared.work());
            let started = Process::current().and_then(|process| Ok((thread()?, process)));
            match started {
                Ok(started) => *worker = Some(started),
                Err(error) => {
                    drop(worker);
                    tracing::warn!(%error, "cannot start a thread for insertions; they are performed in the caller's thread");
                    self.shared.drain();
                }
            }
        }
    }
}

impl InserterState {
    fn lock(&self) -> MutexGuard<'_, JobQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn perform_job(&self, job: Job) {
        let outcome = job.what.put(&self.vector);
        self.report_outcome(job.context, job.done, &outcome);
    }

    fn report_outcome(&self, context: u64, done: Done, outcome: &Inserted) {
        contained("a callback for inserted addresses panicked", || done(outcome));
        for (index, count, error) in outcome.failed_runs() {
            let first = Event::AddressFailed { inserter: self.id, context, index, error: error.clone() };
            self.events.push_failures(first, count);
        }
        self.events.push_required(Event::AddressesInserted { inserter: self.id, context, count: outcome.count() });
    }

    fn work(&self) {
        let mut queue = self.lock();
        loop {
            let job = if queue.busy { None } else { queue.jobs.pop_front() };
            let Some(job) = job else {
                if queue.closing && !queue.busy {
                    return;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let closing = queue.closing && !job.what.is_immediate();
            queue.busy = true;
            drop(queue);
            if closing {
                let mut outcome = Inserted::default();
                outcome.failed(job.what.len(), AddressError::Canceled);
                self.report_outcome(job.context, job.done, &outcome);
            } else {
                self.perform_job(job);
            }
            queue = self.lock();
            queue.busy = false;
        }
    }

    /// Performs the queued jobs in the caller's thread.
    fn drain(&self) {
        loop {
            let mut queue = self.lock();
            if queue.busy {
                return; // The thread that is busy continues with the queue.
            }
            let Some(job) = queue.jobs.pop_front() else { return };
            queue.busy = true;
            drop(queue);
            self.perform_job(job);
            self.lock().busy = false;
        }
    }
}

impl Drop for Inserter {
    fn drop(&mut self) {
        if !self.is_here() {
            // The insertions and the thread belong to the parent.
            return std::mem::forget(self.worker.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
        self.shared.lock().closing = true;
        self.shared.changed.notify_one();
        let worker = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // In a forked child the thread does not exist: waiting for it would never end.
        if let Some((worker, process)) = worker
            && process.is_here()
            && worker.join().is_err()
        {
            tracing::error!("the thread for asynchronous insertions panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::PeerAddress;
    use crate::address_vector::vector::VectorOptions;

    fn pair() -> (AddressVector, EventQueue, Inserter) {
        let vector = AddressVector::new(VectorOptions::default()).unwrap();
        let events = EventQueue::new(4);
        let inserter = Inserter::new(&vector, &events);
        (vector, events, inserter)
    }

    fn next(events: &EventQueue) -> Event {
        events.wait(Some(Duration::from_secs(60))).unwrap()
    }

    fn port(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    #[test]
    fn callbacks_may_insert_again_and_panic() {
        let (vector, events, inserter) = pair();
        let inserter: &'static Inserter = Box::leak(Box::new(inserter));
        let again = move |_: &Inserted| drop(inserter.insert_many([port(2)], 2).unwrap());
        inserter.insert_outcomes(vec![Ok(port(1))], 1, Box::new(again)).unwrap();
        for context in [1, 2] {
            let end = Event::AddressesInserted { inserter: inserter.id(), context, count: 1 };
            assert_eq!(next(&events), end);
        }
        // The callbacks run in the caller's thread or in the inserter's thread.
        for round in 0..4 {
            let panics = |_: &Inserted| panic!("a callback that panics");
            inserter.insert_outcomes(vec![Ok(port(3))], 3, Box::new(panics)).unwrap();
            inserter.start_service("127.0.0.1", "4", 4, Box::new(panics)).unwrap();
            inserter.insert_many([port(5)], 5).unwrap();
            for context in [3, 4, 5] {
                let Event::AddressesInserted { context: of, .. } = next(&events) else { panic!("in round {round}") };
                assert_eq!(of, context);
            }
        }
        assert_eq!(vector.len(), 2 + 4 * 3);
    }

    /// Requirements: AV-034, AV-035, AV-036, AV-037.
    #[test]
    fn insertion_failures_precede_the_completion_event() {
        let (vector, events, inserter) = pair();
        // These are more events than the queue's limit for other kinds of events.
        let ports = (0..20).map(|n| port(if n % 2 == 0 { 0 } else { 1 }));
        let insertion = inserter.insert_many(ports, 7).unwrap();
        for at in 0..10 {
            let Event::AddressFailed { inserter: id, context: 7, index, error } = next(&events) else { panic!() };
            assert_eq!((id, index), (inserter.id(), 2 * at));
            assert_eq!(error.errno(), libc::EADDRNOTAVAIL);
        }
        let end = Event::AddressesInserted { inserter: inserter.id(), context: 7, count: 10 };
        assert_eq!(next(&events), end);
        assert_eq!(insertion.outcome().unwrap().iter().nth(1), Some(Ok(PeerAddress(1))));
        inserter.insert_many([port(0)], 8).unwrap();
        assert!(matches!(next(&events), Event::AddressFailed { context: 8, index: 0, .. }));
        assert!(matches!(next(&events), Event::AddressesInserted { context: 8, count: 0, .. }));
        assert_eq!((events.is_empty(), vector.len()), (true, 10));
    }

    /// Requirements: AV-020, AV-021.
    #[test]
    fn insertion_events_outlive_their_vector() {
        let (vector, events, inserter) = pair();
        // Addresses that are inserted without the inserter cause no events.
        vector.insert(port(1)).unwrap();
        assert!(events.is_empty());
        inserter.insert_many([port(2), port(0)], 3).unwrap();
        drop((inserter, vector));
        assert!(matches!(next(&events), Event::AddressFailed { context: 3, index: 1, .. }));
        assert!(matches!(next(&events), Event::AddressesInserted { context: 3, count: 1, .. }));
        assert!(events.is_empty());
    }

    /// Requirements: AV-031, AV-033, AV-038, AV-039.
    #[test]
    fn indices_follow_call_order_with_and_without_resolver() {
        let (vector, events, inserter) = pair();
        let named = inserter.insert_symmetric("localhost", 1, "5000", 3, 1).unwrap();
        let literal = inserter.insert_symmetric("10.1.1.1", 2, "5000", 2, 2).unwrap();
        let service = inserter.insert_service("no such host.", "80", 3).unwrap();
        let last = inserter.insert_many([port(9)], 4).unwrap();
        assert!(inserter.insert_symmetric("noname", 2, "5000", 1, 5).is_err(), "a rejected insertion reports no event");
        assert!(inserter.insert_service("10.0.0.1", "none", 6).is_err(), "a rejected insertion reports no event");
        let mut seen = Vec::new();
        while seen.last() != Some(&(4, 1)) {
            match next(&events) {
                Event::AddressesInserted { context, count, .. } => seen.push((context, count)),
                Event::AddressFailed { context: 3, index: 0, .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen, [(1, 3), (2, 4), (3, 0), (4, 1)]);
        let first = |insertion: &Insertion| insertion.outcome().unwrap().iter().next().unwrap().ok();
        assert_eq!(first(&named), Some(PeerAddress(0)));
        assert_eq!(first(&literal), Some(PeerAddress(3)));
        assert_eq!((first(&service), first(&last)), (None, Some(PeerAddress(7))));
        assert_eq!(vector.lookup(PeerAddress(6)), "10.1.1.2:5001".parse().ok());
        drop(inserter);
        assert!(events.is_empty());
    }

    #[test]
    fn abandoned_insertions_complete_with_canceled() {
        let (vector, events, inserter) = pair();
        let mut jobs = Vec::new();
        for context in 0..50 {
            jobs.push(inserter.insert_service("localhost", "80", context).unwrap());
        }
        drop(inserter);
        assert!(jobs.iter().all(|job| job.outcome().is_some()), "every insertion has ended");
        let mut ends = 0;
        while let Some(event) = events.read() {
            match event {
                Event::AddressFailed { error, .. } => assert_eq!(error, AddressError::Canceled),
                Event::AddressesInserted { .. } => ends += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(ends, 50);
        let there = jobs.iter().map(|job| job.outcome().unwrap().count()).sum::<u64>();
        assert_eq!(vector.len() as u64, there);
    }

    /// Requirements: AV-032.
    #[test]
    fn literal_addresses_are_inserted_when_inserter_is_dropped() {
        let (vector, events, inserter) = pair();
        inserter.insert_service("localhost", "80", 1).unwrap();
        let last = inserter.insert_many([port(9)], 2).unwrap();
        drop(inserter);
        assert_eq!((last.outcome().unwrap().count(), vector.find(port(9)).is_some()), (1, true));
        let end = std::iter::from_fn(|| events.read()).last();
        assert!(matches!(end, Some(Event::AddressesInserted { context: 2, count: 1, .. })), "{end:?}");
    }
}
