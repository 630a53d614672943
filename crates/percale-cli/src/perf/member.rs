//! The hidden subcommand that runs one member of a team.

use std::io;

use super::team::{TeamTask, WorkerSession};
use super::{collectives, processors, triggers};
use crate::worker::answer;

/// Runs a member until standard input ends. A failure is sent as the answer.
pub(crate) fn run(part: TeamTask, processor: Option<usize>) -> io::Result<()> {
    // This process ends even if its parent is killed.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let mut session = WorkerSession::open(processor.is_none());
    let mut run = || {
        processor.map_or(Ok(()), processors::pin)?;
        match part {
            TeamTask::Chain => triggers::chain::member(&mut session),
            TeamTask::Collectives => collectives::member::member(&mut session),
            TeamTask::Row => collectives::row::member(&mut session),
        }
    };
    run().or_else(|error| answer(&Err::<(), String>(error.to_string())))
}
