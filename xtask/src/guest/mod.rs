//! `cargo xtask guest`: runs programs on a kernel with RDMA devices, in a virtual machine with Debian's kernel and
//! soft-RoCE.
//!
//! * [`fetch`]: Debian's packages, by name
//! * [`modules`], [`cpio`], [`image`]: the kernel and its first file system, built from packages once
//! * [`layer`]: the additional files for clients of the provider and for valgrind
//! * [`kept`]: the storage of these files
//! * [`built`]: test programs, built by cargo
//! * [`brought`]: the files of one boot
//! * [`boot`]: one boot and its result
//! * [`clients`]: unmodified clients of the provider
//! * [`memcheck`]: tests under valgrind
//! * [`figures`]: the measurements in the guest, for the report
//! * [`list`]: the programs that run by default
//! * [`row`]: the result of one program
//!
//! Each program runs in a separate boot with a time limit. A panic of the guest's kernel ends only that boot, and
//! counts as no result. The guest has no network and no disk, and cannot access this machine.

mod boot;
mod brought;
mod built;
mod clients;
mod cpio;
mod fetch;
pub(crate) mod figures;
mod image;
mod kept;
mod layer;
mod list;
mod memcheck;
mod modules;
mod row;

use crate::failure::{Failure, Outcome};
use crate::packages::{self, Needed};
use crate::place::Repository;
use crate::table::table;
use boot::{Accelerator, End, Logs, Settings};
use brought::Job;
use image::Image;
use list::GuestProgram;
use row::{ProgramRow, Verdict};
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = "\
The guest has two processors, no disk, and no connection to other networks. It has the RDMA devices rxe0 (10.9.0.1), \
rxe1 (10.9.1.1) and rxe2 (10.9.1.2); the last two are connected to each other. A program has the same path in the \
guest as on this machine. The command returns the program's exit code. It fails if the guest panics or the program \
does not end in time. Examples:

  cargo xtask guest                                    the list
  cargo xtask guest --only torture                     the programs of the list with this text in their names
  cargo xtask guest -- /usr/bin/rdma link
  cargo xtask guest --test percale -- verbs            tests of a library
  cargo xtask guest --test percale-conformance:conformance --env PERCALE_TRANSPORT=verbs")]
pub(crate) struct Arguments {
    /// Runs this program with these arguments instead of the list
    #[arg(last = true, value_name = "PROGRAM ARGUMENTS")]
    command: Vec<String>,
    /// Runs this test program instead of the list: a library's own tests (percale) or an integration test
    /// (percale-conformance:conformance); its arguments follow `--`
    #[arg(long, value_name = "PACKAGE[:TEST]")]
    test: Option<String>,
    /// Only programs of the list with this text in their names
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["command", "test"])]
    only: Option<String>,
    /// Only the short part of the list
    #[arg(long, conflicts_with_all = ["command", "test", "only"])]
    quick: bool,
    /// Prints the list's rows as JSON
    #[arg(long, conflicts_with_all = ["command", "test"])]
    json: bool,
    /// A variable for the program's environment
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    env: Vec<String>,
    /// Another program or file that the program uses; it has the same path in the guest
    #[arg(long, value_name = "FILE")]
    with: Vec<PathBuf>,
    /// The time limit of one boot in seconds [default: 120, or the list's own]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit: Option<u64>,
    /// The guest's memory in MiB
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(256..))]
    memory: u32,
    /// How the guest's instructions are executed [default: kvm if possible, otherwise tcg]
    #[arg(long, value_enum)]
    accelerator: Option<Accelerator>,
    /// Builds the guest again from Debian's current packages
    #[arg(long)]
    anew: bool,
}

const QEMU: Needed = Needed { program: "qemu-system-x86_64", package: "qemu-system-x86" };

/// The time limit in seconds of a boot with a program given by the user.
const LIMIT: u64 = 120;

/// The factor by which translation by QEMU is slower.
const TRANSLATED: u32 = 3;

/// The factor for the time that tests wait before they report a hang, if instructions are translated.
const TIMEOUT_SCALE: u32 = 10;

fn setting(text: &str) -> Result<String, String> {
    let is_one = text.split_once('=').is_some_and(|(name, _)| !name.is_empty());
    if is_one { Ok(text.to_owned()) } else { Err("NAME=VALUE".into()) }
}

pub(crate) fn run(place: &Repository, arguments: &Arguments) -> Outcome<ExitCode> {
    let absolute = |path: &PathBuf| fs::canonicalize(path).map_err(Failure::during(path.display()));
    let further = arguments.with.iter().map(absolute).collect::<Outcome<Vec<_>>>()?;
    let mut words = arguments.command.iter().cloned();
    let named = match &arguments.test {
        Some(name) => Some(built::test(place, name)?),
        None => words.next().map(|program| absolute(&program.into())).transpose()?.map(|program| (program, Vec::new())),
    };
    let guest = Guest::prepare(place, arguments)?;
    let Some((program, mut files)) = named else {
        return guest.run_list(place, arguments, &further);
    };
    files.extend(further);
    let job = Job { program, arguments: words.collect(), files, ..guest.job(place, arguments) };
    let limit = Duration::from_secs(arguments.limit.unwrap_or(LIMIT));
    let start = Instant::now();
    let ended = guest.boot(&job, "program", limit, |line| println!("{line}"))?;
    let seconds = start.elapsed().as_secs_f64();
    match ended {
        End::Exit(code) => {
            eprintln!("  exit code {code} in {seconds:.1} s");
            Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
        }
        End::NoResult { why, .. } => Err(Failure::new(format!("no result: {why}"))),
    }
}

