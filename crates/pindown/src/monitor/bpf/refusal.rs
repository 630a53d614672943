//! The reasons why the kernel monitor is not available, and why memory cannot be watched.

use std::io;

use super::requirement::Requirement;

/// The reasons why the kernel monitor is not available. The messages name what is missing and what to do.
/// [`BpfUnavailable::requirement`] returns the same for programs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BpfUnavailable {
    /// The build does not contain the programs, because it lacks [`Requirement::Feature`] or
    /// [`Requirement::Processor`].
    #[error("this build has no `bpf` support: {}", .0.remedy())]
    NotBuilt(Requirement),
    /// A privilege is missing.
    #[error("{} is missing: {}", .0, capability(.0).remedy())]
    NoCapability(&'static str),
    /// The kernel does not describe its types.
    #[error("no /sys/kernel/btf/vmlinux ({}){}", .0, hint(&Some(Requirement::of_btf(.0))))]
    NoBtf(io::Error),
    /// The description cannot be read.
    #[error("/sys/kernel/btf/vmlinux is not as expected: {}; {}", .0, Requirement::KnownKernel.remedy())]
    BadBtf(&'static str),
    /// A tracepoint does not exist in this kernel.
    #[error("the kernel has no tracepoint {}{}", .0, hint(&Some(Requirement::TRACEPOINTS)))]
    HookMissing(&'static str),
    /// A tracepoint has arguments that no known kernel has.
    #[error("tracepoint {hook} has unknown arguments: ({found}); {}", Requirement::KnownKernel.remedy())]
    HookArguments {
        /// The name of the tracepoint.
        hook: &'static str,
        /// The arguments that the kernel describes.
        found: String,
    },
    /// Preemption inside the hooks would break the order of reports.
    #[error(
        "PREEMPT_RT kernels are not supported: BPF programs can be preempted; {}",
        Requirement::NoPreemptRt.remedy()
    )]
    PreemptRt,
    /// The page size is not 4096 bytes.
    #[error("pages have {} bytes; the programs expect 4096; {}", .0, Requirement::PageSize.remedy())]
    PageSize(usize),
    /// The kernel rejected a program or a map.
    #[error("the kernel rejected {what}: {why}{}", hint(.requirement))]
    Refused {
        /// The request.
        what: &'static str,
        /// The error of the kernel or of the loader.
        why: String,
        /// What is missing, if the error shows it.
        requirement: Option<Requirement>,
    },
    /// A program was skipped, so a change may not have been reported.
    #[error("the kernel skipped a program {0} times: reports may be missing")]
    Missed(u64),
    /// The program has closed descriptors of the monitor.
    #[error("descriptors of the monitor were closed: reports may be missing")]
    Closed,
    /// No process listens at the helper's socket.
    #[error("cannot connect to pindown-helper at {path}: {why}; {}", Requirement::Helper.remedy())]
    NoHelper {
        /// The path of the socket.
        path: String,
        /// The error from connecting.
        why: io::Error,
    },
    /// The helper's socket is only for other users.
    #[error("{path} of pindown-helper is only for some users: become a member of its group (ls -l shows it)")]
    NotAllowed {
        /// The path of the socket.
        path: String,
    },
    /// The helper cannot listen for clients.
    #[error("cannot listen at {path}: {why}")]
    Listen {
        /// The path of the socket.
        path: String,
        /// The error of the system call, or the reason why the socket is not suitable.
        why: io::Error,
    },
    /// No helper can have these limits.
    #[error("{0}")]
    Limits(String),
    /// The process behind the socket runs as another user, and not as root.
    #[error("pindown-helper runs as user {0}, which is neither root nor the user of this process")]
    ForeignHelper(u32),
    /// The helper rejected the client.
    #[error("pindown-helper rejected the request: {0}")]
    Denied(Denial),
    /// The helper has exited, has sent an invalid answer, or has not answered in time.
    #[error("pindown-helper does not answer: {0}")]
    Helper(io::Error),
}

fn capability(name: &&'static str) -> Requirement {
    Requirement::Capability(name)
}

