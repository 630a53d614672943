//! The processes that make the checks. A check may end its process, when a filter kills it or a driver crashes, or may
//! never return. So each group of checks has a process of its own, a hidden subcommand.

use std::io;
use std::path::Path;

use clap::ValueEnum;

use super::finding::ProbeLine;
use super::libfabric::library;
use super::surroundings::Surroundings;
use super::{calls, devices, environment, kernel_monitor, monitors, resources, transports, user_namespace};
use crate::worker::answer;

/// A group of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Probe {
    Environment,
    Calls,
    UserNamespace,
    Transports,
    KernelMonitor,
    Monitors,
    IoUring,
    Cuda,
    /// Loads one libfabric.
    Libfabric,
}

impl Probe {
    /// The groups that are made once, each with its checks.
    pub(super) const ALL: [(Self, &'static [&'static str]); 8] = [
        (
            Self::Environment,
            &[
                "kernel",
                "user",
                "container",
                "open-files",
                "threads",
                "file-size",
                "address-space",
                "locked-memory",
                "dev-shm",
            ],
        ),
        (Self::Calls, &["membarrier"]),
        (Self::UserNamespace, &["user-namespaces"]),
        (
            Self::Transports,
            &[
                "memfd",
                "eventfd",
                "futex",
                "unix-sockets",
                "pidfd",
                "descriptor-passing",
                "cross-memory-attach",
                "shared-memory",
                "rdma",
                "tcp",
                "loopback",
                "interfaces",
                "default-route",
            ],
        ),
        (Self::KernelMonitor, &["bpf", "helper", "kernel-monitor"]),
        (Self::Monitors, &["userfaultfd", "sealed-memory"]),
        (Self::IoUring, &["io-uring"]),
        (Self::Cuda, &["cuda"]),
    ];

    /// Returns the name on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Makes the checks of a group, and writes the lines for the parent. The process ends with its parent.
pub(crate) fn run(probe: Probe, file: Option<&Path>) -> io::Result<()> {
    // A filter may reject the call. The process then ends when it has made its checks.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).ok();
    let surroundings = Surroundings::here();
    let report = &mut |line: ProbeLine| answer(&line);
    match probe {
        Probe::Environment => {
            for found in environment::findings(&surroundings).into_iter().chain(resources::findings(&surroundings)) {
                report(ProbeLine::Finding(found))?;
            }
        }
        Probe::Calls => calls::probe(&surroundings, report)?,
        Probe::UserNamespace => {
            report(ProbeLine::Trying("unshare".into()))?;
            report(ProbeLine::Finding(user_namespace::finding(&surroundings)))?;
        }
        Probe::Transports => transports::probe(&surroundings, report)?,
        Probe::KernelMonitor => kernel_monitor::probe(&surroundings, report)?,
        Probe::Monitors => monitors::probe(&surroundings, report)?,
        Probe::IoUring => {
            report(ProbeLine::Trying("io_uring_setup".into()))?;
            report(ProbeLine::Finding(devices::io_uring(&surroundings)))?;
        }
        Probe::Cuda => report(ProbeLine::Finding(devices::cuda(&surroundings)))?,
        Probe::Libfabric => {
            let file = file.ok_or(io::ErrorKind::InvalidInput)?;
            report(ProbeLine::Library(library::describe(file)))?;
        }
    }
    report(ProbeLine::Done)
}

#[cfg(test)]
mod tests {
    use super::super::checks::{CHECKS, FILTER};
    use super::*;

    #[test]
    fn each_check_is_made_by_one_group() {
        // These three are judged from the lines of several processes.
        let mut made: Vec<&str> = vec![FILTER, "libfabric", "provider"];
        made.extend(Probe::ALL.iter().flat_map(|(_, checks)| checks.iter()));
        made.sort_unstable();
        let mut listed: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
        listed.sort_unstable();
        assert_eq!(made, listed);
        assert_eq!(Probe::UserNamespace.name(), "user-namespace");
    }
}
