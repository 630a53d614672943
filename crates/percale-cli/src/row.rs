//! One row of the result: a measurement and the limit of the same run. It is also the object of a line of `--json`.

use clap::ValueEnum;
use percale::TransportKind;
use serde::{Deserialize, Serialize};

/// The measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MeasuredOperation {
    /// Ping-pong of tagged messages. The time is half a round trip.
    TaggedLatency,
    /// Ping-pong of untagged messages. The time is half a round trip.
    MessageLatency,
    /// Small tagged messages in one direction, with a window of outstanding messages.
    TaggedRate,
    /// Large tagged messages in one direction, with a window of outstanding messages.
    Bandwidth,
    /// Ping-pong of writes to the other process's memory, which that process polls. The time is half a round trip.
    PutLatency,
    /// One write to the other process's memory, timed until it has completed.
    Put,
    /// One read of the other process's memory, timed until it has completed.
    Get,
    /// One fetching addition to a word of the other process's memory. That process also adds to the word.
    FetchAdd,
    /// One fetching addition to a word of the other process's memory. That process does not access the word.
    FetchAddAlone,
    /// One compare-and-swap of a word of the other process's memory.
    CompareSwap,
}

/// The pattern of the messages between the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Pattern {
    /// One message at a time, back and forth.
    PingPong,
    /// Many messages at a time, in one direction.
    Stream,
    /// One process accesses the memory of the other, one access at a time.
    Access,
}

impl MeasuredOperation {
    /// All operations, in the order of the output.
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

    /// Returns the name that is used in arguments and in JSON.
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

    /// Returns the pattern of the operation.
    pub(crate) const fn pattern(self) -> Pattern {
        match self {
            Self::TaggedLatency | Self::MessageLatency | Self::PutLatency => Pattern::PingPong,
            Self::TaggedRate | Self::Bandwidth => Pattern::Stream,
            Self::Put | Self::Get | Self::FetchAdd | Self::FetchAddAlone | Self::CompareSwap => Pattern::Access,
        }
    }

    /// Returns whether the operation accesses the other process's memory without a receive.
    pub(crate) const fn is_one_sided(self) -> bool {
        matches!(self.pattern(), Pattern::Access) || matches!(self, Self::PutLatency)
    }

    /// Returns whether the operation is atomic on one word.
    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::FetchAddAlone | Self::CompareSwap)
    }

    /// Returns whether there is a source that can be written before each message.
    pub(crate) const fn can_be_dirty(self) -> bool {
        matches!(self.pattern(), Pattern::PingPong) || matches!(self, Self::Put)
    }

    /// Returns the reason why the operation is undefined for this size, or `None` if it is defined.
    pub(crate) const fn refusal(self, bytes: usize) -> Option<&'static str> {
        match self {
            Self::FetchAdd | Self::FetchAddAlone | Self::CompareSwap if bytes != 8 => Some("its size must be 8 bytes"),
            // The other side polls the last 8 bytes.
            Self::PutLatency if bytes == 0 || !bytes.is_multiple_of(8) => {
                Some("its size must be a multiple of 8 bytes")
            }
            _ => None,
        }
    }
}

/// The transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    /// Shared memory on one machine.
    Shm,
    /// TCP.
    Tcp,
}

impl Transport {
    /// Returns the name that is used in arguments and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }

    /// Returns the library's name for the transport.
    pub(crate) const fn kind(self) -> TransportKind {
        match self {
            Self::Shm => TransportKind::Shm,
            Self::Tcp => TransportKind::Tcp,
        }
    }
}

/// The API of percale that the measured program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Api {
    /// Operations that own their buffers.
    Safe,
    /// Operations that are posted by `unsafe` calls, and completion queues.
    Raw,
}

impl Api {
    /// All APIs, in the order in which they are measured.
    pub(crate) const ALL: [Self; 2] = [Self::Safe, Self::Raw];
}

/// The kind of memory of the messages in the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MessageMemory {
    /// Memory that percale allocated, which peers on the same machine can map.
    Percale,
    /// Any memory of the process.
    Ordinary,
    /// Any memory of the process, on a system where the kernel must not copy between processes.
    Bounced,
}

