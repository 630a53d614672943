//! A program without dynamic linking: it registers memory, replaces it by system calls, and must not get the old
//! registration. Compiled by a test.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use pindown::monitor::Choice;
use pindown::{Access, Cache, Pinned, Range, Registrar};

unsafe extern "C" {
    fn mmap(at: *mut u8, len: usize, rights: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
    fn munmap(at: *mut u8, len: usize) -> i32;
}

struct Counting(AtomicU64);

impl Registrar for Counting {
    type Pin = ();

    fn pin(&self, _: Range, _: Access) -> io::Result<Pinned<()>> {
        let key = self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Pinned { pin: (), local_key: key, remote_key: key })
    }

    fn unpin(&self, (): ()) {}
}

fn main() {
    // A static program has no dynamic loader.
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    assert!(!maps.contains("libc.so") && !maps.contains("ld-linux"), "{maps}");
    let cache = Cache::builder(Counting(AtomicU64::new(0))).monitor(Choice::Bpf).open().expect("the kernel tier");
    let lane = cache.lane();
    // The flags are MAP_PRIVATE | MAP_ANONYMOUS, and those that fix the address.
    let map = |at: *mut u8, flags: i32| unsafe { mmap(at, 16384, 3, flags, -1, 0) };
    let start = map(std::ptr::null_mut(), 0x22);
    let range = Range::new(start as u64, 16384).expect("a range");
    let key = || {
        let used = lane.get(range, Access::LOCAL_WRITE).expect("registered");
        assert!(!used.is_single(), "{:?}", cache.stats());
        let key = used.local_key();
        lane.end(used);
        key
    };
    let first = key();
    assert_eq!(key(), first, "kept");
    assert_eq!(unsafe { munmap(start, 16384) }, 0);
    assert_eq!(map(start, 0x32), start);
    assert_ne!(key(), first, "changed");
    println!("static: kept, changed, renewed");
}
