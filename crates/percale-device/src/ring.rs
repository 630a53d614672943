//! An io_uring for any number of threads. Each thread has one operation at a time and waits for it.
//!
//! Operations are pushed and submitted to the kernel under one lock, which no thread holds while it waits. One of the
//! waiting threads, the *leader*, sleeps in the kernel, reads the completions for all threads, and wakes up the others.
//! So a long operation, such as reading from a silent socket, does not block other threads.

#![expect(unsafe_code, reason = "the queues that are shared with the kernel; each block states its own reason")]

use std::collections::HashMap;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, squeue};

/// The capacity for operations that are pushed and not yet submitted. A capacity of one would be sufficient, because
/// each operation is pushed and submitted under one lock.
const PUSHED: u32 = 4;

/// The number of completions that fit in the ring before the kernel queues them internally.
const ANSWERS: u32 = 256;

/// The initial and the maximum time that a thread sleeps before it checks for its completion again, if it cannot wait
/// in the kernel. The error may persist, and the kernel uses the operation's memory until the completion arrives.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

/// The time for which the kernel may lack room for an operation (EAGAIN, EBUSY) before the ring counts as failed.
const NO_ROOM_TIMEOUT: Duration = Duration::from_secs(10);

/// The state of an operation that was submitted to the kernel.
#[derive(Clone, Copy, Debug)]
enum OperationState {
    UnderWay,
    /// The result has arrived, but the kernel still reads the memory.
    Answered(i32),
    Over(i32),
}

#[derive(Debug, Default)]
struct Operations {
    all: HashMap<u64, OperationState>,
    next: u64,
    /// Whether a thread, the leader, waits in the kernel.
    led: bool,
    /// The number of threads that wait for the leader.
    led_on: usize,
}

/// The state of the submission queue. The same lock protects this state and the queue.
#[derive(Debug)]
struct SubmissionState {
    /// Whether the ring can still be used. If not, nothing more is submitted.
    usable: bool,
    /// The number of operations that were pushed so far. The kernel takes them in this order.
    pushed: u64,
}

pub(super) struct IoRing {
    ring: IoUring,
    pushing: Mutex<SubmissionState>,
    operations: Mutex<Operations>,
    reported: Condvar,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl IoRing {
    /// # Errors
    /// The error that the kernel reports. io_uring may be forbidden.
    pub(super) fn new() -> io::Result<Self> {
        let ring = IoUring::builder().setup_cqsize(ANSWERS).build(PUSHED)?;
        Ok(Self {
            ring,
            pushing: Mutex::new(SubmissionState { usable: true, pushed: 0 }),
            operations: Mutex::default(),
            reported: Condvar::new(),
        })
    }

    /// Returns the submitter for registrations, which are separate system calls.
    pub(super) fn submitter(&self) -> io_uring::Submitter<'_> {
        self.ring.submitter()
    }

    /// Runs one operation, and returns when the kernel no longer uses its memory.
    ///
    /// # Errors
    /// The error with which the operation completed.
    ///
    /// # Safety
    /// The memory may be accessed as the operation describes until this function returns.
    pub(super) unsafe fn run(&self, operation: squeue::Entry) -> io::Result<u32> {
        let name = {
            let mut operations = locked(&self.operations);
            operations.next += 1;
            let name = operations.next;
            operations.all.insert(name, OperationState::UnderWay);
            name
        };
        // SAFETY: the caller guarantees the same.
        if let Err(error) = unsafe { self.push(&operation.user_data(name)) } {
            locked(&self.operations).all.remove(&name);
            return Err(error);
        }
        let result = self.wait(name);
        u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
    }

