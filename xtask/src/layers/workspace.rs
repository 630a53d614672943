//! The crates of the workspace and their dependencies on each other.

use super::graph::{Arrow, Graph};
use super::source::Source;
use crate::failure::Outcome;
use crate::place::{Package, Repository, Target};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// A dependency of a crate of the workspace on another one.
pub(crate) struct CrateDependency {
    pub(crate) from: String,
    pub(crate) to: String,
    /// Set if only tests, examples and benchmarks need the dependency.
    pub(crate) is_dev: bool,
    /// The location of the declaration: `crates/percale/Cargo.toml:24`.
    pub(crate) place: String,
}

/// The data read from the sources of the workspace.
pub(crate) struct WorkspaceSources {
    pub(crate) graphs: Vec<Graph>,
    pub(crate) dependencies: Vec<CrateDependency>,
}

impl WorkspaceSources {
    /// Reads all crates of the workspace.
    pub(crate) fn read(place: &Repository) -> Outcome<Self> {
        let mut found = Self { graphs: Vec::new(), dependencies: Vec::new() };
        for package in place.packages() {
            for (name, target) in programs(package) {
                found.graphs.push(Graph::of(&Source::read(&place.root, &name, &target.src_path)?));
            }
            found.dependencies.extend(dependencies(&place.root, package, place.packages())?);
        }
        found.graphs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Returns all data for `--json`.
    pub(crate) fn json(&self, problems: &[String]) -> Value {
        let graphs = self.graphs.iter().map(graph_json).collect::<Vec<_>>();
        let dependencies = self.dependencies.iter().map(
            |CrateDependency { from, to, is_dev, place }| json!({ "from": from, "to": to, "dev": is_dev, "place": place }),
        );
        json!({ "crates": graphs, "dependencies": dependencies.collect::<Vec<_>>(), "problems": problems })
    }
}

fn graph_json(graph: &Graph) -> Value {
    let top = graph.top();
    let layers = top.layers.iter().map(|layer| layer.iter().map(|c| top.names(c)).collect()).collect::<Vec<Vec<_>>>();
    let arrow = |from: &str, to: &str, Arrow { uses, example }: &Arrow| json!({ "from": from, "to": to, "uses": uses, "example": example });
    let arrows = top.arrows.iter().map(|((from, to), found)| arrow(&top.members[*from], &top.members[*to], found));
    let cycles = graph.levels.iter().flat_map(|level| {
        level.cycles().map(move |cycle| {
            let inside = level.arrows_in(cycle).map(|(from, to, found)| arrow(from, to, found));
            json!({ "parent": level.parent, "members": level.names(cycle), "arrows": inside.collect::<Vec<_>>() })
        })
    });
    json!({
        "name": graph.name,
        "modules": graph.modules,
        "files": graph.files,
        "lines": graph.lines,
        "layers": layers,
        "arrows": arrows.collect::<Vec<_>>(),
        "cycles": cycles.collect::<Vec<_>>(),
    })
}

/// Returns the library and the programs of a package, with their displayed names. The package's name is used for the
/// library, or for the only program of a package without a library.
fn programs(package: &Package) -> Vec<(String, &Target)> {
    let is_library = |target: &&Target| target.kind.iter().any(|kind| kind.ends_with("lib") || kind == "proc-macro");
    let library = package.targets.iter().filter(is_library).map(|target| (package.name.clone(), target));
    let mut all: Vec<(String, &Target)> = library.collect();
    let programs: Vec<&Target> = package.targets.iter().filter(|target| target.kind.contains(&"bin".into())).collect();
    let is_alone = all.is_empty() && programs.len() == 1;
    all.extend(programs.into_iter().map(|target| {
        (if is_alone { package.name.clone() } else { format!("{}/{}", package.name, target.name) }, target)
    }));
    all
}

fn dependencies(root: &Path, package: &Package, packages: &[Package]) -> Outcome<Vec<CrateDependency>> {
    let manifest = fs::read_to_string(&package.manifest_path)?;
    let shown = package.manifest_path.strip_prefix(root).unwrap_or(&package.manifest_path).display();
    let is_ours = |name: &str| packages.iter().any(|package| package.name == name);
    let ours = package.dependencies.iter().filter(|dependency| dependency.path.is_some() && is_ours(&dependency.name));
    let all = ours.map(|dependency| {
        let declares =
            |line: &str| line.strip_prefix(&dependency.name).is_some_and(|rest| rest.starts_with([' ', '.', '=']));
        let line = manifest.lines().position(declares).map_or(1, |at| at + 1);
        CrateDependency {
            from: package.name.clone(),
            to: dependency.name.clone(),
            is_dev: dependency.kind.as_deref() == Some("dev"),
            place: format!("{shown}:{line}"),
        }
    });
    let mut all: Vec<CrateDependency> = all.collect();
    all.sort_by(|a, b| (&a.to, a.is_dev).cmp(&(&b.to, b.is_dev)));
    // A dependency that tests declare again with other features is still a dependency of the library.
    all.dedup_by(|a, b| a.to == b.to);
    Ok(all)
}
