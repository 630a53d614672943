//! Messages on the standard error: for a person, or for the journal.
//!
//! If the journal is connected to the standard error (JOURNAL_STREAM, systemd.exec(5)), each line begins with its
//! priority in the form that the journal reads (sd-daemon(3)). `journalctl -p warning` then shows warnings and errors.

use std::fmt::{self, Write as _};
use std::io::Write as _;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Writes events to the standard error, one line each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    is_journal: bool,
    most_detailed: Level,
}

impl Log {
    pub(crate) fn new() -> Self {
        let stream = std::env::var("JOURNAL_STREAM").ok();
        let is_journal = rustix::fs::fstat(std::io::stderr())
            .is_ok_and(|own| stream.is_some_and(|stream| stream == format!("{}:{}", own.st_dev, own.st_ino)));
        Self { is_journal, most_detailed: Level::INFO }
    }

    /// Receives the events of this program from now on.
    pub(crate) fn receive(mut self, is_verbose: bool) {
        if is_verbose {
            self.most_detailed = Level::DEBUG;
        }
        // This function is called once, so no other log receives events.
        tracing::subscriber::set_global_default(self).ok();
    }

    /// Writes an error.
    pub(crate) fn error(&self, message: &str) {
        self.write(Level::ERROR, message);
    }

    fn write(&self, level: Level, message: &str) {
        // There is no other place to report that this fails.
        std::io::stderr().write_all(line(self.is_journal, level, message).as_bytes()).ok();
    }
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
        self.write(*event.metadata().level(), &(text.message + &text.fields));
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
    fn json_strings_are_escaped() {
        assert_eq!(json_string("a \"b\" \\ \n é"), "\"a \\\"b\\\" \\\\ \\u000a é\"");
    }
}
