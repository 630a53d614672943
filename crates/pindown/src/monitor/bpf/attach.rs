//! The loader: loads the programs of a compiled object, which the kernel verifies, and attaches them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use aya::maps::Map;
use aya::programs::{BtfTracePoint, Iter, RawTracePoint};
use aya::{Btf, Ebpf, EbpfLoader};

use super::btf::Hooks;
use super::load::{INODE_BYTES, Loaded, refused};
use super::publish::Maps;
use super::refusal::BpfUnavailable;
use super::sys;

/// Loads the programs of this object that the kernel needs, and attaches them.
pub(super) fn load_object(object: &[u8], hooks: Hooks) -> Result<(Loaded, Maps), BpfUnavailable> {
    load_variant(object, hooks, false)
}

/// Like [`load_object`]. With `entry_only`, the programs report changes only when they begin, which tests must detect.
pub(super) fn load_variant(object: &[u8], hooks: Hooks, entry_only: bool) -> Result<(Loaded, Maps), BpfUnavailable> {
    let btf = Btf::from_sys_fs().map_err(refused("reading the kernel's types"))?;
    let entry_only = u8::from(entry_only);
    let mut loader = EbpfLoader::new();
    loader.btf(Some(&btf)).override_global("entry_only", &entry_only, true);
    // The loader has no type for task storage, which only the programs use.
    let mut ebpf = loader.allow_unsupported_maps().load(object).map_err(refused("loading the BPF object"))?;

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

    let maps = Maps { pages: map(&ebpf, "pages", (8, 4))?, doorbells: map(&ebpf, "bells", (8, 4))? };
    let inodes = map(&ebpf, "inodes", (16, INODE_BYTES))?;
    let query_map = map(&ebpf, "asked", (4, 136))?;
    let attach = |program: &OwnedFd| sys::attach(program.as_fd());
    let links = programs.iter().map(attach).collect::<io::Result<_>>().map_err(refused("attaching"))?;
    let mut loaded = Loaded { hooks, links, programs, inodes, query_map, identify, control, numbers: Vec::new() };
    let numbers = loaded.objects().map(|object| sys::number(object.as_fd())).collect::<io::Result<_>>();
    loaded.numbers = numbers.map_err(refused("reading the number of an object"))?;
    Ok((loaded, maps))
}

fn program<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P, BpfUnavailable>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = aya::programs::ProgramError>,
{
    let missing = || absent(name);
    ebpf.program_mut(name).ok_or_else(missing)?.try_into().map_err(refused(name))
}

fn copy(fd: &impl AsFd) -> Result<OwnedFd, BpfUnavailable> {
    fd.as_fd().try_clone_to_owned().map_err(refused("a descriptor"))
}

/// Returns a map by name, after checking the sizes with which this crate uses it.
fn map(ebpf: &Ebpf, name: &'static str, sizes: (usize, usize)) -> Result<OwnedFd, BpfUnavailable> {
    let fd = match ebpf.map(name) {
        Some(Map::HashOfMaps(data) | Map::HashMap(data) | Map::Array(data)) => copy(data.fd())?,
        _ => return Err(absent(name)),
    };
    let found = sys::sizes(fd.as_fd()).map_err(refused(name))?;
    if found == sizes {
        Ok(fd)
    } else {
        let why = format!("its sizes are {found:?}, not {sizes:?}");
        Err(BpfUnavailable::Refused { what: name, why, requirement: None })
    }
}

fn absent(name: &'static str) -> BpfUnavailable {
    BpfUnavailable::Refused { what: name, why: "not found in the BPF object".into(), requirement: None }
}
