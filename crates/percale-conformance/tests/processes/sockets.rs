//! The sockets that a process opens, and when it opens them.

use percale_conformance::peers::open_as_told;
use percale_conformance::process::{Helper, ask, print_line};
use percale_conformance::watchdog::Watchdog;

crate::on!(shm, tcp, verbs: { no_socket_is_opened_before_the_first_operation });

/// Runs the helper `lazy`, which makes the check, in a separate process.
///
/// Requirements: CON-001.
fn no_socket_is_opened_before_the_first_operation(transport: &str) {
    let _watchdog = Watchdog::new("no socket is opened before the first operation");
    let mut lazy = Helper::start("lazy", &[("PERCALE_FABRIC", transport)]);
    let own = lazy.receive_line();
    let mut echo = Helper::start("echo", &[("PERCALE_FABRIC", transport), ("PERCALE_PEER", &own)]);
    lazy.send_line(&echo.receive_line());
    println!("{transport}: {}", lazy.receive_line());
    lazy.end();
}

/// Returns the number of open sockets of this process.
fn sockets() -> usize {
    let own = std::fs::read_dir("/proc/self/fd").expect("/proc is mounted");
    let targets = own.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

/// The role of a helper that fills a vector, posts a receive, and only then sends a message.
pub(crate) fn lazy() {
    let open = open_as_told();
    let before = sockets();
    for number in 0..1000 {
        open.insert(&format!("127.1.{}.{}:9", number >> 8, number & 0xff));
    }
    open.say_address();
    let peer = open.insert(&ask());
    let receiving = open.endpoint.recv(vec![0; 8]).start().expect("a receive");
    for _ in 0..1000 {
        open.endpoint.progress();
    }
    assert_eq!(sockets(), before, "no operation was posted yet");
    assert_eq!(open.events.read(), None);
    open.exchange(peer, 1, 100).expect("the first operation connects");
    let after = sockets();
    assert!(after > before, "{after} sockets with a peer, {before} without");
    let (transport, reason) = open.connected();
    assert_eq!(open.events.read(), None, "one connection");
    drop(receiving);
    print_line(&format!("{before} sockets before the first operation, {after} after it, by {transport} ({reason})"));
}
