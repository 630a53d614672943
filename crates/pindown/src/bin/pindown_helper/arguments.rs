//! The command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use pindown::monitor::bpf::Limits;

pub(crate) const HELP: &str = "\
pindown-helper: reports changes of memory mappings to processes with a registration cache

It loads small BPF programs into the kernel, which requires root (CAP_BPF and CAP_PERFMON), and
serves clients, which need no privileges. It stays in the foreground until SIGTERM or SIGINT, and
removes its socket. If it exits, clients keep the registrations that they have.

Usage: pindown-helper [--socket PATH] [--group GROUP] [--per-user N] [--total N]
                      [--files-per-user N] [--idle-exit SECONDS] [--verbose]
       pindown-helper --check [--json]

  --socket PATH         socket for clients, which use it if PINDOWN_SOCKET contains the same path
                        (default: PINDOWN_SOCKET, or /run/pindown/helper.sock)
  --group GROUP         only root and members of this group (a name or a number) may connect
  --per-user N          maximum connections, and address spaces, of one user (256, at least 1)
  --total N             maximum of all users (2048, at least 1, at most 4096)
  --files-per-user N    maximum watched files of one user, counted for each address space (1024)
  --idle-exit SECONDS   exit after this time without a client; only with a socket of a service
                        manager, which starts the helper again for the next client
  --verbose             also log each client that is served, up to 600 a minute
  --check               check whether the programs can be loaded, and print the reason if not
  --json                with --check: print the result as JSON
  --version             print the version
  --help                print this text

A service manager can pass a listening socket (LISTEN_FDS), and is notified of the state
(NOTIFY_SOCKET). If the standard error is connected to the journal, messages have priorities.

Exit status: 0 after a signal or --idle-exit, 1 after an error while clients were served or if the
output of --check, --help or --version cannot be written, 2 for wrong arguments, 3 if the helper
cannot start.
";

/// The requested task.
#[derive(Debug)]
pub(crate) enum Task {
    Serve(Settings),
    Check { json: bool },
    Help,
    Version,
}

/// The settings of a helper.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) socket: Option<PathBuf>,
    pub(crate) group: Option<String>,
    pub(crate) limits: Limits,
    pub(crate) idle_exit: Option<Duration>,
    pub(crate) is_verbose: bool,
}

/// Parses the arguments. A value follows its option as the next argument, or after `=`. A path can have bytes that are
/// not UTF-8.
pub(crate) fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Task, String> {
    let mut settings = Settings::default();
    let (mut check, mut json, mut serving) = (false, false, None);
    while let Some(argument) = arguments.next() {
        let (option, mut attached) = option_and_value(&argument);
        let mut path = || {
            let value = attached.take().or_else(|| arguments.next());
            value.filter(|value| !value.is_empty()).ok_or_else(|| format!("{option} needs a value"))
        };
        let mut value = || path()?.into_string().map_err(|value| format!("{option}: {} is not UTF-8", value.display()));
        match &*option {
            "--socket" => settings.socket = Some(path()?.into()),
            "--group" => settings.group = Some(value()?),
            "--per-user" => settings.limits.per_user = number(&option, &value()?)?,
            "--total" => settings.limits.total = number(&option, &value()?)?,
            "--files-per-user" => settings.limits.files_per_user = number(&option, &value()?)?,
            "--idle-exit" => settings.idle_exit = Some(Duration::from_secs(number(&option, &value()?)?)),
            "--verbose" => settings.is_verbose = true,
            "--check" => check = true,
            "--json" => json = true,
            "--version" | "-V" => return Ok(Task::Version),
            "--help" | "-h" => return Ok(Task::Help),
            _ => return Err(format!("unknown argument {option}")),
        }
        if attached.is_some() {
            return Err(format!("{option} has no value"));
        }
        if !matches!(&*option, "--check" | "--json") {
            serving.get_or_insert(option);
        }
    }
    settings.limits.check().map_err(|why| why.to_string())?;
    match (check, json, serving) {
        (true, json, None) => Ok(Task::Check { json }),
        (true, _, Some(option)) => Err(format!("--check serves no clients, so {option} has no effect")),
        (false, true, _) => Err("--json is only for --check".into()),
        (false, false, _) => Ok(Task::Serve(settings)),
    }
}

