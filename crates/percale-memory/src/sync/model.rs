//! Runs loom models, and checks that loom tried enough interleavings.
//!
//! Loom 0.7 finds the interleavings of a model from the last access to each atomic. If a thread reads an atomic before
//! it writes it, that read hides the earlier reads of other threads, and loom may try only one order. The model then
//! passes whatever the code does. So each model states the number of executions that it needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs a model in all interleavings that loom finds, or in those with at most `preemptions`. `expected` is a number of
/// executions that the model exceeds as long as loom swaps the accesses that the model is about; about half of the
/// actual number leaves room for changes of the code.
///
/// # Panics
///
/// Panics if the model does, or if loom tried fewer than `expected` interleavings.
pub fn explore(preemptions: Option<usize>, expected: usize, model: impl Fn() + Send + Sync + 'static) {
    assert!(expected > 1, "one execution cannot show a race");
    let executions = Arc::new(AtomicUsize::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.or(builder.preemption_bound);
    builder.check({
        let executions = Arc::clone(&executions);
        move || {
            executions.fetch_add(1, Ordering::Relaxed);
            model();
        }
    });
    let executions = executions.load(Ordering::Relaxed);
    println!("{executions} executions");
    assert!(executions >= expected, "loom tried {executions} interleavings instead of {expected} or more");
}
