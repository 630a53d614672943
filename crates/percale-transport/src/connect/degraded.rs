//! The reason why two local endpoints do not use shared memory although both could.

use rustix::io::Errno;

use crate::later::later;
use crate::system::call::errno;
use crate::wire::refusal_reason::RefusalReason;

/// The reason why a pair of endpoints that could have used shared memory does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Degraded {
    pub(super) why: RefusalReason,
    /// The kernel's error number (from this process or from the peer), or 0.
    pub(super) errno: i32,
}

impl From<Errno> for Degraded {
    fn from(errno: Errno) -> Self {
        let why = match errno {
            Errno::MFILE | Errno::NFILE | Errno::TOOMANYREFS => RefusalReason::Descriptors,
            Errno::CONNREFUSED => RefusalReason::SocketUnreachable,
            _ => RefusalReason::MeetingFailed,
        };
        Self { why, errno: errno.raw_os_error() }
    }
}

impl From<std::io::Error> for Degraded {
    fn from(error: std::io::Error) -> Self {
        later!(debug: %error, "shared memory cannot be set up");
        errno(&error).map_or(Errno::IO, Errno::from_raw_os_error).into()
    }
}

impl Degraded {
    pub(super) const fn because(why: RefusalReason) -> Self {
        Self { why, errno: 0 }
    }

    /// Returns the error number as it is sent.
    pub(super) const fn number(&self) -> u32 {
        self.errno.cast_unsigned()
    }
}
