//! Cross-memory attach: the kernel copies between two processes. An address that is not there is an error, not a signal.
//!
//! A process id names a process only while that lives: links stop copying when they hear of the peer's death, which is
//! long before the kernel gives the number away again.

#![expect(unsafe_code, reason = "copies between processes; each block states its own reason")]

use std::io;

use crate::memory::kernel::{self, Direction};
use crate::memory::volatile::{IOV_LIMIT, Segment, Segments};

/// A peer whose memory can be read and written.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Cma {
    pid: i32,
}

impl Cma {
    /// Tries whether process `pid` (in our namespace) can be read and is the one that holds `nonce` at that address.
    ///
    /// # Errors
    /// Why not, in words.
    pub(in super::super) fn probe(pid: i32, nonce: (u64, u64)) -> Result<Self, String> {
        match kernel::word_at(pid, nonce.0) {
            Ok(found) if found == nonce.1 => Ok(Self { pid }),
            Ok(_) => Err(format!("process {pid} is not the peer (another process-id namespace?)")),
            Err(error) => Err(format!("process_vm_readv: {error} (ptrace restrictions or a container?)")),
        }
    }

    /// Copies all of `local` from or to the peer's memory at `remote`.
    pub(in super::super) fn copy(&self, direction: Direction, local: &Segments, remote: u64) -> io::Result<()> {
        let mut done = 0;
        while done < local.len() {
            let rest = local.slice(done, usize::MAX);
            let mut vectors = [vector(Segment::EMPTY); IOV_LIMIT];
            for (into, piece) in vectors.iter_mut().zip(rest.as_slice()) {
                *into = vector(*piece);
            }
            let (ours, theirs) = (&vectors[..rest.as_slice().len()], beyond(remote, done, rest.len()));
            // SAFETY: the segments were lent for this; the peer, even one in this process, has named its memory for this.
            done += unsafe { kernel::cross(self.pid, direction, ours, theirs) }?;
        }
        Ok(())
    }

    /// As [`copy`](Self::copy), of one segment.
    #[inline]
    pub(in super::super) fn copy_one(&self, direction: Direction, local: Segment, remote: u64) -> io::Result<()> {
        let mut done = 0;
        while done < local.len() {
            let rest = vector(local.slice(done, usize::MAX));
            let theirs = beyond(remote, done, rest.iov_len);
            // SAFETY: as above.
            done += unsafe { kernel::cross(self.pid, direction, &[rest], theirs) }?;
        }
        Ok(())
    }
}

/// `len` bytes of the peer's, `done` behind an address.
#[inline]
const fn beyond(remote: u64, done: usize, len: usize) -> libc::iovec {
    let first = std::ptr::without_provenance_mut(remote.wrapping_add(done as u64) as usize);
    libc::iovec { iov_base: first, iov_len: len }
}

fn vector(segment: Segment) -> libc::iovec {
    libc::iovec { iov_base: segment.as_ptr().cast(), iov_len: segment.len() }
}
