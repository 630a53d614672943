//! What the kernel monitor needs, and which of it is missing if it is not available.
//!
//! This is the only place that interprets the kernel's refusals: [`BpfUnavailable`](super::BpfUnavailable) derives its
//! hint and its errno from a [`Requirement`], and programs that examine a machine print the same.

use std::{fmt, fs, io};

use super::refusal::BpfUnavailable;

/// A requirement of the kernel monitor that the build, the process, or the machine does not meet.
///
/// [`BpfUnavailable::requirement`] derives it from an error. `Display` names what is missing, and
/// [`Requirement::remedy`] states what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Requirement {
    /// The cargo feature `bpf` of pindown.
    Feature,
    /// A processor for which there are programs: x86-64 or aarch64.
    Processor,
    /// A capability of the process, by its name.
    Capability(&'static str),
    /// The initial user namespace. Capabilities in another one, such as that of a container, do not apply to bpf(2).
    InitialUserNamespace,
    /// The permission to call bpf(2), which a seccomp filter or a security module does not give.
    SystemCall,
    /// A kernel that lets programs read its memory. In the lockdown mode `confidentiality` it does not.
    NoLockdown,
    /// An option with which the kernel must be built, by its name.
    KernelOption(&'static str),
    /// The file with the kernel's types (BTF), `/sys/kernel/btf/vmlinux`: it cannot be read, although the kernel may
    /// have it.
    Btf,
    /// A kernel with tracepoints and types that this version knows.
    KnownKernel,
    /// A kernel in which the programs cannot be preempted.
    NoPreemptRt,
    /// Pages of 4096 bytes.
    PageSize,
    /// A running `pindown-helper`.
    Helper,
}

impl Requirement {
    /// The requirement of a kernel that lacks a tracepoint.
    pub(super) const TRACEPOINTS: Self = Self::KernelOption("CONFIG_FTRACE");

    /// Returns what to do about it: an instruction, with the command if there is one.
    #[must_use]
    pub fn remedy(self) -> String {
        let fixed = match self {
            Self::Feature => "build with the feature `bpf`, or start pindown-helper as root",
            Self::Processor => "there are programs only for x86-64 and aarch64; use another monitor",
            Self::Capability(_) => {
                "run as root, or start pindown-helper as root; in a container, add the capability (docker run \
                 --cap-add BPF --cap-add PERFMON)"
            }
            Self::InitialUserNamespace => {
                "start pindown-helper as root outside of the user namespace, and make its socket visible inside"
            }
            Self::SystemCall => {
                "permit bpf(2) in the seccomp filter of the container or service, or in the security module; or start \
                 pindown-helper outside of it"
            }
            Self::NoLockdown => "boot with the kernel parameter lockdown=integrity, or without lockdown",
            Self::KernelOption(option) => {
                return format!(
                    "boot a kernel from Linux 6.1 on that was built with it (grep {option} /boot/config-$(uname -r))"
                );
            }
            Self::Btf => "make it readable: mount -t sysfs sysfs /sys; in a container, do not mask /sys/kernel/btf",
            Self::KnownKernel => {
                "boot a kernel from Linux 6.1 on; if it is newer than this version of pindown, update pindown"
            }
            Self::NoPreemptRt => "boot a kernel without PREEMPT_RT",
            Self::PageSize => "boot a kernel with pages of 4096 bytes",
            Self::Helper => "start pindown-helper as root",
        };
        fixed.into()
    }

    /// Returns the positive errno that corresponds to the requirement.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Capability(_) | Self::InitialUserNamespace | Self::SystemCall | Self::NoLockdown => libc::EPERM,
            Self::Helper => libc::ENOENT,
            _ => libc::EOPNOTSUPP,
        }
    }

    /// Returns the requirement that a file with the kernel's types does not exist or cannot be read.
    pub(super) fn of_btf(error: &io::Error) -> Self {
        // The directory exists in every kernel, if /sys is mounted.
        let is_absent = error.kind() == io::ErrorKind::NotFound && fs::exists("/sys/kernel/mm").unwrap_or(false);
        if is_absent { Self::KernelOption("CONFIG_DEBUG_INFO_BTF") } else { Self::Btf }
    }

    /// Returns what is missing if the kernel rejects a request with this error; `None` if the cause is unknown.
    pub(super) fn of_rejection(errno: Option<i32>, message: &str) -> Option<Self> {
        Self::of_rejection_in(&Confinement::of_this_process(), errno?, message)
    }

    fn of_rejection_in(process: &Confinement, errno: i32, message: &str) -> Option<Self> {
        match errno {
            libc::ENOSYS if process.is_filtered => Some(Self::SystemCall),
            libc::ENOSYS => Some(Self::KernelOption("CONFIG_BPF_SYSCALL")),
            libc::EPERM if !process.is_in_initial_namespace => Some(Self::InitialUserNamespace),
            libc::EPERM if process.is_locked_down => Some(Self::NoLockdown),
            libc::EPERM => Some(Self::SystemCall),
            // The verifier rejects the helper function as if it did not exist.
            _ if process.is_locked_down && message.contains("bpf_probe_read_kernel") => Some(Self::NoLockdown),
            _ => None,
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Feature => f.write_str("the cargo feature `bpf`"),
            Self::Processor => f.write_str("a processor for which there are programs (x86-64, aarch64)"),
            Self::Capability(name) => f.write_str(name),
            Self::InitialUserNamespace => f.write_str("membership in the initial user namespace"),
            Self::SystemCall => f.write_str("the permission to call bpf(2)"),
            Self::NoLockdown => f.write_str("a kernel that is not locked down for confidentiality"),
            Self::KernelOption(option) => write!(f, "the kernel option {option}"),
            Self::Btf => f.write_str("a readable /sys/kernel/btf/vmlinux"),
            Self::KnownKernel => f.write_str("a kernel with known tracepoints and types"),
            Self::NoPreemptRt => f.write_str("a kernel without PREEMPT_RT"),
            Self::PageSize => f.write_str("pages of 4096 bytes"),
            Self::Helper => f.write_str("a running pindown-helper"),
        }
    }
}

