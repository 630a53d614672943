//! A chain of sums as deferred work. Each sum waits for the counter that counts the previous sum, and the first waits
//! for a counter that a thread of the first process sets. After that, no thread calls the library, and the sums proceed
//! automatically in all processes.

use std::time::{Duration, Instant};

use percale::{AddressSet, AtomicOp, Counter, Datatype, Progress};
use serde::{Deserialize, Serialize};

use super::super::team::{JOB_TIMEOUT, Team, TeamTask, WorkerSession, domain};
use crate::failure::{Failure, Result, percale};
use crate::statistics::Samples;

/// The number of sums of a chain.
pub(super) const SUMS: u64 = 1000;

#[derive(Debug, Serialize, Deserialize)]
enum Job {
    /// Queue a chain. The answer is `()`.
    Queue,
    /// Wait until the chain has ended. The first process starts it. The answer is its time in nanoseconds.
    Go,
}

/// Returns the nanoseconds per sum for each chain, measured by the first process.
pub(super) fn measure(processes: usize, time: Duration) -> Result<Samples> {
    let mut team = Team::start(TeamTask::Row, processes)?;
    let (mut each, since) = (Vec::new(), Instant::now());
    while each.len() < 3 || since.elapsed() < time {
        team.ask::<(), _>(|_| Job::Queue)?;
        let took: Vec<f64> = team.ask(|_| Job::Go)?;
        each.extend(took.first().map(|ns| ns / SUMS as f64));
    }
    Ok(each.into_iter().collect())
}

/// Runs a member until its input ends.
pub(in crate::perf) fn member(session: &mut WorkerSession) -> Result<()> {
    let domain = domain(Progress::default())?;
    let vector = domain.address_vector().build().map_err(percale("creating an address vector"))?;
    let endpoint = domain.endpoint().vector(&vector).bind_shared(crate::loopback::here().to_string());
    let endpoint = endpoint.map_err(percale("opening an endpoint"))?;
    let (number, members) = session.meet(&vector, endpoint.address().to_string())?;
    let members: AddressSet = members.into_iter().collect();
    let group = endpoint.join(&members).and_then(|mut joining| joining.wait_for(JOB_TIMEOUT));
    let group = group.map_err(percale("joining a group"))?;
    session.answer(())?;
    let (size, number) = (members.len() as u64, number as u64);
    while let Some(Job::Queue) = session.next()? {
        let (start, ended) = (Counter::new(), Counter::new());
        let queue = |round: u64| {
            // The other members start when the first message arrives.
            let (counter, threshold) = if round == 0 { (&start, u64::from(number == 0)) } else { (&ended, round) };
            let bytes = ((round + number) as f64).to_ne_bytes().to_vec();
            let sum = group.allreduce(AtomicOp::Sum, Datatype::F64, bytes).when(counter, threshold).counting(&ended);
            sum.start().map_err(percale("queueing a reduction"))
        };
        let sums = (0..SUMS).map(queue).collect::<Result<Vec<_>>>()?;
        session.answer(())?;
        let Some(Job::Go) = session.next()? else { break };
        let since = Instant::now();
        let done = std::thread::scope(|scope| {
            if number == 0 {
                scope.spawn(|| start.set(1));
            }
            ended.wait_since(SUMS, 0, Some(JOB_TIMEOUT))
        });
        let took = since.elapsed();
        done.map_err(percale("waiting for a chain of sums"))?;
        for (round, mut sum) in (0..SUMS).zip(sums) {
            let found = sum.wait_for(JOB_TIMEOUT).map_err(percale("waiting for a sum"))?.into_vec();
            // The expected result is the sum of the numbers of all members, plus the number of the round for each
            // member.
            let wanted = (round * size + size * (size - 1) / 2) as f64;
            if found != wanted.to_ne_bytes() {
                return Err(Failure::Data(format!("sum {round} has the bytes {found:?} instead of those of {wanted}")));
            }
        }
        session.answer(took.as_nanos() as f64)?;
    }
    Ok(())
}
