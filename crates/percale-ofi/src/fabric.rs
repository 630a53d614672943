//! `fid_fabric`, and the part of a fabric that its objects share. The calls on a fabric are in `fabric_ops`.

use std::sync::Arc;

use crate::abi::{FI_CLASS_FABRIC, fid_fabric};
use crate::object;

/// The part of a fabric that its objects share.
#[derive(Debug)]
pub(crate) struct FabricShared {
    /// The interface version that the client was written for.
    pub(crate) api_version: u32,
}

object::object!(pub(crate) Fabric: FI_CLASS_FABRIC, fid_fabric, FabricShared);

impl Fabric {
    pub(crate) const fn new(fid: fid_fabric, shared: Arc<FabricShared>) -> Self {
        Self { fid, shared }
    }
}
