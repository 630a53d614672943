//! The loaded programs, and the reasons why they cannot be loaded.

use std::error::Error;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::thread::{CapabilitySet, capabilities};

use super::btf::{self, Hooks};
use super::object;
use super::refusal::BpfUnavailable;
use super::requirement::Requirement;
use super::sys;

/// The size in bytes of a watched inode's value: `struct subscribers` in bpf/page.h.
pub(super) const INODE_BYTES: usize = 1024;
/// The number of watched inodes for which the programs have room.
pub(super) const INODES: usize = 16384;
/// The number of address spaces for which the programs have room.
pub(super) const SPACES: usize = 4096;

/// Descriptors of the loaded objects.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) hooks: Hooks,
    pub(super) links: Vec<OwnedFd>,
    pub(super) programs: Vec<OwnedFd>,
    pub(super) inodes: OwnedFd,
    pub(super) query_map: OwnedFd,
    pub(super) identify: OwnedFd,
    pub(super) control: OwnedFd,
    /// The kernel's IDs of programs and maps, in the order of [`Loaded::objects`].
    pub(super) numbers: Vec<u32>,
}

impl Loaded {
    pub(super) fn objects(&self) -> impl Iterator<Item = &OwnedFd> {
        let others = [&self.inodes, &self.query_map, &self.identify, &self.control];
        self.programs.iter().chain(others)
    }

    /// Returns an error if a program was skipped, or if its descriptor no longer refers to it. Makes one system call
    /// for each program.
    pub(super) fn check(&self) -> Result<(), BpfUnavailable> {
        for (program, number) in self.programs.iter().zip(&self.numbers) {
            let found = sys::number_and_misses(program.as_fd());
            match found.map_err(refused("reading the count of skipped programs"))? {
                (found, _) if found != *number => return Err(BpfUnavailable::Closed),
                (_, 0) => {}
                (_, missed) => return Err(BpfUnavailable::Missed(missed)),
            }
        }
        Ok(())
    }

    /// Returns whether each descriptor still refers to its object. The maps of maps ([`Maps`](super::publish::Maps))
    /// are not checked: a process that loads the programs for itself uses them only while it opens the monitor.
    pub(super) fn is_open(&self) -> bool {
        let same = |(object, number): (&OwnedFd, &u32)| sys::number(object.as_fd()).is_ok_and(|found| found == *number);
        self.objects().zip(&self.numbers).all(same)
    }
}

/// Converts an error of the kernel or of the loader, with the name of the rejected request.
pub(super) fn refused<E: Error + 'static>(what: &'static str) -> impl Fn(E) -> BpfUnavailable {
    move |why| {
        let message = with_causes(&why);
        let requirement = Requirement::of_rejection(errno(&why), &message);
        // Only the last lines are relevant. The verifier's long log precedes them.
        let statistics = ["verification time", "stack depth", "processed"];
        let tells = |line: &&str| !line.is_empty() && !statistics.iter().any(|start| line.starts_with(start));
        let lines: Vec<&str> = message.lines().map(str::trim).filter(tells).collect();
        let why = lines[lines.len().saturating_sub(4)..].join(" | ");
        BpfUnavailable::Refused { what, why, requirement }
    }
}

fn with_causes(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {}", with_causes(cause)))
}

/// Returns the errno of the system call that caused the error.
fn errno(error: &(dyn Error + 'static)) -> Option<i32> {
    let own = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    own.or_else(|| errno(error.source()?))
}

/// Checks whether the kernel monitor is possible on this machine, without loading the programs.
pub(super) fn check() -> Result<Hooks, BpfUnavailable> {
    build_and_machine()?;
    check_capabilities()?;
    // A map that is dropped again: the system call may be absent, or not permitted.
    sys::create_page(8).map_err(refused("bpf(2)"))?;
    btf::hooks()
}

/// Like [`check`], for a process with all capabilities.
pub(super) fn supported() -> Result<(), BpfUnavailable> {
    build_and_machine()?;
    btf::hooks().map(drop)
}

/// Checks whether this build has the programs, and what the kernel reveals without its type information.
fn build_and_machine() -> Result<(), BpfUnavailable> {
    object::find()?;
    let size = rustix::param::page_size();
    if size != 4096 {
        return Err(BpfUnavailable::PageSize(size));
    }
    if rustix::system::uname().version().to_string_lossy().contains("PREEMPT_RT") {
        return Err(BpfUnavailable::PreemptRt);
    }
    Ok(())
}

/// Checks the capabilities. CAP_BPF allows loading programs, CAP_PERFMON allows them to read kernel memory;
/// CAP_SYS_ADMIN allows both.
fn check_capabilities() -> Result<(), BpfUnavailable> {
    let held = capabilities(None).map_err(io::Error::from).map_err(refused("reading the capabilities"))?.effective;
    let lacks = |one: CapabilitySet| !held.intersects(one | CapabilitySet::SYS_ADMIN);
    match (lacks(CapabilitySet::BPF), lacks(CapabilitySet::PERFMON)) {
        (true, _) => Err(BpfUnavailable::NoCapability("CAP_BPF")),
        (_, true) => Err(BpfUnavailable::NoCapability("CAP_PERFMON")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_errno_of_an_inner_error_decides_what_is_missing() {
        #[derive(Debug, thiserror::Error)]
        #[error("loading failed")]
        struct Outer(#[source] io::Error);

        let outer = |errno| Outer(io::Error::from_raw_os_error(errno));
        assert_eq!(errno(&outer(libc::ENOSYS)), Some(libc::ENOSYS));
        assert_eq!(errno(&io::Error::from(io::ErrorKind::Unsupported)), None);
        let error = refused("a map")(outer(libc::EINVAL));
        assert!(error.to_string().starts_with("the kernel rejected a map: loading failed: "), "{error}");
        assert_eq!((error.requirement(), error.errno()), (None, libc::EIO));
    }
}
