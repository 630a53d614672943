//! The processes that make the checks. A check may end its process, when a filter kills it or a driver crashes, or may
//! never return. So each group of such checks has a process of its own, a hidden subcommand.

use std::io;
use std::path::Path;

use clap::ValueEnum;

use super::finding::{ProbeLine, Report};
use super::libfabric::library;
use super::surroundings::Surroundings;
use super::{calls, devices, kernel_monitor, monitors, transports, user_namespace};
use crate::worker::answer;

/// A group of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Probe {
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
    pub(super) const ALL: [(Self, &'static [&'static str]); 7] = [
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
///
/// # Errors
/// Fails if the checks cannot be made, or the lines cannot be written.
pub(crate) fn run(probe: Probe, file: Option<&Path>) -> io::Result<()> {
    // A filter may reject the call. The process then ends when it has made its checks.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).ok();
    let report = &mut |line: ProbeLine| answer(&line);
    let made = make_checks(probe, file, report);
    report(made.as_ref().map_or_else(|error| ProbeLine::Failed(error.to_string()), |()| ProbeLine::Done))?;
    made
}

fn make_checks(probe: Probe, file: Option<&Path>, report: Report<'_>) -> io::Result<()> {
    let surroundings = Surroundings::here();
    match probe {
        Probe::Calls => calls::probe(&surroundings, report)?,
        Probe::UserNamespace => {
            report(ProbeLine::Trying("unshare".into()))?;
            report(ProbeLine::Finding(user_namespace::finding(&surroundings)?))?;
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::checks::{CHECKS, FILTER};
    use super::super::{environment, resources};
    use super::*;

    #[test]
    fn each_check_is_made_by_one_group() {
        // These three are judged from the lines of several processes.
        let mut made: Vec<&str> = vec![FILTER, "libfabric", "provider"];
        // These are made without a process of their own.
        let user = Surroundings::example();
        let own = [environment::findings(&user), resources::findings(&user)].concat();
        made.extend(own.iter().map(|found| found.check.as_str()));
        made.extend(Probe::ALL.iter().flat_map(|(_, checks)| checks.iter()));
        made.sort_unstable();
        let mut listed: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
        listed.sort_unstable();
        assert_eq!(made, listed);
        assert_eq!(Probe::UserNamespace.name(), "user-namespace");
    }
}
