//! The helper process: executes runs, and reports them line by line.
//!
//! It prints `s SEED` before a run, and `e OPERATIONS LIVES` after it. If a run finds a fault, it prints `f
//! KIND|STEP|TEXT` instead, and exits.

use std::io::Write;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::measure::ResourceCounts;
use crate::search::ledger::{Fault, Verdict};
use crate::search::step::{HandleStep, ReceiveBy, RunPlan, RunTransport, Step, Waking};
use crate::search::world::{Done, run};
use crate::search::{heap, lent, waker};

/// The location of the last panic.
static PANICKED: Mutex<String> = Mutex::new(String::new());

/// The exit status of a helper that has found a fault.
pub(super) const FOUND: u8 = 3;

fn print_line(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    // The reader may have exited.
    out.write_fmt(line).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()).unwrap_or_default();
}

/// Runs the helper with the arguments `TRANSPORT SEED SECONDS|RUNS [STEPS]`.
pub(super) fn main(words: &[String]) -> ExitCode {
    let transport = words.first().and_then(|name| super::transport(name)).expect("a transport");
    let mut seed: u64 = words.get(1).and_then(|seed| seed.parse().ok()).expect("a seed");
    let time = Duration::from_millis(words.get(2).and_then(|time| time.parse().ok()).expect("milliseconds"));
    let kept = words.get(3).map(|text| super::shrink::indices(text));
    // AddressSanitizer reports signals itself, with more information.
    if !heap::leave_to_sanitizer() {
        lent::watch_signals();
    }
    std::panic::set_hook(Box::new(|info| {
        if info.payload().downcast_ref::<&str>().is_some_and(|text| *text == waker::PANIC) {
            return;
        }
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        *PANICKED.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }));
    // Creates all objects that exist once per process before the first measurement.
    drop(run(&warming(transport)));
    let begin = Instant::now();
    loop {
        print_line(format_args!("s {seed}"));
        let plan = RunPlan::new(seed, transport);
        let plan = match &kept {
            Some(kept) => plan.with(kept),
            None => plan,
        };
        let (done, verdict, step) = measured(&plan);
        if let Err(Fault { kind, mut text }) = verdict {
            if kind == "panicked" {
                text = format!("{} at {}", text, PANICKED.lock().unwrap_or_else(PoisonError::into_inner));
            }
            print_line(format_args!("f {kind}|{step}|{}", text.replace('\n', " ")));
            return ExitCode::from(FOUND);
        }
        print_line(format_args!("e {} {}", done.operations, done.lives));
        seed = seed.wrapping_add(1);
        if kept.is_some() || begin.elapsed() >= time {
            return ExitCode::SUCCESS;
        }
    }
}

/// Returns a run that starts the threads that exist once per process.
fn warming(transport: RunTransport) -> RunPlan {
    let mut plan = RunPlan::new(0, transport);
    let receive = Step::Receive { at: 0, from: None, tag: None, len: 8, by: ReceiveBy::Safe, slot: 0 };
    let poll = Step::Handle { slot: 0, what: HandleStep::Poll(Waking::Quiet) };
    plan.steps = std::iter::once(receive).chain(std::iter::repeat_n(poll, 40)).collect();
    plan
}

/// Executes a run, and compares the resources of the process before and after it.
fn measured(plan: &RunPlan) -> (Done, Verdict, usize) {
    let before = ResourceCounts::now();
    let bytes = heap::bytes();
    let (done, verdict, step) = run(plan);
    if verdict.is_err() {
        return (done, verdict, step);
    }
    if let Some(size) = heap::written() {
        let text = format!("a freed block of {size} bytes was written");
        return (done, Err(Fault::new("freed memory written", text)), step);
    }
    let after = ResourceCounts::settled(&before);
    if !after.is_within(&before) {
        let text = format!("before {before:?}, after {after:?}");
        return (done, Err(Fault::new("descriptors, mappings or threads leaked", text)), step);
    }
    if plan.settings.transport == RunTransport::Sim && !done.forgot && heap::bytes() > bytes {
        // An object that is created once per process is not a leak, and neither is one that grows only at first.
        // Repeating the run distinguishes these from leaks.
        let mut least = isize::MAX;
        for _ in 0..3 {
            let bytes = heap::bytes();
            let (_, verdict, step) = run(plan);
            if verdict.is_err() {
                return (done, verdict, step);
            }
            least = least.min(heap::bytes() - bytes);
        }
        if least > 0 {
            let text = format!("each repetition of the run leaks at least {least} bytes");
            return (done, Err(Fault::new("memory kept", text)), step);
        }
    }
    (done, Ok(()), step)
}
