//! The subjects of measurements: percale itself, and the plain programs that measure the machine's limits. All of them
//! transfer the same messages, or make the same accesses, in the same [`rounds`].

use serde::{Deserialize, Serialize};

use crate::channel::watch::Watch;
use crate::clock::Clock;
use crate::failure::{Failure, Result};
use crate::pattern::{Content, MessageDirection};
use crate::round::{MessageShape, Round};
use crate::row::{Api, Transport};
use crate::statistics::Samples;

mod rounds;

/// The kinds of subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum SubjectKind {
    /// Limit of small messages through shared memory.
    Ring,
    /// Limit of large messages through shared memory.
    Copy,
    /// Limit of accesses to another process' memory.
    Access(AccessMeans),
    /// Limit of accesses to memory that only the process that owns it can access.
    Twice,
    /// Limit of TCP.
    Sockets,
    /// percale's messages.
    Percale(Transport, Api),
    /// percale's one-sided operations.
    OneSided(Transport, Api),
    /// percale's one-sided operations over shared memory, without copies by the kernel.
    Bounced(Api),
}

impl SubjectKind {
    /// Returns the API of percale that the subject uses. `None` for limits.
    pub(crate) const fn api(self) -> Option<Api> {
        match self {
            Self::Percale(_, api) | Self::OneSided(_, api) | Self::Bounced(api) => Some(api),
            _ => None,
        }
    }

    /// Returns the transport that percale uses.
    pub(crate) const fn transport(self) -> Transport {
        match self {
            Self::Percale(transport, _) | Self::OneSided(transport, _) => transport,
            _ => Transport::Shm,
        }
    }
}

/// The means of accessing the memory of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum AccessMeans {
    /// The memory is mapped, and copied to and from.
    Copy,
    /// The kernel copies.
    Kernel,
    /// One instruction changes a word of the memory.
    Word,
}

/// Returns the error for rounds that a subject does not support.
fn unsupported<T>() -> Result<T> {
    Err(Failure::Protocol("this subject does not support rounds of this kind".into()))
}

/// One side of a pair that exchanges messages, or in which one side accesses the memory of the other. Both sides run
/// the same program. Each has a source buffer and a destination buffer of the length in the last call of `prepare`.
///
/// * Ping-pong: `expect`, `send`, `receive`.
/// * Stream: `stream_out` and `flush` on one side, `expect_stream` and `stream_in` on the other, which then sends an
///   `answer`.
/// * Accesses: `reach`, `access`, `leave` on one side, `serve` on the other. By default an access is a round trip.
///
/// No subject implements all methods.
pub(crate) trait Subject {
    /// Prepares for messages of this shape.
    fn prepare(&mut self, shape: &MessageShape) -> Result<()>;

    /// Returns the names of the possible settings. The measurement finds the fastest one. [`Subject::choose`] takes an
    /// index.
    fn settings(&self) -> Vec<String> {
        vec![String::new()]
    }

    /// Selects the setting that is used from now on.
    fn choose(&mut self, setting: usize) {
        debug_assert_eq!(setting, 0, "there is only one setting");
    }

    /// Writes the message that is sent next. The previous message must have left its buffer.
    fn write(&mut self, content: Content, watch: &mut Watch) -> Result<()>;

    /// Prepares to receive a message (posts the receive).
    fn expect(&mut self, _watch: &mut Watch) -> Result<()> {
        Ok(())
    }

    /// Sends the message.
    fn send(&mut self, _watch: &mut Watch) -> Result<()> {
        unsupported()
    }

    /// Waits until the expected message has arrived completely.
    fn receive(&mut self, _watch: &mut Watch) -> Result<()> {
        unsupported()
    }

    /// Checks the message that was received last.
    fn check(&mut self, content: Content) -> Result<()>;

    /// Ends a round of a ping-pong. Returns when the last message has left its buffer.
    fn end(&mut self, _watch: &mut Watch) -> Result<()> {
        Ok(())
    }

    /// Writes and sends message `index` of a stream as soon as there is room in the window.
    fn stream_out(&mut self, _index: u64, _content: Content, _watch: &mut Watch) -> Result<()> {
        unsupported()
    }

    /// Returns when the whole stream has been sent.
    fn flush(&mut self, _watch: &mut Watch) -> Result<()> {
        unsupported()
    }

    /// Prepares to receive a stream of `count` messages.
    fn expect_stream(&mut self, _count: u64, _watch: &mut Watch) -> Result<()> {
        unsupported()
    }

    /// Waits for message `index` of a stream and checks it.
    fn stream_in(&mut self, _index: u64, _content: Content, _watch: &mut Watch) -> Result<()> {
        unsupported()
    }

    /// Notifies the other side that the whole stream has been received.
    fn answer(&mut self, _watch: &mut Watch) -> Result<()> {
        unsupported()
    }

    /// Waits for the other side's [`answer`](Self::answer).
    fn await_answer(&mut self, _watch: &mut Watch) -> Result<()> {
        unsupported()
    }

    /// Waits until the other side's memory is ready for this round.
    fn reach(&mut self, _round: &Round, _watch: &mut Watch) -> Result<()> {
        Ok(())
    }

