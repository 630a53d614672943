//! Detects whether this process created an object, or is a forked child of the process that did.
//!
//! Rings, peer mappings and service threads do not survive `fork`: a child that continued to use its parent's endpoints
//! would read its parent's messages. So an object that belongs to one process stores the [`Process`] that created it. A
//! [`Process`] refers to a word in a page that is wiped in every child (MADV_WIPEONFORK), which distinguishes parent
//! and child at the cost of a load. A child that opens a domain gets its own word in another page. The inherited word
//! stays 0, and the inherited objects still belong to the parent.

#![expect(
    unsafe_code,
    reason = "anonymous pages, their advice, and values that are never freed; each block states its own reason"
)]

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::call::call;
use super::random::random;

/// The value of the word in the process that allocated it. A page that was wiped contains only zeros.
const HERE: u64 = 0x7065_7263_616c_6521;

/// The word that was allocated last, in this process or in an ancestor from which it was forked. There is no lock,
/// because a lock could be held at the time of a fork.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());

/// A mark that is set only in the process that created it.
#[derive(Clone, Copy, Debug)]
pub struct Process(&'static AtomicU64);

impl Process {
    /// Returns the mark of this process.
    ///
    /// # Errors
    /// The error of `mmap` or `madvise`.
    pub fn current() -> io::Result<Self> {
        loop {
            let known = WORD.load(Ordering::Acquire);
            // SAFETY: the pointer is null, or refers to a word of a page that is never unmapped.
            let word = unsafe { known.as_ref() };
            if let Some(known) = word.map(Self).filter(|known| known.is_here()) {
                return Ok(known);
            }
            // The first word of this process. If another thread was faster, its word is used, and this page stays
            // unused.
            let word = page()?;
            word.store(HERE, Ordering::Relaxed);
            let ours = std::ptr::from_ref(word).cast_mut();
            if WORD.compare_exchange(known, ours, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Ok(Self(word));
            }
        }
    }

    /// Returns a mark that is not set in any process, for objects that must no longer be used in any process.
    #[inline]
    pub fn nowhere() -> Self {
        static NOWHERE: AtomicU64 = AtomicU64::new(0);
        Self(&NOWHERE)
    }

    /// Returns whether this is the process that created the mark.
    #[inline]
    pub fn is_here(self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// Returns a word by which peers recognize the memory of this process. It is in a page that no forked child has, at a
/// random address, where another program is unlikely to have mapped memory. It must not be accessed in a child.
///
/// The address is chosen randomly below the one that the kernel chooses, because programs without address space
/// randomization (`setarch -R`, most debuggers) have their pages at the same addresses.
///
/// # Errors
/// The error of `getrandom`, `mmap` or `madvise`.
pub fn word_of_this_process() -> io::Result<&'static AtomicU64> {
    /// Some programs reserve hundreds of gigabytes below the addresses that the kernel chooses, so that none near these
    /// is free. Then any lower address is tried.
    const TRIES: [u32; 2] = [8, 24];
    let chosen = map_page(null_mut())?;
    let mut page = chosen;
    for attempt in 0..TRIES.iter().sum() {
        let reach = if attempt < TRIES[0] { chosen.addr().min(256 << 30) } else { chosen.addr() };
        let down = usize::from_ne_bytes(random()?) % (reach / rustix::param::page_size()) * rustix::param::page_size();
        let wanted = chosen.wrapping_byte_sub(down);
        // The address is a hint. The kernel chooses another address if it is in use or outside the process's address
        // space.
        let found = map_page(wanted)?;
        // SAFETY: the page was mapped above and is not used.
        unsafe { rustix::mm::munmap(page, rustix::param::page_size()) }?;
        page = found;
        if page == wanted {
            break;
        }
    }
    word_in(page, Advice::LinuxDontFork)
}

/// Returns the first word of a new page, which exists as long as the process, and is 0 in every child.
fn page() -> io::Result<&'static AtomicU64> {
    word_in(map_page(null_mut())?, Advice::LinuxWipeOnFork)
}

/// Maps a new page of this process, near `hint` or at an address that the kernel chooses.
fn map_page(hint: *mut c_void) -> io::Result<*mut c_void> {
    let len = rustix::param::page_size();
    call("mmap", || {
        // SAFETY: a new anonymous mapping, at an address that the kernel chooses among the free ones, does not affect
        // existing memory.
        unsafe { rustix::mm::mmap_anonymous(hint, len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
    })
}

/// Returns the first word of a page that was created by [`map_page`] and that stays mapped. `advice` determines the
/// content of the page in a child.
fn word_in(page: *mut c_void, advice: Advice) -> io::Result<&'static AtomicU64> {
    call("madvise", || {
        // SAFETY: the page was just mapped; the advice only changes the content of the page in a child.
        unsafe { rustix::mm::madvise(page, rustix::param::page_size(), advice) }
    })?;
    // SAFETY: the page is mapped, aligned, zeroed and never unmapped in this process, so the word is permanently a
    // valid atomic.
    Ok(unsafe { &*page.cast::<AtomicU64>() })
}

/// A lock that can be taken only in the process that created it. At the time of a fork another thread may hold the
/// lock, in the middle of a change: a child would wait forever, or find the value partially changed. In a child
/// [`lock`](Self::lock) returns `None` at once.
#[derive(Debug)]
pub struct ProcessMutex<T> {
    /// The process, or `None` if the process cannot be distinguished from its forked children. In that case the lock
    /// can be taken in all of them.
    process: Option<Process>,
    value: Mutex<T>,
}

impl<T> ProcessMutex<T> {
    /// Creates a lock of this process.
    #[inline]
    pub fn new(value: T) -> Self {
        Self { process: Process::current().ok(), value: Mutex::new(value) }
    }

    /// Returns the process of the lock, or `None` if it cannot be distinguished from its forked children.
    #[must_use]
    pub const fn process(&self) -> Option<Process> {
        self.process
    }

    /// Returns whether this is the process that created the lock, and not a forked child of it.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.process.is_none_or(Process::is_here)
    }

    /// Takes the lock. Returns `None` in a forked child.
    #[inline]
    pub fn lock(&self) -> Option<MutexGuard<'_, T>> {
        if !self.is_here() {
            return None;
        }
        Some(self.value.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the value. The exclusive borrow guarantees that no other thread accesses it.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Default> Default for ProcessMutex<T> {
    #[inline]
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// A value that exists once in each process. A forked child starts without a value. The parent's value may contain
/// locks held by threads that do not exist in the child, so it is never accessed or freed in the child.
pub struct PerProcess<T: 'static>(AtomicPtr<Made<T>>);

struct Made<T> {
    process: Process,
    value: T,
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PerProcess")
    }
}

impl<T: Default + Sync> PerProcess<T> {
    /// Creates the object without a value. The first [`get_or_make`](Self::get_or_make) in a process creates the value
    /// of that process.
    #[inline]
    #[expect(clippy::new_without_default, reason = "for statics, which need a constant")]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// Returns the value of this process, if it has one.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        self.look().1
    }

    /// Returns the value of this process. Creates it first if there is none.
    ///
    /// # Errors
    /// As for [`Process::current`].
    pub fn get_or_make(&self) -> io::Result<&'static T> {
        loop {
            let (known, value) = self.look();
            if let Some(value) = value {
                return Ok(value);
            }
            let ours = Box::into_raw(Box::new(Made { process: Process::current()?, value: T::default() }));
            if self.0.compare_exchange(known, ours, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // Another thread was faster.
                // SAFETY: the value was created above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(ours) });
            }
        }
    }

    /// Returns the object that was created last, and its value if it was created in this process.
    fn look(&self) -> (*mut Made<T>, Option<&'static T>) {
        let known = self.0.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or refers to a box that is never freed once it is stored here.
        let made = unsafe { known.as_ref() };
        (known, made.filter(|made| made.process.is_here()).map(|made| &made.value))
    }
}

/// Runs `f` in a forked child, and returns whether it returned true.
#[cfg(any(test, feature = "testing"))]
pub fn in_a_child(f: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `f`, which does not wait for any thread of the parent, and exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", io::Error::last_os_error());
    if child == 0 {
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(false);
        // SAFETY: the call ends this process and has no other effect.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: the child belongs to the caller; the call writes one integer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

/// Makes the kernel refuse system calls with EPERM in this process, a child of a test, from now on. They are identified
/// by their number and, if one is given, by the value of their third argument. Returns false if the kernel refuses the
/// filter.
#[cfg(any(test, feature = "testing"))]
pub fn refuse_calls(calls: &[(libc::c_long, Option<u32>)]) -> bool {
    /// Offsets in `struct seccomp_data`: of the number, and of the lower half of the third argument.
    const NUMBER: u32 = 0;
    const THIRD: u32 = 32;
    let load = |offset| libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: offset };
    let skip_unless = |value, skipped| libc::sock_filter { code: 0x15, jt: 0, jf: skipped, k: value };
    let give = |result| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: result };
    let mut filter = Vec::new();
    for &(number, third) in calls {
        filter.extend([load(NUMBER), skip_unless(number as u32, if third.is_some() { 3 } else { 1 })]);
        if let Some(third) = third {
            filter.extend([load(THIRD), skip_unless(third, 1)]);
        }
        filter.push(give(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    }
    filter.push(give(libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: no memory is passed.
    let fixed = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0;
    // SAFETY: the kernel copies the program, which lives until the call returns.
    fixed && unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) } == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirements: FLT-010.
    #[test]
    fn inherited_process_value_never_belongs_to_the_child() {
        let parents = Process::current().unwrap();
        assert!(parents.is_here() && Process::current().unwrap().is_here());
        assert!(in_a_child(|| {
            let before = parents.is_here();
            let own = Process::current().unwrap();
            let grandchild = in_a_child(|| {
                let inherited = own.is_here() || parents.is_here();
                let newest = Process::current().unwrap();
                !inherited && newest.is_here() && !own.is_here() && !parents.is_here()
            });
            !before && own.is_here() && !parents.is_here() && grandchild && own.is_here()
        }));
        assert!(parents.is_here());
    }

    /// Requirements: FLT-010.
    #[test]
    fn child_does_not_map_the_parent_word() {
        let word = word_of_this_process().unwrap();
        word.store(7, Ordering::Relaxed);
        let here = std::ptr::from_ref(word).expose_provenance() as u64;
        let found = || crate::local_memory::kernel::word_at(std::process::id().cast_signed(), here).ok();
        assert_eq!(found(), Some(7));
        assert!(in_a_child(|| found().is_none()));
        let other = word_of_this_process().unwrap();
        assert!(std::ptr::from_ref(other).addr().abs_diff(here as usize) > 1 << 16, "not at a random address");
    }

    /// Requirements: FLT-010.
    #[test]
    fn word_is_at_a_random_address_if_the_program_reserves_the_nearest_ones() {
        const RESERVED: usize = 512 << 30;
        // SAFETY: a new mapping without permissions and without memory does not affect existing memory.
        let mapped = unsafe { rustix::mm::mmap_anonymous(null_mut(), RESERVED, ProtFlags::empty(), MapFlags::PRIVATE) };
        let reserved = mapped.unwrap();
        // The kernel chooses the highest free addresses, and those of the next 256 GiB are reserved.
        let words = [word_of_this_process().unwrap(), word_of_this_process().unwrap()];
        let [first, second] = words.map(|word| std::ptr::from_ref(word).addr());
        assert!(first.abs_diff(second) > 1 << 24, "{first:#x} and {second:#x} with {RESERVED} bytes at {reserved:p}");
        // SAFETY: the mapping is not used.
        unsafe { rustix::mm::munmap(reserved, RESERVED) }.unwrap();
    }

    /// Requirements: FLT-010.
    #[test]
    fn child_has_a_separate_value_and_ignores_parent_locks() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new();
        assert!(VALUE.get().is_none());
        let value = VALUE.get_or_make().unwrap();
        let mut locked = value.lock().unwrap();
        *locked = 7;
        assert!(in_a_child(|| {
            let none = VALUE.get().is_none();
            let own = VALUE.get_or_make().unwrap();
            none && *own.lock().unwrap() == 0 && std::ptr::eq(VALUE.get().unwrap(), own)
        }));
        drop(locked);
        assert_eq!(*VALUE.get().unwrap().lock().unwrap(), 7);
        assert!(std::ptr::eq(VALUE.get_or_make().unwrap(), value));
    }

    /// Requirements: FLT-010.
    #[test]
    fn child_does_not_wait_for_inherited_lock() {
        let lock = ProcessMutex::new(3);
        let held = lock.lock().unwrap();
        assert!(in_a_child(|| lock.lock().is_none()));
        drop(held);
        assert_eq!(*lock.lock().unwrap(), 3);
    }

    #[test]
    fn threads_of_one_process_have_the_same_value() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| *VALUE.get_or_make().unwrap().lock().unwrap() += 1);
            }
        });
        assert_eq!(*VALUE.get().unwrap().lock().unwrap(), 8);
    }
}
