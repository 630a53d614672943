//! Checks that the hot path neither allocates nor makes system calls.
//!
//! Both are measured with two endpoints that one thread drives. The peer is therefore always active, and the result
//! does not depend on the scheduler.

#![expect(unsafe_code, reason = "an allocator that counts, and posting from memory that is never freed")]

mod counting;

use std::collections::BTreeMap;
use std::mem::take;

use percale::endpoint::EndpointHandle;
use percale::endpoint::safe::{Operation, Outcome};
use percale::{Access, Buffer, Endpoint, Entry, OpFlags, PeerAddress, ReceiveWork, SendWork};
use percale_conformance::fabric::{Fabric, Loopback, Shm};
use percale_conformance::memory::{Memory, content, same};
use percale_conformance::mesh::Mesh;
use percale_conformance::process::{Helper, play, print_line, variable};
use percale_conformance::skipped;

/// The message lengths that use the hot path.
const LENS: [usize; 8] = [0, 8, 40, 48, 200, 512, 600, 2048];

/// Runs a helper role of this program.
#[test]
fn helper() {
    play(&[("rounds", rounds)]);
}

mod conformance {
    pub(super) mod shm {
        mod rust {
            /// Requirements: RES-004.
            #[test]
            fn short_messages_allocate_nothing() {
                crate::allocate_nothing::<percale_conformance::fabric::Shm>();
            }

            /// Requirements: RES-004.
            #[test]
            fn operation_sets_allocate_nothing() {
                crate::sets_allocate_nothing::<percale_conformance::fabric::Shm>();
            }

            /// Requirements: RES-004, RES-011.
            #[test]
            fn buffers_of_a_pool_allocate_nothing() {
                crate::pools_allocate_nothing::<percale_conformance::fabric::Shm>();
            }

            /// Requirements: RES-004.
            #[test]
            fn safe_operations_allocate_nothing() {
                crate::safe_operations_allocate_nothing::<percale_conformance::fabric::Shm>();
            }

            /// Requirements: RES-003.
            #[test]
            fn short_messages_make_no_system_call() {
                crate::call_no_system("shm");
            }
        }
    }
    pub(super) mod tcp {
        mod rust {
            /// Requirements: RES-004.
            #[test]
            fn safe_operations_allocate_nothing() {
                crate::safe_operations_allocate_nothing::<percale_conformance::fabric::Tcp>();
            }
        }
    }
    pub(super) mod loopback {
        mod rust {
            /// Requirements: RES-004.
            #[test]
            fn safe_operations_allocate_nothing() {
                crate::safe_operations_allocate_nothing::<percale_conformance::fabric::Loopback>();
            }

            /// Requirements: RES-004.
            #[test]
            fn short_messages_allocate_nothing() {
                crate::allocate_nothing::<percale_conformance::fabric::Loopback>();
            }

            /// Requirements: RES-004.
            #[test]
            fn operation_sets_allocate_nothing() {
                crate::sets_allocate_nothing::<percale_conformance::fabric::Loopback>();
            }

            /// Requirements: RES-004, RES-011.
            #[test]
            fn buffers_of_a_pool_allocate_nothing() {
                crate::pools_allocate_nothing::<percale_conformance::fabric::Loopback>();
            }
        }
    }
}

/// Tagged ping-pongs between two endpoints, through the raw API.
struct PingPong<F: Fabric> {
    mesh: Mesh<F>,
    memory: [Memory; 2],
}

impl<F: Fabric> PingPong<F> {
    fn new() -> Self {
        let mesh = Mesh::connected(2);
        Self { mesh, memory: [Memory::content(1, 2048), Memory::blank(2048)] }
    }

    /// Sends one message of `len` bytes, after posting its receive.
    fn go(&self, from: usize, to: usize, len: usize, inject: bool) {
        let (a, b) = (self.mesh.endpoint(from), self.mesh.endpoint(to));
        let (source, target) = (self.memory[from % 2].part(0, len), self.memory[to % 2].part(0, len));
        let (tag, context) = (len as u64, 1);
        let flags = OpFlags::COMPLETION;
        let receive = ReceiveWork {
            from: PeerAddress::UNSPECIFIED,
            segments: target.segments(),
            tag: Some((tag, 0)),
            context,
            flags,
        };
        // SAFETY: the memory is never freed, and no code accesses it before the completion.
        unsafe { b.post_recv(&receive) }.expect("a receive");
        let flags = if inject { OpFlags::INJECT } else { flags };
        let peer = self.mesh.peer(to);
        let send = SendWork { peer, segments: source.segments(), tag: Some(tag), data: None, context: 2, flags };
        // SAFETY: as above.
        unsafe { a.post_send(&send) }.expect("room for one message");
        wait(b, if F::ALONE && !inject { 2 } else { 1 });
        if !F::ALONE && !inject {
            wait(a, 1);
        }
    }

    fn round(&self, round: usize) {
        let len = LENS[round % LENS.len()];
        self.go(0, 1, len, round.is_multiple_of(2));
        self.go(1, 0, len, !round.is_multiple_of(2));
    }

