//! The arguments of `percale perf`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};

use super::monitors;
use crate::host::host_and_port;
use crate::row::{Api, MeasuredOperation, Transport};
use crate::units;

/// The memory of large messages, and the memory that one-sided operations access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MemoryChoice {
    /// Memory that percale allocated
    Percale,
    /// Any memory
    Ordinary,
    /// Any memory, where the kernel may not copy between processes (put and get over shm)
    Bounced,
    /// Both, as two rows
    Both,
}

/// Arguments of `percale perf`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Without HOST:PORT, a second process is started on this machine, and each process is bound to one processor. Every byte of \
some messages, and the first and last bytes of all messages, are checked. Latencies are half a round trip. For put, get, \
fetch-add and compare-swap they are the time until one operation on the other side's memory has completed (below 4 KiB, 32 \
operations are timed together). The limit is a minimal program that moves the same bytes, run alternately with percale in \
the same two processes.

The program uses the safe API, whose operations own their buffers. A program with the raw API (`unsafe` calls) runs \
alternately with it, in the same two processes. Its times are beside those of the safe API, with the ratio of the medians. \
--api measures only one of the two.

--registration measures the cost of memory registration with a device (pinning), and the savings of a registration cache: \
transfers with memory that was registered in advance, that is registered and deregistered for each transfer, and that is \
looked up in the cache, in turn; the cost of misses, hits and changes; and the cost of each monitor for programs that map \
and unmap memory. The device is io_uring's fixed buffers, into which it reads zeroes: the shortest possible transfer. \
SIZES are those of the memory [default: 4K,16K,64K,256K,1M,4M,16M,64M]; --seconds applies to each comparison [default: 0.4].

--triggers measures operations that start without a call: counter operations that are queued and started, a send that a \
counter starts, a token that processes pass on by deferred work, and sends that start when a thread, or a CUDA device if \
there is one, writes a variable. --collectives measures collective operations. Both print each result next to that of a \
plain program: a function call, a cache line's transfer between two processors, a copy. --seconds applies to each \
comparison [default: 0.5].

Examples:
  percale perf --op tagged-latency --svg latency.svg
  percale perf --api raw --transport shm
  percale perf --registration --monitor bpf --svg registration.svg
  percale perf --registration --size 4K,1M --json > lines.json
  percale perf --addresses 1000000
  percale perf --rdma --json
  percale perf --triggers --processes 8 --svg triggers.svg
  percale perf --collectives --processes 4 --size 8,64K

