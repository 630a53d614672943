//! The copy of the workspace that contains all mutations.

use super::list::Mutation;
use super::splice::{Spliced, splice};
use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::program::Program;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The crate that selects a mutation.
const SWITCH: &str = include_str!("switch.rs");
const SWITCH_MANIFEST: &str =
    "[package]\nname = \"percale-mutation\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n";

pub(super) struct Tree {
    pub(super) root: PathBuf,
    /// The mutated bodies of each source, by its path relative to the root.
    bodies: BTreeMap<String, Vec<(Range<usize>, usize)>>,
    /// The function of each mutation that can be selected.
    pub(super) functions: BTreeMap<usize, String>,
    /// The mutations that cannot be selected, with the reason.
    pub(super) apart: BTreeMap<usize, String>,
}

impl Tree {
    /// Writes the copy. Files that have not changed since the last call keep their time of modification, so that cargo
    /// builds only what has changed.
    pub(super) fn write(
        place: &Repository,
        mutations: &[Mutation],
        left_out: &BTreeMap<usize, String>,
    ) -> Outcome<Self> {
        let root = place.target.join("mutate").join("tree");
        let mut tree = Self { root, bodies: BTreeMap::new(), functions: BTreeMap::new(), apart: left_out.clone() };
        let mut of_file: BTreeMap<&str, Vec<(usize, &Mutation)>> = BTreeMap::new();
        for (number, mutation) in mutations.iter().enumerate().filter(|(number, _)| !left_out.contains_key(number)) {
            of_file.entry(&mutation.file).or_default().push((number, mutation));
        }
        let files = files(place)?;
        if let Some(missing) = of_file.keys().find(|&&file| !files.contains(file)) {
            return Err(Failure::new(format!("the mutated source {missing} is not in the repository")));
        }
        let mut written = BTreeSet::new();
        for file in &files {
            let from = place.root.join(file);
            // A file that is deleted but not committed yet is still in the index.
            if !from.exists() {
                continue;
            }
            let bytes = match of_file.get(file.as_str()) {
                Some(its) => {
                    let Spliced { text, bodies, functions, apart } = splice(file, &fs::read_to_string(&from)?, its)?;
                    tree.bodies.insert(file.clone(), bodies);
                    tree.functions.extend(functions);
                    tree.apart.extend(apart.into_iter().map(|(number, why)| (number, why.to_owned())));
                    text.into_bytes()
                }
                None if is_mutated(file, &of_file) => with_switch(&fs::read_to_string(&from)?).into_bytes(),
                None => fs::read(&from)?,
            };
            let bytes = if file == "Cargo.toml" { with_member(&bytes) } else { bytes };
            let path = tree.root.join(file);
            update(&path, &bytes)?;
            fs::set_permissions(&path, fs::metadata(&from)?.permissions())?;
            written.insert(path);
        }
        for (file, text) in [("percale-mutation/Cargo.toml", SWITCH_MANIFEST), ("percale-mutation/src/lib.rs", SWITCH)]
        {
            let path = tree.root.join(file);
            update(&path, text.as_bytes())?;
            written.insert(path);
        }
        // Cargo adds the crate of the switch to this file.
        written.insert(tree.root.join("Cargo.lock"));
        remove_others(&tree.root, &written)?;
        Ok(tree)
    }

    /// Returns the mutations of the functions with this name.
    pub(super) fn of_function(&self, name: &str) -> Vec<usize> {
        let ends = |function: &str| function.rsplit(' ').next() == Some(name);
        self.functions.iter().filter(|(_, function)| ends(function)).map(|(number, _)| *number).collect()
    }

    /// Returns the mutation that contains this byte of a source of the copy.
    pub(super) fn at(&self, file: &str, byte: usize) -> Option<usize> {
        let bodies = self.bodies.get(file)?;
        bodies.iter().find(|(range, _)| range.contains(&byte)).map(|&(_, number)| number)
    }
}

/// Returns the files of the repository that git does not ignore.
fn files(place: &Repository) -> Outcome<BTreeSet<String>> {
    let listed = Program::new("git").args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let listed = listed.within(&place.root).output()?;
    Ok(listed.success()?.lines().map(str::to_owned).collect())
}

/// Returns whether this is the manifest of a crate with mutations.
fn is_mutated(file: &str, of_file: &BTreeMap<&str, Vec<(usize, &Mutation)>>) -> bool {
    let Some(package) = file.strip_suffix("Cargo.toml") else { return false };
    !package.is_empty() && of_file.keys().any(|source| source.starts_with(package))
}

/// Adds the dependency on the switch to a manifest.
fn with_switch(manifest: &str) -> String {
    manifest.replacen(
        "\n[dependencies]\n",
        "\n[dependencies]\npercale-mutation = { path = \"../../percale-mutation\" }\n",
        1,
    )
}

/// Adds the crate of the switch to the workspace.
fn with_member(manifest: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(manifest).replacen("\nmembers = [", "\nmembers = [\"percale-mutation\", ", 1).into_bytes()
}

/// Writes a file if its contents differ.
fn update(path: &Path, bytes: &[u8]) -> Outcome {
    if fs::read(path).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    Ok(fs::write(path, bytes)?)
}

/// Removes the files below a directory that are not in the set.
fn remove_others(directory: &Path, kept: &BTreeSet<PathBuf>) -> Outcome {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            remove_others(&path, kept)?;
        } else if !kept.contains(&path) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
