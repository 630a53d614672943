//! Small experiments: does this kernel, in this container, let us do that?

use std::io;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::memory::kernel;

/// Whether the kernel copies between processes (cross-memory attach), tried on ourselves. That it works between two given
/// processes is found out again when they connect.
pub(super) fn cma() -> Result<(), String> {
    let from = 0x0123_4567_89ab_cdef_u64;
    let own = rustix::process::getpid().as_raw_pid();
    match kernel::word_at(own, (&raw const from).expose_provenance() as u64) {
        Ok(to) if to == from => {}
        Ok(_) => return Err("process_vm_readv copied something else".into()),
        Err(error) => return Err(format!("process_vm_readv: {error}")),
    }
    match std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
        Ok(scope) if scope.trim() != "0" => {
            Err(format!("kernel.yama.ptrace_scope is {}, so only a debugger's children can be read", scope.trim()))
        }
        _ => Ok(()),
    }
}

/// Whether abstract Unix sockets work.
pub(super) fn abstract_socket() -> io::Result<()> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut name = *b"percale-probe-0000000000000000";
    let number = format!("{:016x}", u64::from(std::process::id()) << 32 | std::ptr::from_ref(&name).addr() as u64 >> 4);
    name[14..].copy_from_slice(&number.as_bytes()[..16]);
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(&name)?)?;
    rustix::net::listen(&socket, 1)?;
    Ok(())
}
