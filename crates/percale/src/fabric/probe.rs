//! Tests of the operations that this kernel permits in this container.

use crate::local_memory::kernel;

/// Tests on this process whether the kernel can copy between processes (cross-memory attach). Two processes test again
/// when they connect.
pub(super) fn cma() -> Result<(), String> {
    let from = 0x0123_4567_89ab_cdef_u64;
    let own = rustix::process::getpid().as_raw_pid();
    match kernel::word_at(own, (&raw const from).expose_provenance() as u64) {
        Ok(to) if to == from => {}
        Ok(_) => return Err("process_vm_readv copied wrong data".into()),
        Err(error) => return Err(format!("process_vm_readv: {error}")),
    }
    match std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
        Ok(scope) if scope.trim() != "0" => {
            Err(format!("kernel.yama.ptrace_scope is {}, so only a debugger's children can be read", scope.trim()))
        }
        _ => Ok(()),
    }
}
