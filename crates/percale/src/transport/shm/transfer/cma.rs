//! Cross-memory attach: the kernel copies between two processes. An address that is not there is an error, not a signal.
//!
//! A copy goes to the address space that was opened when the connection was made, also when the peer's process id has become another's:
//! * Reads go by process id (process_vm_readv), and read in the same system call the word that the peer named when the connection was made:
//!   a random one, in a page that forked children do not have. If it is not there, the memory was another's, and what was read counts
//!   for nothing.
//! * Writes go by process id (process_vm_writev) behind the same word, which the same system call sets to the value that it has: in another
//!   address space that word's page is not there, because its address is random and children do not have it, so the kernel stops before
//!   it writes anything. A peer that names a word where another process has memory gains nothing by its end: before each write the
//!   pidfd tells whether the process id is still the peer's.
//!
//! Copies through the file (`/proc/PID/mem`, held open) need no word. They reach memory also that the peer itself may not write or read,
//! which has to be an error, so they are the way only where copies by process id are forbidden.
//!
//! Medians of a write, in ns, for 4 KiB, 64 KiB and 1 MiB (Linux 6.18, 2 idle cores): 1,382, 9,000 and 139,000 through the file; 1,672,
//! 6,100 and 81,300 by process id alone; 2,550, 7,080 and 83,200 as here, with the pidfd and the word; 3,190, 7,600 and 84,300 if the word
//! is read through the file before, instead of asking the pidfd.

#![expect(unsafe_code, reason = "copies between processes; each block states its own reason")]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::memory::kernel::{self, Direction};
use crate::memory::volatile::{IOV_LIMIT, Segment, Segments};
use crate::transport::peer_process::PeerProcess;

/// A peer whose memory can be read and written.
#[derive(Clone, Debug)]
pub(in super::super) struct Cma(Arc<Peer>);

#[derive(Debug)]
struct Peer {
    process: Arc<PeerProcess>,
    /// The address of a word in the peer, and its value.
    proof: (u64, u64),
    /// process_vm_readv is not allowed.
    by_file: AtomicBool,
    /// The kernel refused to copy in either way, though it did before.
    refused: AtomicBool,
}

/// Why the kernel did not copy, or not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum NoCopy {
    /// Memory is missing, on either side.
    Fault,
    /// The peer's process has ended, or executes another program.
    Ended,
    /// It may not copy any more. The bytes have to go another way.
    Refused,
}

