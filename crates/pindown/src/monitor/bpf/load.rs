//! From the compiled object to attached programs, or a reason why not.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use aya::maps::Map;
use aya::programs::{BtfTracePoint, Iter, RawTracePoint};
use aya::{Btf, Ebpf, EbpfLoader};

use super::btf::{self, Hooks};
use super::publish::Maps;
use super::refusal::Unavailable;
use super::sys;

#[cfg(pindown_bpf)]
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/pindown.bpf.o"));
#[cfg(not(pindown_bpf))]
static OBJECT: &[u8] = &[];

/// Reports changes when they begin, and only then.
#[cfg(all(test, pindown_bpf))]
pub(super) static ENTRY_ONLY: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/pindown-entry-only.bpf.o"));

/// Bytes of a watched inode's value: `struct subscribers` in bpf/page.h.
pub(super) const INODE_BYTES: usize = 1024;
/// Watched inodes for which the programs have room.
pub(super) const INODES: usize = 16384;
/// Address spaces for which the programs have room.
pub(super) const SPACES: usize = 4096;

/// Descriptors of what is loaded.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) hooks: Hooks,
    pub(super) links: Vec<OwnedFd>,
    pub(super) programs: Vec<OwnedFd>,
    pub(super) inodes: OwnedFd,
    pub(super) asked: OwnedFd,
    pub(super) identify: OwnedFd,
    pub(super) control: OwnedFd,
    /// The kernel's numbers of programs and maps, in the order of [`Loaded::objects`].
    numbers: Vec<u32>,
}

impl Loaded {
    fn objects(&self) -> impl Iterator<Item = &OwnedFd> {
        let others = [&self.inodes, &self.asked, &self.identify, &self.control];
        self.programs.iter().chain(others)
    }

    /// An error if a program was skipped, or if its descriptor is no longer the one that it was. One system call for each program.
    pub(super) fn check(&self) -> Result<(), Unavailable> {
        for (program, number) in self.programs.iter().zip(&self.numbers) {
            let found = sys::number_and_misses(program.as_fd());
            match found.map_err(refused("the count of skipped programs"))? {
                (found, _) if found != *number => return Err(Unavailable::Closed),
                (_, 0) => {}
                (_, missed) => return Err(Unavailable::Missed(missed)),
            }
        }
        Ok(())
    }

    /// Whether each descriptor is the one that it was. [`Maps`] are not among them: a process that loads the programs for itself uses those
    /// only while it opens.
    pub(super) fn is_open(&self) -> bool {
        let same = |(object, number): (&OwnedFd, &u32)| sys::number(object.as_fd()).is_ok_and(|found| found == *number);
        self.objects().zip(&self.numbers).all(same)
    }
}

/// An error of the kernel's, or the loader's, with what was asked.
pub(super) fn refused<E: std::error::Error>(what: &'static str) -> impl Fn(E) -> Unavailable {
    move |why| {
        // The last lines count: before them comes the verifier's long log.
        let said = with_causes(&why);
        let statistics = ["verification time", "stack depth", "processed"];
        let tells = |line: &&str| !line.is_empty() && !statistics.iter().any(|start| line.starts_with(start));
        let lines: Vec<&str> = said.lines().map(str::trim).filter(tells).collect();
        Unavailable::Refused { what, why: lines[lines.len().saturating_sub(4)..].join(" | ") }
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {}", with_causes(cause)))
}

/// Whether this machine could have the kernel tier, without loading anything.
pub(super) fn check() -> Result<Hooks, Unavailable> {
    if cfg!(not(pindown_bpf)) {
        return Err(Unavailable::NotBuilt(env!("PINDOWN_BPF_ABSENT")));
    }
    let size = rustix::param::page_size();
    if size != 4096 {
        return Err(Unavailable::PageSize(size));
    }
    if rustix::system::uname().version().to_string_lossy().contains("PREEMPT_RT") {
        return Err(Unavailable::PreemptRt);
    }
    capabilities()?;
    btf::hooks()
}

/// CAP_BPF loads programs, CAP_PERFMON lets them look into the kernel; CAP_SYS_ADMIN does both.
fn capabilities() -> Result<(), Unavailable> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or("0");
    let have = u64::from_str_radix(line.trim(), 16).unwrap_or(0);
    let lacks = |number: u32| have & (1 << number | 1 << 21) == 0;
    match (lacks(39), lacks(38)) {
        (true, _) => Err(Unavailable::NoCapability("CAP_BPF")),
        (_, true) => Err(Unavailable::NoCapability("CAP_PERFMON")),
        _ => Ok(()),
    }
}