/// Returns the end of a message: what is missing, and what to do.
fn hint(requirement: &Option<Requirement>) -> String {
    requirement.map_or_else(String::new, |missing| format!("; {missing} is missing: {}", missing.remedy()))
}

impl BpfUnavailable {
    /// Returns the positive errno that corresponds to the reason.
    #[must_use]
    pub fn errno(&self) -> i32 {
        if let Self::Refused { requirement: Some(missing), .. } = self {
            return missing.errno();
        }
        match self {
            Self::NotBuilt(_)
            | Self::NoBtf(_)
            | Self::BadBtf(_)
            | Self::HookMissing(_)
            | Self::HookArguments { .. }
            | Self::PreemptRt
            | Self::PageSize(_) => libc::EOPNOTSUPP,
            Self::Limits(_) => libc::EINVAL,
            Self::NoCapability(_) | Self::ForeignHelper(_) => libc::EPERM,
            Self::Refused { .. } | Self::Missed(_) | Self::Closed => libc::EIO,
            Self::NotAllowed { .. } => libc::EACCES,
            Self::NoHelper { why, .. } | Self::Listen { why, .. } => crate::calls::errno_for(why),
            Self::Denied(denial) => denial.errno(),
            Self::Helper(error) => crate::calls::errno_for(error),
        }
    }
}

/// The reasons why the helper does not serve a client. The number is sent over the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u64)]
#[non_exhaustive]
pub enum Denial {
    /// The client and the helper use different versions of the protocol.
    #[error("the protocol version differs")]
    Version = 1,
    /// The request is invalid or out of order.
    #[error("unknown request")]
    Protocol = 2,
    /// The process that sent the request cannot be identified with certainty.
    #[error("the kernel does not report the sender of a request (SO_PASSPIDFD, Linux 6.5), or the sender has exited")]
    NoPidfd = 3,
    /// The process has ended, or has no memory.
    #[error("the process that connected has no address space")]
    NoAddressSpace = 4,
    /// The process runs with privileges that its user does not have, or hides its memory from its user.
    #[error("the process is not dumpable, or changed its user")]
    NotTheUsers = 5,
    /// The process did not answer the challenge correctly in time, or did not send its first message in time.
    #[error("the challenge was not answered correctly")]
    Challenge = 6,
    /// The limit on one user's connections is reached.
    #[error("the user has reached the limit of connections (pindown-helper --per-user)")]
    TooManyClients = 7,
    /// A change that began before the page existed would end unreported.
    #[error("timeout: a change of memory that began earlier has not ended")]
    NeverQuiet = 8,
    /// The kernel rejected an allocation of the helper.
    #[error("the kernel rejected the BPF map")]
    Kernel = 9,
    /// The limit on one user's address spaces is reached.
    #[error("the user has reached the limit of address spaces (pindown-helper --per-user)")]
    TooManySpaces = 10,
    /// The limit on all users together is reached.
    #[error("the limit of clients of all users is reached (pindown-helper --total)")]
    HelperFull = 11,
    /// The request was sent by a process outside the connection's address space.
    #[error("the request comes from another address space than the one that the connection was opened for")]
    OtherAddressSpace = 12,
}

impl Denial {
    /// Returns the positive errno that corresponds to the reason.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Version => libc::EPROTONOSUPPORT,
            Self::Protocol => libc::EPROTO,
            Self::NoPidfd => libc::EOPNOTSUPP,
            Self::NoAddressSpace => libc::ESRCH,
            Self::NotTheUsers | Self::OtherAddressSpace => libc::EPERM,
            Self::Challenge => libc::ETIMEDOUT,
            Self::TooManyClients | Self::TooManySpaces => libc::EDQUOT,
            Self::HelperFull => libc::EUSERS,
            Self::NeverQuiet => libc::EBUSY,
            Self::Kernel => libc::EIO,
        }
    }
}

