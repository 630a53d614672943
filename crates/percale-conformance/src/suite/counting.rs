//! Counters for kinds of operations: operations that an endpoint starts, messages that it receives, and accesses of
//! peers to its regions.

use percale::{
    Access, Allocation, Buffer, CompletionFlags, Counter, EndpointBuilder, ErrorCode, OpFlags, RemoteMemory, Segments,
};

use crate::fabric::{Fabric, Transport};
use crate::memory::{Memory, content};
use crate::mesh::{Mesh, Receive, Send};

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// A counter for each kind.
#[derive(Debug, Default)]
struct Kinds {
    sends: Counter,
    receives: Counter,
    reads: Counter,
    writes: Counter,
    remote_reads: Counter,
    remote_writes: Counter,
}

impl Kinds {
    /// Makes an initiator (endpoint 0) and a target (endpoint 1) with these counters. On a transport where an endpoint
    /// can reach only itself, both are the same endpoint.
    fn mesh<F: Fabric>(&self) -> Mesh<F> {
        Mesh::with(2, |domain| domain, |number, endpoint| self.bind::<F>(number, endpoint))
    }

    fn bind<'d, F: Fabric>(&self, number: usize, mut endpoint: EndpointBuilder<'d>) -> EndpointBuilder<'d> {
        if number == 0 {
            endpoint = endpoint.send_counter(&self.sends).read_counter(&self.reads).write_counter(&self.writes);
        }
        if number == 1 || F::ALONE {
            endpoint = endpoint.receive_counter(&self.receives);
            endpoint = endpoint.remote_read_counter(&self.remote_reads).remote_write_counter(&self.remote_writes);
        }
        endpoint
    }

    /// Returns the initiator's counts of sends, receives, reads and writes, and the target's counts.
    fn values(&self) -> [u64; 6] {
        let all = [&self.sends, &self.receives, &self.reads, &self.writes, &self.remote_reads, &self.remote_writes];
        all.map(|counter| counter.value())
    }

    fn errors(&self) -> [u64; 6] {
        let all = [&self.sends, &self.receives, &self.reads, &self.writes, &self.remote_reads, &self.remote_writes];
        all.map(|counter| counter.read_error())
    }

    /// Drives all endpoints until the counters have these values, and then checks that the values do not change.
    #[track_caller]
    fn come_to<F: Fabric>(&self, mesh: &Mesh<F>, values: [u64; 6], what: &str) {
        mesh.until(|| {
            let now = self.values();
            (now.iter().zip(&values).all(|(now, then)| now >= then)).then_some(())
        });
        mesh.turns(20);
        assert_eq!(self.values(), values, "{what}");
    }
}

/// Returns memory that peers may map, and other memory.
fn memories<F: Fabric>(mesh: &Mesh<F>, len: usize) -> [Buffer; 2] {
    let allocation: Allocation = mesh.test_endpoint(1).domain.allocate(len).expect("memory");
    [Buffer::from(vec![0; len]), Buffer::from(allocation)]
}

/// Splits memory into two pieces.
fn cut(memory: Memory, at: usize) -> Segments {
    let all = memory.segments();
    let pieces = [all.slice(0, at), all.slice(at, usize::MAX)].map(|part| part.as_slice()[0]);
    Segments::new(&pieces).expect("two pieces")
}

/// Messages count only as sends and receives. Peeks do not count. Failures increment the error values of their kinds.
///
/// Requirements: CMP-017.
pub fn messages_are_counted_by_their_kind<F: Transport>() {
    let kinds = Kinds::default();
    let mesh = kinds.mesh::<F>();
    let target = Memory::blank(20_000);
    let mut count = 0;
    for (tag, len) in [8, 3000, 20_000].into_iter().enumerate() {
        for tag in [None, Some(tag as u64)] {
            let receive = Receive::into(target).silent();
            mesh.receive(1, if let Some(tag) = tag { receive.tag(tag, 0) } else { receive });
            let send = Send::of(Memory::content(1, len)).silent();
            mesh.send(0, 1, if let Some(tag) = tag { send.tag(tag) } else { send });
            count += 1;
            kinds.come_to(&mesh, [count, count, 0, 0, 0, 0], "messages");
        }
    }
    mesh.inject(0, 1, Some(77), b"to be looked at");
    count += 1;
    let peek = || mesh.receive(1, Receive::peek(OpFlags::PEEK).tag(77, 0));
    mesh.until(|| mesh.report(peek()).ok());
    mesh.failed(mesh.receive(1, Receive::peek(OpFlags::PEEK).tag(78, 0)));
    kinds.come_to(&mesh, [count, count - 1, 0, 0, 0, 0], "an injected message, peeked");
    mesh.done(mesh.receive(1, Receive::into(target).tag(77, 0)));
    let cancelled = mesh.receive(1, Receive::into(target));
    assert!(mesh.endpoint(1).cancel(cancelled));
    mesh.failed(cancelled);
    kinds.come_to(&mesh, [count, count, 0, 0, 0, 0], "the message, and a receive that was cancelled");
    assert_eq!(kinds.errors(), [0, 1, 0, 0, 0, 0]);
}

