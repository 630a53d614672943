//! The Debian packages, made by debhelper from packaging/debian.

use super::release::Release;
use super::source::Source;
use super::stage::Stage;
use crate::failure::{Failure, Outcome};
use crate::pindown;
use crate::program::Program;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The maintainer, unless DEBFULLNAME and DEBEMAIL name another one, as for Debian's own tools.
const MAINTAINER: (&str, &str) = ("percale maintainers", "maintainers@percale.invalid");

/// The folder of the units of pindown-helper, and their names there. debhelper looks for these names in debian/.
const UNITS: &str = "crates/pindown/packaging";
const UNIT_FILES: [&str; 4] =
    ["pindown-helper.service", "pindown-helper.socket", "pindown-helper.sysusers", "pindown-helper.tmpfiles"];

/// Builds the Debian packages and moves them to `results`.
pub(super) fn build(source: &Source, stage: &Stage, release: &Release, results: &Path) -> Outcome {
    println!("  building the Debian packages");
    let debian = source.root.join("debian");
    Program::new("cp").arg("-R").arg(source.root.join("packaging/debian")).arg(&debian).output()?.success()?;
    let write = |name: &str, text: &str| {
        let path = debian.join(name);
        fs::write(&path, text).map_err(Failure::during(format!("writing {}", path.display())))
    };
    let name = std::env::var("DEBFULLNAME").unwrap_or_else(|_| MAINTAINER.0.into());
    let address = std::env::var("DEBEMAIL").unwrap_or_else(|_| MAINTAINER.1.into());
    let maintainer = format!("{name} <{address}>");
    let default = format!("{} <{}>", MAINTAINER.0, MAINTAINER.1);
    write("control", &fs::read_to_string(debian.join("control"))?.replace(&default, &maintainer))?;
    write("changelog", &changelog(release, &maintainer)?)?;
    let license = fs::read_to_string(source.root.join("LICENSE-MIT"))?;
    write("copyright", &fs::read_to_string(debian.join("copyright"))?.replace("@MIT@", &indented(&license)))?;
    let listed = Program::new("nm").args(["-D", "--defined-only"]).arg(stage.root.join("lib").join(pindown::SONAME));
    write("libpindown0.symbols", &symbols(listed.output()?.success()?, &release.version))?;
    for file in UNIT_FILES {
        let from = source.root.join(UNITS).join(file);
        fs::copy(&from, debian.join(file)).map_err(Failure::during(format!("copying {}", from.display())))?;
    }
    let multiarch = Program::new("dpkg-architecture").args(["-q", "DEB_HOST_MULTIARCH"]).output()?;
    let library = format!("/usr/lib/{}", multiarch.success()?.trim());
    let template = fs::read_to_string(source.root.join("crates/pindown/pindown.pc.in"))?;
    fs::write(stage.root.join("pindown.pc"), description(&template, &release.version, "/usr", Some(&library)))?;
    if !stage.root.join("share/doc/percale/percale.cdx.json").exists() {
        without_lists(&debian)?;
    }
    same_times(&source.root, release)?;
    let build = Program::new("dpkg-buildpackage").args(["--build=binary", "--unsigned-source", "--unsigned-changes"]);
    // The packages that building needs are checked by the caller.
    let build = build.arg("--no-check-builddeps").within(&source.root).limit(Duration::from_secs(600));
    let build = build.env("SOURCE_DATE_EPOCH", release.epoch.to_string()).env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
    build.output()?.success()?;
    let built = source.root.parent().unwrap_or(&source.root);
    for entry in fs::read_dir(built)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.extension().is_some_and(|extension| extension == "deb") {
            fs::rename(&path, results.join(name)).map_err(Failure::during(format!("moving {}", path.display())))?;
        }
    }
    Ok(())
}

/// Gives all files that packages contain the time of the release.
pub(super) fn same_times(root: &Path, release: &Release) -> Outcome {
    let touch = Program::new("find").arg(root).args(["-exec", "touch", "--no-dereference", "--date"]);
    touch.arg(format!("@{}", release.epoch)).args(["{}", "+"]).output()?.success().map(drop)
}

