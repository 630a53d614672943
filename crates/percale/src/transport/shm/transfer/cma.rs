//! Cross-memory attach: the kernel copies between two processes. An address that is not there is an error, not a signal.
//!
//! A process id names a process only while that lives: links stop copying when they hear of the peer's death, which is
//! long before the kernel gives the number away again.

#![expect(unsafe_code, reason = "process_vm_readv and process_vm_writev; each block states its own reason")]

use std::io;

use crate::memory::volatile::{IOV_LIMIT, Segment, Segments};

/// A peer whose memory can be read and written.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Cma {
    pid: i32,
}

/// From whose point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Direction {
    Read,
    Write,
}

impl Cma {
    /// Tries whether process `pid` (in our namespace) can be read and is the one that holds `nonce` at that address.
    ///
    /// # Errors
    /// Why not, in words.
    pub(in super::super) fn probe(pid: i32, nonce: (u64, u64)) -> Result<Self, String> {
        let cma = Self { pid };
        let mut found = [0u8; 8];
        // SAFETY: the array outlives the call, which is the only user of the segment.
        let into = Segments::one(unsafe { Segment::new(found.as_mut_ptr(), found.len()) });
        match cma.copy(Direction::Read, &into, nonce.0) {
            Ok(()) if u64::from_ne_bytes(found) == nonce.1 => Ok(cma),
            Ok(()) => Err(format!("process {pid} is not the peer (another process-id namespace?)")),
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
            // SAFETY: the segments were lent for this.
            done += unsafe { self.call(direction, &vectors[..rest.as_slice().len()], rest.len(), remote, done) }?;
        }
        Ok(())
    }

    /// As [`copy`](Self::copy), of one segment.
    #[inline]
    pub(in super::super) fn copy_one(&self, direction: Direction, local: Segment, remote: u64) -> io::Result<()> {
        let mut done = 0;
        while done < local.len() {
            let rest = vector(local.slice(done, usize::MAX));
            // SAFETY: the segment was lent for this.
            done += unsafe { self.call(direction, &[rest], rest.iov_len, remote, done) }?;
        }
        Ok(())
    }

    /// One system call: how many bytes it copied, at least one. `len` bytes of the peer's are meant, `done` behind `remote`.
    ///
    /// # Safety
    /// The local vectors name memory that is lent: to read into, for writing, else for reading.
    #[inline]
    unsafe fn call(
        &self,
        direction: Direction,
        local: &[libc::iovec],
        len: usize,
        remote: u64,
        done: usize,
    ) -> io::Result<usize> {
        let first = std::ptr::without_provenance_mut(remote.wrapping_add(done as u64) as usize);
        let theirs = libc::iovec { iov_base: first, iov_len: len };
        let (vectors, count) = (local.as_ptr(), local.len() as libc::c_ulong);
        let copied = match direction {
            // SAFETY: as the caller promised; the remote vector is the kernel's to check.
            Direction::Read => unsafe { libc::process_vm_readv(self.pid, vectors, count, &raw const theirs, 1, 0) },
            // SAFETY: as the caller promised; the remote vector is the kernel's to check.
            Direction::Write => unsafe { libc::process_vm_writev(self.pid, vectors, count, &raw const theirs, 1, 0) },
        };
        match usize::try_from(copied) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(copied) => Ok(copied),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

fn vector(segment: Segment) -> libc::iovec {
    libc::iovec { iov_base: segment.as_ptr().cast(), iov_len: segment.len() }
}
