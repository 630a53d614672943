//! Queue pairs of a connection being made.
//!
//! The initiator makes its own and names it; the acceptor makes its own, connects it, and answers; the initiator connects, and
//! its last word says whether that is the connection. So each side can receive before the other may send. Whoever cannot
//! make or connect one says so, and the two go on over the TCP connection that is open already.

use std::io;

use super::ConnectError;
use super::reactor::Reactor;
use super::setup::{Next, Setup, Side, commit, reason};
use crate::transport::verbs::{Wire, errno_of};
use crate::wire::hello::{Choice, HelloFlags};
use crate::wire::queue_pair::{End, Offered};
use crate::wire::why::Why;

impl Reactor {
    /// Makes our queue pair, to be named to the peer.
    pub(super) fn make_wire(&self, setup: &mut Setup) -> Offered {
        let adapter = self.endpoints.get(&setup.endpoint).and_then(|owner| owner.opened.verbs.as_ref());
        let made = adapter.ok_or_else(|| io::ErrorKind::Unsupported.into()).and_then(Wire::new);
        match made {
            Ok(wire) => {
                let ours = wire.ours();
                setup.wire = Some(wire);
                Ok(ours)
            }
            Err(error) => Err(failed(&error)),
        }
    }

    /// The peer has named its queue pair, or said why it has none; `None` if the set-up goes on talking.
    pub(super) fn offered(&self, setup: &mut Setup, theirs: Offered) -> Option<Next> {
        if matches!(setup.side, Side::Acceptor { .. }) {
            let answer = theirs.and_then(|end| {
                let ours = self.make_wire(setup)?;
                connect(setup, &end).map(|()| ours)
            });
            setup.handshake.offer(&answer);
            return None;
        }
        Some(match theirs.and_then(|end| connect(setup, &end)) {
            Ok(()) => commit(setup, Choice::Verbs, setup.why, 0),
            Err(errno) => {
                setup.wire = None;
                if setup.both().contains(HelloFlags::TCP) {
                    return Some(commit(setup, Choice::Tcp, Why::PairFailed, errno));
                }
                Next::Fail(ConnectError::NoTransport(reason("verbs", Why::PairFailed, errno)))
            }
        })
    }
}

/// Connects our queue pair; without one it is none that is to blame.
fn connect(setup: &mut Setup, end: &End) -> Result<(), u32> {
    let Some(wire) = &setup.wire else { return Err(libc::ENOTCONN.cast_unsigned()) };
    wire.connect(end).map_err(|error| {
        let errno = failed(&error);
        setup.wire = None;
        errno
    })
}

fn failed(error: &io::Error) -> u32 {
    tracing::warn!(%error, "no queue pair");
    errno_of(error).cast_unsigned()
}
