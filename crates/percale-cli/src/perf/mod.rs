//! `percale perf`: measures percale on this machine, and compares it with the limits of the machine.
//!
//! Two processes, each on its own processor, exchange messages in rounds ([`round`](crate::round)). The measuring
//! process has a [`session`], and the answering process runs [`far`]. The [`request`]s are sent over a
//! [`channel`](crate::channel), which also ends every wait. [`plan`] lists the rows, and [`measure`] measures one row
//! with [`subjects`]. These costs are measured separately: registering memory ([`registration`]), addresses
//! ([`addresses`]), [`windows`], [`triggers`], [`collectives`], and registrations on an [`rdma`] device.

use std::time::Duration;

use crate::failure::{Failure, Result};
use crate::output::{print_line, progress_bar};
use crate::row::{Api, Row};
use crate::{plot, table};
pub(crate) use args::PerfArgs;
use session::Session;

mod addresses;
mod args;
mod collectives;
pub(crate) mod far;
mod figure;
mod generator;
mod line;
mod measure;
pub(crate) mod member;
mod monitors;
mod plan;
mod processors;
mod rdma;
pub(crate) mod registration;
mod request;
pub(crate) mod session;
pub(crate) mod subjects;
pub(crate) mod team;
mod triggers;
mod windows;

/// The default number of seconds per row.
const SECONDS: f64 = 0.8;

/// Runs the subcommand.
pub(crate) fn run(args: &PerfArgs) -> Result<()> {
    let key = args.authorization_key.as_deref().map(crate::transfer::key::read).transpose()?;
    if let Some(address) = &args.listen {
        return far::listen(address, key.as_deref());
    }
    if key.is_some() && args.host.is_none() {
        return Err(Failure::Usage(
            "--authorization-key is for measurements between machines: HOST:PORT or --listen".into(),
        ));
    }
    if let Some(count) = args.addresses {
        return addresses::run(args, count);
    }
    if args.registration {
        return registration::run(args);
    }
    if args.windows {
        return windows::run(args);
    }
    if args.rdma {
        return rdma::run(args);
    }
    if args.triggers {
        return triggers::run(args);
    }
    if args.collectives {
        return collectives::run(args);
    }
    let rows = plan::plan(args)?;
    let options = measure::Options {
        time: Duration::from_secs_f64(args.seconds.unwrap_or(SECONDS)),
        iterations: args.iterations,
        dirty: args.dirty,
        verify: !args.no_verify,
        apis: match &args.api {
            _ if args.limits_only => &[],
            Some(api) => std::slice::from_ref(api),
            None => &Api::ALL,
        },
    };
    let longest = rows.iter().map(|row| row.bytes).max().unwrap_or(0);
    let mut session = match &args.host {
        None => Session::local(longest)?,
        Some(address) => Session::remote(address, key)?,
    };
    let measured = match measure_all(&mut session, &rows, &options, args.json) {
        Ok(measured) => measured,
        Err(error) => {
            // The process exits after an error. This closes the channel and ends the second process. The session is not
            // dropped, because dropping it might wait.
            std::mem::forget(session);
            return Err(error);
        }
    };
    if !args.json {
        print_line(&table::perf(&measured))?;
    }
    if let Some(file) = &args.svg {
        let picture = plot::latencies(&measured)?;
        std::fs::write(file, picture).map_err(Failure::system(format!("writing {}", file.display())))?;
    }
    Ok(())
}

/// Measures all rows. For JSON output, prints each row immediately.
fn measure_all(
    session: &mut Session,
    rows: &[plan::Planned],
    options: &measure::Options<'_>,
    json: bool,
) -> Result<Vec<Row>> {
    let bar = progress_bar(rows.len() as u64 * measure::STEPS)?;
    let mut best = measure::Best::new();
    let mut measured = Vec::new();
    for planned in rows {
        bar.set_message(format!("{} {} {}", planned.transport.name(), planned.op.name(), planned.bytes));
        let row = measure::row(session, planned, options, &mut best, || bar.inc(1))?;
        if json {
            print_line(&serde_json::to_string(&row).map_err(Failure::system("writing JSON"))?)?;
        }
        measured.push(row);
    }
    bar.finish_and_clear();
    Ok(measured)
}
