//! `objects.sha256`: the version of the compiler, and the digests of the sources and the objects, in the format of
//! sha256sum (`sha256sum --check objects.sha256`).

use crate::failure::{Failure, Outcome};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The name of the file.
const FILE: &str = "objects.sha256";

/// The start of the line that names the compiler.
const CLANG: &str = "# clang ";

/// The contents of the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The version of clang that made the objects.
    pub(super) clang: String,
    /// The digests by file name, in hexadecimal digits.
    digests: BTreeMap<String, String>,
}

impl Record {
    /// Computes the digests of the files in the folder.
    pub(super) fn of(folder: &Path, clang: &str) -> Outcome<Self> {
        let mut digests = BTreeMap::new();
        let failed = || format!("reading {}", folder.display());
        for entry in fs::read_dir(folder).map_err(Failure::during(failed()))? {
            let path = entry.map_err(Failure::during(failed()))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if name.ends_with(".h") || name.ends_with(".c") || name.ends_with(".o") {
                let bytes = fs::read(&path).map_err(Failure::during(format!("reading {}", path.display())))?;
                digests.insert(name.to_owned(), hexadecimal(&hmac_sha256::Hash::hash(&bytes)));
            }
        }
        Ok(Self { clang: clang.to_owned(), digests })
    }

    /// Reads the file.
    pub(super) fn read(folder: &Path) -> Outcome<Self> {
        let path = folder.join(FILE);
        let text = fs::read_to_string(&path).map_err(Failure::during(format!("reading {}", path.display())))?;
        Self::parse(&text)
            .ok_or_else(|| Failure::new(format!("{} has no line `{CLANG}VERSION`; {}", path.display(), super::REMEDY)))
    }

    fn parse(text: &str) -> Option<Self> {
        let clang = text.lines().find_map(|line| line.strip_prefix(CLANG))?.to_owned();
        let digests = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once("  "));
        let digests = digests.map(|(digest, name)| (name.to_owned(), digest.to_owned())).collect();
        Some(Self { clang, digests })
    }

    fn text(&self) -> String {
        let mut text = format!("# Written by `cargo xtask bpf`.\n{CLANG}{}\n", self.clang);
        self.digests.iter().for_each(|(name, digest)| text += &format!("{digest}  {name}\n"));
        text
    }

    /// Writes the file.
    pub(super) fn write(&self, folder: &Path) -> Outcome {
        let path = folder.join(FILE);
        fs::write(&path, self.text()).map_err(Failure::during(format!("writing {}", path.display())))
    }

    /// Returns the files that differ from their digests, one line for each.
    pub(super) fn differences(&self, folder: &Path) -> Outcome<Vec<String>> {
        let found = Self::of(folder, &self.clang)?;
        let names = self.digests.keys().chain(found.digests.keys());
        let mut lines: Vec<String> = names
            .filter_map(|name| match (self.digests.get(name), found.digests.get(name)) {
                (Some(written), Some(found)) => (written != found).then(|| format!("{name} has changed")),
                (Some(_), None) => Some(format!("{name} is missing")),
                _ => Some(format!("{name} is new")),
            })
            .collect();
        lines.sort();
        lines.dedup();
        Ok(lines)
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_missing_and_new_files_are_named() {
        let folder = std::env::temp_dir().join(format!("percale-bpf-record-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for name in ["a.h", "b.c", "c.o", "notes.txt"] {
            fs::write(folder.join(name), "abc").unwrap();
        }
        let record = Record::of(&folder, "14.0.6").unwrap();
        record.write(&folder).unwrap();
        assert_eq!(Record::read(&folder).unwrap(), record);
        // The digest of "abc" is a test vector of the standard.
        assert!(record.digests["a.h"].starts_with("ba7816bf8f01cfea"));
        assert_eq!(record.differences(&folder).unwrap(), Vec::<String>::new());
        fs::write(folder.join("a.h"), "abd").unwrap();
        fs::remove_file(folder.join("b.c")).unwrap();
        fs::write(folder.join("d.h"), "").unwrap();
        let found = record.differences(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, ["a.h has changed", "b.c is missing", "d.h is new"]);
        assert_eq!(Record::parse("nothing"), None);
    }
}
