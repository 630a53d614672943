//! Operations with buffers of a pool.

use percale::{Access, Buffer, BufferPool};

use crate::fabric::{Fabric, Transport};
use crate::memory::{content, same};
use crate::mesh::Mesh;

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// Creates a pool of an endpoint's domain.
fn pool<F: Fabric>(mesh: &Mesh<F>, number: usize, count: usize, len: usize) -> BufferPool {
    mesh.test_endpoint(number).domain.buffer_pool(count, len).expect("a pool")
}

/// Takes a buffer with these bytes.
fn filled(pool: &BufferPool, bytes: &[u8]) -> Buffer {
    let mut buffer = pool.take().expect("a free buffer");
    assert_eq!(buffer.copy_from(0, bytes), bytes.len());
    buffer.truncate(bytes.len());
    buffer
}

/// Waits until all buffers have returned.
fn all_return<F: Fabric>(mesh: &Mesh<F>, pool: &BufferPool) {
    mesh.until(|| (pool.available() == pool.capacity()).then_some(()));
}

/// Messages of every length are sent from and received into buffers of a pool, which return when they are dropped.
///
/// Requirements: MSG-001, RES-011.
pub fn messages_use_buffers_of_a_pool<F: Transport>() {
    let mesh = Mesh::<F>::new(2);
    let (sources, targets) = (pool(&mesh, 0, 2, F::BULK + 5), pool(&mesh, 1, 2, F::BULK + 5));
    for (round, len) in (1_u64..).zip([0, 8, 48, 600, 5000, 70_000.min(F::BULK), F::BULK + 5]) {
        let bytes = content(round, len);
        let receiving = mesh.endpoint(1).recv(targets.take().expect("a buffer")).start().expect("a receive");
        let sending = mesh.endpoint(0).send(mesh.peer(1), filled(&sources, &bytes)).start().expect("a send");
        assert_eq!((sources.available(), targets.available()), (1, 1));
        let got = mesh.finish(receiving).expect("a message");
        let back = mesh.finish(sending).expect("the send");
        same(&got.to_vec(), &bytes, "the message");
        same(&back.into_vec(), &bytes, "the source");
        drop(got);
        assert_eq!((sources.available(), targets.available()), (2, 2));
    }
}

/// Peers' memory is read into and written from buffers of a pool, and a buffer of a pool can be a region.
///
/// Requirements: RMA-001, RMA-002, RES-011.
pub fn accesses_use_buffers_of_a_pool<F: Fabric>() {
    let mesh = Mesh::<F>::new(2);
    let (local, remote) = (pool(&mesh, 0, 3, 100_000), pool(&mesh, 1, 2, 100_000));
    // The second buffer of the pool, so that the region does not start where the allocation starts.
    let (first, second) = (remote.take().expect("a buffer"), remote.take().expect("a buffer"));
    let region = mesh.test_endpoint(1).domain.register(second, ALL).expect("a region");
    drop(first);
    for round in 1..4 {
        for len in [8, 300, 20_000, 100_000] {
            let bytes = content(round, len);
            let name = region.remote().at(..len as u64);
            let write = mesh.endpoint(0).write(mesh.peer(1), filled(&local, &bytes), name);
            drop(mesh.finish(write).expect("a write"));
            let mut target = local.take().expect("a buffer");
            target.truncate(len);
            let got = mesh.finish(mesh.endpoint(0).read(mesh.peer(1), name, target)).expect("a read");
            same(&got.into_vec(), &bytes, "the bytes that were read");
            assert_eq!(local.available(), 3);
        }
    }
    assert_eq!(remote.available(), 1);
    drop(region.close().expect("the region's buffer"));
    assert_eq!(remote.available(), 2);
}

/// A buffer whose operation was dropped returns when the operation no longer uses it, and not before. An endpoint that
/// is closed returns the buffers of all its operations.
///
/// Requirements: RES-010, RES-011.
pub fn buffers_of_dropped_operations_return_to_their_pool<F: Transport>() {
    let mut mesh = Mesh::<F>::connected(2);
    let (sources, targets) = (pool(&mesh, 0, 3, F::BULK), pool(&mesh, 1, 3, F::BULK));
    let bytes = content(1, F::BULK);

    // A receive that nothing has matched.
    drop(mesh.endpoint(1).tagged_recv(9, 0, targets.take().expect("a buffer")).start().expect("a receive"));
    all_return(&mesh, &targets);

    // The handle of a long send is dropped before the peer has received the message, but after a part was passed to the
    // peer. The message is still delivered, with the bytes that the buffer had.
    drop(mesh.endpoint(0).tagged_send(mesh.peer(1), 1, filled(&sources, &bytes)).start().expect("a send"));
    let taken: Vec<Buffer> = std::iter::from_fn(|| sources.take()).collect();
    for mut buffer in taken {
        buffer.copy_from(0, &vec![0xee; F::BULK]);
    }
    let got = mesh.finish(mesh.endpoint(1).tagged_recv(1, 0, targets.take().expect("a buffer"))).expect("a message");
    same(&got.to_vec(), &bytes, "the message");
    drop(got);
    all_return(&mesh, &sources);
    all_return(&mesh, &targets);

    // A send that no receive matches, from an endpoint that is closed.
    drop(mesh.endpoint(0).tagged_send(mesh.peer(1), 2, filled(&sources, &bytes)).start().expect("a send"));
    mesh.close(0);
    if !F::ALONE {
        all_return(&mesh, &sources);
    }
}

/// The pool is dropped before an operation that uses one of its buffers has ended.
///
/// Requirements: RES-010, RES-011.
pub fn operations_outlive_the_pool_of_their_buffers<F: Transport>() {
    let mesh = Mesh::<F>::new(2);
    let bytes = content(2, F::BULK);
    let (sources, targets) = (pool(&mesh, 0, 2, F::BULK), pool(&mesh, 1, 1, F::BULK));
    let receiving = mesh.endpoint(1).recv(targets.take().expect("a buffer")).start().expect("a receive");
    let sending = mesh.endpoint(0).send(mesh.peer(1), filled(&sources, &bytes)).start().expect("a send");
    drop((sources, targets));
    let got = mesh.finish(receiving).expect("a message");
    same(&got.to_vec(), &bytes, "the message");
    drop(mesh.finish(sending).expect("the send"));
    drop(got);
}
