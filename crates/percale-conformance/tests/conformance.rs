//! The suite on every transport. A test is found by its transport: `cargo test -p percale-conformance shm::rust`.

mod conformance {
    percale_conformance::conformance!(loopback, percale_conformance::fabric::Loopback, alone);
    percale_conformance::conformance!(shm, percale_conformance::fabric::Shm, direct);
    percale_conformance::conformance!(untrusting, percale_conformance::fabric::Untrusting, remote);
    percale_conformance::conformance!(bounced, percale_conformance::fabric::Bounced, remote);
    percale_conformance::conformance!(tcp, percale_conformance::fabric::Tcp);
    percale_conformance::conformance!(verbs, percale_conformance::fabric::Verbs, direct);
    percale_conformance::conformance!(sim, percale_conformance::fabric::Sim, simulated);
}

/// The other role of this program.
#[test]
fn helper() {
    percale_conformance::process::play(&[("open-and-close", open_and_close)]);
}

fn open_and_close() {
    use percale_conformance::fabric::{Loopback, Shm, Tcp, Verbs};
    use percale_conformance::suite::waiting::open_and_close;
    match percale_conformance::process::told("PERCALE_FABRIC").as_str() {
        "loopback" => open_and_close::<Loopback>(),
        "shm" => open_and_close::<Shm>(),
        "tcp" => open_and_close::<Tcp>(),
        "verbs" => open_and_close::<Verbs>(),
        other => panic!("no fabric is named {other}"),
    }
}
