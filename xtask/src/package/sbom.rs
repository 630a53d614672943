//! Lists of components (SBOM) in the format CycloneDX: the crates in each package, with versions, licenses and checksums.
//!
//! cargo-cyclonedx writes them. The folder of the sources and the time of the run are removed, so that the lists of two
//! builds are the same.

use super::release::Release;
use super::source::Source;
use super::tools::Tools;
use crate::failure::{Failure, Outcome};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// The packages, each with the crate from which its program or library is built.
const PACKAGES: [(&str, &str); 4] = [
    ("percale", "percale-cli"),
    ("libpercale-fi1", "percale-ofi"),
    ("libpindown0", "pindown"),
    ("pindown-helper", "pindown"),
];

/// The name of the files that cargo-cyclonedx writes beside each manifest of the copied sources.
const WRITTEN: &str = "components";

/// Writes the lists of all packages to a folder: percale.cdx.json and others.
pub(super) fn write(source: &Source, release: &Release, tools: &Tools, folder: &Path) -> Outcome {
    let cargo =
        tools.add_to(source.cargo()).args(["cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5"]);
    let cargo = cargo.args(["--no-build-deps", "--override-filename", WRITTEN]);
    cargo.env("SOURCE_DATE_EPOCH", release.epoch.to_string()).passed()?;
    fs::create_dir_all(folder)?;
    for (package, its_crate) in PACKAGES {
        let from = source.root.join("crates").join(its_crate).join(format!("{WRITTEN}.json"));
        let text = fs::read_to_string(&from).map_err(Failure::during(format!("reading {}", from.display())))?;
        let list = neutral(&text, &source.root, &release.date)?;
        let path = folder.join(format!("{package}.cdx.json"));
        fs::write(&path, list).map_err(Failure::during(format!("writing {}", path.display())))?;
    }
    Ok(())
}

/// Removes what differs between two builds.
fn neutral(text: &str, root: &Path, date: &str) -> Outcome<String> {
    let root = format!("{}/", root.display());
    let mut list: Value = serde_json::from_str(&text.replace(&root, ""))?;
    let fields = list.as_object_mut().ok_or_else(|| Failure::new("cargo-cyclonedx wrote no JSON object"))?;
    fields.remove("serialNumber");
    match fields.get_mut("metadata").and_then(Value::as_object_mut) {
        Some(metadata) => metadata.insert("timestamp".into(), json!(format!("{date}T00:00:00Z"))),
        None => return Err(Failure::new("cargo-cyclonedx wrote no metadata")),
    };
    if fields.get("components").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        return Err(Failure::new("cargo-cyclonedx wrote no components"));
    }
    Ok(serde_json::to_string_pretty(&list)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::neutral;
    use std::path::Path;

    #[test]
    fn list_has_no_folder_and_no_time_of_the_build() {
        let list = |root: &str, time: &str| {
            format!(
                "{{\"serialNumber\": \"urn:uuid:{time}\", \"metadata\": {{\"timestamp\": \"{time}\"}}, \
                 \"components\": [{{\"bom-ref\": \"path+file://{root}/crates/pindown#0.2.0\"}}]}}"
            )
        };
        let of = |root: &str, time: &str| neutral(&list(root, time), Path::new(root), "2026-11-29").unwrap();
        let first = of("/home/a/first", "10:00");
        assert_eq!(first, of("/srv/second", "11:00"));
        assert!(
            first.contains("path+file://crates/pindown#0.2.0") && first.contains("2026-11-29T00:00:00Z"),
            "{first}"
        );
    }

    #[test]
    fn list_without_components_is_an_error() {
        assert!(neutral("{\"metadata\": {}}", Path::new("/"), "2026-11-29").is_err());
        assert!(neutral("{\"metadata\": {}, \"components\": []}", Path::new("/"), "2026-11-29").is_err());
        assert!(neutral("[]", Path::new("/"), "2026-11-29").is_err());
    }
}
