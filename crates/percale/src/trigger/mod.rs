//! Operations that begin automatically when a counter has reached a threshold (fi_trigger(3)).
//!
//! * **Triggered operations** ([`Endpoint::post_when`](crate::Endpoint::post_when), `when` of the safe requests) wait
//!   for a number of *successes*. They complete like any other operation.
//! * **Deferred work** ([`Domain::queue_work`](crate::Domain::queue_work), `counting` of the safe requests) waits for a
//!   number of successes *and errors*. When it has ended, its own completion counter counts it. So work can wait for
//!   other work, and a chain of work runs without further calls: the shared endpoints that it needs make progress
//!   automatically from then on.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use percale::{Counter, Info};
//! let domain = Info::discover()?.best()?.open()?;
//! let [first, second, third] = [Counter::new(), Counter::new(), Counter::new()];
//! domain.defer_add(&second, 1, (&first, 3))?; // once `first` has counted to 3
//! domain.defer_add(&third, 10, (&second, 1))?;
//! first.add(2);
//! assert_eq!(third.value(), 0);
//! first.add(1);
//! assert_eq!(third.value(), 10);
//! # Ok(()) }
//! ```
//!
//! * **Operations that a device begins** ([`Endpoint::post_when_written`](crate::Endpoint::post_when_written),
//!   `when_written` of the safe requests) wait until a [`Variable`] is written, by a store of a device or of any
//!   thread. The store calls no function.
//!
//! Work that waits for a counter begins in the order of thresholds, and in the order of submission for equal
//! thresholds, even if the counter skips values. If its condition is already met, it begins immediately. The thread
//! that increments the counter begins the work before its call returns. If another thread is in the endpoint at that
//! moment, that thread or the next progress begins it.
//!
//! * `work`: the kinds of deferred work; `deferred`: the calls that queue and cancel it
//! * [`Variable`]: the memory that a device writes

mod deferred;
#[cfg(all(test, not(loom)))]
mod tests;
mod work;

pub use self::work::{DeferredWork, Work, WorkError};
pub use crate::conditions::lines::WorkId;
pub use crate::conditions::variable::Variable;
pub use crate::endpoint::operation::RawOperation;
