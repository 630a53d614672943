//! The walk's program and the provider that it loads, with AddressSanitizer and UndefinedBehaviorSanitizer where the compilers for
//! that are here.

use crate::failure::{Failure, Outcome};
use crate::place::Place;
use crate::program::{Program, on_path};
use crate::provider;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the program's sources are.
const SOURCES: &str = "crates/percale-ofi/tests/walk";

/// The profile that the instrumented provider is built in: optimized, with debug assertions and overflow checks.
const PROFILE: &str = "search";

/// Bytes at the beginning of tables' definitions that the warning is about are libfabric's own.
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-Wno-gnu-variable-sized-type-not-at-end"];

/// What is run.
pub(super) struct Built {
    pub(super) program: PathBuf,
    /// The directory for FI_PROVIDER_PATH.
    pub(super) provider: PathBuf,
    /// Why it runs without sanitizers, if it does.
    pub(super) unsanitized: Option<String>,
}

/// Builds both. Without clang or a nightly compiler they are built as they are, and the reason is given.
pub(super) fn build(place: &Place) -> Outcome<Built> {
    match missing() {
        None => {
            let program = compile(place, "clang", "walk-sanitized", &sanitizers())?;
            Ok(Built { program, provider: instrumented(place)?, unsanitized: None })
        }
        Some(why) => {
            let program = compile(place, "cc", "walk", &[])?;
            Ok(Built { program, provider: provider::build(place)?, unsanitized: Some(why) })
        }
    }
}

fn sanitizers() -> Vec<&'static str> {
    vec!["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
}

/// What is needed for the sanitizers and not here.
fn missing() -> Option<String> {
    if on_path("clang").is_none() {
        return Some("clang is not installed (as root: apt-get install -y clang)".into());
    }
    let links = Program::new("sh").args(["-c", PROBE]).limit(Duration::from_secs(60)).output();
    if !links.is_ok_and(|output| output.status.success()) {
        return Some("clang cannot link with its sanitizers (as root: apt-get install -y libclang-rt-dev)".into());
    }
    let nightly = Program::new("cargo").args(["+nightly", "--version"]).limit(Duration::from_secs(60)).output();
    if !nightly.is_ok_and(|output| output.status.success()) {
        return Some("there is no nightly compiler (rustup toolchain install nightly)".into());
    }
    None
}

/// Whether a program of nothing links.
const PROBE: &str = "echo 'int main(void) { return 0; }' | clang -fsanitize=address,undefined -x c - -o /dev/null";

fn compile(place: &Place, compiler: &str, name: &str, with: &[&str]) -> Outcome<PathBuf> {
    let directory = place.target.join("walk");
    fs::create_dir_all(&directory)?;
    let program = directory.join(name);
    let sources = place.root.join(SOURCES);
    let files = fs::read_dir(&sources).map_err(Failure::during(sources.display()))?;
    let files = files.filter_map(Result::ok).map(|entry| entry.path());
    let mut files: Vec<_> = files.filter(|file| file.extension().is_some_and(|extension| extension == "c")).collect();
    files.sort();
    let include = |path: &str| format!("-I{}", place.root.join(path).display());
    let warnings: &[&str] = if compiler == "clang" { &WARNINGS } else { &WARNINGS[..3] };
    let command = Program::new(compiler).args(["-std=gnu11", "-g", "-O1"]).args(warnings).args(with);
    let command = command.args([include("crates/percale-ofi/include"), include("crates/pindown/include")]);
    let command = command.args(&files).arg("-o").arg(&program).args(["-ldl", "-lpthread"]);
    command.limit(Duration::from_secs(120)).output()?.success()?;
    Ok(program)
}

/// Builds the provider with AddressSanitizer; the directory that has it. The program brings the runtime.
fn instrumented(place: &Place) -> Outcome<PathBuf> {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let target = place.target.join("asan");
    let build = Program::new("cargo").within(&place.root).args(["+nightly", "build", "--quiet", "--profile", PROFILE]);
    let build = build.args(["--package", "percale-ofi", "--lib", "--target", &triple]);
    build.env("RUSTFLAGS", "-Zsanitizer=address").env("CARGO_TARGET_DIR", &target).passed()?;
    let built = target.join(triple).join(PROFILE).join("libpercale_fi.so");
    let directory = place.target.join("walk").join("provider");
    fs::create_dir_all(&directory)?;
    replace(&built, &directory.join(provider::NAME))?;
    Ok(directory)
}

/// A program that has the old file mapped keeps it.
fn replace(from: &Path, to: &Path) -> Outcome {
    let fresh = to.with_extension("new");
    fs::copy(from, &fresh).map_err(Failure::during(format!("copying {}", from.display())))?;
    Ok(fs::rename(&fresh, to)?)
}
