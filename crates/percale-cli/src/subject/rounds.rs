//! The two sides of a round with any subject. For ping-pongs and accesses, only the time between posting a message and
//! receiving the answer is measured. Writing and checking the contents is not part of it. For a stream, the time of the
//! whole round is measured.

use super::Subject;
use crate::channel::watch::Watch;
use crate::clock::Clock;
use crate::failure::Result;
use crate::pattern::MessageDirection;
use crate::round::{MessageShape, Round};
use crate::row::Pattern;
use crate::statistics::Samples;

/// Runs the measuring side.
pub(super) fn near<S: Subject>(
    subject: &mut S,
    shape: &MessageShape,
    round: &Round,
    clock: &Clock,
    watch: &mut Watch,
) -> Result<Samples> {
    subject.choose(round.setting);
    match shape.op.pattern() {
        Pattern::PingPong => ping(subject, round, clock, watch),
        Pattern::Stream => stream(subject, round, clock, watch),
        Pattern::Access => access(subject, shape, round, clock, watch),
    }
}

/// Runs the other side.
pub(super) fn far<S: Subject>(subject: &mut S, shape: &MessageShape, round: &Round, watch: &mut Watch) -> Result<()> {
    subject.choose(round.setting);
    match shape.op.pattern() {
        Pattern::PingPong => pong(subject, shape, round, watch),
        Pattern::Stream => drain(subject, round, watch),
        Pattern::Access => subject.serve(shape.slots(), round, watch),
    }
}

fn ping<S: Subject>(subject: &mut S, round: &Round, clock: &Clock, watch: &mut Watch) -> Result<Samples> {
    let mut samples = Samples::with_room(round.count as usize);
    for index in 0..round.messages() {
        let before = clock.now();
        subject.write(round.written(index, MessageDirection::There), watch)?;
        let start = settle(before, clock);
        // The receive for the answer is posted while the message is in transfer, as an application would do.
        subject.send(watch)?;
        subject.expect(watch)?;
        subject.receive(watch)?;
        let end = clock.now();
        subject.check(round.checked(index, MessageDirection::Back))?;
        if index >= round.warm {
            samples.push(clock.nanoseconds(end.wrapping_sub(start)) / 2.0);
        }
    }
    subject.end(watch)?;
    Ok(samples)
}

/// Waits for an eighth of the time since `before`. The other side began to write its answer slightly later than this
/// side began to write its message, and the measured time must not include the writing. Returns the time at the end of
/// the wait.
fn settle(before: u64, clock: &Clock) -> u64 {
    let after = clock.now();
    let spent = after.wrapping_sub(before);
    loop {
        let now = clock.now();
        if now.wrapping_sub(after) >= spent / 8 {
            return now;
        }
    }
}

fn pong<S: Subject>(subject: &mut S, shape: &MessageShape, round: &Round, watch: &mut Watch) -> Result<()> {
    // Data that the other side writes to this side's memory remains there only until this side answers.
    let checks_first = shape.op.is_one_sided();
    for index in 0..round.messages() {
        // Write before the message arrives, so that the time measured by the other side does not include the writing.
        subject.write(round.written(index, MessageDirection::Back), watch)?;
        subject.expect(watch)?;
        subject.receive(watch)?;
        if checks_first {
            subject.check(round.checked(index, MessageDirection::There))?;
        }
        subject.send(watch)?;
        if !checks_first {
            subject.check(round.checked(index, MessageDirection::There))?;
        }
    }
    subject.end(watch)
}

fn access<S: Subject>(
    subject: &mut S,
    shape: &MessageShape,
    round: &Round,
    clock: &Clock,
    watch: &mut Watch,
) -> Result<Samples> {
    let mut samples = Samples::with_room(round.count as usize);
    subject.reach(round, watch)?;
    for index in 0..round.messages() {
        let slot = round.slot(index, shape.slots());
        // For a read, this is the content of the memory before the read.
        subject.write(round.written(index, MessageDirection::There), watch)?;
        let start = clock.now();
        for _ in 0..round.batch {
            subject.access(slot, watch)?;
        }
        let end = clock.now();
        subject.check(round.checked(slot as u64, MessageDirection::Back))?;
        if index >= round.warm {
            samples.push(clock.nanoseconds(end.wrapping_sub(start)) / round.batch as f64);
        }
    }
    subject.leave(round, watch)?;
    Ok(samples)
}

fn stream<S: Subject>(subject: &mut S, round: &Round, clock: &Clock, watch: &mut Watch) -> Result<Samples> {
    let start = clock.now();
    for index in 0..round.messages() {
        subject.stream_out(index, round.written(index, MessageDirection::There), watch)?;
    }
    subject.flush(watch)?;
    subject.await_answer(watch)?;
    let end = clock.now();
    Ok([clock.nanoseconds(end.wrapping_sub(start)) / round.messages() as f64].into_iter().collect())
}

fn drain<S: Subject>(subject: &mut S, round: &Round, watch: &mut Watch) -> Result<()> {
    subject.expect_stream(round.messages(), watch)?;
    for index in 0..round.messages() {
        subject.stream_in(index, round.checked(index, MessageDirection::There), watch)?;
    }
    subject.answer(watch)
}
