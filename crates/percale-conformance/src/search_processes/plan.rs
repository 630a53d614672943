//! The parameters of a round, and how they are passed to a worker.

use std::collections::BTreeSet;
use std::fmt::{Display, Formatter};
use std::path::PathBuf;
use std::time::Duration;

use crate::random::Random;

/// The environment variable that passes the parameters of a worker.
pub const PART: &str = "PERCALE_SEARCH_PART";

/// The transports that a round can use.
pub const TRANSPORTS: [&str; 2] = ["shm", "tcp"];

/// The time limit of an operation after the last event that it needs. During this time, a peer may be stopped for 8
/// seconds.
pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);

/// Events that may end connections or operations of other workers.
const ENDING: [&str; 11] =
    ["close", "exec", "exit", "kill", "files", "pose", "same-address", "same-pid", "reset", "successor", "no-mappings"];

/// More events of this kind, which no seed selects. They occur only if `--kinds` names them.
const ON_REQUEST: [&str; 1] = ["proxy"];

/// Events that must not make an operation of another worker fail.
const HARMLESS: [&str; 13] = [
    "cancel",
    "drop",
    "regions",
    "fork",
    "stop",
    "eintr",
    "no-copies",
    "stranger",
    "flood",
    "own-address",
    "bad-memory",
    "windows",
    "connected",
];

/// The parameters of one round.
#[derive(Clone, Debug)]
pub struct RoundPlan {
    /// The seed. It determines everything except the scheduling of the processes.
    pub seed: u64,
    /// `shm` or `tcp`.
    pub transport: String,
    /// The events that can occur.
    pub kinds: BTreeSet<String>,
    /// The time during which operations are started.
    pub active: Duration,
    /// The number of workers that run at a time.
    pub workers: usize,
    /// The number of endpoints of a worker.
    pub endpoints: usize,
    /// The maximum length of a message.
    pub longest: usize,
    /// The limit of unexpected messages at an endpoint in bytes, or 0 for the default.
    pub cap: usize,
    /// Whether threads share endpoints.
    pub threads: bool,
    /// Whether endpoints use a shared receive context.
    pub shared: bool,
    /// Whether idle workers sleep until their tasks are woken.
    pub sleepy: bool,
    /// The directory of the logs.
    pub logs: PathBuf,
}

impl Display for RoundPlan {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { workers, endpoints, longest, cap, .. } = self;
        write!(f, "{workers} workers of {endpoints} endpoints, messages of at most {longest} bytes")?;
        if *cap > 0 {
            write!(f, ", {cap} bytes kept unexpected")?;
        }
        let ways = [(self.threads, "by threads"), (self.shared, "shared receives"), (self.sleepy, "sleeping")];
        ways.iter().filter(|(is, _)| *is).try_for_each(|(_, way)| write!(f, ", {way}"))?;
        let kinds = self.kinds.iter().map(String::as_str).collect::<Vec<_>>();
        if kinds.is_empty() { Ok(()) } else { write!(f, "; {}", kinds.join(",")) }
    }
}

impl RoundPlan {
    /// Returns the round for this seed. If `only` is not empty, the round has exactly those kinds of events. It has
    /// none of the kinds in `without`.
    #[must_use]
    pub fn of(seed: u64, transport: &str, logs: PathBuf, only: &[String], without: &[String]) -> Self {
        let mut random = Random::new(seed);
        let mut kinds = BTreeSet::new();
        // Half of the rounds have no event that permits operations to fail.
        let ending = random.below(2) == 0;
        for kind in HARMLESS {
            if random.below(3) == 0 {
                kinds.insert(kind.to_owned());
            }
        }
        for kind in ENDING {
            if ending && random.below(3) == 0 {
                kinds.insert(kind.to_owned());
            }
        }
        if !only.is_empty() {
            kinds = only.iter().cloned().collect();
        }
        kinds.retain(|kind| !without.contains(kind));
        let one_in = |random: &mut Random, n| random.below(n) == 0;
        Self {
            seed,
            transport: transport.to_owned(),
            kinds,
            active: Duration::from_secs(8 + random.below(12) as u64),
            workers: 3 + random.below(4),
            endpoints: 1 + random.below(3),
            longest: [4 << 10, 128 << 10, 1 << 20, 1 << 20][random.below(4)],
            cap: if one_in(&mut random, 3) { 1000 << random.below(8) } else { 0 },
            threads: one_in(&mut random, 4),
            shared: one_in(&mut random, 3),
            sleepy: one_in(&mut random, 3),
            logs,
        }
    }

