/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* aarch64: registers and numbers of system calls, tags of addresses, sizes of pages. x86_64.h has the same names. */
#ifndef PINDOWN_AARCH64_H
#define PINDOWN_AARCH64_H

#include "helpers.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct pt_regs {
	u64 regs[31];
	u64 pstate;
	u64 orig_x0;
	int syscallno;
};

struct task_struct___aarch64 {
	unsigned int ptrace;
};

#pragma clang attribute pop

/*
 * The arguments of a system call, until it returns. The kernel also takes the first one from its register, and not from
 * `orig_x0`, because a debugger may have changed it.
 */
#define ARGUMENT_1(in) ((in)->regs[0])
#define ARGUMENT_2(in) ((in)->regs[1])
#define ARGUMENT_3(in) ((in)->regs[2])
#define ARGUMENT_4(in) ((in)->regs[3])
#define ARGUMENT_5(in) ((in)->regs[4])

/* System calls with separate cases. quiet.h has the other known ones. */
enum {
	NR_open = -2, /* does not exist */
	NR_ioctl = 29,
	NR_openat = 56,
	NR_prctl = 167,
	NR_shmat = 196,
	NR_shmdt = 197,
	NR_brk = 214,
	NR_munmap = 215,
	NR_mremap = 216,
	NR_mmap = 222,
	NR_mprotect = 226,
	NR_madvise = 233,
	NR_remap_file_pages = 234,
	NR_open_by_handle_at = 265,
	NR_pkey_mprotect = 288,
	NR_process_madvise = 440,
};

/* The rows of quiet.h as labels of a switch over this processor's numbers. */
#define CASE(x86_64, aarch64, name) case aarch64:
#define CASE_OLD(x86_64, name)

/* Returns the number of the system call, or -1 in an exception. */
static __always_inline int number(struct pt_regs *regs)
{
	return regs->syscallno;
}

/* arch/arm64/include/asm/ptrace.h: the task runs 32-bit code, whose system calls have another table of numbers */
#define PSR_MODE32_BIT 0x10

static __always_inline int is_compat(struct task_struct *task, struct pt_regs *regs)
{
	return !!(regs->pstate & PSR_MODE32_BIT);
}

/*
 * Returns whether the system call that the task was last in has returned. Its result then replaces its first argument.
 * If both are the same number (mmap at a fixed address), the call counts as not returned, until the next interrupt or
 * exception of the thread. The same holds if a debugger may have changed the argument.
 */
static __always_inline int has_returned(struct task_struct *task, struct pt_regs *regs)
{
	return regs->regs[0] != regs->orig_x0 && !((struct task_struct___aarch64 *)task)->ptrace;
}

static __always_inline int tracked(int nr)
{
	return nr == NR_madvise || nr == NR_mmap || nr == NR_mremap || nr == NR_process_madvise;
}

/* mremap, mmap2 and madvise of 32-bit programs. Their process_madvise has the same number. */
static __always_inline int tracked_compat(int nr)
{
	return nr == 163 || nr == 192 || nr == 220;
}

/*
 * Bits 56 to 63 of an address may be a tag. The kernel ignores it in addresses of user memory, in which bit 55 is 0.
 * Without a tag, these have at most 52 bits.
 */
#define ADDRESS_BITS 55

static __always_inline u64 without_tag(u64 address)
{
	return address & 1ull << 55 ? address : address & ((1ull << 56) - 1);
}

/* Returns the size of the largest page that may start at the address: 4 KiB, 64 KiB, 2 MiB, 32 MiB or 1 GiB. */
static __always_inline u64 largest_page(u64 start)
{
	if (start & ((1ull << 16) - 1))
		return 4096;
	if (start & ((1ull << 21) - 1))
		return 1ull << 16;
	if (start & ((1ull << 25) - 1))
		return 1ull << 21;
	return start & ((1ull << 30) - 1) ? 1ull << 25 : 1ull << 30;
}

#endif