    /// Submits an operation to the kernel.
    ///
    /// # Errors
    /// If the kernel has not taken the operation, and will not take it.
    ///
    /// # Safety
    /// The memory may be accessed as the operation describes until the operation has completed.
    unsafe fn push(&self, operation: &squeue::Entry) -> io::Result<()> {
        let [mut pause, longest] = LOOK_AGAIN;
        let (deadline, mut number) = (Instant::now() + NO_ROOM_TIMEOUT, None);
        loop {
            let mut pushing = locked(&self.pushing);
            // Another thread may have submitted it in the meantime, even if that thread's own operation failed.
            if self.is_taken(&pushing, number) {
                return Ok(());
            }
            if !pushing.usable {
                return Err(io::Error::other("the ring failed before"));
            }
            // SAFETY: only one of these queues exists at a time, because of the lock. The caller guarantees that the
            // operation is valid.
            if number.is_none() && unsafe { self.push_one(operation) } {
                pushing.pushed += 1;
                number = Some(pushing.pushed);
            }
            let result = self.submit_all();
            if self.is_taken(&pushing, number) {
                return Ok(());
            }
            // The queue was full, but has room now.
            let Err(error) = result else { continue };
            let may_pass = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY));
            if !may_pass || Instant::now() > deadline {
                // Otherwise the kernel would take the pushed operation together with the next one, when the operation's
                // memory may be in use for something else.
                pushing.usable = false;
                return Err(error);
            }
            drop(pushing);
            std::thread::sleep(pause);
            pause = pause.saturating_mul(2).min(longest);
        }
    }

    /// Puts an operation into the queue. Returns false if the queue is full.
    ///
    /// # Safety
    /// The caller holds the lock, and the memory may be accessed as the operation describes until the operation has
    /// completed.
    unsafe fn push_one(&self, operation: &squeue::Entry) -> bool {
        // SAFETY: only one of these queues exists at a time, because of the lock.
        let mut queue = unsafe { self.ring.submission_shared() };
        // SAFETY: guaranteed by the caller.
        unsafe { queue.push(operation) }.is_ok()
    }

    /// Returns whether the kernel has taken the operation that was pushed with this number.
    fn is_taken(&self, pushing: &SubmissionState, number: Option<u64>) -> bool {
        // SAFETY: only one of these queues exists at a time, because of the lock. The caller holds the lock, because it
        // has the protected data, `pushing`.
        let left = unsafe { self.ring.submission_shared() }.len() as u64;
        number.is_some_and(|number| number + left <= pushing.pushed)
    }

    /// Submits everything that was pushed. The caller holds the lock.
    fn submit_all(&self) -> io::Result<()> {
        loop {
            let result = self.ring.submit();
            // SAFETY: only one of these queues exists at a time, because of the lock.
            if unsafe { self.ring.submission_shared() }.is_empty() {
                return Ok(());
            }
            match result {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    }

    /// Waits for the last completion of an operation that was submitted. Returns its result.
    fn wait(&self, name: u64) -> i32 {
        let [mut pause, longest] = LOOK_AGAIN;
        let mut operations = locked(&self.operations);
        loop {
            // Most operations complete in the call that submits them. But while another thread is the leader,
            // completions are left to it: the leader would not wake up if another thread took its completion.
            if !operations.led {
                self.read_completions(&mut operations);
            }
            if let Some(OperationState::Over(result)) = operations.all.get(&name) {
                let result = *result;
                operations.all.remove(&name);
                return result;
            }
            if operations.led {
                operations.led_on += 1;
                operations = self.reported.wait(operations).unwrap_or_else(PoisonError::into_inner);
                operations.led_on -= 1;
                continue;
            }
            operations.led = true;
            drop(operations);
            if let Err(error) = self.sleep()
                && error.kind() != io::ErrorKind::Interrupted
            {
                std::thread::sleep(pause);
                pause = pause.saturating_mul(2).min(longest);
            }
            operations = locked(&self.operations);
            operations.led = false;
            if operations.led_on > 0 {
                self.read_completions(&mut operations);
                self.reported.notify_all();
            }
        }
    }

    /// Waits in the kernel for a completion.
    fn sleep(&self) -> io::Result<()> {
        const WAIT: u32 = 1;
        // SAFETY: the call passes no memory to the kernel; it only waits for one completion.
        unsafe { self.submitter().enter::<libc::sigset_t>(0, 1, WAIT, None) }.map(drop)
    }

    /// Reads all available completions. It is called only while no other thread is the leader.
    fn read_completions(&self, operations: &mut Operations) {
        // SAFETY: only one of these queues exists at a time, because of the lock of the operations.
        let answers = unsafe { self.ring.completion_shared() };
        for answer in answers {
            if let Some(state) = operations.all.get_mut(&answer.user_data()) {
                *state = match *state {
                    // The bytes were sent before, directly from the memory, and the kernel no longer uses the memory.
                    OperationState::Answered(result) => OperationState::Over(result),
                    _ if cqueue::more(answer.flags()) => OperationState::Answered(answer.result()),
                    _ => OperationState::Over(answer.result()),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use io_uring::opcode::Nop;

    use super::*;

    /// Makes the kernel return EAGAIN for everything that this thread submits to a ring.
    fn lack_room() {
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let mut filter = [
            step(0x20, 0, 0, 0), // The number of the system call.
            step(0x15, 0, 1, libc::SYS_io_uring_enter as u32),
            step(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32),
            step(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
        // SAFETY: the kernel copies the program, which lives until the call returns.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) }, 0);
    }

    #[test]
    fn temporary_kernel_shortage_does_not_end_the_ring() {
        let Ok(ring) = IoRing::new() else {
            println!("skipped (io_uring): it is not allowed here");
            return;
        };
        // SAFETY: the operation has no memory.
        let run = || unsafe { ring.run(Nop::new().build()) };
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| {
                lack_room();
                run()
            });
            // The first thread has usually pushed its operation by now. This thread submits it together with its own.
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(run().unwrap(), 0);
            while !refused.is_finished() {
                assert_eq!(run().unwrap(), 0);
            }
            assert_eq!(refused.join().unwrap().unwrap(), 0);
        });
    }
}
