//! Remote accesses that this endpoint executes for its peers.

use super::core::Core;
use crate::memory::volatile::View;
use crate::transport::Connection;
use crate::wire::head::Head;

impl Core {
    /// A frame of a remote access.
    pub(super) fn remote(&mut self, from: Connection, _head: &Head, _payload: View<'_>) {
        self.peers.accuse(from, "remote accesses are not served yet");
    }
}
