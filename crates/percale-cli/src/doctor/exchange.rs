//! A message between two endpoints of this process. It makes every call that programs need, so that no sandbox rejects
//! one that no other check makes.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use percale::{Cause, Info, OperationError, TransportKind};

/// How long the message may take. A connection takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long one endpoint waits before the other one makes progress.
const TURN: Duration = Duration::from_millis(5);

/// The message is longer than a connection's first packet, and shorter than a ring.
const MESSAGE: [u8; 4096] = [7; 4096];

/// Sends a message over one transport, between two endpoints at this address.
///
/// # Errors
/// Returns percale's error, or that the message did not arrive.
pub(super) fn exchange(info: &Info, kind: TransportKind, ip: IpAddr) -> Result<(), String> {
    let address = SocketAddr::new(ip, 0).to_string();
    let open = || {
        let domain = info.domain().transport(kind).open().map_err(|error| error.to_string())?;
        let vector = domain.address_vector().build().map_err(|error| error.to_string())?;
        Ok::<_, String>((domain, vector))
    };
    let ((domain, vector), (other_domain, other_vector)) = (open()?, open()?);
    let sender = domain.endpoint().vector(&vector).bind(&address).map_err(|error| error.to_string())?;
    let receiver = other_domain.endpoint().vector(&other_vector).bind(&address).map_err(|error| error.to_string())?;
    let peer = vector.insert(receiver.address()).map_err(|error| error.to_string())?;
    let until = Instant::now() + TIMEOUT;
    let mut receiving = receiver.recv(vec![0; MESSAGE.len()]).start().map_err(|error| error.to_string())?;
    let mut sending = sender.send(peer, MESSAGE.to_vec()).start().map_err(|error| error.to_string())?;
    let (mut is_sent, mut received) = (false, None);
    while !is_sent || received.is_none() {
        if !is_sent {
            is_sent = in_turn(sending.wait_for(TURN))?.is_some();
        }
        if received.is_none() {
            received = in_turn(receiving.wait_for(TURN))?;
        }
        if Instant::now() > until {
            return Err(format!("a message between two endpoints at {ip} did not arrive for {} s", TIMEOUT.as_secs()));
        }
    }
    let is_equal = received.is_some_and(|received| received.to_vec() == MESSAGE);
    if is_equal { Ok(()) } else { Err("a message between two endpoints arrived with other bytes".into()) }
}

/// Returns the result of an operation, or `None` if it needs more time.
fn in_turn<T>(waited: Result<T, OperationError>) -> Result<Option<T>, String> {
    match waited {
        Ok(result) => Ok(Some(result)),
        Err(error) if matches!(error.cause(), Cause::TimedOut) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
