//! Operations that begin by themselves when a counter has reached a threshold (fi_trigger(3)).
//!
//! * **Triggered operations** ([`Endpoint::post_when`](crate::Endpoint::post_when), `when` of the safe requests) wait for a number
//!   of *successes*. They complete like any other operation.
//! * **Deferred work** ([`Domain::queue_work`](crate::Domain::queue_work), `counting` of the safe requests) waits for a number of
//!   successes *and errors*, and when it has ended, it counts in a counter of its own. So work can wait for work, and a chain of it
//!   runs with no further call: the endpoints that it needs make progress by themselves from then on (those that threads share).
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
//! * **Operations that a device begins** ([`Endpoint::post_when_written`](crate::Endpoint::post_when_written), `when_written` of
//!   the safe requests) wait for a [`Variable`] to be written, by a store of a device or of any thread: no call is made.
//!
//! Work that waits for a counter begins in the order of thresholds, and of submission where those are equal, however far the
//! counter jumps. If its condition holds already, it begins at once. Counting begins it in the thread that counts, before that call
//! returns, unless another thread is in the endpoint at that moment: then that thread or the next progress does.
//!
//! * `work`: what deferred work does; `deferred`: queueing and canceling it
//! * [`Variable`]: what a device writes

mod deferred;
#[cfg(all(test, not(loom)))]
mod tests;
mod work;

pub use self::work::{DeferredWork, Work, WorkError};
pub use crate::conditions::lines::WorkId;
pub use crate::conditions::variable::Variable;
pub use crate::endpoint::operation::Operation;
