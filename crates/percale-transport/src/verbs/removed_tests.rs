//! Tests of devices that are removed. The tests create the devices in a virtual machine. Outside of it each test prints
//! that it is skipped.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::tests::wires;
use super::*;

/// A soft-RoCE device over a separate interface.
struct Device {
    name: String,
    interface: String,
}

fn command(words: &str) -> Command {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words);
    command
}

impl Device {
    fn new(number: u8) -> Option<Self> {
        if std::env::var_os("PERCALE_GUEST").is_none() {
            println!("skipped (guest): devices are created and removed there (cargo xtask guest)");
            return None;
        }
        let (name, interface) = (format!("rxe{number}"), format!("soft{number}"));
        for words in [
            format!("ip link add {interface} type dummy"),
            format!("ip addr add 10.9.{number}.1/24 dev {interface}"),
            format!("ip link set {interface} up"),
            format!("rdma link add {name} type rxe netdev {interface}"),
        ] {
            assert!(command(&words).status().expect("a program of the guest").success(), "{words}");
        }
        Some(Self { name, interface })
    }

    fn adapter(&self) -> Arc<Adapter> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            match Adapter::of_device(&self.name) {
                Ok(adapter) => return adapter,
                Err(why) => assert!(Instant::now() < deadline, "{why}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Sends a byte and receives it, or returns the error of the connection. Panics if this takes longer than a minute.
fn exchange(one: &mut Wire, two: &mut Wire) -> Result<(), Broken> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut sent, mut byte) = (false, [0]);
    loop {
        one.look();
        two.look();
        sent = sent || one.write_one(&[7]) == Ok(1);
        if two.read_one(&mut byte) == Ok(1) {
            assert!(sent && byte == [7]);
            return Ok(());
        }
        _ = one.read_one(&mut [0]);
        if let Some(why) = one.failure().or(two.failure()) {
            return Err(why.clone());
        }
        assert!(Instant::now() < deadline, "neither a byte nor an error");
    }
}

/// Waits up to a minute for a program to exit. Returns whether the program has exited.
fn ends(child: &mut Child) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if child.try_wait().expect("a child").is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Sends a byte while a deletion is in progress, and prints the result.
fn use_during(delete: &mut Child, adapter: &Adapter, one: &mut Wire, two: &mut Wire) {
    std::thread::sleep(Duration::from_millis(500));
    let waits = delete.try_wait().expect("a child").is_none();
    let used = exchange(one, two);
    println!(
        "the deletion waits: {waits}; a byte meanwhile: {used:?}; the device: {:?}",
        adapter.domain().context().lost()
    );
}

/// The removal of a device waits for the processes that have it open, unless its driver does not require that. Both
/// sides make progress.
///
/// Requirements: FLT-001.
#[test]
fn device_removal_does_not_hang_connections() {
    let Some(device) = Device::new(91) else { return };
    let adapter = device.adapter();
    let (mut one, mut two) = wires(&adapter);
    exchange(&mut one, &mut two).expect("the exchange");
    let mut delete = command(&format!("rdma link delete {}", device.name)).spawn().expect("a program of the guest");
    use_during(&mut delete, &adapter, &mut one, &mut two);
    let made = Wire::new(&adapter).map(|wire| wire.ours());
    println!("a queue pair meanwhile: {made:?}");
    drop((one, two, adapter));
    assert!(ends(&mut delete), "the device still exists although it is not open");
    assert!(delete.wait().expect("the command has ended").success());
    assert!(Adapter::of_device(&device.name).is_err(), "the device is removed");
    assert!(command(&format!("ip link delete {}", device.interface)).status().expect("a program").success());
}

/// The interface of the device is removed, so that no packet can be sent any more.
///
/// Requirements: FLT-001.
#[test]
fn interface_removal_does_not_hang_connections() {
    let Some(device) = Device::new(92) else { return };
    let adapter = device.adapter();
    let (mut one, mut two) = wires(&adapter);
    exchange(&mut one, &mut two).expect("the exchange");
    let mut delete = command(&format!("ip link delete {}", device.interface)).spawn().expect("a program of the guest");
    use_during(&mut delete, &adapter, &mut one, &mut two);
    drop((one, two, adapter));
    assert!(ends(&mut delete), "the device still exists although it is not open");
}
