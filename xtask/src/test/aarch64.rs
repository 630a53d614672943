//! `cargo xtask aarch64` and the step of the same name: tests that are built for AArch64 and run in QEMU's emulation of
//! a process (qemu-user).
//!
//! QEMU executes the instructions of the test programs and passes their system calls to the kernel of this machine. So
//! this finds code that does not compile or behaves differently on AArch64, but no wrong memory order: the processor of
//! this machine orders more accesses than an AArch64 processor has to. A program that starts itself again is not
//! executable on this machine either. The tests start it through the program in the variable PERCALE_RUNNER, so that
//! the system needs no setting (binfmt_misc).

use super::suite::{at_length, count, harness, skips, threads};
use crate::failure::Outcome;
use crate::packages::{self, Needed};
use crate::place::Repository;
use crate::program::Program;
use crate::results::TestEnding;
use crate::steps::Findings;
use crate::toolchain;
use std::collections::BTreeMap;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only tests with this text in their path
    #[arg(long)]
    filter: Option<String>,
    /// The page size in bytes that the programs find. QEMU before 9.0 can report another one than this machine's
    #[arg(long, value_parser = ["4096", "16384", "65536"])]
    page_size: Option<String>,
    /// All tests of the workspace, in their long forms
    #[arg(long)]
    all: bool,
}

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The directory of the C library for AArch64, in which QEMU finds the dynamic loader.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// What the tests need besides the standard library for AArch64.
const NEEDED: [Needed; 3] = [
    Needed { program: "qemu-aarch64", package: "qemu-user" },
    Needed { program: "aarch64-linux-gnu-gcc", package: "gcc-aarch64-linux-gnu" },
    Needed { program: "/usr/aarch64-linux-gnu/lib/libc.so", package: "libc6-dev-arm64-cross" },
];

/// The packages whose unit tests are in the step: those with the rings, the rundown, the journal and the codecs. The
/// others take too long to compile for a step.
const STEP: [&str; 5] = ["percale-memory", "percale-wire", "percale-region", "percale-transport", "pindown"];

/// The further packages whose unit tests are in the command.
const COMMAND: [&str; 2] = ["percale", "percale-conformance"];

/// The test programs in the command: the suite over every transport, and two processes.
const PROGRAMS: [&str; 2] = ["conformance", "processes"];

/// The tests of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Extent {
    Step,
    Command,
    All,
}

