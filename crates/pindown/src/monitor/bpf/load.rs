//! The loaded programs, and the reasons why they cannot be loaded.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use super::btf::{self, Hooks};
use super::refusal::BpfUnavailable;
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
pub(super) fn refused<E: std::error::Error>(what: &'static str) -> impl Fn(E) -> BpfUnavailable {
    move |why| {
        // Only the last lines are relevant. The verifier's long log precedes them.
        let message = with_causes(&why);
        let statistics = ["verification time", "stack depth", "processed"];
        let tells = |line: &&str| !line.is_empty() && !statistics.iter().any(|start| line.starts_with(start));
        let lines: Vec<&str> = message.lines().map(str::trim).filter(tells).collect();
        BpfUnavailable::Refused { what, why: lines[lines.len().saturating_sub(4)..].join(" | ") }
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {}", with_causes(cause)))
}

/// Checks whether the kernel monitor is possible on this machine, without loading the programs.
pub(super) fn check() -> Result<Hooks, BpfUnavailable> {
    build_and_machine()?;
    capabilities()?;
    btf::hooks()
}

/// Like [`check`], for a process with all capabilities.
pub(super) fn supported() -> Result<(), BpfUnavailable> {
    build_and_machine()?;
    btf::hooks().map(drop)
}

/// Checks whether this build has the programs, and what the kernel reveals without its type information.
fn build_and_machine() -> Result<(), BpfUnavailable> {
    if cfg!(not(pindown_bpf)) {
        return Err(BpfUnavailable::NotBuilt(env!("PINDOWN_BPF_ABSENT")));
    }
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
fn capabilities() -> Result<(), BpfUnavailable> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or("0");
    let have = u64::from_str_radix(line.trim(), 16).unwrap_or(0);
    let lacks = |number: u32| have & (1 << number | 1 << 21) == 0;
    match (lacks(39), lacks(38)) {
        (true, _) => Err(BpfUnavailable::NoCapability("CAP_BPF")),
        (_, true) => Err(BpfUnavailable::NoCapability("CAP_PERFMON")),
        _ => Ok(()),
    }
}
