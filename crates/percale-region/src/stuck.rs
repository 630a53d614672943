//! A peer that does not finish its access, for tests of revocation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::registered::Grantee;
use super::{AccessOrigin, Keys};
use crate::local_memory::rundown::{AnnouncementLine, Snapshot};

/// A peer that accesses everything that was granted to it, until `retired` is set.
#[derive(Debug, Default)]
pub struct StuckPeer {
    line: AnnouncementLine,
    pub retired: AtomicBool,
}

impl StuckPeer {
    /// Grants a region or window to such a peer.
    pub fn at(keys: &Keys, key: u64, via: AccessOrigin) -> Arc<Self> {
        let peer = Arc::<Self>::default();
        assert!(keys.find(key, via).unwrap().grants().add(Arc::clone(&peer) as _, 0));
        peer
    }
}

impl Grantee for StuckPeer {
    fn revoke(&self, _: u32) {}

    fn is_unfenced(&self) -> bool {
        self.line.is_unfenced()
    }

    fn ask_to_fence(&self) {
        self.line.ask_to_fence();
    }

    fn snapshot(&self) -> Snapshot {
        self.line.snapshot()
    }

    fn has_retired(&self, _: u32, _: Snapshot) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    fn release(&self, _: u32) {}
}
