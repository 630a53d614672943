//! A search for faults: random operations and random events of lives, checked against a model.
//!
//! A test covers only what its author thought of. The search closes, cancels, drops, forgets and polls again at random moments, over the
//! simulated network (where a seed repeats a run exactly), loopback, shared memory, TCP and RDMA, and checks what the library promises:
//! each operation ends exactly once and in bounded progress; a message has the contents that the buffer had when it was posted, and arrives
//! at the right receive, from the right peer, in order; memory is not touched after it was given back; and at the end all resources are as
//! at the beginning.
//!
//! * [`step`]: what a run does, as data; `draw`: draws it from a seed
//! * [`ledger`]: the model; [`payload`]: contents that name their operation; [`lent`]: memory that is watched after it came back. These
//!   three know nothing of how the endpoints are driven, and serve processes of any number
//! * [`world`]: a run in this process
//! * [`heap`]: an allocator that holds freed memory back and finds writes to it
//! * `double`: devices for RDMA, by a double of libibverbs
//! * [`program`]: the program that makes runs, shortens those that found something, and reports

mod double;
mod draw;
pub mod heap;
pub mod ledger;
pub mod lent;
pub mod payload;
pub mod program;
pub mod step;
mod waker;
pub mod world;

/// What a run leaves out, since it is known to find something that is not settled yet. Each search prints it.
pub const KNOWN: [&str; 0] = [];
