//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, ValueEnum};

use crate::row::{Operation, Transport};
use crate::units;

/// percale: moves bytes between the memories of processes.
#[derive(Debug, Parser)]
#[command(name = "percale", version, arg_required_else_help = true, propagate_version = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) subcommand: Subcommand,
}

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subcommand {
    /// Show which transports, devices and limits are here, and why others are not
    Info {
        /// Print one JSON object for each line
        #[arg(long)]
        json: bool,
    },
    /// Measure how fast messages and one-sided operations are here, beside what the machine could do at best; or what triggers, collectives,
    /// addresses, windows or registering memory cost
    Perf(Box<PerfArgs>),
    /// Let others copy files from, or to, a directory
    Serve(ServeArgs),
    /// Copy a file from or to a machine where `percale serve` runs
    Cp(CpArgs),
    /// Show whether the registration cache is correct on this machine, whatever happens to the memory
    Torture(TortureArgs),
    /// A process that changes its memory for `percale torture`
    #[command(name = crate::torture::PART, hide = true)]
    TorturePart {
        /// Which part it plays
        part: crate::torture::Part,
    },
    /// A process with a registration cache that is measured
    #[command(name = crate::perf::registration::PART, hide = true)]
    RegistrationPart,
    /// One of several processes that do something together
    #[command(name = crate::perf::team::PART, hide = true)]
    TeamPart {
        /// What they do
        part: crate::perf::team::Part,
        /// Stay on this processor
        #[arg(long)]
        processor: Option<usize>,
    },
    /// The second process of a measurement
    #[command(name = crate::perf::session::SECOND_PROCESS, hide = true)]
    SecondProcess {
        /// Stay on this processor
        #[arg(long)]
        processor: Option<usize>,
    },
}

/// Which memory large messages lie in, and what one-sided operations reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MemoryChoice {
    /// Memory that percale allocated
    Percale,
    /// Any memory
    Ordinary,
    /// Any memory, where the kernel may not copy between processes (put and get over shm)
    Bounced,
    /// Both, in a row each
    Both,
}

/// Arguments of `percale perf`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Without HOST:PORT, a second process is started here, and both stay on one processor each. Every byte of some messages \
and the ends of all are checked. Latencies are half a round trip; put, get, fetch-add and compare-swap are one operation \
on the other side's memory until it has completed (below 4 KiB timed 32 at a time). The limit is a program of a few plain \
lines that moves the same bytes with nothing around them, run in turn with percale in the same two processes.

With --registration it is not messages that are measured, but what it costs to have memory registered with a device \
(pinned), and what a registration cache saves: transfers into memory that was registered in advance, that is registered \
and deregistered for each, and that is looked up in the cache, in turn; what misses, hits and changes cost; and what each \
of the cache's monitors costs programs that map and unmap memory. The device is io_uring's fixed buffers, into which it \
reads zeroes: the shortest transfer that there is. SIZES are those \
of the memory [default: 4K,16K,64K,256K,1M,4M,16M,64M]; --seconds is for each comparison [default: 0.4].

With --triggers it is operations that begin by themselves: counter operations that are queued and fired, a send that a \
counter sets off, a token that processes pass on by deferred work, and sends that a store sets off, of a thread or of a \
CUDA device if there is one. With --collectives it is what processes do together. Both show each figure beside a plain \
program's: a call, a cache line's way between two processors, a copy; --seconds is for each comparison [default: 0.5].

Examples:
  percale perf --op tagged-latency --svg latency.svg
  percale perf --registration --monitor bpf --svg registration.svg
  percale perf --registration --size 4K,1M --json > lines.json
  percale perf --addresses 1000000
  percale perf --rdma --json
  percale perf --triggers --processes 8 --svg triggers.svg
  percale perf --collectives --processes 4 --size 8,64K

