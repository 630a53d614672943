//! The installed versions of libfabric, and whether their programs see the provider percale.
//!
//! A machine often has several: that of the distribution, and those of MPI libraries. Each is loaded in a process of
//! its own ([`library`]).

pub(super) mod library;
mod search;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::finding::{Finding, Library, Remedy};
use super::surroundings::{Surroundings, quoted};
pub(super) use search::{Candidates, candidates};

/// The name by which programs load libfabric.
pub(super) const FILE: &str = "libfabric.so.1";

/// The file of the provider.
const PROVIDER: &str = "libpercale-fi.so";

/// Removes libraries that were found twice, by name and in a directory, and a name that the loader does not find.
///
/// A file that the loader chooses for the name, and that cannot be loaded, is not named by the loader. It is the first
/// of the `candidates` of this machine that the loader has to choose.
pub(super) fn distinct(found: Vec<Library>, candidates: &Candidates) -> Vec<Library> {
    let mut all: Vec<Library> = Vec::new();
    let (by_name, by_path): (Vec<_>, Vec<_>) = found.into_iter().partition(|library| library.path == FILE);
    for library in by_path {
        match all.iter_mut().find(|known| known.path == library.path) {
            Some(known) => known.is_default |= library.is_default,
            None => all.push(library),
        }
    }
    for library in by_name.into_iter().filter(|library| !is_passed_over(library)) {
        let of_loader = candidates.of_loader.iter().map(|path| path.display().to_string());
        let of_loader = of_loader.filter_map(|path| all.iter().position(|known| known.path == path));
        match of_loader.into_iter().find(|at| !is_passed_over(&all[*at])) {
            Some(at) if all[at].error.is_some() => all[at].is_default = true,
            _ => all.insert(0, library),
        }
    }
    all
}

/// Returns whether the loader passes over a library: there is none of this name, or it is that of another machine.
fn is_passed_over(library: &Library) -> bool {
    // The loader reports a file of another processor like a missing file.
    let missing = format!("{}: cannot open shared object file: No such file", library.path);
    library.error.as_ref().is_some_and(|error| error.starts_with(&missing) || error.contains("wrong ELF class"))
}

/// Returns the directory of the provider: one that `FI_PROVIDER_PATH` names, or that one of the libraries looks into.
pub(super) fn provider_directory(libraries: &[Library]) -> Option<PathBuf> {
    let named = search::directories_of("FI_PROVIDER_PATH");
    let beside = libraries.iter().filter_map(|library| Some(Path::new(&library.path).parent()?.join("libfabric")));
    let mut all = named.into_iter().chain(beside).filter(|directory| directory.is_absolute());
    // A directory that this user may not search counts: programs of the user do not get the provider from it.
    all.find(|directory| directory.join(PROVIDER).try_exists().unwrap_or(true))
}

/// Judges the libraries: whether those that programs may load can be loaded, whether they differ, and whether any of
/// them sees the provider.
pub(super) fn findings(
    libraries: &[Library],
    provider: Option<&Path>,
    filter: Option<&str>,
    surroundings: &Surroundings,
) -> [Finding; 2] {
    let usable: Vec<&Library> = libraries.iter().filter(|library| library.error.is_none()).collect();
    let broken: Vec<&Library> =
        libraries.iter().filter(|library| library.error.is_some() && !is_passed_over(library)).collect();
    if usable.is_empty() && broken.is_empty() {
        let detail = "not found; only MPI, SHMEM and other programs of libfabric need it";
        return [Finding::absent("libfabric", detail), Finding::absent("provider", "no libfabric")];
    }
    let described: Vec<String> = usable.iter().map(|library| describe(library)).collect();
    let described = described.join("; ");
    let (seeing, blind): (Vec<&Library>, Vec<&Library>) = usable.into_iter().partition(|library| library.sees_provider);
    // The file that programs get is more important than those that few programs name.
    let worst = broken.iter().find(|library| library.is_default).or(broken.first());
    let libfabric = if let Some(worst) = worst {
        unloadable(worst, &broken, &described, surroundings)
    } else if seeing.is_empty() || blind.is_empty() {
        Finding::works("libfabric", described)
    } else {
        let detail = format!("{described}; programs that load {} do not see percale", paths(&blind));
        let directory = provider.map_or_else(|| format!("DIRECTORY_OF_{PROVIDER}"), quoted);
        let advice = "Name the directory of the provider, so that each libfabric finds it:";
        Finding::limited("libfabric", detail, Remedy::new(advice, [format!("export FI_PROVIDER_PATH={directory}")]))
    };
    let provider = if seeing.is_empty() && blind.is_empty() {
        Finding::dependent("provider", "no libfabric can be loaded", "libfabric")
    } else if seeing.is_empty() {
        let variable = std::env::var_os("FI_PROVIDER_PATH").filter(|value| !value.is_empty());
        let remedy = install_provider(provider, variable.as_deref(), surroundings);
        Finding::missing("provider", "no libfabric offers percale to its programs", remedy)
    } else {
        hidden_by(filter).unwrap_or_else(|| Finding::works("provider", format!("of {}", paths(&seeing))))
    };
    [libfabric, provider]
}

