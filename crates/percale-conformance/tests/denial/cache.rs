//! The registration cache when the system denies a call. It may keep fewer registrations, but must never be incorrect.

#![expect(unsafe_code, reason = "changes its own mappings, which the cache must detect; each block states its reason")]

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::limits;
use percale::pindown::monitor::Choice;
use percale::pindown::monitor::userfaultfd::{Settings, Unseen};
use percale::pindown::{Access, Cache, Pinned, Range, Registrar};
use percale_conformance::denial::{self, Case, Clock, SideOutcome, SystemCall, space};
use percale_conformance::long;
use percale_conformance::process::{Helper, print_line, variable};
use percale_conformance::watchdog::Watchdog;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The number of the current mapping of the range. A registration has the number that was current when it was created.
static EPOCH: AtomicU64 = AtomicU64::new(1);

struct Device;

impl Registrar for Device {
    type Pin = ();

    fn pin(&self, _range: Range, _access: Access) -> io::Result<Pinned<()>> {
        Ok(Pinned { pin: (), local_key: EPOCH.load(Ordering::SeqCst), remote_key: 0 })
    }

    fn unpin(&self, (): ()) {}
}

/// The tested monitors. The last is the default of a cache.
const MONITORS: [&str; 3] = ["userfaultfd", "sealed", "best"];

fn choice(name: &str) -> Choice {
    match name {
        "userfaultfd" => Choice::Userfaultfd(Settings::new(Unseen::GuardsRefused)),
        "sealed" => Choice::Sealed,
        _ => Choice::Best(Settings::new(Unseen::NeverMade)),
    }
}

const PAGES: usize = 4;

/// Maps pages, which replace existing ones.
fn map(at: *mut std::ffi::c_void) -> *mut std::ffi::c_void {
    let len = PAGES * rustix::param::page_size();
    let (rights, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    let fixed = if at.is_null() { private } else { private | MapFlags::FIXED };
    // SAFETY: this is a new mapping, or one that replaces a mapping of this test.
    let mapped = unsafe { mmap_anonymous(at, len, rights, fixed) }.expect("memory");
    // SAFETY: this is the first byte of the new mapping.
    unsafe { mapped.cast::<u8>().write_volatile(1) };
    mapped
}

/// Registers the same addresses repeatedly, while their mapping changes.
pub(crate) fn cache() {
    let deny = |when: &str| {
        limits::apply(when);
        if variable("PERCALE_WHEN") == when {
            let error = variable("PERCALE_ERROR").parse().expect("a number");
            denial::deny(SystemCall::named(&variable("PERCALE_CALL")), error).expect("a filter of system calls");
        }
    };
    deny("start");
    let cache = match Cache::builder(Device).monitor(choice(&variable("PERCALE_MONITOR"))).open() {
        Ok(cache) => cache,
        Err(error) => return print_line(&format!("error {error}")),
    };
    let lane = cache.lane();
    let start = map(std::ptr::null_mut());
    let len = PAGES * rustix::param::page_size();
    for round in 0..40 {
        if round == 10 {
            deny("middle");
        }
        let range = Range::new(start.addr() as u64, len as u64).expect("a range");
        for _ in 0..3 {
            match lane.get(range, Access::empty()) {
                Ok(used) => {
                    let (made, now) = (used.local_key(), EPOCH.load(Ordering::SeqCst));
                    lane.end(used);
                    assert!(
                        made >= now,
                        "the registration of epoch {made} is returned for memory mapped in epoch {now}"
                    );
                }
                Err(error) => return print_line(&format!("error {error}")),
            }
        }
        if round % 2 == 0 {
            // SAFETY: the mapping belongs to this test, which does not access it any more.
            unsafe { munmap(start, len) }.expect("the mapping can be removed");
        }
        EPOCH.fetch_add(1, Ordering::SeqCst);
        map(start);
    }
    let name = cache.monitor();
    drop((lane, cache));
    print_line(&format!("works shm: {name}"));
}

fn run(case: &Case, monitor: &str) -> (SideOutcome, Option<SideOutcome>, Duration) {
    let error = case.error.to_string();
    run_told(&[
        ("PERCALE_CALL", case.call.name),
        ("PERCALE_ERROR", &error),
        ("PERCALE_WHEN", case.when),
        ("PERCALE_MONITOR", monitor),
    ])
}

fn run_told(variables: &[(&str, &str)]) -> (SideOutcome, Option<SideOutcome>, Duration) {
    let mut side = Helper::start("cache", variables);
    let clock = Clock::start();
    let outcome = match side.receive_line_within(clock.left()) {
        Ok(line) => SideOutcome::of(&line),
        Err(Some(ended)) => SideOutcome::Ended(ended),
        Err(None) => SideOutcome::Silent,
    };
    let peer = matches!(outcome, SideOutcome::Works(_)).then(|| outcome.clone());
    (outcome, peer, clock.elapsed())
}

/// Requirements: FLT-012.
#[test]
fn cache_with_denied_call_is_never_stale_and_names_the_call() {
    let _watchdog =
        Watchdog::within("a cache that is refused a call", Duration::from_secs(if long() { 3600 } else { 900 }));
    // Use only the cases of one of the two transports, because this test does not use a transport.
    let cases: Vec<Case> = denial::cases().into_iter().filter(|case| case.transport == "any").collect();
    let mut all = Vec::new();
    for monitor in MONITORS {
        let (wrong, ways) = denial::run_all(&cases, |case| run(case, monitor));
        println!("{monitor}: {} cases: {ways:?}", cases.len());
        all.extend(wrong.into_iter().map(|text| format!("{monitor}: {text}")));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// Requirements: FLT-013.
#[test]
fn cache_at_address_space_limit_is_never_stale() {
    let _watchdog = Watchdog::within(
        "a cache at the limit of the address space",
        Duration::from_secs(if long() { 1800 } else { 600 }),
    );
    let (mut wrong, mut bound) = (Vec::new(), 0);
    for monitor in MONITORS {
        for beyond in space::BEYOND {
            for when in denial::TIMES {
                let limit_case = format!("RLIMIT_AS {beyond} {when}");
                let own = [("PERCALE_MONITOR", monitor), ("PERCALE_WHEN", "never"), ("PERCALE_LIMIT", &limit_case)];
                let (outcome, peer, took) = run_told(&[&own, &space::HEAP[..]].concat());
                let verdict = denial::judge(&space::SAYS, &outcome, peer.as_ref(), took);
                let text = format!("{monitor}: {limit_case}: {verdict:?}: {outcome:?}; {} ms", took.as_millis());
                println!("{text}");
                bound += usize::from(matches!(outcome, SideOutcome::Error(_)));
                if verdict.is_err() {
                    wrong.push(text);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(bound > 0, "no limit of the address space had an effect");
}