impl Cma {
    /// Tries whether the process can be read and is the one that holds this word at this address.
    ///
    /// # Errors
    /// Why not, in words.
    pub(in super::super) fn probe(process: Arc<PeerProcess>, proof: (u64, u64)) -> Result<Self, String> {
        let pid = process.pid();
        let space = process
            .space()
            .map_err(|error| format!("/proc/{pid}/mem: {error} (ptrace restrictions or a container?)"))?;
        let mut word = [0_u8; 8];
        let local = [libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: word.len() }];
        // SAFETY: the word is this call's own.
        match unsafe { kernel::through(space, Direction::Read, &local, proof.0) } {
            Ok(8) if u64::from_ne_bytes(word) == proof.1 => {}
            Ok(_) => return Err(format!("process {pid} is not the peer (another process-id namespace?)")),
            Err(error) => return Err(format!("/proc/{pid}/mem: {error}")),
        }
        // Another process-id namespace may have been mounted at /proc; and the call may be forbidden.
        let by_file = kernel::word_at(pid, proof.0).ok() != Some(proof.1);
        Ok(Self(Arc::new(Peer { process, proof, by_file: by_file.into(), refused: false.into() })))
    }

    /// Whether the kernel copied whenever it was asked.
    #[inline]
    pub(in super::super) fn is_allowed(&self) -> bool {
        !self.0.refused.load(Ordering::Relaxed)
    }

    /// Copies all of `local` from or to the peer's memory at `remote`.
    pub(in super::super) fn copy(&self, direction: Direction, local: &Segments, remote: u64) -> Result<(), NoCopy> {
        if !self.is_allowed() {
            return Err(NoCopy::Refused);
        }
        match direction {
            Direction::Read if self.read_by_number(local, remote)? => return Ok(()),
            Direction::Write if self.write_by_number(local, remote)? => return Ok(()),
            _ => {}
        }
        let mut done = 0;
        while done < local.len() {
            let rest = local.slice(done, usize::MAX);
            let (vectors, count) = vectors(&rest, 0);
            done += self.through(direction, &vectors[..count], remote.wrapping_add(done as u64))?;
        }
        Ok(())
    }

    /// As [`copy`](Self::copy), of one segment.
    #[inline]
    pub(in super::super) fn copy_one(&self, direction: Direction, local: Segment, remote: u64) -> Result<(), NoCopy> {
        self.copy(direction, &Segments::one(local), remote)
    }

    /// Reads all of it by process id, and the proof that it was the peer's. False if that is not allowed.
    fn read_by_number(&self, local: &Segments, remote: u64) -> Result<bool, NoCopy> {
        let peer = &*self.0;
        if peer.by_file.load(Ordering::Relaxed) || local.is_empty() {
            return Ok(local.is_empty());
        }
        let (mut vectors, count) = vectors(local, 0);
        let theirs = libc::iovec { iov_base: std::ptr::without_provenance_mut(remote as usize), iov_len: local.len() };
        loop {
            // SAFETY: the segments were lent for this, and the peer, even one in this process, has named its memory for this.
            let read =
                unsafe { kernel::read_with_proof(peer.process.pid(), &mut vectors[..=count], theirs, peer.proof) };
            return match read.map_err(|error| (error.raw_os_error(), error)) {
                Ok(true) => Ok(true),
                // Some memory is not there: the peer's, unless it has ended, or ours.
                Ok(false) | Err((Some(libc::EFAULT), _)) => self.is_proved().and(Err(NoCopy::Fault)),
                Err((Some(libc::EINTR), _)) => continue,
                Err((Some(libc::ESRCH), _)) => Err(NoCopy::Ended),
                Err((_, error)) => {
                    crate::later::later!(debug: %error, "process_vm_readv is not allowed any more");
                    peer.by_file.store(true, Ordering::Relaxed);
                    Ok(false)
                }
            };
        }
    }

    /// Writes all of it by process id, behind the word that only the peer has. False if that is not allowed.
    fn write_by_number(&self, local: &Segments, remote: u64) -> Result<bool, NoCopy> {
        let peer = &*self.0;
        if peer.by_file.load(Ordering::Relaxed) || local.is_empty() {
            return Ok(local.is_empty());
        }
        if peer.process.is_reaped() {
            return Err(NoCopy::Ended);
        }
        let (mut vectors, count) = vectors(local, 1);
        let vectors = &mut vectors[..=count];
        let theirs = libc::iovec { iov_base: std::ptr::without_provenance_mut(remote as usize), iov_len: local.len() };
        loop {
            // SAFETY: the segments were lent for this, and the peer, even one in this process, has named its memory for this.
            return match unsafe { kernel::write_behind_word(peer.process.pid(), vectors, theirs, peer.proof) } {
                Ok(Some(written)) if written == local.len() => Ok(true),
                Ok(Some(_)) => Err(NoCopy::Fault),
                Ok(None) => Err(NoCopy::Ended),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => continue,
                    Some(libc::ESRCH) => Err(NoCopy::Ended),
                    // The word is not there, so neither is the peer; or our own memory is not.
                    Some(libc::EFAULT) => self.is_proved().and(Err(NoCopy::Fault)),
                    _ => {
                        crate::later::later!(debug: %error, "process_vm_writev is not allowed any more");
                        peer.by_file.store(true, Ordering::Relaxed);
                        Ok(false)
                    }
                },
            };
        }
    }

    /// Whether the process id still leads to the address space that has the word; then it did so before. (The held address space outlives
    /// its process while anybody copies from it, and does not answer this.)
    fn is_proved(&self) -> Result<(), NoCopy> {
        let (pid, proof) = (self.0.process.pid(), self.0.proof);
        loop {
            return match kernel::word_at(pid, proof.0).map_err(|error| (error.raw_os_error(), error)) {
                Ok(word) if word == proof.1 => Ok(()),
                Ok(_) | Err((Some(libc::EFAULT | libc::ESRCH), _)) => Err(NoCopy::Ended),
                Err((Some(libc::EINTR), _)) => continue,
                Err((_, error)) => {
                    self.refuse(&error);
                    Err(NoCopy::Refused)
                }
            };
        }
    }

    /// One system call through the file.
    fn through(&self, direction: Direction, local: &[libc::iovec], remote: u64) -> Result<usize, NoCopy> {
        let space = self.0.process.space().map_err(|_| NoCopy::Refused)?;
        loop {
            // SAFETY: the segments were lent for this, and the peer, even one in this process, has named its memory for this.
            match unsafe { kernel::through(space, direction, local, remote) } {
                Ok(0) => return Err(NoCopy::Ended),
                Ok(copied) => return Ok(copied),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN) => {}
                    Some(libc::EIO | libc::EFAULT | libc::EINVAL) => return Err(NoCopy::Fault),
                    _ => {
                        self.refuse(&error);
                        return Err(NoCopy::Refused);
                    }
                },
            }
        }
    }

    #[cold]
    fn refuse(&self, error: &io::Error) {
        crate::later::later!(warn: %error, "the kernel copies to and from a peer no more: its data goes through the ring");
        self.0.refused.store(true, Ordering::Relaxed);
    }

    /// For tests: as if the kernel refused from now on.
    #[cfg(all(test, not(loom)))]
    pub(in super::super) fn forbid(&self) {
        self.0.refused.store(true, Ordering::Relaxed);
    }
}

/// The segments as the kernel takes them, from index `first` (0 or 1) on: with room for one more, behind them or before. And how many
/// they are.
fn vectors(segments: &Segments, first: usize) -> ([libc::iovec; IOV_LIMIT + 1], usize) {
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; IOV_LIMIT + 1];
    for (into, piece) in vectors[first..].iter_mut().zip(segments.as_slice()) {
        *into = libc::iovec { iov_base: piece.as_ptr().cast(), iov_len: piece.len() };
    }
    (vectors, segments.as_slice().len())
}

#[cfg(all(test, not(loom)))]
#[path = "cma_tests.rs"]
mod tests;