/// An access of any size and path counts once as a read or a write, at the initiator and at the target.
///
/// Requirements: CMP-017, CMP-018.
pub fn accesses_are_counted_at_both_ends<F: Fabric>() {
    let kinds = Kinds::default();
    let mesh = kinds.mesh::<F>();
    let mut count = 0;
    for memory in memories(&mesh, F::BULK + 100) {
        let region = mesh.test_endpoint(1).domain.register(memory, ALL).expect("a region");
        let other = mesh.test_endpoint(1).domain.register(vec![0; F::BULK], ALL).expect("a region");
        // Repeat each length, because the first access may use a different path than the later ones.
        for len in [0, 8, 3000, 20_000, 300_000.min(F::BULK), F::BULK].repeat(3) {
            let local = Memory::content(1, len);
            let part = region.remote().at(0..len as u64);
            mesh.done(mesh.write(0, 1, local.segments(), &[part]));
            mesh.done(mesh.read(0, 1, local.segments(), &[part]));
            count += 1;
            if len >= 8 {
                // An access of two pieces counts once, whether they belong to one region or to two.
                let half = len as u64 / 2;
                let (first, second) = (part.at(0..half), part.at(half..len as u64));
                for pieces in [[first, second], [first, other.remote().at(0..len as u64 - half)]] {
                    mesh.done(mesh.write(0, 1, cut(local, 3), &pieces));
                    mesh.done(mesh.read(0, 1, cut(local, 3), &pieces));
                    count += 1;
                }
            }
            kinds.come_to(&mesh, [0, 0, count, count, count, count], "accesses");
        }
        let wrong = RemoteMemory { address: u64::MAX, ..region.remote().at(0..8) };
        let refused = mesh.write(0, 1, Memory::blank(8).segments(), &[wrong]);
        assert_eq!(mesh.failed(refused).error, ErrorCode::Denied);
        let refused = mesh.read(0, 1, Memory::blank(8).segments(), &[wrong]);
        assert_eq!(mesh.failed(refused).error, ErrorCode::Denied);
    }
    kinds.come_to(&mesh, [0, 0, count, count, count, count], "refused accesses");
    assert_eq!(kinds.errors(), [0, 0, 2, 2, 0, 0]);
}

/// An access of many megabytes, which is split into parts, counts once.
///
/// Requirements: CMP-018.
pub fn split_access_is_counted_once<F: Fabric>() {
    const LEN: usize = 70 << 20;
    let kinds = Kinds::default();
    let mesh = kinds.mesh::<F>();
    let region = mesh.test_endpoint(1).domain.register(vec![0; LEN], ALL).expect("a region");
    let local = Memory::blank(LEN).segments();
    mesh.done(mesh.write(0, 1, local, &[region.remote()]));
    mesh.done(mesh.read(0, 1, local, &[region.remote()]));
    kinds.come_to(&mesh, [0, 0, 1, 1, 1, 1], "long accesses");
}

/// Fetching atomic operations count as reads. All other atomic operations count as writes.
///
/// Requirements: CMP-017, CMP-018.
pub fn atomic_operations_are_counted<F: Fabric>() {
    let kinds = Kinds::default();
    let mesh = kinds.mesh::<F>();
    let (mut reads, mut writes) = (0, 0);
    for memory in memories(&mesh, 64) {
        let region = mesh.test_endpoint(1).domain.register(memory, ALL).expect("a region");
        let word = region.remote().at(0..8);
        for _ in 0..3 {
            let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
            mesh.done(mesh.add(0, 1, Memory::of(&7_u64.to_ne_bytes()), word));
            writes += 1;
            mesh.finish(a.fetch_add(peer, word, 1_u64)).expect("an add");
            mesh.finish(a.compare_swap(peer, word, 0_u64, 1)).expect("a swap");
            mesh.finish(a.fetch_atomic(peer, percale::AtomicOp::Read, word, 0_u64)).expect("a read");
            reads += 3;
            kinds.come_to(&mesh, [0, 0, reads, writes, reads, writes], "atomic operations");
        }
    }
}

/// A write with 8 bytes of remote data does not count as a receive. A write is counted once if a region and its
/// endpoint use the same counter.
///
/// Requirements: CMP-018.
pub fn a_counter_of_several_kinds_counts_each_once<F: Fabric>() {
    let (one, apart) = (Counter::new(), Counter::new());
    let mesh = Mesh::<F>::with(
        2,
        |domain| domain,
        |number, endpoint| {
            if number == 0 && !F::ALONE {
                return endpoint;
            }
            endpoint.receive_counter(&one).remote_read_counter(&one).remote_write_counter(&one)
        },
    );
    let mut count = 0;
    for memory in memories(&mesh, F::BULK) {
        let domain = &mesh.test_endpoint(1).domain;
        let same = domain.registration(ALL).counter(&one).own(memory).expect("a region");
        let other = domain.registration(ALL).counter(&apart).own(vec![0; F::BULK]).expect("a region");
        for (data, len) in (1..).zip([8, 3000, F::BULK].repeat(3)) {
            for region in [&same, &other] {
                let (a, peer) = (mesh.endpoint(0), mesh.peer(1));
                let part = region.remote().at(0..len as u64);
                mesh.finish(a.write(peer, content(1, len), part).data(data)).expect("a write");
                let reported = mesh.until(|| mesh.take(0)).expect("the target's completion of the write");
                assert!(
                    reported.flags.contains(CompletionFlags::REMOTE_WRITE) && reported.data == data,
                    "{reported:?}"
                );
                mesh.finish(a.read(peer, part, vec![0; len])).expect("a read");
                mesh.finish(a.fetch_add(peer, part.at(0..8), 1_u64)).expect("an add");
                // The write, the read and the fetching operation count once each. The fetching operation is a read for
                // the endpoint and a change for the region.
                count += 3;
                mesh.until(|| (one.value() >= count).then_some(()));
                mesh.turns(20);
                assert_eq!(one.value(), count, "{len} bytes");
            }
        }
    }
    mesh.until(|| (apart.value() >= 2 * 2 * 9).then_some(()));
    mesh.turns(20);
    assert_eq!(apart.value(), 2 * 2 * 9, "the other region's changes");
}
