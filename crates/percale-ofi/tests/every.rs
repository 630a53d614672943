//! Runs a C program that uses every entry of every libfabric table (`tests/c`) over the provider. It opens endpoints in
//! four ways, each with an endpoint that sends to itself, two endpoints of one process, and two endpoints of two
//! processes.
//!
//! The program is compiled against the installed libfabric. `PERCALE_LIBFABRIC` names the directory of another
//! libfabric to run with.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use percale_conformance::device::{LIBRARY, driver_for};
use percale_conformance::provider::{copy_to, has_headers};
use percale_conformance::skipped;
use rustix::process::{Pid, Signal, kill_process_group};

/// Longer than the program ever runs. The program itself ends a scenario that hangs.
const LIMIT: Duration = Duration::from_secs(25 * 60);

/// The paths of the program and the provider, which are built once.
struct Made {
    program: PathBuf,
    provider: PathBuf,
}

fn make() -> Made {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("every-{}", std::process::id()));
    let provider = directory.join("provider");
    copy_to(&provider);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let files = fs::read_dir(sources).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|file| file.extension() == Some(OsStr::new("c")));
    let program = directory.join("every");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    // The directories of percale_fi_ext.h and of pindown.h, which it includes.
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    compiler.arg("-I").arg(package.join("include")).arg("-I").arg(package.join("../pindown/include"));
    let compiled = compiler.args(files).args(["-lfabric", "-lpthread"]).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Made { program, provider }
}

/// The options of a run of the program.
#[derive(Clone, Copy, Default)]
struct Way {
    /// Environment variables.
    set: &'static [(&'static str, &'static str)],
    /// Set to run registration tests with an endpoint that sends to itself.
    alone: bool,
    /// Set to run with a device driver.
    devices: bool,
}

/// Runs the program to its end. If it fails, shows its output.
fn run(what: &str, way: Way, before: &[&str]) {
    run_part(what, None, 300, way, before);
}

/// Like [`run`], but runs only the scenarios whose names contain `part`, and requires at least `least` passed groups.
fn run_part(what: &str, part: Option<&str>, least: usize, way: Way, before: &[&str]) {
    static MADE: OnceLock<Made> = OnceLock::new();
    if !has_headers() {
        return skipped(what, "libfabric's headers are not here (libfabric-dev)");
    }
    let made = MADE.get_or_init(make);
    let mut command = match before {
        [] => Command::new(&made.program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(&made.program).arg("-s");
            command
        }
    };
    if let Some(part) = part {
        command.args(["-o", part]);
    }
    command.env("FI_PROVIDER_PATH", &made.provider).env("FI_PROVIDER", "percale").env_remove("PERCALE_TRANSPORT");
    if way.alone {
        command.arg("-a");
    }
    // The devices of the machine must not affect the result. They are tested separately.
    command.env(LIBRARY, "/nonexistent/libcuda.so.1");
    if way.devices {
        command.env_remove(LIBRARY).envs(driver_for(env!("CARGO_TARGET_TMPDIR")));
        if let Some(named) = std::env::var_os(LIBRARY) {
            command.env(LIBRARY, named);
        }
    }
    command.envs(way.set.iter().copied());
    if let Some(libfabric) = std::env::var_os("PERCALE_LIBFABRIC") {
        command.env("LD_LIBRARY_PATH", libfabric);
    }
    let (mut reader, writer) = std::io::pipe().unwrap();
    command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer).process_group(0);
    // Some providers write a file in the current directory when a program crashes.
    command.current_dir(made.program.parent().unwrap());
    let mut child = command.spawn().unwrap();
    // The command also holds the write end of the pipe.
    drop(command);
    let printed = thread::spawn(move || {
        let mut bytes = Vec::new();
        // If the read fails, the output read so far is shown.
        reader.read_to_end(&mut bytes).ok();
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if start.elapsed() > LIMIT {
            break None;
        }
        thread::sleep(Duration::from_millis(20));
    };
    // The processes that the program forks are in its group. After a successful end the group is empty.
    let group = Pid::from_child(&child);
    if status.is_none() {
        kill_process_group(group, Signal::KILL).ok();
        child.wait().unwrap();
    }
    let printed = printed.join().unwrap();
    let good = status.is_some_and(|status| status.success());
    assert!(good, "{what} ended with {status:?}:\n{}", findings(&printed));
    let well = printed.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(well >= least, "too little was done:\n{printed}");
}

/// Returns the output of the program without the lines of passed groups.
fn findings(printed: &str) -> String {
    let lines = printed.lines().filter(|line| !line.starts_with("ok "));
    lines.take(400).collect::<Vec<_>>().join("\n")
}

const TCP: Way = Way { set: &[("FI_PERCALE_TRANSPORT", "tcp")], alone: false, devices: false };

