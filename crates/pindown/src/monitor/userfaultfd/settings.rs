//! Settings of the monitor, and the program's promises to it.

/// What the program promises about changes that userfaultfd does not report: MADV_GUARD_INSTALL, and shmat(2) with
/// SHM_REMAP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unseen {
    /// Any code may make them, anywhere: only sealed memory is kept.
    #[default]
    Possible,
    /// The program promises that no code in the process, its libraries included, makes them to memory that is
    /// registered.
    NeverMade,
    /// Guard pages are made impossible in memory that is kept, and the program promises the rest: that no code attaches a
    /// System V segment over registered memory, and that none unlocks it (munlock(2), munlockall(2)), which would let guard
    /// pages in again, unseen.
    ///
    /// The pages of what is kept are locked (mlock2(2) with MLOCK_ONFAULT), for in locked memory the kernel refuses guard
    /// pages, with EINVAL. What comes with that:
    /// * it refuses MADV_DONTNEED, MADV_FREE and MADV_REMOVE there as well, with EINVAL, which the program may rely on
    ///   (MON-031 is not held): an allocator then keeps pages that it meant to give back, and a program that drops pages to
    ///   find zeros in them, and does not look at what the call says, finds its old bytes. MADV_DONTNEED_LOCKED works;
    /// * the pages are unlocked when the last registration of them goes (after it is unpinned). Memory that the program has locked before it
    ///   was registered stays locked; a lock that it takes later, of memory that is registered, ends with the registration. Locked pages
    ///   count against RLIMIT_MEMLOCK, beside the device's own pins, and are not swapped out. Where that limit is too small, the memory is
    ///   registered for one use;
    /// * a range that is kept becomes a mapping of its own, of which a process may have vm.max_map_count. The monitor makes a sixteenth of
    ///   those at most: beyond that, memory is registered for one use;
    /// * a lock of the program's that brings all pages in at once (mlock(2)) becomes one that does not; pages that are there
    ///   stay.
    ///
    /// It does not forbid munmap, mremap or mprotect, nor MAP_FIXED, all of which work as always. A forked child's copy
    /// is not locked.
    GuardsRefused,
}

/// How the monitor is to work. [`Unseen`] alone is one of these, with everything else as by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub(super) unseen: Unseen,
    pub(super) checks_rights: bool,
    pub(super) plain: bool,
}

impl Settings {
    /// Settings with this promise, or none, and everything else by default.
    #[must_use]
    pub const fn new(unseen: Unseen) -> Self {
        Self { unseen, checks_rights: false, plain: false }
    }

    /// Works as on kernels before 6.7, also where the kernel is newer: without asynchronous write protection, and with
    /// /proc/self/maps read. It keeps the same memory; misses take longer. Without this call, this mode is used where the
    /// kernel has no better one (since Linux 5.18).
    #[must_use]
    pub const fn plain(mut self) -> Self {
        self.plain = true;
        self
    }

    /// What the program promises.
    #[must_use]
    pub const fn unseen(self) -> Unseen {
        self.unseen
    }

    /// Whether hits ask for rights.
    #[must_use]
    pub const fn checks_rights(self) -> bool {
        self.checks_rights
    }

    /// Each hit asks the kernel, by a second system call (PROCMAP_QUERY, some 200 ns; before Linux 6.11 /proc/self/maps is
    /// read, which takes some 50 µs), whether the process still has the rights that the registration was made with, over
    /// all of its range. A registration that outlived one is dropped. mprotect(2) is not an event, so this is how
    /// MON-014 is held; without it, it is not.
    #[must_use]
    pub const fn check_rights(mut self) -> Self {
        self.checks_rights = true;
        self
    }
}

impl From<Unseen> for Settings {
    fn from(unseen: Unseen) -> Self {
        Self::new(unseen)
    }
}
