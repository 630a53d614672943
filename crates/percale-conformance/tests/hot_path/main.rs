//! What the hot path does not do: allocate, or call the system.
//!
//! Both are measured with two endpoints that one thread drives, so that the peer is always awake and nothing depends
//! on the scheduler.

#![expect(unsafe_code, reason = "an allocator that counts, and posting from memory that is never freed")]

mod counting;

use std::collections::BTreeMap;

use percale::{Endpoint, Entry, OpFlags, PeerAddress, ReceiveWork, SendWork};
use percale_conformance::fabric::{Fabric, Loopback, Shm};
use percale_conformance::memory::{Memory, content, same};
use percale_conformance::mesh::Mesh;
use percale_conformance::process::{Helper, play, say, told};
use percale_conformance::skipped;

/// Lengths on the hot path.
const LENS: [usize; 8] = [0, 8, 40, 48, 200, 512, 600, 2048];

/// The other role of this program.
#[test]
fn helper() {
    play(&[("rounds", rounds)]);
}

mod conformance {
    pub(super) mod shm {
        mod rust {
            #[test]
            fn res_004_short_messages_allocate_nothing() {
                crate::allocate_nothing::<percale_conformance::fabric::Shm>();
            }

            #[test]
            fn res_003_short_messages_call_no_system() {
                crate::call_no_system("shm");
            }
        }
    }
    pub(super) mod loopback {
        mod rust {
            #[test]
            fn res_004_short_messages_allocate_nothing() {
                crate::allocate_nothing::<percale_conformance::fabric::Loopback>();
            }
        }
    }
}

/// Tagged ping-pongs between two endpoints, by the raw face.
struct PingPong<F: Fabric> {
    mesh: Mesh<F>,
    memory: [Memory; 2],
}

impl<F: Fabric> PingPong<F> {
    fn new() -> Self {
        let mesh = Mesh::connected(2);
        Self { mesh, memory: [Memory::content(1, 2048), Memory::blank(2048)] }
    }

    /// One message of `len` bytes from one to the other, whose receive is posted before.
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
        // SAFETY: the memory is never freed, and nobody touches it before the completion.
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

    fn rounds(&self, count: usize) {
        for round in 0..count {
            let len = LENS[round % LENS.len()];
            self.go(0, 1, len, round % 2 == 0);
            self.go(1, 0, len, round % 2 == 1);
        }
        same(&self.memory[0].read(), &content(1, 2048), "what went to and fro");
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

/// 10,000 ping-pongs once everything has its size.
fn allocate_nothing<F: Fabric>() {
    let game = PingPong::<F>::new();
    game.rounds(2000);
    let before = counting::of_this_thread();
    game.rounds(0); // The verification's own allocations.
    let verification = counting::of_this_thread() - before;
    let before = counting::of_this_thread();
    game.rounds(10_000);
    let allocations = counting::of_this_thread() - before - verification;
    assert_eq!(allocations, 0, "allocations in 10,000 ping-pongs over {}", F::NAME);
    assert!(verification > 0, "the allocator counts");
}

/// The calls of two runs under strace, one of which plays 20,000 ping-pongs more.
fn call_no_system(transport: &str) {
    let traced = std::process::Command::new("strace").args(["-f", "-qq", "-o", "/dev/null", "true"]).status();
    if !traced.is_ok_and(|status| status.success()) {
        return skipped("system calls of the hot path", "strace is missing, or may not trace here");
    }
    let calls = [1_000, 21_000].map(|count| {
        let name = format!("percale-calls-{}-{count}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let path = file.to_str().expect("a plain name");
        let count = count.to_string();
        let told = [("PERCALE_FABRIC", transport), ("PERCALE_ROUNDS", &*count)];
        let mut helper = Helper::through(&["strace", "-f", "-qq", "-c", "-o", path], "rounds", &told, |_| {});
        assert_eq!(helper.hear(), "played");
        helper.end();
        let table = std::fs::read_to_string(&file).expect("the table of strace");
        std::fs::remove_file(&file).expect("it was there");
        parse(&table)
    });
    let [few, many] = &calls;
    println!("{transport}: {few:?}, and with 20,000 ping-pongs more {many:?}");
    let total = |calls: &BTreeMap<String, u64>| calls.values().sum::<u64>();
    assert!(total(few) > 50, "strace saw the program");
    // Threads that wake up now and then make a few calls whatever the hot path does: 1 in 100 messages is far above
    // that.
    assert!(total(many) < total(few) + 400, "40,000 messages made system calls");
}

/// System calls and how often each was made, from the table of `strace -c`.
fn parse(table: &str) -> BTreeMap<String, u64> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let calls = words.get(3)?.parse().ok()?;
        let name = (*words.last()?).to_owned();
        (name != "total").then_some((name, calls))
    };
    table.lines().filter_map(row).collect()
}

/// The traced role.
fn rounds() {
    let count = told("PERCALE_ROUNDS").parse().expect("a number");
    match told("PERCALE_FABRIC").as_str() {
        "shm" => PingPong::<Shm>::new().rounds(count),
        _ => PingPong::<Loopback>::new().rounds(count),
    }
    say("played");
}
