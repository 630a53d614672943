//! Receives for peers that are the sending halves of contexts (`wire::contexts`).
//!
//! A sender is a separate peer, with its own incarnation and connection. It connects, and no peer can connect to it.
//! The source of its messages is the number of its address in the vector. A receive from context `i` of the address
//! takes the messages of the sending half of that context.
//! 1. While a sender that proved its address is connected, receives directed at its context are directed at the
//!    sender's slot.
//! 2. When its connection ends, the receives that are directed at it end in error. Receives that are posted later take
//!    the messages that it left (`Matching::leave`). If there are none, the endpoint tries to reach the context again.

use super::core::Core;
use crate::transport::ConnectionId;
use crate::wire::contexts::half_of;

impl Core {
    /// Handles a new connection. If the peer is a sender, redirects the receives that are directed at its context to
    /// its slot.
    #[inline]
    pub(super) fn sender_connected(&mut self, slot: ConnectionId) {
        if let Some(context) = half_of(self.peers.get(slot).at().1)
            && self.peers.get(slot).has_address()
        {
            self.connect_sender(slot, context);
        }
    }

    #[cold]
    fn connect_sender(&mut self, slot: ConnectionId, context: u16) {
        let at = (self.peers.get(slot).address(), context);
        let half = self.peers.real_slot(at);
        self.peers.set_sender(half, slot);
        self.redirect_receives(half, slot);
        if let Some(pool) = self.shared.membership() {
            pool.record_reached(self.sender(slot), at);
        }
    }

    /// Handles the end of a connection. The receives that were directed at its peer have ended with the connection.
    #[inline]
    pub(super) fn sender_down(&mut self, slot: ConnectionId) {
        if half_of(self.peers.get(slot).at().1).is_some() {
            self.peers.forget_sender(slot);
        }
    }
}
