//! `cargo xtask package`: Debian packages, an archive for other distributions, and their lists of components.
//!
//! * [`release`]: the version and its date, from the manifest and the changelog
//! * [`tools`]: cargo's plug-ins that packages need, in versions that are named here
//! * [`source`]: a copy of the tracked files, in which everything is built
//! * [`stage`]: the built files, in the layout that both kinds of packages use
//! * [`sbom`]: the lists of components (CycloneDX)
//! * [`debian`] and [`archive`]: the packages
//! * [`bare`]: installs the packages on a bare machine, uses them, and removes them again
//!
//! Invariants:
//! 1. Packages contain tracked files of the repository, and what is built from them, and nothing else.
//! 2. Their bytes depend on the sources, the compiler and the system's packages, but not on the folder, the time or the
//!    user: paths are replaced, times are the date of the release, owners are root. `--reproduce` builds everything a
//!    second time in other folders and compares.
//!
//! debhelper makes the Debian packages, because it writes the parts that policy requires (maintainer scripts of units,
//! users and shared libraries, dependencies, compressed manual pages). cargo-deb would have to be compiled first, and
//! leaves users, symbol lists and the changelog's format to the caller.

mod archive;
mod bare;
mod debian;
mod release;
mod sbom;
mod source;
mod stage;
mod tools;

use crate::failure::{Failure, Outcome};
use crate::packages::{self, Needed};
use crate::place::Repository;
use crate::program::Program;
use crate::steps::Findings;
use crate::table::table;
use release::Release;
use serde_json::json;
use source::Source;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tools::Tools;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Installs the packages on a bare machine below the target directory, uses them, upgrades and removes them; needs root
    /// and debootstrap
    #[arg(long)]
    check: bool,
    /// Builds everything a second time in other folders, and compares the bytes
    #[arg(long)]
    reproduce: bool,
    /// Without the lists of components, which need cargo-auditable and cargo-cyclonedx
    #[arg(long)]
    plain: bool,
    /// Prints one JSON object for each file instead of a table
    #[arg(long)]
    json: bool,
}

/// The Debian packages that are needed to make packages.
const NEEDED: [Needed; 1] = [Needed { program: "dh", package: "debhelper" }];

/// The folder of the results, below the target directory. (cargo uses the name `package`.)
const RESULTS: &str = "packages";

/// The finished files by name, each with its SHA-256 checksum.
type Checksums = BTreeMap<String, String>;

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    let packaging = Packaging::new(place, arguments.plain)?;
    let results = packaging.results();
    let built = packaging.build("first", packaging.tools.as_ref(), &results)?;
    show(&results, &built, arguments.json)?;
    let mut is_good = true;
    if arguments.reproduce {
        is_good &= packaging.reproduce(&built)?;
    }
    if arguments.check {
        let findings = bare::check(place, &results, &packaging.release)?;
        println!("{}: {} passed, {} failed", findings.note, findings.passed, findings.failed);
        is_good &= findings.failed == 0;
    }
    Ok(is_good)
}

/// Makes the packages, checks them with lintian, and installs them on a bare machine, as a step of `cargo xtask test`.
/// With `all` they are built twice.
pub(crate) fn check(place: &Repository, all: bool) -> Outcome<Findings> {
    let packaging = Packaging::new(place, false)?;
    let results = packaging.results();
    let built = packaging.build("first", packaging.tools.as_ref(), &results)?;
    if all && !packaging.reproduce(&built)? {
        return Err(Failure::new("two builds in different folders differ"));
    }
    bare::check(place, &results, &packaging.release)
}

/// What all builds of packages share.
struct Packaging<'a> {
    place: &'a Repository,
    release: Release,
    tools: Option<Tools>,
}

impl<'a> Packaging<'a> {
    fn new(place: &'a Repository, is_plain: bool) -> Outcome<Self> {
        let release = Release::read(&place.root)?;
        packages::ensure(&NEEDED)?;
        let tools = if is_plain { None } else { Some(Tools::install(place)?) };
        Ok(Self { place, release, tools })
    }

    fn results(&self) -> PathBuf {
        self.place.target.join(RESULTS)
    }

    /// Returns the folder of the build `name`.
    fn work(&self, name: &str) -> PathBuf {
        self.results().join("build").join(name)
    }

