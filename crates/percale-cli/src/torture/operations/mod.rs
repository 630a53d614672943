//! The operations on memory, as data.

mod address;
mod advice;
mod fault;
mod file;
mod process;

use std::io;

use pindown::mapping::Mappings;
use serde::{Deserialize, Serialize};

use super::helper_process::HelperProcess;
use super::kinds::{MemoryKind, Trait};
use super::memory::Memory;
use super::ring::TestRing;

/// An operation that an application might execute.
pub(super) struct Operation {
    pub(super) name: &'static str,
    /// The properties that the memory must have.
    pub(super) needs: &'static [Trait],
    /// Executes the operation.
    ///
    /// # Errors
    /// Fails if the kernel rejects the operation for this memory, or does not support it.
    pub(super) apply: fn(&mut Memory, &mut Tools) -> io::Result<()>,
    /// How the operation is executed.
    pub(super) way: ExecutionMode,
}

/// How an operation is executed. Only the differences that matter to the caller are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ExecutionMode {
    /// By a system call of this process, any number of times, and also by several threads at the same time.
    Call,
    /// By this process, with additional effects.
    Once,
    /// By this process, which maps memory for the operation at an address that the kernel chooses.
    Maps,
    /// By another process.
    Other,
    /// By kernel threads on behalf of this process. Some monitors keep no registrations of the process afterwards.
    Worker,
}

/// The tools that operations use.
pub(super) struct Tools {
    pub(super) ring: TestRing,
    pub(super) mappings: Mappings,
    hand: Option<HelperProcess>,
}

impl Tools {
    /// Makes the tools for operations that are executed in this way. All processes and mappings must exist before
    /// memory is registered.
    pub(super) fn for_way(way: ExecutionMode) -> io::Result<Self> {
        let hand = if way == ExecutionMode::Other { Some(HelperProcess::start()?) } else { None };
        Ok(Self { ring: TestRing::new()?, mappings: Mappings::open()?, hand })
    }

    /// Returns the other process.
    pub(super) fn helper(&mut self) -> io::Result<&mut HelperProcess> {
        self.hand.as_mut().ok_or_else(|| io::Error::other("no other process was started"))
    }
}

impl Operation {
    /// Returns the operation with this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        all().find(|operation| operation.name == name)
    }

    /// Returns whether the operation is possible on this kind of memory.
    pub(super) fn suits(&self, kind: &MemoryKind) -> bool {
        self.needs.iter().all(|needed| kind.traits.contains(needed))
    }
}

/// Returns all operations.
pub(super) fn all() -> impl Iterator<Item = &'static Operation> {
    address::ALL.iter().chain(advice::ALL).chain(fault::ALL).chain(file::ALL).chain(process::ALL)
}