/// Loads the programs that this kernel needs and attaches them.
pub(super) fn load() -> Result<(Loaded, Maps), Unavailable> {
    load_object(OBJECT, check()?)
}

/// Like [`load`], but without the programs that report when calls begin; `None` where none of those is needed.
pub(super) fn load_records_alone() -> Result<Option<(Loaded, Maps)>, Unavailable> {
    let hooks = check()?;
    hooks.starts.then(|| load_object(OBJECT, Hooks { starts: false, ..hooks })).transpose()
}

/// Like [`load`], but from this object.
pub(super) fn load_object(object: &[u8], hooks: Hooks) -> Result<(Loaded, Maps), Unavailable> {
    let btf = Btf::from_sys_fs().map_err(refused("the loader its types"))?;
    // The loader has no type for task storage, which the programs alone use.
    let mut loader = EbpfLoader::new();
    let mut ebpf = loader.btf(Some(&btf)).allow_unsupported_maps().load(object).map_err(refused("the object"))?;

    let mut wanted = vec![
        (if hooks.memcg_path { "lock_released_memcg" } else { "lock_released" }, "mmap_lock_released"),
        ("pages_counted", "rss_stat"),
        ("cache_deleted", "mm_filemap_delete_from_page_cache"),
    ];
    wanted.extend(hooks.submit.map(|hook| {
        let program = if hook == "io_uring_submit_req" { "request_submitted" } else { "request_submitted_old" };
        (program, hook)
    }));
    wanted.extend(hooks.submit.map(|_| ("request_queued", "io_uring_queue_async_work")));
    if hooks.starts {
        wanted.extend([("call_left", "sys_exit"), ("call_entered", "sys_enter")]);
    }
    let mut programs = Vec::new();
    for (name, hook) in wanted {
        let program: &mut BtfTracePoint = program(&mut ebpf, name)?;
        program.load(hook, &btf).map_err(refused(name))?;
        programs.push(copy(program.fd().map_err(refused(name))?)?);
    }
    let identify: &mut Iter = program(&mut ebpf, "identify")?;
    identify.load("task", &btf).map_err(refused("identify"))?;
    let identify = copy(identify.fd().map_err(refused("identify"))?)?;
    let control: &mut RawTracePoint = program(&mut ebpf, "control")?;
    control.load().map_err(refused("control"))?;
    let control = copy(control.fd().map_err(refused("control"))?)?;

    let maps = Maps { pages: map(&ebpf, "pages", (8, 4))?, bells: map(&ebpf, "bells", (8, 4))? };
    let inodes = map(&ebpf, "inodes", (16, INODE_BYTES))?;
    let asked = map(&ebpf, "asked", (4, 136))?;
    let attach = |program: &OwnedFd| sys::attach(program.as_fd());
    let links = programs.iter().map(attach).collect::<io::Result<_>>().map_err(refused("attaching"))?;
    let mut loaded = Loaded { hooks, links, programs, inodes, asked, identify, control, numbers: Vec::new() };
    let numbers = loaded.objects().map(|object| sys::number(object.as_fd())).collect::<io::Result<_>>();
    loaded.numbers = numbers.map_err(refused("its number"))?;
    Ok((loaded, maps))
}

fn program<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P, Unavailable>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = aya::programs::ProgramError>,
{
    let missing = || Unavailable::Refused { what: name, why: "it is not in the object".into() };
    ebpf.program_mut(name).ok_or_else(missing)?.try_into().map_err(refused(name))
}

fn copy(fd: &impl AsFd) -> Result<OwnedFd, Unavailable> {
    fd.as_fd().try_clone_to_owned().map_err(refused("a descriptor"))
}

/// A map by name, with the sizes that this crate will use it with.
fn map(ebpf: &Ebpf, name: &'static str, sizes: (usize, usize)) -> Result<OwnedFd, Unavailable> {
    let fd = match ebpf.map(name) {
        Some(Map::HashOfMaps(data) | Map::HashMap(data) | Map::Array(data)) => copy(data.fd())?,
        _ => return Err(Unavailable::Refused { what: name, why: "it is not in the object".into() }),
    };
    let found = sys::sizes(fd.as_fd()).map_err(refused(name))?;
    if found == sizes {
        Ok(fd)
    } else {
        Err(Unavailable::Refused { what: name, why: format!("its sizes are {found:?}, not {sizes:?}") })
    }
}
