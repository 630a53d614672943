//! The rows that a command line requests, and the limit of each.

use super::args::{MemoryChoice, PerfArgs};
use crate::failure::{Failure, Result};
use crate::limits::ring;
use crate::round::Shape;
use crate::row::{Memory, Operation, Pattern, Transport};
use crate::subject::{Kind, Means};
use crate::units;

/// The minimum size of messages for which the kind of memory makes a difference. For memory accesses it always does.
const LARGE: usize = 64 << 10;

/// One row to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) transport: Transport,
    pub(crate) op: Operation,
    pub(crate) bytes: usize,
    pub(crate) memory: Memory,
}

impl Planned {
    /// Returns the shape of the row's messages.
    pub(crate) const fn shape(&self) -> Shape {
        Shape { op: self.op, bytes: self.bytes, memory: self.memory }
    }

    /// Returns percale's subject for the row.
    pub(crate) const fn subject(&self) -> Kind {
        if matches!(self.memory, Memory::Bounced) {
            return Kind::Bounced;
        }
        if self.op.is_one_sided() { Kind::OneSided(self.transport) } else { Kind::Percale(self.transport) }
    }

    /// Returns the program that is the limit of the row, and the shape of the messages of that program.
    pub(crate) fn limit(&self) -> (Kind, Shape) {
        let shape = self.shape();
        // Half a round trip of writes cannot be faster than one write.
        let write = Shape { op: if self.op == Operation::PutLatency { Operation::Put } else { self.op }, ..shape };
        let is_small = self.bytes <= ring::LONGEST;
        match (self.transport, self.op, self.memory) {
            (Transport::Tcp, ..) => (Kind::Sockets, shape),
            (.., Memory::Bounced) => (Kind::Twice, shape),
            (_, op, Memory::Percale) if op.is_atomic() => (Kind::Access(Means::Word), shape),
            // Only the owner can change such memory atomically. Therefore the limit is a round trip.
            (_, op, Memory::Ordinary) if op.is_atomic() => (Kind::Ring, shape),
            (_, op, Memory::Ordinary) if op.is_one_sided() => (Kind::Access(Means::Kernel), write),
            (_, Operation::PutLatency, _) if is_small => (Kind::Ring, shape),
            (_, op, _) if op.is_one_sided() => (Kind::Access(Means::Copy), write),
            _ if is_small => (Kind::Ring, shape),
            _ => (Kind::Copy, shape),
        }
    }
}

/// Returns whether some command line selects messages of this shape for this subject. Other processes may request only
/// such messages.
pub(crate) fn is_possible(kind: Kind, shape: &Shape) -> bool {
    let Shape { op, bytes, memory } = *shape;
    if !(1..=units::LONGEST).contains(&bytes) || op.refusal(bytes).is_some() {
        return false;
    }
    [Transport::Shm, Transport::Tcp].into_iter().any(|transport| {
        let bounces = transport == Transport::Shm && matches!(op, Operation::Put | Operation::Get);
        let planned = Planned { transport, op, bytes, memory };
        (memory != Memory::Bounced || bounces) && (planned.subject() == kind || planned.limit() == (kind, *shape))
            // The operation of a limit may differ from that of the row.
            || op == Operation::Put && {
                let row = Planned { op: Operation::PutLatency, ..planned };
                row.op.refusal(bytes).is_none() && row.limit() == (kind, *shape)
            }
    })
}

/// Returns the default sizes of an operation.
const fn default_sizes(op: Operation) -> &'static [usize] {
    match op {
        Operation::TaggedLatency | Operation::MessageLatency => &[8, 64, 512, 4 << 10, 64 << 10, 1 << 20],
        Operation::TaggedRate | Operation::PutLatency => &[8],
        Operation::FetchAdd | Operation::FetchAddAlone | Operation::CompareSwap => &[8],
        Operation::Bandwidth => &[64 << 10, 1 << 20],
        Operation::Put | Operation::Get => &[8, 64 << 10, 1 << 20],
    }
}

