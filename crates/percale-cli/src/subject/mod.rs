//! What is measured: percale itself, and the programs of plain lines that stand for the machine's limits. All carry
//! the same messages in the same rounds.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use self::percale::Percale;
use crate::clock::Clock;
use crate::failure::{Failure, Result};
use crate::limits::copy::Copy;
use crate::limits::ring::Ring;
use crate::limits::shared::{Shared, Side};
use crate::limits::sockets::Sockets;
use crate::pattern::Content;
use crate::perf::round::{self, Round, Shape};
use crate::perf::watch::Watch;
use crate::row::Transport;
use crate::statistics::Samples;

mod percale;

/// Which subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// Limit of small messages through shared memory.
    Ring,
    /// Limit of large messages through shared memory.
    Copy,
    /// Limit of TCP.
    Sockets,
    /// percale.
    Percale(Transport),
}

/// One side of a pair that carries messages. Both sides are the same program; each owns a buffer to send from and one
/// to receive into, of the length last prepared.
///
/// To and fro: `expect`, `send`, `receive`. One way: `stream_out` and `flush` on one side, `expect_stream` and
/// `stream_in` on the other, which then sends an `answer`.
pub(crate) trait Subject {
    /// Gets ready for messages of this shape.
    fn prepare(&mut self, shape: &Shape) -> Result<()>;

    /// The ways to do it of which the fastest is to be found, by name; [`Subject::choose`] takes an index.
    fn settings(&self) -> Vec<String> {
        vec![String::new()]
    }

    /// Uses one of the settings from now on.
    fn choose(&mut self, setting: usize) {
        debug_assert_eq!(setting, 0, "there is one setting only");
    }

    /// Writes the message that is sent next, as soon as the one before has left its buffer.
    fn write(&mut self, content: Content, watch: &mut Watch) -> Result<()>;

    /// Says that a message is about to be received (posts the receive).
    fn expect(&mut self, _watch: &mut Watch) -> Result<()> {
        Ok(())
    }

    /// Sends the message.
    fn send(&mut self, watch: &mut Watch) -> Result<()>;

    /// Waits until the expected message has arrived whole.
    fn receive(&mut self, watch: &mut Watch) -> Result<()>;

    /// Checks the message that was received last.
    fn check(&mut self, content: Content) -> Result<()>;

    /// Ends a round of messages to and fro: returns when the last has left its buffer.
    fn end(&mut self, _watch: &mut Watch) -> Result<()> {
        Ok(())
    }

    /// Writes and sends message `index` of a stream as soon as the window allows.
    fn stream_out(&mut self, index: u64, content: Content, watch: &mut Watch) -> Result<()>;

    /// Returns when all of the stream is on its way.
    fn flush(&mut self, watch: &mut Watch) -> Result<()>;

    /// Says that a stream of `count` messages is about to be received.
    fn expect_stream(&mut self, count: u64, watch: &mut Watch) -> Result<()>;

    /// Waits for message `index` of a stream and checks it.
    fn stream_in(&mut self, index: u64, content: Content, watch: &mut Watch) -> Result<()>;

    /// Tells the other side that all of the stream was received.
    fn answer(&mut self, watch: &mut Watch) -> Result<()>;

    /// Waits for that.
    fn await_answer(&mut self, watch: &mut Watch) -> Result<()>;

