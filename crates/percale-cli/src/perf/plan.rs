//! The rows that a command line requests, and the limit of each.

use super::args::{MemoryChoice, PerfArgs};
use crate::failure::{Failure, Result};
use crate::limits::ring;
use crate::round::MessageShape;
use crate::row::{Api, MeasuredOperation, MessageMemory, Pattern, Transport};
use crate::subject::{AccessMeans, SubjectKind};
use crate::units;

/// The minimum size of messages for which the kind of memory makes a difference. For one-sided operations, it always
/// makes a difference.
const LARGE: usize = 64 << 10;

/// One row to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) transport: Transport,
    pub(crate) op: MeasuredOperation,
    pub(crate) bytes: usize,
    pub(crate) memory: MessageMemory,
}

impl Planned {
    /// Returns the shape of the row's messages.
    pub(crate) const fn shape(&self) -> MessageShape {
        MessageShape { op: self.op, bytes: self.bytes, memory: self.memory }
    }

    /// Returns percale's subject for the row.
    pub(crate) const fn subject(&self, api: Api) -> SubjectKind {
        if matches!(self.memory, MessageMemory::Bounced) {
            return SubjectKind::Bounced(api);
        }
        if self.op.is_one_sided() {
            SubjectKind::OneSided(self.transport, api)
        } else {
            SubjectKind::Percale(self.transport, api)
        }
    }

    /// Returns the program that is the limit of the row, and the shape of the messages of that program.
    pub(crate) fn limit(&self) -> (SubjectKind, MessageShape) {
        let shape = self.shape();
        // Half a round trip of writes cannot be faster than one write.
        let write = MessageShape {
            op: if self.op == MeasuredOperation::PutLatency { MeasuredOperation::Put } else { self.op },
            ..shape
        };
        let is_small = self.bytes <= ring::LONGEST;
        match (self.transport, self.op, self.memory) {
            (Transport::Tcp, ..) => (SubjectKind::Sockets, shape),
            (.., MessageMemory::Bounced) => (SubjectKind::Twice, shape),
            (_, op, MessageMemory::Percale) if op.is_atomic() => (SubjectKind::Access(AccessMeans::Word), shape),
            // Only the owner can change such memory atomically. Therefore the limit is a round trip.
            (_, op, MessageMemory::Ordinary) if op.is_atomic() => (SubjectKind::Ring, shape),
            (_, op, MessageMemory::Ordinary) if op.is_one_sided() => (SubjectKind::Access(AccessMeans::Kernel), write),
            (_, MeasuredOperation::PutLatency, _) if is_small => (SubjectKind::Ring, shape),
            (_, op, _) if op.is_one_sided() => (SubjectKind::Access(AccessMeans::Copy), write),
            _ if is_small => (SubjectKind::Ring, shape),
            _ => (SubjectKind::Copy, shape),
        }
    }
}

/// Returns whether some command line selects messages of this shape for this subject. Other processes may request only
/// such messages.
pub(crate) fn is_possible(kind: SubjectKind, shape: &MessageShape) -> bool {
    let MessageShape { op, bytes, memory } = *shape;
    if !(1..=units::LONGEST).contains(&bytes) || op.refusal(bytes).is_some() {
        return false;
    }
    [Transport::Shm, Transport::Tcp].into_iter().any(|transport| {
        let bounces = transport == Transport::Shm && matches!(op, MeasuredOperation::Put | MeasuredOperation::Get);
        let planned = Planned { transport, op, bytes, memory };
        let is_its = kind.api().map(|api| planned.subject(api)) == Some(kind) || planned.limit() == (kind, *shape);
        (memory != MessageMemory::Bounced || bounces) && is_its
            // The operation of a limit may differ from that of the row.
            || op == MeasuredOperation::Put && {
                let row = Planned { op: MeasuredOperation::PutLatency, ..planned };
                row.op.refusal(bytes).is_none() && row.limit() == (kind, *shape)
            }
    })
}

