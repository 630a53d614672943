//! A parameter broadcast: in each round one endpoint sends the parameters of a model to all others, each computes a
//! part of the gradient, and a reduction adds the parts up. Buffers are used again in each round.
//!
//! `cargo run -p percale --example parameter_broadcast`

use std::error::Error;
use std::thread;

use percale::{AddressSet, AtomicOp, Datatype, Endpoint, Info};

const MEMBERS: usize = 4;
const PARAMETERS: usize = 4096;
const ROUNDS: usize = 20;
/// The member that owns the parameters.
const ROOT: usize = 0;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes))
}

fn set(bytes: &mut [u8], numbers: impl Iterator<Item = f32>) {
    for (place, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
        *place = number.to_ne_bytes();
    }
}

/// Takes part in the training. Each member wants another value of the parameters, and the best ones are between these.
fn train(endpoint: &Endpoint, members: &AddressSet) -> Outcome<Vec<u8>> {
    let group = endpoint.join(members)?.wait()?;
    let wanted = group.rank() as f32;
    let (mut parameters, mut gradient) = (vec![0; PARAMETERS * 4], vec![0; PARAMETERS * 4]);
    for _ in 0..ROUNDS {
        parameters = group.broadcast(ROOT, parameters).wait()?.into_vec();
        set(&mut gradient, numbers(&parameters).map(|parameter| wanted - parameter));
        gradient = group.reduce(ROOT, AtomicOp::Sum, Datatype::F32, gradient).wait()?.into_vec();
        if group.rank() == ROOT {
            let rate = 0.5 / group.size() as f32;
            let next: Vec<f32> =
                numbers(&parameters).zip(numbers(&gradient)).map(|(old, by)| old + by * rate).collect();
            set(&mut parameters, next.into_iter());
        }
    }
    Ok(group.broadcast(ROOT, parameters).wait()?.into_vec())
}

fn main() -> Outcome<()> {
    // In a real program the endpoints would be in different processes, on one machine or many.
    let domain = Info::discover()?.best()?.open()?;
    let vector = domain.address_vector().build()?;
    let mut endpoints = Vec::new();
    for _ in 0..MEMBERS {
        endpoints.push(domain.endpoint().vector(&vector).bind("127.0.0.1:0")?);
    }
    let members: AddressSet =
        endpoints.iter().map(|endpoint| vector.insert(endpoint.address())).collect::<Result<_, _>>()?;
    let results = thread::scope(|scope| -> Outcome<Vec<Vec<u8>>> {
        let members = &members;
        let threads: Vec<_> =
            endpoints.into_iter().map(|endpoint| scope.spawn(move || train(&endpoint, members))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a member panicked")?).collect()
    })?;
    let best = (MEMBERS - 1) as f32 / 2.0;
    for parameters in &results {
        assert_eq!(parameters, &results[ROOT], "all members have the same parameters");
        assert!(numbers(parameters).all(|parameter| (parameter - best).abs() < 1e-3));
    }
    println!("{MEMBERS} members trained {PARAMETERS} parameters in {ROUNDS} rounds");
    Ok(())
}
