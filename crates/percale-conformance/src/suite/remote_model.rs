//! Random sequences of one-sided operations, compared with a simple model: an array of bytes.
//!
//! Up to six operations are outstanding at a time. Accesses to the same bytes take effect in posting order, so the
//! result of each is determined by the earlier ones.

use std::collections::VecDeque;

use percale::endpoint::Owned;
use percale::endpoint::safe::{Operation, Outcome};
use percale::{Access, Allocation, AtomicOp, Buffer, RemoteMemory};

use crate::fabric::Fabric;
use crate::memory::same;
use crate::mesh::Mesh;
use crate::random::{Random, seed};

/// The maximum number of outstanding operations.
const DEPTH: usize = 6;

/// The length of the region.
const ROOM: usize = 64 << 10;

/// Lengths of reads and writes.
const LENS: [usize; 10] = [0, 1, 8, 13, 64, 500, 2048, 2500, 16 << 10, 40_000];

/// An outstanding operation, and its expected result.
enum UnderWay<'e> {
    Bytes(Operation<&'e Owned, Buffer>, Vec<u8>),
    Word(Operation<&'e Owned, u64>, u64),
    Half(Operation<&'e Owned, i32>, i32),
}

/// Waits for the oldest operation.
fn settle<F: Fabric>(mesh: &Mesh<F>, oldest: UnderWay<'_>) {
    fn finish<F: Fabric, R: Outcome>(mesh: &Mesh<F>, operation: Operation<&Owned, R>) -> R {
        mesh.finish(operation).unwrap_or_else(|error| panic!("an operation failed: {error}"))
    }
    match oldest {
        UnderWay::Bytes(operation, wanted) => same(&finish(mesh, operation).into_vec(), &wanted, "the buffer"),
        UnderWay::Word(operation, wanted) => {
            assert_eq!(finish(mesh, operation), wanted, "the previous value of the word")
        }
        UnderWay::Half(operation, wanted) => {
            assert_eq!(finish(mesh, operation), wanted, "the previous value of the half word")
        }
    }
}

fn word(model: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(model[at..at + 8].try_into().expect("eight bytes"))
}

/// Executes one operation in the model, and starts it.
fn start<'e, F: Fabric>(
    mesh: &'e Mesh<F>,
    random: &mut Random,
    remote: RemoteMemory,
    model: &mut [u8],
) -> UnderWay<'e> {
    let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
    let part = |at: usize, len: usize| remote.at(at as u64..(at + len) as u64);
    // There are only a few words, so that operations often use the same one.
    let at = random.below(16) * 8;
    match random.below(8) {
        kind @ 0..4 => {
            let len = LENS[random.below(LENS.len())];
            let at = if random.below(2) == 0 { random.below(200) } else { random.below(ROOM - len) };
            if kind < 2 {
                let mut bytes = vec![0; len];
                random.fill(&mut bytes);
                model[at..at + len].copy_from_slice(&bytes);
                let write = a.write(peer, bytes.clone(), part(at, len)).start().expect("a write");
                return UnderWay::Bytes(write, bytes);
            }
            let wanted = model[at..at + len].to_vec();
            UnderWay::Bytes(a.read(peer, part(at, len), vec![0; len]).start().expect("a read"), wanted)
        }
        4 => {
            let (before, value) = (word(model, at), random.next());
            model[at..at + 8].copy_from_slice(&before.wrapping_add(value).to_ne_bytes());
            UnderWay::Word(a.fetch_add(peer, part(at, 8), value).start().expect("an add"), before)
        }
        5 => {
            let (before, new) = (word(model, at), random.next());
            let expected = if random.below(2) == 0 { before } else { new };
            if before == expected {
                model[at..at + 8].copy_from_slice(&new.to_ne_bytes());
            }
            UnderWay::Word(a.compare_swap(peer, part(at, 8), expected, new).start().expect("a swap"), before)
        }
        6 => {
            let before = i32::from_ne_bytes(model[at..at + 4].try_into().expect("four bytes"));
            let value = random.next() as i32;
            model[at..at + 4].copy_from_slice(&before.max(value).to_ne_bytes());
            let max = a.fetch_atomic(peer, AtomicOp::Max, part(at, 4), value).start().expect("a maximum");
            UnderWay::Half(max, before)
        }
        _ => {
            let before = word(model, at);
            let read = a.fetch_atomic(peer, AtomicOp::Read, part(at, 8), 0_u64).start().expect("an atomic read");
            UnderWay::Word(read, before)
        }
    }
}

/// Random operations have the same effect as on an array. With `PERCALE_LONG`, there are a million of them for each
/// kind of memory.
///
/// Requirements: RMA-011.
pub fn random_accesses_match_the_model<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let count = if crate::long() { 1_000_000 } else { 3000 };
    let mut allocation: Allocation = mesh.test_endpoint(1).domain.allocate(ROOM).expect("memory");
    allocation.fill(0);
    for memory in [Buffer::from(vec![0; ROOM]), Buffer::from(allocation)] {
        let mut random = Random::new(seed());
        let mut model = vec![0; ROOM];
        let region = mesh.test_endpoint(1).domain.register(memory, Access::REMOTE_READ | Access::REMOTE_WRITE);
        let region = region.expect("a region");
        let mut under_way = VecDeque::new();
        for _ in 0..count {
            under_way.push_back(start(&mesh, &mut random, region.remote(), &mut model));
            if under_way.len() > DEPTH {
                settle(&mesh, under_way.pop_front().expect("at least one operation"));
            }
        }
        under_way.into_iter().for_each(|operation| settle(&mesh, operation));
        same(&region.close().expect("no access is in progress").into_vec(), &model, "the region");
    }
}
