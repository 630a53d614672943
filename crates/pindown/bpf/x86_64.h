/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* x86-64: registers and numbers of system calls, tags of addresses, sizes of pages. aarch64.h has the same names. */
#ifndef PINDOWN_X86_64_H
#define PINDOWN_X86_64_H

#include "helpers.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct pt_regs {
	unsigned long r10, r9, r8;
	unsigned long ax, dx, si, di;
	unsigned long orig_ax;
};

struct thread_info {
	u32 status;
};

struct task_struct___x86 {
	struct thread_info thread_info;
};

#pragma clang attribute pop

/* The arguments of a system call. */
#define ARGUMENT_1(regs) ((regs)->di)
#define ARGUMENT_2(regs) ((regs)->si)
#define ARGUMENT_3(regs) ((regs)->dx)
#define ARGUMENT_4(regs) ((regs)->r10)
#define ARGUMENT_5(regs) ((regs)->r8)

/* System calls with separate cases. quiet.h has the other known ones. */
enum {
	NR_open = 2,
	NR_mmap = 9,
	NR_mprotect = 10,
	NR_munmap = 11,
	NR_brk = 12,
	NR_ioctl = 16,
	NR_mremap = 25,
	NR_madvise = 28,
	NR_shmat = 30,
	NR_shmdt = 67,
	NR_prctl = 157,
	NR_remap_file_pages = 216,
	NR_openat = 257,
	NR_open_by_handle_at = 304,
	NR_pkey_mprotect = 329,
	NR_process_madvise = 440,
};

/* The rows of quiet.h as labels of a switch over this processor's numbers. */
#define CASE(x86_64, aarch64, name) case x86_64:
#define CASE_OLD(x86_64, name) case x86_64:

/*
 * Returns the number of the system call. Like the kernel, this uses only the lower half of the register. Returns -1 in
 * an exception.
 */
static __always_inline int number(struct pt_regs *regs)
{
	return (int)regs->orig_ax;
}

static __always_inline int is_x32(int nr)
{
	return nr > 0 && nr & 0x40000000;
}

/* arch/x86/include/asm/thread_info.h: a 32-bit system call is running */
#define TS_COMPAT 2

/* Returns whether the task is in a system call with another table of numbers: that of i386, or x32. */
static __always_inline int is_compat(struct task_struct *task, struct pt_regs *regs)
{
	return ((struct task_struct___x86 *)task)->thread_info.status & TS_COMPAT || is_x32(number(regs));
}

/* Returns whether the system call that the task was last in has returned, by its result. */
static __always_inline int has_returned(struct task_struct *task, struct pt_regs *regs)
{
	return (s64)regs->ax != -ENOSYS;
}

static __always_inline int tracked(int nr)
{
	return nr == NR_madvise || nr == NR_mmap || nr == NR_mremap || nr == NR_process_madvise;
}

/* The same calls in the other two tables: mmap, mremap, mmap2, madvise of i386; and x32. */
static __always_inline int tracked_compat(int nr)
{
	return nr == 90 || nr == 163 || nr == 192 || nr == 219 || (is_x32(nr) && tracked(nr & ~0x40000000));
}

/*
 * Bits 57 to 62 of an address may be a tag (LAM), which the kernel ignores. Changes at tagged addresses are reported as
 * changes of everything.
 */
#define ADDRESS_BITS 57

static __always_inline u64 without_tag(u64 address)
{
	return address;
}

/* Returns the size of the largest page that may start at the address: 4 KiB, 2 MiB or 1 GiB. */
static __always_inline u64 largest_page(u64 start)
{
	return start & ((1ull << 21) - 1) ? 4096 : start & ((1ull << 30) - 1) ? 1ull << 21 : 1ull << 30;
}

#endif
