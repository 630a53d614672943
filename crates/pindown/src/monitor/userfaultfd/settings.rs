//! What a program may ask of the monitor, and promise it.

/// What the program says of changes that userfaultfd does not report: MADV_GUARD_INSTALL, and shmat(2) with SHM_REMAP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unseen {
    /// Anybody may make them, anywhere: only sealed memory is kept.
    #[default]
    Possible,
    /// It promises that no code in the process, its libraries included, makes them to memory that is registered.
    NeverMade,
}

/// How the monitor is to work. [`Unseen`] alone is one of these, with everything else as by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub(super) unseen: Unseen,
    pub(super) checks_rights: bool,
}

impl Settings {
    /// With this promise, or none.
    #[must_use]
    pub const fn new(unseen: Unseen) -> Self {
        Self { unseen, checks_rights: false }
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
    /// all of its range. A registration that outlived one is dropped. mprotect(2) is no event, so this is how MON-014 is
    /// held; without it, it is not.
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
