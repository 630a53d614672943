//! `fid_fabric`, and what its objects know of it. Its calls are in `fabric_ops`.

use std::sync::Arc;

use crate::abi::{FI_CLASS_FABRIC, fid_fabric};
use crate::object::Object;

/// The part of a fabric that its objects share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The version of the interface that the client was written for.
    pub(crate) api_version: u32,
}

#[repr(C)]
pub(crate) struct Fabric {
    fid: fid_fabric,
    shared: Arc<Shared>,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Object for Fabric {
    const CLASS: usize = FI_CLASS_FABRIC;
}

impl Fabric {
    pub(crate) const fn new(fid: fid_fabric, shared: Arc<Shared>) -> Self {
        Self { fid, shared }
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}