/// The properties of this process and machine that explain a rejection.
#[derive(Debug)]
struct Confinement {
    is_in_initial_namespace: bool,
    /// A seccomp filter applies to the process.
    is_filtered: bool,
    is_locked_down: bool,
}

impl Confinement {
    /// Reads the properties. One that cannot be read has its usual value.
    fn of_this_process() -> Self {
        // The number of the initial user namespace is part of the kernel's interface (PROC_USER_INIT_INO).
        let namespace = fs::read_link("/proc/self/ns/user");
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let seccomp = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
        Self {
            is_in_initial_namespace: !namespace.is_ok_and(|name| name.as_os_str() != "user:[4026531837]"),
            is_filtered: seccomp.is_some_and(|mode| mode.trim() != "0"),
            is_locked_down: lockdown.contains("[confidentiality]"),
        }
    }
}

impl BpfUnavailable {
    /// Returns the requirement that is not met; `None` if the cause is unknown, or if the monitor was available and has
    /// failed.
    #[must_use]
    pub fn requirement(&self) -> Option<Requirement> {
        match self {
            Self::NotBuilt(requirement) => Some(*requirement),
            Self::NoCapability(name) => Some(Requirement::Capability(name)),
            Self::NoBtf(error) => Some(Requirement::of_btf(error)),
            Self::HookMissing(_) => Some(Requirement::TRACEPOINTS),
            Self::BadBtf(_) | Self::HookArguments { .. } => Some(Requirement::KnownKernel),
            Self::PreemptRt => Some(Requirement::NoPreemptRt),
            Self::PageSize(_) => Some(Requirement::PageSize),
            Self::Refused { requirement, .. } => *requirement,
            Self::NoHelper { .. } => Some(Requirement::Helper),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDINARY: Confinement =
        Confinement { is_in_initial_namespace: true, is_filtered: false, is_locked_down: false };

    #[test]
    fn a_rejection_is_explained_by_the_confinement_of_the_process() {
        let of = |process: &Confinement, errno, message| Requirement::of_rejection_in(process, errno, message);
        let option = Some(Requirement::KernelOption("CONFIG_BPF_SYSCALL"));
        assert_eq!(of(&ORDINARY, libc::ENOSYS, ""), option);
        assert_eq!(of(&ORDINARY, libc::EPERM, ""), Some(Requirement::SystemCall));
        assert_eq!(of(&ORDINARY, libc::EINVAL, "cannot use helper bpf_probe_read_kernel#113"), None);
        let filtered = Confinement { is_filtered: true, ..ORDINARY };
        assert_eq!(of(&filtered, libc::ENOSYS, ""), Some(Requirement::SystemCall));
        assert_eq!(of(&filtered, libc::EPERM, ""), Some(Requirement::SystemCall));
        let nested = Confinement { is_in_initial_namespace: false, is_filtered: true, ..ORDINARY };
        assert_eq!(of(&nested, libc::EPERM, ""), Some(Requirement::InitialUserNamespace));
        let locked = Confinement { is_locked_down: true, ..ORDINARY };
        assert_eq!(of(&locked, libc::EPERM, ""), Some(Requirement::NoLockdown));
        let helper = "cannot use helper bpf_probe_read_kernel#113";
        assert_eq!(of(&locked, libc::EINVAL, helper), Some(Requirement::NoLockdown));
        assert_eq!(of(&locked, libc::EINVAL, "R1 invalid mem access"), None);
    }

    #[test]
    fn an_error_names_what_is_missing_and_the_remedy() {
        let absent = || io::Error::from_raw_os_error(libc::ENOENT);
        let rejected = Requirement::of_rejection_in(&ORDINARY, libc::ENOSYS, "");
        let refused = |requirement| BpfUnavailable::Refused { what: "a map", why: "ENOSYS".into(), requirement };
        let named = [
            (BpfUnavailable::NotBuilt(Requirement::Feature), "feature `bpf`"),
            (BpfUnavailable::NotBuilt(Requirement::Processor), "x86-64"),
            (BpfUnavailable::NoCapability("CAP_PERFMON"), "CAP_PERFMON"),
            (BpfUnavailable::NoBtf(absent()), "CONFIG_DEBUG_INFO_BTF"),
            (BpfUnavailable::HookMissing("rss_stat"), "CONFIG_FTRACE"),
            (BpfUnavailable::PreemptRt, "PREEMPT_RT"),
            (BpfUnavailable::PageSize(16_384), "4096"),
            (refused(rejected), "CONFIG_BPF_SYSCALL"),
            (refused(Some(Requirement::InitialUserNamespace)), "initial user namespace"),
            (refused(Some(Requirement::SystemCall)), "permission to call bpf(2)"),
            (BpfUnavailable::NoHelper { path: "/run/x".into(), why: absent() }, "/run/x"),
        ];
        for (error, name) in named {
            let (text, requirement) = (error.to_string(), error.requirement().expect("a requirement"));
            assert!(text.contains(name) && text.contains(&requirement.remedy()), "{text}");
            assert!(requirement.errno() > 0 && !requirement.to_string().is_empty());
        }
        assert_eq!(BpfUnavailable::Closed.requirement(), None);
        assert_eq!(refused(None).to_string(), "the kernel rejected a map: ENOSYS");
    }

    #[test]
    fn types_that_cannot_be_read_are_not_a_missing_option() {
        assert_eq!(Requirement::of_btf(&io::Error::from_raw_os_error(libc::EACCES)), Requirement::Btf);
    }
}
