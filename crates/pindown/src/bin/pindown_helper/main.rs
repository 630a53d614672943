//! pindown-helper: loads the kernel programs once, and passes their reports to processes that have no permission to
//! load them.
//!
//! `arguments` parses the command line, `log` writes messages for a terminal or for the journal.

mod arguments;
mod log;

use std::io::IsTerminal;
use std::process::ExitCode;

use pindown::monitor::bpf::{BpfUnavailable, Helper, loadable, socket_path};

use crate::arguments::{Settings, Task};
use crate::log::Log;

/// The exit status after an error while clients were served.
const FAILED: u8 = 1;
/// The exit status for wrong arguments.
const WRONG_ARGUMENTS: u8 = 2;
/// The exit status if the helper cannot start.
const CANNOT_START: u8 = 3;

fn main() -> ExitCode {
    let log = Log::new();
    let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    let task = match arguments::parse(arguments) {
        Ok(task) => task,
        Err(why) => {
            log.error(&format!("{why} (see --help)"));
            return WRONG_ARGUMENTS.into();
        }
    };
    match task {
        Task::Help => print!("{}", arguments::HELP),
        Task::Version => println!("pindown-helper {}", env!("CARGO_PKG_VERSION")),
        Task::Check { json } => return check(&log, json),
        Task::Serve(settings) => return serve(log, &settings),
    }
    ExitCode::SUCCESS
}

/// Reports whether the programs can be loaded.
fn check(log: &Log, json: bool) -> ExitCode {
    let unavailable = loadable().err().map(|why| why.to_string());
    match &unavailable {
        None if json => println!("{{\"loadable\": true}}"),
        None => println!("the programs can be loaded on this machine"),
        Some(why) if json => println!("{{\"loadable\": false, \"reason\": {}}}", log::json_string(why)),
        Some(why) => log.error(why),
    }
    if unavailable.is_none() { ExitCode::SUCCESS } else { CANNOT_START.into() }
}

fn serve(log: Log, settings: &Settings) -> ExitCode {
    log.receive(settings.is_verbose);
    let mut helper = match open(settings) {
        Ok(helper) => helper,
        Err(why) => {
            tracing::error!("{why}");
            return CANNOT_START.into();
        }
    };
    // Scripts wait for this line. A person reads the same in the log, and a service manager waits for the message of
    // `serve`.
    if std::env::var_os("NOTIFY_SOCKET").is_none() && !std::io::stdout().is_terminal() {
        println!("listening at {}", helper.path().display());
    }
    match helper.serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            tracing::error!("{why}");
            FAILED.into()
        }
    }
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