Exit codes: 0 measured, 1 failed, 2 bad usage.")]
pub(crate) struct PerfArgs {
    /// Measure with the machine where `percale perf --listen` waits
    #[arg(value_name = "HOST:PORT", value_parser = host_and_port)]
    pub(crate) host: Option<String>,
    /// Wait here for measurements from other machines, for example 0.0.0.0:7471
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["host", "op", "size", "transport", "memory", "dirty", "iterations", "seconds", "no_verify", "limits_only", "form", "monitor", "processes", "svg", "json"], value_parser = host_and_port)]
    pub(crate) listen: Option<String>,
    /// Between machines: measure only with peers that have the same key, the bytes of this file, which only its owner may read
    #[arg(long, value_name = "FILE")]
    pub(crate) authorization_key: Option<PathBuf>,
    /// Operations [default: all]
    #[arg(long, value_delimiter = ',', value_name = "OP")]
    pub(crate) op: Vec<Operation>,
    /// Sizes, such as 8,4K,1M [default: 8,64,512,4K,64K,1M, as they suit the operation; fetch-add, compare-swap: 8]
    #[arg(long, value_delimiter = ',', value_name = "BYTES", value_parser = units::parse_size)]
    pub(crate) size: Vec<usize>,
    /// Transports [default: shm,tcp; across machines tcp]
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub(crate) transport: Vec<Transport>,
    /// Where messages lie [default: both over shm for 64K and more and for one-sided operations, else ordinary]
    #[arg(long)]
    pub(crate) memory: Option<MemoryChoice>,
    /// Write the whole source before each send, as programs do, instead of its ends only (latencies, put)
    #[arg(long)]
    pub(crate) dirty: bool,
    /// Timed messages or operations of each row
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=8 << 20))]
    pub(crate) iterations: Option<u64>,
    /// Seconds for each row [default: 0.8]
    #[arg(long, value_name = "S", conflicts_with = "iterations", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Neither write nor check data
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Measure only what the machine could do
    #[arg(long, conflicts_with = "host")]
    pub(crate) limits_only: bool,
    /// Measure what it costs to have memory registered, with a registration cache and without
    #[arg(long, group = "form", conflicts_with_all = ["host", "op", "transport", "memory", "dirty", "iterations", "no_verify", "limits_only"])]
    pub(crate) registration: bool,
    /// Measure what so many addresses cost in an address vector, beside libfabric's tcp provider if that is installed
    #[arg(long, group = "form", value_name = "N", value_parser = addresses, conflicts_with_all = ["host", "op", "size", "transport", "memory", "dirty", "iterations", "seconds", "no_verify", "limits_only"])]
    pub(crate) addresses: Option<usize>,
    /// Measure what it costs to bind a memory window, to take it back, and to check a right
    #[arg(long, group = "form", conflicts_with_all = ["host", "op", "transport", "size", "memory", "dirty", "iterations", "no_verify", "limits_only"])]
    pub(crate) windows: bool,
    /// Measure what registrations, windows and transfers cost on an RDMA device, beside each other [SIZES: 4K,64K,1M]
    #[arg(long, group = "form", conflicts_with_all = ["host", "op", "transport", "memory", "dirty", "iterations", "no_verify", "limits_only", "svg"])]
    pub(crate) rdma: bool,
    /// Live keys while rights are checked
    #[arg(long, value_delimiter = ',', value_name = "N", requires = "windows", conflicts_with_all = ["registration", "addresses", "triggers", "collectives", "rdma"], default_values_t = [1000, 1_000_000], value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub(crate) keys: Vec<u32>,
    /// Measure what operations cost that begin by themselves: queueing and firing them, chains of them, and stores that set them off
    #[arg(long, group = "form", group = "team", conflicts_with_all = ["host", "op", "transport", "size", "memory", "dirty", "iterations", "no_verify", "limits_only"])]
    pub(crate) triggers: bool,
    /// Operations that wait for a counter together
    #[arg(long, value_delimiter = ',', value_name = "N", requires = "triggers", conflicts_with_all = ["registration", "addresses", "windows", "collectives", "rdma"], default_values_t = [1000, 1_000_000], value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub(crate) queued: Vec<u32>,
    /// Measure collectives of processes on this machine: barrier, broadcast, sums; SIZES are those of a member's elements [default: 8,1M]
    #[arg(long, group = "form", group = "team", conflicts_with_all = ["host", "op", "transport", "memory", "dirty", "iterations", "no_verify", "limits_only"])]
    pub(crate) collectives: bool,
    /// Processes that pass a token on [default: 4], or of a collective [default: 2]
    #[arg(long, value_name = "N", requires = "team", conflicts_with_all = ["registration", "addresses", "windows", "rdma"], value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) processes: Option<u8>,
    /// Monitors of the registration cache [default: all that are available here]
    #[arg(long, value_delimiter = ',', value_name = "NAME", requires = "registration", conflicts_with_all = ["addresses", "windows", "triggers", "collectives", "rdma"], value_parser = crate::perf::registration::monitor_names())]
    pub(crate) monitor: Vec<String>,
    /// Plot the latencies, or what else is measured (not --windows), to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print one JSON object for each row
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `percale serve`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Clients read the files from this process's memory, or write them there (`percale cp`). Only regular files below DIR are \
opened; symbolic links may not lead out of it. A file that is written lies in the directory .percale-parts beside its \
final place until it is complete, where no client reaches it. It is permanent, under its name, when the client is told so. \
Nothing is encrypted, and without a key whoever reaches the port may copy.

There is a place for 64 clients. If all are taken a newcomer gets that of one who is idle.

