//! The work of a member: posts collectives one after another, as MPI programs do, and checks their results.

#![expect(
    unsafe_code,
    reason = "posts raw collectives on memory that outlives them; each block states why it is sound"
)]

use std::time::Instant;

use percale::{
    AddressSet, Allocation, AtomicOp, Collective, CollectiveWork, Datatype, Domain, Endpoint, Entry, GroupId, OpFlags,
    Progress, Segment,
};
use serde::{Deserialize, Serialize};

use super::super::team::{JOB_TIMEOUT, WorkerSession, domain};
use crate::failure::{Failure, Result, percale};
use crate::statistics::Samples;

/// The measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum CollectiveKind {
    Barrier,
    Broadcast,
    Allreduce,
}

impl CollectiveKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Broadcast => "broadcast",
            Self::Allreduce => "allreduce",
        }
    }
}

/// The number of collectives that are timed together.
pub(super) const TOGETHER: u64 = 8;

/// A round. The answer is the median time of a collective in nanoseconds, as measured by this member.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MemberJob {
    pub(super) what: CollectiveKind,
    pub(super) bytes: usize,
    /// The number of collectives, a multiple of [`TOGETHER`].
    pub(super) count: u64,
    /// The number of the round, which makes its data different from that of all other rounds.
    pub(super) number: u64,
}

/// The number of polls between two readings of the clock.
const CLOCK_INTERVAL: u32 = 4096;

const CONTEXT: u64 = 7;

/// Runs a member until its input ends.
pub(in crate::perf) fn member(session: &mut WorkerSession) -> Result<()> {
    let domain = domain(Progress::default())?;
    // The memory is declared before the endpoint, so that it is dropped after the endpoint. Operations of the endpoint
    // may use the memory.
    let mut memory = None;
    let vector = domain.address_vector().build().map_err(percale("creating an address vector"))?;
    let endpoint = domain
        .endpoint()
        .vector(&vector)
        .bind(crate::loopback::here().to_string())
        .map_err(percale("opening an endpoint"))?;
    let (rank, members) = session.meet(&vector, endpoint.address().to_string())?;
    let size = members.len();
    let members: AddressSet = members.into_iter().collect();
    let group = endpoint.join(&members).and_then(|joining| joining.wait_for(JOB_TIMEOUT));
    let group = group.map_err(percale("joining a group"))?;
    session.answer(())?;
    while let Some(job) = session.next::<MemberJob>()? {
        let memory = match memory.take().filter(|memory: &Memory| memory.bytes == job.bytes) {
            Some(same) => memory.insert(same),
            None => memory.insert(Memory::new(&domain, job.bytes)?),
        };
        let place = (rank, size);
        memory.fill(&job, place);
        let (endpoint, group, crowded) = (&endpoint, group.id(), session.is_crowded());
        let mut member = Member { endpoint, group, memory, size, crowded, posted: 0 };
        // The warm-up also synchronizes members that received the job at different times.
        let warm = job.count / 10 + 1;
        (0..warm).try_for_each(|_| member.one(job.what))?;
        let mut samples = Samples::default();
        for _ in 0..job.count / TOGETHER {
            let since = Instant::now();
            (0..TOGETHER).try_for_each(|_| member.one(job.what))?;
            samples.push(since.elapsed().as_nanos() as f64 / TOGETHER as f64);
        }
        let took = samples.summary().map_or(0.0, |summary| summary.p50);
        memory.check(&job, place)?;
        session.answer(took)?;
    }
    Ok(())
}

/// The elements of a member, and the result.
struct Memory {
    source: Allocation,
    result: Allocation,
    bytes: usize,
}

impl Memory {
    fn new(domain: &Domain, bytes: usize) -> Result<Self> {
        let memory = || domain.allocate(bytes.max(8)).map_err(percale("allocating memory"));
        Ok(Self { source: memory()?, result: memory()?, bytes })
    }

    /// Fills the memory before a round. For a sum these are the elements of every member, for a broadcast those of the
    /// root.
    fn fill(&mut self, job: &MemberJob, (rank, _): (usize, usize)) {
        for at in 0..self.bytes / size_of::<f64>() {
            let own = (job.number + rank as u64) as f64 + at as f64;
            let there = if job.what == CollectiveKind::Broadcast && rank == 0 { own } else { -1.0 };
            self.source.write(8 * at, &own.to_ne_bytes());
            self.result.write(8 * at, &there.to_ne_bytes());
        }
    }

    /// Checks the contents after a round.
    fn check(&self, job: &MemberJob, (_, size): (usize, usize)) -> Result<()> {
        let result = self.result.to_vec();
        for (at, found) in result.chunks_exact(8).take(self.bytes / 8).enumerate() {
            let first = job.number as f64 + at as f64;
            // The last term is the sum of the ranks.
            let sum = size as f64 * first + (size * (size - 1) / 2) as f64;
            let wanted = if job.what == CollectiveKind::Allreduce { sum } else { first };
            if found != wanted.to_ne_bytes() {
                let what = job.what.name();
                return Err(Failure::Data(format!(
                    "element {at} of {what} has the bytes {found:?} instead of those of {wanted}"
                )));
            }
        }
        Ok(())
    }
}

/// The state of a member that posts collectives.
struct Member<'a> {
    endpoint: &'a Endpoint,
    group: GroupId,
    memory: &'a Memory,
    size: usize,
    /// Whether a wait yields the processor.
    crowded: bool,
    posted: usize,
}

impl Member<'_> {
    /// Posts a collective and waits until it has completed.
    fn one(&mut self, what: CollectiveKind) -> Result<()> {
        let bytes = self.memory.bytes;
        let what = match what {
            CollectiveKind::Barrier => Collective::Barrier,
            // The root changes with each operation, so that no member can get ahead of the others.
            CollectiveKind::Broadcast => Collective::Broadcast { root: self.posted % self.size },
            CollectiveKind::Allreduce => Collective::Allreduce,
        };
        self.posted += 1;
        let work = CollectiveWork {
            group: self.group,
            what,
            op: AtomicOp::Sum,
            datatype: Datatype::F64,
            count: bytes / size_of::<f64>(),
            // SAFETY: the memory exists until the endpoint is closed, and is accessed only while no operation is
            // outstanding.
            source: unsafe { Segment::new(self.memory.source.as_ptr(), bytes) },
            // SAFETY: as above.
            result: unsafe { Segment::new(self.memory.result.as_ptr(), bytes) },
            context: CONTEXT,
            flags: OpFlags::COMPLETION,
        };
        // SAFETY: as above.
        unsafe { self.endpoint.post_collective(&work) }.map_err(percale("posting a collective"))?;
        self.completed()
    }

    fn completed(&self) -> Result<()> {
        let (mut entries, mut polls, mut since) = ([Entry::default()], 0_u32, None);
        loop {
            match self.endpoint.poll(&mut entries) {
                Ok(0) => {}
                Ok(_) => return Ok(()),
                Err(error) => {
                    let why = self.endpoint.read_error().map_or_else(|| error.to_string(), |entry| entry.to_string());
                    return Err(Failure::Percale { what: "a collective", why });
                }
            }
            polls = polls.wrapping_add(1);
            if self.crowded {
                std::thread::yield_now();
            }
            if polls.is_multiple_of(CLOCK_INTERVAL) {
                // Other processes may need the processor.
                std::thread::yield_now();
                if since.get_or_insert_with(Instant::now).elapsed() > JOB_TIMEOUT {
                    return Err(Failure::Stalled(JOB_TIMEOUT.as_secs()));
                }
            }
        }
    }
}
