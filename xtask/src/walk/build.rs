//! Builds the program of the walk and the provider that it loads. AddressSanitizer and UndefinedBehaviorSanitizer are
//! used if the compilers for them are installed.

use crate::failure::{Failure, Outcome};
use crate::packages::{self, CLANG, SANITIZERS};
use crate::place::Repository;
use crate::program::Program;
use crate::provider;
use crate::sanitizer::Sanitizer;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The directory of the program's sources.
const SOURCES: &str = "crates/percale-ofi/tests/walk";

/// The disabled warning concerns bytes at the beginning of table definitions of libfabric.
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-Wno-gnu-variable-sized-type-not-at-end"];

/// The files to run.
pub(super) struct Built {
    pub(super) program: PathBuf,
    /// The directory for FI_PROVIDER_PATH.
    pub(super) provider: PathBuf,
    /// The reason why the walk runs without sanitizers, if it does.
    pub(super) unsanitized: Option<String>,
}

/// Builds the program and the provider. The sanitizers are installed if possible. Otherwise both are built without
/// them, and the reason is returned.
///
/// # Errors
/// Fails if one of them cannot be built, or if the sanitizers are missing although they are `required`.
pub(super) fn build(place: &Repository, required: bool) -> Outcome<Built> {
    match unsanitized(sanitizers_are_here(), required)? {
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

/// Ensures that clang and the libraries of its sanitizers are installed. Installs missing ones if permitted.
fn sanitizers_are_here() -> Outcome {
    packages::ensure(&[CLANG, SANITIZERS])
}

/// Returns the reason why the walk runs without sanitizers, if it does.
///
/// # Errors
/// Returns that reason as an error if the sanitizers are required.
fn unsanitized(here: Outcome, required: bool) -> Outcome<Option<String>> {
    match here {
        Ok(()) => Ok(None),
        Err(why) if required => {
            Err(Failure::new(format!("the sanitizers are missing, and they are required in CI: {why}")))
        }
        Err(why) => Ok(Some(why.to_string())),
    }
}

fn compile(place: &Repository, compiler: &str, name: &str, with: &[&str]) -> Outcome<PathBuf> {
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

/// Builds the provider with AddressSanitizer and returns its directory. The program contains the runtime.
fn instrumented(place: &Repository) -> Outcome<PathBuf> {
    let built = Sanitizer::Address.build(place, &["--package", "percale-ofi", "--lib"])?.join("libpercale_fi.so");
    let directory = place.target.join("walk").join("provider");
    fs::create_dir_all(&directory)?;
    replace(&built, &directory.join(provider::NAME))?;
    Ok(directory)
}

/// Replaces a file. Running programs keep the old file mapped.
fn replace(from: &Path, to: &Path) -> Outcome {
    let fresh = to.with_extension("new");
    fs::copy(from, &fresh).map_err(Failure::during(format!("copying {}", from.display())))?;
    Ok(fs::rename(&fresh, to)?)
}

#[cfg(test)]
mod tests {
    use super::unsanitized;
    use crate::failure::Failure;

    #[test]
    fn a_walk_without_sanitizers_fails_where_they_are_required() {
        let missing = || Err(Failure::new("no clang"));
        assert_eq!(unsanitized(Ok(()), true).unwrap(), None);
        assert_eq!(unsanitized(missing(), false).unwrap().as_deref(), Some("no clang"));
        assert!(unsanitized(missing(), true).unwrap_err().to_string().ends_with("in CI: no clang"));
    }
}
