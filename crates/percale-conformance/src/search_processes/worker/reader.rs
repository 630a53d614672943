//! Reads the results of a worker's common queue, in the worker or in a separate thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use percale::{CompletionQueue, Entry, ErrorEntry};

type Report = Result<Entry, ErrorEntry>;

/// Removes all entries from a queue and returns them.
pub(super) fn read(queue: &CompletionQueue) -> Vec<Report> {
    let mut entries = [Entry::default(); 16];
    match queue.read(&mut entries) {
        Ok(count) => entries[..count].iter().map(|entry| Ok(*entry)).collect(),
        Err(_) => queue.read_error().into_iter().map(Err).collect(),
    }
}

/// A thread that waits for results. This also makes progress while the worker does other work.
#[derive(Debug)]
pub(super) struct Reader {
    results: Receiver<Report>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Reader {
    pub(super) fn start(queue: &CompletionQueue) -> Self {
        let ((sender, results), stop, queue) = (channel(), Arc::new(AtomicBool::new(false)), queue.clone());
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut entries = [Entry::default(); 16];
            while !stopped.load(Ordering::Relaxed) {
                let found: Vec<Report> = match queue.wait(&mut entries, Some(Duration::from_millis(5))) {
                    Ok(count) => entries[..count].iter().map(|entry| Ok(*entry)).collect(),
                    Err(_) => queue.read_error().into_iter().map(Err).collect(),
                };
                found.into_iter().for_each(|result| drop(sender.send(result)));
            }
        });
        Self { results, stop, thread }
    }

    pub(super) fn take(&self) -> Vec<Report> {
        self.results.try_iter().collect()
    }

    pub(super) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.thread.join());
    }
}
