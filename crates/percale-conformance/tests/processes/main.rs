//! Tests with several processes: faults, hostile peers, one-sided operations, other hosts and users, resources.
//!
//! Helpers are processes of this program in another role. They are started, signalled and killed by their process IDs.
//! A test that needs root or a missing program prints a message and is skipped.

mod collectives;
mod connected;
mod contexts;
mod cut;
mod denied;
mod disconnect;
mod discovery;
mod endless;
mod environment;
mod faults;
mod flood;
mod hostile;
mod inherited;
mod inherited_calls;
mod inherited_list;
mod inherited_objects;
mod inherited_posts;
mod interfaces;
mod named;
mod onesided;
mod resources;
mod ring;
mod searched;
mod sockets;
mod strangers;
mod unmapped;

use percale_conformance::peers;

/// Makes tests of functions that take the name of a transport, in a module for each transport. If the transport is not
/// available, a test prints the reason why it is skipped.
macro_rules! on {
    ($($transport:ident),+: $names:tt) => {
        $($crate::on!(@one $transport $names);)+
    };
    (@one $transport:ident { $($name:ident),+ $(,)? }) => {
        mod $transport {
            mod rust {
                $(
                    #[test]
                    fn $name() {
                        match percale_conformance::peers::missing(stringify!($transport)) {
                            Some(why) => println!("skipped (RDMA): no {} here: {why}", stringify!($transport)),
                            None => super::super::$name(stringify!($transport)),
                        }
                    }
                )+
            }
        }
    };
}
pub(crate) use on;

/// Runs a helper role of this program.
#[test]
fn helper() {
    percale_conformance::process::play(&[
        ("silent", peers::silent),
        ("sink", peers::sink),
        ("echo", peers::echo),
        ("farewell", peers::farewell),
        ("summand", collectives::summand),
        ("exchanger", collectives::exchanger),
        ("rejoiner", collectives::rejoiner),
        ("server", connected::server),
        ("client", connected::client),
        ("silent-listener", connected::silent_listener),
        ("caller", contexts::caller),
        ("denied", denied::denied),
        ("forker", faults::forker),
        ("executor", faults::executor),
        ("fork-calls", faults::fork_calls),
        ("exhaust", faults::exhaust),
        ("scribbler", hostile::scribbler),
        ("parent", inherited::parent),
        ("inherited-calls", inherited_calls::parent),
        ("inherited-objects", inherited_objects::parent),
        ("inherited-posts", inherited_posts::parent),
        ("vector-holder", named::holder),
        ("vector-churner", named::churner),
        ("vector-reader", named::reader),
        ("vector-resident", named::resident),
        ("endured", endless::endured),
        ("babbler", endless::babbler),
        ("flood", flood::flood),
        ("lazy", sockets::lazy),
        ("ring", percale_conformance::ring::ring),
        ("switch", percale_conformance::ring::switch),
        ("cycles", resources::cycles),
        ("hub", resources::hub),
        ("spokes", resources::spokes),
        ("all-to-all", resources::all_to_all),
        ("by-name", environment::by_name),
        ("host", environment::host),
        ("by-name-to", environment::by_name_to),
        ("info", discovery::info),
        ("bound", interfaces::bound),
        ("guarded", environment::guarded),
        ("attacker", onesided::attacked::attacker),
        ("writer", onesided::revocation::writer),
        ("window-owner", onesided::forked::window_owner),
        ("window-writer", onesided::windows::window_writer),
        ("refusing", onesided::refused::target),
        ("adder", onesided::words::adder),
        ("unbacked", onesided::unbacked::target),
        ("curious", onesided::disclosed::curious),
        ("survivor", onesided::deaths::survivor),
        ("victim", onesided::deaths::victim),
    ]);
}
