//! Tests with other hosts, other users, and features that are forbidden or disabled.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use percale::{Event, Info};
use percale_conformance::peers::{open, open_as_told};
use percale_conformance::process::{Helper, ask, copy_program, print_line, variable};
use percale_conformance::skipped;
use percale_conformance::watchdog::Watchdog;

/// The user ID of `nobody`.
const NOBODY: u32 = 65_534;

/// Returns whether a test can run here. The test needs root and these programs. If it cannot run, reports it as
/// skipped.
pub(crate) fn possible(what: &str, programs: &[&str]) -> bool {
    if !rustix::process::geteuid().is_root() {
        skipped("root", what, "root is required");
        return false;
    }
    for program in programs {
        if Command::new(program).arg("--version").output().is_err() && Command::new(program).arg("-V").output().is_err()
        {
            skipped("network namespaces", what, &format!("{program} is not installed"));
            return false;
        }
    }
    let works = Command::new("unshare").args(["-n", "true"]).status().is_ok_and(|status| status.success());
    if programs.contains(&"unshare") && !works {
        skipped("network namespaces", what, "network namespaces cannot be made here");
        return false;
    }
    true
}

crate::on!(shm: {
    shared_memory_is_chosen_on_one_machine,
    the_environment_chooses_the_transport,
    unusable_selected_transport_is_a_descriptive_error,
});
crate::on!(tcp: {
    long_partition_fails_operations_and_short_one_does_not,
    peer_limited_to_tcp_is_reached_by_tcp_with_a_reason,
    peer_of_another_user_is_reached_by_tcp_with_a_reason,
    peer_on_another_host_is_reached_by_tcp_with_a_reason,
    the_environment_chooses_the_transport,
    unusable_selected_transport_is_a_descriptive_error,
});

/// Requirements: CON-007.
fn shared_memory_is_chosen_on_one_machine(chosen: &str) {
    let _watchdog = Watchdog::new("shared memory is chosen on one machine");
    let open = open("any", "127.0.0.1:0", |domain| domain);
    let own = open.endpoint.address().to_string();
    let mut peer = Helper::start("echo", &[("PERCALE_FABRIC", "any"), ("PERCALE_PEER", &own)]);
    let peer = open.insert(&peer.receive_line());
    open.exchange(peer, 1, 8).expect("an echo");
    let (transport, reason) = open.connected();
    println!("{transport}: {reason}");
    assert_eq!(transport, chosen);
    let tcp = std::fs::read_to_string("/proc/self/net/tcp").expect("/proc is mounted");
    let port = format!(":{:04X}", open.endpoint.address().port());
    let connected = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(3) == Some(&"01") && words[1..3].iter().any(|end| end.ends_with(&port))
    };
    assert_eq!(tcp.lines().filter(connected).count(), 0, "the connection of the set-up is closed");
}

/// Requirements: CON-008.
fn peer_limited_to_tcp_is_reached_by_tcp_with_a_reason(chosen: &str) {
    let _watchdog = Watchdog::new("peer limited to tcp is reached by tcp with a reason");
    let open = open("any", "127.0.0.1:0", |domain| domain);
    let own = open.endpoint.address().to_string();
    let mut peer = Helper::start("echo", &[("PERCALE_FABRIC", chosen), ("PERCALE_PEER", &own)]);
    let peer = open.insert(&peer.receive_line());
    open.exchange(peer, 1, 30_000).expect("an echo");
    let (transport, reason) = open.connected();
    println!("{transport}: {reason}");
    assert_eq!(transport, chosen);
    assert!(!reason.is_empty());
    assert!(
        open.endpoint.describe_peers().iter().any(|(_, why)| why.contains(&reason) || reason.contains(why.as_str()))
    );
}

