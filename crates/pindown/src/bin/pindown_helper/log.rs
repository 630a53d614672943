//! Messages on the standard error: for a person, or for the journal.
//!
//! If the journal is connected to the standard error (JOURNAL_STREAM, systemd.exec(5)), each line begins with its
//! priority in the form that the journal reads (sd-daemon(3)). `journalctl -p warning` then shows warnings and errors.
//!
//! While the helper serves clients, a separate thread writes the lines ([`Writer`]), because the reader of the standard
//! error may not read. The number of detailed messages is limited, because clients cause them.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::writer::Writer;

/// The maximum number of detailed messages in [`MINUTE`].
const DETAILED: u64 = 600;
const MINUTE: Duration = Duration::from_secs(60);
/// The maximum time to wait at the end of the program until the last lines are written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Writes events to the standard error, one line each.
#[derive(Debug)]
pub(crate) struct Log {
    is_journal: bool,
    most_detailed: Level,
    detailed: Mutex<Detailed>,
    /// Started with the first event. `None` if it cannot be started.
    writer: OnceLock<Option<Writer>>,
}

/// The detailed messages since the beginning of a minute.
#[derive(Debug)]
struct Detailed {
    began: Instant,
    count: u64,
}

impl Detailed {
    /// Counts a message. Returns whether to log it, and the number of messages that were left out in the minute that
    /// has ended with this message.
    fn add(&mut self, now: Instant) -> (bool, u64) {
        let mut left_out = 0;
        if now.duration_since(self.began) >= MINUTE {
            left_out = self.count.saturating_sub(DETAILED);
            *self = Self { began: now, count: 0 };
        }
        self.count += 1;
        (self.count <= DETAILED, left_out)
    }
}

impl Log {
    pub(crate) fn new() -> Self {
        let stream = std::env::var("JOURNAL_STREAM").ok();
        let is_journal = rustix::fs::fstat(std::io::stderr())
            .is_ok_and(|own| stream.is_some_and(|stream| stream == format!("{}:{}", own.st_dev, own.st_ino)));
        let detailed = Mutex::new(Detailed { began: Instant::now(), count: 0 });
        Self { is_journal, most_detailed: Level::INFO, detailed, writer: OnceLock::new() }
    }

    /// Receives the events of this program from now on.
    pub(crate) fn receive(mut self, is_verbose: bool) -> Arc<Self> {
        if is_verbose {
            self.most_detailed = Level::DEBUG;
        }
        let log = Arc::new(self);
        // This function is called once, so no other log receives events.
        tracing::subscriber::set_global_default(Arc::clone(&log)).ok();
        log
    }

    /// Writes an error, and waits until it is written.
    pub(crate) fn error(&self, message: &str) {
        write_now(&line(self.is_journal, Level::ERROR, message));
    }

    /// Waits until the events so far are written, for a limited time.
    pub(crate) fn finish(&self) {
        if let Some(Some(writer)) = self.writer.get() {
            writer.finish(LAST_LINES);
        }
    }

    /// Lets the thread write a message.
    ///
    /// The thread starts with the first event. The library logs none before it has blocked the signals that end the
    /// helper, except errors after which the program ends. So these signals are also blocked in the thread.
    fn add(&self, level: Level, message: &str) {
        let line = line(self.is_journal, level, message);
        match self.writer.get_or_init(|| self.start_writer().ok()) {
            Some(writer) => writer.add(line),
            None => write_now(&line),
        }
    }

    fn start_writer(&self) -> std::io::Result<Writer> {
        let is_journal = self.is_journal;
        // A separate descriptor, so that the thread does not hold the lock of `std::io::stderr`.
        let output = std::fs::File::from(std::io::stderr().as_fd().try_clone_to_owned()?);
        Writer::start(output, move |dropped| {
            let message = format!("{dropped} messages are missing here, because the standard error was not read");
            line(is_journal, Level::WARN, &message)
        })
    }
}

fn write_now(line: &str) {
    // There is no other place to report that this fails.
    std::io::stderr().write_all(line.as_bytes()).ok();
}

/// Formats one line.
fn line(is_journal: bool, level: Level, message: &str) -> String {
    let (priority, word) = match level {
        Level::ERROR => (3, "error: "),
        Level::WARN => (4, "warning: "),
        Level::INFO => (6, ""),
        _ => (7, ""),
    };
    let message = message.replace('\n', " ");
    // The journal shows the name of the program and colors the line by its priority.
    if is_journal { format!("<{priority}>{message}\n") } else { format!("pindown-helper: {word}{message}\n") }
}

/// Formats a text as a JSON string.
pub(crate) fn json_string(text: &str) -> String {
    let mut string = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => string.extend(['\\', character]),
            '\0'..' ' => write!(string, "\\u{:04x}", u32::from(character)).unwrap_or_default(),
            _ => string.push(character),
        }
    }
    string.push('"');
    string
}

/// The text of an event: its message, and its other fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
        written.unwrap_or_default();
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.most_detailed
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let level = *event.metadata().level();
        if level > Level::INFO {
            let mut detailed = self.detailed.lock().unwrap_or_else(PoisonError::into_inner);
            let (is_logged, left_out) = detailed.add(Instant::now());
            drop(detailed);
            if left_out > 0 {
                self.add(level, &format!("{left_out} more detailed messages in the minute before were not logged"));
            }
            if !is_logged {
                return;
            }
        }
        self.add(level, &(text.message + &text.fields));
    }

    // There are no spans.
    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_gets_priorities_and_a_person_gets_words() {
        let both = |level| [true, false].map(|is_journal| line(is_journal, level, "a\nb"));
        assert_eq!(both(Level::ERROR), ["<3>a b\n", "pindown-helper: error: a b\n"]);
        assert_eq!(both(Level::WARN), ["<4>a b\n", "pindown-helper: warning: a b\n"]);
        assert_eq!(both(Level::INFO), ["<6>a b\n", "pindown-helper: a b\n"]);
        assert_eq!(both(Level::DEBUG), ["<7>a b\n", "pindown-helper: a b\n"]);
    }

    #[test]
    fn detailed_messages_are_limited_and_counted() {
        let start = Instant::now();
        let mut detailed = Detailed { began: start, count: 0 };
        let logged = (0..DETAILED + 5).filter(|_| detailed.add(start + MINUTE / 2).0).count();
        assert_eq!(logged as u64, DETAILED);
        assert_eq!(detailed.add(start + MINUTE), (true, 5));
        assert_eq!(detailed.add(start + 2 * MINUTE), (true, 0));
    }

    #[test]
    fn json_strings_are_escaped() {
        assert_eq!(json_string("a \"b\" \\ \n é"), "\"a \\\"b\\\" \\\\ \\u000a é\"");
    }
}
