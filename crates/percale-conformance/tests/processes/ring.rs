//! A ring of more processes than processors. Only one process at a time has work to do.

use percale_conformance::ring::{context_switch, measure, processors};
use percale_conformance::skipped;

crate::on!(shm, tcp: { a_token_goes_round_sixteen_processes_on_two_processors });

const HOPS: u64 = 10_000;
/// The maximum ratio of a hop in a ring of many processes to a hop between two processes plus a context switch. A
/// higher ratio means that a process is spinning.
const SPINNING: f64 = 50.0;
/// The maximum number of measurements. Other load on the processors affects some of them.
const ROUNDS: u32 = 12;

/// No process spins without yielding. A spinning process would delay each hop for the rest of its time slice. A time
/// slice takes milliseconds, which is thousands of times the duration of a hop. The example `token_ring` measures the
/// exact ratio. A test must not check it, because the machine may be busy.
///
/// Requirements: RES-009.
fn a_token_goes_round_sixteen_processes_on_two_processors(transport: &str) {
    let [first, second, ..] = processors()[..] else {
        return skipped("two processors", "a token on two processors", "only one processor is available");
    };
    let both = format!("{first},{second}");
    let ratio = |_| {
        let many = measure(transport, 16, HOPS, |_| both.clone());
        let two = measure(transport, 2, HOPS, |number| [first, second][number].to_string());
        let switch = context_switch(first, HOPS);
        println!("a hop of 16: {many:.0} ns, of 2: {two:.0} ns, a context switch: {switch:.0} ns");
        many / (two + switch)
    };
    let mut ratios = (0..ROUNDS).map(ratio);
    assert!(
        ratios.any(|ratio| ratio <= SPINNING),
        "a process spins: no hop of {ROUNDS} rounds was within {SPINNING} times"
    );
}