    fn rounds(&self, count: usize) {
        (0..count).for_each(|round| self.round(round));
        same(&self.memory[0].read(), &content(1, 2048), "the exchanged data");
    }
}

/// Polls until there are `count` completions.
fn wait(endpoint: &Endpoint, count: usize) {
    let mut entries = [Entry::default(); 4];
    let mut seen = 0;
    while seen < count {
        seen += endpoint.poll(&mut entries).expect("no error");
    }
}

/// Checks that 10,000 ping-pongs do not allocate. Before the measurement, all buffers have grown to their final size.
fn allocate_nothing<F: Fabric>() {
    let game = PingPong::<F>::new();
    game.rounds(2000);
    let before = counting::of_this_thread();
    game.rounds(0); // The verification may allocate.
    let verification = counting::of_this_thread() - before;
    let before = counting::of_this_thread();
    game.rounds(10_000);
    let allocations = counting::of_this_thread() - before - verification;
    assert_eq!(allocations, 0, "allocations in 10,000 ping-pongs over {}", F::NAME);
    assert!(verification > 0, "the allocator counts");
}

/// Checks that a set with 16 receives in flight does not allocate in 1,000 rounds. The buffers of the results are used
/// again.
fn sets_allocate_nothing<F: Fabric>() {
    const DEPTH: u64 = 16;
    let mesh = Mesh::<F>::connected(2);
    let (a, b) = (mesh.endpoint(0), mesh.endpoint(1));
    let mut set = b.operation_set(DEPTH as usize);
    let mut buffers: Vec<Buffer> = (0..DEPTH).map(|_| vec![0; 8].into()).collect();
    let mut round = || {
        for tag in 0..DEPTH {
            let buffer = buffers.pop().expect("a buffer");
            set.push(b.tagged_recv(tag, 0, buffer).start().expect("a receive"), tag).expect("there is room");
        }
        for tag in (0..DEPTH).rev() {
            a.tagged_inject(mesh.peer(1), tag, &tag.to_le_bytes()).expect("room for one message");
            let (key, got) = set.next().expect("a result");
            let got = got.expect("a message");
            assert_eq!((key, got.tag, got.len), (tag, tag, 8));
            buffers.push(got.buffer);
        }
    };
    (0..200).for_each(|_| round());
    let before = counting::of_this_thread();
    (0..1000).for_each(|_| round());
    assert_eq!(counting::of_this_thread() - before, 0, "allocations of 16,000 operations over {}", F::NAME);
}

/// Waits for an operation while both endpoints make progress.
fn ended<H: EndpointHandle, R: Outcome>(mut operation: Operation<H, R>, other: &Endpoint) -> R {
    while !operation.is_ready() {
        let _happened: bool = other.progress();
    }
    operation.wait().expect("a success")
}

/// Checks that 12,000 messages, reads, writes and atomic operations of the safe API do not allocate if buffers are used
/// again. The accesses are executed directly. An access that the peer executes allocates a record.
fn safe_operations_allocate_nothing<F: Fabric>() {
    let mesh = Mesh::<F>::connected(2);
    let (a, b, peer) = (mesh.endpoint(0), mesh.endpoint(1), mesh.peer(1));
    let owner = &mesh.test_endpoint(1).domain;
    let expose = |memory: Buffer| owner.register(memory, Access::REMOTE_READ | Access::REMOTE_WRITE).expect("a region");
    let regions = [expose(owner.allocate(4096).expect("memory").into()), expose(vec![0; 4096].into())];
    let words = regions.each_ref().map(|region| region.remote().at(..8));
    let (mut source, mut target) = (Buffer::from(vec![7; 8]), Buffer::from(vec![0; 8]));
    let mut round = |number: u64| {
        let word = words[number as usize % 2];
        let receiving = b.tagged_recv(number, 0, take(&mut target)).start().expect("a receive");
        source = ended(a.tagged_send(peer, number, take(&mut source)).start().expect("a send"), b);
        target = ended(receiving, a).buffer;
        source = ended(a.write(peer, take(&mut source), word).start().expect("a write"), b);
        target = ended(a.read(peer, word, take(&mut target)).start().expect("a read"), b);
        let before = ended(a.fetch_add(peer, word, 1_u64).start().expect("an addition"), b);
        let found = ended(a.compare_swap(peer, word, before + 1, 0_u64).start().expect("a swap"), b);
        assert_eq!(found, before + 1);
    };
    (0..500).for_each(&mut round);
    let before = counting::of_this_thread();
    (0..2000).for_each(&mut round);
    assert_eq!(counting::of_this_thread() - before, 0, "allocations of 12,000 operations over {}", F::NAME);
}

