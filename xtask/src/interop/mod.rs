//! `cargo xtask interop`: unmodified clients of libfabric over the provider.
//!
//! * [`site`]: the packages, the wheels and the provider that clients run with
//! * [`case`]: a client over a transport
//! * [`cases`]: the list of clients
//! * [`libfabric`]: libfabric's own programs, and this project's C program that calls every entry
//! * [`mpi`]: programs of this project and mpi4py's tests over MPI libraries
//! * [`hosts`]: two network namespaces that take the place of two hosts
//! * [`fabtests`]: libfabric's own test programs, if the user has built them, compared with libfabric's shm and tcp
//!   providers
//!
//! Every client runs with a time limit and in a separate process group. Its output is stored in the target directory.

mod case;
mod cases;
mod fabtests;
mod hosts;
mod libfabric;
mod mpi;
mod site;

use crate::failure::{Failure, Outcome};
use crate::place::Repository;
use crate::provider;
use crate::steps::Findings;
use crate::table::table;
pub(crate) use mpi::{THROUGH_THE_PROVIDER, part_of_mpi4py, verdict_of_mpi4py};
pub(crate) use site::{mpi4py, mpich, newer_libfabric};

use case::Transport;
use cases::{ClientEnding, ClientRow, ListedCase};
use site::Site;
use std::path::PathBuf;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only the part for CI: a few clients, under two minutes
    #[arg(long)]
    quick: bool,
    /// Only clients with this text in their name or in the name of their library
    #[arg(long)]
    only: Option<String>,
    /// Leaves out the clients with this text in their name
    #[arg(long)]
    except: Option<String>,
    /// Only over this transport
    #[arg(long, value_enum)]
    transport: Option<Transport>,
    /// The number of runs of each client; a client passes if all of its runs pass
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    /// Runs fabtests from this directory of programs instead, and compares with libfabric's shm and tcp providers
    #[arg(long, value_name = "DIRECTORY")]
    fabtests: Option<PathBuf>,
    /// The directory of the libfabric for fabtests [default: `../lib` next to the programs if it contains one,
    /// otherwise the system's]
    #[arg(long, value_name = "DIRECTORY", requires = "fabtests")]
    libfabric: Option<PathBuf>,
    /// Runs fabtests over these providers only
    #[arg(long, value_delimiter = ',', requires = "fabtests")]
    over: Vec<fabtests::Over>,
    /// Prints the rows as JSON instead of a table
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn wants(&self, listed: &ListedCase) -> bool {
        let case = &listed.case;
        (!self.quick || listed.is_quick)
            && self.transport.is_none_or(|only| only == case.transport)
            && self.only.as_deref().is_none_or(|part| case.client.contains(part) || case.library.contains(part))
            && self.except.as_deref().is_none_or(|part| !case.client.contains(part) && !case.library.contains(part))
    }
}

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<bool> {
    let provider = provider::build(place)?;
    if let Some(directory) = &arguments.fabtests {
        let site = fabtests::site(place, provider, directory, arguments.libfabric.as_deref())?;
        let (only, except) = (arguments.only.as_deref(), arguments.except.as_deref());
        let wanted =
            |line: &str| only.is_none_or(|part| line.contains(part)) && except.is_none_or(|part| !line.contains(part));
        return fabtests::run(&site, &arguments.over, wanted, arguments.json);
    }
    let site = Site::prepare(place, provider, true);
    let rows = run_all(&site, arguments.repeat, |case| arguments.wants(case));
    if rows.is_empty() {
        return Err(Failure::new("no client matches"));
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        show(&rows);
    }
    Ok(rows.iter().all(|row| row.ending != ClientEnding::Failed))
}

/// Runs the short part for CI as a step of `cargo xtask test`, with the packages that are installed.
pub(crate) fn quick(place: &Repository) -> Outcome<Findings> {
    if let Some(missing) = site::missing() {
        return Ok(Findings::skipped(format!("missing: {missing}")));
    }
    let site = Site::prepare(place, provider::build(place)?, false);
    let rows = run_all(&site, 1, |case| case.is_quick);
    let count = |ending| rows.iter().filter(|row| row.ending == ending).count();
    let skipped = count(ClientEnding::Skipped);
    for row in rows.iter().filter(|row| row.ending == ClientEnding::Skipped) {
        println!("  SKIPPED {} over {}: {}", row.client, row.library, row.note);
    }
    let note = if skipped > 0 { format!("clients; {skipped} skipped") } else { "clients".into() };
    Ok(Findings::new(count(ClientEnding::Passed), count(ClientEnding::Failed), note))
}

fn run_all(site: &Site<'_>, times: usize, wanted: impl Fn(&ListedCase) -> bool) -> Vec<ClientRow> {
    let cases: Vec<ListedCase> = cases::all(site).into_iter().filter(wanted).collect();
    let mut rows = Vec::with_capacity(cases.len());
    for (number, listed) in cases.iter().enumerate() {
        eprint!("  [{}/{}] {} ... ", number + 1, cases.len(), listed.case.title());
        let start = Instant::now();
        let row = run_often(listed, site, times);
        eprintln!("{} in {:.1} s  {}", row.ending, start.elapsed().as_secs_f64(), row.note);
        rows.push(row);
    }
    rows
}

/// Runs a client several times. Returns the last run, or the first one that did not pass.
fn run_often(listed: &ListedCase, site: &Site<'_>, times: usize) -> ClientRow {
    let mut row = listed.run(site);
    for done in 1..times {
        if row.ending != ClientEnding::Passed {
            row.note = format!("run {done} of {times}: {}", row.note);
            return row;
        }
        row = listed.run(site);
    }
    if times > 1 {
        row.note = format!("{times} times; {}", row.note);
    }
    row
}

fn show(rows: &[ClientRow]) {
    let mut shown = table(["client", "library", "transport", "", "seconds", "note"], 4);
    if let Some(column) = shown.column_mut(5) {
        column.set_cell_alignment(comfy_table::CellAlignment::Left);
    }
    for row in rows {
        let words = [&row.client, &row.library, row.transport.name(), row.ending.word()];
        shown.add_row(
            words.iter().map(|&word| word.to_owned()).chain([format!("{:.1}", row.seconds), row.note.clone()]),
        );
    }
    println!("{shown}");
    let count = |ending| rows.iter().filter(|row| row.ending == ending).count();
    let [passed, failed, skipped] = [ClientEnding::Passed, ClientEnding::Failed, ClientEnding::Skipped].map(count);
    println!("{passed} passed, {failed} failed, {skipped} skipped");
}
