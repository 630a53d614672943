//! An owner of windows forks, and its child drops the inherited objects. The parent's objects are not affected.

use percale::{Access, ErrorCode, RemoteMemory, WindowAccess, WindowType};
use percale_conformance::memory::{content, same};
use percale_conformance::peers::Open;
use percale_conformance::process::{Helper, fork, print_line};
use percale_conformance::watchdog::Watchdog;
use rustix::process::{Pid, WaitOptions, waitpid};

use super::{Deadline, WAIT_TIMEOUT, open_as_told, open_kind, refusal, serve};

crate::on!(shm, untrusting, tcp, verbs: {
    forked_child_does_not_invalidate_parent_windows,
});

const LEN: u64 = 20_000;
const BOTH: WindowAccess = WindowAccess::READ.union(WindowAccess::WRITE);

/// The role of the owner of two windows over one region. On the command `fork`, it forks a child that tries to unbind
/// one window and then drops all objects.
pub(crate) fn window_owner() {
    let open = open_as_told();
    let mut region = Some(open.domain.register(content(1, LEN as usize), Access::empty()).expect("a region"));
    let mut windows = [(); 2].map(|()| Some(open.domain.window(WindowType::One).expect("a window")));
    let mut bind = |at: usize, range| {
        let (window, region) = (windows[at].as_mut().expect("a window"), region.as_ref().expect("a region"));
        window.bind(region, range, BOTH).expect("a bind").key
    };
    let keys = [0, 1].map(|at| bind(at, 0..LEN));
    print_line(&format!("{} {} {}", open.endpoint.address(), keys[0], keys[1]));
    serve(&open, |line| match line {
        "fork" => {
            let child = fork(|| {
                let unbound =
                    windows[0].as_mut().expect("a window").bind(region.as_ref().expect("a region"), 0..0, BOTH);
                // This drops the child's copies.
                drop((windows[0].take(), windows[1].take(), region.take()));
                unbound.is_err()
            });
            let ended =
                waitpid(Pid::from_raw(child), WaitOptions::empty()).expect("the child").expect("the child's status");
            format!("{:?}", ended.1.exit_status())
        }
        _ => {
            for window in windows.iter_mut().flatten() {
                window.bind(region.as_ref().expect("a region"), 0..0, BOTH).expect("an end");
            }
            "unbound".into()
        }
    });
}

/// Returns the number of accesses by RDMA, and the number of regions and windows that they used.
fn by_rdma(open: &Open) -> (u64, u64) {
    let how = open.endpoint.describe_peers();
    let Some((_, text)) = how.iter().find_map(|(_, how)| how.split_once("RDMA to ")) else { return (0, 0) };
    let numbers = text.split(' ').filter_map(|word| word.parse().ok()).collect::<Vec<_>>();
    (numbers[1], numbers[0])
}

/// Requirements: MW-003, FLT-010.
fn forked_child_does_not_invalidate_parent_windows(kind: &str) {
    let _watchdog = Watchdog::new("a forked child does not invalidate its parent's windows");
    let open = open_kind(kind, |domain| domain);
    let mut helper = Helper::start("window-owner", &[("PERCALE_FABRIC", kind)]);
    let printed = helper.receive_line();
    let [address, keys @ ..] = &printed.split(' ').collect::<Vec<_>>()[..] else { panic!("{printed}") };
    let peer = open.insert(address);
    let names = [0, 1].map(|at: usize| RemoteMemory { key: keys[at].parse().expect("a key"), address: 0, len: LEN });
    let read =
        |name| open.endpoint.read(peer, name, vec![0; LEN as usize]).start().expect("a read").wait_for(WAIT_TIMEOUT);
    let use_all = |number| {
        for name in names {
            let mut write = open.endpoint.write(peer, content(number, LEN as usize), name).start().expect("a write");
            write.wait_for(WAIT_TIMEOUT).expect("the write");
            same(&read(name).expect("the read").into_vec(), &content(number, LEN as usize), "the written data");
        }
    };
    // Establishing a queue pair takes some time. If the device has no windows, the owner executes all accesses.
    let deadline = Deadline::new("the device accesses a region");
    let mut rounds = 0;
    while kind == "verbs" && by_rdma(&open).1 < 2 && rounds < 300 {
        use_all(1);
        rounds += 1;
        deadline.check();
    }
    let reached = by_rdma(&open).1 == 2;
    println!("{kind}: {:?}", open.endpoint.describe_peers());
    for round in 2..=4 {
        helper.send_line("fork");
        assert_eq!(helper.receive_line(), "Some(0)", "the child");
        let (before, _) = by_rdma(&open);
        use_all(round);
        assert!(!reached || by_rdma(&open) == (before + 4, 2), "an access used another path: a window was invalid");
    }
    helper.send_line("unbind");
    assert_eq!(helper.receive_line(), "unbound");
    names.into_iter().for_each(|name| assert_eq!(refusal(read(name)), ErrorCode::KeyRejected));
    helper.send_line("end");
    helper.end();
}
