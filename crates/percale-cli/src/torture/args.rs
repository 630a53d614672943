//! The arguments of `percale torture`.

use clap::Args as ClapArgs;

use super::device::DeviceChoice;
use super::monitors;

/// Arguments of `percale torture`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
A registration cache keeps memory pinned for a device between transfers. This command registers memory of every kind through \
the cache, changes the memory in every way that a program can (unmaps, moves, truncates, forks, ...), maps it again if it was \
unmapped, and looks it up again. The cache must not return a registration of pages that are no longer mapped at the address. \
The device is io_uring's fixed buffers, which need no hardware, or an RDMA device. Each monitor, which reports changes of \
memory to the cache, is tested with every pair of memory and operation, in separate processes, and then by threads that \
change, look up and check memory concurrently.

  stale      a registration of old pages was returned: the cache is wrong
  rights     a registration was returned for rights that the process no longer has: the cache is wrong
  caught     the pages changed, and the memory was registered again
  kept       the pages did not change, and the registration was kept
  needless   the pages did not change, but the memory was registered again
  refused    the cache never keeps registrations of such memory
  n/a        such memory is not available on this machine, or cannot be pinned or changed in this way

Examples:
  percale torture
  percale torture --monitor userfaultfd --filter munmap --pairs
  percale torture --monitor sealed,userfaultfd --seconds 60 --threads 4 --seed 7
  percale torture --json --seconds 0 > rows.json
  percale torture --search 60 --monitor bpf

Exit codes: 0 no errors except documented limits of a monitor, 1 stale registrations or failures, 2 bad usage.")]
pub(crate) struct TortureArgs {
    /// Monitors [default: all that are available here]
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = monitors::names())]
    pub(crate) monitor: Vec<String>,
    /// The device that pins the memory and is used to check it
    #[arg(long, value_enum, default_value_t = DeviceChoice::IoUring)]
    pub(crate) device: DeviceChoice,
    /// Only pairs of memory and operation with this text in their names, such as munmap or memfd
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Seconds of the run of threads for each monitor; 0 skips it [with --filter: 0]
    #[arg(long, value_name = "S", default_value_t = 5, default_value_if("filter", clap::builder::ArgPredicate::IsPresent, "0"), value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub(crate) seconds: u64,
    /// Instead, search for errors of each monitor for this number of minutes: runs of threads with random changes of
    /// every kind, including changes by child processes, other processes, a debugger and io_uring, with closed
    /// descriptors, signals, several caches and io_uring requests that were submitted earlier; a run can be repeated
    /// with its seed
    #[arg(long, value_name = "MINUTES", value_parser = minutes, conflicts_with_all = ["filter", "seconds", "pairs"])]
    pub(crate) search: Option<f64>,
    /// Number of threads that change memory, and of threads that use it
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) threads: u64,
    /// Seed of the random choices of the threads [default: a random one]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Show every pair, and not only the number of pairs for each result
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