    /// Builds everything in the folder `name`, and moves the packages to `results`. Older packages are removed.
    fn build(&self, name: &str, tools: Option<&Tools>, results: &Path) -> Outcome<Checksums> {
        let source = Source::copy(&self.place.root, &self.work(name))?;
        let stage = stage::build(&source, &self.release, tools)?;
        remove_packages(results)?;
        debian::build(&source, &stage, &self.release, results)?;
        archive::build(&source, &stage, &self.release, results)?;
        let built = checksums(results)?;
        let lines: String = built.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
        fs::write(results.join("SHA256SUMS"), lines)?;
        Ok(built)
    }

    /// Builds everything again, with programs and files in folders with other names, and compares with the first build.
    fn reproduce(&self, first: &Checksums) -> Outcome<bool> {
        let results = self.results().join("again");
        fs::create_dir_all(&results)?;
        let name = "another-build-in-a-folder-with-a-longer-name";
        let tools = self.tools.as_ref().map(|tools| tools.copy(self.work(name).join("tools"))).transpose()?;
        let second = self.build(name, tools.as_ref(), &results)?;
        let differing = differences(first, &second);
        for name in &differing {
            println!("  {name} differs: compare {} with {}", self.results().display(), results.display());
        }
        println!(
            "{} of {} files are identical in two builds",
            first.len() - differing.len().min(first.len()),
            first.len()
        );
        Ok(differing.is_empty())
    }
}

/// Returns the names of files that only one build has, or whose contents differ.
fn differences(first: &Checksums, second: &Checksums) -> Vec<String> {
    let names = first.keys().chain(second.keys().filter(|name| !first.contains_key(*name)));
    names.filter(|name| first.get(*name) != second.get(*name)).cloned().collect()
}

/// Returns whether a file name is that of a finished package.
fn is_package(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "deb" || extension == "gz")
}

/// Returns the finished packages in a folder, sorted by name.
fn finished(results: &Path) -> Outcome<Vec<PathBuf>> {
    let entries = fs::read_dir(results).map_err(Failure::during(format!("reading {}", results.display())))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Outcome<Vec<PathBuf>>>()?;
    paths.retain(|path| is_package(path));
    paths.sort();
    Ok(paths)
}

fn remove_packages(results: &Path) -> Outcome {
    fs::create_dir_all(results)?;
    for path in finished(results)? {
        fs::remove_file(path)?;
    }
    Ok(())
}

fn checksums(results: &Path) -> Outcome<Checksums> {
    let mut sums = Checksums::new();
    for path in finished(results)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let output = Program::new("sha256sum").arg(&path).output()?;
        let sum = output.success()?.split_whitespace().next().unwrap_or_default().to_owned();
        sums.insert(name, sum);
    }
    Ok(sums)
}

fn show(results: &Path, built: &Checksums, as_json: bool) -> Outcome {
    let mut shown = table(["package", "bytes", "sha256"], 1);
    for (name, sum) in built {
        let bytes = fs::metadata(results.join(name))?.len();
        if as_json {
            println!("{}", json!({ "package": name, "bytes": bytes, "sha256": sum, "path": results.join(name) }));
        }
        shown.add_row([name.clone(), bytes.to_string(), sum.chars().take(16).collect()]);
    }
    if !as_json {
        println!("{shown}\nin {}, with SHA256SUMS", results.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Checksums, differences, is_package};
    use std::path::Path;

    #[test]
    fn missing_and_changed_packages_differ() {
        let sums = |all: &[(&str, &str)]| -> Checksums {
            all.iter().map(|(name, sum)| ((*name).to_owned(), (*sum).to_owned())).collect()
        };
        let first = sums(&[("a.deb", "1"), ("b.deb", "2"), ("c.deb", "3")]);
        assert!(differences(&first, &first.clone()).is_empty());
        let second = sums(&[("a.deb", "1"), ("b.deb", "0"), ("d.deb", "4")]);
        assert_eq!(differences(&first, &second), ["b.deb", "c.deb", "d.deb"]);
    }

    #[test]
    fn packages_are_told_from_other_files() {
        assert!(is_package(Path::new("percale_0.2.0-1_amd64.deb")));
        assert!(is_package(Path::new("percale-0.2.0-linux-x86_64.tar.gz")));
        assert!(!is_package(Path::new("SHA256SUMS")) && !is_package(Path::new("build")));
    }
}
