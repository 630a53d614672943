//! Runs a C program that uses every entry of every libfabric table (`tests/c`) over the provider. It opens endpoints in
//! four ways, each with an endpoint that sends to itself, two endpoints of one process, and two endpoints of two
//! processes.
//!
//! The program is compiled against the installed libfabric. `PERCALE_LIBFABRIC` names the directory of another
//! libfabric to run with.
//!
//! Each group of checks prints the requirements that its checks assert (`asserts` in `tests/c/every.h`). The tests print
//! them with the cell of the run, as `proved shm/c: MR-001 MR-002` or `failed ...`, which `cargo xtask coverage` counts.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use percale_conformance::device::{LIBRARY, POOLS, driver_for};
use percale_conformance::provider::{copy_to, has_headers};
use percale_conformance::{long, skipped};
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
    Made { program: compiled(&directory), provider }
}

/// Returns the program. It is compiled once for all test programs with the same sources.
fn compiled(directory: &Path) -> PathBuf {
    // The directories of percale_fi_ext.h and of pindown.h, which it includes.
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (sources, headers) = (package.join("tests/c"), [package.join("include"), package.join("../pindown/include")]);
    let files = |directory: &Path| {
        let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        files.collect::<BTreeSet<PathBuf>>()
    };
    let mut hash = DefaultHasher::new();
    // The options of the compiler, and the version of libfabric.
    include_str!("every.rs").hash(&mut hash);
    fs::read("/usr/include/rdma/fabric.h").ok().hash(&mut hash);
    for file in headers.iter().chain([&sources]).flat_map(|directory| files(directory)) {
        fs::read(file).unwrap().hash(&mut hash);
    }
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("every-{:016x}", hash.finish()));
    if program.exists() {
        return program;
    }
    let fresh = directory.join("every");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&fresh);
    headers.iter().for_each(|directory| {
        compiler.arg("-I").arg(directory);
    });
    let files = files(&sources).into_iter().filter(|file| file.extension() == Some(OsStr::new("c")));
    let compiled = compiler.args(files).args(["-lfabric", "-lpthread"]).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    fs::rename(&fresh, &program).unwrap();
    program
}

/// The options of a run of the program.
#[derive(Clone, Copy, Default)]
struct RunOptions {
    /// The cell in which the checks prove requirements, such as `shm/c`.
    cell: Option<&'static str>,
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
    command.current_dir(made.provider.parent().unwrap());
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
    if let Some(cell) = way.cell {
        print_requirements(cell, &printed);
    }
    assert!(good, "{what} ended with {status:?}:\n{}", findings(&printed));
    let well = printed.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(well >= least, "too few checks succeeded:\n{printed}");
}

/// Prints the requirements that the groups of checks assert: of "ok     vectors: av: table [AV-002 AV-003]".
fn print_requirements(cell: &str, printed: &str) {
    for (word, start) in [("proved", "ok "), ("failed", "WRONG ")] {
        // An endpoint that sends to itself uses no transport except loopback.
        let lines = printed.lines().filter(|line| line.starts_with(start));
        let lines = lines.filter(|line| cell.starts_with("loopback") || !line.contains(", to itself: "));
        let ids: BTreeSet<&str> = lines.filter_map(requirements_of).flatten().collect();
        if !ids.is_empty() {
            println!("{word} {cell}: {}", ids.into_iter().collect::<Vec<_>>().join(" "));
        }
    }
}

/// Returns the requirements in the line of a group.
fn requirements_of(line: &str) -> Option<impl Iterator<Item = &str>> {
    let (_, ids) = line.strip_suffix(']')?.rsplit_once(" [")?;
    Some(ids.split(' '))
}

/// Returns the output of the program without the lines of passed groups.
fn findings(printed: &str) -> String {
    let lines = printed.lines().filter(|line| !line.starts_with("ok "));
    lines.take(400).collect::<Vec<_>>().join("\n")
}

/// The runs with one transport.
const LOOPBACK: RunOptions =
    RunOptions { cell: Some("loopback/c"), set: &[("FI_PERCALE_TRANSPORT", "loopback")], alone: true, devices: false };
const SHM: RunOptions =
    RunOptions { cell: Some("shm/c"), set: &[("FI_PERCALE_TRANSPORT", "shm")], alone: false, devices: false };
const TCP: RunOptions =
    RunOptions { cell: Some("tcp/c"), set: &[("FI_PERCALE_TRANSPORT", "tcp")], alone: false, devices: false };

/// Tests of registration, raw keys, bindings, kinds of memory and windows on one transport (`registration*.c`,
/// `windows.c` and `specification.c` in `tests/c`).
macro_rules! registration {
    ($way:expr) => {
        use crate::run_part;

        fn part(name: &str, least: usize) {
            run_part(name, Some(name), least, $way, &[]);
        }

        #[test]
        fn registration_calls_pass_from_c() {
            part("registration: calls", 8);
        }

        #[test]
        fn registration_modes_pass_from_c() {
            part("registration: modes", 6);
        }

        #[test]
        fn registration_keys_pass_from_c() {
            part("registration: keys", 6);
        }

        #[test]
        fn registration_bindings_pass_from_c() {
            part("registration: binding", 10);
        }

        #[test]
        fn registration_events_pass_from_c() {
            part("registration: events", 3);
        }

        #[test]
        fn windows_pass_from_c() {
            part("windows", 4);
        }

        #[test]
        fn specification_decisions_pass_from_c() {
            part("specification", 15);
        }
    };
}

