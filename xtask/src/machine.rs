//! What this machine and this checkout are, for documents and saved results. Never names the machine itself.

use crate::place::Place;
use crate::program::Program;
use std::fs;

/// The machine's processor, cores and kernel, in one line each.
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
        said(Program::new("uname").arg("-srm")).unwrap_or_else(|| "unknown kernel".into()),
        said(Program::new("rustc").arg("--version")).unwrap_or_else(|| "unknown compiler".into()),
    ]
}

/// Today's date, as 2026-01-31.
pub(crate) fn date() -> String {
    said(Program::new("date").args(["-u", "+%F"])).unwrap_or_else(|| "an unknown day".into())
}

/// The commit that is checked out, with `+` if tracked files differ from it.
pub(crate) fn commit(place: &Place) -> String {
    let git = |arguments: &[&str]| said(Program::new("git").arg("-C").arg(&place.root).args(arguments));
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".into() };
    let changes = git(&["status", "--porcelain", "--untracked-files=no"]).unwrap_or_default();
    if changes.is_empty() { commit } else { commit + "+" }
}

fn memory_gib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    total.map_or(0, |kib: u64| kib.div_ceil(1 << 20))
}

fn said(program: Program) -> Option<String> {
    let output = program.output().ok()?;
    Some(output.success().ok()?.trim().to_owned())
}
