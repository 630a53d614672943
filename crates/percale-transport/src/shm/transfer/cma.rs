//! Cross-memory attach: the kernel copies between two processes. An address that is not mapped is an error, not a
//! signal.
//!
//! A copy reaches only the address space that was opened when the connection was set up, even if the peer's process id
//! has been reused by another process:
//! * Reads use the process id (process_vm_readv). The same system call reads the word that the peer named when the
//!   connection was set up. It is a random value, in a page that forked children do not have. If the word is not there,
//!   the memory was that of another process, and the data is discarded.
//! * Writes use the process id (process_vm_writev). The same system call first writes the word, with the value that it
//!   already has. In another address space the page of the word does not exist, because its address is random and
//!   children do not have it, so the kernel stops before it writes anything. A peer could name an address where another
//!   process has memory, and then exit. To prevent this, the pidfd is checked before each write: it shows whether the
//!   process id still belongs to the peer.
//!
//! Copies through the file (`/proc/PID/mem`, held open) do not need the word. They also reach memory that the peer
//! itself may not write or read. Such accesses have to fail, so the file is used only where copies by process id are
//! forbidden.
//!
//! Medians of a write of 4 KiB, 64 KiB and 1 MiB, in ns (Linux 6.18, 2 idle cores): 1,382, 9,000 and 139,000 through
//! the file; 1,672, 6,100 and 81,300 by process id alone; 2,550, 7,080 and 83,200 as implemented here, with the pidfd
//! and the word; 3,190, 7,600 and 84,300 if the word is read through the file first, instead of checking the pidfd.

#![expect(unsafe_code, reason = "copies between processes; each block states its own reason")]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::local_memory::kernel::{self, Direction};
use crate::local_memory::volatile::{IOV_LIMIT, Segment, Segments};
use crate::peer_process::PeerProcess;

/// A peer process with memory that can be read and written by system calls.
#[derive(Clone, Debug)]
pub(in super::super) struct Cma(Arc<Peer>);

#[derive(Debug)]
struct Peer {
    process: Arc<PeerProcess>,
    /// The address of a word in the peer, and its value.
    proof: (u64, u64),
    /// Whether copies by process id are not allowed.
    by_file: AtomicBool,
    /// Whether the kernel has refused to copy in both ways, although it allowed copies before.
    refused: AtomicBool,
}

/// The reason why the kernel copied nothing or only a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum NoCopy {
    /// A page of the memory is missing, on either side.
    Fault,
    /// The peer's process has ended, or executes another program.
    Ended,
    /// The kernel no longer allows copies. The bytes have to be sent in another way.
    Refused,
}