mod loopback {
    mod c {
        registration!(crate::LOOPBACK);

        /// Messages, accesses, atomic operations and counters of an endpoint that sends to itself.
        #[test]
        fn pair_groups_pass_from_c() {
            part(", to itself", 120);
        }

        #[test]
        fn completion_queues_pass_from_c() {
            part("completion queues", 6);
        }
    }
}

/// Tests with two endpoints in one process: address vectors, contexts, triggers and groups.
macro_rules! others {
    ($way:expr) => {
        #[test]
        fn address_vectors_pass_from_c() {
            part("vectors", 12);
        }

        #[test]
        fn contexts_pass_from_c() {
            part("contexts", 4);
        }

        #[test]
        fn connections_pass_from_c() {
            part("connections", 4);
        }

        #[test]
        fn refused_triggers_pass_from_c() {
            part("refused", 1);
        }

        #[test]
        fn triggers_and_deferred_work_pass_from_c() {
            part("triggers", 22);
        }

        #[test]
        fn collectives_pass_from_c() {
            part("collectives", 5);
        }
    };
}

mod shm {
    mod c {
        registration!(crate::SHM);
        others!(crate::SHM);

        /// Requirements: OFI-001.
        #[test]
        fn every_entry_of_every_table() {
            crate::run("every entry of libfabric, shared memory", crate::RunOptions { set: &[], ..crate::SHM }, &[]);
        }

        /// Runs in which the kernel does not copy between processes, and in which targets execute all accesses.
        mod executed {
            registration!(crate::RunOptions {
                set: &[("FI_PERCALE_TRANSPORT", "shm"), ("FI_PERCALE_CMA", "0"), ("FI_PERCALE_TRUST", "none")],
                ..crate::SHM
            });
        }
    }
}

mod tcp {
    mod c {
        registration!(crate::TCP);
        others!(crate::TCP);

        /// Requirements: OFI-001.
        #[test]
        fn every_entry_of_every_table() {
            crate::run("every entry of libfabric, tcp", crate::TCP, &[]);
        }
    }
}

/// Device memory, with the machine's driver or with a double of it (`tests/c/devices.c`).
mod devices {
    use super::{RunOptions, run_part};

    /// Defines one test for each configuration: a transport and environment variables.
    macro_rules! devices {
        ($($name:ident: $transport:ident, $set:expr;)+) => {
            $(mod $name {
                mod c {
                    #[test]
                    fn device_memory_tests_pass_from_c() {
                        crate::devices::run(crate::RunOptions { set: $set, devices: true, ..crate::$transport });
                    }
                }
            })+
        };
    }

    fn run(way: RunOptions) {
        run_part("devices from C", Some("devices"), 10, way, &[]);
    }

    devices! {
        loopback: LOOPBACK, &[("FI_PERCALE_TRANSPORT", "loopback")];
        shm: SHM, &[("FI_PERCALE_TRANSPORT", "shm")];
        disabled: SHM, &[("FI_PERCALE_TRANSPORT", "shm"), ("FI_HMEM_DISABLE_P2P", "1")];
        disabled_tcp: TCP, &[("FI_PERCALE_TRANSPORT", "tcp"), ("FI_HMEM_DISABLE_P2P", "1")];
        disabled_loopback: LOOPBACK, &[("FI_PERCALE_TRANSPORT", "loopback"), ("FI_HMEM_DISABLE_P2P", "1")];
        unmonitored: SHM, &[
            ("FI_PERCALE_TRANSPORT", "shm"),
            ("FI_MR_CUDA_CACHE_MONITOR_ENABLED", "0"),
            ("FI_MR_ROCR_CACHE_MONITOR_ENABLED", "0"),
            ("FI_MR_ZE_CACHE_MONITOR_ENABLED", "0"),
        ];
        monitored: SHM, &[
            ("FI_PERCALE_TRANSPORT", "shm"),
            ("FI_MR_CUDA_CACHE_MONITOR_ENABLED", "1"),
            ("FI_MR_ROCR_CACHE_MONITOR_ENABLED", "1"),
            ("FI_MR_ZE_CACHE_MONITOR_ENABLED", "1"),
        ];
        tcp: TCP, &[("FI_PERCALE_TRANSPORT", "tcp")];
        // For the double of the driver: memory of pools, and mapped memory.
        pools: SHM, &[("FI_PERCALE_TRANSPORT", "shm"), (crate::POOLS, "1")];
        mapped: TCP, &[("FI_PERCALE_TRANSPORT", "tcp"), (crate::POOLS, "mapped")];
    }
}

/// The registration cache, as a C program uses it (`tests/c/cache.c`).
mod cache {
    use super::{SHM, run_part};

    #[test]
    fn registration_cache_tests_pass_from_c() {
        run_part("the registration cache from C", Some("registration cache"), 8, SHM, &[]);
    }
}

/// Endpoints that send to themselves. With PERCALE_LONG, everything.
///
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
    let patient = RunOptions { set, ..RunOptions::default() };
    let valgrind = [&valgrind[..], &lost[..]].concat();
    if long() {
        run(what, patient, &valgrind);
    } else {
        run_part(what, Some("to itself"), 100, patient, &valgrind);
    }
}
