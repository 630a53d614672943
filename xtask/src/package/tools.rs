//! cargo's plug-ins that packages need. They are installed below the target directory if they are missing.

use crate::failure::Outcome;
use crate::place::Repository;
use crate::program::Program;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// A plug-in of cargo, in the version that writes the same bytes for everybody.
struct Plugin {
    name: &'static str,
    version: &'static str,
}

/// Puts the list of crates into a program (`.dep-v0`), in which `cargo audit bin` finds it.
const AUDITABLE: Plugin = Plugin { name: "cargo-auditable", version: "0.7.7" };

/// Writes lists of components.
const CYCLONEDX: Plugin = Plugin { name: "cargo-cyclonedx", version: "0.5.9" };

/// The installed plug-ins.
pub(super) struct Tools {
    directory: PathBuf,
}

impl Tools {
    pub(super) fn install(place: &Repository) -> Outcome<Self> {
        let root = place.target.join("tools");
        for plugin in [AUDITABLE, CYCLONEDX] {
            plugin.install(place, &root)?;
        }
        Ok(Self { directory: root.join("bin") })
    }

    /// Copies the plug-ins to another folder.
    pub(super) fn copy(&self, directory: PathBuf) -> Outcome<Self> {
        fs::create_dir_all(&directory)?;
        for Plugin { name, .. } in [AUDITABLE, CYCLONEDX] {
            fs::copy(self.directory.join(name), directory.join(name))?;
        }
        Ok(Self { directory })
    }

    /// Lets cargo add the list of crates to what it builds, with its option `--locked`.
    ///
    /// `cargo auditable` does the same, but registers itself as the compiler of the workspace's crates. The path of that
    /// program is part of their names, by which the compiler sorts functions, so the bytes would depend on the target
    /// directory. The path of a wrapper for all crates is not part of their names.
    pub(super) fn list_crates(&self, cargo: Program) -> Program {
        // The options of cargo that cargo-auditable passes on when it reads the dependencies.
        let options = r#"{"offline":false,"locked":true,"frozen":false,"config":[]}"#;
        cargo
            .env("RUSTC_WRAPPER", self.directory.join(AUDITABLE.name))
            .without("RUSTC_WORKSPACE_WRAPPER")
            .env("CARGO_AUDITABLE_ORIG_ARGS", options)
    }

    /// Prepares cargo so that it finds the plug-ins first.
    pub(super) fn add_to(&self, cargo: Program) -> Program {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let directories = std::iter::once(self.directory.clone()).chain(std::env::split_paths(&path));
        cargo.env("PATH", std::env::join_paths(directories).unwrap_or_else(|_| OsString::from(&path)))
    }
}

impl Plugin {
    /// Installs the plug-in, unless this version is already there. It is built without optimization, because its speed
    /// does not matter.
    fn install(&self, place: &Repository, root: &Path) -> Outcome {
        let Self { name, version } = self;
        // cargo lists what it has installed here.
        let listed = place.cargo().args(["install", "--list", "--root"]).arg(root).output()?;
        let line = format!("{name} v{version}:");
        if listed.stdout.lines().any(|its| its == line) && root.join("bin").join(name).is_file() {
            return Ok(());
        }
        eprintln!("  installing {name} {version} into the target directory");
        let program = place.cargo().args(["install", "--quiet", "--locked", "--force", "--debug", name]);
        program.args(["--version", &format!("={version}"), "--root"]).arg(root).passed()
    }
}