impl Cma {
    /// Checks that the memory of the process can be read, and that it contains this word at this address.
    ///
    /// # Errors
    /// The reason as text.
    pub(in super::super) fn probe(process: Arc<PeerProcess>, proof: (u64, u64)) -> Result<Self, String> {
        let pid = process.pid();
        let space = process
            .space()
            .map_err(|error| format!("/proc/{pid}/mem: {error} (ptrace restrictions or a container?)"))?;
        let mut word = [0_u8; 8];
        let local = [libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: word.len() }];
        // SAFETY: the word is a local variable of this call.
        match unsafe { kernel::through(space, Direction::Read, &local, proof.0) } {
            Ok(8) if u64::from_ne_bytes(word) == proof.1 => {}
            Ok(_) => return Err(format!("process {pid} is not the peer (another process-id namespace?)")),
            Err(error) => return Err(format!("/proc/{pid}/mem: {error}")),
        }
        // Another process-id namespace may be mounted at /proc, or the call may be forbidden.
        let by_file = kernel::word_at(pid, proof.0).ok() != Some(proof.1);
        Ok(Self(Arc::new(Peer { process, proof, by_file: by_file.into(), refused: false.into() })))
    }

    /// Returns whether the kernel has never refused to copy.
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

    /// Like [`copy`](Self::copy), for one segment.
    #[inline]
    pub(in super::super) fn copy_one(&self, direction: Direction, local: Segment, remote: u64) -> Result<(), NoCopy> {
        self.copy(direction, &Segments::one(local), remote)
    }

    /// Reads everything by process id, together with the word that proves that the memory is the peer's. Returns false
    /// if that is not allowed.
    fn read_by_number(&self, local: &Segments, remote: u64) -> Result<bool, NoCopy> {
        let peer = &*self.0;
        if peer.by_file.load(Ordering::Relaxed) || local.is_empty() {
            return Ok(local.is_empty());
        }
        let (mut vectors, count) = vectors(local, 0);
        let theirs = libc::iovec { iov_base: std::ptr::without_provenance_mut(remote as usize), iov_len: local.len() };
        loop {
            // SAFETY: the segments were lent for this, and the peer, even if it is in this process, has named its
            // memory for this.
            let read =
                unsafe { kernel::read_with_proof(peer.process.pid(), &mut vectors[..=count], theirs, peer.proof) };
            return match read.map_err(|error| (error.raw_os_error(), error)) {
                Ok(true) => Ok(true),
                // Some memory is missing, either local memory or memory of the peer. If the peer has ended, this is
                // `Ended`.
                Ok(false) | Err((Some(libc::EFAULT), _)) => self.is_proved().and(Err(NoCopy::Fault)),
                Err((Some(libc::EINTR), _)) => continue,
                Err((Some(libc::ESRCH), _)) => Err(NoCopy::Ended),
                Err((_, error)) => {
                    crate::later::later!(debug: %error, "process_vm_readv is no longer allowed");
                    peer.by_file.store(true, Ordering::Relaxed);
                    Ok(false)
                }
            };
        }
    }

    /// Writes everything by process id, after the word that only the peer has. Returns false if that is not allowed.
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
            // SAFETY: the segments were lent for this, and the peer, even if it is in this process, has named its
            // memory for this.
            return match unsafe { kernel::write_guarded_by_word(peer.process.pid(), vectors, theirs, peer.proof) } {
                Ok(Some(written)) if written == local.len() => Ok(true),
                Ok(Some(_)) => Err(NoCopy::Fault),
                Ok(None) => Err(NoCopy::Ended),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => continue,
                    Some(libc::ESRCH) => Err(NoCopy::Ended),
                    // Either the word is missing because the peer has ended, or local memory is missing.
                    Some(libc::EFAULT) => self.is_proved().and(Err(NoCopy::Fault)),
                    _ => {
                        crate::later::later!(debug: %error, "process_vm_writev is no longer allowed");
                        peer.by_file.store(true, Ordering::Relaxed);
                        Ok(false)
                    }
                },
            };
        }
    }

    /// Checks that the process id still refers to the address space that contains the word. If so, this was also the
    /// case before. (The address space that is held open cannot be used for this check, because it outlives its process
    /// while any process copies from it.)
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

    /// Makes one system call on the file.
    fn through(&self, direction: Direction, local: &[libc::iovec], remote: u64) -> Result<usize, NoCopy> {
        let space = self.0.process.space().map_err(|_| NoCopy::Refused)?;
        loop {
            // SAFETY: the segments were lent for this, and the peer, even if it is in this process, has named its
            // memory for this.
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
        crate::later::later!(warn: %error, "kernel copies with a peer are no longer possible: data uses the ring");
        self.0.refused.store(true, Ordering::Relaxed);
    }

    /// Behaves from now on as if the kernel refused copies, for tests.
    #[cfg(all(test, not(loom)))]
    pub(in super::super) fn forbid(&self) {
        self.0.refused.store(true, Ordering::Relaxed);
    }
}

/// Converts the segments to iovecs, starting at index `first` (0 or 1), with room for one more entry before or after
/// them. Also returns their number.
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
