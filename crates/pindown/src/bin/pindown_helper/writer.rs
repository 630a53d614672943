//! A thread that writes lines, so that the helper never waits for the reader of its log: a pipe, a terminal or a disk.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

/// The maximum number of lines that wait.
const LINES: usize = 256;

enum Request {
    Line(String),
    /// Asks for an answer once all lines before it are written.
    Finish(SyncSender<()>),
}

/// Writes lines in their order. Lines for which there is no room are dropped and counted.
#[derive(Debug)]
pub(crate) struct Writer {
    queue: SyncSender<Request>,
    dropped: Arc<AtomicU64>,
}

impl Writer {
    /// Starts the thread. `missing` returns the line that replaces a number of dropped lines.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(
        mut output: impl Write + Send + 'static,
        missing: impl Fn(u64) -> String + Send + 'static,
    ) -> io::Result<Self> {
        let (queue, requests) = sync_channel(LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&dropped);
        let run = move || {
            for request in requests {
                match request {
                    // There is no other place to report that this fails.
                    Request::Line(line) => output.write_all(line.as_bytes()).unwrap_or_default(),
                    Request::Finish(answer) => answer.send(()).unwrap_or_default(),
                }
                let dropped = counted.swap(0, Ordering::Relaxed);
                if dropped > 0 {
                    output.write_all(missing(dropped).as_bytes()).unwrap_or_default();
                }
            }
        };
        Builder::new().name("pindown-log".into()).spawn(run)?;
        Ok(Self { queue, dropped })
    }

    /// Adds a line, or drops it if there is no room. Never waits.
    pub(crate) fn add(&self, line: String) {
        if self.queue.try_send(Request::Line(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until the lines that were added are written, or until the time has passed.
    pub(crate) fn finish(&self, wait: Duration) {
        let deadline = Instant::now() + wait;
        let (answer, answered) = sync_channel(1);
        let mut request = Request::Finish(answer);
        while let Err(TrySendError::Full(full)) = self.queue.try_send(request) {
            if Instant::now() >= deadline {
                return;
            }
            request = full;
            thread::sleep(Duration::from_millis(5));
        }
        // If the time has passed, the remaining lines are lost.
        answered.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// Blocks until the other end of `opened` is dropped, as a pipe that is not read.
    struct Blocked {
        opened: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Blocked {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.opened.recv().unwrap_or_default();
            self.written.lock().expect("no panic").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_are_not_read_are_dropped_and_counted() {
        let (open, opened) = channel();
        let written = Arc::new(Mutex::new(Vec::new()));
        let output = Blocked { opened, written: Arc::clone(&written) };
        let writer = Writer::start(output, |dropped| format!("{dropped} missing\n")).expect("a thread");
        let count = 2 * LINES;
        for number in 0..count {
            writer.add(format!("line {number}\n"));
        }
        writer.finish(Duration::from_millis(50));
        assert!(written.lock().expect("no panic").is_empty(), "the helper waits for no reader");
        drop(open);
        writer.finish(Duration::from_secs(10));
        let text = String::from_utf8(written.lock().expect("no panic").clone()).expect("lines");
        let lines = text.lines().filter(|line| line.starts_with("line ")).count();
        let missing: Vec<usize> = text.lines().filter_map(|line| line.strip_suffix(" missing")?.parse().ok()).collect();
        assert!(lines >= LINES && missing.len() == 1, "{text}");
        assert_eq!(lines + missing[0], count);
    }

    #[test]
    fn lines_are_written_before_the_end() {
        let (reader, output) = io::pipe().expect("a pipe");
        let writer = Writer::start(output, |_| String::new()).expect("a thread");
        writer.add("one\n".into());
        writer.add("two\n".into());
        writer.finish(Duration::from_secs(10));
        drop(writer);
        assert_eq!(io::read_to_string(reader).expect("the output"), "one\ntwo\n");
    }
}
