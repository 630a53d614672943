//! The steps that check what others get: the crates that are published, the oldest compiler, and the dependencies.

use crate::failure::Outcome;
use crate::machine;
use crate::place::Repository;
use crate::program::{Program, on_path};
use crate::steps::Findings;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// cargo-deny, in the version that CI uses.
const DENY: (&str, &str) = ("cargo-deny", "0.20.2");

/// The checks of cargo-deny that need no database.
const CHECKS: [&str; 3] = ["bans", "licenses", "sources"];

/// The time limit of a check. Fetching the database takes most of it.
const LIMIT: Duration = Duration::from_secs(180);

/// Runs cargo-deny: licenses, sources and banned crates, and known vulnerabilities if the database can be had.
pub(super) fn deny(place: &Repository) -> Outcome<Findings> {
    let program = cargo_deny(place)?;
    let run = |arguments: &[&str]| {
        let deny = Program::new(&program).args(["--all-features", "--locked"]).args(arguments);
        deny.within(&place.root).limit(LIMIT).output()
    };
    let mut failed = 0;
    for check in CHECKS {
        let output = run(&["check", check])?;
        let is_good = output.status.success();
        println!("  {check:<44} {}", if is_good { "ok" } else { "FAILED" });
        if !is_good {
            failed += 1;
            output.stderr.lines().for_each(|line| println!("    {line}"));
        }
    }
    let database = run(&["fetch", "db"]).and_then(|output| output.success().map(drop));
    if let Err(why) = database {
        let why = why.to_string();
        let cause = why.lines().last().unwrap_or_default().trim();
        let remark = format!("known vulnerabilities were not checked, because the database cannot be had: {cause}");
        return Ok(Findings::new(CHECKS.len() - failed, failed, "without advisories").with_remarks(vec![remark]));
    }
    let output = run(&["check", "--disable-fetch", "advisories"])?;
    if !output.status.success() {
        failed += 1;
        output.stderr.lines().for_each(|line| println!("    {line}"));
    }
    Ok(Findings::new(CHECKS.len() + 1 - failed, failed, ""))
}

/// Returns cargo-deny from the search path, or from the target directory, where it is installed if it is missing.
fn cargo_deny(place: &Repository) -> Outcome<PathBuf> {
    let (name, version) = DENY;
    let is_right = |path: &PathBuf| {
        let output = Program::new(path).arg("--version").output();
        output.is_ok_and(|output| output.stdout.split_whitespace().any(|word| word == version))
    };
    if let Some(found) = on_path(name).filter(is_right) {
        return Ok(found);
    }
    let tools = place.target.join("tools");
    let program = tools.join("bin").join(name);
    if !program.is_file() || !is_right(&program) {
        eprintln!("  installing {name} {version} into the target directory");
        let install = place.cargo().args(["install", "--quiet", "--locked", "--force", "--debug", name]);
        install.args(["--version", &format!("={version}"), "--root"]).arg(&tools).passed()?;
    }
    Ok(program)
}

/// Builds the workspace with the oldest compiler that the manifests name (`rust-version`).
pub(super) fn oldest_compiler(place: &Repository) -> Outcome<Findings> {
    let oldest = env!("CARGO_PKG_RUST_VERSION");
    let output = Program::new("rustc").arg("--version").output()?;
    let installed = output.success()?.split_whitespace().nth(1).unwrap_or_default().to_owned();
    if is_release(&installed, oldest) {
        // The step `clippy` has compiled everything with it; this finds it done.
        place.cargo().args(["check", "--quiet", "--locked", "--workspace", "--all-features"]).passed()?;
        return Ok(Findings::new(1, 0, format!("Rust {installed}, which is the compiler of all other steps")));
    }
    let toolchains = Program::new("rustup").args(["toolchain", "list"]).output();
    let toolchains = toolchains.map(|output| output.stdout).unwrap_or_default();
    let Some(toolchain) = toolchains.split_whitespace().find(|name| is_release(name, oldest)) else {
        return Ok(Findings::skipped(format!("Rust {oldest} is not installed: rustup toolchain install {oldest}")));
    };
    let check = Program::new("cargo").args(["check", "--quiet", "--locked", "--workspace", "--all-features"]);
    let check = check.env("RUSTUP_TOOLCHAIN", toolchain).env("CARGO_TARGET_DIR", place.target.join("oldest"));
    // A toolchain is chosen by rustup's cargo, and not by the one that runs this task.
    check.without("CARGO").without("RUSTC").within(&place.root).passed()?;
    Ok(Findings::new(1, 0, format!("Rust {toolchain}")))
}

/// Returns whether a version or a toolchain ("1.95.0", "1.95-x86_64-unknown-linux-gnu") is of a release ("1.95").
fn is_release(version: &str, release: &str) -> bool {
    version.strip_prefix(release).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
}

