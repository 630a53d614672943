//! pindown-helper: loads the kernel programs once, and passes their reports to processes that have no permission to
//! load them.
//!
//! `arguments` parses the command line, `log` formats messages for a terminal or for the journal, and `writer` writes
//! them.

mod arguments;
mod log;
mod writer;

use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::thread::Builder;

use pindown::monitor::bpf::{BpfUnavailable, Helper, loadable, socket_path};

use crate::arguments::{Settings, Task};
use crate::log::Log;

/// The exit status after an error while clients were served, or if the output cannot be written.
const FAILED: u8 = 1;
/// The exit status for wrong arguments.
const WRONG_ARGUMENTS: u8 = 2;
/// The exit status if the helper cannot start.
const CANNOT_START: u8 = 3;

fn main() -> ExitCode {
    let log = Log::new();
    let task = match arguments::parse(std::env::args_os().skip(1)) {
        Ok(task) => task,
        Err(why) => {
            log.error(&format!("{why} (see --help)"));
            return WRONG_ARGUMENTS.into();
        }
    };
    match task {
        Task::Help => print(&log, arguments::HELP, ExitCode::SUCCESS),
        Task::Version => print(&log, concat!("pindown-helper ", env!("CARGO_PKG_VERSION"), "\n"), ExitCode::SUCCESS),
        Task::Check { json } => check(&log, json),
        Task::Serve(settings) => {
            let log = log.receive(settings.is_verbose);
            let status = serve(&settings);
            log.finish();
            status
        }
    }
}

/// Writes to the standard output. Unlike `print!`, it does not panic if the file is full or the reader has exited.
fn write(output: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(output)?;
    stdout.flush()
}

/// Writes the result of a task to the standard output. Returns `status`, or [`FAILED`] if it cannot be written.
fn print(log: &Log, output: &str, status: ExitCode) -> ExitCode {
    match write(output.as_bytes()) {
        Ok(()) => status,
        Err(why) => {
            log.error(&format!("cannot write to the standard output: {why}"));
            FAILED.into()
        }
    }
}

/// Reports whether the programs can be loaded.
fn check(log: &Log, json: bool) -> ExitCode {
    match loadable().map_err(|why| why.to_string()) {
        Ok(()) if json => print(log, "{\"loadable\": true}\n", ExitCode::SUCCESS),
        Ok(()) => print(log, "the programs can be loaded on this machine\n", ExitCode::SUCCESS),
        Err(why) if json => {
            let output = format!("{{\"loadable\": false, \"reason\": {}}}\n", log::json_string(&why));
            print(log, &output, CANNOT_START.into())
        }
        Err(why) => {
            log.error(&why);
            CANNOT_START.into()
        }
    }
}

fn serve(settings: &Settings) -> ExitCode {
    let mut helper = match open(settings) {
        Ok(helper) => helper,
        Err(why) => {
            tracing::error!("{why}");
            return CANNOT_START.into();
        }
    };
    // Scripts wait for this line. A person reads the same in the log, and a service manager waits for the message of
    // `serve`.
    if std::env::var_os("NOTIFY_SOCKET").is_none() && !io::stdout().is_terminal() {
        announce([b"listening at ", helper.path().as_os_str().as_bytes(), b"\n"].concat());
    }
    match helper.serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            tracing::error!("{why}");
            FAILED.into()
        }
    }
}

/// Writes a line to the standard output on a separate thread: clients do not wait until it is read.
fn announce(line: Vec<u8>) {
    let failed = |why: io::Error| tracing::warn!("cannot write to the standard output: {why}");
    let started = Builder::new().spawn(move || write(&line).unwrap_or_else(failed));
    started.map_or_else(failed, drop);
}

/// Opens the helper at the socket of the service manager, if there is one, or at the chosen path.
fn open(settings: &Settings) -> Result<Helper, Box<dyn std::error::Error>> {
    if let Some(mut helper) = Helper::open_passed(settings.limits)? {
        if settings.socket.is_some() || settings.group.is_some() {
            return Err("--socket and --group have no effect on the socket of a service manager: set \
                        ListenSequentialPacket=, SocketGroup= and SocketMode= in its unit (systemctl edit \
                        pindown-helper.socket)"
                .into());
        }
        if let Some(time) = settings.idle_exit {
            helper.exit_when_idle(time);
        }
        return Ok(helper);
    }
    if settings.idle_exit.is_some() {
        return Err(
            "--idle-exit needs a service manager that starts the helper again for the next client (LISTEN_FDS)".into(),
        );
    }
    let path = settings.socket.clone().unwrap_or_else(socket_path);
    let opened: Result<Helper, BpfUnavailable> = match &settings.group {
        Some(group) => Helper::open_for_group(&path, group, settings.limits),
        None => Helper::open(&path, settings.limits),
    };
    Ok(opened?)
}
