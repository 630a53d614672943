//! The peers that may send messages to an endpoint: all peers, or one peer, or (for a listener) none.
//!
//! While the filter is closed only frames about the connection itself pass, and a peer that sends any other frame is
//! disconnected. An open filter adds no cost to frames: a closed filter disables the fast path of messages instead.
//!
//! Invariants:
//! 1. An open filter accepts no control frames: those that had arrived are dropped when it opens.
//! 2. A filter that closed because no message will come stays closed.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

#[cfg(all(test, not(loom)))]
mod tests;

use crate::completion::entry::ErrorCode;
use crate::transport::ConnectionId;
use crate::wire::control::Control;
use crate::wire::head::FrameKind;

/// The protocol violation of a peer that sends a message to an endpoint that does not accept it.
pub(super) const NOT_ADMITTED: &str = "frame to an endpoint that does not accept it";

/// The violation of a peer that sends a control frame to an endpoint that takes none.
pub(super) const NO_CONTROL: &str = "control frame to an endpoint that accepts none";

/// The maximum number of control frames of one peer that wait for the engine. No percale endpoint sends that many.
pub(super) const CONTROL_LIMIT: u32 = 4;

/// The peers that may send messages to an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    closed: bool,
    /// Control frames that the engine has yet to handle. `None` if peers may not send any.
    control_frames: Option<Vec<(ConnectionId, Control)>>,
    /// The reason why the connection has ended, if it has: no message will come.
    over: Option<(ErrorCode, String)>,
}

impl Admission {
    /// Creates a closed filter.
    pub(crate) const fn closed() -> Self {
        Self { closed: true, control_frames: Some(Vec::new()), over: None }
    }

    /// Returns whether frames of this kind may pass.
    #[inline]
    pub(super) const fn admits(&self, kind: FrameKind) -> bool {
        !self.closed
            || matches!(
                kind,
                FrameKind::Control | FrameKind::Bye | FrameKind::Nothing | FrameKind::Offers | FrameKind::Counts
            )
    }

    /// Opens the filter: from now on messages pass, and control frames do not.
    pub(super) fn open(&mut self) {
        *self = Self::default();
    }

    /// Closes the filter because no message will come any more.
    pub(super) fn close(&mut self, error: ErrorCode, why: &str) {
        *self = Self { closed: true, control_frames: None, over: Some((error, why.to_owned())) };
    }

    /// Returns the reason why no message will come any more, if there is one.
    #[inline]
    pub(super) const fn over(&self) -> Option<&(ErrorCode, String)> {
        self.over.as_ref()
    }

    /// Returns whether peers may send control frames.
    pub(super) const fn takes_control(&self) -> bool {
        self.control_frames.is_some()
    }

    /// Keeps a control frame until the engine handles it.
    pub(super) fn keep_control_frame(&mut self, from: ConnectionId, control: Control) {
        if let Some(control_frames) = &mut self.control_frames {
            control_frames.push((from, control));
        }
    }

    /// Takes the control frames that have arrived.
    pub(super) fn take_control_frames(&mut self) -> Vec<(ConnectionId, Control)> {
        self.control_frames.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Drops the control frames of this peer.
    pub(super) fn forget(&mut self, from: ConnectionId) {
        self.control_frames.iter_mut().for_each(|control_frames| control_frames.retain(|(other, _)| *other != from));
    }
}
