//! The owner of regions and of a window forks: its child drops what it inherited, and nothing of the parent's ends.

use percale::endpoint::safe::Accessing;
use percale::{Access, RemoteMemory, WindowAccess, WindowType};
use percale_conformance::memory::{content, same};
use percale_conformance::process::{Helper, fork, say};
use percale_conformance::watchdog::Watchdog;
use rustix::process::{Pid, WaitOptions, waitpid};

use super::{ALL, Deadline, PATIENCE, open_as_told, open_kind, serve};

crate::on!(shm, untrusting, tcp, verbs: {
    mw_003_rev_001_flt_010_a_child_that_drops_what_it_inherited_ends_nothing_of_its_parents,
});

const LEN: usize = 10_000;
/// The window's bytes, in a region that gives no rights of its own.
const PART: std::ops::Range<u64> = 1000..9000;

/// A helper with two regions and a window, and children that drop them.
pub(crate) fn owner() {
    let open = open_as_told();
    let register = |access| open.domain.register(content(1, LEN), access).expect("a region");
    let regions = [register(ALL), register(Access::empty())];
    let mut window = open.domain.window(WindowType::One).expect("a window");
    let bound = window.bind(&regions[1], PART, WindowAccess::all()).expect("a bind");
    say(&format!("{} {} {}", open.endpoint.address(), regions[0].key(), bound.key));
    let mut owned = Some((window, regions));
    serve(&open, |line| match line {
        "fork" => {
            let child = fork(|| {
                // The child's copies: the parent's are where they were.
                drop(owned.take());
                true
            });
            let ended = waitpid(Pid::from_raw(child), WaitOptions::empty()).expect("a child");
            format!("{:?}", ended.and_then(|(_, status)| status.exit_status()))
        }
        _ => open.endpoint.describe_peers().into_iter().map(|(_, how)| how).collect(),
    });
}

fn mw_003_rev_001_flt_010_a_child_that_drops_what_it_inherited_ends_nothing_of_its_parents(kind: &str) {
    let _watchdog = Watchdog::new("a child drops what it inherited");
    let open = open_kind(kind, |domain| domain);
    let mut owner = Helper::start("forking-owner", &[("PERCALE_FABRIC", kind)]);
    let said = owner.hear();
    let mut words = said.split(' ');
    let peer = open.insert(words.next().expect("an address"));
    let mut key = || words.next().and_then(|word| word.parse().ok()).expect("a key");
    let [all, part] = [
        RemoteMemory { key: key(), address: 0, len: LEN as u64 },
        RemoteMemory { key: key(), address: PART.start, len: PART.end - PART.start },
    ];
    let read = |what: RemoteMemory| {
        let read = open.endpoint.read(peer, what, vec![0; what.len as usize]).start().expect("a read");
        let bytes = read.wait_for(PATIENCE).expect("the read").into_vec();
        same(&bytes, &content(1, LEN)[what.address as usize..][..bytes.len()], "what was read");
    };
    // Over verbs until the device reaches both, if it has windows.
    let deadline = Deadline::new("the device reaches a region");
    let reached = |what| open.endpoint.describe_peers().iter().any(|(_, how)| how.contains(what));
    let mut rounds = 0;
    while rounds < 10
        || kind == "verbs" && !(reached("RDMA to 2 of its") || rounds > 300 && reached("RDMA to 1 of its"))
    {
        [all, part].into_iter().for_each(read);
        rounds += 1;
        deadline.check();
    }
    let describe = |owner: &mut Helper| {
        owner.tell("describe");
        owner.hear()
    };
    let before = describe(&mut owner);
    for _ in 0..3 {
        owner.tell("fork");
        assert_eq!(owner.hear(), "Some(0)", "the child");
        for _ in 0..50 {
            [all, part].into_iter().for_each(read);
        }
    }
    assert_eq!(describe(&mut owner), before, "nothing had to be granted, or bound, anew");
    println!("{before}");
    owner.tell("end");
    owner.end();
}
