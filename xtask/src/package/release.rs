//! The version of a release, and its date.

use crate::failure::{Failure, Outcome};
use crate::machine;
use crate::program::Program;
use std::fs;
use std::path::Path;

/// A release: the version of the workspace, with the date of its heading in CHANGELOG.md.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) version: String,
    /// In the form 2026-01-31.
    pub(super) date: String,
    /// The start of this day in UTC, in seconds since 1970. All files in packages have this time.
    pub(super) epoch: u64,
}

impl Release {
    /// Reads the release that CHANGELOG.md describes.
    ///
    /// # Errors
    /// Fails if the changelog has no heading for the version, or if its date is in the future: files of packages that are
    /// older than their release would keep the time of the build.
    pub(super) fn read(root: &Path) -> Outcome<Self> {
        let version = env!("CARGO_PKG_VERSION");
        let changelog =
            fs::read_to_string(root.join("CHANGELOG.md")).map_err(Failure::during("reading CHANGELOG.md"))?;
        let date = date_of(&changelog, version).ok_or_else(|| {
            Failure::new(format!("CHANGELOG.md has no line `## [{version}] - YYYY-MM-DD`; add one for the release"))
        })?;
        if date > machine::date() {
            return Err(Failure::new(format!(
                "the date of version {version} in CHANGELOG.md, {date}, is in the future"
            )));
        }
        let output = Program::new("date").args(["-u", "-d", &date, "+%s"]).output()?;
        let epoch = output.success()?.trim().parse();
        let epoch = epoch.map_err(Failure::during(format!("CHANGELOG.md: the date {date} of version {version}")))?;
        Ok(Self { version: version.to_owned(), date, epoch })
    }

    /// Returns the version of the Debian packages.
    pub(super) fn debian(&self) -> String {
        format!("{}-1", self.version)
    }
}

/// Returns the date in the heading of a version.
fn date_of(changelog: &str, version: &str) -> Option<String> {
    let heading = format!("## [{version}] - ");
    let date = changelog.lines().find_map(|line| line.strip_prefix(&heading))?.trim();
    let is_date = date.len() == 10 && date.chars().all(|c| c.is_ascii_digit() || c == '-');
    is_date.then(|| date.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Release, date_of};
    use crate::place::Repository;

    #[test]
    fn date_is_that_of_the_version() {
        let changelog = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-11-29\n\n## [0.1.0] - 2026-01-01\n";
        assert_eq!(date_of(changelog, "0.2.0").as_deref(), Some("2026-11-29"));
        assert_eq!(date_of(changelog, "0.1.0").as_deref(), Some("2026-01-01"));
        assert_eq!(date_of(changelog, "0.3.0"), None);
        assert_eq!(date_of("## [0.2.0] - soon", "0.2.0"), None);
    }

    #[test]
    fn changelog_describes_the_version_of_the_workspace() {
        let release = Release::read(&Repository::find().unwrap().root).unwrap();
        assert_eq!(release.debian(), format!("{}-1", env!("CARGO_PKG_VERSION")));
        assert!(release.epoch.is_multiple_of(24 * 60 * 60), "{release:?}");
    }
}
