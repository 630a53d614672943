//! CUDA through its driver. No toolkit is needed to build or run percale.
//!
//! The library is loaded at the first request, and never unloaded. `PERCALE_CUDA_LIBRARY` names a file to use instead
//! of `libcuda.so.1`, for unusual installations and for tests. Each device's primary context (the one that CUDA
//! programs use) is retained when it is first used, and is current only within calls: percale leaves a thread's own
//! context unchanged. Copies use separate streams, which do not wait for the application's streams. Before the first
//! copy of an allocation, percale waits for the work that the application's synchronous copies have left in progress.
//!
//! * `functions`: the driver's functions
//! * `context`: contexts and lanes (a stream and an event)
//! * `settled`: the application's synchronous copies
//! * `driver`: the implementation of the driver interface

mod context;
mod driver;
mod functions;
mod settled;

use std::sync::OnceLock;

use self::driver::Cuda;
use super::driver::{DeviceError, Driver};

/// The driver, loaded once.
pub(super) fn driver() -> Result<&'static dyn Driver, DeviceError> {
    static LOADED: OnceLock<Result<Cuda, DeviceError>> = OnceLock::new();
    match LOADED.get_or_init(Cuda::load) {
        Ok(cuda) => Ok(cuda),
        Err(error) => Err(error.clone()),
    }
}
