//! A team of processes that run a measurement together: the process that starts them, and the members.
//!
//! Each member opens an endpoint over shared memory and reports its address. Then all members receive all addresses.
//! Afterwards each member receives jobs and answers each of them. A member that fails sends the reason and exits. The
//! others exit when the team is dropped, or when the process that started them ends.

use std::io::{self, BufRead, Lines, StdinLock};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use percale::address::vector::AddressVector;
use percale::{Domain, Info, PeerAddress, Progress, TransportKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::processors;
use crate::failure::{Failure, Result, percale};
use crate::worker::{Worker, answer};

/// The name of the hidden subcommand that runs a member of a team.
pub(crate) const PART: &str = "team-part";

/// The timeout for a job.
pub(super) const JOB_TIMEOUT: Duration = Duration::from_secs(60);

/// How long one member is polled before the next.
const TURN: Duration = Duration::from_millis(5);

/// The work of a team.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TeamTask {
    /// Passes a token around.
    Chain,
    /// Posts collectives one after another.
    Collectives,
    /// Queues collectives that start when a counter is set.
    Row,
}

impl TeamTask {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The processes of the team.
pub(super) struct Team(Vec<Worker>);

/// The number of a member, and the addresses of all members.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct MemberList {
    number: usize,
    addresses: Vec<String>,
}

impl Team {
    /// Starts `count` members and exchanges their addresses. If there are enough processors, each member is pinned to a
    /// separate one. Otherwise all members run on any processor.
    pub(super) fn start(part: TeamTask, count: usize) -> Result<Self> {
        let here = processors::allowed()?;
        let start = |number: usize| {
            let processor = if count <= here.len() { Some(here[number].to_string()) } else { None };
            let name = part.name();
            let mut arguments = vec![PART, &name];
            if let Some(processor) = &processor {
                arguments.extend(["--processor", processor]);
            }
            Worker::start(&arguments).map_err(|why| Failure::Member { number, why })
        };
        let mut team = Self((0..count).map(start).collect::<Result<_>>()?);
        let addresses: Vec<String> = team.receive_answer()?;
        team.send_job(|number| MemberList { number, addresses: addresses.clone() })?;
        team.receive_answer::<()>()?;
        Ok(team)
    }

    /// Returns the number of members.
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Sends a job to each member, the last one first.
    pub(super) fn send_job<J: Serialize>(&mut self, job: impl Fn(usize) -> J) -> Result<()> {
        for (number, worker) in self.0.iter_mut().enumerate().rev() {
            worker.send_job(&job(number)).map_err(|why| Failure::Member { number, why })?;
        }
        Ok(())
    }

    /// Returns the answers of all members. Polls all of them, because the end of one member may prevent the others from
    /// answering.
    pub(super) fn receive_answer<T: DeserializeOwned>(&mut self) -> Result<Vec<T>> {
        let mut received: Vec<Option<T>> = self.0.iter().map(|_| None).collect();
        let since = Instant::now();
        while received.iter().any(Option::is_none) {
            for (number, (worker, place)) in self.0.iter_mut().zip(&mut received).enumerate() {
                if place.is_none() {
                    let failed = |why| Failure::Member { number, why };
                    let message: Option<Result<T, String>> = worker.receive_answer(TURN).map_err(failed)?;
                    *place = message.transpose().map_err(failed)?;
                }
                if place.is_none() && since.elapsed() > JOB_TIMEOUT {
                    return Err(Failure::Member { number, why: format!("no answer for {} s", JOB_TIMEOUT.as_secs()) });
                }
            }
        }
        Ok(received.into_iter().flatten().collect())
    }

    /// Sends a job to each member. Returns the answers of all members.
    pub(super) fn ask<T: DeserializeOwned, J: Serialize>(&mut self, job: impl Fn(usize) -> J) -> Result<Vec<T>> {
        self.send_job(job)?;
        self.receive_answer()
    }
}

/// The channel of a member: reads jobs and writes answers.
pub(super) struct WorkerSession {
    lines: Lines<StdinLock<'static>>,
    /// Whether there are more members than processors.
    crowded: bool,
}

impl WorkerSession {
    /// Opens standard input. `crowded` states whether there are more members than processors.
    pub(super) fn open(crowded: bool) -> Self {
        Self { lines: io::stdin().lock().lines(), crowded }
    }

    /// Reads the next job. Returns `None` at the end of the input.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let Some(line) = self.lines.next() else { return Ok(None) };
        let line = line.map_err(Failure::system("reading a job"))?;
        serde_json::from_str(&line).map(Some).map_err(|error| Failure::Protocol(error.to_string()))
    }

    /// Returns whether a waiting member should yield its processor.
    pub(super) const fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// Writes the answer to a job.
    pub(super) fn answer<T: Serialize>(&self, value: T) -> Result<()> {
        answer(&Ok::<T, String>(value)).map_err(Failure::system("answering"))
    }

    /// Reports the address of this member. Returns its number and the addresses of all members.
    pub(super) fn meet(&mut self, vector: &AddressVector, here: String) -> Result<(usize, Vec<PeerAddress>)> {
        self.answer(here)?;
        let roll: MemberList = self.next()?.ok_or(Failure::PeerEnded)?;
        let insert = |address: &String| vector.insert(address.as_str()).map_err(percale("inserting an address"));
        let members = roll.addresses.iter().map(insert).collect::<Result<_>>()?;
        Ok((roll.number, members))
    }
}

/// Opens a domain that uses only shared memory.
pub(super) fn domain(progress: Progress) -> Result<Domain> {
    let info = Info::discover().map_err(percale("discovering transports"))?;
    info.domain().transport(TransportKind::Shm).progress(progress).open().map_err(percale("opening a domain"))
}