/// The finding for libraries that cannot be loaded. `worst` is the one to mend first, and `usable` describes those that
/// can be loaded.
fn unloadable(worst: &Library, broken: &[&Library], usable: &str, surroundings: &Surroundings) -> Finding {
    let described = broken.iter().map(|library| {
        let of = if library.is_default { " (that of the loader)" } else { "" };
        format!("{}{of} cannot be loaded: {}", library.path, library.error.as_deref().unwrap_or("unknown error"))
    });
    let detail = described.chain((!usable.is_empty()).then(|| usable.to_owned())).collect::<Vec<_>>().join("; ");
    let remedy = replace(&worst.path, &search::directories_of("LD_LIBRARY_PATH"), surroundings);
    if worst.is_default || usable.is_empty() {
        Finding::missing("libfabric", detail, remedy)
    } else {
        Finding::limited("libfabric", detail, remedy)
    }
}

/// Returns what keeps programs from loading a file. `directories` are those of LD_LIBRARY_PATH.
fn replace(path: &str, directories: &[PathBuf], surroundings: &Surroundings) -> Remedy {
    let parent = Path::new(path).parent();
    let has_file =
        |directory: &&PathBuf| fs::canonicalize(directory.join(FILE)).is_ok_and(|file| file == Path::new(path));
    if path == FILE {
        return Remedy::new(
            format!("Replace the file that the loader chooses for {FILE}. This shows it:"),
            [format!("LD_DEBUG=libs percale {} libfabric --file {FILE}", super::PART)],
        );
    }
    if directories.iter().any(|directory| has_file(&directory)) {
        let rest = directories.iter().filter(|directory| !has_file(directory)).map(|path| path.display().to_string());
        let rest = rest.collect::<Vec<_>>().join(":");
        let command = if rest.is_empty() {
            "unset LD_LIBRARY_PATH".into()
        } else {
            format!("export LD_LIBRARY_PATH={}", quoted(&rest))
        };
        return Remedy::new(format!("Replace {path}, or remove its directory from LD_LIBRARY_PATH:"), [command]);
    }
    if parent.is_some_and(|parent| parent.starts_with("/usr/lib") || parent.starts_with("/lib")) {
        let install = surroundings.as_root("apt install --reinstall libfabric1");
        return Remedy::new(format!("Install the package of {path} again (of Debian):"), [install]);
    }
    Remedy::new(
        format!("Install the package of {path} again, or rename the file, so that no program loads it:"),
        [surroundings.as_root(&format!("mv {} {}", quoted(path), quoted(format!("{path}.broken"))))],
    )
}

fn describe(library: &Library) -> String {
    let version = library.version.as_deref().unwrap_or("?");
    format!("{version} at {}{}", library.path, if library.is_default { " (that of the loader)" } else { "" })
}

fn paths(libraries: &[&Library]) -> String {
    libraries.iter().map(|library| library.path.as_str()).collect::<Vec<_>>().join(", ")
}

/// Checks the variable FI_PROVIDER, which selects providers (`a,b`) or excludes them (`^a,b`). libfabric ignores the
/// case of names.
fn hidden_by(filter: Option<&str>) -> Option<Finding> {
    let filter = filter.filter(|filter| !filter.is_empty())?;
    let (names, excludes) = filter.strip_prefix('^').map_or((filter, false), |names| (names, true));
    let is_named = names.split(',').any(|name| name.eq_ignore_ascii_case("percale"));
    (is_named == excludes).then(|| {
        let detail = format!("the variable FI_PROVIDER={filter} hides percale from all programs");
        Finding::limited("provider", detail, Remedy::new("Remove the variable:", ["unset FI_PROVIDER".to_owned()]))
    })
}

