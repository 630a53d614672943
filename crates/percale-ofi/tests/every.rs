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

use percale_conformance::device::{LIBRARY, POOLS, driver_for};
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
struct RunOptions {
    /// Environment variables.
    set: &'static [(&'static str, &'static str)],
    /// Set to run registration tests with an endpoint that sends to itself.
    alone: bool,
    /// Set to run with a device driver.
    devices: bool,
}

/// Runs the program to its end. If it fails, shows its output.
fn run(what: &str, way: RunOptions, before: &[&str]) {
    run_part(what, None, 300, way, before);
}

/// Like [`run`], but runs only the scenarios with `part` in their names, and requires at least `least` passed groups.
fn run_part(what: &str, part: Option<&str>, least: usize, way: RunOptions, before: &[&str]) {
    static MADE: OnceLock<Made> = OnceLock::new();
    if !has_headers() {
        return skipped("libfabric", what, "libfabric's headers are not installed (libfabric-dev)");
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
    assert!(well >= least, "too few checks succeeded:\n{printed}");
}

/// Returns the output of the program without the lines of passed groups.
fn findings(printed: &str) -> String {
    let lines = printed.lines().filter(|line| !line.starts_with("ok "));
    lines.take(400).collect::<Vec<_>>().join("\n")
}

const TCP: RunOptions = RunOptions { set: &[("FI_PERCALE_TRANSPORT", "tcp")], alone: false, devices: false };

/// Tests of registration, raw keys, bindings, kinds of memory and windows on one transport (`registration*.c`,
/// `windows.c` and `specification.c` in `tests/c`).
macro_rules! registration {
    ($way:expr) => {
        use crate::run_part;

        fn part(name: &str, least: usize) {
            run_part(name, Some(name), least, $way, &[]);
        }

        /// Requirements: MR-001, MR-002, MR-003, MR-004, MR-005, MR-007, MR-008, MR-009, MR-010, MR-011,
        /// MR-012, MR-013, MR-014, MR-026, MR-027, MR-028, MR-029, MR-030, MR-031, MR-032, MR-033, MR-034,
        /// MR-046, MR-047, MR-048, MR-049, MR-050, MR-051, MR-052, MR-053, MR-054, MR-066, MR-067, MR-068,
        /// MR-071, MR-072, MR-074, MR-076, HMEM-001, HMEM-002, HMEM-005, HMEM-006, HMEM-007, HMEM-008.
        #[test]
        fn registration_calls_pass_from_c() {
            part("registration: calls", 8);
        }

        /// Requirements: MR-016, MR-017, MR-018, MR-019, MR-020, MR-021, MR-022, MR-023, MR-024, MR-025,
        /// MR-036, MR-037, MR-038, MR-039, MR-040, MR-041, MR-042, MR-043, MR-057, KEY-001.
        #[test]
        fn registration_modes_pass_from_c() {
            part("registration: modes", 6);
        }

        /// Requirements: KEY-003, KEY-004, KEY-005, KEY-006, KEY-007, KEY-008, KEY-009, KEY-010, KEY-011,
        /// KEY-012, KEY-013, KEY-014, KEY-015, KEY-016, KEY-017, KEY-018, KEY-019.
        #[test]
        fn registration_keys_pass_from_c() {
            part("registration: keys", 6);
        }

        /// Requirements: BIND-001, BIND-002, BIND-003, BIND-004, BIND-005, BIND-006, BIND-007, BIND-008,
        /// BIND-009, BIND-010, BIND-011, BIND-012, MR-070, MR-073, MR-075, BIND-013, BIND-014, BIND-015,
        /// BIND-016, BIND-017, BIND-018, BIND-020, MR-055, MR-056.
        #[test]
        fn registration_bindings_pass_from_c() {
            part("registration: binding", 9);
        }

        /// Requirements: MR-058, MR-059, MR-060, MR-061, MR-062, MR-063, MR-064, MR-065, KEY-002.
        #[test]
        fn registration_events_pass_from_c() {
            part("registration: events", 3);
        }

        /// Requirements: MW-001, MW-002, MW-003, MW-004, MW-005, MW-007, MW-008, MW-015, MW-017, MW-018,
        /// MW-019, MW-020, MW-021, MW-022, MW-023, MW-024, MW-025, MW-026, MW-028, MW-029, MW-030, MW-031,
        /// MW-034, MW-035, MW-036, MW-037, MW-043, MW-044, MW-045, MW-046, MW-047, MW-048, MW-049.
        #[test]
        fn windows_pass_from_c() {
            part("windows", 4);
        }

        /// Requirements: MR-006, MR-077, MR-078, MR-079, MR-080, MR-082, KEY-020, KEY-021, BIND-021,
        /// BIND-022, BIND-023, BIND-024, CMP-021, DWQ-024, DWQ-025, DWQ-026, DWQ-027, TRIG-020, ATM-007,
        /// MW-039, MW-051, MW-052.
        #[test]
        fn specification_decisions_pass_from_c() {
            part("specification", 15);
        }
    };
}

mod loopback {
    mod c {
        registration!(crate::RunOptions { set: &[("FI_PERCALE_TRANSPORT", "loopback")], alone: true, devices: false });
    }
}

/// Address vectors. The tests of scalable endpoints are elsewhere.
macro_rules! vectors {
    ($way:expr) => {
        /// Requirements: AV-001, AV-002, AV-003, AV-004, AV-005, AV-006, AV-007, AV-009, AV-010, AV-011,
        /// AV-012, AV-013, AV-014, AV-015, AV-016, AV-017, AV-018, AV-019, AV-020, AV-021, AV-022, AV-023,
        /// AV-024, AV-025, AV-026, AV-027, AV-028, AV-029, AV-030, AV-031, AV-032, AV-033, AV-034, AV-035,
        /// AV-036, AV-037, AV-038, AV-039, AV-040, AV-041, AV-042, AV-043, AV-044, AV-045, AV-046, AV-047,
        /// AV-048, AV-049, AV-050, AV-054, AV-055, AV-056, AV-057, AV-058.
        #[test]
        fn address_vectors_pass_from_c() {
            crate::run_part("vectors", Some("vectors"), 12, $way, &[]);
        }
    };
}

/// Contexts, triggers and groups: tests with two endpoints in one process. The names of the test groups contain the
/// requirements.
macro_rules! others {
    ($way:expr) => {
        /// Requirements: AV-008, AV-051, AV-052, CTX-007, CTX-008, CTX-011.
        #[test]
        fn contexts_pass_from_c() {
            crate::run_part("contexts", Some("contexts"), 4, $way, &[]);
        }

        /// Requirements: AV-053.
        #[test]
        fn connections_pass_from_c() {
            crate::run_part("connections", Some("connections"), 4, $way, &[]);
        }

        /// Requirements: TRIG-001.
        #[test]
        fn refused_triggers_pass_from_c() {
            crate::run_part("rejected triggers", Some("refused"), 1, $way, &[]);
        }

        /// Requirements: TRIG-002, TRIG-003, TRIG-005, TRIG-006, TRIG-009, TRIG-010, TRIG-011, TRIG-012,
        /// TRIG-014, TRIG-015, TRIG-016, TRIG-017, TRIG-018, XPU-001, XPU-002, XPU-003, XPU-005, XPU-006,
        /// XPU-007, XPU-008, XPU-009, XPU-014, XPU-016, DWQ-001, DWQ-002, DWQ-003, DWQ-004, DWQ-005,
        /// DWQ-006, DWQ-007, DWQ-008, DWQ-009, DWQ-011, DWQ-012, DWQ-013, DWQ-014, DWQ-016, DWQ-017,
        /// DWQ-018, DWQ-022.
        #[test]
        fn triggers_and_deferred_work_pass_from_c() {
            crate::run_part("triggers", Some("triggers"), 17, $way, &[]);
        }

        /// Requirements: MR-035, MR-044, MR-045.
        #[test]
        fn collectives_pass_from_c() {
            crate::run_part("collectives", Some("collectives"), 5, $way, &[]);
        }
    };
}

mod shm {
    /// Requirements: OFI-001.
    #[test]
    fn every_entry_of_every_table() {
        super::run("every entry of libfabric, shared memory", super::RunOptions::default(), &[]);
    }

    mod c {
        registration!(crate::RunOptions::default());
        vectors!(crate::RunOptions::default());
        others!(crate::RunOptions::default());

        /// Runs in which the kernel does not copy between processes, and in which targets execute all accesses.
        mod executed {
            registration!(crate::RunOptions {
                set: &[("FI_PERCALE_CMA", "0"), ("FI_PERCALE_TRUST", "none")],
                alone: false,
                devices: false
            });
        }
    }
}

mod tcp {
    /// Requirements: OFI-001.
    #[test]
    fn every_entry_of_every_table() {
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
    use super::{RunOptions, run_part};

    /// Defines one test for each configuration: a transport and environment variables.
    macro_rules! devices {
        ($($transport:ident: $alone:expr, $set:expr;)+) => {
            $(mod $transport {
                mod c {
                    /// Requirements: HMEM-003, HMEM-004, HMEM-005, HMEM-006, HMEM-007,
                    /// HMEM-008, HMEM-009, HMEM-011, HMEM-012, HMEM-013, HMEM-014, HMEM-015,
                    /// HMEM-016, HMEM-017, RCACHE-015, RCACHE-016, RCACHE-017, RCACHE-019,
                    /// XPU-004, XPU-020, MR-081.
                    #[test]
                    fn device_memory_tests_pass_from_c() {
                        crate::devices::run(crate::RunOptions { set: $set, alone: $alone, devices: true });
                    }
                }
            })+
        };
    }

    fn run(way: RunOptions) {
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
        // For the double of the driver: memory of pools, and mapped memory.
        pools: false, &[("FI_PERCALE_TRANSPORT", "shm"), (crate::POOLS, "1")];
        mapped: false, &[("FI_PERCALE_TRANSPORT", "tcp"), (crate::POOLS, "mapped")];
    }
}

/// The registration cache, as a C program uses it (`tests/c/cache.c`). The names of the test groups contain the
/// requirements.
mod cache {
    use super::{RunOptions, run_part};

    /// Requirements: RCACHE-001, RCACHE-003, RCACHE-004, RCACHE-005, RCACHE-006, RCACHE-007, RCACHE-008,
    /// RCACHE-009, RCACHE-010, RCACHE-011, RCACHE-012, RCACHE-013, RCACHE-014, RCACHE-020, RCACHE-021,
    /// RCACHE-022, RCACHE-023, RCACHE-027.
    #[test]
    fn registration_cache_tests_pass_from_c() {
        run_part("the registration cache from C", Some("registration cache"), 8, RunOptions::default(), &[]);
    }
}

/// Requirements: OFI-002.
#[test]
fn provider_passes_valgrind() {
    let what = "every entry of libfabric, under valgrind";
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        return skipped("valgrind", what, "valgrind is not installed");
    }
    // Valgrind runs one thread at a time. Without fair scheduling, the polling thread of the program delays the
    // connecting thread for seconds, which is not a defect.
    let valgrind =
        ["valgrind", "-q", "--fair-sched=try", "--error-exitcode=9", "--num-callers=20", "--leak-check=full"];
    let lost = ["--show-leak-kinds=definite,indirect", "--errors-for-leak-kinds=definite,indirect"];
    // A forked child does not release the memory that it inherited, so in the child all of it counts as leaked.
    let set = &[("FI_PERCALE_CONNECT_TIMEOUT", "60000"), ("EVERY_WITHOUT", "forked")];
    let patient = RunOptions { set, alone: false, devices: false };
    run(what, patient, &[&valgrind[..], &lost[..]].concat());
}
