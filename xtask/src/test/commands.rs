//! The steps that run the examples and the command in the same way as a user.

use crate::failure::{Failure, Outcome};
use crate::perf::Perf;
use crate::place::Repository;
use crate::program::Program;
use crate::steps::Findings;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// The time limit of an example. Each example takes only a short time.
const EXAMPLE_LIMIT: Duration = Duration::from_secs(60);

/// The measuring time of each row. It is sufficient to measure a value, and too short for a reliable one.
const SECONDS: &str = "0.05";

/// The end of the name of a server program. The name of its client ends in [`CLIENT`].
const SERVER: &str = "_server";
const CLIENT: &str = "_client";

/// The address at which example servers listen.
const SERVER_ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 7471);

/// Runs every example of the library, as it was built with the tests. A server runs together with its client.
pub(super) fn examples(place: &Repository) -> Outcome<Findings> {
    let names = place.targets("percale", "example");
    if names.is_empty() {
        return Err(Failure::new("the library has no examples"));
    }
    let built = place.tested()?.join("examples");
    let mut failed = 0;
    let program = |name: &str| Program::new(built.join(name)).within(&place.root).limit(EXAMPLE_LIMIT);
    let run = |name: &str| program(name).output().and_then(|output| output.success().map(drop));
    for name in names.iter().filter(|name| !name.ends_with(CLIENT)) {
        let start = Instant::now();
        let ended = match name.strip_suffix(SERVER) {
            Some(pair) => thread::scope(|scope| {
                let server = scope.spawn(|| run(name));
                let client = wait_for_server(&server).and_then(|()| run(&format!("{pair}{CLIENT}")));
                let server = server.join().unwrap_or_else(|_| Err(Failure::new("the server's thread panicked")));
                client.and(server)
            }),
            None => run(name),
        };
        let word = match ended {
            Ok(()) => "ok".to_owned(),
            Err(failure) => {
                failed += 1;
                format!("FAILED: {failure}")
            }
        };
        println!("  {name:<44} {:>7.1} s {word}", start.elapsed().as_secs_f64());
    }
    let pairs = names.iter().filter(|name| name.ends_with(CLIENT)).count();
    Ok(Findings::new(names.len() - pairs - failed, failed, ""))
}

/// Waits until an example server accepts connections or has ended.
fn wait_for_server<T>(server: &thread::ScopedJoinHandle<'_, T>) -> Outcome {
    let start = Instant::now();
    while start.elapsed() < EXAMPLE_LIMIT && !server.is_finished() {
        if TcpStream::connect(SocketAddr::from(SERVER_ADDRESS)).is_ok() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err(Failure::new("the server does not accept connections"))
}

/// Runs `percale perf` for a short time, as it was built for the tests, or with `all` as users build it. Each row must be
/// plausible, and there must be rows for shared memory and for TCP.
pub(super) fn perf(place: &Repository, all: bool) -> Outcome<Findings> {
    let perf = if all { Perf::build(place)? } else { Perf::tested(place)? };
    let rows = perf.run(&["--seconds", SECONDS], Duration::from_secs(300))?;
    let mut failed = 0;
    for row in &rows {
        if let Some(why) = row.nonsense() {
            failed += 1;
            println!("  {} {} {} B: {why}", row.transport, row.op, row.bytes);
        }
    }
    for transport in ["shm", "tcp"] {
        if !rows.iter().any(|row| row.transport == transport) {
            return Err(Failure::new(format!("no row was measured over {transport}; `percale info` shows the reason")));
        }
    }
    Ok(Findings::new(rows.len() - failed, failed, "rows"))
}