/// Splits an argument at its first `=`, if it is an option. The option is only compared and printed, so bytes that are
/// not UTF-8 can be replaced in it.
fn option_and_value(argument: &OsStr) -> (String, Option<OsString>) {
    let bytes = argument.as_bytes();
    let equals = bytes.iter().position(|byte| *byte == b'=').filter(|_| bytes.starts_with(b"--"));
    let (option, value) = match equals {
        Some(at) => (&bytes[..at], Some(OsString::from_vec(bytes[at + 1..].to_vec()))),
        None => (bytes, None),
    };
    (String::from_utf8_lossy(option).into_owned(), value)
}

fn number<T: std::str::FromStr>(option: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{option}: {text} is not a number of this range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &str) -> Result<Task, String> {
        parse(arguments.split_whitespace().map(OsString::from))
    }

    #[test]
    fn only_a_path_can_have_bytes_that_are_not_utf8() {
        let path = OsStr::from_bytes(b"/tmp/\xff=s");
        let attached = OsString::from_vec([b"--socket=", path.as_bytes()].concat());
        for arguments in [vec![attached], vec!["--socket".into(), path.into()]] {
            let Ok(Task::Serve(settings)) = parse(arguments.into_iter()) else { panic!("a path") };
            assert_eq!(settings.socket.as_deref().map(std::path::Path::as_os_str), Some(path));
        }
        let error = parse(["--group".into(), path.into()].into_iter()).expect_err("not the name of a group");
        assert!(error.starts_with("--group: ") && error.ends_with(" is not UTF-8"), "{error}");
    }

    #[test]
    fn options_are_set() {
        let all = "--socket /tmp/s --group=rdma --per-user 3 --total=5 --files-per-user 7 --idle-exit 11 --verbose";
        let Ok(Task::Serve(settings)) = parsed(all) else { panic!("valid options") };
        assert_eq!(settings.socket, Some("/tmp/s".into()));
        assert_eq!(settings.group.as_deref(), Some("rdma"));
        let Limits { per_user, total, files_per_user, .. } = settings.limits;
        assert_eq!((per_user, total, files_per_user), (3, 5, 7));
        assert_eq!(settings.idle_exit, Some(Duration::from_secs(11)));
        assert!(settings.is_verbose);
        assert!(matches!(parsed("--check --json"), Ok(Task::Check { json: true })));
        assert!(matches!(parsed("--check"), Ok(Task::Check { json: false })));
        assert!(matches!(parsed("--socket /tmp/s --help"), Ok(Task::Help)));
        assert!(matches!(parsed("--version"), Ok(Task::Version)));
    }

    #[test]
    fn errors_name_the_option() {
        for (arguments, expected) in [
            ("--nonsense", "unknown argument --nonsense"),
            ("socket=x", "unknown argument socket=x"),
            ("--socket", "--socket needs a value"),
            ("--socket=", "--socket needs a value"),
            ("--total many", "--total: many is not a number"),
            ("--per-user -1", "--per-user: -1 is not a number"),
            ("--total 4097", "--total 4097: the programs have room for 4096 address spaces"),
            ("--total 0", "--total 0: no client would be served"),
            ("--per-user 0", "--per-user 0: no client would be served"),
            ("--verbose=1", "--verbose has no value"),
            ("--json", "only for --check"),
            ("--check --total 3", "so --total has no effect"),
        ] {
            let error = parsed(arguments).expect_err(arguments);
            assert!(error.contains(expected), "{arguments}: {error}");
        }
    }

    #[test]
    fn help_fits_the_terminal_and_states_the_defaults() {
        assert!(HELP.lines().all(|line| line.chars().count() <= 100));
        let Limits { per_user, total, files_per_user, .. } = Limits::default();
        for text in [per_user, total, files_per_user].map(|limit| format!("({limit}")) {
            assert!(HELP.contains(&text), "{text}");
        }
        assert!(HELP.contains(pindown::monitor::bpf::SOCKET));
    }
}
