//! Compares the cost of a hit through Rust and through libpindown.so in one run. The library is loaded as a C program
//! would load it, and both interfaces look up the same buffers in turn.
//!
//! `cargo build --release -p pindown --lib && cargo run --release -p pindown --example apis`

#![expect(unsafe_code, reason = "a C library is loaded and called; each block states its own reason")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::hint::black_box;
use std::io;
use std::mem::{transmute_copy, zeroed};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{null, null_mut, with_exposed_provenance};
use std::time::Instant;

use pindown::monitor::{Choice, imported::Notifier};
use pindown::{Access, Cache, Pinned, Range, Registrar};

/// A registrar that pins nothing, because only hits are measured.
struct Nothing;

impl Registrar for Nothing {
    type Pin = ();

    fn pin(&self, range: Range, _access: Access) -> io::Result<Pinned<()>> {
        Ok(Pinned { pin: (), local_key: range.start(), remote_key: 0 })
    }

    fn unpin(&self, _pin: ()) {}
}

extern "C" fn pin(_: *mut c_void, address: *mut c_void, _: usize, _: u32, pinned: *mut [u64; 3]) -> c_int {
    // SAFETY: the library passes memory for three words.
    unsafe { pinned.write([address.addr() as u64, 0, 0]) };
    0
}

extern "C" fn unpin(_: *mut c_void, _: *mut c_void) {}

/// `struct pindown_attr`.
#[repr(C)]
struct Attr {
    size: usize,
    pin: extern "C" fn(*mut c_void, *mut c_void, usize, u32, *mut [u64; 3]) -> c_int,
    unpin: extern "C" fn(*mut c_void, *mut c_void),
    context: *mut c_void,
    monitor: *const c_char,
    max_bytes: u64,
    max_count: u32,
    flags: u32,
    answers: *const c_void,
}

type Open = unsafe extern "C" fn(*const Attr, *mut *mut c_void) -> c_int;
type LaneOpen = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int;
type Get = unsafe extern "C" fn(*mut c_void, *const c_void, usize, u32, *mut [u64; 3]) -> c_int;
type End = unsafe extern "C" fn(*mut c_void, *mut [u64; 3]) -> c_int;

/// Returns a function of the library.
fn function<F: Copy>(library: *mut c_void, name: &CStr) -> F {
    // SAFETY: the library was opened, and the name ends with a zero.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!address.is_null() && size_of::<F>() == size_of_val(&address), "{name:?}");
    // SAFETY: the types above are those of pindown.h, and a function's address is as large as a pointer.
    unsafe { transmute_copy(&address) }
}

const LOOK_UPS: usize = 1 << 20;

/// Returns the nanoseconds of one look-up.
fn time(ranges: &[Range], mut look_up: impl FnMut(Range)) -> f64 {
    let start = Instant::now();
    ranges.iter().for_each(|range| look_up(*range));
    start.elapsed().as_nanos() as f64 / ranges.len() as f64
}

fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn main() {
    let own = std::env::current_exe().expect("the path of this program");
    let file = own.ancestors().nth(2).expect("target/release/examples").join("libpindown.so");
    let file = CString::new(file.as_os_str().as_bytes()).expect("no zero byte");
    // SAFETY: the library's only initialiser is that of the standard library.
    let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{file:?}: cargo build --release -p pindown --lib");
    let (get, end): (Get, End) = (function(library, c"pindown_get"), function(library, c"pindown_end"));
    let (open, open_lane): (Open, LaneOpen) =
        (function(library, c"pindown_open"), function(library, c"pindown_lane_open"));
    println!("{:>8}  {:>10}  {:>10}", "entries", "Rust", "C");
    for entries in [1_u64, 64, 4096] {
        let monitor = c"imported".as_ptr();
        let attr = Attr {
            size: size_of::<Attr>(),
            pin,
            unpin,
            context: null_mut(),
            monitor,
            max_bytes: u64::MAX,
            max_count: entries as u32,
            flags: 0,
            answers: null(),
        };
        let (mut opened, mut foreign) = (null_mut(), null_mut());
        // SAFETY: both pointers refer to values that stay alive, and the structure is that of the header.
        assert_eq!(unsafe { open(&raw const attr, &raw mut opened) }, 0);
        // SAFETY: the cache was just opened.
        assert_eq!(unsafe { open_lane(opened, &raw mut foreign) }, 0);
        let (_notifier, imported) = Notifier::new(|_, _| true).expect("a descriptor");
        let cache = Cache::builder(Nothing).monitor(Choice::Imported(imported)).max_count(entries as u32);
        let cache = cache.open().expect("opens");
        let lane = cache.lane();
        let buffer = |number: u64| Range::new(0x7f00_0000_0000 + number * 0x3000 + 64, 1024).expect("a range");
        let ranges: Vec<Range> = (0..LOOK_UPS as u64).map(|n| buffer(n * 2_654_435_761 % entries)).collect();
        let by_rust = |range| {
            let used = lane.get(range, Access::empty()).expect("registered");
            black_box(used.local_key());
            lane.end(used);
        };
        let by_c = |range: Range| {
            // SAFETY: three zero words are valid words.
            let mut used = unsafe { zeroed() };
            let (address, length) = (with_exposed_provenance(range.start() as usize), range.len() as usize);
            // SAFETY: the lane is open and used only by this thread; the use stays alive.
            assert_eq!(unsafe { get(foreign, address, length, 0, &raw mut used) }, 0);
            black_box(used[0]);
            // SAFETY: as above.
            assert_eq!(unsafe { end(foreign, &raw mut used) }, 0);
        };
        (0..entries).for_each(|number| by_rust(buffer(number)));
        (0..entries).for_each(|number| by_c(buffer(number)));
        let rounds: Vec<_> = (0..15).map(|_| (time(&ranges, by_rust), time(&ranges, by_c))).collect();
        let (rust, c) = (rounds.iter().map(|round| round.0).collect(), rounds.iter().map(|round| round.1).collect());
        println!("{entries:>8}  {:>7.2} ns  {:>7.2} ns", median(rust), median(c));
    }
}