/// Checks that messages with buffers of a pool, which are taken for each operation and then dropped, do not allocate.
/// This includes messages that are too long for the hot path.
fn pools_allocate_nothing<F: Fabric>() {
    let mesh = Mesh::<F>::connected(2);
    let (a, b) = (mesh.endpoint(0), mesh.endpoint(1));
    let pool = mesh.test_endpoint(0).domain.buffer_pool(2, 100_000).expect("a pool");
    let round = |len: usize| {
        let mut receive = b.tagged_recv(1, 0, pool.take().expect("a buffer")).start().expect("a receive");
        let mut source = pool.take().expect("a buffer");
        source.copy_from(0, &[7; 8]);
        source.truncate(len);
        let mut send = a.tagged_send(mesh.peer(1), 1, source).start().expect("a send");
        assert!(pool.take().is_none(), "both buffers are in use");
        while !(receive.is_ready() & send.is_ready()) {}
        assert_eq!(receive.wait().expect("a message").len, len);
        assert_eq!(send.wait().expect("sent").len(), len);
    };
    let rounds = |count: usize| {
        for len in [8, 48, 600, 5000, 100_000] {
            (0..count).for_each(|_| round(len));
        }
    };
    rounds(200);
    let before = counting::of_this_thread();
    rounds(500);
    assert_eq!(counting::of_this_thread() - before, 0, "allocations of 2,500 messages over {}", F::NAME);
}

/// Checks under strace that a thread makes no system calls while it runs 20,000 ping-pongs. Calls that establish its
/// connection are not counted.
fn call_no_system(transport: &str) {
    let traced = std::process::Command::new("strace").args(["-f", "-qq", "-o", "/dev/null", "true"]).status();
    if !traced.is_ok_and(|status| status.success()) {
        return skipped("strace", "system calls of the hot path", "strace is missing, or may not trace here");
    }
    let file = std::env::temp_dir().join(format!("percale-calls-{}", std::process::id()));
    let path = file.to_str().expect("a plain name");
    let variables = [("PERCALE_FABRIC", transport), ("PERCALE_ROUNDS", "20000")];
    let mut helper = Helper::through(&["strace", "-f", "-qq", "-o", path], "rounds", &variables, |_| {});
    assert_eq!(helper.receive_line(), "played");
    helper.end();
    let log = std::fs::read_to_string(&file).expect("the log of strace");
    std::fs::remove_file(&file).expect("the log file exists");
    let (before, calls) = between_marks(&log);
    assert!(before > 50, "strace saw the program");
    println!("{transport}: {before} calls of the thread before, then {calls:?}");
    assert_eq!(calls, BTreeMap::new(), "40,000 messages made system calls");
}

/// The paths in the system calls with which the thread marks the beginning and the end of the measurement. They are
/// recognized in the output of strace.
const MARKS: [&str; 2] = ["/percale/rounds/begin", "/percale/rounds/end"];

/// Parses the output of `strace -f`. Returns the number of calls of the thread before the first mark, and the calls
/// between the two marks. Each line begins with the number of the thread, followed by the name of the call.
fn between_marks(log: &str) -> (usize, BTreeMap<&str, u64>) {
    let begins = log.lines().find(|line| line.contains(MARKS[0])).expect("the first mark");
    let thread = begins.split_whitespace().next().expect("a thread");
    let (mut before, mut calls, mut marks) = (0, BTreeMap::new(), 0);
    for line in log.lines() {
        let Some((number, call)) = line.split_once(' ') else { continue };
        if number != thread {
            continue;
        }
        // A resumed call was counted when it began.
        let Some((name, _)) = call.trim_start().split_once('(').filter(|(name, _)| !name.starts_with("<...")) else {
            continue;
        };
        match marks {
            _ if MARKS.iter().any(|mark| call.contains(mark)) => marks += 1,
            0 => before += 1,
            1 => *calls.entry(name).or_insert(0) += 1,
            _ => {}
        }
    }
    assert_eq!(marks, MARKS.len(), "both marks");
    (before, calls)
}

#[test]
fn calls_between_the_marks_are_counted() {
    let log = "7 brk(NULL) = 0x1\n7 stat(\"/percale/rounds/begin\") = -1\n8 read(1) = 1\n7 futex(0x1 <unfinished ...>\n\
               7 <... futex resumed>) = 0\n7 sched_yield() = 0\n7 stat(\"/percale/rounds/end\") = -1\n7 exit(0) = ?\n";
    assert_eq!(between_marks(log), (1, BTreeMap::from([("futex", 1), ("sched_yield", 1)])));
}

/// The traced role.
fn rounds() {
    let count = variable("PERCALE_ROUNDS").parse().expect("a number");
    match variable("PERCALE_FABRIC").as_str() {
        "shm" => marked::<Shm>(count),
        _ => marked::<Loopback>(count),
    }
    print_line("played");
}

fn marked<F: Fabric>(count: usize) {
    let game = PingPong::<F>::new();
    game.rounds(1000);
    let mark = |path| assert!(std::fs::metadata(path).is_err(), "there is no such file");
    mark(MARKS[0]);
    for round in 0..count {
        game.round(round);
    }
    mark(MARKS[1]);
    game.rounds(0); // Verify the contents.
}
