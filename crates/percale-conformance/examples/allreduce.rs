//! Sums over processes, which a store starts, and what they cost.
//!
//! ```text
//! allreduce [--processes 2] [--rounds 7] [--bytes 8] [--json]
//! ```
//!
//! * First each process queues a row of sums as deferred work, each of which waits for the counter that the one before counts in. The
//!   first waits for a counter that another thread of process 0 sets, by one store. Nobody else calls anything: the sums go on by
//!   themselves, in all processes. The results are verified.
//! * Then sums of `--bytes` (8 and 1 MiB, unless it is given) are posted one after the other, as programs of MPI do it; nanoseconds for
//!   each, by round.
//!
//! The program fails where a sum is wrong or nothing moves, never for being slow.

#![expect(unsafe_code, reason = "posts on memory that outlives it")]

use std::time::{Duration, Instant};

use percale::memory::sealed::allocate;
use percale::{
    AddressSet, AtomicOp, Collective, CollectiveWork, Counter, Datatype, Domain, Entry, Info, OpFlags, Segment,
    TransportKind,
};
use percale_conformance::process::{Helper, ask, play, say, told};
use percale_conformance::watchdog::{PATIENCE, Watchdog};

/// Sums in a row.
const ROW: u64 = 1000;

fn main() {
    play(&[("member", member)]);
    let (mut processes, mut rounds, mut sizes, mut json) = (2, 7, vec![8, 1 << 20], false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|text| text.parse::<usize>().ok()).expect("a number behind it");
        match word.as_str() {
            "--processes" => processes = number(),
            "--rounds" => rounds = number(),
            "--bytes" => sizes = vec![number()],
            "--json" => json = true,
            other => panic!("{other}? allreduce [--processes N] [--rounds N] [--bytes N] [--json]"),
        }
    }
    let _watchdog = Watchdog::within("sums over processes", 5 * PATIENCE);
    let start = |number: usize| Helper::start("member", &[("PERCALE_NUMBER", &number.to_string())]);
    let mut members: Vec<Helper> = (0..processes).map(start).collect();
    let introduce = |members: &mut [Helper]| {
        let addresses: Vec<String> = members.iter_mut().map(Helper::hear).collect();
        members.iter_mut().for_each(|member| member.tell(&addresses.join(",")));
    };
    introduce(&mut members);
    members.iter_mut().for_each(|member| assert_eq!(member.hear(), "queued"));
    members[0].tell("store");
    let by_store: Vec<f64> = members.iter_mut().map(|member| member.hear().parse().expect("a number")).collect();
    print(json, "a row of sums that a store starts", processes, 8, &[by_store[0]]);
    introduce(&mut members);
    for size in sizes {
        let times: Vec<f64> = (0..rounds)
            .map(|_| {
                members.iter_mut().for_each(|member| member.tell(&size.to_string()));
                let took = members.iter_mut().map(|member| member.hear().parse().expect("a number"));
                took.fold(0.0, f64::max)
            })
            .collect();
        print(json, "sums one after the other", processes, size, &times);
    }
    members.iter_mut().for_each(|member| member.tell("end"));
    members.into_iter().for_each(Helper::end);
}

fn print(json: bool, what: &str, processes: usize, bytes: usize, times: &[f64]) {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (median, least) = (sorted[sorted.len() / 2], sorted[0]);
    if json {
        println!(
            "{{\"what\":\"{what}\",\"processes\":{processes},\"bytes\":{bytes},\"median_ns\":{median:.1},\"least_ns\":{least:.1}}}"
        );
    } else {
        println!(
            "{what:<36} {processes} processes {bytes:>8} bytes   median {median:>10.1} ns   least {least:>10.1} ns"
        );
    }
}

fn domain() -> Domain {
    Info::discover().expect("discovery").domain().transport(TransportKind::Shm).open().expect("a domain")
}

/// One of the processes.
fn member() {
    let _watchdog = Watchdog::within("a member of a group", 5 * PATIENCE);
    let number: u64 = told("PERCALE_NUMBER").parse().expect("a number");
    let domain = domain();
    by_store(&domain, number);
    by_hand(&domain);
}

