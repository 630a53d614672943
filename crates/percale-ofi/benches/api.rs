//! Measures the cost of libfabric's API in addition to that of percale's raw calls: tagged messages of 8 bytes between
//! two endpoints over shared memory. One thread drives both endpoints, so that the result does not depend on the
//! scheduler. The C program (`tests/c/cost/api.c`) and its equivalent here run alternately in one process, and the
//! result is the difference of each pair of runs.
//!
//! Run it with `cargo bench -p percale-ofi`. With valgrind it also prints the instructions per message. Times are
//! printed but not checked.

#![expect(unsafe_code, reason = "loads the C program; posts from memory that is never freed")]

use std::env;
use std::ffi::{CString, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use percale::{Endpoint, Entry, OpFlags, PeerAddress, ReceiveWork, SendWork};
use percale_conformance::fabric::Shm;
use percale_conformance::memory::Memory;
use percale_conformance::mesh::Mesh;
use percale_conformance::provider;

/// The number of messages in each direction of a run.
const ROUNDS: u64 = 2_000;
const TURNS: usize = 500;
const LEN: usize = 8;

/// The C program, loaded as a library.
struct CApi {
    rounds: extern "C" fn(u64) -> c_int,
    close: extern "C" fn() -> c_int,
}

impl CApi {
    fn open(library: &Path) -> Self {
        let name = CString::new(library.to_str().expect("a plain name")).expect("a plain name");
        // SAFETY: this library runs no code when it is loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{} cannot be loaded", library.display());
        // SAFETY: the library defines this symbol with this signature.
        let open: extern "C" fn() -> c_int = unsafe { std::mem::transmute(symbol(handle, "face_open")) };
        // SAFETY: as above.
        let rounds =
            unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u64) -> c_int>(symbol(handle, "face_rounds")) };
        // SAFETY: as above.
        let close =
            unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(symbol(handle, "face_close")) };
        assert_eq!(open(), 0, "the C program does not start");
        Self { rounds, close }
    }
}

fn symbol(library: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).expect("a plain name");
    // SAFETY: the library is open, and the name ends with a zero byte.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "the library has no symbol {name:?}");
    found
}

/// The same program with percale's raw calls.
struct Raw {
    mesh: Mesh<Shm>,
    memory: [(Memory, Memory); 2],
}

impl Raw {
    fn open() -> Self {
        let memory = || (Memory::blank(LEN), Memory::blank(LEN));
        Self { mesh: Mesh::connected(2), memory: [memory(), memory()] }
    }

    #[inline]
    fn one(&self, from: usize, to: usize) {
        let (a, b): (&Endpoint, &Endpoint) = (self.mesh.endpoint(from), self.mesh.endpoint(to));
        let (from_any, segments) = (PeerAddress::UNSPECIFIED, self.memory[to].0.part(0, LEN).segments());
        let flags = OpFlags::COMPLETION;
        let receive = ReceiveWork { from: from_any, segments, tag: Some((LEN as u64, 0)), context: 1, flags };
        // SAFETY: the memory is never freed, and it is not accessed before the completion.
        unsafe { b.post_recv(&receive) }.expect("a receive");
        let segments = self.memory[from].1.part(0, LEN).segments();
        let (peer, tag, flags) = (self.mesh.peer(to), Some(LEN as u64), OpFlags::empty());
        let send = SendWork { peer, segments, tag, data: None, context: 2, flags };
        // SAFETY: as above.
        unsafe { a.post_send(&send) }.expect("room for one message");
        let mut entry = [Entry::default()];
        while b.poll(&mut entry).expect("no error") == 0 {
            a.poll(&mut [Entry::default()]).expect("no error");
        }
        assert_eq!(entry[0].context, 1);
    }

    fn rounds(&self, count: u64) {
        for _ in 0..count {
            self.one(0, 1);
            self.one(1, 0);
        }
    }
}

/// Builds the C program as a library, in a directory with a copy of the provider that was built with this program.
fn make() -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("api");
    provider::copy_to(&directory);
    let (source, library) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/cost/api.c"), directory.join("api.so"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library);
    let compiled = compiler.arg(source).arg("-lfabric").status();
    compiled.is_ok_and(|status| status.success()).then_some(library)
}

