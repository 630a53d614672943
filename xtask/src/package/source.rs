//! A copy of the tracked files of the repository, with a target directory of its own.

use crate::failure::{Failure, Outcome};
use crate::program::{Program, on_path};
use std::fs;
use std::path::{Path, PathBuf};

/// A copy of the sources.
pub(super) struct Source {
    /// The folder of the files.
    pub(super) root: PathBuf,
    /// The folder of compiled files. It is kept, so that a next build compiles only what changed.
    pub(super) target: PathBuf,
}

/// Copies the files that git tracks, with their times. `$1` is the folder. A tracked file that was deleted is left out,
/// as in the commit that will follow.
const COPY: &str = "set -eu
git ls-files -z --cached |
    while IFS= read -r -d '' file; do if [ -e \"$file\" ]; then printf '%s\\0' \"$file\"; fi; done |
    tar --create --null --no-recursion --files-from=- | tar --extract --directory=\"$1\"";

impl Source {
    /// Copies the repository to a new folder below `work`.
    pub(super) fn copy(repository: &Path, work: &Path) -> Outcome<Self> {
        let (root, target) = (work.join("source"), work.join("target"));
        if !repository.join(".git").exists() || on_path("git").is_none() {
            return Err(Failure::new("packages are made from the files that git tracks: this is no git checkout"));
        }
        if root.exists() {
            fs::remove_dir_all(&root).map_err(Failure::during(format!("removing {}", root.display())))?;
        }
        fs::create_dir_all(&root).map_err(Failure::during(format!("creating {}", root.display())))?;
        let copy = Program::new("bash").args(["-o", "pipefail", "-c", COPY, "copy"]).arg(&root).within(repository);
        copy.output()?.success().map_err(Failure::during("copying the tracked files"))?;
        Ok(Self { root, target })
    }

    /// Returns a cargo program that runs in the copy. No path of this machine gets into what it compiles.
    pub(super) fn cargo(&self) -> Program {
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
        let mut renamed = vec![(self.root.clone(), "/usr/src/percale"), (self.target.clone(), "/usr/src/target")];
        renamed.extend(home.map(|home| (home, "/usr/src/cargo")));
        // The separator of this variable allows spaces in paths.
        let flags: Vec<String> =
            renamed.iter().map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display())).collect();
        Program::cargo(&self.root)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
            .without("RUSTFLAGS")
            .without("CARGO_BUILD_TARGET")
    }
}

#[cfg(test)]
mod tests {
    use super::Source;
    use crate::place::Repository;

    #[test]
    fn copy_has_tracked_files_and_no_others() {
        let repository = Repository::find().unwrap();
        let work = std::env::temp_dir().join(format!("percale-source-{}", std::process::id()));
        let source = Source::copy(&repository.root, &work).unwrap();
        assert!(source.root.join("Cargo.lock").is_file() && source.root.join("xtask/src/main.rs").is_file());
        assert!(source.root.join("crates/pindown/LICENSE-MIT").is_symlink());
        assert!(!source.root.join("target").exists() && !source.root.join(".git").exists());
        std::fs::remove_dir_all(&work).unwrap();
    }
}