/// Packs all crates as for publishing, and builds what was packed.
pub(super) fn publish(place: &Repository) -> Outcome<Findings> {
    let output = place.cargo().args(["metadata", "--no-deps", "--format-version", "1", "--offline"]).output()?;
    let metadata: Value = serde_json::from_str(output.success()?)?;
    let manifests = metadata["packages"].as_array().cloned().unwrap_or_default();
    let (published, problems) = complete(&manifests);
    problems.iter().for_each(|problem| println!("  {problem}"));
    // Changes of a working tree are not published, but may be checked.
    let dirty: &[&str] = if machine::is_ci() { &[] } else { &["--allow-dirty"] };
    let pack = place.cargo().args(["publish", "--quiet", "--dry-run", "--workspace", "--locked"]).args(dirty);
    pack.without("RUSTFLAGS").output()?.success()?;
    Ok(Findings::new(published, problems.len(), format!("{published} crates")))
}

/// Returns the number of published crates, and what is missing in their manifests.
fn complete(manifests: &[Value]) -> (usize, Vec<String>) {
    let is_published =
        |manifest: &&Value| manifest["publish"].as_array().is_none_or(|registries| !registries.is_empty());
    let published: Vec<&Value> = manifests.iter().filter(is_published).collect();
    let names: BTreeSet<&str> = published.iter().filter_map(|manifest| manifest["name"].as_str()).collect();
    let versions: BTreeSet<&str> = manifests.iter().filter_map(|manifest| manifest["version"].as_str()).collect();
    let mut problems = Vec::new();
    if versions.len() > 1 {
        problems.push(format!("the crates have several versions: {versions:?}; all have that of the workspace"));
    }
    for manifest in &published {
        let name = manifest["name"].as_str().unwrap_or_default();
        for field in ["description", "license", "rust_version"] {
            if manifest[field].as_str().is_none_or(str::is_empty) {
                problems.push(format!("{name}: the manifest has no {}", field.replace('_', "-")));
            }
        }
        for field in ["keywords", "categories"] {
            if manifest[field].as_array().is_none_or(|list| list.is_empty() || list.len() > 5) {
                problems.push(format!("{name}: the manifest needs 1 to 5 {field}"));
            }
        }
        for dependency in manifest["dependencies"].as_array().into_iter().flatten() {
            problems.extend(unsuitable(name, dependency, &names));
        }
    }
    (published.len(), problems)
}

/// Returns why a published crate cannot have a dependency.
fn unsuitable(name: &str, dependency: &Value, published: &BTreeSet<&str>) -> Option<String> {
    dependency["path"].as_str()?;
    let other = dependency["name"].as_str().unwrap_or_default();
    let has_version = dependency["req"].as_str().is_some_and(|version| version != "*");
    let is_test = dependency["kind"].as_str() == Some("dev");
    match (published.contains(other), is_test, has_version) {
        (true, false, false) => Some(format!("{name}: the dependency on {other} has a path and no version")),
        (false, false, _) => Some(format!("{name}: depends on {other}, which is not published")),
        (false, true, true) => {
            Some(format!("{name}: the tests depend on {other}, which is not published: remove the version there"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{complete, is_release};
    use serde_json::{Value, json};

    fn manifest(name: &str, publish: Value, dependencies: Value) -> Value {
        json!({
            "name": name, "version": "0.2.0", "publish": publish, "description": "a crate", "license": "MIT",
            "rust_version": "1.95", "keywords": ["one"], "categories": ["caching"], "dependencies": dependencies
        })
    }

    #[test]
    fn releases_of_the_compiler_are_recognized() {
        assert!(is_release("1.95.0", "1.95") && is_release("1.95-x86_64-unknown-linux-gnu", "1.95"));
        assert!(!is_release("1.950.0", "1.95") && !is_release("1.9", "1.95") && !is_release("stable", "1.95"));
    }

    #[test]
    fn complete_manifests_have_no_problem() {
        let local = |name: &str, req: &str, kind: Value| json!({"name": name, "req": req, "kind": kind, "path": "/x"});
        let tests = json!([local("inner", "=0.2.0", Value::Null), local("double", "*", json!("dev"))]);
        let manifests = [
            manifest("outer", Value::Null, tests),
            manifest("inner", Value::Null, json!([])),
            manifest("double", json!([]), json!([])),
        ];
        assert_eq!(complete(&manifests), (2, Vec::new()));
    }

    #[test]
    fn missing_parts_of_manifests_are_named() {
        let mut without = manifest("a", Value::Null, json!([]));
        without["description"] = Value::Null;
        without["keywords"] = json!([]);
        let (count, problems) = complete(&[without]);
        assert_eq!(count, 1);
        assert_eq!(problems, ["a: the manifest has no description", "a: the manifest needs 1 to 5 keywords"]);
        let mut newer = manifest("b", Value::Null, json!([]));
        newer["version"] = json!("0.3.0");
        let (_, problems) = complete(&[manifest("a", Value::Null, json!([])), newer]);
        assert!(problems[0].contains("several versions"), "{problems:?}");
    }

    #[test]
    fn unpublished_dependencies_are_named() {
        let depends = |kind: Value, req: &str| {
            let dependency = json!({"name": "double", "req": req, "kind": kind, "path": "/x"});
            let manifests = [manifest("a", Value::Null, json!([dependency])), manifest("double", json!([]), json!([]))];
            complete(&manifests).1
        };
        assert_eq!(depends(Value::Null, "=0.2.0"), ["a: depends on double, which is not published"]);
        assert!(depends(json!("dev"), "=0.2.0")[0].contains("remove the version"));
        assert!(depends(json!("dev"), "*").is_empty());
    }
}
