//! Memory that is lent to operations, and checked after it was returned.
//!
//! A [`Lent`] buffer has its own pages, and is surrounded by canaries. When its operation has ended it is
//! [returned](Lender::take_back): the canaries are checked, and the buffer is overwritten immediately. It is checked
//! again later, which detects late writes. Some buffers become inaccessible instead. An access by a thread of this
//! process then raises a signal, which [`watch_signals`] reports.

#![expect(unsafe_code, reason = "maps, protects and unmaps pages of its own, and handles a signal")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use percale::Segment;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::param::page_size;

use super::ledger::{Fault, Verdict};
use super::payload;

/// The byte that surrounds a buffer.
const CANARY: u8 = 0xc7;

/// What happens to a buffer after its return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferTreatment {
    /// It is overwritten, and checked later.
    Overwrite,
    /// Its pages become inaccessible.
    Forbid,
    /// It is lent again to the next operation that fits.
    Reuse,
}

/// Lent memory.
#[derive(Debug)]
pub struct Lent {
    base: *mut u8,
    mapped: usize,
    offset: usize,
    len: usize,
}

impl Lent {
    /// Returns the length in bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.addr() as u64 + self.offset as u64
    }

    /// Returns the buffer as one segment.
    #[must_use]
    pub fn segment(&self) -> Segment {
        // SAFETY: the pages stay mapped until the operation has ended. There is no other reference to them.
        unsafe { Segment::new(self.base.wrapping_add(self.offset), self.len) }
    }

    /// Copies `len` bytes, starting at `offset`.
    ///
    /// # Panics
    /// Panics if the range is not within the buffer.
    #[must_use]
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len, "the range lies within the buffer");
        let mut bytes = vec![0; len];
        // SAFETY: the range is within mapped and readable pages, and does not overlap `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(self.base.wrapping_add(self.offset + offset), bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Overwrites the beginning of the buffer.
    ///
    /// # Panics
    /// Panics if the buffer is shorter than `bytes`.
    pub fn write(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len, "the bytes fit");
        // SAFETY: the range is within mapped and writable pages, and does not overlap `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.wrapping_add(self.offset), bytes.len()) };
    }

    fn whole(&self) -> &[u8] {
        // SAFETY: the pages are mapped and readable, and the operation that could write them has returned them.
        unsafe { std::slice::from_raw_parts(self.base, self.mapped) }
    }

    fn paint(&mut self, len: usize) {
        self.len = len;
        // The buffer is at the end of the last page, or up to 7 bytes before it for alignment.
        self.offset = (self.mapped - len) & !7;
        // SAFETY: the pages are mapped and writable, and not lent to an operation.
        unsafe { std::ptr::write_bytes(self.base, CANARY, self.mapped) };
    }

    /// Returns the position of a byte outside of the buffer that was written, if there is one.
    fn beside(&self) -> Option<usize> {
        let whole = self.whole();
        let (before, rest) = whole.split_at(self.offset);
        let after = &rest[self.len..];
        let changed = |bytes: &[u8]| bytes.iter().position(|byte| *byte != CANARY);
        changed(before).or_else(|| changed(after).map(|at| at + self.offset + self.len))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: only this buffer uses the pages, and they are not used afterwards.
        unsafe { rustix::mm::munmap(self.base.cast(), self.mapped + page_size()) }.unwrap_or_default();
    }
}

#[derive(Debug)]
struct Returned {
    lent: Lent,
    /// The ID of the contents that the buffer was overwritten with.
    id: u64,
    watch: BufferTreatment,
}

/// Lends memory.
#[derive(Debug, Default)]
pub struct Lender {
    returned: VecDeque<Returned>,
    pages: usize,
    free: Vec<Lent>,
}

/// The number of returned buffers that are kept for a second check.
const KEPT: usize = 512;

/// A bit that distinguishes the contents of returned buffers from those of lent ones.
const GONE: u64 = 1 << 62;

impl Lender {
    /// Lends a buffer of `len` bytes.
    ///
    /// # Errors
    /// Fails if memory was changed after its return.
    ///
    /// # Panics
    /// Panics if the system is out of memory.
    pub fn lend(&mut self, len: usize) -> Verdict<Lent> {
        let mapped = len.max(1).next_multiple_of(page_size());
        if let Some(at) = self.free.iter().rposition(|free| free.mapped == mapped) {
            let mut lent = self.free.swap_remove(at);
            lent.paint(len);
            return Ok(lent);
        }
        let mut lent = self.map(mapped);
        lent.paint(len);
        Ok(lent)
    }