Exit codes: 0 measured, 1 failed, 2 bad usage.")]
pub(crate) struct PerfArgs {
    /// Measure between this machine and the one where `percale perf --listen` runs
    #[arg(value_name = "HOST:PORT", value_parser = host_and_port)]
    pub(crate) host: Option<String>,
    /// Listen on this address for measurements from other machines, for example 0.0.0.0:7471
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["host", "op", "size", "transport", "api", "memory", "dirty", "iterations", "seconds", "no_verify", "limits_only", "form", "monitor", "processes", "svg", "json"], value_parser = host_and_port)]
    pub(crate) listen: Option<String>,
    /// Between machines: measure only with peers that have the same key. The key is the content of this file, which
    /// must be readable only by its owner
    #[arg(long, value_name = "FILE")]
    pub(crate) authorization_key: Option<PathBuf>,
    /// Operations to measure [default: all]
    #[arg(long, value_delimiter = ',', value_name = "OP")]
    pub(crate) op: Vec<MeasuredOperation>,
    /// Sizes, such as 8,4K,1M [default: some or all of 8,64,512,4K,64K,1M, depending on the operation; fetch-add,
    /// compare-swap: 8]
    #[arg(long, value_delimiter = ',', value_name = "BYTES", value_parser = units::parse_size)]
    pub(crate) size: Vec<usize>,
    /// Transports to measure [default: shm,tcp; between machines tcp]
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub(crate) transport: Vec<Transport>,
    /// The API of percale that the measured program uses [default: the safe one, with the raw one beside it]
    #[arg(long, value_name = "NAME", conflicts_with = "limits_only")]
    pub(crate) api: Option<Api>,
    /// Memory of the messages [default: both over shm for 64K and more and for one-sided operations, else ordinary]
    #[arg(long)]
    pub(crate) memory: Option<MemoryChoice>,
    /// Write the whole source before each send, as applications do, and not only its ends (latencies, put)
    #[arg(long)]
    pub(crate) dirty: bool,
    /// Timed messages or operations of each row
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=8 << 20))]
    pub(crate) iterations: Option<u64>,
    /// Seconds for each row [default: 0.8]
    #[arg(long, value_name = "S", conflicts_with = "iterations", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Do not write or check data
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Measure only the limits of the machine
    #[arg(long, conflicts_with = "host")]
    pub(crate) limits_only: bool,
    /// Measure the cost of registering memory, with a registration cache and without
    #[arg(long, group = "form", conflicts_with_all = ["host", "op", "transport", "api", "memory", "dirty", "iterations", "no_verify", "limits_only"])]
    pub(crate) registration: bool,
    /// Measure the cost of this number of addresses in an address vector, compared with libfabric's tcp provider if it
    /// is installed
    #[arg(long, group = "form", value_name = "N", value_parser = addresses, conflicts_with_all = ["host", "op", "size", "transport", "api", "memory", "dirty", "iterations", "seconds", "no_verify", "limits_only"])]
    pub(crate) addresses: Option<usize>,
    /// Measure the cost of binding a memory window, of revoking it, and of checking a key
    #[arg(long, group = "form", conflicts_with_all = ["host", "op", "transport", "api", "size", "memory", "dirty", "iterations", "no_verify", "limits_only"])]
    pub(crate) windows: bool,
    /// Measure the cost of registrations, windows and transfers on an RDMA device [default of --size: 4K,64K,1M]
    #[arg(long, group = "form", conflicts_with_all = ["host", "op", "transport", "api", "memory", "dirty", "iterations", "no_verify", "limits_only", "svg"])]
    pub(crate) rdma: bool,
    /// Number of valid keys while keys are checked
    #[arg(long, value_delimiter = ',', value_name = "N", requires = "windows", conflicts_with_all = ["registration", "addresses", "triggers", "collectives", "rdma"], default_values_t = [1000, 1_000_000], value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub(crate) keys: Vec<u32>,
    /// Measure the cost of triggered operations: queueing and starting them, chains of them, and operations that start
    /// when a variable is written
    #[arg(long, group = "form", group = "team", conflicts_with_all = ["host", "op", "transport", "api", "size", "memory", "dirty", "iterations", "no_verify", "limits_only"])]
    pub(crate) triggers: bool,
    /// Number of operations that wait for one counter
    #[arg(long, value_delimiter = ',', value_name = "N", requires = "triggers", conflicts_with_all = ["registration", "addresses", "windows", "collectives", "rdma"], default_values_t = [1000, 1_000_000], value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub(crate) queued: Vec<u32>,
    /// Measure collectives of processes on this machine: barrier, broadcast, sums; --size is the size of a member's
    /// elements [default: 8,1M]
    #[arg(long, group = "form", group = "team", conflicts_with_all = ["host", "op", "transport", "api", "memory", "dirty", "iterations", "no_verify", "limits_only"])]
    pub(crate) collectives: bool,
    /// Number of processes: in a token ring [default: 4], or in a collective [default: 2]
    #[arg(long, value_name = "N", requires = "team", conflicts_with_all = ["registration", "addresses", "windows", "rdma"], value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) processes: Option<u8>,
    /// Monitors of the registration cache [default: all that are available here]
    #[arg(long, value_delimiter = ',', value_name = "NAME", requires = "registration", conflicts_with_all = ["addresses", "windows", "triggers", "collectives", "rdma"], value_parser = monitors::names())]
    pub(crate) monitor: Vec<String>,
    /// Plot the latencies, or the other results (not of --windows), to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print one JSON object for each row
    #[arg(long)]
    pub(crate) json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("from 0.01 to 600".into()),
    }
}

/// Parses a number of addresses: a multiple of 100 (whole nodes), and at most the number of addresses in 10.0.0.0/8.
fn addresses(text: &str) -> Result<usize, String> {
    let count = text.parse::<usize>().ok().filter(|count| (1000..=16_000_000).contains(count));
    count.ok_or_else(|| "a number from 1000 to 16000000".to_owned())
}
