//! Builds parts of the workspace with a sanitizer, and runs them.

use crate::failure::Outcome;
use crate::place::Repository;
use crate::program::Program;
use crate::toolchain::{nightly, nightly_has_sources};
use std::fs;
use std::path::{Path, PathBuf};

/// The profile of instrumented programs: optimized, with debug assertions and overflow checks.
const PROFILE: &str = "search";

/// A sanitizer of the compiler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sanitizer {
    /// Finds invalid uses of memory.
    Address,
    /// Finds data races. It needs a toolchain with the sources of the standard library.
    Thread,
}

impl Sanitizer {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Address => "AddressSanitizer",
            Self::Thread => "ThreadSanitizer",
        }
    }

    fn directory(self, place: &Repository) -> PathBuf {
        place.target.join(match self {
            Self::Address => "asan",
            Self::Thread => "tsan",
        })
    }

    /// Returns the variable with the options, and the options. A report of AddressSanitizer ends the program.
    fn options(self) -> (&'static str, &'static str) {
        match self {
            // Leaks are not reported, because workers and helper threads end without running destructors.
            Self::Address => ("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1"),
            // The locks of the test double of libibverbs, which is built without the sanitizer, are not seen, so its
            // memory is not examined.
            Self::Thread => {
                ("TSAN_OPTIONS", "die_after_fork=0:second_deadlock_stack=1:ignore_noninstrumented_modules=1")
            }
        }
    }

    /// Returns cargo with this command, which builds with the sanitizer.
    ///
    /// # Errors
    /// If the nightly toolchain or the sources of the standard library are missing, for ThreadSanitizer.
    pub(crate) fn cargo(self, place: &Repository, command: &str) -> Outcome<Program> {
        let triple = triple();
        let (cargo, flag) = match self {
            // The flag is unstable, but the stable compiler supports it.
            Self::Address => (place.cargo().arg(command).env("RUSTC_BOOTSTRAP", "1"), "-Zsanitizer=address"),
            Self::Thread => {
                nightly_has_sources()?;
                let cargo = nightly("cargo").within(&place.root).args([command, "-Zbuild-std"]);
                // With system calls through the C library, the sanitizer sees that addresses are mapped again.
                (cargo, "-Zsanitizer=thread --cfg=rustix_use_libc")
            }
        };
        // With a target of its own, the flag does not apply to build scripts and macros.
        let cargo = cargo.args(["--profile", PROFILE, "--target", &triple]);
        Ok(cargo.env("CARGO_TARGET_DIR", self.directory(place)).env("RUSTFLAGS", flag))
    }

    /// Builds the packages and targets that cargo's arguments select, and returns the directory of the results.
    pub(crate) fn build(self, place: &Repository, selected: &[&str]) -> Outcome<PathBuf> {
        self.cargo(place, "build")?.arg("--quiet").args(selected).passed()?;
        Ok(self.directory(place).join(triple()).join(PROFILE))
    }

    /// Returns the program `name` that [`build`](Self::build) built in this directory.
    pub(crate) fn program(self, directory: &Path, name: &str) -> Program {
        let (variable, options) = self.options();
        Program::new(directory.join(name)).env(variable, options)
    }
}

fn triple() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// The reports of the processes of a run, as files.
pub(crate) struct Reports {
    sanitizer: Sanitizer,
    directory: PathBuf,
}

impl Reports {
    /// Removes the reports of earlier runs.
    pub(crate) fn start(place: &Repository, sanitizer: Sanitizer) -> Outcome<Self> {
        let directory = sanitizer.directory(place).join("reports");
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir_all(&directory)?;
        Ok(Self { sanitizer, directory })
    }

    /// Makes a program and its children write their reports here.
    pub(crate) fn of(&self, program: Program) -> Program {
        let (variable, options) = self.sanitizer.options();
        program.env(variable, format!("{options}:log_path={}", self.directory.join("report").display()))
    }

    /// Returns the files with reports.
    pub(crate) fn found(&self) -> Outcome<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.directory)?.filter_map(Result::ok).map(|entry| entry.path());
        let is_report = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains("SUMMARY: "));
        Ok(entries.filter(is_report).collect())
    }
}