Exit codes: 1 failed, 2 bad usage; otherwise it serves until it is interrupted.")]
pub(crate) struct ServeArgs {
    /// The directory
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Where to wait
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:7471", value_parser = host_and_port)]
    pub(crate) listen: String,
    /// Let clients make and replace files
    #[arg(long)]
    pub(crate) writable: bool,
    /// Serve only clients that have the same key: the bytes of this file, which only its owner may read
    #[arg(long, value_name = "FILE")]
    pub(crate) authorization_key: Option<PathBuf>,
    /// Print one JSON object for each thing that happens
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `percale cp`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
One of SRC and DST is HOST:PORT/PATH, where PATH is below the directory that is served there; the other is a local \
file (write ./a:1/b if it looks like the former). Permissions are kept as far as the umask of the side that writes lets them. \
Until it is complete the copy lies in .percale-parts beside DST; a copy that was interrupted goes on from there when it is \
repeated, as far as both sides have the same on their disks. When percale cp says that it copied, the copy is permanent \
under its name (fsync of the file and of its directory).

Both sides compute checksums of what they read or write, and compare them. The whole file's, blake3 in the output of \
--json, is what b3sum tells of it. A source that is changed while it is copied is an error: its change time is compared, and \
where stores through a mapping do not move that, as on tmpfs, its content is read again. What cannot be seen: content that \
changed and changed back between two looks, and what other hosts do to a file of a network file system.

Exit codes: 0 copied, 1 failed, 2 bad usage.")]
pub(crate) struct CpArgs {
    /// The file to copy
    #[arg(value_name = "SRC")]
    pub(crate) source: OsString,
    /// Its copy, replaced if it is there
    #[arg(value_name = "DST")]
    pub(crate) target: OsString,
    /// The server's key: the bytes of this file, which only its owner may read
    #[arg(long, value_name = "FILE")]
    pub(crate) authorization_key: Option<PathBuf>,
    /// Use only this transport [default: what is best]
    #[arg(long, value_name = "NAME")]
    pub(crate) transport: Option<Transport>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `percale torture`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
A registration cache keeps memory pinned for a device between transfers. This registers memory of every kind through the \
cache, does to it whatever a program may do (unmaps, moves, truncates, forks, ...), maps it again where it has gone, and \
looks it up again: the cache must not give a registration whose pages are no longer those that the processor sees. \
io_uring's fixed buffers are the device, which need no hardware, or an RDMA device is. Each monitor, which tells a cache what changed, is tried \
with every pair of memory and operation, in processes of its own, then by threads that change, look up and check at once.

  stale      a registration of other pages was given: the cache is wrong
  rights     one was given for rights that the process has lost: the cache is wrong
  caught     the pages changed, and a new registration was made
  kept       the pages stayed, and so did the registration
  needless   the pages stayed, and a new registration was made all the same
  refused    the cache never keeps a registration of such memory
  n/a        there is no such memory here, or it cannot be pinned or changed so

Examples:
  percale torture
  percale torture --monitor userfaultfd --filter munmap --pairs
  percale torture --monitor sealed,userfaultfd --seconds 60 --threads 4 --seed 7
  percale torture --json --seconds 0 > rows.json
  percale torture --search 60 --monitor bpf

Exit codes: 0 nothing wrong but what a monitor documents, 1 stale registrations or failures, 2 bad usage.")]
pub(crate) struct TortureArgs {
    /// Monitors [default: all that are available here]
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = crate::torture::monitor_names())]
    pub(crate) monitor: Vec<String>,
    /// The device that memory is pinned for, and that looks at it
    #[arg(long, value_enum, default_value_t = crate::torture::Device::IoUring)]
    pub(crate) device: crate::torture::Device,
    /// Only pairs of memory and operation with this in their names, such as munmap or memfd
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Seconds for the threads of each monitor; 0 leaves them out [with --filter: 0]
    #[arg(long, value_name = "S", default_value_t = 5, default_value_if("filter", clap::builder::ArgPredicate::IsPresent, "0"), value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub(crate) seconds: u64,
    /// Instead, search each monitor for so many minutes: runs of threads with changes of every kind, by children, other processes, a debugger and
    /// io_uring, too, with closed descriptors, signals, several caches and requests submitted before; a run is repeated by its seed
    #[arg(long, value_name = "MINUTES", value_parser = minutes, conflicts_with_all = ["filter", "seconds", "pairs"])]
    pub(crate) search: Option<f64>,
    /// Threads that change memory, and as many that use it
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) threads: u64,
    /// What the threads draw their choices from [default: another each time]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Show every pair, not only how many had which result
    #[arg(long)]
    pub(crate) pairs: bool,
    /// Print one JSON object for each pair
    #[arg(long, conflicts_with = "pairs")]
    pub(crate) json: bool,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse::<f64>().ok().filter(|minutes| (0.01..=10_000.0).contains(minutes));
    minutes.ok_or_else(|| "from 0.01 to 10000".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("from 0.01 to 600".into()),
    }
}

/// How many addresses: whole nodes of 100, and no more than there are in 10.0.0.0/8.
fn addresses(text: &str) -> Result<usize, String> {
    let count = text.parse::<usize>().ok().filter(|count| (1000..=16_000_000).contains(count));
    count.ok_or_else(|| "a number from 1000 to 16000000".to_owned())
}

fn host_and_port(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.into()),
        _ => Err("a host and a port, such as node7:7471 or [::1]:7471".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }
}
