//! The compared cases: operations, sizes, transports, and percale's targets.

use super::Side;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The measured operation. percale's command and this task use the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    /// Half of the round-trip time of a tagged message.
    TaggedLatency,
    /// Tagged messages per second in one direction.
    TaggedRate,
    /// Bytes per second in one direction.
    Bandwidth,
    /// Half of the round-trip time of writes to each other's memory.
    PutLatency,
    /// The time of one completed read of the peer's memory.
    Get,
    /// The time of one completed fetching addition to a word of the peer's memory. (percale's fetch-add without "alone"
    /// is measured while the peer also adds to the word. The peers' programs do not measure this, so it has no
    /// counterpart.)
    FetchAddAlone,
    /// The time of one completed compare-and-swap of a word of the peer's memory.
    CompareSwap,
    /// The time of a sum of both processes' doubles, which both receive.
    Allreduce,
}

impl Op {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TaggedLatency => "tagged-latency",
            Self::TaggedRate => "tagged-rate",
            Self::Bandwidth => "bandwidth",
            Self::PutLatency => "put-latency",
            Self::Get => "get",
            Self::FetchAddAlone => "fetch-add-alone",
            Self::CompareSwap => "compare-swap",
            Self::Allreduce => "allreduce",
        }
    }

    /// Returns whether a lower value is better.
    pub(crate) fn is_time(self) -> bool {
        !matches!(self, Self::TaggedRate | Self::Bandwidth)
    }

    /// Returns whether the operation accesses the peer's memory without a receive.
    pub(crate) fn is_one_sided(self) -> bool {
        matches!(self, Self::PutLatency | Self::Get | Self::FetchAddAlone | Self::CompareSwap)
    }
}

/// One case that is measured with all programs.
#[derive(Clone, Copy)]
pub(crate) struct PeerCase {
    pub(crate) transport: &'static str,
    pub(crate) op: Op,
    pub(crate) bytes: u64,
}

/// A variant of the case for percale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Variant {
    /// The buffers are allocated by percale, so that a local peer can map them.
    pub(crate) is_percales_memory: bool,
    /// The source is written before each send. The peers' programs never do that.
    pub(crate) is_dirty: bool,
}

/// The comparison of percale with one peer library in one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) transport: String,
    pub(crate) op: Op,
    pub(crate) bytes: u64,
    /// "UCX", "UCX posix", "libfabric" or "Open MPI".
    pub(crate) peer: String,
    /// The kind of the peer's result: "p50", "mean" or "rate". percale's result is a p50 or a rate.
    pub(crate) peer_figure: String,
    pub(crate) variant: Option<Variant>,
    /// The median of the rounds: nanoseconds in one direction, messages per second, or bytes per second.
    pub(crate) peer_value: Option<f64>,
    pub(crate) percale_value: Option<f64>,
    pub(crate) peer_rounds: Vec<f64>,
    pub(crate) percale_rounds: Vec<f64>,
    /// percale's result divided by the peer's result.
    pub(crate) ratio: Option<f64>,
    /// The target for the ratio: a maximum for times, and a minimum for rates.
    pub(crate) aim: Option<f64>,
}

impl PeerCase {
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for transport in ["shm", "tcp"] {
            all.extend([8, 4 << 10, 64 << 10, 1 << 20].map(|bytes| Self { transport, op: Op::TaggedLatency, bytes }));
            all.push(Self { transport, op: Op::TaggedRate, bytes: 8 });
            all.extend([4 << 10, 64 << 10, 1 << 20].map(|bytes| Self { transport, op: Op::Bandwidth, bytes }));
        }
        // Over TCP, UCX supports only the one-sided operations that its program emulates.
        let transport = "shm";
        for op in [Op::PutLatency, Op::Get] {
            all.extend([8, 64 << 10, 1 << 20].map(|bytes| Self { transport, op, bytes }));
        }
        all.extend([Op::FetchAddAlone, Op::CompareSwap].map(|op| Self { transport, op, bytes: 8 }));
        all.extend([8, 1 << 20].map(|bytes| Self { transport, op: Op::Allreduce, bytes }));
        all
    }

    /// Returns the variants of the case. The allocator of the memory makes a difference only if a peer can map the
    /// memory and, for messages, only if they are too long to be copied through a ring.
    pub(crate) fn variants(&self) -> Vec<Variant> {
        let dirts = if self.op == Op::TaggedLatency { &[false, true][..] } else { &[false][..] };
        // For collectives, the allocator of the memory makes no difference.
        let is_its = self.bytes > 4 << 10 && self.op != Op::Allreduce;
        let matters = self.transport == "shm" && (is_its || self.op.is_one_sided());
        let owners = if matters { &[true, false][..] } else { &[false][..] };
        let variants = owners.iter().flat_map(|&is_percales_memory| {
            dirts.iter().map(move |&is_dirty| Variant { is_percales_memory, is_dirty })
        });
        variants.collect()
    }

    /// Returns percale's target relative to UCX, or relative to the only peer. A dirty source of percale is compared
    /// with a clean source of the peer.
    fn aim(&self, variant: Variant) -> Option<f64> {
        Some(match (self.transport, self.op, self.bytes) {
            ("shm", Op::TaggedLatency, 8 | 4096) => 0.70,
            ("shm", Op::TaggedLatency, 65536) if !variant.is_percales_memory => 1.0,
            ("shm", Op::TaggedLatency, 65536 | 1048576) => 0.75,
            ("shm", Op::TaggedRate, 8) => 1.5,
            ("tcp", Op::TaggedRate, 8) => 3.0,
            ("shm", Op::Allreduce, _) => 1.0,
            // UCX's programs access memory that UCX allocated, so ordinary memory has no counterpart.
            ("shm", op, _) if op.is_one_sided() && variant.is_percales_memory => 1.0,
            _ => return None,
        })
    }
}

