//! The command `percale`: shows the available transports and devices and why a transport or device is not available,
//! diagnoses a machine, measures speed, copies files between machines, tests the registration cache, and generates its
//! manual pages.

// `output` prints without a panic if the file, pipe or terminal cannot be written.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Args, Subcommand};

mod args;
mod channel;
mod clock;
mod cp;
mod doctor;
mod failure;
mod fixed_buffers;
mod generate;
mod host;
mod info;
mod limits;
mod loopback;
mod memory_range;
mod output;
mod pattern;
mod perf;
mod plot;
mod round;
mod row;
mod serve;
mod signals;
mod stack;
mod statistics;
mod subject;
mod table;
mod torture;
mod transfer;
mod units;
mod worker;

fn main() -> ExitCode {
    signals::ignore_file_size();
    stack::with_enough(command)
}

/// Prints the message of invalid usage, the help or the version. Returns the exit code: 2 for invalid usage.
fn printed(message: &clap::Error) -> ExitCode {
    use std::io::Write;
    let written = message.print().and_then(|()| std::io::stdout().flush());
    match written {
        Err(error) if !message.use_stderr() => {
            output::say(&format!("percale: writing the results: {error}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(message.exit_code()).unwrap_or(1)),
    }
}

fn command() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(message) => return printed(&message),
    };
    let done = match &args.subcommand {
        Subcommand::Info { json } => info::run(*json),
        Subcommand::Doctor(args) => doctor::run(args),
        Subcommand::Perf(args) => perf::run(args),
        Subcommand::Serve(args) => serve::run(args),
        Subcommand::Cp(args) => cp::run(args),
        Subcommand::Torture(args) => torture::run(args),
        Subcommand::Generate(args) => generate::run(args, Args::command()),
        // A failure here has been reported to the measuring process, which prints it.
        Subcommand::SecondProcess { processor } => {
            return ExitCode::from(u8::from(perf::far::second_process(*processor).is_err()));
        }
        Subcommand::DoctorPart { probe, file } => {
            return ExitCode::from(u8::from(doctor::part(*probe, file.as_deref()).is_err()));
        }
        Subcommand::RegistrationPart => return ExitCode::from(u8::from(perf::registration::part().is_err())),
        Subcommand::TeamPart { part, processor } => {
            return ExitCode::from(u8::from(perf::member::run(*part, *processor).is_err()));
        }
        Subcommand::TorturePart { part } => return ExitCode::from(u8::from(torture::part(*part).is_err())),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::say(&format!("percale: {}", transfer::visible::lines(&error.to_string())));
            ExitCode::from(error.exit_code())
        }
    }
}