/// Returns what makes libfabric load the provider. `provider` is its directory, and `variable` the value of
/// FI_PROVIDER_PATH, which replaces the directory that libfabric searches otherwise.
fn install_provider(provider: Option<&Path>, variable: Option<&OsStr>, surroundings: &Surroundings) -> Remedy {
    let is_named =
        |directory: &Path| variable.is_some_and(|names| std::env::split_paths(names).any(|it| it == directory));
    match provider {
        Some(directory) if directory.join(PROVIDER).try_exists().is_err() => Remedy::new(
            "Let all users search the directory of the provider:",
            [surroundings.as_root(&format!("chmod 755 {}", quoted(directory)))],
        ),
        Some(directory) if variable.is_some() && !is_named(directory) => Remedy::new(
            format!(
                "FI_PROVIDER_PATH names other directories than that of the provider. Remove the variable, or add {}:",
                directory.display()
            ),
            ["unset FI_PROVIDER_PATH".to_owned()],
        ),
        Some(directory) => Remedy::new(
            format!(
                "{} exists, but is not loaded. libfabric's log contains the reason:",
                directory.join(PROVIDER).display()
            ),
            [format!("FI_PROVIDER_PATH={} FI_LOG_LEVEL=info fi_info -p percale", quoted(directory))],
        ),
        None => Remedy::new(
            "Install percale's package libpercale-fi1 (its file; Debian does not have it), or set FI_PROVIDER_PATH to the \
             directory of the provider:",
            [surroundings.as_root("apt install ./libpercale-fi1_*.deb")],
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

    fn broken(path: &str, error: &str) -> Library {
        Library { version: None, error: Some(error.into()), ..library(path, false) }
    }

    #[test]
    fn a_library_that_was_found_twice_is_one() {
        let default = Library { is_default: true, ..library("/usr/lib/a", false) };
        let absent = broken(FILE, &format!("{FILE}: cannot open shared object file: No such file or directory"));
        let found = vec![absent, library("/usr/lib/a", false), default, library("/opt/b", true)];
        let all = distinct(found, &Candidates::default());
        assert_eq!(
            all.iter().map(|one| (one.path.as_str(), one.is_default)).collect::<Vec<_>>(),
            [("/usr/lib/a", true), ("/opt/b", false)]
        );
    }

    #[test]
    fn the_file_that_the_loader_fails_to_load_is_named() {
        let candidates =
            Candidates { of_loader: ["/32", "/a", "/b"].map(PathBuf::from).to_vec(), ..Default::default() };
        let default = Library { is_default: true, ..broken(FILE, "its process ended: signal: 6") };
        let foreign = broken("/32", "/32: wrong ELF class: ELFCLASS32");
        let of = |a: Library| distinct(vec![default.clone(), foreign.clone(), a, library("/b", true)], &candidates);
        let is_default = |all: &[Library], path| all.iter().any(|one| one.path == path && one.is_default);
        let all = of(broken("/a", "its process ended: signal: 6"));
        assert!(all.len() == 3 && is_default(&all, "/a"), "{all:?}");
        // The file is not known: the one that comes first can be loaded by its path.
        let all = of(library("/a", true));
        assert!(all.len() == 4 && is_default(&all, FILE), "{all:?}");
    }

    #[test]
    fn a_file_that_cannot_be_loaded_has_a_remedy() {
        let user = Surroundings::example();
        let remedy = |path: &str| replace(path, &[], &user);
        assert!(remedy(FILE).commands[0].starts_with("LD_DEBUG=libs percale doctor-part libfabric"));
        assert_eq!(remedy("/usr/lib/x/libfabric.so.1").commands, ["sudo apt install --reinstall libfabric1"]);
        assert!(remedy("/opt/mpi/lib/libfabric.so.1").commands[0].starts_with("sudo mv /opt/mpi/lib/libfabric.so.1 "));
    }

    #[test]
    fn each_state_of_the_libraries_has_one_root() {
        use State::{Absent, Limited, Missing, Works};
        let (a, b) = (library("/a", true), library("/b", false));
        let foreign = broken("/c", "/c: wrong ELF class: ELFCLASS32");
        let default = Library { is_default: true, ..broken("/d", "/d: file too short") };
        let short = broken("/e", "/e: file too short");
        for (libraries, expected) in [
            (vec![], [Absent, Absent]),
            (vec![foreign.clone()], [Absent, Absent]),
            (vec![default.clone()], [Missing, Missing]),
            (vec![short.clone()], [Missing, Missing]),
            (vec![a.clone(), default.clone()], [Missing, Works]),
            (vec![a.clone(), short.clone()], [Limited, Works]),
            (vec![a.clone()], [Works, Works]),
            (vec![b.clone(), foreign], [Works, Missing]),
            (vec![a.clone(), b.clone()], [Limited, Works]),
            (vec![a.clone(), a.clone()], [Works, Works]),
        ] {
            let found = judged(&libraries, None);
            assert_eq!(found.each_ref().map(|found| found.state), expected, "{libraries:?}");
            assert!(found.iter().filter(|found| found.is_root()).count() <= 1, "{found:?}");
        }
        let [libfabric, _] = judged(&[a, b], None);
        assert!(libfabric.detail.ends_with("programs that load /b do not see percale"), "{}", libfabric.detail);
        assert!(libfabric.remedy.unwrap().commands[0].starts_with("export FI_PROVIDER_PATH="));
    }

    #[test]
    fn a_variable_may_hide_the_provider() {
        for (filter, hides) in [
            ("percale", false),
            ("Percale", false),
            ("^PERCALE", true),
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
        if std::env::var_os("FI_PROVIDER_PATH").is_none() {
            assert!(finding.remedy.unwrap().commands[0].contains("FI_LOG_LEVEL=info"));
        }
        for (variable, command) in [("/opt/a:/opt/b", "FI_LOG_LEVEL=info"), ("/opt/b", "unset FI_PROVIDER_PATH")] {
            let remedy = install_provider(Some(Path::new("/opt/a")), Some(variable.as_ref()), &Surroundings::example());
            assert!(remedy.commands[0].contains(command), "{variable}: {remedy:?}");
        }
    }
}
