//! `percale perf --windows`: the costs of granting access to a peer, of revoking it, and of checking a key.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comfy_table::{Cell, CellAlignment, Table};
use indicatif::ProgressBar;
use percale::device::BufferTable;
use percale::{
    Access, AddressVector, Bind, Domain, Endpoint, Entry, Info, OpFlags, PeerAddress, Region, RemoteMemory,
    TransportKind, Window, WindowAccess, WindowType,
};
use pindown::Registrar;
use serde::Serialize;

use super::args::PerfArgs;
use crate::failure::{Failure, Result};
use crate::output::{print_line, progress_bar, say};
use crate::table::RULED;
use crate::units;

/// The size of the memory that is bound, and of the memory that is pinned.
const BYTES: usize = 1 << 20;

/// The default number of seconds for each line.
const SECONDS: f64 = 0.5;

/// The number of operations in a timed batch.
const BATCH: u32 = 500;

/// One line of the result.
#[derive(Debug, Serialize)]
struct WindowLine {
    what: &'static str,
    /// The number of valid keys.
    keys: usize,
    /// The median of the batches, per operation.
    p50_ns: f64,
    /// The number of timed operations.
    count: u64,
}

/// Times batches of operations.
struct Timer(Duration);

impl Timer {
    /// Returns the median time of `run`, and the number of runs. `prepare` is not timed.
    fn time<P>(&self, batch: u32, mut prepare: impl FnMut() -> P, mut run: impl FnMut(P)) -> (f64, u64) {
        let (mut each, started) = (Vec::new(), Instant::now());
        while started.elapsed() < self.0 || each.len() < 3 {
            let prepared = prepare();
            let begun = Instant::now();
            run(prepared);
            each.push(begun.elapsed().as_nanos() as f64 / f64::from(batch));
        }
        each.sort_by(f64::total_cmp);
        (each[each.len() / 2], each.len() as u64 * u64::from(batch))
    }
}

fn failed<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> Failure {
    move |error| Failure::Windows(format!("{what}: {error}"))
}

/// An owner and a user in separate domains. They share memory if possible.
struct Bench {
    domain: Domain,
    owner: Endpoint,
    /// The owner's address vector, and the addresses of the owner and of the user in it.
    owners: (AddressVector, [PeerAddress; 2]),
    user: Endpoint,
    users: (AddressVector, PeerAddress),
}

impl Bench {
    fn new() -> Result<Self> {
        let wrong = failed("opening endpoints");
        let open = || -> std::result::Result<_, Box<dyn std::error::Error>> {
            let domain = Info::discover()?.domain().transport(TransportKind::Shm).open()?;
            let vector = domain.address_vector().build()?;
            let endpoint = domain.endpoint().vector(&vector).bind(crate::loopback::here().to_string())?;
            Ok((domain, vector, endpoint))
        };
        let (domain, owners, owner) = open().map_err(&wrong)?;
        let (_, users, user) = open().map_err(&wrong)?;
        let insert = |vector: &AddressVector, endpoint: &Endpoint| {
            vector.insert(endpoint.address()).map_err(|error| Failure::Windows(error.to_string()))
        };
        let them = [insert(&owners, &owner)?, insert(&owners, &user)?];
        let peer = insert(&users, &owner)?;
        Ok(Self { domain, owner, owners: (owners, them), user, users: (users, peer) })
    }

    /// Reads the bound memory as the user, until the user accesses it directly. The first read is a request that the
    /// owner answers.
    fn read(&self, name: RemoteMemory) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut reads = 0;
        while reads < 2 {
            self.owner.progress();
            let mut read = self.user.read(self.users.1, name.at(0..8), vec![0; 8]).start().map_err(failed("a read"))?;
            match read.wait_for(Duration::from_millis(1)) {
                Ok(_) => reads += 1,
                Err(error) if Instant::now() > deadline => return Err(failed("a read")(error)),
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn bind(&self, peer: PeerAddress, window: &Window, region: &Region, flags: OpFlags) -> Result<RemoteMemory> {
        let bind = Bind { range: 0..BYTES as u64, access: WindowAccess::all(), key: 1 };
        self.owner.post_bind(peer, window, region, &bind, 0, flags).map_err(failed("a bind"))
    }

    fn invalidate(&self, peer: PeerAddress, name: RemoteMemory) -> Result<()> {
        self.owner.post_invalidate(peer, name.key, 0, OpFlags::empty()).map_err(failed("an invalidation"))
    }

    /// Waits for a completion, which must be a success.
    fn done(&self) -> Result<()> {
        let mut entry = [Entry::default()];
        loop {
            match self.owner.poll(&mut entry) {
                Ok(0) => {}
                Ok(_) => return Ok(()),
                Err(_) => {
                    let why = self.owner.read_error().map(|error| error.to_string());
                    return Err(Failure::Windows(why.unwrap_or_default()));
                }
            }
            self.user.progress();
        }
    }
}

/// The lines measured so far, and the output format.
struct Report<'a> {
    args: &'a PerfArgs,
    bar: ProgressBar,
    lines: Vec<WindowLine>,
}

impl Report<'_> {
    /// Adds a line. For JSON output, prints it immediately.
    fn add(&mut self, what: &'static str, keys: usize, (p50_ns, count): (f64, u64)) -> Result<()> {
        let line = WindowLine { what, keys, p50_ns, count };
        self.bar.inc(1);
        if self.args.json {
            print_line(&serde_json::to_string(&line).map_err(Failure::system("writing JSON"))?)?;
        }
        self.lines.push(line);
        Ok(())
    }

