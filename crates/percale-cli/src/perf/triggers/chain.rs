//! A token that processes pass around only by deferred work. The receives, and the sends that wait for them, are queued
//! before the token arrives.

#![expect(unsafe_code, reason = "queues raw work on memory that outlives it; each block states why it is sound")]

use std::time::{Duration, Instant};

use percale::trigger::{DeferredWork, RawOperation, Work};
use percale::{
    Allocation, Counter, Domain, OpFlags, PeerAddress, Progress, ReceiveWork, Segment, Segments, SendWork,
    SharedEndpoint,
};
use serde::{Deserialize, Serialize};

use super::super::figure::Figure;
use super::super::team::{JOB_TIMEOUT, Team, TeamTask, WorkerSession, domain};
use super::LINE;
use crate::failure::{Failure, Result, percale};
use crate::statistics::Samples;

const HOP: &str = "pass a token by deferred work";

/// The number of passes of each process that are queued before the token arrives.
const PASSES: u64 = 500;

const TAG: u64 = 1;

/// The content of the token.
const TOKEN: [u8; 8] = *b"a token\n";

#[derive(Debug, Serialize, Deserialize)]
enum Job {
    /// Queue all passes. The answer is `()`.
    Queue,
    /// Wait until the passes are over. The first process starts the token. The answer is the time in nanoseconds.
    Pass,
}

/// Measures a hop, and compares it with the transfer of a cache line.
pub(super) fn measure(processes: usize, time: Duration, line_ns: f64) -> Result<Figure> {
    let mut team = Team::start(TeamTask::Chain, processes)?;
    let hops = PASSES * processes as u64;
    let (mut each, since) = (Vec::new(), Instant::now());
    while each.len() < 3 || since.elapsed() < time {
        team.ask::<(), _>(|_| Job::Queue)?;
        let took: Vec<f64> = team.ask(|_| Job::Pass)?;
        each.extend(took.first().map(|ns| ns / hops as f64));
    }
    let samples: Samples = each.into_iter().collect();
    Ok(Figure { processes: Some(processes), ..Figure::of(HOP, samples, hops) }.beside(LINE, line_ns))
}

/// Runs a process of the ring.
pub(in crate::perf) fn member(session: &mut WorkerSession) -> Result<()> {
    let domain = domain(Progress::Manual)?;
    // The memory is declared before the endpoint, so that it is dropped after the endpoint. Operations of the endpoint
    // use the memory.
    let mut memory = domain.allocate(TOKEN.len()).map_err(percale("allocating memory"))?;
    let vector = domain.address_vector().build().map_err(percale("creating an address vector"))?;
    let endpoint = domain.endpoint().vector(&vector).bind_shared(crate::loopback::here().to_string());
    let endpoint = endpoint.map_err(percale("opening an endpoint"))?;
    let (number, members) = session.meet(&vector, endpoint.address().to_string())?;
    let next = members[(number + 1) % members.len()];
    let counters = std::array::from_fn(|_| Counter::new());
    let ring = Ring { domain, endpoint, next, is_first: number == 0, counters };
    session.answer(())?;
    let mut stretch = 0;
    while let Some(job) = session.next()? {
        match job {
            Job::Queue => {
                memory.write(0, if ring.is_first { &TOKEN } else { &[0; 8] });
                ring.queue(&memory, stretch)?;
                session.answer(())?;
            }
            Job::Pass => {
                let took = ring.pass(stretch)?;
                stretch += 1;
                if memory.to_vec() != TOKEN {
                    return Err(Failure::Data("the token has a wrong value".into()));
                }
                session.answer(took.as_nanos() as f64)?;
            }
        }
    }
    Ok(())
}

/// The position of a process in the ring.
struct Ring {
    domain: Domain,
    endpoint: SharedEndpoint,
    next: PeerAddress,
    is_first: bool,
    /// The numbers of started stretches (of [`PASSES`] passes each), of received tokens, and of sent tokens.
    counters: [Counter; 3],
}

impl Ring {
    /// Queues the passes of a stretch. No message is sent before the first process starts the stretch.
    fn queue(&self, memory: &Allocation, stretch: u64) -> Result<()> {
        let [started, received, sent] = &self.counters;
        // SAFETY: all processes pass the same bytes through this memory, and it is accessed only before and after a
        // stretch.
        let segments = Segments::one(unsafe { Segment::new(memory.as_ptr(), TOKEN.len()) });
        let (from, context, flags) = (PeerAddress::UNSPECIFIED, 0, OpFlags::empty());
        let receive = RawOperation::Receive(ReceiveWork { from, segments, tag: Some((TAG, 0)), context, flags });
        let send =
            RawOperation::Send(SendWork { peer: self.next, segments, tag: Some(TAG), data: None, context, flags });
        for pass in stretch * PASSES..(stretch + 1) * PASSES {
            self.defer(receive, (started, 0), received)?;
            let when = match self.is_first {
                false => (received, pass + 1),
                true if pass == stretch * PASSES => (started, stretch + 1),
                true => (received, pass),
            };
            self.defer(send, when, sent)?;
        }
        Ok(())
    }

    fn defer(&self, operation: RawOperation, (counter, threshold): (&Counter, u64), counting: &Counter) -> Result<()> {
        let work = Work::Transfer(SharedEndpoint::clone(&self.endpoint), operation);
        let work = DeferredWork { work, counter: counter.clone(), threshold, counting: Some(counting.clone()) };
        // SAFETY: the memory exists until the endpoint is closed.
        unsafe { self.domain.queue_work(work) }.map(drop).map_err(percale("queueing deferred work"))
    }

    /// Passes the token around for one stretch. Returns the elapsed time.
    fn pass(&self, stretch: u64) -> Result<Duration> {
        let [started, received, sent] = &self.counters;
        let since = Instant::now();
        if self.is_first {
            started.add(1);
        }
        let all = (stretch + 1) * PASSES;
        let wait = |counter: &Counter| counter.wait_since(all, 0, Some(JOB_TIMEOUT));
        wait(received).map_err(percale("waiting for the token"))?;
        let took = since.elapsed();
        wait(sent).map_err(percale("passing the token on"))?;
        Ok(took)
    }
}