/// Requirements: CON-008.
fn peer_of_another_user_is_reached_by_tcp_with_a_reason(chosen: &str) {
    if !possible("another user", &[]) {
        return;
    }
    let _watchdog = Watchdog::new("another user");
    let Some(program) = copy_for_all() else { return };
    let open = open("any", "127.0.0.1:0", |domain| domain);
    let own = open.endpoint.address().to_string();
    let variables = [("PERCALE_FABRIC", "any"), ("PERCALE_PEER", own.as_str())];
    let mut peer = program.start("echo", &variables);
    let peer = open.insert(&peer.receive_line());
    open.exchange(peer, 1, 30_000).expect("an echo");
    let (transport, reason) = open.connected();
    println!("{transport}: {reason}");
    assert_eq!(transport, chosen);
    assert!(reason.contains("user"), "{reason}");
}

/// A copy of this program that all users may execute, in a separate directory. The copy is removed when this value is
/// dropped.
struct Copy {
    directory: std::path::PathBuf,
}

/// Copies this program to a directory where another user can execute it.
fn copy_for_all() -> Option<Copy> {
    use std::os::unix::fs::PermissionsExt;
    let name = format!("percale-test-{}-{:?}", std::process::id(), std::thread::current().id());
    let directory = std::env::temp_dir().join(name.replace(['(', ')'], ""));
    let copied = std::fs::create_dir(&directory).and_then(|()| {
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755))?;
        copy_program(&std::env::current_exe()?, &directory.join("program"))?;
        std::fs::set_permissions(directory.join("program"), std::fs::Permissions::from_mode(0o755))
    });
    let copy = Copy { directory };
    if let Err(error) = copied {
        skipped("executable copies", "another user", &format!("this program cannot be copied: {error}"));
        return None;
    }
    Some(copy)
}

impl Copy {
    /// Starts the copy as the user `nobody`.
    fn start(&self, role: &str, variables: &[(&str, &str)]) -> Helper {
        Helper::of_copy(&self.directory.join("program"), role, variables, |command| {
            command.uid(NOBODY).gid(NOBODY).current_dir("/");
        })
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            eprintln!("{}: {error}", self.directory.display());
        }
    }
}

/// Requirements: CON-009.
fn the_environment_chooses_the_transport(transport: &str) {
    let _watchdog = Watchdog::new("the environment chooses the transport");
    for (name, wanted) in [(transport, transport), ("shm,tcp", "shm"), ("tpc", "")] {
        let mut helper = Helper::start("by-name", &[("PERCALE_TRANSPORT", name)]);
        let answer = helper.receive_line();
        println!("PERCALE_TRANSPORT={name}: {answer}");
        if wanted.is_empty() {
            assert!(answer.contains(name), "the unknown name is reported: {answer}");
        } else {
            assert_eq!(answer, wanted);
        }
        helper.end();
    }
}

/// Requirements: CON-009.
fn unusable_selected_transport_is_a_descriptive_error(transport: &str) {
    let _watchdog = Watchdog::new("a chosen transport that cannot be used");
    let other = if transport == "shm" { "tcp" } else { "shm" };
    for (mine, theirs) in [(transport, other), ("loopback", transport)] {
        // The peer needs no other endpoint. It only needs to exist.
        let mut peer = Helper::start("silent", &[("PERCALE_FABRIC", theirs)]);
        let variables = [("PERCALE_TRANSPORT", mine), ("PERCALE_PEER", &peer.receive_line())];
        let mut helper = Helper::start("by-name-to", &variables);
        let answer = helper.receive_line();
        println!("PERCALE_TRANSPORT={mine}, a peer over {theirs}: {answer}");
        assert!(answer.contains("no common transport with the peer"), "{answer}");
        helper.end();
    }
}

/// The role of a helper that sends to a peer over the transports that the environment permits, and reports the error.
pub(crate) fn by_name_to() {
    let open = open("any", "127.0.0.1:0", |domain| domain);
    let peer = open.insert(&variable("PERCALE_PEER"));
    let mut sending = open.endpoint.send(peer, vec![1; 8]).start().expect("a send");
    let error = sending.wait_for(Duration::from_secs(20)).expect_err("no common transport");
    let event = open.events.read();
    assert!(matches!(event, Some(Event::Failed { .. })), "{event:?}");
    print_line(&format!("{error}; {event:?}"));
}

