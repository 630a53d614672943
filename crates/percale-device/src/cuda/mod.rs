//! CUDA, by its driver: no toolkit is needed, neither to build percale nor to run it.
//!
//! The library is loaded when it is first asked for, and never unloaded. `PERCALE_CUDA_LIBRARY` names another file than `libcuda.so.1`, for unusual
//! installations and for tests. Each device's primary context (the one that CUDA programs use) is retained when it is first used, and is
//! current only within calls: percale leaves a thread's own context as it was. Copies have streams of their own, which do not wait for the
//! application's: before the first copy of an allocation, what its synchronous copies have left under way is waited for.
//!
//! * `functions`: the driver's functions · `context`: contexts and lanes (a stream and an event) · `settled`: the application's synchronous
//!   copies · `driver`: what percale asks

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
