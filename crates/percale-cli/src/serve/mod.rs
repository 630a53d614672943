//! `percale serve`: lets clients read, and optionally write, the files below a directory.
//!
//! One thread handles the events of clients that connect and disconnect. Each client has its own threads, which read,
//! hash, write and answer. Therefore no client waits for a disk, a lock or a slow connection of another client.
//!
//! * [`root`]: the files that may be opened
//! * [`client`]: one client
//! * [`clients`]: all clients
//! * [`transfer`]: one file being transferred
//! * [`report`]: the messages about transfers

use std::sync::Arc;
use std::time::{Duration, Instant};

use percale::completion::wait::WaitError;
use percale::{Event, EventQueue, Info, Progress};

use crate::failure::{Failure, Result, percale};
use crate::transfer::key;
use crate::transfer::protocol::LINE;
pub(crate) use args::ServeArgs;
use client::Service;
use clients::{CLIENTS, Clients};
use report::ServeReport;
use root::Root;

mod args;
mod client;
mod clients;
mod report;
mod root;
mod transfer;

/// The interval at which the server checks for disconnected clients if there are no events.
const LOOK: Duration = Duration::from_millis(200);

/// Runs the subcommand. Returns only on error.
pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    // The umask is read before there are other threads, which might create files with the wrong mask meanwhile.
    let umask = crate::transfer::umask();
    let directory = args.directory.display().to_string();
    let root = Root::open(&args.directory).map_err(Failure::system(format!("serving {directory}")))?;
    let key = args.authorization_key.as_deref().map(key::read).transpose()?;
    let has_key = key.is_some();
    let mut domain = Info::discover().map_err(percale("discovering transports"))?.domain().progress(Progress::Manual);
    // The cap covers a client's messages that are not received yet: its requests, up to the limit of unanswered ones.
    domain = domain.unexpected_cap(16 * LINE);
    if let Some(key) = key {
        domain = domain.authorization_key(key);
    }
    let domain = domain.open().map_err(percale("opening a domain"))?;
    let vector = domain.address_vector().build().map_err(percale("creating an address vector"))?;
    // Room for 16 events per client. `recount` finds the clients for which events were lost.
    let events = EventQueue::new(16 * CLIENTS);
    let endpoint = domain.endpoint().vector(&vector).event_queue(&events).answer_only();
    let endpoint = endpoint.bind_shared(&args.listen).map_err(percale("opening an endpoint"))?;
    let report = ServeReport::start(args.json)?;
    report.serving(endpoint.address(), &directory, args.writable, !has_key);
    let (writable, start) = (args.writable, Instant::now());
    let service = Arc::new(Service { endpoint, domain, root, writable, report, umask, start });
    serve(&events, &mut Clients::new(service, vector))
}

/// The body of the event thread.
fn serve(events: &EventQueue, clients: &mut Clients) -> ! {
    loop {
        match events.wait(Some(LOOK)) {
            Ok(Event::Connected { address, .. }) => clients.enter(address),
            Ok(Event::PeerDown { peer, address, .. } | Event::PeerReplaced { peer, address }) => {
                clients.ended(peer, address);
            }
            Ok(Event::Lost { .. }) => clients.recount(),
            // The event does not concern clients, or there is no event.
            Ok(_) | Err(WaitError::TimedOut) => {}
            // If the thread cannot sleep on the queue, it checks again later.
            Err(_) => std::thread::sleep(LOOK),
        }
        clients.sweep();
    }
}
