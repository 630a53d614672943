//! One line of the result: what was measured beside the limit of the same run. Also the line of `--json`.

use clap::ValueEnum;
use percale::TransportKind;
use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Operation {
    /// Ping-pong of tagged messages, half a round trip.
    TaggedLatency,
    /// Ping-pong of messages, half a round trip.
    MessageLatency,
    /// Small tagged messages one way, a window of them under way.
    TaggedRate,
    /// Large tagged messages one way, a window of them under way.
    Bandwidth,
    /// Ping-pong of writes to each other's memory, which is polled; half a round trip.
    PutLatency,
    /// One write to the other's memory, completed.
    Put,
    /// One read of the other's memory, completed.
    Get,
    /// One fetching addition to a word of the other's memory, to which the other adds as well.
    FetchAdd,
    /// One fetching addition to a word of the other's memory that the other does not access.
    FetchAddAlone,
    /// One compare-and-swap of a word of the other's memory.
    CompareSwap,
}

/// The pattern of the two processes' messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Pattern {
    /// One at a time, to and fro.
    PingPong,
    /// One way, many at a time.
    Stream,
    /// One process accesses the other's memory, one access at a time.
    Access,
}

impl Operation {
    /// All operations, in the order shown.
    pub(crate) const ALL: [Self; 10] = [
        Self::TaggedLatency,
        Self::MessageLatency,
        Self::TaggedRate,
        Self::Bandwidth,
        Self::PutLatency,
        Self::Put,
        Self::Get,
        Self::FetchAdd,
        Self::FetchAddAlone,
        Self::CompareSwap,
    ];

    /// Its name, as in the arguments and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::TaggedLatency => "tagged-latency",
            Self::MessageLatency => "message-latency",
            Self::TaggedRate => "tagged-rate",
            Self::Bandwidth => "bandwidth",
            Self::PutLatency => "put-latency",
            Self::Put => "put",
            Self::Get => "get",
            Self::FetchAdd => "fetch-add",
            Self::FetchAddAlone => "fetch-add-alone",
            Self::CompareSwap => "compare-swap",
        }
    }

    /// The pattern of the operation.
    pub(crate) const fn pattern(self) -> Pattern {
        match self {
            Self::TaggedLatency | Self::MessageLatency | Self::PutLatency => Pattern::PingPong,
            Self::TaggedRate | Self::Bandwidth => Pattern::Stream,
            Self::Put | Self::Get | Self::FetchAdd | Self::FetchAddAlone | Self::CompareSwap => Pattern::Access,
        }
    }

    /// Whether the other's memory is accessed, without a receive.
    pub(crate) const fn is_one_sided(self) -> bool {
        matches!(self.pattern(), Pattern::Access) || matches!(self, Self::PutLatency)
    }

    /// Whether it changes a word as a whole.
    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::FetchAddAlone | Self::CompareSwap)
    }

    /// Whether there is a source that may be written before each message.
    pub(crate) const fn can_be_dirty(self) -> bool {
        matches!(self.pattern(), Pattern::PingPong) || matches!(self, Self::Put)
    }

    /// Returns why there is no such operation for so many bytes.
    pub(crate) const fn refusal(self, bytes: usize) -> Option<&'static str> {
        match self {
            Self::FetchAdd | Self::FetchAddAlone | Self::CompareSwap if bytes != 8 => Some("it is of 8 bytes"),
            // The other side polls the last 8 bytes.
            Self::PutLatency if bytes == 0 || !bytes.is_multiple_of(8) => Some("it is of a multiple of 8 bytes"),
            _ => None,
        }
    }
}

/// How the bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    /// Shared memory, one machine.
    Shm,
    /// TCP.
    Tcp,
}

impl Transport {
    /// Its name, as in the arguments and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }

    /// The library's name for it.
    pub(crate) const fn kind(self) -> TransportKind {
        match self {
            Self::Shm => TransportKind::Shm,
            Self::Tcp => TransportKind::Tcp,
        }
    }
}

