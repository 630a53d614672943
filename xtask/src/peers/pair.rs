//! Runs a benchmark that has a server and a client on this machine. Each is pinned to a core.

use crate::failure::{Failure, Outcome};
use crate::processes;
use crate::program::Program;
use std::thread;
use std::time::{Duration, Instant};

const SERVER_CORE: &str = "0";
const CLIENT_CORE: &str = "1";

/// The time limit of a case. All cases take less.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs the server, waits until it listens, runs the client, and returns the client's output. `complete` adds arguments
/// to a program. It is called with the program, the port, and whether the program is the client.
pub(super) fn run(name: &str, complete: impl Fn(Program, u16, bool) -> Program) -> Outcome<String> {
    let port = processes::free_port()?;
    let pinned = |core| Program::new("taskset").args(["-c", core, name]);
    let mut server = complete(pinned(SERVER_CORE), port, false).background()?;
    let start = Instant::now();
    while !processes::listens_on(port) {
        if server.has_ended() || start.elapsed() > Duration::from_secs(20) {
            return Err(Failure::new(format!("the server of {name} did not start")));
        }
        thread::sleep(Duration::from_millis(20));
    }
    let client = complete(pinned(CLIENT_CORE), port, true).limit(LIMIT).output()?;
    client.success().map(str::to_owned)
}