impl fmt::Display for PeerCase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {} {}", self.transport, self.op.name(), crate::table::size(self.bytes))
    }
}

/// Returns one row for each peer and each variant of percale. If percale was not measured, returns one row for each
/// peer.
pub(super) fn comparisons(case: &PeerCase, sides: &[(Side, Vec<f64>)]) -> Vec<Comparison> {
    let mut rows = Vec::new();
    for (side, peer_rounds) in sides {
        let (peer, peer_figure) = match (side, case.op.is_time()) {
            (Side::Percale(_), _) => continue,
            (Side::Ucx(setup), is_time) => (setup.name(), if is_time { "p50" } else { "rate" }),
            (Side::Libfabric, _) => ("libfabric", "mean"),
            (Side::OpenMpi, _) => ("Open MPI", "p50"),
        };
        let row = |variant: Option<Variant>, percale_rounds: &[f64]| {
            let (peer_value, percale_value) = (median(peer_rounds), median(percale_rounds));
            let ratio = percale_value.zip(peer_value).map(|(percale, peer)| percale / peer);
            let aim = variant.filter(|_| matches!(peer, "UCX" | "Open MPI")).and_then(|variant| case.aim(variant));
            Comparison {
                transport: case.transport.into(),
                op: case.op,
                bytes: case.bytes,
                peer: peer.into(),
                peer_figure: peer_figure.into(),
                variant,
                peer_value,
                percale_value,
                peer_rounds: peer_rounds.clone(),
                percale_rounds: percale_rounds.to_vec(),
                ratio,
                aim,
            }
        };
        let before = rows.len();
        rows.extend(sides.iter().filter_map(|(side, rounds)| match side {
            Side::Percale(variant) => Some(row(Some(*variant), rounds)),
            _ => None,
        }));
        if rows.len() == before {
            rows.push(row(None, &[]));
        }
    }
    rows
}

impl Comparison {
    /// Returns whether the peer is better.
    pub(crate) fn is_loss(&self) -> bool {
        self.ratio.is_some_and(|ratio| if self.op.is_time() { ratio > 1.0 } else { ratio < 1.0 })
    }

    /// Returns whether the target is missed.
    pub(crate) fn is_short(&self) -> bool {
        let of = |ratio: f64, aim: f64| if self.op.is_time() { ratio > aim } else { ratio < aim };
        self.ratio.zip(self.aim).is_some_and(|(ratio, aim)| of(ratio, aim))
    }
}

fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::{Op, PeerCase, Variant, comparisons, median};
    use crate::peers::Side;
    use crate::peers::ucx::Setup;

    #[test]
    fn median_is_the_middle_value() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
    }

    #[test]
    fn each_variant_is_compared_with_each_peer() {
        let case = PeerCase { transport: "shm", op: Op::TaggedLatency, bytes: 8 };
        let variant = |is_dirty| Variant { is_percales_memory: false, is_dirty };
        let sides = [
            (Side::Ucx(Setup::Usual), vec![200.0]),
            (Side::Libfabric, vec![800.0]),
            (Side::Percale(variant(false)), vec![150.0]),
            (Side::Percale(variant(true)), vec![]),
        ];
        let rows = comparisons(&case, &sides);
        assert_eq!(rows.len(), 4);
        assert_eq!(rows[0].ratio, Some(0.75));
        assert!(rows[0].is_short() && !rows[0].is_loss());
        assert_eq!((rows[1].ratio, rows[1].is_loss()), (None, false));
        assert_eq!((rows[2].peer.as_str(), rows[2].aim), ("libfabric", None));
    }

    #[test]
    fn a_setup_that_checks_nothing_has_no_aim() {
        let case = PeerCase { transport: "shm", op: Op::Get, bytes: 8 };
        assert_eq!(case.variants().len(), 2);
        let sides = [
            (Side::Ucx(Setup::Usual), vec![20.0]),
            (Side::Ucx(Setup::PosixAlone), vec![20.0]),
            (Side::Percale(Variant { is_percales_memory: true, is_dirty: false }), vec![30.0]),
            (Side::Percale(Variant { is_percales_memory: false, is_dirty: false }), vec![300.0]),
        ];
        let rows = comparisons(&case, &sides);
        let shown: Vec<_> = rows.iter().map(|row| (row.peer.as_str(), row.aim, row.is_loss())).collect();
        let (usual, alone) = ("UCX", "UCX posix");
        assert_eq!(shown, [(usual, Some(1.0), true), (usual, None, true), (alone, None, true), (alone, None, true)]);
    }

    #[test]
    fn sums_have_one_peer_and_one_variant() {
        let case = PeerCase { transport: "shm", op: Op::Allreduce, bytes: 1 << 20 };
        let [variant] = case.variants()[..] else { panic!("{:?}", case.variants()) };
        let rows = comparisons(&case, &[(Side::OpenMpi, vec![200.0]), (Side::Percale(variant), vec![210.0])]);
        assert_eq!((rows.len(), rows[0].peer.as_str(), rows[0].aim), (1, "Open MPI", Some(1.0)));
        assert!(rows[0].is_loss() && rows[0].is_short());
    }

    #[test]
    fn higher_rates_are_better() {
        let case = PeerCase { transport: "tcp", op: Op::TaggedRate, bytes: 8 };
        let variant = Variant { is_percales_memory: false, is_dirty: false };
        let rows = comparisons(&case, &[(Side::Ucx(Setup::Usual), vec![1e6]), (Side::Percale(variant), vec![2e6])]);
        assert!(!rows[0].is_loss() && rows[0].is_short());
    }
}
