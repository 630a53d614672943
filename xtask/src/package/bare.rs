//! A bare machine: a minimal Debian system below the target directory, in which packaging/check-installed.sh installs,
//! uses and removes the packages.
//!
//! The system is made once by debootstrap, and copied for each run. The run has its own mounts and processes, which end
//! with it. It uses the kernel and the network of this machine.

use super::release::Release;
use super::{RESULTS, finished};
use crate::failure::{Failure, Outcome};
use crate::interop;
use crate::packages::{self, Needed};
use crate::place::Repository;
use crate::program::{Program, on_path};
use crate::steps::Findings;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const NEEDED: [Needed; 2] =
    [Needed { program: "debootstrap", package: "debootstrap" }, Needed { program: "lintian", package: "lintian" }];

/// The folders of the packages and of MPICH in the bare machine.
const PACKAGES: &str = "packages";
const MPICH: &str = "mpich";

/// The MPI program: a token is passed through all ranks.
const RING: &str = "xtask/src/interop/c/ring.c";

/// Runs in namespaces of its own: `$1` is the machine, the other arguments are the program in it.
const ENTER: &str = "set -eu
machine=$1
shift
mount -t proc proc \"$machine/proc\"
mount --rbind /sys \"$machine/sys\"
mount --rbind /dev \"$machine/dev\"
mount -t tmpfs tmpfs \"$machine/run\"
mount -t tmpfs tmpfs \"$machine/tmp\"
exec env -i HOME=/root TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    chroot \"$machine\" \"$@\"";

/// The time limit of a run. Most of it is the time that apt needs for the compilers and the MPI library.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Checks the packages with lintian, and installs, uses and removes them on a bare machine.
pub(super) fn check(place: &Repository, results: &Path, release: &Release) -> Outcome<Findings> {
    if !rustix::process::geteuid().is_root() || on_path("apt-get").is_none() {
        return Ok(Findings::skipped("installing packages on a bare machine needs root, on Debian"));
    }
    packages::ensure(&NEEDED)?;
    let all = finished(results)?;
    let is_debian = |path: &&PathBuf| path.extension().is_some_and(|its| its == "deb");
    let lintian = lint(all.iter().filter(is_debian));
    let directory = place.target.join(RESULTS).join("bare");
    let machine = copy(&directory)?;
    let inside = machine.join(PACKAGES);
    fs::create_dir_all(inside.join("c"))?;
    for package in &all {
        fs::copy(package, inside.join(package.file_name().unwrap_or_default()))?;
    }
    fs::copy(place.root.join(RING), inside.join("c/ring.c"))?;
    fs::copy(place.root.join("packaging/check-installed.sh"), inside.join("check-installed.sh"))?;
    let mpich = mpich(place, &machine);
    let mounts = own_mounts(&fs::read_to_string("/proc/self/mountinfo")?);
    let enter = Program::new("unshare").args(mounts).args(["--pid", "--fork", "--kill-child"]);
    let enter = enter.args(["sh", "-c", ENTER, "enter"]);
    let script = format!("/{PACKAGES}/check-installed.sh");
    let enter = enter.arg(&machine).arg("bash").arg(script).arg(format!("/{PACKAGES}"));
    let enter = if mpich.is_ok() { enter.arg(format!("/{MPICH}")) } else { enter };
    let (mut passed, mut failed) = (0, 0);
    let mut last = String::new();
    let status = enter.limit(LIMIT).lines(|line| {
        passed += usize::from(line.starts_with("  ok "));
        failed += usize::from(line.starts_with("  FAILED "));
        println!("  {line}");
        last = line.to_owned();
    })?;
    if failed == 0 && !status.success() {
        return Err(Failure::new(format!("the script ended before its last check ({status}); its last line: {last}")));
    }
    fs::remove_dir_all(&machine).map_err(Failure::during(format!("removing {}", machine.display())))?;
    match lintian {
        Ok(()) => passed += 1,
        Err(failure) => {
            println!("  FAILED lintian: {failure}");
            failed += 1;
        }
    }
    let remarks = mpich.err().map(|why| format!("MPICH was left out: {why}")).into_iter().collect();
    let note = format!("checks of {} files, version {}", all.len(), release.debian());
    Ok(Findings::new(passed, failed, note).with_remarks(remarks))
}

