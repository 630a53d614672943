//! pindown-helper: loads the kernel programs once, and passes their reports to processes that have no permission to
//! load them.

use std::path::PathBuf;
use std::process::ExitCode;

use pindown::monitor::bpf::{Helper, Limits, SOCKET, Unavailable, loadable};

const HELP: &str = "\
pindown-helper: tells processes when their memory moved away from the pages that were pinned

It loads small programs into the kernel, which takes root (CAP_BPF and CAP_PERFMON), and serves clients, which need no
privilege. It stays in the foreground until SIGTERM. If it ends, clients keep what they have.

Usage: pindown-helper [--socket PATH] [--per-user N] [--total N] [--files-per-user N]
       pindown-helper --check

  --socket PATH   where clients connect (/run/pindown.sock)
  --per-user N    connections, and address spaces, of one user at a time (256)
  --total N       those of all users at a time (2048, at most 4096)
  --files-per-user N
                  watched files of one user, counted for each address space (1024)
  --check         say whether the programs can be loaded here, and why not
  --help          this text
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
                println!("the programs can be loaded here");
                return Ok(());
            }
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(());
            }
            other => return Err(format!("unknown argument {other} (--help tells which there are)")),
        }
    }
    let serve = |socket: PathBuf| -> Result<(), Unavailable> {
        let mut helper = Helper::open(&socket, limits)?;
        println!("listening at {}", helper.path().display());
        helper.serve()
    };
    serve(socket).map_err(|why| why.to_string())
}
