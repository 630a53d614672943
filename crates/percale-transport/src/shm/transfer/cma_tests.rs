//! Tests that a copy reaches either the peer's memory or no memory at all.

use std::io::Read;

use super::*;
use crate::system::forked::word_of_this_process;

const LEN: usize = 100_000;

/// A forked child of this process, with different contents at the same addresses.
struct Child {
    pid: i32,
    /// The address of the child's word.
    word: u64,
}

impl Child {
    /// Creates a child that fills `memory` with `value` and has a word of its own with the value `proof`.
    fn new(memory: &mut [u8], value: u8, proof: u64) -> Self {
        let (mut ready, reported) = std::io::pipe().unwrap();
        // SAFETY: the child writes its own memory, calls the kernel, and ends when it is killed.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: no memory is passed. The signal ends the child if the test fails.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            memory.fill(value);
            let word = word_of_this_process().unwrap();
            word.store(proof, Ordering::Relaxed);
            rustix::io::write(&reported, &std::ptr::from_ref(word).expose_provenance().to_ne_bytes()).ok();
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        }
        assert!(pid > 0);
        drop(reported);
        let mut word = [0; 8];
        ready.read_exact(&mut word).unwrap();
        Self { pid, word: u64::from_ne_bytes(word) }
    }

    fn end(self) {
        // SAFETY: the child belongs to this test, and has not been waited for.
        assert_eq!(unsafe { libc::kill(self.pid, libc::SIGKILL) }, 0);
        // SAFETY: as above; nothing is written.
        assert_eq!(unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) }, self.pid);
    }
}

fn piece(bytes: &mut [u8]) -> Segment {
    // SAFETY: the bytes live until the next copy returns, and no other code touches them until then.
    unsafe { Segment::new(bytes.as_mut_ptr(), bytes.len()) }
}

fn segment(bytes: &mut [u8]) -> Segments {
    Segments::one(piece(bytes))
}

#[test]
fn copy_never_reaches_a_process_with_a_reused_id() {
    let mut memory = vec![0_u8; LEN];
    let at = memory.as_mut_ptr().expose_provenance() as u64;
    let peer = Child::new(&mut memory, 1, 77);
    let proof = (peer.word, 77);
    let process = Arc::new(PeerProcess::of(peer.pid).unwrap());
    if let Err(error) = process.space() {
        println!("skipped (CMA): /proc/PID/mem cannot be opened ({error})");
        return peer.end();
    }
    let right = Cma::probe(Arc::clone(&process), proof).unwrap();
    drop(process);
    assert!(Cma::probe(Arc::new(PeerProcess::of(peer.pid).unwrap()), (proof.0, 78)).is_err(), "a wrong proof");
    // Simulates a peer with a process ID that an unrelated process has reused. That process is a later fork of the same
    // program, with its memory at the same addresses.
    let stranger = Child::new(&mut memory, 2, 79);
    let renumbered = PeerProcess::of(peer.pid).unwrap().with_number(stranger.pid);
    let reused = Cma(Arc::new(Peer {
        process: Arc::new(renumbered),
        proof,
        by_file: AtomicBool::new(false),
        refused: AtomicBool::new(false),
    }));
    let stranger_has = |len: usize| {
        let (mut found, stranger) = (vec![0_u8; len], PeerProcess::of(stranger.pid).unwrap());
        let local = [libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: len }];
        // SAFETY: the vector has this length.
        let read = unsafe { kernel::through(stranger.space().unwrap(), Direction::Read, &local, at) };
        assert_eq!(read.unwrap(), len);
        found
    };
    let mut bytes = vec![0; LEN];
    right.copy(Direction::Read, &segment(&mut bytes), at).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 1));
    right.copy(Direction::Write, &segment(&mut vec![5; LEN]), at).unwrap();
    right.copy(Direction::Read, &segment(&mut bytes), at).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 5));
    // The process id refers to another address space while the peer's still exists, as it does for a moment when the
    // peer executes another program. Nothing is read or written, and the region's memory is not reported as missing.
    for len in [8, LEN] {
        for direction in [Direction::Read, Direction::Write] {
            assert_eq!(reused.copy(direction, &segment(&mut vec![9; len]), at), Err(NoCopy::Ended));
        }
    }
    assert!(stranger_has(LEN) == [2; LEN], "the memory of another process was written");
    assert_eq!(right.copy(Direction::Read, &segment(&mut [0; 8]), 8), Err(NoCopy::Fault));
    assert_eq!(right.copy(Direction::Write, &segment(&mut [0; 8]), u64::MAX - 8), Err(NoCopy::Fault));
    // Another process has a different word at the address of the peer's word.
    let other_word = Cma(Arc::new(Peer {
        process: Arc::new(PeerProcess::of(stranger.pid).unwrap()),
        proof: (stranger.word, 78),
        by_file: AtomicBool::new(false),
        refused: AtomicBool::new(false),
    }));
    for len in [8, LEN] {
        assert_eq!(other_word.copy(Direction::Read, &segment(&mut vec![9; len]), at), Err(NoCopy::Ended));
    }
    // The process with the reused process id has a word at the same address as well.
    let same_word = Cma(Arc::new(Peer {
        process: Arc::new(PeerProcess::of(peer.pid).unwrap().with_number(stranger.pid)),
        proof: (stranger.word, 77),
        by_file: AtomicBool::new(false),
        refused: AtomicBool::new(false),
    }));
    peer.end();
    assert_eq!(same_word.copy(Direction::Write, &segment(&mut vec![9; LEN]), at), Err(NoCopy::Ended));
    for cma in [&right, &reused] {
        for len in [8, LEN] {
            for direction in [Direction::Read, Direction::Write] {
                assert_eq!(cma.copy(direction, &segment(&mut vec![9; len]), at), Err(NoCopy::Ended));
            }
        }
    }
    assert!(stranger_has(LEN) == [2; LEN], "the memory of another process was written");
    stranger.end();
}

