//! The diagnosis as a table with a list of what to mend, or as lines of JSON.

use comfy_table::{ContentArrangement, Table};
use serde::Serialize;

use super::checks;
use super::diagnosis::{Diagnosis, is_essential};
use super::finding::{Finding, Library, Remedy, State};
use crate::table::{RULED, left};

/// The width of the table if the output is not a terminal.
const WIDTH: u16 = 120;

/// A line of `--json`.
#[derive(Debug, Serialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub(super) enum DoctorLine<'a> {
    Check {
        area: &'static str,
        check: &'a str,
        state: State,
        essential: bool,
        /// What was found, or the reason why it does not work.
        detail: &'a str,
        /// The check that found the cause of the problem, if it is another one.
        cause: Option<&'a str>,
        /// What mends the problem, if its cause is here.
        remedy: Option<&'a Remedy>,
    },
    Libfabric {
        path: &'a str,
        version: Option<&'a str>,
        /// Whether its programs see the provider percale.
        provider: bool,
        /// Whether a program that names no directory gets this one.
        default: bool,
        error: Option<&'a str>,
    },
    Summary {
        /// The essential checks that found that something is missing.
        essential_missing: Vec<&'a str>,
        /// The essential checks that could not be made.
        essential_unknown: Vec<&'a str>,
        /// The checks with a remedy, the most important first.
        to_mend: Vec<&'a str>,
    },
}

/// Returns the lines of `--json`.
pub(super) fn lines(diagnosis: &Diagnosis) -> Vec<DoctorLine<'_>> {
    let checks = diagnosis.findings.iter().map(|found| DoctorLine::Check {
        area: area(found),
        check: &found.check,
        state: found.state,
        essential: is_essential(&found.check),
        detail: &found.detail,
        cause: found.cause.as_deref(),
        remedy: found.remedy.as_ref(),
    });
    let libraries = diagnosis.libraries.iter().map(|Library { path, version, sees_provider, is_default, error }| {
        DoctorLine::Libfabric {
            path,
            version: version.as_deref(),
            provider: *sees_provider,
            default: *is_default,
            error: error.as_deref(),
        }
    });
    let summary = DoctorLine::Summary {
        essential_missing: diagnosis.essential_missing(),
        essential_unknown: diagnosis.essential_unknown(),
        to_mend: diagnosis.roots().into_iter().map(|found| found.check.as_str()).collect(),
    };
    checks.chain(libraries).chain([summary]).collect()
}

fn area(found: &Finding) -> &'static str {
    checks::named(&found.check).map_or("", |check| check.area.name())
}

/// Returns the table, and the list of what to mend.
pub(super) fn text(diagnosis: &Diagnosis) -> String {
    let table = table(diagnosis);
    let width = table.width().unwrap_or(WIDTH);
    format!("{table}\n\n{}", to_mend(diagnosis, usize::from(width)))
}

fn table(diagnosis: &Diagnosis) -> Table {
    let mut table = Table::new();
    table.load_style(RULED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["", "check", "here", "what was found"].map(left));
    if table.width().is_none() {
        table.set_width(WIDTH);
    }
    let mut last = "";
    for found in &diagnosis.findings {
        let area = area(found);
        let detail = match &found.cause {
            Some(cause) => format!("because of {cause}: {}", found.detail),
            None => found.detail.clone(),
        };
        table.add_row([
            left(if area == last { "" } else { area }),
            left(&found.check),
            left(found.state.word()),
            left(detail),
        ]);
        last = area;
    }
    table
}

/// Returns the list of what to mend. Commands stay on one line, so that they can be copied.
fn to_mend(diagnosis: &Diagnosis, width: usize) -> String {
    let roots = diagnosis.roots();
    if roots.is_empty() {
        return "Everything that this machine has works.".into();
    }
    let mut text = String::from("To mend:");
    for (number, found) in roots.iter().enumerate() {
        let remedy = found.remedy.as_ref();
        let advice = remedy.map_or("see the table", |remedy| &remedy.advice);
        let item = format!("{:>3}. {}: {advice}", number + 1, found.check);
        text.push_str(&format!("\n{}", wrapped(&item, width)));
        for command in remedy.iter().flat_map(|remedy| &remedy.commands) {
            text.push_str(&format!("\n       {command}"));
        }
    }
    if diagnosis.essential_missing().is_empty() && diagnosis.essential_unknown().is_empty() {
        text.push_str("\nNothing essential is missing.");
    }
    text
}

