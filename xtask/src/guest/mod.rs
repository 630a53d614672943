//! `cargo xtask guest`: programs on a kernel that has RDMA, in a virtual machine: Debian's kernel with soft-RoCE devices.
//!
//! * [`fetch`]: Debian's packages, by name
//! * [`modules`], [`cpio`], [`image`]: the kernel and its first file system, made of them once
//! * [`brought`]: what one boot brings along
//! * [`built`]: test programs, by cargo
//! * [`boot`]: one boot, and how it ended
//!
//! Each program gets a boot of its own, with a time limit: a panic of the guest's kernel ends nothing else, and is no
//! result. The guest has no network and no disk, and reaches nothing of this machine.

mod boot;
mod brought;
mod built;
mod cpio;
mod fetch;
mod image;
mod modules;

use crate::failure::{Failure, Outcome};
use crate::packages::{self, Needed};
use crate::place::Place;
use boot::{Accelerator, End, Logs, Settings};
use brought::Job;
use image::Image;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Runs this program with these arguments instead of the list
    #[arg(last = true, value_name = "PROGRAM ARGUMENTS")]
    command: Vec<String>,
    /// Runs this test program instead, a library's (percale) or another (percale-conformance:conformance); arguments follow `--`
    #[arg(long, value_name = "PACKAGE[:TEST]")]
    test: Option<String>,
    /// A setting of the program's environment
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Another program or file that it uses; it lies in the guest where it lies here
    #[arg(long, value_name = "FILE")]
    with: Vec<PathBuf>,
    /// Seconds that one boot may take
    #[arg(long, default_value_t = 120)]
    limit: u64,
    /// The guest's memory in MiB
    #[arg(long, default_value_t = 2048)]
    memory: u32,
    /// Who executes the guest's instructions; the processor if it can
    #[arg(long, value_enum)]
    accelerator: Option<Accelerator>,
    /// Makes the guest anew, of what Debian has today
    #[arg(long)]
    anew: bool,
}

const QEMU: Needed = Needed { program: "qemu-system-x86_64", package: "qemu-system-x86" };

pub(crate) fn run(place: &Place, arguments: &Arguments) -> Outcome<bool> {
    let absolute = |path: &PathBuf| fs::canonicalize(path).map_err(Failure::during(path.display()));
    let mut words = arguments.command.iter().cloned();
    let (program, mut files) = match &arguments.test {
        Some(name) => built::test(place, name)?,
        None => match words.next() {
            Some(program) => (absolute(&program.into())?, Vec::new()),
            None => return Err(Failure::new("name a program: cargo xtask guest -- PROGRAM ARGUMENTS")),
        },
    };
    files.extend(arguments.with.iter().map(absolute).collect::<Outcome<Vec<_>>>()?);
    let (arguments_of, environment) = (words.collect(), arguments.env.clone());
    let job = Job { program, arguments: arguments_of, environment, files, directory: Some(place.root.clone()) };
    packages::ensure(&[QEMU])?;
    let image = Image::prepare(place, arguments.anew)?;
    let settings = Settings {
        accelerator: arguments.accelerator.unwrap_or_else(Accelerator::best),
        memory_mib: arguments.memory,
        limit: Duration::from_secs(arguments.limit),
    };
    let directory = place.target.join("guest");
    let logs = Logs::new(&directory, "program");
    let start = Instant::now();
    eprintln!("  Linux {} under {}", image.version, settings.accelerator.name());
    let ended =
        boot::boot(&image, &brought::pack(&job, &image, &directory)?, &logs, settings, |line| println!("{line}"))?;
    let seconds = start.elapsed().as_secs_f64();
    match ended {
        End::Exit(code) => {
            eprintln!("  exit code {code} in {seconds:.1} s");
            Ok(code == 0)
        }
        End::NoResult { why, .. } => {
            Err(Failure::new(format!("no result: {why}\n  the guest's console: {}", logs.console.display())))
        }
    }
}