/// The role of a helper with two endpoints in one process, over the transports that the environment permits.
pub(crate) fn by_name() {
    if let Err(error) = Info::discover().expect("discovery").domain().open() {
        return print_line(&error.to_string());
    }
    let (a, b) = (open("any", "127.0.0.1:0", |domain| domain), open("any", "127.0.0.1:0", |domain| domain));
    let peer = a.insert(&b.endpoint.address().to_string());
    a.inject(peer, 1, b"hello");
    let mut found = None;
    a.until(|| {
        b.endpoint.progress();
        if let Some(Event::Connected { transport, .. }) = a.events.read() {
            found = Some(transport);
        }
        found.is_some()
    });
    print_line(found.unwrap_or_default());
}

/// Two hosts: network namespaces with a pair of interfaces between them.
struct Hosts {
    helpers: [Helper; 2],
    link: [String; 2],
}

/// Runs a program that must succeed.
fn command(line: &str) {
    let mut words = line.split_whitespace();
    let status = Command::new(words.next().expect("a program")).args(words).status();
    assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{line}: {status:?}");
}

/// Runs a program in the network namespace of a helper.
fn within(helper: &Helper, line: &str) {
    command(&format!("nsenter -t {} -n {line}", helper.pid()));
}

impl Hosts {
    /// Starts both hosts with the helper `host`, the second one as a client of the first.
    fn new(number: u8) -> Self {
        let start = |part: &str| {
            let mut helper = Helper::through(&["unshare", "-n"], "host", &[("PERCALE_PART", part)], |_| {});
            assert_eq!(helper.receive_line(), "ready");
            helper
        };
        let helpers = [start("server"), start("client")];
        let link = [0, 1].map(|at| format!("pc{}{at}", helpers[0].pid()));
        let [server, client] = [helpers[0].pid(), helpers[1].pid()];
        let [left, right] = &link;
        command(&format!("ip link add {left} netns {server} type veth peer name {right} netns {client}"));
        for (at, helper) in helpers.iter().enumerate() {
            within(helper, "ip link set lo up");
            within(helper, &format!("ip addr add 10.77.{number}.{}/24 dev {}", at + 1, link[at]));
            within(helper, &format!("ip link set {} up", link[at]));
        }
        Self { helpers, link }
    }

    /// Opens both endpoints, and sends the address of each to the other.
    fn meet(&mut self) {
        let addresses = [0, 1].map(|at| {
            self.helpers[at].send_line("open");
            self.helpers[at].receive_line()
        });
        println!("{addresses:?}");
        self.helpers[0].send_line(&addresses[1]);
        self.helpers[1].send_line(&addresses[0]);
    }

    /// Cuts the link, or restores it.
    fn cut(&self, cut: bool) {
        within(&self.helpers[1], &format!("ip link set {} {}", self.link[1], if cut { "down" } else { "up" }));
    }
}

/// The peer timeout of these tests.
const PEER_TIMEOUT: Duration = Duration::from_secs(3);

/// The role of a host: a server that echoes, or a client that executes commands of the test.
pub(crate) fn host() {
    print_line("ready");
    drop(ask());
    // Bind to a wildcard, so that the advertised address must be that of the interface between the hosts.
    let open = open("any", "0.0.0.0:0", |domain| domain.peer_timeout(PEER_TIMEOUT));
    open.say_address();
    let peer = open.insert(&ask());
    if variable("PERCALE_PART") == "server" {
        open.echo();
    }
    for (number, len) in (1..).zip([8, 2048, 100_000]) {
        open.exchange(peer, number, len).expect("an echo of the other host");
    }
    let (transport, reason) = open.connected();
    print_line(&format!("{transport}: {reason}"));
    let mut number = 100;
    loop {
        let order = ask();
        number += 1;
        match order.as_str() {
            "exchange" => {
                let start = Instant::now();
                let result = open.exchange(peer, number, 1000);
                print_line(&match result {
                    Ok(()) => format!("exchanged after {:?}", start.elapsed()),
                    Err(error) => format!("failed after {:?}: {error}", start.elapsed()),
                });
            }
            "events" => {
                let mut all = Vec::new();
                while let Some(event) = open.events.read() {
                    all.push(format!("{event:?}"));
                }
                print_line(&all.join("; "));
            }
            _ => return,
        }
    }
}

