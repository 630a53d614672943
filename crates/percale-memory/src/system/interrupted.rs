//! Repetition of system calls that a signal interrupts.

use rustix::io::Errno;

/// The maximum number of repetitions of a call that is interrupted each time. If signals arrive faster than that, they
/// are not expected to stop.
const MOST: u32 = 1000;

/// Makes a system call, and repeats it while a signal interrupts it. It is only for calls that do not change anything
/// when they are interrupted. A call that is always interrupted, for example in a sandbox, fails in the end.
///
/// # Errors
/// The error of the call.
#[inline(always)]
pub fn uninterrupted<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    for _ in 0..MOST {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
    call()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_is_retried_until_not_interrupted() {
        for (interrupted, last) in [(0, Ok(7)), (5, Ok(7)), (5, Err(Errno::NOSPC)), (u32::MAX, Err(Errno::INTR))] {
            let mut left = interrupted;
            let result = uninterrupted(|| {
                if left == 0 {
                    return last;
                }
                left -= 1;
                Err(Errno::INTR)
            });
            assert_eq!(result, last);
        }
    }
}
