//! More processes than processors, of which one at a time has something to do.

use percale_conformance::ring::{context_switch, measure, processors};
use percale_conformance::skipped;

mod shm {
    mod rust {
        #[test]
        fn res_009_a_token_goes_round_sixteen_processes_on_two_processors() {
            super::super::a_token_goes_round();
        }
    }
}

const HOPS: u64 = 10_000;
/// Measurements at most: whoever else wants the processors spoils some.
const ROUNDS: u32 = 12;

/// The requirement is a ratio of what is measured side by side, whatever the machine's speed. One round that keeps it shows
/// that nobody spins without yielding: a spinner would spoil them all by milliseconds.
fn a_token_goes_round() {
    let [first, second, ..] = processors()[..] else {
        return skipped("a token on two processors", "there is only one");
    };
    let both = format!("{first},{second}");
    let ratio = |_| {
        let many = measure(16, HOPS, |_| both.clone());
        let two = measure(2, HOPS, |number| [first, second][number].to_string());
        let switch = context_switch(first, HOPS);
        println!("a hop of 16: {many:.0} ns, of 2: {two:.0} ns, a context switch: {switch:.0} ns");
        many / (two + switch)
    };
    let mut ratios = (0..ROUNDS).map(ratio);
    assert!(ratios.any(|ratio| ratio <= 3.0), "no hop of {ROUNDS} rounds was within 3 times that of two and a switch");
}
