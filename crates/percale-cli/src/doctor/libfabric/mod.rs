//! The installed versions of libfabric, and whether their programs see the provider percale.
//!
//! A machine often has several: that of the distribution, and those of MPI libraries. Each is loaded in a process of
//! its own ([`library`]).

pub(super) mod library;
mod search;

use std::path::{Path, PathBuf};

use super::finding::{Finding, Library, Remedy};
use super::surroundings::Surroundings;
pub(super) use search::candidates;

/// The name by which programs load libfabric.
const FILE: &str = "libfabric.so.1";

/// The file of the provider.
const PROVIDER: &str = "libpercale-fi.so";

/// Removes libraries that were found twice, by name and in a directory, and a name that the loader does not find.
pub(super) fn distinct(found: Vec<Library>) -> Vec<Library> {
    let mut all: Vec<Library> = Vec::new();
    for library in found {
        if library.path == FILE && library.error.is_some() {
            continue;
        }
        match all.iter_mut().find(|known| known.path == library.path) {
            Some(known) => known.is_default |= library.is_default,
            None => all.push(library),
        }
    }
    all
}

/// Returns the directory of the provider: one that `FI_PROVIDER_PATH` names, or that one of the libraries looks into.
pub(super) fn provider_directory(libraries: &[Library]) -> Option<PathBuf> {
    let named = search::directories_of("FI_PROVIDER_PATH");
    let beside = libraries.iter().filter_map(|library| Some(Path::new(&library.path).parent()?.join("libfabric")));
    named.into_iter().chain(beside).find(|directory| directory.join(PROVIDER).exists())
}

/// Judges the libraries: whether those that programs may load differ, and whether any of them sees the provider.
pub(super) fn findings(
    libraries: &[Library],
    provider: Option<&Path>,
    filter: Option<&str>,
    surroundings: &Surroundings,
) -> [Finding; 2] {
    let usable: Vec<&Library> = libraries.iter().filter(|library| library.error.is_none()).collect();
    if usable.is_empty() {
        let detail = "not found; only MPI, SHMEM and other programs of libfabric need it";
        return [Finding::absent("libfabric", detail), Finding::absent("provider", "no libfabric")];
    }
    let described: Vec<String> = usable.iter().map(|library| describe(library)).collect();
    let described = described.join("; ");
    let (seeing, blind): (Vec<&Library>, Vec<&Library>) = usable.into_iter().partition(|library| library.sees_provider);
    if seeing.is_empty() {
        let remedy = install_provider(provider, surroundings);
        let detail = "no libfabric offers percale to its programs";
        return [Finding::works("libfabric", described), Finding::missing("provider", detail, remedy)];
    }
    let libfabric = if blind.is_empty() {
        Finding::works("libfabric", described)
    } else {
        let detail = format!("{described}; programs that load {} do not see percale", paths(&blind));
        let directory = provider.map_or_else(|| format!("DIRECTORY_OF_{PROVIDER}"), |path| path.display().to_string());
        let advice = "Name the directory of the provider, so that each libfabric finds it:";
        Finding::limited("libfabric", detail, Remedy::new(advice, [format!("export FI_PROVIDER_PATH={directory}")]))
    };
    [libfabric, hidden_by(filter).unwrap_or_else(|| Finding::works("provider", format!("of {}", paths(&seeing))))]
}

fn describe(library: &Library) -> String {
    let version = library.version.as_deref().unwrap_or("?");
    format!("{version} at {}{}", library.path, if library.is_default { " (that of the loader)" } else { "" })
}

fn paths(libraries: &[&Library]) -> String {
    libraries.iter().map(|library| library.path.as_str()).collect::<Vec<_>>().join(", ")
}

/// Checks the variable FI_PROVIDER, which selects providers (`a,b`) or excludes them (`^a,b`).
fn hidden_by(filter: Option<&str>) -> Option<Finding> {
    let filter = filter.filter(|filter| !filter.is_empty())?;
    let (names, excludes) = filter.strip_prefix('^').map_or((filter, false), |names| (names, true));
    let is_named = names.split(',').any(|name| name == "percale");
    (is_named == excludes).then(|| {
        let detail = format!("the variable FI_PROVIDER={filter} hides percale from all programs");
        Finding::limited("provider", detail, Remedy::new("Remove the variable:", ["unset FI_PROVIDER".to_owned()]))
    })
}

