/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Compares the numbers of system calls in quiet.h and in the headers of the processors with those in the kernel's
 * headers. `cargo xtask bpf --check` compiles it; it is not part of the programs. It is compiled on x86-64, where the
 * headers also have the table of new architectures (asm-generic), which is that of aarch64.
 */
#if defined(PINDOWN_X86_64)
#include <asm/unistd_64.h>
#include "x86_64.h"
#define CHECK(x86_64, aarch64, name) _Static_assert(__NR_##name == (x86_64), #name);
#define CHECK_OLD(x86_64, name) _Static_assert(__NR_##name == (x86_64), #name);
#else
/* The parts of the table that arch/arm64/include/uapi/asm/unistd.h selects. */
#define __ARCH_WANT_RENAMEAT
#define __ARCH_WANT_NEW_STAT
#define __ARCH_WANT_SET_GET_RLIMIT
#define __ARCH_WANT_TIME32_SYSCALLS
#define __ARCH_WANT_SYS_CLONE3
#define __ARCH_WANT_MEMFD_SECRET
#include <asm-generic/unistd.h>
#include "aarch64.h"
#define CHECK(x86_64, aarch64, name) _Static_assert(__NR_##name == (aarch64), #name);
#define CHECK_OLD(x86_64, name)
#endif
#include "quiet.h"

/* Calls that are newer than Linux 6.1. They have the same number on every processor. */
#ifndef __NR_fchmodat2
#define __NR_fchmodat2 452
#endif
#ifndef __NR_futex_wake
#define __NR_futex_wake 454
#define __NR_futex_wait 455
#define __NR_futex_requeue 456
#endif
#ifndef __NR_mseal
#define __NR_mseal 462
#endif

CALLS_THAT_COPY(CHECK, CHECK_OLD)
CALLS_THAT_KEEP(CHECK, CHECK_OLD)

#define SAME(name) _Static_assert(__NR_##name == NR_##name, #name);
SAME(mmap) SAME(mprotect) SAME(munmap) SAME(brk) SAME(ioctl) SAME(mremap) SAME(madvise) SAME(shmat) SAME(shmdt)
SAME(prctl) SAME(remap_file_pages) SAME(openat) SAME(open_by_handle_at) SAME(pkey_mprotect) SAME(process_madvise)
#if defined(PINDOWN_X86_64)
SAME(open)
#endif
