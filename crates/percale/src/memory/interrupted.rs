//! System calls that a signal interrupts.

use rustix::io::Errno;

/// How often a call is made anew that is interrupted each time. Signals that come faster than that are not meant to end.
const MOST: u32 = 1000;

/// Makes a system call again while a signal interrupts it: for calls that change nothing when they are interrupted. One that is
/// interrupted for ever, as a sandbox may have it, fails in the end.
///
/// # Errors
/// What the call says.
#[inline(always)]
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
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
    fn a_call_is_made_again_until_it_says_something_else() {
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