/// Returns the rows of a command line in the order of the output. Sizes on the command line apply to each operation
/// that is defined for them. They apply to a stream only if the stream is named on the command line, or if the size is
/// one of its defaults.
///
/// # Errors
/// Fails if an operation named on the command line is not defined for one of the sizes.
pub(crate) fn plan(args: &PerfArgs) -> Result<Vec<Planned>> {
    let here = args.host.is_none();
    let transports = match args.transport.as_slice() {
        [] if here => &[Transport::Shm, Transport::Tcp],
        [] => [Transport::Tcp].as_slice(),
        given => given,
    };
    let operations = if args.op.is_empty() { Operation::ALL.as_slice() } else { &args.op };
    let mut rows = Vec::new();
    for &transport in transports {
        for &op in operations {
            let is_named = !args.op.is_empty();
            let is_stream = op.pattern() == Pattern::Stream;
            let sizes = if args.size.is_empty() { default_sizes(op) } else { &args.size };
            for &bytes in sizes {
                match op.refusal(bytes) {
                    Some(why) if is_named => {
                        let (name, size) = (op.name(), units::size(bytes));
                        return Err(Failure::Usage(format!("--op {name} --size {bytes}: {why}, not of {size}")));
                    }
                    None if is_named || !is_stream || default_sizes(op).contains(&bytes) => {}
                    _ => continue,
                }
                for &memory in memories(args, transport, op, bytes) {
                    let row = Planned { transport, op, bytes, memory };
                    if !rows.contains(&row) {
                        rows.push(row);
                    }
                }
            }
        }
    }
    if args.svg.is_some() && rows.iter().all(|row| row.op.pattern() != Pattern::PingPong) {
        return Err(Failure::Usage("--svg plots latencies, and none is measured: add --op tagged-latency".into()));
    }
    Ok(rows)
}

