//! More outstanding messages between two processes than either can buffer.

use std::sync::Arc;

use percale_conformance::memory::{content, same};
use percale_conformance::peers::open_as_told;
use percale_conformance::process::{Helper, ask, print_line, variable};
use percale_conformance::watchdog::Watchdog;

crate::on!(shm, tcp: { two_processes_send_a_thousand_long_messages_before_either_receives });

const COUNT: u64 = 1000;
const LEN: usize = 1 << 20;

/// Each process reports that it has posted all sends before either posts a receive.
///
/// Requirements: MSG-014.
fn two_processes_send_a_thousand_long_messages_before_either_receives(transport: &str) {
    let _watchdog = Watchdog::new("two processes send a thousand long messages before either receives");
    let mut both =
        ["0", "1"].map(|number| Helper::start("flood", &[("PERCALE_FABRIC", transport), ("PERCALE_NUMBER", number)]));
    let addresses = both.each_mut().map(Helper::receive_line);
    both[0].send_line(&addresses[1]);
    both[1].send_line(&addresses[0]);
    for step in ["posted", "received", "sent"] {
        for helper in &mut both {
            assert_eq!(helper.receive_line(), step);
        }
        both.iter_mut().for_each(|helper| helper.send_line("go on"));
    }
    both.into_iter().for_each(Helper::end);
}

/// The role of one of the two processes. All messages of one side use one buffer, and are numbered by their tags.
pub(crate) fn flood() {
    let open = open_as_told();
    open.say_address();
    let peer = open.insert(&ask());
    let me: u64 = variable("PERCALE_NUMBER").parse().expect("a number");
    let bytes: Arc<[u8]> = content(me, LEN).into();
    let post = |tag| open.endpoint.tagged_send(peer, tag, Arc::clone(&bytes)).start().expect("a send");
    let sends: Vec<_> = (0..COUNT).map(post).collect();
    print_line("posted");
    let asking = std::thread::spawn(ask);
    open.until(|| asking.is_finished());
    let theirs = content(1 - me, LEN);
    for tag in 0..COUNT {
        let got = open.endpoint.tagged_recv(tag, 0, vec![0; LEN]).wait().expect("a message");
        same(&got.to_vec(), &theirs, &format!("message {tag} to process {me}"));
    }
    print_line("received");
    let asking = std::thread::spawn(ask);
    open.until(|| asking.is_finished());
    sends.into_iter().for_each(|sending| drop(sending.wait().expect("a send")));
    print_line("sent");
    drop(ask());
}