impl MessageMemory {
    /// Returns the name that is used in arguments and in JSON.
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
/// For latencies, a time is half a round trip, and `rate` is the rate of one message at a time. For streams, a time is
/// the time of a round divided by the number of its messages. For accesses, a time is the time until one operation has
/// completed or, if the accesses are short, the time of a batch divided by the number of its operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) transport: Transport,
    pub(crate) op: MeasuredOperation,
    /// The length of a message.
    pub(crate) bytes: usize,
    pub(crate) memory: MessageMemory,
    /// Whether the whole source was written before each send.
    pub(crate) dirty: bool,
    /// The API that the following values are for: the safe one, unless only the raw one was measured. Like all values
    /// without a prefix, it is absent if only limits were measured.
    pub(crate) api: Option<Api>,
    /// In nanoseconds.
    pub(crate) p50_ns: Option<f64>,
    pub(crate) p99_ns: Option<f64>,
    /// Messages per second.
    pub(crate) rate: Option<f64>,
    pub(crate) bytes_per_s: Option<f64>,
    /// The raw API in the same run. Like all values of the raw API, it is absent if only one API was measured.
    pub(crate) raw_p50_ns: Option<f64>,
    pub(crate) raw_p99_ns: Option<f64>,
    pub(crate) raw_rate: Option<f64>,
    pub(crate) raw_bytes_per_s: Option<f64>,
    /// `p50_ns / raw_p50_ns`: the cost of the safe API relative to that of the raw one.
    pub(crate) raw_ratio: Option<f64>,
    /// The program that represents the machine's limit, and its fastest setting. Like all values of the limit, it is
    /// absent between machines.
    pub(crate) limit: Option<String>,
    pub(crate) limit_p50_ns: Option<f64>,
    pub(crate) limit_p99_ns: Option<f64>,
    pub(crate) limit_rate: Option<f64>,
    pub(crate) limit_bytes_per_s: Option<f64>,
    /// `p50_ns / limit_p50_ns`.
    pub(crate) ratio: Option<f64>,
    /// The number of timed messages of `api`. If only limits were measured, the number for the limit.
    pub(crate) iterations: u64,
    /// The number of messages of percale in untimed rounds. All their bytes were checked.
    pub(crate) verified: u64,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn row(transport: Transport, op: MeasuredOperation, bytes: usize, p50: f64, limit: f64) -> Row {
        Row {
            transport,
            op,
            bytes,
            memory: MessageMemory::Ordinary,
            dirty: false,
            api: Some(Api::Safe),
            p50_ns: Some(p50),
            p99_ns: Some(p50 * 1.5),
            rate: Some(1e9 / p50),
            bytes_per_s: Some(1e9 / p50 * bytes as f64),
            raw_p50_ns: Some(p50 / 1.28),
            raw_p99_ns: Some(p50),
            raw_rate: Some(1.28e9 / p50),
            raw_bytes_per_s: Some(1.28e9 / p50 * bytes as f64),
            raw_ratio: Some(1.28),
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
    fn row_round_trips_through_json() {
        let mut before = row(Transport::Shm, MeasuredOperation::TaggedLatency, 8, 150.5, 145.25);
        before.memory = MessageMemory::Percale;
        let text = serde_json::to_string(&before).unwrap();
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), before);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["transport"], "shm");
        assert_eq!(value["op"], "tagged-latency");
        assert_eq!(value["bytes"], 8);
        assert_eq!(value["memory"], "percale");
        assert_eq!(value["api"], "safe");
        let raw = ["raw_p50_ns", "raw_p99_ns", "raw_rate", "raw_bytes_per_s", "raw_ratio"];
        for number in ["p50_ns", "p99_ns", "rate", "bytes_per_s", "limit_p50_ns", "ratio"].into_iter().chain(raw) {
            assert!(value[number].is_f64(), "{number}");
        }
    }

    #[test]
    fn names_match_json_and_arguments() {
        for op in MeasuredOperation::ALL {
            assert_eq!(serde_json::to_value(op).unwrap(), op.name());
            assert_eq!(op.to_possible_value().unwrap().get_name(), op.name());
        }
        assert_eq!(MeasuredOperation::ALL, MeasuredOperation::value_variants());
        for transport in [Transport::Shm, Transport::Tcp] {
            assert_eq!(serde_json::to_value(transport).unwrap(), transport.name());
            assert_eq!(transport.to_possible_value().unwrap().get_name(), transport.name());
        }
    }
}
