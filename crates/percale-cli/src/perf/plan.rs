//! Which rows a command line asks for, and what the limit of each is.

use super::round::Shape;
use crate::args::{MemoryChoice, PerfArgs};
use crate::failure::{Failure, Result};
use crate::limits::ring;
use crate::row::{Memory, Operation, Transport};
use crate::subject::Kind;

/// From here on it matters where messages lie.
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
    /// What its messages are like.
    pub(crate) const fn shape(&self) -> Shape {
        Shape {
            bytes: self.bytes,
            stream: self.op.is_stream(),
            tagged: !matches!(self.op, Operation::MessageLatency),
            memory: self.memory,
        }
    }

    /// The program that stands for its limit.
    pub(crate) const fn limit(&self) -> Kind {
        match self.transport {
            Transport::Tcp => Kind::Sockets,
            Transport::Shm if self.bytes <= ring::LONGEST => Kind::Ring,
            Transport::Shm => Kind::Copy,
        }
    }
}

/// The sizes of an operation where none are given.
const fn default_sizes(op: Operation) -> &'static [usize] {
    match op {
        Operation::TaggedLatency | Operation::MessageLatency => &[8, 64, 512, 4 << 10, 64 << 10, 1 << 20],
        Operation::TaggedRate => &[8],
        Operation::Bandwidth => &[64 << 10, 1 << 20],
    }
}

/// The rows of a command line, in the order shown. Sizes that are given apply to the latencies, and to the streams
/// where these are asked for by name or have the size anyway.
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
            let fits = |size: &usize| !args.op.is_empty() || !op.is_stream() || default_sizes(op).contains(size);
            let sizes = if args.size.is_empty() { default_sizes(op) } else { &args.size };
            for &bytes in sizes.iter().filter(|size| fits(size)) {
                for &memory in memories(args, transport, bytes) {
                    let row = Planned { transport, op, bytes, memory };
                    if !rows.contains(&row) {
                        rows.push(row);
                    }
                }
            }
        }
    }
    if args.svg.is_some() && rows.iter().all(|row| row.op.is_stream()) {
        return Err(Failure::Usage("--svg plots latencies, and none is measured: add --op tagged-latency".into()));
    }
    Ok(rows)
}

fn memories(args: &PerfArgs, transport: Transport, bytes: usize) -> &'static [Memory] {
    if args.limits_only {
        // The programs of the limits know no other.
        return &[Memory::Ordinary];
    }
    match args.memory {
        Some(MemoryChoice::Percale) => &[Memory::Percale],
        Some(MemoryChoice::Ordinary) => &[Memory::Ordinary],
        Some(MemoryChoice::Both) | None if transport == Transport::Shm && bytes >= LARGE => {
            &[Memory::Percale, Memory::Ordinary]
        }
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
    fn the_default_covers_both_transports_all_operations_and_both_memories_where_it_matters() {
        let rows = rows(&[]).unwrap();
        let shm: Vec<_> = rows.iter().filter(|row| row.transport == Transport::Shm).collect();
        assert_eq!((rows.len(), shm.len()), (36, 21));
        for op in Operation::ALL {
            assert!(rows.iter().any(|row| row.op == op));
        }
        assert!(shm.iter().all(|row| row.memory == Memory::Ordinary || row.bytes >= LARGE));
    }

    #[test]
    fn given_sizes_leave_out_streams_that_they_do_not_suit() {
        let rows = rows(&["--size", "8,16", "--transport", "shm"]).unwrap();
        assert_eq!(rows.len(), 2 + 2 + 1);
        assert_eq!(super::tests::rows(&["--size", "2M", "--op", "bandwidth"]).unwrap().len(), 3);
        assert_eq!(super::tests::rows(&["--size", "8,8", "--op", "tagged-rate,tagged-rate"]).unwrap().len(), 2);
    }

    #[test]
    fn small_messages_are_compared_with_the_ring_and_large_ones_with_a_copy() {
        let row = |transport, bytes| Planned { transport, op: Operation::Bandwidth, bytes, memory: Memory::Ordinary };
        assert_eq!(row(Transport::Shm, 8).limit(), Kind::Ring);
        assert_eq!(row(Transport::Shm, 8 << 10).limit(), Kind::Ring);
        assert_eq!(row(Transport::Shm, 64 << 10).limit(), Kind::Copy);
        assert_eq!(row(Transport::Tcp, 8).limit(), Kind::Sockets);
    }

    #[test]
    fn across_machines_there_is_tcp() {
        assert!(rows(&["10.0.0.1:7471"]).unwrap().iter().all(|row| row.transport == Transport::Tcp));
    }
}