/// The guest that is booted.
struct Guest {
    image: Image,
    directory: PathBuf,
    accelerator: Accelerator,
    memory_mib: u32,
}

impl Guest {
    fn prepare(place: &Repository, arguments: &Arguments) -> Outcome<Self> {
        packages::ensure(&[QEMU])?;
        let guest = Self {
            image: Image::prepare(place, arguments.anew)?,
            directory: place.target.join("guest"),
            accelerator: arguments.accelerator.unwrap_or_else(Accelerator::best),
            memory_mib: arguments.memory,
        };
        eprintln!("  {}", guest.under());
        Ok(guest)
    }

    /// Returns the kernel and the accelerator on which it runs.
    fn under(&self) -> String {
        format!("Linux {} under {}", self.image.version, self.accelerator.name())
    }

    /// Returns the part of a job that all programs share.
    fn job(&self, place: &Repository, arguments: &Arguments) -> Job {
        // Variables set by the user follow, and take precedence. In the guest, tests are permitted operations that they
        // do not execute on other machines.
        let mut environment = arguments.env.clone();
        environment.insert(0, "PERCALE_GUEST=1".to_owned());
        if self.accelerator == Accelerator::Tcg {
            environment.insert(0, format!("PERCALE_TIMEOUT_SCALE={TIMEOUT_SCALE}"));
        }
        Job { environment, directory: Some(place.root.clone()), ..Job::default() }
    }

    fn boot(&self, job: &Job, name: &str, limit: Duration, each: impl FnMut(&str)) -> Outcome<End> {
        let logs = Logs::new(&self.directory, name);
        let settings = Settings { accelerator: self.accelerator, memory_mib: self.memory_mib, limit };
        let ended = boot::boot(&self.image, &brought::pack(job, &self.image, &self.directory)?, &logs, settings, each)?;
        if let End::NoResult { .. } = &ended {
            eprintln!("  the guest's console: {}", logs.console.display());
        }
        Ok(ended)
    }

    fn run_list(&self, place: &Repository, arguments: &Arguments, further: &[PathBuf]) -> Outcome<ExitCode> {
        let wanted = |case: &&GuestProgram| {
            (!arguments.quick || case.is_quick) && arguments.only.as_deref().is_none_or(|part| case.name.contains(part))
        };
        let cases: Vec<&GuestProgram> = list::ALL.iter().filter(wanted).collect();
        if cases.is_empty() {
            let names: Vec<&str> = list::ALL.iter().map(|case| case.name).collect();
            return Err(Failure::new(format!("no program matches the filter; the programs are {}", names.join(", "))));
        }
        eprintln!("  building the programs");
        let mut jobs = Vec::with_capacity(cases.len());
        for case in &cases {
            let mut job = case.job(place, arguments.anew, self.job(place, arguments))?;
            job.files.extend_from_slice(further);
            jobs.push(job);
        }
        let mut rows = Vec::with_capacity(cases.len());
        for (number, (case, job)) in cases.iter().zip(&jobs).enumerate() {
            eprintln!("  [{}/{}] {}", number + 1, cases.len(), case.title());
            let (row, printed) = self.run_case(case, job, arguments.limit)?;
            if case.measures() && row.result == Verdict::Passed {
                figures::save(place, &printed, self.under())?;
            }
            eprintln!("        {} in {:.1} s  {}", row.result.word(), row.seconds, row.note);
            rows.push(row);
        }
        if arguments.json {
            println!("{}", serde_json::to_string_pretty(&rows)?);
        } else {
            show(&rows);
        }
        let is_good = rows.iter().all(|row| matches!(row.result, Verdict::Passed | Verdict::Skipped));
        Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Runs one program. Its output is written to a file and returned.
    fn run_case(&self, case: &GuestProgram, job: &Job, limit: Option<u64>) -> Outcome<(ProgramRow, Vec<String>)> {
        let own = if self.accelerator == Accelerator::Tcg { case.limit * u64::from(TRANSLATED) } else { case.limit };
        let limit = Duration::from_secs(limit.unwrap_or(own));
        let mut file = File::create(self.directory.join(format!("{}.txt", case.name)))?;
        let (mut printed, mut written) = (Vec::new(), Ok(()));
        let start = Instant::now();
        let ended = self.boot(job, case.name, limit, |line| {
            printed.push(line.to_owned());
            written = written
                .as_ref()
                .map_err(std::io::Error::kind)
                .map_err(Into::into)
                .and_then(|()| writeln!(file, "{line}"));
        })?;
        written?;
        let row = case.judge(&printed, &ended, start.elapsed().as_secs_f64());
        Ok((row, printed))
    }
}

fn show(rows: &[ProgramRow]) {
    let mut shown = table(["program", "", "passed", "failed", "left out", "seconds", "note"], 2);
    if let Some(column) = shown.column_mut(6) {
        column.set_cell_alignment(comfy_table::CellAlignment::Left);
    }
    for row in rows {
        let [passed, failed, ignored] = [row.passed, row.failed, row.ignored].map(|count| count.to_string());
        let seconds = format!("{:.1}", row.seconds);
        shown.add_row([&row.name, row.result.word(), &passed, &failed, &ignored, &seconds, &row.note]);
    }
    println!("{shown}");
}