/// Registration, raw keys, bindings and kinds of memory on one transport (`tests/c/registration*.c`).
macro_rules! registration {
    ($way:expr) => {
        use crate::run_part;

        fn part(name: &str, least: usize) {
            run_part(name, Some(name), least, $way, &[]);
        }

        #[test]
        fn mr_001_mr_002_mr_003_mr_004_mr_005_mr_007_mr_008_mr_009_mr_010_mr_011_mr_012_mr_013_mr_014_from_c() {
            part("registration: calls", 8);
        }

        #[test]
        fn mr_026_mr_027_mr_028_mr_029_mr_030_mr_031_mr_032_mr_033_mr_034_mr_046_mr_047_mr_048_mr_049_mr_050_mr_051_mr_052_mr_053_mr_054_from_c()
         {
            part("registration: calls", 8);
        }

        #[test]
        fn mr_066_mr_067_mr_068_mr_071_mr_072_mr_074_mr_076_hmem_001_hmem_002_hmem_005_hmem_006_hmem_007_hmem_008_from_c()
        {
            part("registration: calls", 8);
        }

        #[test]
        fn mr_016_mr_017_mr_018_mr_019_mr_020_mr_021_mr_022_mr_023_mr_024_mr_025_mr_036_mr_037_mr_038_mr_039_mr_040_mr_041_mr_042_mr_043_mr_057_key_001_from_c()
         {
            part("registration: modes", 6);
        }

        #[test]
        fn key_003_key_004_key_005_key_006_key_007_key_008_key_009_key_010_key_011_key_012_key_013_key_014_key_015_key_016_key_017_key_018_key_019_from_c()
         {
            part("registration: keys", 6);
        }

        #[test]
        fn bind_001_bind_002_bind_003_bind_004_bind_005_bind_006_bind_007_bind_008_bind_009_bind_010_bind_011_bind_012_mr_070_mr_073_mr_075_from_c()
         {
            part("registration: binding", 9);
        }

        #[test]
        fn bind_013_bind_014_bind_015_bind_016_bind_017_bind_018_bind_020_mr_055_mr_056_from_c() {
            part("registration: binding", 9);
        }

        #[test]
        fn mr_058_mr_059_mr_060_mr_061_mr_062_mr_063_mr_064_mr_065_key_002_from_c() {
            part("registration: events", 3);
        }

        #[test]
        fn mw_001_mw_002_mw_003_mw_004_mw_005_mw_007_mw_008_mw_015_mw_017_mw_018_mw_019_mw_020_mw_021_mw_022_mw_023_mw_024_mw_025_mw_026_mw_028_mw_029_mw_030_mw_031_mw_034_mw_035_mw_036_mw_037_mw_043_mw_044_mw_045_mw_046_mw_047_mw_048_mw_049_from_c()
         {
            part("windows", 4);
        }

        #[test]
        fn mr_006_mr_077_mr_078_mr_079_mr_080_mr_082_key_020_key_021_bind_021_bind_022_bind_023_bind_024_cmp_021_dwq_024_dwq_025_dwq_026_dwq_027_trig_020_atm_007_mw_039_mw_051_mw_052_from_c()
         {
            part("specification", 15);
        }
    };
}

mod loopback {
    mod c {
        registration!(crate::Way { set: &[("FI_PERCALE_TRANSPORT", "loopback")], alone: true, devices: false });
    }
}

/// Address vectors. The tests of scalable endpoints are elsewhere.
macro_rules! vectors {
    ($way:expr) => {
        #[test]
        fn av_001_av_002_av_003_av_004_av_005_av_006_av_007_av_009_av_010_av_011_av_012_av_013_av_014_av_015_av_016_av_017_av_018_av_019_av_020_av_021_av_022_from_c()
         {
            crate::run_part("vectors", Some("vectors"), 12, $way, &[]);
        }

        #[test]
        fn av_023_av_024_av_025_av_026_av_027_av_028_av_029_av_030_av_031_av_032_av_033_av_034_av_035_av_036_av_037_av_038_av_039_av_040_av_041_from_c()
         {
            crate::run_part("vectors", Some("vectors"), 12, $way, &[]);
        }

        #[test]
        fn av_042_av_043_av_044_av_045_av_046_av_047_av_048_av_049_av_050_av_054_av_055_av_056_av_057_av_058_from_c() {
            crate::run_part("vectors", Some("vectors"), 12, $way, &[]);
        }
    };
}

/// Contexts, triggers and groups: tests with two endpoints in one process. The names of the test groups contain the
/// requirements.
macro_rules! others {
    ($way:expr) => {
        #[test]
        fn av_008_av_051_av_052_ctx_007_ctx_008_ctx_011_from_c() {
            crate::run_part("contexts", Some("contexts"), 4, $way, &[]);
        }

        #[test]
        fn av_053_from_c() {
            crate::run_part("connections", Some("connections"), 4, $way, &[]);
        }

        #[test]
        fn trig_001_from_c() {
            crate::run_part("what is refused", Some("refused"), 1, $way, &[]);
        }

        #[test]
        fn trig_002_trig_003_trig_005_trig_006_trig_009_trig_010_trig_011_trig_012_trig_014_trig_015_trig_016_trig_017_trig_018_xpu_001_xpu_002_xpu_003_xpu_005_xpu_006_xpu_007_xpu_008_xpu_009_xpu_014_xpu_016_from_c()
        {
            crate::run_part("triggers", Some("triggers"), 17, $way, &[]);
        }

        #[test]
        fn dwq_001_dwq_002_dwq_003_dwq_004_dwq_005_dwq_006_dwq_007_dwq_008_dwq_009_dwq_011_dwq_012_dwq_013_dwq_014_dwq_016_dwq_017_dwq_018_dwq_022_from_c()
         {
            crate::run_part("deferred work", Some("triggers"), 17, $way, &[]);
        }

        #[test]
        fn mr_035_mr_044_mr_045_from_c() {
            crate::run_part("collectives", Some("collectives"), 5, $way, &[]);
        }
    };
}

