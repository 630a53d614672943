//! Measures the time of messages of device memory, compared to messages of host memory and to the driver's own copies.
//!
//! ```text
//! device_memory [--rounds 30] [--json]
//! ```
//!
//! One thread drives both endpoints. The figures are the time of one message from its posting to both completions, in
//! microseconds. Every round measures each of these cases:
//! * *host*: from host memory to host memory;
//! * *device*: from a device's memory to memory of the same device;
//! * *out* and *in*: from the device to the host, and from the host to the device;
//! * *copies*: the driver copies the same number of bytes to pinned memory of the host, waits, copies them back and
//!   waits. This is the minimum time of a message from device to device that is staged through the host.
//!
//! The received bytes are compared with the sent bytes once for each length and case. Runs on the machine's CUDA
//! driver, or on the library that `PERCALE_CUDA_LIBRARY` names.

use std::time::Instant;

use percale::OpFlags;
use percale::device::{Interface, Kind};
use percale_conformance::device::DeviceMemory;
use percale_conformance::fabric::{Fabric, Shm, Tcp};
use percale_conformance::memory::{Memory, content, same};
use percale_conformance::mesh::{Mesh, Receive, Send};

const LENGTHS: [usize; 7] = [8, 1 << 10, 8 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
const WAYS: [&str; 4] = ["host", "device", "out", "in"];

fn main() {
    let (mut rounds, mut json) = (30, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => json = true,
            "--rounds" => {
                let given = arguments.next().and_then(|text| text.parse().ok()).filter(|rounds| *rounds > 0);
                rounds = given.unwrap_or_else(|| wrong("--rounds takes a number from 1"));
            }
            _ => wrong(&format!("unknown argument {argument}")),
        }
    }
    let driver = Interface::Cuda.driver().unwrap_or_else(|error| wrong(&error.to_string()));
    let device = driver.describe(0).unwrap_or_else(|error| wrong(&error.to_string()));
    if !json {
        println!("{device}; {rounds} rounds; microseconds, medians (least to 9 in 10)");
        let columns: String = WAYS.into_iter().chain(["copies"]).map(|way| format!("  {way:>30}")).collect();
        println!("{:<4} {:>8}{columns}", "", "bytes");
    }
    measure::<Shm>(rounds, json);
    measure::<Tcp>(rounds, json);
}

fn wrong(why: &str) -> ! {
    eprintln!("device_memory: {why}; usage: device_memory [--rounds N] [--json]");
    std::process::exit(2);
}

/// Measures all lengths over one transport.
fn measure<F: Fabric>(rounds: usize, json: bool) {
    let mesh = Mesh::<F>::connected(2);
    for (number, len) in (1..).zip(LENGTHS) {
        let bytes = content(number, len);
        let host = (Memory::of(&bytes), Memory::blank(len));
        let device = (DeviceMemory::on_device(&bytes), DeviceMemory::blank(len));
        let pinned = DeviceMemory::of(Kind::Pinned, 0, &vec![0; len]);
        let send = |way: usize| match way {
            0 | 3 => Send::of(host.0),
            _ => Send::vector(device.0.segments()).with(OpFlags::DEVICE),
        };
        let receive = |way: usize| match way {
            0 | 2 => Receive::into(host.1),
            _ => Receive::vector(device.1.segments()).with(OpFlags::DEVICE),
        };
        let mut times = [const { Vec::new() }; WAYS.len() + 1];
        for round in 0..=rounds {
            for (way, times) in times.iter_mut().enumerate() {
                let begin = Instant::now();
                if way < WAYS.len() {
                    let received = mesh.receive(1, receive(way));
                    mesh.all_done([mesh.send(0, 1, send(way)), received]);
                } else {
                    device.0.copy_to_pinned(pinned);
                    device.1.copy_from_pinned(pinned);
                }
                // The first message of each kind is not counted: it connects, pins and allocates.
                if round > 0 {
                    times.push(begin.elapsed().as_secs_f64() * 1e6);
                    continue;
                }
                match way {
                    0 | 2 => same(&host.1.read(), &bytes, WAYS[way]),
                    _ => same(&device.1.read(), &bytes, "the device's memory"),
                }
                device.1.write(&vec![0; len]);
            }
        }
        let figures = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            [times[times.len() / 2], times[0], times[times.len() * 9 / 10]]
        });
        print_row(F::NAME, len, &figures, json);
        device.0.free();
        device.1.free();
        pinned.free();
    }
}

fn print_row(transport: &str, len: usize, figures: &[[f64; 3]], json: bool) {
    let names = WAYS.into_iter().chain(["copies"]);
    if json {
        let field = |(name, [median, least, most]): (&str, &[f64; 3])| {
            format!("\"{name}\":{{\"median\":{median:.3},\"least\":{least:.3},\"p90\":{most:.3}}}")
        };
        let fields: Vec<_> = names.zip(figures).map(field).collect();
        println!("{{\"transport\":\"{transport}\",\"bytes\":{len},{}}}", fields.join(","));
        return;
    }
    let shown =
        |[median, least, most]: &[f64; 3]| format!("  {:>30}", format!("{median:.1} ({least:.1} to {most:.1})"));
    let row: String = figures.iter().map(shown).collect();
    println!("{transport:<4} {len:>8}{row}");
}
