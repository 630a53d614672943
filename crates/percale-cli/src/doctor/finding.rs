//! The result of a check, and what mends it.

use std::io;

use serde::{Deserialize, Serialize};

/// Whether something works on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    /// It works.
    Works,
    /// It works with a restriction.
    Limited,
    /// It does not work.
    Missing,
    /// The machine does not have it, and percale works without it.
    Absent,
    /// It could not be checked.
    Unknown,
}

impl State {
    /// Returns whether something can be mended.
    pub(super) const fn is_problem(self) -> bool {
        matches!(self, Self::Limited | Self::Missing | Self::Unknown)
    }

    /// Returns the word for the table.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Works => "yes",
            Self::Limited => "partly",
            Self::Missing => "no",
            Self::Absent => "-",
            Self::Unknown => "?",
        }
    }
}

/// What mends a problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Remedy {
    /// What to do, as a sentence.
    pub(super) advice: String,
    /// The commands that do it, to be typed one after the other.
    pub(super) commands: Vec<String>,
}

impl Remedy {
    pub(super) fn new(advice: impl Into<String>, commands: impl IntoIterator<Item = String>) -> Self {
        Self { advice: advice.into(), commands: commands.into_iter().collect() }
    }
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Finding {
    /// The name of the check, which is in [`super::checks::CHECKS`].
    pub(super) check: String,
    pub(super) state: State,
    /// What was found: the properties of something that works, or the reason why it does not work.
    pub(super) detail: String,
    /// What mends it, if it is a problem.
    pub(super) remedy: Option<Remedy>,
    /// The check that found the cause of this problem. `None`: the cause is here.
    pub(super) cause: Option<String>,
}

impl Finding {
    fn new(check: &str, state: State, detail: impl Into<String>, remedy: Option<Remedy>) -> Self {
        Self { check: check.into(), state, detail: detail.into(), remedy, cause: None }
    }

    pub(super) fn works(check: &str, detail: impl Into<String>) -> Self {
        Self::new(check, State::Works, detail, None)
    }

    pub(super) fn absent(check: &str, detail: impl Into<String>) -> Self {
        Self::new(check, State::Absent, detail, None)
    }

    pub(super) fn limited(check: &str, detail: impl Into<String>, remedy: Remedy) -> Self {
        Self::new(check, State::Limited, detail, Some(remedy))
    }

    pub(super) fn missing(check: &str, detail: impl Into<String>, remedy: Remedy) -> Self {
        Self::new(check, State::Missing, detail, Some(remedy))
    }

    /// The result of a check that could not be made.
    pub(super) fn unknown(check: &str, detail: impl Into<String>, remedy: Remedy) -> Self {
        Self::new(check, State::Unknown, detail, Some(remedy))
    }

    /// Returns this problem with its cause in another check, which has the remedy.
    pub(super) fn because_of(self, cause: &str) -> Self {
        Self { cause: Some(cause.into()), remedy: None, ..self }
    }

    /// The result of a check whose failure has its cause, and its remedy, in another check.
    pub(super) fn dependent(check: &str, detail: impl Into<String>, cause: &str) -> Self {
        Self::new(check, State::Missing, detail, None).because_of(cause)
    }

    /// Returns whether this is a problem whose cause is here.
    pub(super) fn is_root(&self) -> bool {
        self.state.is_problem() && self.cause.is_none()
    }
}

/// A libfabric that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Library {
    /// The file, without symbolic links.
    pub(super) path: String,
    /// The version, such as 1.17. `None` if the library cannot be loaded.
    pub(super) version: Option<String>,
    /// Whether it offers the provider percale to its programs.
    pub(super) sees_provider: bool,
    /// Whether a program that names no directory gets this one.
    pub(super) is_default: bool,
    /// Why it cannot be used.
    pub(super) error: Option<String>,
}

/// What a process that makes checks writes to its parent. Each is one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ProbeLine {
    Finding(Finding),
    Library(Library),
    /// The process is about to make a system call. If the call ends the process, this is the last line.
    Trying(String),
    /// The system rejected the call, although its kernel has it.
    Denied(String),
    /// An error ended the checks. The checks that have no finding could not be made.
    Failed(String),
    Done,
}

/// Where the checks of a process write their lines.
pub(super) type Report<'a> = &'a mut dyn FnMut(ProbeLine) -> io::Result<()>;
