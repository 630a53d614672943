//! A target's side of a link: creates the other end of the peer's queue pair for accesses, and answers requests for the
//! location of regions.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::io;
use std::sync::Arc;

use super::super::makers::{self, Making};
use super::super::window_use::WindowUse;
use super::grantee::VerbsGrantee;
use super::making::{self, CreatedPair};
use super::{ANSWERS, GONE, OVER, PendingFrames, WireParts};
use crate::region::{AccessOrigin, Keys};
use crate::verbs::{ProtectionDomain, QueuePairEnd};
use crate::wire::head::{FrameKind, Head};
use crate::wire::located::{LocateAnswer, LocatedBytes};

/// The target's side of a link: its end of the peer's queue pair for accesses.
#[derive(Debug, Default)]
pub(super) struct AccessTarget {
    grantee: Option<Arc<VerbsGrantee>>,
    making: Option<Making<(Arc<ProtectionDomain>, CreatedPair)>>,
}

impl Drop for AccessTarget {
    fn drop(&mut self) {
        if let Some(grantee) = &self.grantee {
            grantee.end();
        }
    }
}

impl AccessTarget {
    /// Handles the peer's request for the other end of its queue pair for accesses. An earlier queue pair ends.
    pub(super) fn handle_request(
        &mut self,
        allowed: bool,
        wire: &WireParts,
        peer: QueuePairEnd,
        pending_frames: &mut PendingFrames,
    ) -> Result<(), &'static str> {
        if self.making.is_some() {
            return Err("second request for a queue pair while one is being created");
        }
        // If the address differs from that of the frames' queue pair, the kernel could search for a port for a long
        // time.
        if wire.peer.is_some_and(|gid| gid != peer.gid) {
            pending_frames.offer(ANSWERS, &Err(libc::EADDRNOTAVAIL.cast_unsigned()));
            return Ok(());
        }
        let former = self.grantee.as_ref().and_then(|grantee| grantee.change_pair(None));
        // If a grant could not be ended, the peer could access its memory over a new queue pair.
        let stuck = self.grantee.as_ref().is_some_and(|grantee| grantee.is_stuck());
        if !allowed || stuck {
            makers::end(wire.adapter.makers(), former);
            pending_frames.offer(ANSWERS, &Err(libc::EPERM.cast_unsigned()));
            return Ok(());
        }
        let domain = self.grantee.as_ref().map(|grantee| Arc::clone(grantee.domain()));
        let wire = wire.clone();
        let makers = wire.adapter.makers().clone();
        self.making = Some(Making::start(&makers, move || {
            drop(former);
            let domain = match domain {
                Some(domain) => domain,
                None => ProtectionDomain::new(wire.adapter.domain().context())?,
            };
            let made = making::targets(&wire, &domain, &peer)?;
            Ok((domain, made))
        }));
        Ok(())
    }

    /// Advances the creation of the queue pair, and reports to the peer which grants have ended, and whether the queue
    /// pair is in the error state. Returns whether anything happened.
    pub(super) fn advance(&mut self, wire: &WireParts, pending_frames: &mut PendingFrames) -> bool {
        let mut any = false;
        // Report this first, so that the peer does not use grants that ended with the earlier queue pair over the next
        // one.
        if let Some(grantee) = self.grantee.as_ref().filter(|grantee| grantee.has_changes()) {
            let (gone, is_over) = grantee.take_changes();
            for (id, key) in gone {
                pending_frames
                    .push(Head { kind: FrameKind::Revoked, tag: GONE, data: key, id, ..Head::default() }, &[]);
            }
            // Report this last, so that the peer can repeat accesses with grants that have ended.
            if is_over {
                pending_frames.push(Head { kind: FrameKind::Revoked, tag: OVER, ..Head::default() }, &[]);
            }
            any = true;
        }
        if let Some(result) = self.making.as_ref().and_then(Making::result) {
            self.making = None;
            let using = wire.adapter.windows().copied();
            pending_frames.offer(ANSWERS, &making::offer(&self.made(result, using)));
            any = true;
        }
        any
    }

    fn made(
        &mut self,
        result: io::Result<(Arc<ProtectionDomain>, CreatedPair)>,
        using: Option<WindowUse>,
    ) -> io::Result<QueuePairEnd> {
        let (domain, made) =
            result.inspect_err(|error| crate::later::later!(warn: %error, "no queue pair for a peer's accesses"))?;
        let grantee = self.grantee.get_or_insert_with(|| Arc::new(VerbsGrantee::new(domain, using)));
        drop(grantee.change_pair(Some(made.pair)));
        Ok(made.ours)
    }

    /// Returns the answer to a request for the location of a region.
    pub(super) fn locate(&self, keys: Option<&Keys>, via: AccessOrigin, key: u64) -> LocatedBytes {
        let region = keys.map(|keys| keys.find(key, via));
        LocatedBytes::of(&match (region, &self.grantee) {
            (None, _) | (_, None) => LocateAnswer::Executed,
            (Some(Err(_)), _) => LocateAnswer::Unknown,
            (Some(Ok(region)), Some(grantee)) => grantee.grant(&region),
        })
    }

    /// Handles the peer's confirmation that a grant is no longer used.
    pub(super) fn forgotten(&self, number: u32) -> Result<(), &'static str> {
        self.grantee.as_ref().ok_or("acknowledgement for an unknown grant")?.forgotten(number)
    }

    /// Describes as text what the peer can access.
    pub(super) fn describe(&self) -> Option<String> {
        self.grantee.as_ref().map(|grantee| grantee.describe())
    }

    #[cfg(all(any(test, feature = "testing"), not(loom)))]
    pub(super) fn fail(&self) {
        self.grantee.as_ref().expect("a peer with a queue pair").fail();
    }

    /// Returns whether a queue pair is being created, or there is something to report to the peer.
    pub(super) fn has_background_work(&self) -> bool {
        self.making.is_some() || self.grantee.as_ref().is_some_and(|grantee| grantee.has_changes())
    }
}
