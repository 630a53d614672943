//! One boot of QEMU with the image and the files of a job. It ends when the program has ended, when the guest has
//! crashed, or at the time limit.

use super::image::Image;
use crate::failure::{Failure, Outcome};
use crate::program::Program;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How the guest's instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Accelerator {
    /// By the processor, with /dev/kvm
    Kvm,
    /// By QEMU's translation, which is slow
    Tcg,
}

impl Accelerator {
    /// Selects KVM if this user may use it and the CPU supports virtualization. Otherwise selects translation.
    pub(super) fn best() -> Self {
        let is_open = File::options().read(true).write(true).open("/dev/kvm").is_ok();
        // Some virtual machines have the device because their guests were built for it, although the CPU lacks the
        // support.
        let is_able = is_able(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
        if is_open && is_able { Self::Kvm } else { Self::Tcg }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Tcg => "TCG",
        }
    }

    fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host,-arch-capabilities"],
            Self::Tcg => ["-accel", "tcg,thread=multi", "-cpu", "max"],
        }
    }
}

/// The options of a boot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) accelerator: Accelerator,
    pub(super) memory_mib: u32,
    pub(super) limit: Duration,
}

/// The result of a boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The program's exit code, or 128 and the signal that ended it.
    Exit(i32),
    /// The guest crashed, or the time limit was reached, before the program had ended. Contains the reason, and whether
    /// the program had started.
    NoResult { why: String, began: bool },
}

/// Boots with the files of a job on top of the image, and passes on each line that the program prints.
///
/// # Errors
/// Fails if QEMU cannot be started. A failure of the guest is not an error but returns [`End::NoResult`].
pub(super) fn boot(
    image: &Image,
    brought: &[u8],
    logs: &Logs,
    settings: Settings,
    mut each: impl FnMut(&str),
) -> Outcome<End> {
    logs.clear()?;
    let mut system = fs::read(&image.base).map_err(Failure::during(image.base.display()))?;
    system.extend_from_slice(brought);
    fs::write(&logs.system, system)?;
    let (console, status) =
        (format!("file:{}", logs.console.display()), format!("file,id=status,path={}", logs.status.display()));
    let memory = settings.memory_mib.to_string();
    let qemu = Program::new("qemu-system-x86_64")
        .args(settings.accelerator.arguments())
        .args(["-smp", "2", "-m", &memory, "-M", "q35", "-display", "none", "-nodefaults", "-no-reboot"])
        .args(["-serial", &console, "-device", "virtio-serial-pci"])
        .args([
            "-chardev",
            "file,id=printed,path=/dev/stdout",
            "-device",
            "virtserialport,chardev=printed,name=printed",
        ])
        .args(["-chardev", &status, "-device", "virtserialport,chardev=status,name=status"])
        .arg("-kernel")
        .arg(&image.kernel)
        .arg("-initrd")
        .arg(&logs.system)
        .args(["-append", "console=ttyS0 panic=-1 mitigations=off quiet rdinit=/init"])
        .limit(settings.limit);
    let start = Instant::now();
    let ended = qemu.lines(&mut each);
    let is_late = ended.is_err() && start.elapsed() >= settings.limit;
    fs::remove_file(&logs.system)?;
    let printed = String::from_utf8_lossy(&fs::read(&logs.status).unwrap_or_default()).into_owned();
    let console = String::from_utf8_lossy(&fs::read(&logs.console).unwrap_or_default()).into_owned();
    if !is_late {
        ended?;
    }
    Ok(end(&printed, &console, is_late.then_some(settings.limit)))
}

/// The files of one boot.
pub(super) struct Logs {
    system: PathBuf,
    status: PathBuf,
    /// The output of the kernel. This file is kept.
    pub(super) console: PathBuf,
}

impl Logs {
    /// Returns the files below a directory, named after the job.
    pub(super) fn new(directory: &Path, name: &str) -> Self {
        let file = |kind: &str| directory.join(format!("{name}.{kind}"));
        Self { system: file("cpio"), status: file("status"), console: file("console") }
    }

    fn clear(&self) -> Outcome {
        for file in [&self.status, &self.console] {
            if file.exists() {
                fs::remove_file(file)?;
            }
        }
        Ok(())
    }
}

/// Returns whether a CPU supports hardware virtualization, according to its lines in /proc/cpuinfo.
fn is_able(cpu: &str) -> bool {
    let flags = cpu.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm")
}

/// Derives the result from the guest's status and the kernel's output.
fn end(status: &str, console: &str, late: Option<Duration>) -> End {
    let code = status.lines().find_map(|line| line.strip_prefix("ended ")?.trim().parse().ok());
    if let Some(code) = code {
        return End::Exit(code);
    }
    let began = status.lines().any(|line| line == "ready");
    let when = if began { "while the program ran" } else { "before the program began" };
    let why = match (panic_in(console), late) {
        (Some(panic), _) => format!("the guest's kernel panicked {when}: {panic}"),
        (None, Some(limit)) => format!("the guest did not end within {} s, {when}", limit.as_secs()),
        (None, None) => format!("the guest ended {when}; the last line of its console: {}", last_line(console)),
    };
    End::NoResult { why, began }
}

/// Returns the reason for a kernel panic from the kernel's output.
fn panic_in(console: &str) -> Option<&str> {
    let words = ["BUG: ", "Oops: ", "general protection fault", "Kernel panic"];
    let found = |line: &&str| words.iter().any(|word| line.contains(word));
    let is_dead = console.contains("Kernel panic");
    console.lines().find(found).filter(|_| is_dead).map(str::trim)
}

fn last_line(console: &str) -> &str {
    console.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("none")
}

#[cfg(test)]
mod tests {
    use super::{End, end, is_able};
    use std::time::Duration;

    fn why(end: &End) -> &str {
        match end {
            End::NoResult { why, .. } => why,
            End::Exit(_) => "",
        }
    }

    #[test]
    fn an_exit_code_is_a_result() {
        assert_eq!(end("ready\nended 101\n", "Kernel panic afterwards", None), End::Exit(101));
    }

    #[test]
    fn processor_must_support_virtualization() {
        assert!(is_able("processor : 0\nflags\t\t: fpu vmx sse\n"));
        assert!(!is_able("flags\t\t: fpu sse\nvmx flags\t: x\n"));
    }

    #[test]
    fn kernel_panic_gives_no_result() {
        let console = "[1.0] fine\n[2.0] BUG: kernel NULL pointer dereference\n[2.1] Kernel panic - not syncing\n";
        let ended = end("ready\n", console, None);
        assert!(matches!(ended, End::NoResult { began: true, .. }));
        assert!(why(&ended).contains("NULL pointer"));
    }

    #[test]
    fn timeout_gives_no_result() {
        let ended = end("", "[1.0] still here\n", Some(Duration::from_secs(9)));
        assert!(matches!(ended, End::NoResult { began: false, .. }));
        assert!(why(&ended).contains("9 s"));
        assert!(why(&end("", "a\nlast\n\n", None)).ends_with("last"));
    }
}