fn install_provider(provider: Option<&Path>, surroundings: &Surroundings) -> Remedy {
    match provider {
        Some(directory) => Remedy::new(
            format!(
                "{} exists, but is not loaded. libfabric's log contains the reason:",
                directory.join(PROVIDER).display()
            ),
            [format!("FI_PROVIDER_PATH={} FI_LOG_LEVEL=info fi_info -p percale", directory.display())],
        ),
        None => Remedy::new(
            "Install the provider, or set FI_PROVIDER_PATH to its directory:",
            [surroundings.as_root("apt install libpercale-fi1")],
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    fn library(path: &str, sees_provider: bool) -> Library {
        Library { path: path.into(), version: Some("1.17".into()), sees_provider, is_default: false, error: None }
    }

    fn judged(libraries: &[Library], filter: Option<&str>) -> [Finding; 2] {
        findings(libraries, None, filter, &Surroundings::example())
    }

    #[test]
    fn a_library_that_was_found_twice_is_one() {
        let default = Library { is_default: true, ..library("/usr/lib/a", false) };
        let absent = Library { error: Some("not found".into()), ..library(FILE, false) };
        let all = distinct(vec![absent, library("/usr/lib/a", false), default, library("/opt/b", true)]);
        assert_eq!(
            all.iter().map(|one| (one.path.as_str(), one.is_default)).collect::<Vec<_>>(),
            [("/usr/lib/a", true), ("/opt/b", false)]
        );
    }

    #[test]
    fn each_state_of_the_libraries_has_one_root() {
        use State::{Absent, Limited, Missing, Works};
        let (a, b) = (library("/a", true), library("/b", false));
        let broken = Library { error: Some("wrong ELF class".into()), ..library("/c", false) };
        for (libraries, expected) in [
            (vec![], [Absent, Absent]),
            (vec![broken.clone()], [Absent, Absent]),
            (vec![a.clone()], [Works, Works]),
            (vec![b.clone(), broken], [Works, Missing]),
            (vec![a.clone(), b.clone()], [Limited, Works]),
            (vec![a.clone(), a.clone()], [Works, Works]),
        ] {
            assert_eq!(judged(&libraries, None).map(|found| found.state), expected, "{libraries:?}");
        }
        let [libfabric, _] = judged(&[a, b], None);
        assert!(libfabric.detail.ends_with("programs that load /b do not see percale"), "{}", libfabric.detail);
        assert!(libfabric.remedy.unwrap().commands[0].starts_with("export FI_PROVIDER_PATH="));
    }

    #[test]
    fn a_variable_may_hide_the_provider() {
        for (filter, hides) in [
            ("percale", false),
            ("tcp,percale", false),
            ("tcp", true),
            ("^tcp", false),
            ("^percale,tcp", true),
            ("", false),
        ] {
            assert_eq!(hidden_by(Some(filter)).is_some(), hides, "{filter}");
        }
        let [_, provider] = judged(&[library("/a", true)], Some("tcp"));
        assert_eq!(provider.remedy.unwrap().commands, ["unset FI_PROVIDER"]);
    }

    #[test]
    fn a_provider_that_exists_is_named() {
        let directory = std::env::temp_dir().join(format!("percale-doctor-provider-{}", std::process::id()));
        let beside = directory.join("libfabric");
        std::fs::create_dir_all(&beside).unwrap();
        let libraries = [library(directory.join(FILE).to_str().unwrap(), false)];
        let before = provider_directory(&libraries);
        std::fs::write(beside.join(PROVIDER), "").unwrap();
        let found = provider_directory(&libraries);
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(before != found && found.is_some_and(|found| found == beside), "{before:?}");
        let [_, finding] = findings(&libraries, Some(&beside), None, &Surroundings::example());
        assert!(finding.remedy.unwrap().commands[0].contains("FI_LOG_LEVEL=info"));
    }
}
