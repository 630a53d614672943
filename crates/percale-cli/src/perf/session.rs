//! The session of the measuring process. It starts the second process or connects to it, opens subjects in both, and
//! runs rounds.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::processors;
use super::request::MeasureRequest;
use super::subjects::{self, MachinePlacement};
use crate::channel::control::{Control, ControlReply};
use crate::channel::proof::{self, Nonce, Proof, Role};
use crate::channel::watch::Watch;
use crate::clock::Clock;
use crate::failure::{Failure, Result};
use crate::limits::ring;
use crate::limits::shared::Shared;
use crate::output::say;
use crate::round::{MessageShape, Round};
use crate::statistics::Samples;
use crate::subject::{DynSubject, SubjectKind};

/// The name of the hidden subcommand that runs the second process.
pub(crate) const SECOND_PROCESS: &str = "second-process";

/// How long the second process may take to end after its channel is closed.
const ENDING: Duration = Duration::from_secs(2);

/// The second process. It is killed if it has not ended when this value is dropped.
#[derive(Debug)]
struct Second(Child);

impl Drop for Second {
    fn drop(&mut self) {
        let start = Instant::now();
        while start.elapsed() < ENDING {
            match self.0.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        // The process was started here and does not respond. It has no state that could be lost.
        let _killed: std::io::Result<()> = self.0.kill();
        let _status = self.0.wait();
    }
}

/// The two processes of a measurement.
// The order of the fields matters: the channel must close before the wait for the end of the second process.
pub(crate) struct Session {
    open: HashMap<SubjectKind, Box<dyn DynSubject>>,
    place: MachinePlacement,
    watch: Watch,
    clock: Clock,
    rounds: u64,
    _second: Option<Second>,
}

impl Session {
    /// Starts a second process on this machine. Messages may be up to `longest` bytes long. The two processes are
    /// pinned to one processor each, if there are at least two.
    pub(crate) fn local(longest: usize) -> Result<Self> {
        let processors = processors::allowed()?;
        let pair = processors.first().copied().zip(processors.get(1).copied());
        if pair.is_none() {
            say("There is only one processor: both processes share it, so all times include context switches.");
        }
        let what = "starting the second process";
        let memory = Shared::create(longest.max(ring::BUFFER))?;
        let (ours, theirs) = UnixStream::pair().map_err(Failure::system(what))?;
        let program = std::env::current_exe().map_err(Failure::system(what))?;
        let mut command = Command::new(program);
        command.arg(SECOND_PROCESS);
        if let Some((near, far)) = pair {
            command.arg("--processor").arg(far.to_string());
            processors::pin(near)?;
        }
        let theirs_memory = memory.try_clone().map_err(Failure::system(what))?;
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::from(theirs_memory));
        let second = command.spawn().map_err(Failure::system(what))?;
        // The command contains a copy of the second process's end of the channel. After it is dropped, the channel
        // closes when the second process ends.
        drop(command);
        Self::exchange_hellos(
            MachinePlacement::Local(memory),
            Control::local(ours)?,
            pair.is_none(),
            Some(Second(second)),
        )
    }

    /// Connects to a process that waits on another machine.
    pub(crate) fn remote(address: &str, key: Option<Vec<u8>>) -> Result<Self> {
        let stream = TcpStream::connect(address).map_err(Failure::system(format!("connecting to {address}")))?;
        let here = stream.local_addr().map_err(Failure::system("reading the address"))?;
        if let Some(&first) = processors::allowed()?.first() {
            processors::pin(first)?;
        }
        Self::exchange_hellos(
            MachinePlacement::Remote(SocketAddr::new(here.ip(), 0), key),
            Control::remote(stream)?,
            false,
            None,
        )
    }

    /// Makes a session with a thread of this process as the other side.
    #[cfg(test)]
    pub(crate) fn with(memory: OwnedFd, control: Control) -> Result<Self> {
        Self::exchange_hellos(MachinePlacement::Local(memory), control, true, None)
    }

