//! libfabric's own programs, as packaged by Debian, and this project's C program that calls every entry of every table.

use super::case::{ClientCase, Passed, Trouble};
use super::site::{self, Site, Wheels, run};
use crate::client::RunningClient;
use crate::failure::{Failure, Outcome};
use crate::packages::{LIBFABRIC, LIBFABRIC_HEADERS};
use crate::processes;
use crate::program::Program;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

pub(super) const SYSTEM: &str = "libfabric (Debian)";
pub(super) const NEWER: &str = "libfabric (MPICH's)";

/// The time limit for a server to listen.
const STARTING: Duration = Duration::from_secs(30);

/// Checks that fi_info lists percale and no provider layered on it.
pub(super) fn information(site: &Site<'_>, case: &ClientCase, deadline: Instant) -> Passed {
    site::needs(LIBFABRIC)?;
    let printed = run(site.seeing(Program::new("fi_info"), case), &site.printed(case, ""), deadline)?;
    let named =
        printed.lines().filter_map(|line| line.strip_prefix("provider: ")).filter(|name| name.contains("percale"));
    let (ours, others): (Vec<&str>, Vec<&str>) = named.partition(|name| *name == "percale");
    if let Some(stray) = others.first() {
        return Err(Failure::new(format!("fi_info shows an unexpected provider: {stray}")).into());
    }
    if ours.is_empty() {
        return Err(Failure::new("fi_info does not show percale").into());
    }
    let parameters =
        run(site.client(Program::new("fi_info").arg("-e"), case), &site.printed(case, "parameters"), deadline)?;
    let count = parameters.lines().filter(|line| line.contains("FI_PERCALE_")).count();
    if count == 0 {
        return Err(Failure::new("fi_info -e lists no parameters of percale").into());
    }
    Ok(format!("{} entries, {count} parameters", ours.len()))
}

/// Runs fi_pingpong with all sizes and a check of every byte.
pub(super) fn pingpong(site: &Site<'_>, case: &ClientCase, kind: &str, deadline: Instant) -> Passed {
    site::needs(LIBFABRIC)?;
    let port = processes::free_port()?;
    let program = || {
        let program = Program::new("fi_pingpong").args(["-p", "percale", "-e", kind, "-c", "-S", "all", "-I", "20"]);
        site.client(program, case)
    };
    let server = program().args(["-B", &port.to_string()]);
    let client = program().args(["-P", &port.to_string(), "127.0.0.1"]);
    let printed = pair(server, client, port, &site.printed(case, ""), deadline)?;
    let sizes = printed.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit())).count();
    if sizes == 0 {
        return Err(Failure::new("fi_pingpong printed no measurements").into());
    }
    Ok(format!("{sizes} sizes"))
}

/// Runs a server and, once it listens, a client. Both must succeed. Returns the client's output.
fn pair(server: Program, client: Program, port: u16, printed: &Path, deadline: Instant) -> Outcome<String> {
    let mut server = RunningClient::start(server, &printed.with_extension("server"))?;
    listening(&mut server, port);
    let client = run(client, printed, deadline);
    let status = server.wait_until(deadline);
    match (&client, status) {
        (Ok(_), Some(status)) if !status.success() => Err(Failure::new(format!("the server ended with {status}"))),
        (Ok(_), None) => Err(Failure::new("the server did not end")),
        _ => client,
    }
}

/// Waits until a server listens, has ended, or the time limit is reached.
pub(super) fn listening(server: &mut RunningClient, port: u16) {
    let start = Instant::now();
    while !processes::listens_on(port) && server.is_running() && start.elapsed() < STARTING {
        thread::sleep(Duration::from_millis(10));
    }
}

/// Kills one of two processes. The other process's operations with it must fail.
pub(super) fn bereft(site: &Site<'_>, case: &ClientCase, deadline: Instant) -> Passed {
    site::needs(LIBFABRIC_HEADERS)?;
    let program = site.compile_with(Path::new("cc"), "bereft", "libfabric", &["-lfabric"])?;
    let printed = run(site.client(Program::new(program), case), &site.printed(case, ""), deadline)?;
    match printed.lines().find_map(|line| line.strip_suffix(", 0 wrong")) {
        Some(errors) => Ok(errors.to_owned()),
        None => Err(Failure::new("the program did not print the expected result").into()),
    }
}

/// Runs the C program, by means of the test that compiles and runs it.
pub(super) fn every(site: &Site<'_>, case: &ClientCase, libfabric: Option<&Path>, deadline: Instant) -> Passed {
    site::needs(LIBFABRIC_HEADERS)?;
    let test = format!("{}::", case.transport.name());
    let mut program = site.place.cargo().args(["test", "--quiet", "-p", "percale-ofi", "--test", "every", &test]);
    program = program.without("PERCALE_LIBFABRIC");
    if let Some(directory) = libfabric {
        site.environment(Wheels::Mpich)?;
        if !directory.join("libfabric.so.1").exists() {
            return Err(Trouble::Missing(format!("{} does not contain libfabric.so.1", directory.display())));
        }
        program = program.env("PERCALE_LIBFABRIC", directory);
    }
    let printed = run(program, &site.printed(case, ""), deadline)?;
    let passed = printed.split("test result: ok. ").nth(1).and_then(|rest| rest.split_once(" passed"));
    match passed.and_then(|(count, _)| count.parse::<usize>().ok()) {
        None | Some(0) => Err(Failure::new("no test ran").into()),
        Some(count) => Ok(format!("{count} programs' parts")),
    }
}