mod shm {
    #[test]
    fn ofi_001_every_entry_of_every_table() {
        super::run("every entry of libfabric, shared memory", super::Way::default(), &[]);
    }

    mod c {
        registration!(crate::Way::default());
        vectors!(crate::Way::default());
        others!(crate::Way::default());

        /// Runs in which the kernel does not copy between processes, and in which targets execute all accesses.
        mod executed {
            registration!(crate::Way {
                set: &[("FI_PERCALE_CMA", "0"), ("FI_PERCALE_TRUST", "none")],
                alone: false,
                devices: false
            });
        }
    }
}

mod tcp {
    #[test]
    fn ofi_001_every_entry_of_every_table() {
        super::run("every entry of libfabric, tcp", super::TCP, &[]);
    }

    mod c {
        registration!(crate::TCP);
        vectors!(crate::TCP);
        others!(crate::TCP);
    }
}

/// Device memory, with the machine's driver or with a double of it (`tests/c/devices.c`). The names of the test groups
/// contain the requirements.
mod devices {
    use super::{Way, run_part};

    /// Defines a test for each transport, with and without copies between devices.
    macro_rules! devices {
        ($($transport:ident: $alone:expr, $set:expr;)+) => {
            $(mod $transport {
                mod c {
                    #[test]
                    fn hmem_003_hmem_004_hmem_005_hmem_006_hmem_007_hmem_008_hmem_009_hmem_011_hmem_012_hmem_013_hmem_014_hmem_015_hmem_016_hmem_017_rcache_015_rcache_016_rcache_017_rcache_019_xpu_004_xpu_020_mr_081_from_c()
                     {
                        crate::devices::run(crate::Way { set: $set, alone: $alone, devices: true });
                    }
                }
            })+
        };
    }

    fn run(way: Way) {
        run_part("devices from C", Some("devices"), 9, way, &[]);
    }

    devices! {
        loopback: true, &[("FI_PERCALE_TRANSPORT", "loopback")];
        shm: false, &[("FI_PERCALE_TRANSPORT", "shm")];
        disabled: false, &[("FI_PERCALE_TRANSPORT", "shm"), ("FI_HMEM_DISABLE_P2P", "1")];
        unmonitored: false, &[
            ("FI_MR_CUDA_CACHE_MONITOR_ENABLED", "0"),
            ("FI_MR_ROCR_CACHE_MONITOR_ENABLED", "0"),
            ("FI_MR_ZE_CACHE_MONITOR_ENABLED", "0"),
        ];
        monitored: false, &[
            ("FI_MR_CUDA_CACHE_MONITOR_ENABLED", "1"),
            ("FI_MR_ROCR_CACHE_MONITOR_ENABLED", "1"),
            ("FI_MR_ZE_CACHE_MONITOR_ENABLED", "1"),
        ];
        tcp: false, &[("FI_PERCALE_TRANSPORT", "tcp")];
    }
}

/// The registration cache, as a C program uses it (`tests/c/cache.c`). The names of the test groups contain the
/// requirements.
mod cache {
    use super::{Way, run_part};

    #[test]
    fn rcache_001_rcache_003_rcache_004_rcache_005_rcache_006_rcache_007_rcache_008_rcache_009_rcache_010_rcache_011_rcache_012_rcache_013_rcache_014_rcache_020_rcache_021_rcache_022_rcache_023_rcache_027_from_c()
     {
        run_part("the registration cache from C", Some("registration cache"), 8, Way::default(), &[]);
    }
}

#[test]
fn ofi_002_valgrind_finds_nothing_and_nothing_is_lost() {
    let what = "every entry of libfabric, under valgrind";
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        return skipped(what, "valgrind is not installed");
    }
    // Valgrind runs one thread at a time. Without fair scheduling, the polling thread of the program delays the
    // connecting thread for seconds, which is not a defect.
    let valgrind =
        ["valgrind", "-q", "--fair-sched=try", "--error-exitcode=9", "--num-callers=20", "--leak-check=full"];
    let lost = ["--show-leak-kinds=definite,indirect", "--errors-for-leak-kinds=definite,indirect"];
    // A forked child does not release the memory that it inherited, so in the child all of it counts as leaked.
    let set = &[("FI_PERCALE_CONNECT_TIMEOUT", "60000"), ("EVERY_WITHOUT", "forked")];
    let patient = Way { set, alone: false, devices: false };
    run(what, patient, &[&valgrind[..], &lost[..]].concat());
}
