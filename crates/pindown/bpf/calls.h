/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The effect of a system call on its address space, by its number and arguments. */
#ifndef PINDOWN_CALLS_H
#define PINDOWN_CALLS_H

#include "page.h"
#include "quiet.h"

/* Returns whether madvise with this advice removes pinned pages. Unknown advice counts as removing pages. */
static __always_inline int takes_pages(u64 advice)
{
	if (advice >= 64)
		return advice != 103; /* GUARD_REMOVE */
	/* NORMAL RANDOM SEQUENTIAL WILLNEED, FREE, DONTFORK to KEEPONFORK, COLD PAGEOUT POPULATE_*, COLLAPSE */
	return !((0x0full | 1ull << 8 | 0x3ffull << 10 | 0xfull << 20 | 1ull << 25) >> advice & 1);
}

static __always_inline int replaces(u64 flags)
{
	return flags & MAP_FIXED && !(flags & MAP_FIXED_NOREPLACE);
}

static __always_inline void remapped(struct page *page, struct pt_regs *regs)
{
	u64 start = ARGUMENT_1(regs), from = ARGUMENT_2(regs), to = ARGUMENT_3(regs), flags = ARGUMENT_4(regs);
	u64 all = rounded(start, from);

	if (flags & (MREMAP_FIXED | MREMAP_DONTUNMAP) || (to > from && flags & 1))
		changed(page, start, all); /* the mapping may have moved as a whole */
	else if (to < from)
		changed(page, start + to, all - to);
	if (flags & MREMAP_FIXED)
		changed_huge(page, ARGUMENT_5(regs), to);
}

/* The kinds of tasks. OWN: a task of the address space `mm`, in one of its own 64-bit system calls or in an
 * exception. */
#define OWN 0
#define FOREIGN 1
#define WORKER 2 /* of io_uring: it has no system call */
#define COMPAT 3

static __always_inline int kind_of(struct task_struct *task, u64 mm)
{
	struct pt_regs *regs;

	if ((u64)task->mm != mm || task->flags & PF_KTHREAD)
		return FOREIGN;
	if (task->flags & PF_IO_WORKER)
		return WORKER;
	if (task->flags & PF_USER_WORKER) /* of vhost: its registers are those of the call that created it */
		return FOREIGN;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	return is_compat(task, regs) ? COMPAT : OWN;
}

/* The effect of a task's own call on pinned pages. */
#define UNKNOWN 0 /* any effect: its changes count as a change of everything */
#define COPIES 1  /* none, unless the call holds the lock of the address space for writing */
#define KEEPS 2   /* none, or an effect that is reported elsewhere */

/*
 * Returns the effect of a command of ioctl(2). The second byte of a command identifies its kind of descriptor.
 */
static __always_inline int command(u32 command)
{
	switch (command >> 8 & 0xff) {
	case 'T':  /* terminals, and commands for any descriptor (FIONREAD): copies */
	case 0x89: /* sockets: copies */
	case '$':  /* perf counters: copies */
	case 0x1b: /* RDMA verbs: pin pages */
	case ';':  /* VFIO and IOMMUFD: pin pages */
	case 'F':  /* NVIDIA's driver: pins pages */
	case 0xae: /* KVM: brings in pages of the guest */
		return COPIES;
	case 0xaa: /* userfaultfd: puts pages where there are none, except for the command that moves them */
		return (command & 0xff) == UFFDIO_MOVE ? UNKNOWN : COPIES;
	}
	return UNKNOWN; /* includes commands of file systems, which may shorten a file */
}

static __always_inline int does(struct pt_regs *regs)
{
	switch (number(regs)) {
	CALLS_THAT_KEEP(CASE, CASE_OLD)
	case -1: /* an exception: pages are brought in, or copied before they are written */
		return KEEPS;
	CALLS_THAT_COPY(CASE, CASE_OLD)
		return COPIES;
	case NR_open:
		return ARGUMENT_2(regs) & O_TRUNC ? UNKNOWN : COPIES;
	case NR_openat:
	case NR_open_by_handle_at:
		return ARGUMENT_3(regs) & O_TRUNC ? UNKNOWN : COPIES;
	case NR_process_madvise:
		return takes_pages(ARGUMENT_4(regs)) ? UNKNOWN : COPIES;
	case NR_ioctl:
		return command(ARGUMENT_2(regs));
	}
	return UNKNOWN;
}

/* Returns whether the call may replace pages before rss_stat reports it, on kernels that free page tables early. */
static __always_inline int begins(struct pt_regs *regs)
{
	switch (number(regs)) {
	case NR_madvise:
		return takes_pages(ARGUMENT_3(regs));
	case NR_process_madvise:
		return takes_pages(ARGUMENT_4(regs));
	case NR_mmap:
		return replaces(ARGUMENT_4(regs));
	case NR_mremap:
		return !!(ARGUMENT_4(regs) & MREMAP_FIXED);
	}
	return 0;
}

#endif