/// Returns the changelog of the Debian packages. The project's changelog describes the changes.
fn changelog(release: &Release, maintainer: &str) -> Outcome<String> {
    let date = Program::new("date").args(["-u", "-R", "-d"]).arg(format!("@{}", release.epoch)).env("LC_ALL", "C");
    let date = date.output()?.success()?.trim().to_owned();
    let (debian, version) = (release.debian(), &release.version);
    Ok(format!(
        "percale ({debian}) unstable; urgency=medium\n\n  * Version {version}; changelog.gz of the package percale \
         lists the changes.\n\n -- {maintainer}  {date}\n"
    ))
}

/// Formats a text as a field of debian/copyright.
fn indented(text: &str) -> String {
    let lines = text.trim().lines().map(|line| if line.trim().is_empty() { " .".into() } else { format!(" {line}") });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns debian/libpindown0.symbols for the output of nm: programs need the library in the version that they were
/// linked with, or newer.
fn symbols(listed: &str, version: &str) -> String {
    let names = listed.lines().filter_map(|line| {
        let mut words = line.split_whitespace().rev();
        let (name, kind) = (words.next()?, words.next()?);
        Some(match name.split_once('@') {
            Some((name, node)) => format!("{name}@{}", node.trim_start_matches('@')),
            // The version nodes of a library are symbols of their own.
            None if kind == "A" => format!("{name}@{name}"),
            None => format!("{name}@Base"),
        })
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    let lines: String = names.iter().map(|name| format!(" {name} {version}\n")).collect();
    format!("{} libpindown0 #MINVER#\n{lines}", pindown::SONAME)
}

/// Fills in pindown.pc.in. `library` replaces the folder of libraries that the template names.
pub(super) fn description(template: &str, version: &str, prefix: &str, library: Option<&str>) -> String {
    let filled = template.replace("@prefix@", prefix).replace("@version@", version);
    let lines = filled.lines().map(|line| match library {
        Some(library) if line.starts_with("libdir=") => format!("libdir={library}"),
        _ => line.to_owned(),
    });
    lines.map(|line| line + "\n").collect()
}

/// Removes the lists of components from the lists of documents.
fn without_lists(debian: &Path) -> Outcome {
    for entry in fs::read_dir(debian)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "docs") {
            let text = fs::read_to_string(&path)?;
            let lines: String =
                text.lines().filter(|line| !line.ends_with(".cdx.json")).map(|line| format!("{line}\n")).collect();
            fs::write(&path, lines)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Release, changelog, description, indented, symbols};

    #[test]
    fn changelog_has_the_date_of_the_release() {
        let release = Release { version: "0.2.0".into(), date: "2026-11-29".into(), epoch: 1_795_910_400 };
        let text = changelog(&release, "a <a@b.invalid>").unwrap();
        assert!(text.starts_with("percale (0.2.0-1) unstable;"), "{text}");
        assert!(text.ends_with(" -- a <a@b.invalid>  Sun, 29 Nov 2026 00:00:00 +0000\n"), "{text}");
    }

    #[test]
    fn symbols_have_the_version_node_that_they_are_exported_with() {
        let listed = "0000000000000000 A PINDOWN_0.2\n0000000000001000 T pindown_open@@PINDOWN_0.2\n\
                      0000000000001100 T pindown_get\n";
        assert_eq!(
            symbols(listed, "0.2.0"),
            "libpindown.so.0 libpindown0 #MINVER#\n PINDOWN_0.2@PINDOWN_0.2 0.2.0\n pindown_get@Base 0.2.0\n \
             pindown_open@PINDOWN_0.2 0.2.0\n"
        );
    }

    #[test]
    fn description_names_the_folder_of_libraries() {
        let template = "prefix=@prefix@\nlibdir=${prefix}/lib\nVersion: @version@\n";
        assert_eq!(description(template, "0.2.0", "/opt", None), "prefix=/opt\nlibdir=${prefix}/lib\nVersion: 0.2.0\n");
        assert_eq!(
            description(template, "0.2.0", "/usr", Some("/usr/lib/x")),
            "prefix=/usr\nlibdir=/usr/lib/x\nVersion: 0.2.0\n"
        );
    }

    #[test]
    fn blank_lines_of_a_field_have_a_point() {
        assert_eq!(indented("MIT\n\nPermission\n"), " MIT\n .\n Permission");
    }
}
