//! Describes the machine and the checkout for documents and saved results. The host name is never included.

use crate::place::Repository;
use crate::program::Program;
use std::fs;
use std::thread;
use std::time::Duration;

/// Returns the machine's processor, number of cores and kernel, one per line.
pub(crate) fn description() -> Vec<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    let flags = cpu.lines().find_map(|line| line.strip_prefix("flags")?.split_once(": ").map(|(_, flags)| flags));
    let vectors: Vec<&str> = ["avx2", "avx512f", "erms", "fsrm"]
        .into_iter()
        .filter(|name| flags.unwrap_or_default().split(' ').any(|flag| flag == *name))
        .collect();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let hypervisor =
        if flags.unwrap_or_default().split(' ').any(|flag| flag == "hypervisor") { "virtual" } else { "bare" };
    vec![
        format!("{} ({})", model.unwrap_or(std::env::consts::ARCH), vectors.join(", ")),
        format!("{cores} {hypervisor} cores, {} GiB of memory", memory_gib()),
        printed(Program::new("uname").arg("-srm")).unwrap_or_else(|| "unknown kernel".into()),
        printed(Program::new("rustc").arg("--version")).unwrap_or_else(|| "unknown compiler".into()),
    ]
}

/// Returns the current date in the form 2026-01-31.
pub(crate) fn date() -> String {
    printed(Program::new("date").args(["-u", "+%F"])).unwrap_or_else(|| "unknown date".into())
}

/// Returns the commit that is checked out, followed by `+` if tracked files differ from it.
pub(crate) fn commit(place: &Repository) -> String {
    let git = |arguments: &[&str]| printed(Program::new("git").arg("-C").arg(&place.root).args(arguments));
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".into() };
    let changes = git(&["status", "--porcelain", "--untracked-files=no"]).unwrap_or_default();
    if changes.is_empty() { commit } else { commit + "+" }
}

/// Returns whether this is a run of continuous integration (`CI` is set by `.ci/run` and by the usual services). Such a
/// run must have everything that the checks need. A check that would be skipped or weakened in another run fails in
/// such a run.
pub(crate) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| says_yes(&value))
}

fn says_yes(value: &str) -> bool {
    !matches!(value, "" | "0" | "false")
}

/// Measures for a fifth of a second the fraction of the machine that other processes use, from 0 to 1. The caller's
/// programs must not run at that time.
pub(crate) fn busy() -> f64 {
    let before = ticks();
    thread::sleep(Duration::from_millis(200));
    let after = ticks();
    let (worked, passed) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    if passed == 0 { 0.0 } else { worked as f64 / passed as f64 }
}

/// Returns the time that all cores were busy, and the total time, since the machine started.
fn ticks() -> (u64, u64) {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    ticks_in(text.lines().next().unwrap_or_default())
}

/// Parses the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. The guest times after
/// these are already included in user.
fn ticks_in(line: &str) -> (u64, u64) {
    let fields: Vec<u64> = line.split_whitespace().skip(1).take(8).filter_map(|field| field.parse().ok()).collect();
    let all: u64 = fields.iter().sum();
    let idle: u64 = fields.iter().skip(3).take(2).sum();
    (all - idle, all)
}

fn memory_gib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    total.map_or(0, |kib: u64| kib.div_ceil(1 << 20))
}

fn printed(program: Program) -> Option<String> {
    let output = program.output().ok()?;
    Some(output.success().ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::{says_yes, ticks_in};

    #[test]
    fn ci_variable_may_be_false() {
        assert!(says_yes("true") && says_yes("1"));
        assert!(!says_yes("") && !says_yes("0") && !says_yes("false"));
    }

    #[test]
    fn idle_time_is_not_counted_as_work() {
        assert_eq!(ticks_in("cpu  10 1 5 100 20 2 3 4 50 0"), (25, 145));
        assert_eq!(ticks_in(""), (0, 0));
    }
}
