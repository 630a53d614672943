//! Settings of the monitor, and the promises that the program makes.

/// The program's promise about changes that userfaultfd does not report: MADV_GUARD_INSTALL, and shmat(2) with
/// SHM_REMAP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unseen {
    /// Any code may make these changes, so only sealed memory is kept.
    #[default]
    Possible,
    /// The program promises that no code in the process, including its libraries, makes these changes to registered
    /// memory.
    NeverMade,
    /// The monitor prevents guard pages in memory that is kept. The program promises that no code attaches a System V
    /// segment over registered memory, or unlocks it (munlock(2), munlockall(2)), because unlocking would allow
    /// unreported guard pages again.
    ///
    /// The pages of kept memory are locked (mlock2(2) with MLOCK_ONFAULT), because the kernel rejects guard pages in
    /// locked memory, with EINVAL. Consequences:
    /// * The kernel also rejects MADV_DONTNEED, MADV_FREE and MADV_REMOVE there, with EINVAL, and the program may rely
    ///   on these calls. An allocator then keeps pages that it tried to return. A program that drops pages to get
    ///   zeroed ones, and does not check the result of the call, reads the old bytes. MADV_DONTNEED_LOCKED works.
    /// * The pages are unlocked after the last registration of them is unpinned. Memory that the program had locked
    ///   before it was registered stays locked; a lock that the program takes later, on registered memory, ends with
    ///   the registration. Locked pages count against RLIMIT_MEMLOCK, in addition to the pins of the device, and are
    ///   not swapped out. If that limit is too small, the memory is registered for one use.
    /// * A range that is kept becomes a separate mapping, and vm.max_map_count limits the number of a process's
    ///   mappings. The monitor makes at most a sixteenth of that number. Beyond that, memory is registered for one use.
    /// * If the program has locked memory with mlock(2), which faults in all pages at once, the lock becomes one that
    ///   does not fault in pages. Pages that are present stay.
    ///
    /// munmap, mremap, mprotect and MAP_FIXED work as without locking. A forked child's copy is not locked.
    GuardsRefused,
}

/// The settings of the monitor. An [`Unseen`] converts to settings with defaults for the other fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub(super) unseen: Unseen,
    pub(super) checks_rights: bool,
    pub(super) plain: bool,
}

impl Settings {
    /// Creates settings with this promise and defaults for the other fields.
    #[must_use]
    pub const fn new(unseen: Unseen) -> Self {
        Self { unseen, checks_rights: false, plain: false }
    }

    /// Makes the monitor work as on kernels before 6.7, even on newer ones: without asynchronous write protection, and
    /// by reading /proc/self/maps. It keeps the same memory, but misses take longer. Without this call, this mode is
    /// used only if the kernel supports no better one (since Linux 5.18).
    #[must_use]
    pub const fn plain(mut self) -> Self {
        self.plain = true;
        self
    }

    /// Returns the promise of the program.
    #[must_use]
    pub const fn unseen(self) -> Unseen {
        self.unseen
    }

    /// Returns whether hits check rights.
    #[must_use]
    pub const fn checks_rights(self) -> bool {
        self.checks_rights
    }

    /// Makes each hit check, by a second system call, whether the process still has the rights that the registration
    /// was made with, over all of its range. The call is PROCMAP_QUERY, which takes about 200 ns. Before Linux 6.11
    /// /proc/self/maps is read, which takes about 50 µs. A registration with rights that the process has lost is
    /// dropped. mprotect(2) is not an event, so without this setting a registration may still be used after the process
    /// has given up a right.
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
