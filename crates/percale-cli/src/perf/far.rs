//! The answering process: the second process of a measurement on one machine, or `--listen` on another.
//!
//! It executes the requests of the control channel and ends when the channel closes. Therefore it does not outlive the
//! measuring process.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::request::MeasureRequest;
use super::subjects::{self, MachinePlacement};
use super::{plan, processors};
use crate::channel::control::{Control, ControlReply};
use crate::channel::proof::{self, Proof, Role};
use crate::channel::watch::Watch;
use crate::failure::{Failure, Result};
use crate::output::say;
use crate::subject::{DynSubject, SubjectKind};
use crate::transfer::visible;

/// The timeout for the first request of another machine.
const FIRST: Duration = Duration::from_secs(10);

/// The timeout for later requests.
const NEXT: Duration = Duration::from_secs(60);

/// Serves one measurement until the other side closes the channel. `from` is the host of the other side, if it is
/// another machine.
pub(crate) fn serve(watch: &mut Watch, place: &MachinePlacement, from: Option<IpAddr>) -> Result<()> {
    let mut open = HashMap::new();
    match exchange_hellos_and_serve(watch, place, from, &mut open) {
        // The measuring process has ended, so there is no process to report to.
        Err(Failure::PeerEnded) => Ok(()),
        Err(error) => {
            // The failure is reported before anything is closed, because closing may take a long time after a failure.
            let reported = watch.control.send(&ControlReply::Failed { why: error.to_string() });
            reported.and(Err(error))
        }
        Ok(never) => match never {},
    }
}

fn exchange_hellos_and_serve(
    watch: &mut Watch,
    place: &MachinePlacement,
    from: Option<IpAddr>,
    open: &mut HashMap<SubjectKind, Box<dyn DynSubject>>,
) -> Result<std::convert::Infallible> {
    exchange_hellos(watch, place)?;
    loop {
        // A local second process waits for its parent without a limit. A process on another machine has a timeout.
        let timeout = from.map(|_| if open.is_empty() { FIRST } else { NEXT });
        let request = watch.control.next(timeout, || open.values_mut().try_for_each(|bench| bench.progress()))?;
        match request {
            MeasureRequest::Open { kind, address } => {
                if let Some(from) = from {
                    check_stranger(kind, address.as_deref(), from)?;
                }
                let (bench, address) = subjects::open_far(kind, address.as_deref(), place)?;
                open.insert(kind, bench);
                watch.control.send(&ControlReply::Opened { address })?;
            }
            MeasureRequest::Prepare { kind, shape } => {
                // The parent of this process may send any request.
                if from.is_some() && !plan::is_possible(kind, &shape) {
                    return Err(shape.refused());
                }
                find(open, kind)?.prepare(&shape)?;
                watch.control.send(&ControlReply::Ready)?;
            }
            MeasureRequest::Round { kind, round } => {
                let bench = find(open, kind)?;
                watch.control.send(&ControlReply::Ready)?;
                bench.far(&round, watch)?;
                watch.control.send(&ControlReply::Done { verified: round.verified() })?;
            }
            MeasureRequest::Prove { .. } => {
                return Err(Failure::Protocol("unexpected proof of the authorization key".into()));
            }
        }
    }
}

/// Sends the greeting. If a key is required, rejects a client that does not prove that it has the key.
fn exchange_hellos(watch: &mut Watch, place: &MachinePlacement) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION").into();
    let Some(key) = place.key() else {
        return watch.control.send(&ControlReply::Hello { version, nonce: None });
    };
    let ours = proof::nonce()?;
    watch.control.send(&ControlReply::Hello { version, nonce: Some(ours) })?;
    match watch.control.next(Some(FIRST), || Ok(()))? {
        MeasureRequest::Prove { nonce, proof } if proof.holds(key, Role::Near, &nonce, &ours) => {
            let proof = Proof::new(key, Role::Far, &nonce, &ours);
            watch.control.send(&ControlReply::Proved { proof })
        }
        MeasureRequest::Prove { .. } => Err(Failure::Data("the authorization keys differ".into())),
        _ => Err(Failure::Protocol("a request without the authorization key".into())),
    }
}

/// Checks a request of another machine. It may open only subjects of percale, and only with its own address. Therefore
/// it cannot make this process connect to other machines.
fn check_stranger(kind: SubjectKind, address: Option<&str>, from: IpAddr) -> Result<()> {
    let refused = |why: &str| Err(Failure::Protocol(why.into()));
    if kind.api().is_none() {
        return refused("limits can be measured only on one machine");
    }
    match address.map(str::parse::<SocketAddr>) {
        Some(Ok(address)) if address.ip() == from => Ok(()),
        _ => refused("the address does not belong to the requesting host"),
    }
}

fn find(open: &mut HashMap<SubjectKind, Box<dyn DynSubject>>, kind: SubjectKind) -> Result<&mut Box<dyn DynSubject>> {
    open.get_mut(&kind).ok_or_else(|| Failure::Protocol(format!("{kind:?} is not open")))
}

/// Runs the second process on this machine. Its standard input is the control channel, and its standard output is the
/// memory of the programs for the limits, so no descriptor has to be passed in another way.
pub(crate) fn second_process(processor: Option<usize>) -> Result<()> {
    let what = "setting up the second process";
    // This process ends even if its parent is killed.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(Failure::system(what))?;
    if let Some(processor) = processor {
        processors::pin(processor)?;
    }
    let stream: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().map_err(Failure::system(what))?;
    let memory = std::io::stdout().as_fd().try_clone_to_owned().map_err(Failure::system(what))?;
    let mut watch = Watch::new(Control::local(UnixStream::from(stream))?, processor.is_none());
    // A failure has been reported to the measuring process, which prints it.
    serve(&mut watch, &MachinePlacement::Local(memory), None)
}

/// Serves measurements of other machines at `address`, one after another. Returns only on error.
pub(crate) fn listen(address: &str, key: Option<&[u8]>) -> Result<()> {
    let listener = TcpListener::bind(address).map_err(Failure::system(format!("listening on {address}")))?;
    let here = listener.local_addr().map_err(Failure::system("reading the address"))?;
    let processors = processors::allowed()?;
    // The last processor is used, because a measuring process on this machine uses the first.
    if let Some(&last) = processors.last() {
        processors::pin(last)?;
    }
    say(&format!("Waiting on {here}; on the other machine: percale perf HOST:{}", here.port()));
    if key.is_none() {
        say("There is no authorization key: every process that can reach this port can measure.");
    }
    loop {
        let (stream, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => {
                // The client has disconnected, or there is temporarily no free descriptor. Other clients are still
                // served.
                say(&format!("accepting a connection: {error}"));
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        say(&format!("Measuring with {peer}"));
        // Use a separate thread, so that a panic caused by a client ends only that thread.
        let measured = std::thread::scope(|scope| scope.spawn(|| measure_with(stream, peer, key)).join());
        match measured.unwrap_or_else(|_| Err(Failure::Data("internal error, reported above".into()))) {
            Ok(()) => say(&format!("Done with {peer}")),
            Err(error) => say(&format!("Failed with {peer}: {}", visible::line(&error.to_string()))),
        }
    }
}

fn measure_with(stream: TcpStream, peer: SocketAddr, key: Option<&[u8]>) -> Result<()> {
    let local = stream.local_addr().map_err(Failure::system("reading the address"))?;
    let place = MachinePlacement::Remote(SocketAddr::new(local.ip(), 0), key.map(<[u8]>::to_vec));
    let mut watch = Watch::new(Control::remote(stream)?, false);
    serve(&mut watch, &place, Some(peer.ip()))
}