    /// Removes the progress bar, and prints the table unless the output is JSON.
    fn finish(&self) -> Result<()> {
        self.bar.finish_and_clear();
        if !self.args.json {
            print_line(&text(&self.lines))?;
        }
        Ok(())
    }
}

/// Runs the measurement.
pub(super) fn run(args: &PerfArgs) -> Result<()> {
    let timer = Timer(Duration::from_secs_f64(args.seconds.unwrap_or(SECONDS)));
    let bench = Bench::new()?;
    let memory = bench.domain.allocate(BYTES).map_err(failed("memory"))?;
    let pinned = pindown::Range::new(memory.as_ptr().addr() as u64, BYTES as u64).map_err(failed("a range"))?;
    let region = bench.domain.register(memory, Access::empty()).map_err(failed("a region"))?;
    let bar = progress_bar(5 + 3 * args.keys.len() as u64)?;
    let mut report = Report { args, bar, lines: Vec::new() };
    let two = bench.domain.window(WindowType::from(bench.domain.type_two())).map_err(failed("a window"))?;
    report.add("bind and invalidate a window of type 2", 1, time_type_two(&timer, &bench, &two, &region)?)?;
    report.add("rebind a window of type 1", 1, time_type_one(&timer, &bench, &region)?)?;
    let direct = time_invalidation(&timer, &bench, &two, &region)?;
    report.add("invalidate, after a peer accessed it directly", 1, direct)?;
    report.add("register and close a region, without pinning", 1, time_registration(&timer, &bench))?;
    match BufferTable::new(16) {
        Ok(table) => {
            report.add("register and deregister 1 MiB with pinning", 1, time_pinning(&timer, &table, pinned))?;
        }
        Err(error) => tracing_error(&error),
    }
    for keys in args.keys.iter().map(|keys| *keys as usize) {
        let Checks { checked, independent, dependent } = check(&timer, &bench.domain, keys)?;
        report.add("check an access right", keys, checked)?;
        report.add("limit: read a random line of as much memory", keys, independent)?;
        report.add("limit: the same, with dependent loads", keys, dependent)?;
    }
    report.finish()
}

/// Times binding and invalidating a window of type 2.
fn time_type_two(timer: &Timer, bench: &Bench, window: &Window, region: &Region) -> Result<(f64, u64)> {
    let me = bench.owners.1[0];
    let mut wrong = Ok(());
    let both = timer.time(
        BATCH,
        || (),
        |()| {
            for _ in 0..BATCH {
                let round = || bench.invalidate(me, bench.bind(me, window, region, OpFlags::empty())?);
                if let Err(error) = round() {
                    wrong = Err(error);
                }
            }
        },
    );
    wrong.map(|()| both)
}

/// Times binding a window of type 1 that is already bound.
fn time_type_one(timer: &Timer, bench: &Bench, region: &Region) -> Result<(f64, u64)> {
    let mut window = bench.domain.window(WindowType::One).map_err(failed("a window"))?;
    let rebinds = timer.time(
        BATCH,
        || (),
        |()| {
            for _ in 0..BATCH {
                black_box(window.bind(region, 0..BYTES as u64, WindowAccess::all())).ok();
            }
        },
    );
    Ok(rebinds)
}

/// Times invalidating a window of type 2 that the user has read through directly.
fn time_invalidation(timer: &Timer, bench: &Bench, window: &Window, region: &Region) -> Result<(f64, u64)> {
    let user = bench.owners.1[1];
    let mut wrong = Ok(());
    let direct = timer.time(
        1,
        || {
            let bound = bench.bind(user, window, region, OpFlags::COMPLETION).and_then(|name| {
                bench.done()?;
                bench.read(name)?;
                Ok(name)
            });
            bound.map_err(|error| wrong = Err(error)).ok()
        },
        |name| {
            if let Some(name) = name {
                bench.owner.post_invalidate(user, name.key, 0, OpFlags::COMPLETION).ok();
                bench.done().ok();
            }
        },
    );
    wrong.map(|()| direct)
}