    /// Maps pages, followed by an inaccessible page.
    fn map(&mut self, mapped: usize) -> Lent {
        let (both, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        self.pages += 1;
        // SAFETY: creates a new mapping at an address that the kernel chooses, so no existing memory is affected.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped + page_size(), both, private) };
        let base: *mut u8 = base.expect("memory for a buffer").cast();
        // SAFETY: this is the last page of the new mapping, which is not in use.
        unsafe { rustix::mm::mprotect(base.wrapping_add(mapped).cast(), page_size(), MprotectFlags::empty()) }
            .expect("a page");
        Lent { base, mapped, offset: 0, len: 0 }
    }

    /// Takes back the buffer of an operation that has ended.
    ///
    /// # Errors
    /// Fails if memory outside of the buffer was written.
    ///
    /// # Panics
    /// Panics if the system cannot protect pages.
    pub fn take_back(&mut self, owner: u64, lent: Lent, watch: BufferTreatment) -> Verdict {
        if let Some(at) = lent.beside() {
            let text = format!(
                "byte {at} next to the buffer of operation {owner} was written (the buffer is at {}, {} bytes)",
                lent.offset, lent.len
            );
            return Err(Fault::new("written outside", text));
        }
        let id = GONE | owner;
        lent.write(&payload::of(id, lent.len));
        if watch == BufferTreatment::Forbid {
            // SAFETY: only the buffer uses the pages, and they are not used afterwards.
            unsafe { rustix::mm::mprotect(lent.base.cast(), lent.mapped, MprotectFlags::empty()) }.expect("pages");
        }
        if watch == BufferTreatment::Reuse {
            self.free.push(lent);
            return Ok(());
        }
        self.returned.push_back(Returned { lent, id, watch });
        if self.returned.len() > KEPT
            && let Some(oldest) = self.returned.pop_front()
            && let Some(lent) = check(oldest)?
        {
            self.free.push(lent);
            self.free.truncate(64);
        }
        Ok(())
    }

    /// Checks all returned memory.
    ///
    /// # Errors
    /// Fails if some of it was changed after its return.
    pub fn check_all(&mut self) -> Verdict {
        while let Some(returned) = self.returned.pop_front() {
            check(returned)?;
        }
        self.free.clear();
        Ok(())
    }
}

fn check(returned: Returned) -> Verdict<Option<Lent>> {
    let Returned { lent, id, watch } = returned;
    if watch == BufferTreatment::Forbid {
        return Ok(None);
    }
    let owner = id & !GONE;
    if let Some(why) = payload::describe(id, &lent.whole()[lent.offset..lent.offset + lent.len]) {
        return Err(Fault::new(
            "written after its end",
            format!("the buffer of operation {owner} was written after it ended: {why}"),
        ));
    }
    if lent.beside().is_some() {
        return Err(Fault::new(
            "written outside",
            format!("next to the buffer of operation {owner}, after it had ended"),
        ));
    }
    Ok(Some(lent))
}

/// Buffers that safe operations have returned. They are overwritten, and checked later.
#[derive(Debug, Default)]
pub struct Returns {
    kept: VecDeque<(u64, Vec<u8>)>,
}

impl Returns {
    /// Overwrites a returned buffer and keeps it.
    ///
    /// # Errors
    /// Fails if another returned buffer was changed after its return.
    pub fn keep(&mut self, owner: u64, mut bytes: Vec<u8>) -> Verdict {
        payload::fill(GONE | owner, &mut bytes);
        self.kept.push_back((owner, bytes));
        if self.kept.len() > KEPT
            && let Some((owner, bytes)) = self.kept.pop_front()
        {
            return intact(owner, &bytes);
        }
        Ok(())
    }

    /// Checks all buffers.
    ///
    /// # Errors
    /// Fails if one was changed after its return.
    pub fn check_all(&mut self) -> Verdict {
        self.kept.drain(..).try_for_each(|(owner, bytes)| intact(owner, &bytes))
    }
}

fn intact(owner: u64, bytes: &[u8]) -> Verdict {
    match payload::describe(GONE | owner, bytes) {
        Some(why) => Err(Fault::new("written after its end", format!("the buffer of safe operation {owner}: {why}"))),
        None => Ok(()),
    }
}

/// The seed of the current run, for the signal handler.
pub static RUN: AtomicU64 = AtomicU64::new(0);
/// The current step, for the signal handler.
pub static STEP: AtomicUsize = AtomicUsize::new(0);

/// Installs a signal handler that reports an invalid memory access on standard error before the process ends.
pub fn watch_signals() {
    // SAFETY: the structure consists of numbers and pointers, for which zeroes are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND;
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the handler makes only async-signal-safe calls.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

extern "C" fn handler(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid pointer to a handler with SA_SIGINFO.
    let info = unsafe { &*info };
    // SAFETY: the signal is a memory fault, which has an address.
    let address = unsafe { info.si_addr() }.addr() as u64;
    let numbers = [signal as u64, address, RUN.load(Ordering::Relaxed), STEP.load(Ordering::Relaxed) as u64];
    let names: [&[u8]; 4] = [b"\nsignal 0x", b" at address 0x", b" in run 0x", b", step 0x"];
    for (name, number) in names.iter().zip(numbers) {
        let mut text = [0_u8; 16];
        let mut len = 0;
        let mut shift = 64;
        while shift > 0 {
            shift -= 4;
            let digit = (number >> shift & 15) as u8;
            if digit != 0 || len > 0 || shift == 0 {
                text[len] = if digit < 10 { b'0' + digit } else { b'a' + digit - 10 };
                len += 1;
            }
        }
        // SAFETY: the text lives until the call returns.
        unsafe { libc::write(2, name.as_ptr().cast(), name.len()) };
        // SAFETY: as above.
        unsafe { libc::write(2, text.as_ptr().cast(), len) };
    }
    // SAFETY: as above.
    unsafe { libc::write(2, b"\n".as_ptr().cast(), 1) };
    // The kernel has already reset the handler (SA_RESETHAND). After this function returns, the access is repeated and
    // ends the process as it would without the handler.
}
