//! A halo exchange: the cells of a ring are divided among four endpoints, and each step of a simulation needs the cells
//! at the edges of both neighbours. The receives for the next step are posted before the sends of this one, and all
//! buffers are used again.
//!
//! `cargo run -p percale --example halo_exchange`

use std::error::Error;
use std::thread;

use percale::{Endpoint, Info, PeerAddress};

const RANKS: usize = 4;
/// The number of cells of an endpoint, without the copies of its neighbours' cells.
const CELLS: usize = 1000;
const STEPS: u64 = 200;
/// The length of a message in bytes.
const BYTES: usize = size_of::<f64>();

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The tags of cells that travel to the left, and to the right. The step is in the upper bits.
const LEFT: u64 = 0;
const RIGHT: u64 = 1;

fn initial(cell: usize) -> f64 {
    (cell % 97) as f64
}

/// Returns the next values of cells, with the cells on both sides of them.
fn step(cells: &[f64], [low, high]: [f64; 2]) -> Vec<f64> {
    let near = |at: usize| cells.get(at).copied();
    let all = cells.iter().enumerate().map(|(at, cell)| {
        let (before, after) = (at.checked_sub(1).and_then(near).unwrap_or(low), near(at + 1).unwrap_or(high));
        before.mul_add(0.25, cell.mul_add(0.5, after * 0.25))
    });
    all.collect()
}

/// Computes the cells of one rank. The neighbours are those on the left and on the right.
fn run(endpoint: &Endpoint, rank: usize, [left, right]: [PeerAddress; 2]) -> Outcome<Vec<f64>> {
    let mut cells: Vec<f64> = (rank * CELLS..(rank + 1) * CELLS).map(initial).collect();
    let receive = |time: u64, buffers: [Vec<u8>; 2]| -> Outcome<_> {
        let [low, high] = buffers;
        let from_left = endpoint.tagged_recv(time << 1 | RIGHT, 0, low).from(left).start()?;
        Ok([from_left, endpoint.tagged_recv(time << 1 | LEFT, 0, high).from(right).start()?])
    };
    let mut edges = [vec![0; BYTES], vec![0; BYTES]];
    let mut spare = [vec![0; BYTES], vec![0; BYTES]];
    let mut receives = receive(0, spare)?;
    for time in 0..STEPS {
        let [mut low, mut high] = edges;
        low.copy_from_slice(&cells[0].to_ne_bytes());
        high.copy_from_slice(&cells[CELLS - 1].to_ne_bytes());
        let mut to_left = endpoint.tagged_send(left, time << 1 | LEFT, low).start()?;
        let mut to_right = endpoint.tagged_send(right, time << 1 | RIGHT, high).start()?;
        let [from_left, from_right] = &mut receives;
        let (low, high) = (from_left.wait()?.buffer.into_vec(), from_right.wait()?.buffer.into_vec());
        let around = [f64::from_ne_bytes(low[..].try_into()?), f64::from_ne_bytes(high[..].try_into()?)];
        spare = [low, high];
        receives = receive(time + 1, spare)?;
        cells = step(&cells, around);
        edges = [to_left.wait()?.into_vec(), to_right.wait()?.into_vec()];
    }
    // The receives for a step that does not take place are cancelled when they are dropped.
    Ok(cells)
}

fn main() -> Outcome<()> {
    // In a real program the endpoints would be in different processes, on one machine or many.
    let domain = Info::discover()?.best()?.open()?;
    let vector = domain.address_vector().build()?;
    let mut endpoints = Vec::new();
    for _ in 0..RANKS {
        endpoints.push(domain.endpoint().vector(&vector).bind("127.0.0.1:0")?);
    }
    let peers: Vec<PeerAddress> =
        endpoints.iter().map(|endpoint| vector.insert(endpoint.address())).collect::<Result<_, _>>()?;
    let around = |rank: usize| [peers[(rank + RANKS - 1) % RANKS], peers[(rank + 1) % RANKS]];
    let parallel = thread::scope(|scope| -> Outcome<Vec<f64>> {
        let ranks = endpoints.into_iter().enumerate();
        let ranks: Vec<_> =
            ranks.map(|(rank, endpoint)| scope.spawn(move || run(&endpoint, rank, around(rank)))).collect();
        let mut all = Vec::new();
        for rank in ranks {
            all.extend(rank.join().map_err(|_| "a rank panicked")??);
        }
        Ok(all)
    })?;
    let mut serial: Vec<f64> = (0..RANKS * CELLS).map(initial).collect();
    for _ in 0..STEPS {
        serial = step(&serial, [serial[serial.len() - 1], serial[0]]);
    }
    assert_eq!(parallel, serial, "the same operations in the same order give the same numbers");
    println!("{RANKS} endpoints computed {STEPS} steps of {} cells", serial.len());
    Ok(())
}