/// Times registering and closing a region.
fn time_registration(timer: &Timer, bench: &Bench) -> (f64, u64) {
    timer.time(
        BATCH,
        || (),
        |()| {
            for _ in 0..BATCH {
                drop(black_box(bench.domain.register(Arc::<[u8]>::from([0; 8]), Access::REMOTE_READ)));
            }
        },
    )
}

/// Times registering and deregistering memory that is pinned.
fn time_pinning(timer: &Timer, table: &BufferTable, range: pindown::Range) -> (f64, u64) {
    timer.time(
        1,
        || (),
        |()| match table.pin(range, pindown::Access::LOCAL_WRITE) {
            Ok(pin) => table.unpin(pin.pin),
            Err(error) => tracing_error(&error),
        },
    )
}

fn tracing_error(error: &std::io::Error) {
    say(&format!("io_uring fixed buffers are not available: {error}"));
}

/// The results of checking random keys, and the minimum time that the machine needs for it.
struct Checks {
    /// The checks that a target makes before it executes an access. It finds the key, and compares the rights, the
    /// range, and the endpoint and peer of the access. The names are consecutive in memory, and no check depends on the
    /// previous one.
    checked: (f64, u64),
    /// The same number of reads of a 64-byte line, at positions computed from the same names, in an array with the
    /// minimum size of the key table.
    independent: (f64, u64),
    /// Like `independent`, but each position depends on the last value that was read, so that each read is a full cache
    /// miss.
    dependent: (f64, u64),
}

/// A cache line.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct CacheLine([u64; 8]);

/// Times checks of random keys among `keys` keys.
fn check(timer: &Timer, domain: &Domain, keys: usize) -> Result<Checks> {
    let memory = Arc::<[u8]>::from([0; 64]);
    let region = || domain.register(Arc::clone(&memory), Access::REMOTE_READ).map_err(failed("a region"));
    let regions: Vec<Region> = (0..keys).map(|_| region()).collect::<Result<_>>()?;
    // The keys are random, so the sorted names have random positions in the table.
    let mut names: Vec<RemoteMemory> = regions.iter().map(|region| region.remote().at(8..16)).collect();
    names.sort_unstable_by_key(|name| name.key);
    let checked = each(timer, &names, |allowed, name| allowed + u64::from(domain.allows(*name, Access::REMOTE_READ)));
    // A hash table is at most half full.
    let lines = (2 * keys).next_power_of_two();
    let array = vec![CacheLine([1, 0, 0, 0, 0, 0, 0, 0]); lines];
    let place = |key: u64| (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - lines.ilog2())) as usize;
    let read = |at: usize| black_box(&array[..])[at & (lines - 1)].0[0];
    let independent = each(timer, &names, |sum, name| sum + read(place(name.key)));
    let dependent = each(timer, &names, |sum, name| sum + read(place(name.key) ^ (sum >> 60) as usize));
    Ok(Checks { checked, independent, dependent })
}

/// Times `one` for the names in order, starting again at the end. Each call must add 1.
fn each(timer: &Timer, names: &[RemoteMemory], mut one: impl FnMut(u64, &RemoteMemory) -> u64) -> (f64, u64) {
    const BATCH: u32 = 20_000;
    let mut at = 0;
    let next = || {
        let start = at;
        at = (at + BATCH as usize) % names.len();
        start
    };
    timer.time(BATCH, next, |start| {
        let (mut sum, mut left) = (0, BATCH as usize);
        for part in std::iter::once(&names[start..]).chain(std::iter::repeat(names)) {
            let part = &part[..part.len().min(left)];
            sum = part.iter().fold(sum, &mut one);
            left -= part.len();
            if left == 0 {
                break;
            }
        }
        assert_eq!(sum, u64::from(BATCH), "a valid key was rejected");
    })
}

fn text(lines: &[WindowLine]) -> String {
    let mut table = Table::new();
    table.load_style(RULED);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    table.set_header([Cell::new("what"), right("valid keys".into()), right("p50".into()), right("timed".into())]);
    for line in lines {
        let row = [line.keys.to_string(), units::time(line.p50_ns), line.count.to_string()];
        table.add_row(std::iter::once(Cell::new(line.what)).chain(row.map(right)));
    }
    let of = |what: &str| lines.iter().find(|line| line.what.contains(what)).map(|line| line.p50_ns);
    match (of("type 2"), of("with pinning")) {
        (Some(bound), Some(pinned)) => {
            format!(
                "{table}\nbinding and invalidating is {:.0} times cheaper than registering with pinning",
                pinned / bound
            )
        }
        _ => table.to_string(),
    }
}
