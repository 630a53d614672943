//! A work queue on compare-and-swap: workers take items from a queue in the memory of a coordinator, and write their
//! results there. The coordinator only makes progress.
//!
//! The queue consists of a word with the number of the next item, the items, and the results. A worker that swaps the
//! number for the next one has the item.
//!
//! `cargo run -p percale --example work_queue`

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use percale::{Access, Endpoint, Info, PeerAddress, RemoteMemory};

const ITEMS: u64 = 400;
const WORKERS: usize = 3;
const WORD: u64 = 8;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Returns the offsets of an item and of its result.
const fn places(item: u64) -> (u64, u64) {
    (WORD + item * WORD, WORD + (ITEMS + item) * WORD)
}

/// Returns the number of steps until the Collatz sequence of a number reaches 1.
fn work(mut number: u64) -> u64 {
    let mut steps = 0;
    while number > 1 {
        number = if number.is_multiple_of(2) { number / 2 } else { 3 * number + 1 };
        steps += 1;
    }
    steps
}

/// Takes items until there are no more. Returns how many this worker has taken.
fn worker(endpoint: &Endpoint, coordinator: PeerAddress, queue: RemoteMemory) -> Outcome<u64> {
    let word = |at: u64| queue.slice(at..at + WORD);
    let (mut next, mut taken) = (0_u64, 0);
    let mut buffer = vec![0; WORD as usize];
    while next < ITEMS {
        let found = endpoint.compare_swap(coordinator, word(0)?, next, next + 1).wait()?;
        if found != next {
            next = found; // Another worker was faster.
            continue;
        }
        let (item, result) = places(next);
        buffer = endpoint.read(coordinator, word(item)?, buffer).wait()?.into_vec();
        let steps = work(u64::from_ne_bytes(buffer[..].try_into()?));
        buffer.copy_from_slice(&steps.to_ne_bytes());
        buffer = endpoint.write(coordinator, buffer, word(result)?).wait()?.into_vec();
        (next, taken) = (next + 1, taken + 1);
    }
    Ok(taken)
}

fn main() -> Outcome<()> {
    // In a real program the coordinator and the workers would be different processes, on one machine or many.
    let domain = Info::discover()?.best()?.open()?;
    let vector = domain.address_vector().build()?;
    let coordinator = domain.endpoint().bind("127.0.0.1:0")?;
    let peer = vector.insert(coordinator.address())?;
    let memory = domain.allocate((WORD + 2 * ITEMS * WORD) as usize)?;
    let mut queue = domain.register(memory, Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
    for item in 0..ITEMS {
        queue.write(places(item).0 as usize, &(item + 1000).to_ne_bytes());
    }
    let name = queue.remote();
    let over = AtomicBool::new(false);
    let taken = thread::scope(|scope| -> Outcome<Vec<u64>> {
        let over = &over;
        let progress = scope.spawn(move || {
            while !over.load(Ordering::Acquire) {
                coordinator.progress();
            }
        });
        let run = || {
            let endpoint = domain.endpoint().vector(&vector).bind("127.0.0.1:0")?;
            worker(&endpoint, peer, name)
        };
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(run)).collect();
        let taken = workers.into_iter().map(|worker| worker.join().map_err(|_| "a worker panicked")?).collect();
        over.store(true, Ordering::Release);
        progress.join().map_err(|_| "the coordinator panicked")?;
        taken
    })?;
    assert_eq!(taken.iter().sum::<u64>(), ITEMS, "each item is taken once");
    for item in 0..ITEMS {
        let mut result = [0; WORD as usize];
        queue.read(places(item).1 as usize, &mut result);
        assert_eq!(u64::from_ne_bytes(result), work(item + 1000));
    }
    println!("the workers took {taken:?} of {ITEMS} items");
    Ok(())
}