/// Tests that QEMU's emulation of a process cannot run, by a part of their names, with the reason. The reasons were found
/// with QEMU 7.2.
const CANNOT_RUN: [(&str, &str); 45] = [
    ("calls_in_a_forked_child_fail", FORKED),
    ("calls_on_inherited_domain_objects_are_rejected", FORKED),
    ("calls_on_inherited_objects_are_rejected", FORKED),
    ("child_does_not_map_the_parent_word", FORKED),
    ("child_does_not_wait_for_inherited_lock", FORKED),
    ("child_finds_no_parent_arena_and_allocates_new_ones", FORKED),
    ("child_future_is_woken_in_a_new_domain", FORKED),
    ("child_gets_no_buffer_and_returns_none", FORKED),
    ("child_has_a_separate_value_and_ignores_parent_locks", FORKED),
    ("child_memory_at_parent_addresses_is_not_overwritten", FORKED),
    ("child_of_raw_clone_does_not_wait_for_parent_locks", FORKED),
    ("child_leaves_a_scope_at_once", FORKED),
    ("child_with_a_new_domain_does_not_disturb_its_parent", FORKED),
    ("forked_child_does_not_invalidate_parent_windows", FORKED),
    ("inherited_counter_takes_and_ends_no_work_in_a_child", FORKED),
    ("inherited_process_value_never_belongs_to_the_child", FORKED),
    ("inherited_sources_are_rejected_by_the_sets_of_a_child", FORKED),
    ("posting_calls_on_inherited_objects_are_rejected", FORKED),
    ("round_does_not_wait_for_executed_or_killed_workers", FORKED),
    ("view_of_the_parents_allocation_fails_in_a_child", FORKED),
    ("a_copy_of_unmapped_memory_is_an_error", COPIED),
    ("memory_under_a_region_may_be_unmapped_and_remapped", POPULATED),
    ("unmapped_or_protected_memory_is_detected", POPULATED),
    ("copy_never_reaches_a_process_with_a_reused_id", COPIED),
    ("random_accesses_with_wrong_keys_are_all_rejected", COPIED),
    ("regions_are_accessed_while_their_target_makes_no_progress", COPIED),
    ("window_access_needs_no_owner_progress", COPIED),
    ("discovery_without_cma_reports_the_reason", DENIED),
    ("long_partition_fails_operations_and_short_one_does_not", INFORMED),
    ("peer_with_a_full_receive_buffer_is_not_lost", INFORMED),
    ("unanswered_probes_of_a_closed_window_are_detected", INFORMED),
    ("a_failed_lock_leaves_no_page_locked", LOCKED),
    ("a_mapping_that_replaces_memory_locked_by_the_program_is_unlocked", LOCKED),
    ("locks_beside_a_lock_of_the_program_end_with_the_registration", LOCKED),
    ("event_flags_changed_by_a_peer_do_not_block_threads", FLAGGED),
    ("arenas_larger_than_memory_are_not_mapped", MAPPED),
    ("revoked_mapping_in_use_counts_against_the_limit", MAPPED),
    ("both_query_methods_agree_on_heap_stack_and_code", LISTED),
    ("lowered_break_is_reported", TRACED),
    ("endless_and_truncated_input_uses_bounded_memory", MEASURED),
    ("idle_shm_peers_cost_little", MEASURED),
    ("idle_tcp_peers_cost_little", MEASURED),
    ("misdirected_frames_use_bounded_memory_and_block_no_peer", MEASURED),
    ("reconnecting_peers_use_bounded_memory_and_block_no_peer", MEASURED),
    ("unknown_peers_use_bounded_memory_and_block_no_peer", MEASURED),
];

const FORKED: &str =
    "QEMU ignores MADV_WIPEONFORK and MADV_DONTFORK, by which a forked child is distinguished from its parent";
const POPULATED: &str = "QEMU ignores MADV_POPULATE_READ and MADV_POPULATE_WRITE, by which missing memory is detected";
const COPIED: &str = "QEMU does not emulate process_vm_readv(2) and process_vm_writev(2)";
const DENIED: &str = "QEMU does not emulate filters of system calls (seccomp)";
const INFORMED: &str = "QEMU returns only 4 bytes of TCP_INFO, by which unacknowledged data is detected";
const LOCKED: &str = "QEMU does not emulate mlock2(2)";
const FLAGGED: &str = "QEMU does not emulate the flags of preadv2(2)";
const MAPPED: &str = "QEMU has no addresses for a mapping of half a terabyte";
const LISTED: &str = "QEMU copies /proc/self/maps when it is opened, so later mappings are missing";
const TRACED: &str = "QEMU does not emulate bpf(2)";
const MEASURED: &str = "the memory of the process includes that of QEMU";

/// `cargo xtask aarch64`.
pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    let extent = if arguments.all { Extent::All } else { Extent::Command };
    packages::ensure(&NEEDED)?;
    let options = toolchain::target_options(place, TARGET)?;
    let findings = check(place, &options, extent, arguments.filter.as_deref(), arguments.page_size.as_deref())?;
    findings.remarks().for_each(|remark| println!("{remark}"));
    println!("{} passed, {} failed, {}", findings.passed, findings.failed, findings.note);
    Ok(findings.failed == 0)
}