fn memories(args: &PerfArgs, transport: Transport, op: Operation, bytes: usize) -> &'static [Memory] {
    if args.limits_only && !op.is_one_sided() {
        // The programs for the limits use no other memory.
        return &[Memory::Ordinary];
    }
    let matters = transport == Transport::Shm && (bytes >= LARGE || op.is_one_sided());
    match args.memory {
        Some(MemoryChoice::Percale) => &[Memory::Percale],
        Some(MemoryChoice::Ordinary) => &[Memory::Ordinary],
        Some(MemoryChoice::Bounced) if transport == Transport::Shm && matches!(op, Operation::Put | Operation::Get) => {
            &[Memory::Bounced]
        }
        Some(MemoryChoice::Bounced) => &[],
        Some(MemoryChoice::Both) | None if matters => &[Memory::Percale, Memory::Ordinary],
        Some(MemoryChoice::Both) | None => &[Memory::Ordinary],
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Subcommand};

    fn rows(arguments: &[&str]) -> Result<Vec<Planned>> {
        let args = Args::try_parse_from(["percale", "perf"].iter().chain(arguments)).unwrap();
        let Subcommand::Perf(args) = args.subcommand else { unreachable!("asked for perf") };
        plan(&args)
    }

    #[test]
    fn default_plan_covers_all_transports_operations_and_memories() {
        let rows = rows(&[]).unwrap();
        let shm: Vec<_> = rows.iter().filter(|row| row.transport == Transport::Shm).collect();
        // Messages first. Then put-latency, both kinds of fetch-add and compare-swap with one size each, and put and
        // get with three sizes each.
        assert_eq!((rows.len(), shm.len()), (36 + 10 + 20, 21 + 20));
        for op in Operation::ALL {
            assert!(rows.iter().any(|row| row.op == op));
        }
        assert!(shm.iter().all(|row| row.memory == Memory::Ordinary || row.bytes >= LARGE || row.op.is_one_sided()));
    }

    #[test]
    fn given_sizes_omit_unsuitable_streams() {
        let rows = rows(&["--size", "8,16", "--transport", "shm"]).unwrap();
        assert_eq!(rows.len(), 2 + 2 + 1 + 2 * (2 + 2 + 2 + 1 + 1 + 1));
        assert_eq!(super::tests::rows(&["--size", "2M", "--op", "bandwidth"]).unwrap().len(), 3);
        assert_eq!(super::tests::rows(&["--size", "8,8", "--op", "tagged-rate,tagged-rate"]).unwrap().len(), 2);
    }

    #[test]
    fn limit_is_the_ring_for_small_and_a_copy_for_large_messages() {
        let row = |transport, bytes| Planned { transport, op: Operation::Bandwidth, bytes, memory: Memory::Ordinary };
        assert_eq!(row(Transport::Shm, 8).limit().0, Kind::Ring);
        assert_eq!(row(Transport::Shm, 8 << 10).limit().0, Kind::Ring);
        assert_eq!(row(Transport::Shm, 64 << 10).limit().0, Kind::Copy);
        assert_eq!(row(Transport::Tcp, 8).limit().0, Kind::Sockets);
    }

    #[test]
    fn limit_of_an_access_depends_on_operation_and_memory() {
        use Memory::{Ordinary, Percale};
        use Operation::{CompareSwap, FetchAdd, FetchAddAlone, Get, Put, PutLatency};
        for (op, bytes, memory, kind, does) in [
            (Put, 8, Percale, Kind::Access(Means::Copy), Put),
            (Get, 1 << 20, Percale, Kind::Access(Means::Copy), Get),
            (Get, 8, Ordinary, Kind::Access(Means::Kernel), Get),
            (FetchAdd, 8, Percale, Kind::Access(Means::Word), FetchAdd),
            (FetchAddAlone, 8, Percale, Kind::Access(Means::Word), FetchAddAlone),
            (CompareSwap, 8, Ordinary, Kind::Ring, CompareSwap),
            (PutLatency, 8, Percale, Kind::Ring, PutLatency),
            (PutLatency, 64 << 10, Percale, Kind::Access(Means::Copy), Put),
            (PutLatency, 8, Ordinary, Kind::Access(Means::Kernel), Put),
        ] {
            let shm = Planned { transport: Transport::Shm, op, bytes, memory };
            assert_eq!(shm.limit(), (kind, Shape { op: does, bytes, memory }), "{shm:?}");
            assert_eq!(Planned { transport: Transport::Tcp, ..shm }.limit(), (Kind::Sockets, shm.shape()));
        }
    }

    #[test]
    fn bounced_put_and_get_are_compared_with_two_copies() {
        let rows = rows(&["--memory", "bounced"]).unwrap();
        assert_eq!(rows.len(), 6);
        for row in rows {
            assert_eq!((row.subject(), row.limit()), (Kind::Bounced, (Kind::Twice, row.shape())));
        }
    }

    #[test]
    fn fixed_size_operations_reject_other_sizes() {
        for (arguments, said) in [
            (["--op", "fetch-add", "--size", "4"], "it is of 8 bytes, not of 4 B"),
            (["--op", "tagged-latency,compare-swap", "--size", "8,4K"], "it is of 8 bytes, not of 4 KiB"),
            (["--op", "put-latency", "--size", "12"], "it is of a multiple of 8 bytes, not of 12 B"),
        ] {
            assert!(matches!(rows(&arguments), Err(Failure::Usage(text)) if text.contains(said)), "{arguments:?}");
        }
        // Operations that are not named, and not defined for the size, are omitted.
        assert!(rows(&["--size", "12"]).unwrap().iter().all(|row| !row.op.is_atomic()));
    }

    #[test]
    fn remote_measurement_uses_only_tcp() {
        assert!(rows(&["10.0.0.1:7471"]).unwrap().iter().all(|row| row.transport == Transport::Tcp));
    }
}