/// Returns the default sizes of an operation.
const fn default_sizes(op: MeasuredOperation) -> &'static [usize] {
    match op {
        MeasuredOperation::TaggedLatency | MeasuredOperation::MessageLatency => {
            &[8, 64, 512, 4 << 10, 64 << 10, 1 << 20]
        }
        MeasuredOperation::TaggedRate | MeasuredOperation::PutLatency => &[8],
        MeasuredOperation::FetchAdd | MeasuredOperation::FetchAddAlone | MeasuredOperation::CompareSwap => &[8],
        MeasuredOperation::Bandwidth => &[64 << 10, 1 << 20],
        MeasuredOperation::Put | MeasuredOperation::Get => &[8, 64 << 10, 1 << 20],
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
    let operations = if args.op.is_empty() { MeasuredOperation::ALL.as_slice() } else { &args.op };
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
                        return Err(Failure::Usage(format!("--op {name} --size {bytes}: {why}, not {size}")));
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

fn memories(args: &PerfArgs, transport: Transport, op: MeasuredOperation, bytes: usize) -> &'static [MessageMemory] {
    if args.limits_only && !op.is_one_sided() {
        // The programs for the limits use no other memory.
        return &[MessageMemory::Ordinary];
    }
    let matters = transport == Transport::Shm && (bytes >= LARGE || op.is_one_sided());
    match args.memory {
        Some(MemoryChoice::Percale) => &[MessageMemory::Percale],
        Some(MemoryChoice::Ordinary) => &[MessageMemory::Ordinary],
        Some(MemoryChoice::Bounced)
            if transport == Transport::Shm && matches!(op, MeasuredOperation::Put | MeasuredOperation::Get) =>
        {
            &[MessageMemory::Bounced]
        }
        Some(MemoryChoice::Bounced) => &[],
        Some(MemoryChoice::Both) | None if matters => &[MessageMemory::Percale, MessageMemory::Ordinary],
        Some(MemoryChoice::Both) | None => &[MessageMemory::Ordinary],
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Subcommand};

    fn rows(arguments: &[&str]) -> Result<Vec<Planned>> {
        let args = Args::try_parse_from(["percale", "perf"].iter().chain(arguments)).unwrap();
        let Subcommand::Perf(args) = args.subcommand else { unreachable!("the subcommand is perf") };
        plan(&args)
    }

    #[test]
    fn default_plan_covers_all_transports_operations_and_memories() {
        let rows = rows(&[]).unwrap();
        let shm: Vec<_> = rows.iter().filter(|row| row.transport == Transport::Shm).collect();
        // Messages first. Then put-latency, both kinds of fetch-add and compare-swap with one size each, and put and
        // get with three sizes each.
        assert_eq!((rows.len(), shm.len()), (36 + 10 + 20, 21 + 20));
        for op in MeasuredOperation::ALL {
            assert!(rows.iter().any(|row| row.op == op));
        }
        assert!(
            shm.iter().all(|row| row.memory == MessageMemory::Ordinary || row.bytes >= LARGE || row.op.is_one_sided())
        );
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
        let row = |transport, bytes| Planned {
            transport,
            op: MeasuredOperation::Bandwidth,
            bytes,
            memory: MessageMemory::Ordinary,
        };
        assert_eq!(row(Transport::Shm, 8).limit().0, SubjectKind::Ring);
        assert_eq!(row(Transport::Shm, 8 << 10).limit().0, SubjectKind::Ring);
        assert_eq!(row(Transport::Shm, 64 << 10).limit().0, SubjectKind::Copy);
        assert_eq!(row(Transport::Tcp, 8).limit().0, SubjectKind::Sockets);
    }

    #[test]
    fn limit_of_an_access_depends_on_operation_and_memory() {
        use MeasuredOperation::{CompareSwap, FetchAdd, FetchAddAlone, Get, Put, PutLatency};
        use MessageMemory::{Ordinary, Percale};
        for (op, bytes, memory, kind, does) in [
            (Put, 8, Percale, SubjectKind::Access(AccessMeans::Copy), Put),
            (Get, 1 << 20, Percale, SubjectKind::Access(AccessMeans::Copy), Get),
            (Get, 8, Ordinary, SubjectKind::Access(AccessMeans::Kernel), Get),
            (FetchAdd, 8, Percale, SubjectKind::Access(AccessMeans::Word), FetchAdd),
            (FetchAddAlone, 8, Percale, SubjectKind::Access(AccessMeans::Word), FetchAddAlone),
            (CompareSwap, 8, Ordinary, SubjectKind::Ring, CompareSwap),
            (PutLatency, 8, Percale, SubjectKind::Ring, PutLatency),
            (PutLatency, 64 << 10, Percale, SubjectKind::Access(AccessMeans::Copy), Put),
            (PutLatency, 8, Ordinary, SubjectKind::Access(AccessMeans::Kernel), Put),
        ] {
            let shm = Planned { transport: Transport::Shm, op, bytes, memory };
            assert_eq!(shm.limit(), (kind, MessageShape { op: does, bytes, memory }), "{shm:?}");
            assert_eq!(Planned { transport: Transport::Tcp, ..shm }.limit(), (SubjectKind::Sockets, shm.shape()));
        }
    }

    #[test]
    fn bounced_put_and_get_are_compared_with_two_copies() {
        let rows = rows(&["--memory", "bounced"]).unwrap();
        assert_eq!(rows.len(), 6);
        for row in rows {
            for api in Api::ALL {
                assert_eq!(row.subject(api), SubjectKind::Bounced(api));
            }
            assert_eq!(row.limit(), (SubjectKind::Twice, row.shape()));
        }
    }

    #[test]
    fn fixed_size_operations_reject_other_sizes() {
        for (arguments, message) in [
            (["--op", "fetch-add", "--size", "4"], "its size must be 8 bytes, not 4 B"),
            (["--op", "tagged-latency,compare-swap", "--size", "8,4K"], "its size must be 8 bytes, not 4 KiB"),
            (["--op", "put-latency", "--size", "12"], "its size must be a multiple of 8 bytes, not 12 B"),
        ] {
            assert!(matches!(rows(&arguments), Err(Failure::Usage(text)) if text.contains(message)), "{arguments:?}");
        }
        // Operations that are not named, and not defined for the size, are omitted.
        assert!(rows(&["--size", "12"]).unwrap().iter().all(|row| !row.op.is_atomic()));
    }

    #[test]
    fn remote_measurement_uses_only_tcp() {
        assert!(rows(&["10.0.0.1:7471"]).unwrap().iter().all(|row| row.transport == Transport::Tcp));
    }
}