/// Requirements: CON-008, CON-010.
fn peer_on_another_host_is_reached_by_tcp_with_a_reason(chosen: &str) {
    if !possible("two hosts", &["unshare", "nsenter", "ip"]) {
        return;
    }
    let _watchdog = Watchdog::new("two hosts");
    let mut hosts = Hosts::new(1);
    hosts.meet();
    let answer = hosts.helpers[1].receive_line();
    println!("{answer}");
    let reason = answer.strip_prefix(&format!("{chosen}: ")).expect("the other transport was chosen");
    assert!(!reason.is_empty());
    hosts.helpers[1].send_line("end");
}

/// Requirements: FLT-004.
fn long_partition_fails_operations_and_short_one_does_not(transport: &str) {
    if !possible("a partition", &["unshare", "nsenter", "ip"]) {
        return;
    }
    let _watchdog = Watchdog::new("a partition");
    let mut hosts = Hosts::new(2);
    hosts.meet();
    let answer = hosts.helpers[1].receive_line();
    assert!(answer.starts_with(transport), "{answer}");
    hosts.cut(true);
    hosts.helpers[1].send_line("exchange");
    std::thread::sleep(Duration::from_millis(700));
    hosts.cut(false);
    let answer = hosts.helpers[1].receive_line();
    println!("a short interruption: {answer}");
    assert!(answer.starts_with("exchanged"), "{answer}");
    hosts.cut(true);
    hosts.helpers[1].send_line("exchange");
    let answer = hosts.helpers[1].receive_line();
    println!("a long interruption: {answer}");
    assert!(answer.starts_with("failed"), "{answer}");
    hosts.helpers[1].send_line("events");
    let answer = hosts.helpers[1].receive_line();
    println!("{answer}");
    assert!(answer.contains("PeerDown"));
    hosts.cut(false);
    // The link works again. An attempt may still detect that the old connection has ended.
    let again = (0..20).any(|_| {
        hosts.helpers[1].send_line("exchange");
        let answer = hosts.helpers[1].receive_line();
        println!("mended: {answer}");
        answer.starts_with("exchanged")
    });
    assert!(again);
    hosts.helpers[1].send_line("end");
}

#[test]
fn long_messages_arrive_without_cma_permission() {
    if !possible("CMA forbidden", &[]) {
        return;
    }
    let _watchdog = Watchdog::new("CMA forbidden");
    let Some(program) = copy_for_all() else { return };
    let mut server = program.start("guarded", &[("PERCALE_FABRIC", "shm"), ("PERCALE_PART", "server")]);
    let mut client = program.start("guarded", &[("PERCALE_FABRIC", "shm"), ("PERCALE_PART", "client")]);
    let addresses = [server.receive_line(), client.receive_line()];
    server.send_line(&addresses[1]);
    client.send_line(&addresses[0]);
    let answer = client.receive_line();
    println!("{answer}");
    assert!(answer.starts_with("shm"), "{answer}");
    client.end();
}

/// The role of a process that other processes of the same user must not inspect.
pub(crate) fn guarded() {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).expect("not dumpable");
    let open = open_as_told();
    open.say_address();
    let peer = open.insert(&ask());
    if variable("PERCALE_PART") == "server" {
        open.echo();
    }
    for (number, len) in (1..).zip([8, 9000, 100_000, (1 << 20) + 3]) {
        open.exchange(peer, number, len).expect("an echo without CMA");
    }
    let (transport, reason) = open.connected();
    print_line(&format!("{transport}: {reason}"));
}
