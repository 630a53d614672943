//! pindown-helper: loads the kernel programs once, and passes their reports to processes that have no permission to
//! load them.

use std::path::PathBuf;
use std::process::ExitCode;

use pindown::monitor::bpf::{BpfUnavailable, Helper, Limits, SOCKET, loadable};

const HELP: &str = "\
pindown-helper: reports changes of memory mappings to processes with a registration cache

It loads small BPF programs into the kernel, which requires root (CAP_BPF and CAP_PERFMON), and serves clients, which need no
privileges. It stays in the foreground until SIGTERM. If it exits, clients keep the registrations that they have.

Usage: pindown-helper [--socket PATH] [--per-user N] [--total N] [--files-per-user N]
       pindown-helper --check

  --socket PATH   socket for clients (/run/pindown.sock)
  --per-user N    maximum connections, and address spaces, of one user (256)
  --total N       maximum of all users (2048, at most 4096)
  --files-per-user N
                  maximum watched files of one user, counted for each address space (1024)
  --check         check whether the programs can be loaded, and print the reason if not
  --help          print this text
";

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pindown-helper: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let mut socket = PathBuf::from(SOCKET);
    let mut limits = Limits::default();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let number = |text: String| text.parse().map_err(|_| format!("{text} is not a number"));
        match argument.as_str() {
            "--socket" => socket = value()?.into(),
            "--per-user" => limits.per_user = number(value()?)?,
            "--total" => limits.total = number(value()?)?,
            "--files-per-user" => limits.files_per_user = number(value()?)?,
            "--check" => {
                loadable().map_err(|why| why.to_string())?;
                println!("the programs can be loaded on this machine");
                return Ok(());
            }
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(());
            }
            other => return Err(format!("unknown argument {other} (see --help)")),
        }
    }
    let serve = |socket: PathBuf| -> Result<(), BpfUnavailable> {
        let mut helper = Helper::open(&socket, limits)?;
        println!("listening at {}", helper.path().display());
        helper.serve()
    };
    serve(socket).map_err(|why| why.to_string())
}
