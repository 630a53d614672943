//! The replacement of `cuda` in a build without that feature, which has no driver.

use super::driver::{DeviceError, Driver};
use super::kind::Interface;

/// Returns an error that names the feature that this build lacks, as if the machine had no driver.
pub(super) fn driver() -> Result<&'static dyn Driver, DeviceError> {
    let what = "this build has no `cuda` support: build with the feature `cuda`".to_owned();
    Err(DeviceError::Missing { interface: Interface::Cuda, what })
}