    /// Sets one parameter from text like `cap=0`. Returns false if the text does not have this form or the parameter
    /// does not exist.
    pub fn set(&mut self, text: &str) -> bool {
        let Some((name, value)) = text.split_once('=') else { return false };
        let Ok(value) = value.parse::<usize>() else { return false };
        match name {
            "cap" => self.cap = value,
            "longest" => self.longest = value,
            "workers" => self.workers = value,
            "endpoints" => self.endpoints = value,
            "threads" => self.threads = value != 0,
            "shared" => self.shared = value != 0,
            "sleepy" => self.sleepy = value != 0,
            "active" => self.active = Duration::from_secs(value as u64),
            _ => return false,
        }
        true
    }

    /// Rejects unknown names of events.
    ///
    /// # Errors
    /// Returns an error with the first unknown event and all known ones.
    pub fn check(kinds: &[String]) -> Result<(), String> {
        let all = HARMLESS.iter().chain(&ENDING).chain(&ON_REQUEST).copied().collect::<Vec<_>>();
        match kinds.iter().find(|kind| !all.contains(&kind.as_str())) {
            Some(unknown) => Err(format!("unknown kind of event {unknown}; valid are {}", all.join(", "))),
            None => Ok(()),
        }
    }

    /// Returns whether events of this kind can occur.
    #[must_use]
    pub fn has(&self, kind: &str) -> bool {
        self.kinds.contains(kind)
    }

    /// Returns whether no event can occur that permits operations to fail.
    #[must_use]
    pub fn is_strict(&self) -> bool {
        !ENDING.iter().chain(&ON_REQUEST).any(|kind| self.has(kind))
    }

    /// Returns whether sends may be fenced. A fence waits for all earlier sends to the peer. Therefore it is not used
    /// if receives are cancelled: answers that are then never received would delay all later operations.
    #[must_use]
    pub fn may_fence(&self) -> bool {
        self.is_strict() && !self.has("cancel") && !self.has("drop")
    }

    /// Returns whether receives may use memory that the kernel cannot write.
    #[must_use]
    pub fn may_write_badly(&self) -> bool {
        self.has("bad-memory") && self.transport == "shm" && self.longest > 100_000 && !self.has("no-copies")
    }

    /// Formats the plan for [`read`](Self::read).
    #[must_use]
    pub fn write(&self) -> String {
        let kinds = self.kinds.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        format!(
            "{} {} {} {} {} {} {} {} {} {} {kinds}, {}",
            self.seed,
            self.transport,
            self.active.as_millis(),
            self.workers,
            self.endpoints,
            self.longest,
            self.cap,
            u8::from(self.threads),
            u8::from(self.shared),
            u8::from(self.sleepy),
            self.logs.display()
        )
    }

    /// Parses a plan that [`write`](Self::write) has formatted.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let mut words = text.splitn(12, ' ');
        let mut next = || words.next();
        Some(Self {
            seed: next()?.parse().ok()?,
            transport: next()?.to_owned(),
            active: Duration::from_millis(next()?.parse().ok()?),
            workers: next()?.parse().ok()?,
            endpoints: next()?.parse().ok()?,
            longest: next()?.parse().ok()?,
            cap: next()?.parse().ok()?,
            threads: next()? == "1",
            shared: next()? == "1",
            sleepy: next()? == "1",
            kinds: next()?.split(',').filter(|kind| !kind.is_empty()).map(str::to_owned).collect(),
            logs: next()?.into(),
        })
    }
}
