//! The process that answers: the second process of a measurement on one machine, or `--listen` on another.
//!
//! It does what it is asked over the control channel and ends when that closes, so that nothing outlives the process
//! that measures.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::control::{Control, Reply, Request};
use super::watch::Watch;
use super::{processors, say};
use crate::failure::{Failure, Result};
use crate::subject::{self, Bench, Kind};

/// Serves one measurement until the other side closes the channel.
pub(crate) fn serve(watch: &mut Watch, place: &subject::Place) -> Result<()> {
    let mut open = HashMap::new();
    match greet_and_serve(watch, place, &mut open) {
        // The end of the measurement, whichever way it came: there is nobody to tell.
        Err(Failure::PeerEnded) => Ok(()),
        Err(error) => {
            // Told before anything is taken down, which may take long after a failure.
            let told = watch.control.send(&Reply::Failed { why: error.to_string() });
            told.and(Err(error))
        }
        Ok(never) => match never {},
    }
}

fn greet_and_serve(
    watch: &mut Watch,
    place: &subject::Place,
    open: &mut HashMap<Kind, Box<dyn Bench>>,
) -> Result<std::convert::Infallible> {
    watch.control.send(&Reply::Hello { version: env!("CARGO_PKG_VERSION").into() })?;
    loop {
        let request = watch.control.next(None, || open.values_mut().try_for_each(|bench| bench.progress()))?;
        match request {
            Request::Open { kind, address } => {
                let (bench, address) = subject::open_far(kind, address.as_deref(), place)?;
                open.insert(kind, bench);
                watch.control.send(&Reply::Opened { address })?;
            }
            Request::Prepare { kind, shape } => {
                find(open, kind)?.prepare(&shape)?;
                watch.control.send(&Reply::Ready)?;
            }
            Request::Round { kind, round } => {
                let bench = find(open, kind)?;
                watch.control.send(&Reply::Ready)?;
                bench.far(&round, watch)?;
                watch.control.send(&Reply::Done { verified: round.verified() })?;
            }
        }
    }
}

fn find(open: &mut HashMap<Kind, Box<dyn Bench>>, kind: Kind) -> Result<&mut Box<dyn Bench>> {
    open.get_mut(&kind).ok_or_else(|| Failure::Protocol(format!("{kind:?} is not open")))
}

/// The second process on this machine. Its standard input is the control channel, its standard output the memory of
/// the limits' programs: descriptors that need no further arrangement to be handed over.
pub(crate) fn second_process(processor: Option<usize>) -> Result<()> {
    let what = "setting up the second process";
    // Even a parent that is killed takes us with it.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(Failure::system(what))?;
    if let Some(processor) = processor {
        processors::pin(processor)?;
    }
    let stream: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().map_err(Failure::system(what))?;
    let memory = std::io::stdout().as_fd().try_clone_to_owned().map_err(Failure::system(what))?;
    let mut watch = Watch::new(Control::local(UnixStream::from(stream))?, processor.is_none());
    // A failure has been reported to the process that measures, which prints it.
    serve(&mut watch, &subject::Place::Local(memory))
}

/// Waits at `address` for measurements from other machines, one after the other, for ever.
pub(crate) fn listen(address: &str) -> Result<()> {
    let listener = TcpListener::bind(address).map_err(Failure::system(format!("listening on {address}")))?;
    let here = listener.local_addr().map_err(Failure::system("asking for the address"))?;
    let processors = processors::allowed()?;
    // The last one: should the other process be on this machine after all, it takes the first.
    if let Some(&last) = processors.last() {
        processors::pin(last)?;
    }
    say(&format!("Waiting on {here}; on the other machine: percale perf HOST:{}", here.port()));
    loop {
        let (stream, peer) = listener.accept().map_err(Failure::system("accepting a connection"))?;
        say(&format!("Measuring with {peer}"));
        let local = stream.local_addr().map_err(Failure::system("asking for the address"))?;
        let mut watch = Watch::new(Control::remote(stream)?, false);
        match serve(&mut watch, &subject::Place::Remote(SocketAddr::new(local.ip(), 0))) {
            Ok(()) => say(&format!("Done with {peer}")),
            Err(error) => say(&format!("Failed with {peer}: {error}")),
        }
    }
}