/// The kind of memory of the messages in the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Memory {
    /// Memory that percale allocated, which local peers can map.
    Percale,
    /// Any memory of the process.
    Ordinary,
    /// Any memory of the process, where the kernel may not copy between processes.
    Bounced,
}

impl Memory {
    /// Its name, as in the arguments and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Percale => "percale",
            Self::Ordinary => "ordinary",
            Self::Bounced => "bounced",
        }
    }
}

/// One measurement.
///
/// For latencies a time is half a round trip and `rate` is what one message at a time gives; for streams a time is
/// that of a round divided by its messages; for accesses it is that of one operation until it has completed, or where
/// they are short that of a batch divided by its operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) transport: Transport,
    pub(crate) op: Operation,
    /// Length of a message.
    pub(crate) bytes: usize,
    pub(crate) memory: Memory,
    /// Whether the whole source was written before each send.
    pub(crate) dirty: bool,
    /// Nanoseconds. Like all figures without `limit_`: absent if only limits were measured.
    pub(crate) p50_ns: Option<f64>,
    pub(crate) p99_ns: Option<f64>,
    /// Messages a second.
    pub(crate) rate: Option<f64>,
    pub(crate) bytes_per_s: Option<f64>,
    /// The program that stands for the machine's limit, with the setting that was best. Absent, like all figures of
    /// the limit, across machines.
    pub(crate) limit: Option<String>,
    pub(crate) limit_p50_ns: Option<f64>,
    pub(crate) limit_p99_ns: Option<f64>,
    pub(crate) limit_rate: Option<f64>,
    pub(crate) limit_bytes_per_s: Option<f64>,
    /// `p50_ns / limit_p50_ns`.
    pub(crate) ratio: Option<f64>,
    /// Timed messages (of the limit, if only limits were measured).
    pub(crate) iterations: u64,
    /// Messages of which every byte was checked, in rounds apart from the timed ones.
    pub(crate) verified: u64,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn row(transport: Transport, op: Operation, bytes: usize, p50: f64, limit: f64) -> Row {
        Row {
            transport,
            op,
            bytes,
            memory: Memory::Ordinary,
            dirty: false,
            p50_ns: Some(p50),
            p99_ns: Some(p50 * 1.5),
            rate: Some(1e9 / p50),
            bytes_per_s: Some(1e9 / p50 * bytes as f64),
            limit: Some("ring".into()),
            limit_p50_ns: Some(limit),
            limit_p99_ns: Some(limit * 1.25),
            limit_rate: Some(1e9 / limit),
            limit_bytes_per_s: Some(1e9 / limit * bytes as f64),
            ratio: Some(p50 / limit),
            iterations: 1000,
            verified: 64,
        }
    }

    #[test]
    fn a_row_survives_json() {
        let mut before = row(Transport::Shm, Operation::TaggedLatency, 8, 150.5, 145.25);
        before.memory = Memory::Percale;
        let text = serde_json::to_string(&before).unwrap();
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), before);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["transport"], "shm");
        assert_eq!(value["op"], "tagged-latency");
        assert_eq!(value["bytes"], 8);
        assert_eq!(value["memory"], "percale");
        for number in ["p50_ns", "p99_ns", "rate", "bytes_per_s", "limit_p50_ns", "ratio"] {
            assert!(value[number].is_f64(), "{number}");
        }
    }

    #[test]
    fn names_are_those_of_json_and_of_the_arguments() {
        for op in Operation::ALL {
            assert_eq!(serde_json::to_value(op).unwrap(), op.name());
            assert_eq!(op.to_possible_value().unwrap().get_name(), op.name());
        }
        assert_eq!(Operation::ALL, Operation::value_variants());
        for transport in [Transport::Shm, Transport::Tcp] {
            assert_eq!(serde_json::to_value(transport).unwrap(), transport.name());
            assert_eq!(transport.to_possible_value().unwrap().get_name(), transport.name());
        }
    }
}