/// The reasons why memory cannot be watched; it may be pinned for one use. The number is sent over the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u64)]
#[non_exhaustive]
pub enum Unwatchable {
    /// Nothing is mapped at the start of the range.
    #[error("the range is not mapped")]
    Unmapped = 1,
    /// The range is in more than one mapping.
    #[error("the range spans several mappings")]
    SeveralMappings = 2,
    /// The range is in a shared mapping that cannot be made writable. Such memory cannot be pinned, and changes of its
    /// file are not watched.
    #[error("a shared mapping of a file that is open for reading only")]
    ReadOnlyShared = 3,
    /// The range is in a file that may change without passing any tracepoint (network file systems, devices).
    #[error("a mapping of a file whose changes cannot be watched")]
    FileSystem = 4,
    /// The range is in a private mapping of huge pages. Another process can remove the pages through their file without
    /// a report, and even a mapping without a name has a file (/proc/PID/map_files).
    #[error("a private mapping of huge pages")]
    PrivateHuge = 5,
    /// All slots of this page, or of this inode, are in use.
    #[error("the limit of watched files is reached")]
    Full = 6,
    /// The address space was locked for too long.
    #[error("the address space is locked")]
    Locked = 7,
    /// The monitor or its helper has ended, or this process is not the one that opened the monitor.
    #[error("the monitor does not cover this process")]
    Gone = 8,
    /// The limit on one user's watched files, or on one user's address spaces that watch this file, is reached.
    #[error("the user has reached the limit of watched files (pindown-helper --files-per-user)")]
    TooManyFiles = 9,
}

impl Unwatchable {
    /// Returns the positive errno that corresponds to the reason.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Unmapped => libc::EFAULT,
            Self::ReadOnlyShared => libc::EACCES,
            Self::SeveralMappings | Self::FileSystem | Self::PrivateHuge => libc::EOPNOTSUPP,
            Self::Full => libc::ENOSPC,
            Self::TooManyFiles => libc::EDQUOT,
            Self::Locked => libc::EAGAIN,
            Self::Gone => libc::ESRCH,
        }
    }
}

macro_rules! from_number {
    ($kind:ident, $fallback:ident: $($name:ident),*) => {
        impl $kind {
            pub(super) fn from_number(number: u64) -> Self {
                match number {
                    $(n if n == Self::$name as u64 => Self::$name,)*
                    _ => Self::$fallback,
                }
            }
        }
    };
}

from_number!(Denial, Protocol: Version, Protocol, NoPidfd, NoAddressSpace, NotTheUsers, Challenge, TooManyClients,
    NeverQuiet, Kernel, TooManySpaces, HelperFull, OtherAddressSpace);
from_number!(Unwatchable, Gone: Unmapped, SeveralMappings, ReadOnlyShared, FileSystem, PrivateHuge, Full, Locked, Gone,
    TooManyFiles);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Range, monitor};

    #[test]
    fn each_refusal_has_an_errno() {
        let nowhere = || io::Error::from_raw_os_error(libc::ENOENT);
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        let named = |source| monitor::Unavailable { name: "any", source };
        let pairs = [
            (Range::new(0, 0).unwrap_err().errno(), libc::EINVAL),
            (named(nowhere()).errno(), libc::ENOENT),
            (named(unsupported()).errno(), libc::EOPNOTSUPP),
            (named(io::Error::other(BpfUnavailable::NoCapability("CAP_BPF"))).errno(), libc::EPERM),
            (named(io::Error::other(BpfUnavailable::PageSize(65_536))).errno(), libc::EOPNOTSUPP),
            (BpfUnavailable::PreemptRt.errno(), libc::EOPNOTSUPP),
            (BpfUnavailable::Limits(String::new()).errno(), libc::EINVAL),
            (BpfUnavailable::NoCapability("CAP_BPF").errno(), libc::EPERM),
            (BpfUnavailable::NoHelper { path: String::new(), why: nowhere() }.errno(), libc::ENOENT),
            (BpfUnavailable::Denied(Denial::NotTheUsers).errno(), libc::EPERM),
            (Unwatchable::Unmapped.errno(), libc::EFAULT),
        ];
        assert!(pairs.iter().all(|(message, meant)| message == meant), "{pairs:?}");
        assert!((0..20).all(|number| Denial::from_number(number).errno() > 0));
        assert!((0..20).all(|number| Unwatchable::from_number(number).errno() > 0));
    }
}
