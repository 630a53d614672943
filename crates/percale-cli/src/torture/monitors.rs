//! The tested monitors, as data. To add one, add an entry to [`ALL`].

use clap::builder::{PossibleValue, PossibleValuesParser};
use pindown::monitor::Choice;
use pindown::monitor::imported::Notifier;
use pindown::monitor::userfaultfd::{Settings, Unseen};
use pindown::{Cache, Range};

use super::oracle::Oracle;

/// A monitor.
pub(super) struct Monitor {
    pub(super) name: &'static str,
    /// Returns the choice of monitor for the cache.
    choice: fn() -> std::io::Result<Watching>,
    /// Whether each pair of memory and operation needs a separate process. This is the case if the monitor may
    /// permanently stop keeping registrations of an address after one change of its memory.
    pub(super) alone: bool,
    /// The documented limits of the monitor, by names of operations.
    exceptions: &'static [(&'static str, &'static str)],
    /// Whether the monitor is broken intentionally, to test that its errors are detected.
    pub(super) broken: bool,
}

/// A monitor in use.
struct Watching {
    choice: Choice,
    /// A notifier that reports each change before it happens.
    early: Option<Notifier>,
}

impl From<Choice> for Watching {
    fn from(choice: Choice) -> Self {
        Self { choice, early: None }
    }
}

const RIGHTS: (&str, &str) = ("mprotect", "registrations keep rights that the process lost, unless hits check them");
const GUARDS: (&str, &str) = ("GUARD_INSTALL", "the program promised not to install guard pages");
const SEGMENTS: (&str, &str) = ("SHM_REMAP", "the program promised not to attach segments over other memory");
const UNLOCKED: (&str, &str) = ("munlock", "the program promised not to unlock memory, which would permit guard pages");

/// All monitors.
pub(super) const ALL: &[Monitor] = &[
    sound("none", || Ok(Choice::None.into()), false, &[]),
    sound("sealed", || Ok(Choice::Sealed.into()), false, &[]),
    sound("bpf", || Ok(Choice::Bpf.into()), false, &[]),
    sound("userfaultfd", || Ok(Choice::Userfaultfd(Unseen::Possible.into()).into()), true, &[RIGHTS]),
    sound(
        "userfaultfd-promised",
        || Ok(Choice::Userfaultfd(Unseen::NeverMade.into()).into()),
        true,
        &[RIGHTS, GUARDS, SEGMENTS],
    ),
    sound(
        "userfaultfd-rights",
        || Ok(Choice::Userfaultfd(Settings::new(Unseen::NeverMade).check_rights()).into()),
        true,
        &[GUARDS, SEGMENTS],
    ),
    // The behavior before Linux 6.7.
    sound(
        "userfaultfd-plain",
        || Ok(Choice::Userfaultfd(Settings::new(Unseen::NeverMade).plain()).into()),
        true,
        &[RIGHTS, GUARDS, SEGMENTS],
    ),
    sound(
        "userfaultfd-locked",
        || Ok(Choice::Userfaultfd(Settings::new(Unseen::GuardsRefused).check_rights()).into()),
        true,
        &[SEGMENTS, UNLOCKED],
    ),
    // Reports no changes.
    broken("broken-silent", || Ok(Choice::Imported(Notifier::new(|_, _| true)?.1).into())),
    // Reports changes when they begin, but not when they end.
    broken("broken-early", || {
        let (notifier, imported) = Notifier::new(|_, _| true)?;
        Ok(Watching { choice: Choice::Imported(imported), early: Some(notifier) })
    }),
];

const fn sound(
    name: &'static str,
    choice: fn() -> std::io::Result<Watching>,
    alone: bool,
    exceptions: &'static [(&'static str, &'static str)],
) -> Monitor {
    Monitor { name, choice, alone, exceptions, broken: false }
}

const fn broken(name: &'static str, choice: fn() -> std::io::Result<Watching>) -> Monitor {
    Monitor { name, choice, alone: false, exceptions: &[], broken: true }
}

/// A cache under test.
pub(super) struct TestedCache {
    pub(super) cache: Cache<Oracle>,
    early: Option<Notifier>,
}

impl TestedCache {
    /// Must be called before a change at these addresses. Only one of the broken monitors reports the change at this
    /// time.
    pub(super) fn about_to_change(&self, range: Range) {
        if let Some(notifier) = &self.early {
            notifier.changed(range);
        }
    }
}

/// Returns the choice that opens a cache with the monitor of this name.
pub(crate) fn choice(name: &str) -> Option<std::io::Result<Choice>> {
    Monitor::named(name).map(|monitor| (monitor.choice)().map(|watching| watching.choice))
}

/// Returns a parser for the names of the monitors.
pub(super) fn names() -> PossibleValuesParser {
    ALL.iter().map(|monitor| PossibleValue::new(monitor.name).hide(monitor.broken)).into()
}

impl Monitor {
    /// Returns the monitor of this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|monitor| monitor.name == name)
    }

    /// Opens a cache with this monitor, with at most `most` registrations.
    ///
    /// # Errors
    /// Returns the reason why the monitor is not available here.
    pub(super) fn open(&self, oracle: Oracle, most: u32, merging: bool) -> Result<TestedCache, String> {
        let Watching { choice, early } = (self.choice)().map_err(|error| error.to_string())?;
        let builder = Cache::builder(oracle).monitor(choice).max_count(most).merging(merging);
        let cache = builder.open().map_err(|error| error.to_string())?;
        Ok(TestedCache { cache, early })
    }

    /// Returns the documented reason why this operation may fail.
    pub(super) fn exception(&self, operation: &str) -> Option<&'static str> {
        let applies = |(part, _): &&(&str, &str)| operation.contains(part);
        self.exceptions.iter().find(applies).map(|(_, why)| *why)
    }
}