/// The step of `cargo xtask test`. Everything that is not for this machine alone must compile.
pub(super) fn step(place: &Repository, filter: Option<&str>, all: bool) -> Outcome<Findings> {
    if let Err(why) = packages::ensure(&NEEDED) {
        return Ok(Findings::skipped(why.to_string()));
    }
    let options = match toolchain::target_options(place, TARGET) {
        Ok(options) => options,
        Err(why) => {
            // Like the database of the step `deny`, this is not part of every machine.
            let remark = format!("nothing was checked, because the standard library for {TARGET} cannot be had: {why}");
            return Ok(Findings::new(0, 0, "without the standard library").with_remarks(vec![remark]));
        }
    };
    let others = ["--quiet", "--workspace", "--exclude", "xtask"];
    place.cargo().arg("check").args(others).args(&options).env(LINKER.0, LINKER.1).passed()?;
    check(place, &options, if all { Extent::All } else { Extent::Step }, filter, None)
}

/// The variable with the linker.
const LINKER: (&str, &str) = ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");

/// Runs the tests. `options` are those of cargo for the target.
fn check(
    place: &Repository,
    options: &[String],
    extent: Extent,
    filter: Option<&str>,
    page_size: Option<&str>,
) -> Outcome<Findings> {
    let mut runner = format!("qemu-aarch64 -L {LIBRARIES}");
    let program = place.cargo().args(["test", "--no-fail-fast"]).args(options);
    let unit_tests = |program: Program, packages: &[&str]| program.args(packages.iter().flat_map(|name| ["-p", name]));
    let mut program = match extent {
        Extent::Step => unit_tests(program, &STEP).arg("--lib"),
        Extent::Command => {
            let program = unit_tests(unit_tests(program, &STEP), &COMMAND).arg("--lib");
            program.args(PROGRAMS.iter().flat_map(|name| ["--test", name]))
        }
        // The provider's tests are C programs, and xtask runs on this machine.
        Extent::All => program.args([
            "--workspace",
            "--exclude",
            "percale-ofi",
            "--exclude",
            "xtask",
            "--lib",
            "--bins",
            "--tests",
        ]),
    };
    if let Some(size) = page_size {
        runner += &format!(" -p {size}");
        program = program.env("PERCALE_PAGE_SIZE", size);
    }
    let program = program.args(["--", "--show-output"]).args(filter);
    let program = program.args(CANNOT_RUN.iter().flat_map(|(name, _)| ["--skip", name]));
    let program = program.env(LINKER.0, LINKER.1).env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", &runner);
    let program = program.env("PERCALE_RUNNER", &runner).env("PERCALE_TIMEOUT_SCALE", "4");
    let found = harness("aarch64", at_length(program.env("RUST_TEST_THREADS", threads()), extent == Extent::All))?;
    if found.is_empty() {
        return Ok(Findings::new(0, 1, "no test matches"));
    }
    let (passed, failed) = (count(&found, TestEnding::Passed), count(&found, TestEnding::Failed));
    let note = format!("{} skipped, {} cannot run", count(&found, TestEnding::Skipped), CANNOT_RUN.len());
    Ok(Findings::new(passed, failed, note).with_remarks(skips(&found).into_iter().chain(cannot_run()).collect()))
}

/// Returns the tests that cannot run, for each reason.
fn cannot_run() -> Vec<String> {
    let mut reasons = BTreeMap::<&str, Vec<&str>>::new();
    CANNOT_RUN.iter().for_each(|(name, why)| reasons.entry(why).or_default().push(name));
    reasons.iter().map(|(why, names)| format!("cannot run, because {why}: {}", names.join(", "))).collect()
}

#[cfg(test)]
mod tests {
    use super::CANNOT_RUN;
    use crate::place::Repository;
    use std::fs;

    #[test]
    fn each_test_that_cannot_run_exists() {
        let sources = Repository::find().unwrap().sources(&["rs"]);
        let texts: String = sources.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        for (name, _) in CANNOT_RUN {
            assert!(texts.contains(&format!("fn {}", name.rsplit("::").next().unwrap())), "there is no test {name}");
        }
    }
}