    fn exchange_hellos(
        place: MachinePlacement,
        control: Control,
        yielding: bool,
        second: Option<Second>,
    ) -> Result<Self> {
        let clock = Clock::calibrate();
        let watch = Watch::new(control, yielding);
        let mut session = Self { open: HashMap::new(), place, watch, clock, rounds: 0, _second: second };
        match session.watch.control.reply(|| Ok(()))? {
            ControlReply::Hello { version, nonce } if version == env!("CARGO_PKG_VERSION") => {
                session.prove(nonce)?;
                Ok(session)
            }
            ControlReply::Hello { version, .. } => Err(Failure::Protocol(format!("its version is {version}"))),
            other => Err(Failure::Protocol(format!("unexpected {other} instead of a greeting"))),
        }
    }

    /// Proves that this side has the key, and requires the same proof from the other side.
    fn prove(&mut self, theirs: Option<Nonce>) -> Result<()> {
        let key = self.place.key();
        let (key, theirs) = match (key, theirs) {
            (None, None) => return Ok(()),
            (Some(key), Some(theirs)) => (key, theirs),
            (None, Some(_)) => {
                return Err(Failure::Usage(
                    "the other side requires an authorization key: pass it with --authorization-key".into(),
                ));
            }
            (Some(_), None) => {
                return Err(Failure::Usage(
                    "the other side was started without --authorization-key: start it with the key".into(),
                ));
            }
        };
        let nonce = proof::nonce()?;
        let proof = Proof::new(key, Role::Near, &nonce, &theirs);
        self.watch.control.send(&MeasureRequest::Prove { nonce, proof })?;
        match self.watch.control.reply(|| Ok(()))? {
            ControlReply::Proved { proof } if proof.holds(key, Role::Far, &nonce, &theirs) => Ok(()),
            _ => Err(Failure::Peer("the authorization keys differ".into())),
        }
    }

    /// Returns whether both processes are on one machine. There are limits to compare with only in this case.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self.place, MachinePlacement::Local(_))
    }

    /// Prepares a subject for messages of this shape, and opens it first if needed.
    pub(crate) fn prepare(&mut self, kind: SubjectKind, shape: &MessageShape) -> Result<Vec<String>> {
        if !self.open.contains_key(&kind) {
            let control = &mut self.watch.control;
            let bench = subjects::open_near(kind, &self.place, |address| {
                control.send(&MeasureRequest::Open { kind, address })?;
                match control.reply(|| Ok(()))? {
                    ControlReply::Opened { address } => Ok(address),
                    other => Err(Failure::Protocol(format!("{other} instead of a report of an opened subject"))),
                }
            })?;
            self.open.insert(kind, bench);
        }
        self.watch.control.send(&MeasureRequest::Prepare { kind, shape: *shape })?;
        let open = &mut self.open;
        let bench = open.get_mut(&kind).ok_or_else(|| Failure::Protocol("not open".into()))?;
        bench.prepare(shape)?;
        let settings = bench.settings();
        self.expect(&ControlReply::Ready)?;
        Ok(settings)
    }

    /// Assigns a number to a round and runs it.
    pub(crate) fn round(&mut self, kind: SubjectKind, round: Round) -> Result<(Samples, u64)> {
        self.rounds += 1;
        let round = Round { number: self.rounds, ..round };
        self.watch.control.send(&MeasureRequest::Round { kind, round })?;
        self.expect(&ControlReply::Ready)?;
        let bench = self.open.get_mut(&kind).ok_or_else(|| Failure::Protocol("not open".into()))?;
        let samples = bench.near(&round, &self.clock, &mut self.watch)?;
        let open = &mut self.open;
        match self.watch.control.reply(|| open.values_mut().try_for_each(|bench| bench.progress()))? {
            ControlReply::Done { verified } => Ok((samples, verified)),
            other => Err(Failure::Protocol(format!("{other} instead of the end of a round"))),
        }
    }

    fn expect(&mut self, wanted: &ControlReply) -> Result<()> {
        let open = &mut self.open;
        self.watch.control.expect(wanted, || open.values_mut().try_for_each(|bench| bench.progress()))
    }
}