/// Makes the kernel refuse copies by process id from now on, for this process. Returns false if no filter can be
/// installed.
fn forbid_copies_by_number() -> bool {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        step(0x20, 0, 0, 0), // The number of the system call.
        step(0x15, 1, 0, libc::SYS_process_vm_readv as u32),
        step(0x15, 0, 1, libc::SYS_process_vm_writev as u32),
        step(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: no memory is passed.
    let fixed = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0;
    // SAFETY: the kernel copies the program, which lives until the call returns.
    fixed && unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) } == 0
}

#[test]
fn forbidden_copies_by_process_id_fall_back_to_the_file() {
    let mut memory = vec![0_u8; LEN];
    let at = memory.as_mut_ptr().expose_provenance() as u64;
    let peer = Child::new(&mut memory, 1, 77);
    let process = Arc::new(PeerProcess::of(peer.pid).unwrap());
    if let Err(error) = process.space() {
        println!("skipped (CMA): /proc/PID/mem cannot be opened ({error})");
        return peer.end();
    }
    let cma = Cma::probe(process, (peer.word, 77)).unwrap();
    let went = crate::system::forked::in_a_child(|| {
        let mut bytes = vec![0; LEN];
        !forbid_copies_by_number()
            || cma.copy(Direction::Write, &segment(&mut vec![5; LEN]), at) == Ok(())
                && cma.copy(Direction::Read, &segment(&mut bytes), at) == Ok(())
                && bytes == [5; LEN]
    });
    assert!(went, "a copy failed");
    let went = crate::system::forked::in_a_child(|| {
        let mut bytes = vec![0; LEN];
        !forbid_copies_by_number()
            || cma.copy(Direction::Read, &segment(&mut bytes), at) == Ok(())
                && cma.copy(Direction::Write, &segment(&mut bytes), at) == Ok(())
    });
    assert!(went, "a copy failed");
    peer.end();
}

/// Memory of which only the first page exists.
#[test]
fn copy_that_the_kernel_ends_early_is_a_fault() {
    let page = rustix::param::page_size();
    let fd = crate::local_memory::mapping::sealed_memfd("percale-test", page, 0).unwrap();
    // SAFETY: a new mapping, which is removed at the end of this test.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            2 * page,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            std::os::fd::AsRawFd::as_raw_fd(&fd),
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    let half = at.expose_provenance() as u64;
    let process = Arc::new(PeerProcess::of(std::process::id().cast_signed()).unwrap());
    if let Err(error) = process.space() {
        return println!("skipped (CMA): /proc/PID/mem cannot be opened ({error})");
    }
    let word = word_of_this_process().unwrap();
    let proof = (std::ptr::from_ref(word).expose_provenance() as u64, word.load(Ordering::Relaxed));
    let cma = Cma::probe(process, proof).unwrap();
    for by_file in [false, true] {
        cma.0.by_file.store(by_file, Ordering::Relaxed);
        for direction in [Direction::Read, Direction::Write] {
            let copied = |len: usize| cma.copy(direction, &segment(&mut vec![3; len]), half);
            assert_eq!(copied(page), Ok(()), "the page that exists, {direction:?}, by file: {by_file}");
            assert_eq!(copied(page + 1), Err(NoCopy::Fault), "{direction:?}, by file: {by_file}");
            assert_eq!(copied(2 * page), Err(NoCopy::Fault), "{direction:?}, by file: {by_file}");
            // The copy ends within the first of two segments, or between them.
            let (mut one, mut two) = (vec![3; page], vec![4; page]);
            let pieces = [piece(&mut one), piece(&mut two)];
            let pieces = Segments::new(&pieces).unwrap();
            assert_eq!(cma.copy(direction, &pieces, half), Err(NoCopy::Fault), "{direction:?}, by file: {by_file}");
            let half = half + page as u64 / 2;
            assert_eq!(cma.copy(direction, &pieces, half), Err(NoCopy::Fault), "{direction:?}, by file: {by_file}");
        }
    }
    // SAFETY: the mapping was made above, and no reference to it exists.
    unsafe { libc::munmap(at, 2 * page) };
}
