//! Paths of the repository and its target directory, and cargo's metadata of the workspace.

use crate::failure::{Failure, Outcome};
use crate::program::Program;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The repository, as described by cargo.
pub(crate) struct Repository {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Metadata {
    workspace_root: PathBuf,
    target_directory: PathBuf,
    packages: Vec<Package>,
}

/// A crate of the workspace.
#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) targets: Vec<Target>,
    pub(crate) dependencies: Vec<Dependency>,
    /// The features, each with the features that it enables.
    pub(crate) features: BTreeMap<String, Vec<String>>,
}

/// A library, program, test, example or benchmark of a package.
#[derive(Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
    pub(crate) src_path: PathBuf,
}

/// A dependency as a package declares it.
#[derive(Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// "dev", "build", or `None` for a normal dependency.
    pub(crate) kind: Option<String>,
    /// The path, if the dependency is not from a registry.
    pub(crate) path: Option<PathBuf>,
}

impl Repository {
    /// Builds everything that the step `tests` runs, and returns the directory with the programs. Nothing is compiled
    /// again if that step ran before: programs that are built for a single package have other features.
    pub(crate) fn tested(&self) -> Outcome<PathBuf> {
        self.cargo().args(["test", "--quiet", "--workspace", "--no-run"]).passed()?;
        Ok(self.target.join("debug"))
    }

    pub(crate) fn find() -> Outcome<Self> {
        let own = std::env::var_os("CARGO_MANIFEST_DIR")
            .ok_or_else(|| Failure::new("run this program through cargo: cargo xtask ..."))?;
        let answer = Program::cargo(Path::new(&own))
            .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
            .output()?;
        let metadata: Metadata = serde_json::from_str(answer.success()?)?;
        Ok(Self { root: metadata.workspace_root, target: metadata.target_directory, packages: metadata.packages })
    }

    /// Returns a cargo program that runs in the root of the repository.
    pub(crate) fn cargo(&self) -> Program {
        Program::cargo(&self.root)
    }

    /// Returns the crates of the workspace.
    pub(crate) fn packages(&self) -> &[Package] {
        &self.packages
    }

    /// Returns the names of a package's targets of one kind ("example", "bench").
    pub(crate) fn targets(&self, package: &str, kind: &str) -> Vec<&str> {
        let packages = self.packages.iter().filter(|p| p.name == package);
        let targets = packages.flat_map(|p| &p.targets).filter(|t| t.kind.iter().any(|k| k == kind));
        targets.map(|t| t.name.as_str()).collect()
    }

    /// Writes JSON to a file in the target directory. It is written to a temporary file first, so that readers never
    /// see an incomplete file.
    pub(crate) fn save(&self, file: &str, value: &impl serde::Serialize) -> Outcome<PathBuf> {
        let path = self.target.join(file);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let fresh = path.with_extension("new");
        fs::write(&fresh, serde_json::to_string_pretty(value)? + "\n")?;
        fs::rename(&fresh, &path)?;
        Ok(path)
    }

    /// Reads a file written by `save`. Returns `None` if there is no such file.
    pub(crate) fn load<T: DeserializeOwned>(&self, file: &str) -> Outcome<Option<T>> {
        let path = self.target.join(file);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path)?;
        let value = serde_json::from_str(&text).map_err(Failure::during(format!("reading {}", path.display())))?;
        Ok(Some(value))
    }
}

#[cfg(test)]
impl Repository {
    /// Returns the sources below `crates` with one of these extensions.
    pub(crate) fn sources(&self, extensions: &[&str]) -> Vec<PathBuf> {
        let (mut found, mut directories) = (Vec::new(), vec![self.root.join("crates")]);
        while let Some(directory) = directories.pop() {
            for path in fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    directories.push(path);
                } else if path.extension().is_some_and(|its| extensions.iter().any(|extension| its == *extension)) {
                    found.push(path);
                }
            }
        }
        found
    }
}
