//! Descriptors with which threads of this process wake each other up, and with which peers wake up this process. They
//! are eventfds or, if none is available, pipes.
//!
//! A pipe wakes up only threads of this process, because only eventfds are passed to peers.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::call::call;
use super::interrupted::uninterrupted;

/// A descriptor that is readable from [`signal`](Self::signal) to [`clear`](Self::clear). Neither of them blocks.
#[derive(Debug)]
pub struct EventDescriptor {
    read: OwnedFd,
    /// The write end, if this is a pipe.
    write: Option<OwnedFd>,
}

impl EventDescriptor {
    /// Creates a descriptor that is not readable.
    ///
    /// # Errors
    /// If the system provides neither an eventfd nor a pipe. The error is that of the eventfd.
    pub fn new() -> io::Result<Self> {
        match Self::eventfd() {
            Ok(event) => Ok(event),
            Err(error) => match uninterrupted(|| pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)) {
                Ok((read, write)) => Ok(Self { read, write: Some(write) }),
                Err(_) => Err(error),
            },
        }
    }

    /// Creates a descriptor that can be passed to peers.
    ///
    /// # Errors
    /// If the system provides no eventfd.
    pub fn eventfd() -> io::Result<Self> {
        let read = call("eventfd2", || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))?;
        Ok(Self { read, write: None })
    }

    /// Wraps the eventfd of a peer.
    #[inline]
    pub const fn of_peer(event: OwnedFd) -> Self {
        Self { read: event, write: None }
    }

    /// Returns whether the descriptor can be passed to peers.
    #[inline]
    pub const fn is_eventfd(&self) -> bool {
        self.write.is_none()
    }

    /// Returns the descriptor that is written to.
    #[inline]
    pub fn writer(&self) -> &OwnedFd {
        self.write.as_ref().unwrap_or(&self.read)
    }

    /// Makes the descriptor readable.
    ///
    /// # Errors
    /// The error of `write`.
    pub fn signal(&self) -> rustix::io::Result<()> {
        let one = 1_u64.to_ne_bytes();
        match uninterrupted(|| rustix::io::write(self.writer(), &one)) {
            // The counter is full, so the descriptor is readable already.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            // write(2) is refused. writev(2) has the same effect.
            Err(error) => match uninterrupted(|| rustix::io::writev(self.writer(), &[IoSlice::new(&one)])) {
                Ok(_) | Err(Errno::AGAIN) => Ok(()),
                Err(_) => Err(error),
            },
        }
    }

    /// Makes the descriptor unreadable again.
    ///
    /// # Errors
    /// The error of `read`.
    pub fn clear(&self) -> rustix::io::Result<()> {
        loop {
            match uninterrupted(|| rustix::io::read(&self.read, &mut [0_u8; 8])) {
                // One read empties an eventfd.
                Ok(read) if read > 0 && self.write.is_some() => {}
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(error) => {
                    let mut word = [0_u8; 8];
                    let again = uninterrupted(|| rustix::io::readv(&self.read, &mut [IoSliceMut::new(&mut word)]));
                    match again {
                        Ok(read) if read > 0 && self.write.is_some() => {}
                        Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                        Err(_) => return Err(error),
                    }
                }
            }
        }
    }
}

impl AsFd for EventDescriptor {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn both_kinds_are_readable_between_signal_and_clear() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        for event in [EventDescriptor::new().unwrap(), EventDescriptor { read, write: Some(write) }] {
            let is_readable =
                || poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1;
            assert!(!is_readable());
            for _ in 0..3 {
                event.signal().unwrap();
                event.signal().unwrap();
                assert!(is_readable());
                event.clear().unwrap();
                assert!(!is_readable());
                event.clear().unwrap();
            }
        }
    }
}
