//! Threads that read, write and hash, so that the transferring thread only transfers.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use super::blocks::PIECE;
use crate::failure::{Failure, Result};

/// A thread pool. Its threads end after the pool is dropped and all jobs are done.
#[derive(Debug)]
pub(crate) struct Pool<J> {
    jobs: Sender<J>,
}

impl<J: Send + 'static> Pool<J> {
    /// Starts one thread per processor, but at least 2 and at most `most`. Each job gets scratch memory.
    ///
    /// # Errors
    /// Fails if the system does not create a thread.
    pub(crate) fn start(most: usize, work: impl Fn(J, &mut [u8]) + Clone + Send + 'static) -> Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, most);
        for _ in 0..threads {
            let (queue, work) = (Arc::clone(&queue), work.clone());
            let thread = std::thread::Builder::new().name("percale-disk".into());
            thread.spawn(move || run(&queue, &work)).map_err(Failure::system("starting a thread"))?;
        }
        Ok(Self { jobs })
    }

    /// Passes a job to the next idle thread.
    pub(crate) fn give(&self, job: J) {
        // The threads outlive the pool, so the channel is open.
        let _given: Result<(), mpsc::SendError<J>> = self.jobs.send(job);
    }
}

fn run<J>(queue: &Mutex<Receiver<J>>, work: &impl Fn(J, &mut [u8])) {
    let mut scratch = vec![0; PIECE];
    loop {
        // This is a separate statement, so that the lock is released before the job is executed.
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        work(job, &mut scratch);
    }
}
