//! `percale serve`: lets others read, and perhaps write, the files below a directory.
//!
//! One thread makes progress and hands requests to the threads of a pool, which read, hash, write and answer. [`root`]: what may be
//! opened; [`client`]: who asks; [`clients`]: all of them; [`transfer`]: one file on its way; [`report`]: what is said of it.

use std::sync::Arc;
use std::time::Duration;

use percale::endpoint::safe::Cause;
use percale::{Event, EventQueue, Info, Progress};

use crate::args::ServeArgs;
use crate::failure::{Failure, Result, percale};
use crate::transfer::key;
use crate::transfer::pool::Pool;
use crate::transfer::protocol::{LINE, TAG};
use client::{Job, Service};
use clients::Clients;
use report::Report;
use root::Root;

mod client;
mod clients;
mod report;
mod root;
mod transfer;

/// Threads for disk and checksums, at most.
const THREADS: usize = 16;

/// Messages that one buffer takes.
const MESSAGES: usize = 64;

/// How often the server looks for clients that have gone, when nothing else happens.
const LOOK: Duration = Duration::from_millis(200);

/// Runs the subcommand; ends only by failing.
pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    let directory = args.directory.display().to_string();
    let root = Root::open(&args.directory).map_err(Failure::system(format!("serving {directory}")))?;
    let key = args.authorization_key.as_deref().map(key::read).transpose()?;
    let has_key = key.is_some();
    let mut domain = Info::discover().map_err(percale("looking what is here"))?.domain().progress(Progress::Manual);
    if let Some(key) = key {
        domain = domain.authorization_key(key);
    }
    let domain = domain.open().map_err(percale("opening a domain"))?;
    let vector = domain.address_vector().build().map_err(percale("making an address vector"))?;
    let events = EventQueue::default();
    let endpoint = domain.endpoint().vector(&vector).event_queue(&events).multi_receive_minimum(LINE);
    let endpoint = endpoint.bind_shared(&args.listen).map_err(percale("opening an endpoint"))?;
    let report = Report { json: args.json };
    report.serving(endpoint.address(), &directory, args.writable, !has_key);
    let service = Arc::new(Service::new(endpoint, domain, (root, args.writable), report));
    let pool = Pool::start(THREADS, Job::run)?;
    Server { service, pool, events, clients: Clients::new(vector) }.serve()
}

/// The thread that makes progress.
struct Server {
    service: Arc<Service>,
    pool: Pool<Job>,
    events: EventQueue,
    clients: Clients,
}

impl Server {
    fn serve(&mut self) -> Result<()> {
        let endpoint = self.service.endpoint.clone();
        loop {
            let receive = endpoint.tagged_recv(TAG, 0, vec![0; MESSAGES * LINE]).many();
            let mut messages = receive.map_err(percale("receiving"))?;
            loop {
                let message = messages.next(Some(LOOK));
                // Who connected comes before what he said.
                self.take_events();
                match message {
                    Ok(Some(message)) => {
                        // What comes without a source is the greeting, which the connection itself was to us.
                        let client = message.source.and_then(|source| self.clients.get(source));
                        if let Some(job) = client.and_then(|client| client.job(&message.bytes)) {
                            self.pool.give(job);
                        }
                    }
                    Ok(None) => break,
                    Err(error) => match error.cause {
                        // Nothing came, or what came was broken off or too long.
                        Cause::TimedOut | Cause::Completion(_) => {}
                        cause => return Err(percale("receiving")(cause)),
                    },
                }
            }
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.events.read() {
            match event {
                Event::Connected { address, .. } => {
                    if let Some(client) = self.clients.enter(&self.service, address) {
                        self.pool.give(client.welcome());
                    }
                }
                Event::PeerDown { address, .. } | Event::PeerReplaced { address, .. } => self.clients.leave(address),
                _ => {}
            }
        }
        self.clients.sweep();
    }
}