/// Returns the options with which unshare(1) gives a program mounts of its own, for this list of mounts. In a machine whose
/// root is not a mount (chroot), unshare cannot make the mounts private. They need not be, if none of them is shared.
fn own_mounts(mounts: &str) -> &'static [&'static str] {
    if mounts.contains(" shared:") { &["--mount"] } else { &["--mount", "--propagation", "unchanged"] }
}

/// Fails if lintian reports an error.
fn lint<'a>(packages: impl Iterator<Item = &'a PathBuf>) -> Outcome {
    let lintian = Program::new("lintian").args(["--fail-on", "error", "--display-level", ">=warning"]);
    let output = lintian.arg("--allow-root").args(packages).env("LC_ALL", "C.UTF-8").output()?;
    output.stdout.lines().for_each(|line| println!("  {line}"));
    output.success().map(drop)
}

/// Returns a new copy of the minimal system, which is made if it is missing.
fn copy(directory: &Path) -> Outcome<PathBuf> {
    let (base, machine) = (directory.join("base"), directory.join("machine"));
    // The file exists when the system is complete.
    let complete = directory.join("complete");
    if !complete.exists() {
        println!("  making a minimal system by debootstrap");
        if base.exists() {
            fs::remove_dir_all(&base)?;
        }
        fs::create_dir_all(directory)?;
        let debootstrap = Program::new("debootstrap").args(["--variant=minbase"]).arg(suite()?).arg(&base);
        debootstrap.limit(LIMIT).output()?.success()?;
        // debootstrap configures only the first of these suites, and its packages lack security updates.
        let sources = Path::new("/etc/apt/sources.list.d/debian.sources");
        if sources.exists() {
            fs::copy(sources, base.join("etc/apt/sources.list.d/debian.sources"))?;
            fs::remove_file(base.join("etc/apt/sources.list")).ok();
        }
        fs::write(&complete, "")?;
    }
    if machine.exists() {
        fs::remove_dir_all(&machine)?;
    }
    Program::new("cp").arg("--archive").arg(&base).arg(&machine).output()?.success()?;
    fs::copy("/etc/resolv.conf", machine.join("etc/resolv.conf")).ok();
    Ok(machine)
}

/// Returns the name of this machine's Debian release. Packages that are built on it need its C library or a newer one.
fn suite() -> Outcome<String> {
    let text = fs::read_to_string("/etc/os-release")?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.map(str::to_owned).ok_or_else(|| Failure::new("/etc/os-release does not name a release of Debian"))
}

/// Copies MPICH and a program that was compiled with it to the bare machine. Debian's MPICH does not use libfabric.
fn mpich(place: &Repository, machine: &Path) -> Outcome {
    let from = interop::mpich(place).map_err(Failure::new)?;
    let to = machine.join(MPICH);
    for folder in ["lib", "bin"] {
        fs::create_dir_all(to.join(folder))?;
    }
    let copy = "cp -a \"$1\"/lib/libmpi* \"$1\"/lib/mpich \"$2\"/lib && cp -a \"$1\"/bin/mpiexec* \"$1\"/bin/hydra* \"$2\"/bin";
    Program::new("sh").args(["-c", copy, "copy"]).arg(&from).arg(&to).output()?.success()?;
    let compile = Program::new(from.join("bin/mpicc")).args(["-O1", "-o"]).arg(to.join("ring"));
    compile.arg(place.root.join(RING)).output()?.success().map(drop)
}

#[cfg(test)]
mod tests {
    use super::own_mounts;

    #[test]
    fn mounts_are_made_private_if_one_is_shared() {
        let root = "28 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n";
        assert_eq!(own_mounts(root), ["--mount", "--propagation", "unchanged"]);
        assert_eq!(own_mounts(&format!("{root}30 28 0:24 / /sys rw shared:7 - sysfs sysfs rw\n")), ["--mount"]);
    }
}
