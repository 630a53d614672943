//! `percale info`: the available transports, devices and limits, and why a transport or device is not available.

use comfy_table::Table;
use percale::Info;
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::output::print_line;
use crate::table::{RULED, left, right};
use crate::units;

/// A line of the output. It is also the object of a line of `--json`.
#[derive(Debug, Serialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
enum InfoLine {
    Transport {
        name: String,
        available: bool,
        /// Why the transport is not available, or its capabilities on this machine.
        reason: String,
    },
    Device {
        name: String,
        kind: String,
        available: bool,
        /// Why the device is not available, or its location.
        reason: String,
    },
    Limit {
        name: String,
        /// `None` if there is no limit.
        value: Option<u64>,
        /// The effect of the limit.
        meaning: String,
    },
    /// The address that an endpoint bound to the wildcard address advertises, and the reason for the choice.
    Address { advertised: String },
}

/// Runs the subcommand.
pub(crate) fn run(json: bool) -> Result<()> {
    let info = Info::discover()
        .map_err(|error| Failure::Percale { what: "discovering transports", why: error.to_string() })?;
    let lines = lines(&info);
    if !json {
        return print_line(&text(&lines));
    }
    for line in lines {
        print_line(&serde_json::to_string(&line).map_err(Failure::system("writing JSON"))?)?;
    }
    Ok(())
}

fn lines(info: &Info) -> Vec<InfoLine> {
    let transports = info.transports().iter().map(|one| InfoLine::Transport {
        name: one.kind.to_string(),
        available: one.available,
        reason: one.reason.clone(),
    });
    let devices = info.devices().iter().map(|one| InfoLine::Device {
        name: one.name.clone(),
        kind: one.kind.into(),
        available: one.available,
        reason: one.detail.clone(),
    });
    let limits = info.limits().iter().map(|one| InfoLine::Limit {
        name: one.name.into(),
        value: one.value,
        meaning: one.meaning.into(),
    });
    let address = InfoLine::Address { advertised: info.advertised() };
    transports.chain(devices).chain(limits).chain([address]).collect()
}

fn text(lines: &[InfoLine]) -> String {
    let table = |head: [&str; 3]| {
        let mut table = Table::new();
        table.load_style(RULED);
        table.set_header(head.map(left));
        table
    };
    let mut transports = table(["transport", "here", "because"]);
    let mut devices = table(["device", "here", "because"]);
    let mut limits = table(["limit", "value", "meaning"]);
    let mut address = "";
    let here = |available: bool| left(if available { "yes" } else { "no" });
    for line in lines {
        match line {
            InfoLine::Transport { name, available, reason } => {
                transports.add_row([left(name), here(*available), left(reason)]);
            }
            InfoLine::Device { name, kind, available, reason } => {
                devices.add_row([left(format!("{name} ({kind})")), here(*available), left(reason)]);
            }
            InfoLine::Limit { name, value, meaning } => {
                let value = value.map_or_else(|| "none".into(), units::count);
                limits.add_row([left(name), right(value), left(meaning)]);
            }
            InfoLine::Address { advertised } => address = advertised,
        }
    }
    format!(
        "{transports}\n\n{devices}\n\n{limits}\n\nPeers reach an endpoint that is bound to any address at {address}."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_contains_reasons_for_missing_features() {
        let text = text(&[
            InfoLine::Transport { name: "shm".into(), available: true, reason: "mapped".into() },
            InfoLine::Device {
                name: "cuda0".into(),
                kind: "memory".into(),
                available: false,
                reason: "no driver".into(),
            },
            InfoLine::Limit { name: "open files".into(), value: Some(1_048_576), meaning: "two per peer".into() },
            InfoLine::Limit { name: "locked memory".into(), value: None, meaning: "regions".into() },
            InfoLine::Address { advertised: "10.0.0.1 (the default route)".into() },
        ]);
        for part in ["mapped", "cuda0 (memory)", "no driver", "1,048,576", "none", "10.0.0.1 (the default route)"] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
    }

    #[test]
    fn each_transport_has_a_reason() {
        let lines = lines(&Info::discover().unwrap());
        let reasons = lines.iter().filter_map(|line| match line {
            InfoLine::Transport { reason, .. } => Some(reason),
            _ => None,
        });
        assert!(reasons.clone().count() >= 3 && reasons.clone().all(|reason| !reason.is_empty()));
        for line in &lines {
            let value = serde_json::to_value(line).unwrap();
            assert!(value["is"].is_string(), "{value}");
        }
    }
}
