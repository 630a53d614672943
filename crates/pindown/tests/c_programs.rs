//! libpindown.so used by C programs. The programs in `tests/c` use every function of pindown.h, and are also run under
//! valgrind if it is installed. `examples/verbs.c` is an example of an application.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// A time limit that is longer than those of the programs.
const LIMIT: Duration = Duration::from_secs(400);

/// The programs, which are compiled once.
struct Made {
    every: PathBuf,
    verbs: PathBuf,
    library: PathBuf,
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the library that cargo built with this test: the newer one of those in the test's directory and one
/// directory up.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let near = test.ancestors().skip(1).take(2).map(|directory| directory.join("libpindown.so"));
    let modified = |file: &PathBuf| fs::metadata(file).and_then(|metadata| metadata.modified()).ok();
    near.filter(|file| file.exists()).max_by_key(modified).expect("cargo builds the dynamic library with its tests")
}

fn sources() -> impl Iterator<Item = PathBuf> {
    let files =
        fs::read_dir(package().join("tests/c")).expect("the sources").map(|entry| entry.expect("a file").path());
    files.filter(|file| file.extension() == Some(OsStr::new("c")))
}

fn compile(sources: impl Iterator<Item = PathBuf>, library: &Path, program: &Path) {
    let directory = library.parent().expect("the library is in a directory");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
    compiler.arg("-I").arg(package().join("include")).arg("-o").arg(program).args(sources);
    compiler.arg("-L").arg(directory).args(["-lpindown", "-lpthread"]);
    compiler.arg(format!("-Wl,-rpath,{}", directory.display()));
    let compiled = compiler.output().expect("cc is installed, because Rust links with it");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}

fn made() -> &'static Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    MADE.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let [every, verbs, library] = ["every", "verbs", "libpindown.so"].map(|name| directory.join(name));
        fs::copy(built(), &library).expect("copied");
        compile(sources(), &library, &every);
        compile(std::iter::once(package().join("examples/verbs.c")), &library, &verbs);
        Made { every, verbs, library }
    })
}

/// Runs a program, which must succeed, and returns its output.
fn run(mut command: Command) -> String {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    // Cargo's value may contain an older build of the library, which would precede the program's own.
    command.env_remove("LD_LIBRARY_PATH");
    command.stdin(Stdio::null()).stdout(writer.try_clone().expect("a descriptor")).stderr(writer);
    let mut child = command.spawn().expect("the process starts");
    // The command also holds the writing end of the pipe.
    let under_valgrind = command.get_program() == "valgrind";
    drop(command);
    let printed = thread::spawn(move || {
        let mut bytes = Vec::new();
        // On an error, the output that was read before it is shown.
        reader.read_to_end(&mut bytes).ok();
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if start.elapsed() > LIMIT {
            child.kill().expect("a child");
            break child.wait().expect("a child");
        }
        thread::sleep(Duration::from_millis(10));
    };
    let printed = printed.join().expect("no panic");
    // Valgrind supports neither userfaultfd(2) nor mseal(2), so those parts are always left out under it.
    for line in printed.lines().filter(|line| line.starts_with("SKIPPED ") && !under_valgrind) {
        eprintln!("{line}");
    }
    let findings: Vec<_> = printed.lines().filter(|line| !line.starts_with("ok ")).take(200).collect();
    assert!(status.success(), "{status}:\n{}", findings.join("\n"));
    printed
}

/// Returns the number of checks that succeeded.
fn well(printed: &str) -> usize {
    printed.lines().filter(|line| line.starts_with("ok ")).count()
}

/// Returns the functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = fs::read_to_string(package().join("include/pindown.h")).expect("the header");
    let code: String = header.split("/*").filter_map(|part| Some(part.split_once("*/")?.1)).collect();
    let name = |line: &str| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        let is_function = name.starts_with("pindown_") && !line.starts_with("typedef");
        is_function.then(|| name.to_owned())
    };
    code.lines().filter_map(name).collect()
}

/// Requirements: MON-019, MON-036, MON-037, MON-051, RCACHE-021.
#[test]
fn every_function_works_from_c() {
    let printed = run(Command::new(&made().every));
    assert!(well(&printed) > 300, "too few checks succeeded:\n{printed}");
}

/// Requirements: MON-041.
#[test]
fn c_programs_pass_valgrind() {
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED (valgrind) every function from C, under valgrind: valgrind is not installed");
        return;
    }
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["-q", "--error-exitcode=9", "--num-callers=20", "--leak-check=full"]);
    valgrind.args(["--show-leak-kinds=definite,indirect", "--errors-for-leak-kinds=definite,indirect"]);
    valgrind.arg(&made().every);
    let printed = run(valgrind);
    assert!(well(&printed) > 300, "too few checks succeeded:\n{printed}");
}

#[test]
fn c_example_registers_once_for_many_transfers() {
    let printed = run(Command::new(&made().verbs));
    assert!(printed.contains("ibv_reg_mr was called 1 times for 1000 sends"), "{printed}");
}

/// Programs include the header with the strictest settings of old and new compilers.
#[test]
fn header_is_valid_in_every_version_of_c_and_cpp() {
    let header = package().join("include/pindown.h");
    let standards = [
        ("cc", "c", "gnu89"),
        ("cc", "c", "c99"),
        ("cc", "c", "c11"),
        ("c++", "c++", "c++98"),
        ("c++", "c++", "c++11"),
        ("c++", "c++", "c++20"),
    ];
    for (compiler, language, standard) in standards {
        let mut command = Command::new(compiler);
        command.args(["-fsyntax-only", "-Wall", "-Wextra", "-pedantic", "-Werror", "-x", language]);
        command.arg(format!("-std={standard}")).arg("-include").arg(&header).arg("/dev/null");
        let Ok(output) = command.output() else {
            eprintln!("SKIPPED ({compiler}) the header in {standard}: {compiler} is not installed");
            continue;
        };
        assert!(output.status.success(), "{standard}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn every_function_of_the_header_is_exported_and_used() {
    let declared = declared();
    assert!(declared.len() >= 23, "{declared:?}");
    let symbols = Command::new("nm").args(["-D", "--defined-only"]).arg(&made().library).output().expect("nm is there");
    let symbols = String::from_utf8(symbols.stdout).expect("names");
    let names = symbols.lines().filter_map(|line| line.rsplit(' ').next());
    let exported: BTreeSet<_> = names.filter(|name| name.starts_with("pindown_")).map(str::to_owned).collect();
    assert_eq!(exported, declared);
    let sources: String = sources().map(|file| fs::read_to_string(file).expect("a source")).collect();
    let unused: Vec<_> = declared.iter().filter(|name| !sources.contains(&format!("{name}("))).collect();
    assert!(unused.is_empty(), "not tested: {unused:?}");
}
