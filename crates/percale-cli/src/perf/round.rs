//! A round: some hundred or thousand messages of one shape between the two processes, of which only the part between
//! handing a message over and having the answer is timed. What is written and checked lies outside.

use serde::{Deserialize, Serialize};

use super::watch::Watch;
use crate::clock::Clock;
use crate::failure::{Failure, Result};
use crate::pattern::{Content, Part, Way};
use crate::row::Memory;
use crate::statistics::Samples;
use crate::subject::Subject;
use crate::units::LONGEST;

/// The most messages that may be under way in a stream.
pub(crate) const WINDOW: usize = 64;

/// The memory that the messages of a stream may take together, if that is more than one message.
const STREAM_MEMORY: usize = 4 << 20;

/// What the messages of a row are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// Length of a message.
    pub(crate) bytes: usize,
    /// One way, many at a time; else to and fro, one at a time.
    pub(crate) stream: bool,
    /// Tagged messages, else plain ones. For limits there is no difference.
    pub(crate) tagged: bool,
    /// Where they lie.
    pub(crate) memory: Memory,
}

impl Shape {
    /// How many messages a stream has under way.
    pub(crate) const fn window(&self) -> usize {
        let fit = STREAM_MEMORY / self.bytes;
        if fit == 0 {
            1
        } else if fit < WINDOW {
            fit
        } else {
            WINDOW
        }
    }

    /// Refuses what no command line can ask for.
    pub(crate) fn check(&self) -> Result<()> {
        if (1..=LONGEST).contains(&self.bytes) {
            return Ok(());
        }
        Err(Failure::Protocol(format!("messages of {} bytes", self.bytes)))
    }
}

/// One round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Round {
    /// Makes the data of this round unlike that of any other.
    pub(crate) number: u64,
    /// Untimed messages at the start.
    pub(crate) warm: u64,
    /// Timed messages.
    pub(crate) count: u64,
    /// How much of each message is written before it is sent.
    pub(crate) write: Part,
    /// How much of each message is checked after it arrived.
    pub(crate) check: Part,
    /// Which of the subject's settings.
    pub(crate) setting: usize,
}

impl Round {
    const fn messages(&self) -> u64 {
        self.warm + self.count
    }

    /// What to write before sending.
    #[inline]
    pub(crate) const fn written(&self, index: u64, way: Way) -> Content {
        Content::new(self.number, index, way, self.write)
    }

    /// What to check after receiving.
    #[inline]
    pub(crate) const fn checked(&self, index: u64, way: Way) -> Content {
        Content::new(self.number, index, way, self.check)
    }

    /// How many messages each side has checked whole when the round is over.
    pub(crate) fn verified(&self) -> u64 {
        if self.check == Part::Whole { self.messages() } else { 0 }
    }
}

/// The side that measures.
pub(crate) fn near<S: Subject>(
    subject: &mut S,
    shape: &Shape,
    round: &Round,
    clock: &Clock,
    watch: &mut Watch,
) -> Result<Samples> {
    subject.choose(round.setting);
    if shape.stream { stream(subject, round, clock, watch) } else { ping(subject, round, clock, watch) }
}

/// The other side.
pub(crate) fn far<S: Subject>(subject: &mut S, shape: &Shape, round: &Round, watch: &mut Watch) -> Result<()> {
    subject.choose(round.setting);
    if shape.stream { drain(subject, round, watch) } else { pong(subject, round, watch) }
}

fn ping<S: Subject>(subject: &mut S, round: &Round, clock: &Clock, watch: &mut Watch) -> Result<Samples> {
    let mut samples = Samples::with_room(round.count as usize);
    for index in 0..round.messages() {
        subject.write(round.written(index, Way::There), watch)?;
        let start = clock.now();
        // The answer is expected while the message is on its way, as a program would do it.
        subject.send(watch)?;
        subject.expect(watch)?;
        subject.receive(watch)?;
        let end = clock.now();
        subject.check(round.checked(index, Way::Back))?;
        if index >= round.warm {
            samples.push(clock.nanoseconds(end.wrapping_sub(start)) / 2.0);
        }
    }
    subject.end(watch)?;
    Ok(samples)
}

fn pong<S: Subject>(subject: &mut S, round: &Round, watch: &mut Watch) -> Result<()> {
    for index in 0..round.messages() {
        // Written before the message comes, so that it lies outside what the other side times.
        subject.write(round.written(index, Way::Back), watch)?;
        subject.expect(watch)?;
        subject.receive(watch)?;
        subject.send(watch)?;
        subject.check(round.checked(index, Way::There))?;
    }
    subject.end(watch)
}

fn stream<S: Subject>(subject: &mut S, round: &Round, clock: &Clock, watch: &mut Watch) -> Result<Samples> {
    let start = clock.now();
    for index in 0..round.messages() {
        subject.stream_out(index, round.written(index, Way::There), watch)?;
    }
    subject.flush(watch)?;
    subject.await_answer(watch)?;
    let end = clock.now();
    Ok([clock.nanoseconds(end.wrapping_sub(start)) / round.messages() as f64].into_iter().collect())
}

fn drain<S: Subject>(subject: &mut S, round: &Round, watch: &mut Watch) -> Result<()> {
    subject.expect_stream(round.messages(), watch)?;
    for index in 0..round.messages() {
        subject.stream_in(index, round.checked(index, Way::There), watch)?;
    }
    subject.answer(watch)
}