/// The indentation of the further lines of an item.
const INDENTATION: usize = 5;

/// Breaks an item into lines of this width, unless a word is longer.
fn wrapped(item: &str, width: usize) -> String {
    let mut lines = String::new();
    let mut used = 0;
    for (at, word) in item.split(' ').enumerate() {
        let length = word.chars().count();
        if at > 0 && used > INDENTATION && used + 1 + length > width {
            lines.push_str(&format!("\n{:INDENTATION$}{word}", ""));
            used = INDENTATION + length;
        } else {
            if at > 0 {
                lines.push(' ');
            }
            lines.push_str(word);
            used += length + usize::from(at > 0);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Diagnosis {
        let remedy = |command: &str| Remedy::new("Do this:", [command.to_owned()]);
        let mut findings = vec![
            Finding::works("kernel", "Linux 6.12"),
            Finding::limited("dev-shm", "only 64 KiB", remedy("mount -o remount,size=50% /dev/shm")),
            Finding::missing("loopback", "127.0.0.1 does not work", remedy("ip link set lo up")),
            Finding::missing("tcp", "no network interface is up", remedy("unused")),
            Finding::absent("cuda", "no driver"),
        ];
        checks::attribute(&mut findings, &[]);
        let library = Library {
            path: "/usr/lib/libfabric.so.1".into(),
            version: Some("1.17".into()),
            sees_provider: true,
            is_default: true,
            error: None,
        };
        Diagnosis { findings, libraries: vec![library] }
    }

    #[test]
    fn the_text_names_what_is_wrong_and_its_command() {
        let text = text(&example());
        for part in [
            "Linux 6.12",
            "yes",
            "partly",
            "because of loopback: no network interface is up",
            "1. loopback: Do this:\n       ip link set lo up",
            "2. dev-shm: Do this:\n       mount",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        assert!(!text.contains("unused") && !text.contains("Nothing essential"), "{text}");
        let good = Diagnosis { findings: vec![Finding::works("kernel", "")], libraries: Vec::new() };
        assert!(super::text(&good).ends_with("Everything that this machine has works."));
    }

    #[test]
    fn the_list_fits_the_width() {
        let text = to_mend(&example(), 20);
        assert!(text.contains("  1. loopback: Do\n     this:\n       ip link set lo up"), "{text}");
        assert_eq!(wrapped("  1. a: word", 120), "  1. a: word");
    }

    #[test]
    fn json_has_the_same_facts_under_stable_names() {
        let diagnosis = example();
        let values: Vec<_> = lines(&diagnosis).iter().map(|line| serde_json::to_value(line).unwrap()).collect();
        let tcp = values.iter().find(|line| line["check"] == "tcp").unwrap();
        assert_eq!((tcp["is"].as_str(), tcp["state"].as_str()), (Some("check"), Some("missing")));
        assert!(tcp["essential"] == true && tcp["cause"] == "loopback" && tcp["remedy"].is_null(), "{tcp}");
        let shm = values.iter().find(|line| line["check"] == "dev-shm").unwrap();
        assert!(shm["remedy"]["commands"][0].as_str().unwrap().starts_with("mount"), "{shm}");
        let library = values.iter().find(|line| line["is"] == "libfabric").unwrap();
        assert!(library["provider"] == true && library["version"] == "1.17", "{library}");
        let summary = values.last().unwrap();
        assert_eq!(summary["essential_missing"], serde_json::json!(["tcp"]));
        assert_eq!(summary["to_mend"], serde_json::json!(["loopback", "dev-shm"]));
    }
}
