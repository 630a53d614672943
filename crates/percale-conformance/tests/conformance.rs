//! Runs the suite on every transport. The tests of a transport are selected by its name: `cargo test -p
//! percale-conformance shm::rust`.

use percale::{CompletionQueue, Counter};
use percale_conformance::fabric::{Fabric, Loopback, Shm, Tcp, Verbs};
use percale_conformance::measure::{ResourceCounts, descriptors};
use percale_conformance::memory::content;
use percale_conformance::mesh::Mesh;
use percale_conformance::process::{play, print_line, variable};

mod conformance {
    include!(concat!(env!("OUT_DIR"), "/conformance.rs"));
}

/// Runs a helper role of this program.
#[test]
fn helper() {
    play(&[("open-and-close", open_and_close_as_told)]);
}

fn open_and_close_as_told() {
    match variable("PERCALE_FABRIC").as_str() {
        "loopback" => open_and_close::<Loopback>(),
        "shm" => open_and_close::<Shm>(),
        "tcp" => open_and_close::<Tcp>(),
        "verbs" => open_and_close::<Verbs>(),
        other => panic!("no fabric is named {other}"),
    }
}

/// Opens, uses and closes endpoints, and checks that no resources are leaked. The helper of the test
/// `opening_and_closing_leaks_nothing`.
fn open_and_close<F: Fabric>() {
    let cycle = |number: u64| {
        let mesh = Mesh::<F>::new(2);
        let (queue, counter) = (CompletionQueue::default(), Counter::new());
        queue.signal();
        counter.add(1);
        let receiving = mesh.endpoint(1).recv(vec![0; 64]).start().expect("a receive");
        mesh.inject(0, 1, None, &content(number, 64));
        assert_eq!(mesh.finish(receiving).expect("a message").to_vec(), content(number, 64));
    };
    // Create the objects that exist once per process. They are created by the first future that waits for a long time.
    let mesh = Mesh::<F>::new(1);
    let late = mesh.endpoint(0).recv(vec![0; 8]).start().expect("a receive");
    let mut late = std::pin::pin!(late);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for _ in 0..200 {
        assert!(late.as_mut().poll(&mut context).is_pending());
    }
    (0..3).for_each(cycle);
    let before = ResourceCounts::now();
    let cycles = if percale_conformance::long() { 1000 } else { 200 };
    (0..cycles).for_each(cycle);
    let after = ResourceCounts::settled(&before);
    let descriptors = descriptors();
    assert!(
        after.is_within(&before),
        "after {cycles} cycles {after:?} are held, before {before:?}; open are {descriptors:?}"
    );
    print_line(&format!("{cycles} cycles; held before {before:?}, after {after:?}"));
}