    /// Accesses a slot of the other side's memory. Returns when the access has completed.
    #[inline]
    fn access(&mut self, _slot: usize, watch: &mut Watch) -> Result<()> {
        self.send(watch)?;
        self.receive(watch)
    }

    /// Notifies the other side that the round is over.
    fn leave(&mut self, _round: &Round, _watch: &mut Watch) -> Result<()> {
        Ok(())
    }

    /// Lets the other side access `slots` slots of this side's memory until the round is over, then checks the
    /// contents.
    fn serve(&mut self, slots: usize, round: &Round, watch: &mut Watch) -> Result<()> {
        for index in 0..round.messages() {
            self.write(round.written(round.slot(index, slots) as u64, MessageDirection::Back), watch)?;
            for _ in 0..round.batch {
                self.receive(watch)?;
                self.send(watch)?;
            }
            self.check(round.checked(index, MessageDirection::There))?;
        }
        Ok(())
    }

    /// Makes progress on outstanding transfers between rounds.
    fn progress(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The rounds of any subject, for dynamic dispatch with one virtual call per round.
pub(crate) trait DynSubject {
    /// Calls [`Subject::prepare`].
    fn prepare(&mut self, shape: &MessageShape) -> Result<()>;
    /// Calls [`Subject::settings`].
    fn settings(&self) -> Vec<String>;
    /// Runs a round on the measuring side.
    fn near(&mut self, round: &Round, clock: &Clock, watch: &mut Watch) -> Result<Samples>;
    /// Runs a round on the other side.
    fn far(&mut self, round: &Round, watch: &mut Watch) -> Result<()>;
    /// Calls [`Subject::progress`].
    fn progress(&mut self) -> Result<()>;
}

/// A subject whose operations borrow its endpoint. Each round has a new [`Subject`] that borrows from it, and that has
/// no operation left at the end of the round.
pub(crate) trait Lender {
    /// The subject of one round.
    type Side<'a>: Subject
    where
        Self: 'a;

    /// Calls [`Subject::prepare`].
    fn prepare(&mut self, shape: &MessageShape) -> Result<()>;

    /// Makes the subject of a round.
    fn side(&mut self) -> Self::Side<'_>;

    /// Calls [`Subject::progress`].
    fn progress(&mut self) -> Result<()>;
}

/// Runs the rounds of a [`Lender`].
#[derive(Debug)]
pub(crate) struct LenderRunner<L> {
    lender: L,
    shape: Option<MessageShape>,
}

impl<L: Lender> LenderRunner<L> {
    /// Makes a runner for `lender`.
    pub(crate) const fn new(lender: L) -> Self {
        Self { lender, shape: None }
    }
}

impl<L: Lender> DynSubject for LenderRunner<L> {
    fn prepare(&mut self, shape: &MessageShape) -> Result<()> {
        shape.check()?;
        self.lender.prepare(shape)?;
        self.shape = Some(*shape);
        Ok(())
    }

    fn settings(&self) -> Vec<String> {
        vec![String::new()]
    }

    fn near(&mut self, round: &Round, clock: &Clock, watch: &mut Watch) -> Result<Samples> {
        let shape = prepared(self.shape)?;
        rounds::near(&mut self.lender.side(), &shape, round, clock, watch)
    }

    fn far(&mut self, round: &Round, watch: &mut Watch) -> Result<()> {
        let shape = prepared(self.shape)?;
        round.check(&shape, 1)?;
        rounds::far(&mut self.lender.side(), &shape, round, watch)
    }

    fn progress(&mut self) -> Result<()> {
        self.lender.progress()
    }
}

fn prepared(shape: Option<MessageShape>) -> Result<MessageShape> {
    shape.ok_or_else(|| Failure::Protocol("a round before it was prepared".into()))
}

/// Runs a subject's rounds.
#[derive(Debug)]
pub(crate) struct Runner<S> {
    subject: S,
    shape: Option<MessageShape>,
}

impl<S: Subject> Runner<S> {
    /// Makes a runner for `subject`.
    pub(crate) const fn new(subject: S) -> Self {
        Self { subject, shape: None }
    }
}

impl<S: Subject> DynSubject for Runner<S> {
    fn prepare(&mut self, shape: &MessageShape) -> Result<()> {
        shape.check()?;
        self.subject.prepare(shape)?;
        self.shape = Some(*shape);
        Ok(())
    }

    fn settings(&self) -> Vec<String> {
        self.subject.settings()
    }

    fn near(&mut self, round: &Round, clock: &Clock, watch: &mut Watch) -> Result<Samples> {
        let shape = prepared(self.shape)?;
        rounds::near(&mut self.subject, &shape, round, clock, watch)
    }

    fn far(&mut self, round: &Round, watch: &mut Watch) -> Result<()> {
        let shape = prepared(self.shape)?;
        round.check(&shape, self.subject.settings().len())?;
        rounds::far(&mut self.subject, &shape, round, watch)
    }

    fn progress(&mut self) -> Result<()> {
        self.subject.progress()
    }
}