    /// Between rounds: lets what is still on its way go on.
    fn progress(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A subject whose rounds can be run, whichever it is. One virtual call a round.
pub(crate) trait Bench {
    /// See [`Subject::prepare`].
    fn prepare(&mut self, shape: &Shape) -> Result<()>;
    /// See [`Subject::settings`].
    fn settings(&self) -> Vec<String>;
    /// A round, on the side that measures.
    fn near(&mut self, round: &Round, clock: &Clock, watch: &mut Watch) -> Result<Samples>;
    /// A round, on the other side.
    fn far(&mut self, round: &Round, watch: &mut Watch) -> Result<()>;
    /// See [`Subject::progress`].
    fn progress(&mut self) -> Result<()>;
}

/// Runs a subject's rounds.
#[derive(Debug)]
pub(crate) struct Runner<S> {
    subject: S,
    shape: Option<Shape>,
}

impl<S: Subject> Runner<S> {
    /// Of `subject`.
    pub(crate) const fn new(subject: S) -> Self {
        Self { subject, shape: None }
    }

    fn shape(&self) -> Result<Shape> {
        self.shape.ok_or_else(|| Failure::Protocol("a round before it was prepared".into()))
    }
}

impl<S: Subject> Bench for Runner<S> {
    fn prepare(&mut self, shape: &Shape) -> Result<()> {
        shape.check()?;
        self.subject.prepare(shape)?;
        self.shape = Some(*shape);
        Ok(())
    }

    fn settings(&self) -> Vec<String> {
        self.subject.settings()
    }

    fn near(&mut self, round: &Round, clock: &Clock, watch: &mut Watch) -> Result<Samples> {
        let shape = self.shape()?;
        round::near(&mut self.subject, &shape, round, clock, watch)
    }

    fn far(&mut self, round: &Round, watch: &mut Watch) -> Result<()> {
        let shape = self.shape()?;
        round::far(&mut self.subject, &shape, round, watch)
    }

    fn progress(&mut self) -> Result<()> {
        self.subject.progress()
    }
}

/// Where the two sides are.
#[derive(Debug)]
pub(crate) enum Place {
    /// On one machine; the memory of the limits' programs.
    Local(OwnedFd),
    /// On two; the address, without port, of this one as the other sees it.
    Remote(SocketAddr),
}

impl Place {
    fn shared(&self) -> Result<Shared> {
        match self {
            Self::Local(memory) => Shared::map(memory),
            Self::Remote(_) => Err(Failure::Protocol("limits are measured on one machine".into())),
        }
    }
}

/// Opens a subject in the process that answers; `address` is where the other is reached. Returns where this is.
pub(crate) fn open_far(kind: Kind, address: Option<&str>, place: &Place) -> Result<(Box<dyn Bench>, Option<String>)> {
    Ok(match kind {
        Kind::Ring => (Box::new(Runner::new(Ring::new(place.shared()?, Side::Far))), None),
        Kind::Copy => (Box::new(Copy::new(place.shared()?, Side::Far)), None),
        Kind::Sockets => {
            let (sockets, address) = Sockets::listening()?;
            (Box::new(Runner::new(sockets)), Some(address))
        }
        Kind::Percale(transport) => {
            let mut percale = Percale::open(transport, place)?;
            percale.meet(address)?;
            let here = percale.address().to_string();
            (Box::new(Runner::new(percale)), Some(here))
        }
    })
}

/// Opens a subject in the process that measures; `exchange` opens it in the other, given our address, and returns the
/// other's.
pub(crate) fn open_near(
    kind: Kind,
    place: &Place,
    mut exchange: impl FnMut(Option<String>) -> Result<Option<String>>,
) -> Result<Box<dyn Bench>> {
    Ok(match kind {
        Kind::Ring => {
            exchange(None)?;
            Box::new(Runner::new(Ring::new(place.shared()?, Side::Near)))
        }
        Kind::Copy => {
            exchange(None)?;
            Box::new(Copy::new(place.shared()?, Side::Near))
        }
        Kind::Sockets => {
            let address = exchange(None)?.ok_or_else(|| Failure::Protocol("no address".into()))?;
            Box::new(Runner::new(Sockets::connected(&address)?))
        }
        Kind::Percale(transport) => {
            let mut percale = Percale::open(transport, place)?;
            let there = exchange(Some(percale.address().to_string()))?;
            percale.meet(there.as_deref())?;
            Box::new(Runner::new(percale))
        }
    })
}