/// Returns the instructions per message of one of the two programs, if valgrind is installed. Instructions are counted
/// in [`counted`] only, because the number of instructions for connecting varies.
fn instructions(library: &Path, side: &str) -> Option<f64> {
    const ROUNDS: u64 = 10_000;
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg("--toggle-collect=*counted*");
    valgrind.arg(env::current_exe().ok()?);
    valgrind.env("FACE_LIBRARY", library).env("FACE_SIDE", side).env("FACE_ROUNDS", ROUNDS.to_string());
    let text = String::from_utf8(valgrind.output().ok()?.stderr).ok()?;
    let collected = text.lines().find_map(|line| line.split_once("Collected : "))?;
    Some(collected.1.trim().parse::<f64>().ok()? / (2 * ROUNDS) as f64)
}

/// Runs the rounds that valgrind counts. Valgrind finds them by the name of this function.
#[inline(never)]
fn counted(rounds: &dyn Fn(u64), count: u64) {
    rounds(count);
}

fn percentile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

fn show(name: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let [p10, p50, p90] = [0.1, 0.5, 0.9].map(|share| percentile(&values, share));
    println!("{name:<24}{p10:>8.1}{p50:>8.1}{p90:>8.1}  ns a message (p10, p50, p90 of {} turns)", values.len());
}

fn main() {
    // Under valgrind, only one of the two programs runs.
    if let (Ok(library), Ok(side), Ok(rounds)) =
        (env::var("FACE_LIBRARY"), env::var("FACE_SIDE"), env::var("FACE_ROUNDS"))
    {
        let rounds = rounds.parse().expect("a number");
        let (raw, api);
        let turn: &dyn Fn(u64) = if side == "raw" {
            raw = Raw::open();
            &|count| raw.rounds(count)
        } else {
            api = CApi::open(Path::new(&library));
            &|count| assert_eq!((api.rounds)(count), 0, "the C program failed")
        };
        turn(100);
        return counted(turn, rounds);
    }
    let Some(library) = make() else { return println!("libfabric's headers or a C compiler are not installed") };
    // libfabric reads FI_PROVIDER_PATH at its first call. This program starts itself again with the variable set.
    if env::var_os("FI_PROVIDER_PATH").is_none_or(|path| Some(&*path) != library.parent().map(Path::as_os_str)) {
        let again = Command::new(env::current_exe().expect("the name of this program"))
            .env("FI_PROVIDER_PATH", library.parent().expect("a directory"))
            .env("FI_PROVIDER", "percale")
            .status();
        std::process::exit(again.map_or(1, |status| status.code().unwrap_or(1)));
    }
    let (api, raw) = (CApi::open(&library), Raw::open());
    let c = |count| assert_eq!((api.rounds)(count), 0, "the C program failed");
    let [mut by_c, mut by_raw] = [Vec::with_capacity(TURNS), Vec::with_capacity(TURNS)];
    let timed = |turn: &dyn Fn(u64)| {
        let start = Instant::now();
        turn(ROUNDS);
        start.elapsed().as_nanos() as f64 / (2 * ROUNDS) as f64
    };
    c(ROUNDS);
    raw.rounds(ROUNDS);
    for turn in 0..TURNS {
        // The order of the two programs alternates.
        if turn % 2 == 0 {
            by_c.push(timed(&c));
        }
        by_raw.push(timed(&|count| raw.rounds(count)));
        if turn % 2 == 1 {
            by_c.push(timed(&c));
        }
    }
    let difference = by_c.iter().zip(&by_raw).map(|(c, raw)| c - raw).collect();
    show("through libfabric", by_c);
    show("raw", by_raw);
    show("difference", difference);
    assert_eq!((api.close)(), 0);
    if let [Some(c), Some(raw)] = ["c", "raw"].map(|side| instructions(&library, side)) {
        println!("instructions of a message: through libfabric {c:.0}, raw {raw:.0}, difference {:.0}", c - raw);
    }
}