/// A row of sums, started by a store.
fn by_store(domain: &Domain, number: u64) {
    let vector = domain.address_vector().build().expect("a vector");
    let endpoint = domain.endpoint().vector(&vector).bind_shared("127.0.0.1:0").expect("an endpoint");
    say(&endpoint.address().to_string());
    let members: AddressSet = ask().split(',').map(|address| vector.insert(address).expect("an address")).collect();
    let group = endpoint.join(&members).expect("a group").wait().expect("everybody joins");
    let (start, ended) = (Counter::new(), Counter::new());
    let queue = |round: u64| {
        // The others begin with the first message that comes.
        let (counter, threshold) = if round == 0 { (&start, u64::from(number == 0)) } else { (&ended, round) };
        let bytes = (round + number).to_ne_bytes().to_vec();
        let sum = group.allreduce(AtomicOp::Sum, Datatype::U64, bytes).when(counter, threshold).counting(&ended);
        sum.start().expect("it waits")
    };
    let sums: Vec<_> = (0..ROW).map(queue).collect();
    say("queued");
    if number == 0 {
        drop(ask());
    }
    let since = Instant::now();
    std::thread::scope(|scope| {
        if number == 0 {
            scope.spawn(|| start.set(1));
        }
        ended.wait(ROW, Some(PATIENCE)).expect("they go on by themselves");
    });
    let each = since.elapsed().as_nanos() as f64 / ROW as f64;
    let (size, ranks) = (members.len() as u64, (0..members.len() as u64).sum::<u64>());
    for (round, sum) in sums.into_iter().enumerate() {
        let bytes = sum.wait_for(Duration::from_secs(1)).expect("it has ended").into_vec();
        assert_eq!(bytes, (round as u64 * size + ranks).to_ne_bytes());
    }
    say(&each.to_string());
}

/// Sums that are posted one after the other.
fn by_hand(domain: &Domain) {
    let vector = domain.address_vector().build().expect("a vector");
    let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0").expect("an endpoint");
    say(&endpoint.address().to_string());
    let members: AddressSet = ask().split(',').map(|address| vector.insert(address).expect("an address")).collect();
    let group = endpoint.join(&members).expect("a group").wait().expect("everybody joins");
    loop {
        let word = ask();
        let Ok(bytes) = word.parse::<usize>() else { return };
        let count = bytes / size_of::<f64>();
        let memory = [allocate(bytes).expect("memory"), allocate(bytes).expect("memory")];
        let [mut source, result] = memory;
        for at in 0..count {
            source.write(8 * at, &(at as f64).to_ne_bytes());
        }
        let work = CollectiveWork {
            group: group.id(),
            what: Collective::Allreduce,
            op: AtomicOp::Sum,
            datatype: Datatype::F64,
            count,
            // SAFETY: both allocations are there until the last sum has completed.
            source: unsafe { Segment::new(source.as_ptr(), bytes) },
            // SAFETY: as above.
            result: unsafe { Segment::new(result.as_ptr(), bytes) },
            context: 7,
            flags: OpFlags::COMPLETION,
        };
        let mut entries = [Entry::default(); 1];
        let mut sum = || {
            // SAFETY: both allocations are there until the sum has completed.
            unsafe { endpoint.post_collective(&work) }.expect("it is posted");
            let mut polls = 0_u32;
            while endpoint.poll(&mut entries).unwrap_or_else(|_| panic!("{:?}", endpoint.read_error())) == 0 {
                polls += 1;
                // There may be more processes than processors.
                if polls.is_multiple_of(4096) {
                    std::thread::yield_now();
                }
            }
        };
        let times = if bytes > 4096 { 200 } else { 20_000 };
        (0..times / 10).for_each(|_| sum());
        let since = Instant::now();
        (0..times).for_each(|_| sum());
        let each = since.elapsed().as_nanos() as f64 / f64::from(times);
        let got = result.to_vec();
        for (at, number) in got.chunks(8).enumerate() {
            assert_eq!(number, (at as f64 * members.len() as f64).to_ne_bytes(), "element {at}");
        }
        say(&each.to_string());
    }
}
