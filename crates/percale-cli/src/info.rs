//! `percale info`: which transports are here, and why the others are not.

use comfy_table::Table;
use percale::Info;
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::perf::print_line;
use crate::table::{RULED, left};

/// A line of the result, also that of `--json`.
#[derive(Debug, Serialize)]
struct Line {
    transport: String,
    available: bool,
    /// Why, or why not.
    reason: String,
}

/// Runs the subcommand.
pub(crate) fn run(json: bool) -> Result<()> {
    let refused = |error: percale::InfoError| Failure::Percale { what: "looking what is here", why: error.to_string() };
    let info = Info::discover().map_err(refused)?;
    let lines = info.transports().iter().map(|transport| Line {
        transport: transport.kind.to_string(),
        available: transport.available,
        reason: transport.reason.clone(),
    });
    if json {
        for line in lines {
            print_line(&serde_json::to_string(&line).map_err(Failure::system("writing JSON"))?)?;
        }
        return Ok(());
    }
    print_line(&table(lines))
}

fn table(lines: impl Iterator<Item = Line>) -> String {
    let mut table = Table::new();
    table.load_style(RULED);
    table.set_header(["transport", "here", "because"].map(left));
    for line in lines {
        let here = if line.available { "yes" } else { "no" };
        table.add_row([left(line.transport), left(here), left(line.reason)]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_here_says_why() {
        let line = |transport: &str, available, reason: &str| Line {
            transport: transport.into(),
            available,
            reason: reason.into(),
        };
        let lines = [line("shm", true, "shared memory works"), line("verbs", false, "no device")];
        let text = table(lines.into_iter());
        assert!(text.contains("yes") && text.contains("no device"), "{text}");
    }
}
