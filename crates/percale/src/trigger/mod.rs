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
//! * `gate`, `heap`, `waiting`: a counter's line; `due`: what waits there; `fire`: processing it; `submissions`: the way to the endpoint
//! * `deferred`: the work that a domain has queued, which `endpoint::raw_deferred` queues and cancels
//! * `variable`, `watched`: the variables that devices write, and the operations that wait for them

mod deferred;
mod due;
mod fire;
mod gate;
mod heap;
mod submissions;
#[cfg(all(test, not(loom)))]
mod tests;
mod variable;
mod waiting;
mod watched;

pub(crate) use self::deferred::{Deferred, Lines, take_all_back};
pub use self::deferred::{DeferredWork, Work, WorkError, WorkId};
pub(crate) use self::due::Due;
pub(crate) use self::fire::{fire, taken_back};
pub(crate) use self::gate::Gate;
pub use self::submissions::Operation;
pub(crate) use self::submissions::{Submissions, Transfer};
pub use self::variable::Variable;
pub(crate) use self::variable::Variables;
pub(crate) use self::waiting::{Condition, Ticket, Waiting};
pub(crate) use self::watched::Watched;
