/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Reports which ranges of a process's memory no longer have the pages that they had.
 *
 * There is one page (struct page, shared with the process, which can only read it) for each address space that
 * requested it. A change is reported by a record in its ring. Each record advances `head`, so an unchanged head means
 * that nothing has changed. (Pages that are removed from watched files are counted in `ino` instead.)
 *
 * Every report obeys one rule: it is made after the old pages can no longer be pinned through the address, and before
 * any thread can access new ones there. This holds directly before the lock of an address space is released, and
 * directly after the count of a page table has changed (under the lock of that table). On kernels that free page tables
 * early, the rule does not hold for a few calls. These are reported when they begin, and `busy` counts them until they
 * end: while it is not 0, no registration may be inserted into a cache.
 *
 * If the changed range cannot be determined, everything is reported as changed (global): this causes unnecessary work,
 * but never a stale registration.
 *
 * A report begins with an atomic operation that is a full barrier (`add`). So the rule also holds on processors that
 * reorder memory accesses: a thread that has learned of the change from the thread that made it, or that has taken the
 * lock of the address space or of the page table since, reads the advanced head.
 *
 * `cargo xtask bpf` compiles this file for each processor. The objects are checked in beside it.
 */
#include "page.h"
#include "calls.h"

/*
 * An intentional defect, for the test that must detect it: changes are reported only when they begin. The loader sets
 * it before the programs are verified, so the verifier removes the code of the other case.
 */
const volatile u8 entry_only = 0;

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/*
 * Ends the page of an address space if its last task has left it, by exit or exec. Returns whether that is the case. No
 * task can enter the space again, and its mm_struct is not freed yet: from now on the page reports nothing, even if
 * another address space gets that mm_struct. The kernel takes the lock to remove the mappings (exit_mmap), so
 * `released` detects this in time, with or without a helper.
 */
static __always_inline int is_taken_down(struct mm_struct *mm, struct page *page)
{
	if (mm->mm_users.counter)
		return 0;
	ended(page);
	return 1;
}

/* The lock on an address space is about to be released. */
static __always_inline int released(u64 mm, int write)
{
	struct page *page = page_of(mm);
	struct task_struct *task;
	struct pt_regs *regs;
	u64 now;

	if (!page)
		return 0;
	if (is_taken_down((struct mm_struct *)mm, page) || entry_only)
		return 0;
	task = bpf_get_current_task_btf();
	switch (kind_of(task, mm)) {
	case FOREIGN: /* if a reader removes pages, rss_stat reports it */
		if (write)
			global(page);
		return 0;
	case WORKER:
		if (write && page->sticky)
			global(page);
		return 0;
	case COMPAT:
		global(page);
		return 0;
	}
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	switch (number(regs)) {
	case NR_munmap:
	case NR_remap_file_pages:
		changed(page, ARGUMENT_1(regs), ARGUMENT_2(regs));
		return 0;
	case NR_mmap:
		if (replaces(ARGUMENT_4(regs)))
			changed_huge(page, ARGUMENT_1(regs), ARGUMENT_2(regs));
		return 0;
	case NR_mremap:
		remapped(page, regs);
		return 0;
	case NR_brk:
		now = task->mm->brk;
		if (now < page->last_brk)
			changed(page, now, page->last_brk - now);
		page->last_brk = now;
		return 0;
	case NR_shmdt:
		global(page);
		return 0;
	case NR_shmat:
		if (ARGUMENT_3(regs) & SHM_REMAP)
			global(page);
		return 0;
	case NR_mprotect:
	case NR_pkey_mprotect:
		if ((ARGUMENT_3(regs) & (PROT_READ | PROT_WRITE)) == (PROT_READ | PROT_WRITE))
			return 0;
		if (ARGUMENT_3(regs) & PROT_GROWS)
			global(page);
		else
			changed(page, ARGUMENT_1(regs), ARGUMENT_2(regs));
		return 0;
	case NR_prctl:
		if ((u32)ARGUMENT_1(regs) == PR_SET_MM) { /* the call may have moved the break without unmapping anything */
			page->last_brk = (1ull << 56) - 1;
			global(page);
		}
		return 0;
	}
	switch (does(regs)) {
	case KEEPS:
		return 0;
	case COPIES:
		if (write)
			global(page);
		return 0;
	}
	global(page);
	return 0;
}

SEC("tp_btf/mmap_lock_released")
int lock_released(u64 *ctx)
{
	return released(ctx[0], (u8)ctx[1]);
}

/* The variant for older kernels. Its second argument is the path of a memory cgroup. */
SEC("tp_btf/mmap_lock_released")
int lock_released_memcg(u64 *ctx)
{
	return released(ctx[0], (u8)ctx[2]);
}

/* Pages were added to or removed from a page table of `mm`. The lock of the table is still held. */
SEC("tp_btf/rss_stat")
int pages_counted(u64 *ctx)
{
	u64 mm = ctx[0];
	struct page *page;
	struct task_struct *task;
	struct pt_regs *regs;

	if ((u32)ctx[1] == MM_SWAPENTS)
		return 0;
	page = page_of(mm);
	if (!page || entry_only)
		return 0;
	task = bpf_get_current_task_btf();
	switch (kind_of(task, mm)) {
	case FOREIGN: /* reclaim leaves pinned pages alone */
		if (!(task->flags & PF_MEMALLOC))
			global(page);
		return 0;
	case WORKER:
		if (page->sticky)
			global(page);
		return 0;
	case COMPAT:
		global(page);
		return 0;
	}
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	switch (number(regs)) {
	case NR_madvise:
		if (takes_pages(ARGUMENT_3(regs)))
			changed(page, ARGUMENT_1(regs), ARGUMENT_2(regs));
		return 0;
	case NR_mmap:
		if (replaces(ARGUMENT_4(regs)))
			changed_huge(page, ARGUMENT_1(regs), ARGUMENT_2(regs));
		return 0;
	case NR_mremap:
		remapped(page, regs);
		return 0;
	}
	/* Only calls that are known not to affect pinned pages are excluded. Reclaim does not affect them either. */
	if (does(regs) == UNKNOWN && !(task->flags & PF_MEMALLOC))
		global(page);
	return 0;
}

/* A page is removed from the page cache of its file. It is unmapped everywhere, locked, and not yet replaced. */
SEC("tp_btf/mm_filemap_delete_from_page_cache")
int cache_deleted(u64 *ctx)
{
	struct inode *inode = ((struct folio *)ctx[0])->mapping->host;
	struct inode_key key = { .dev = inode->i_sb->s_dev, .ino = inode->i_ino };
	struct subscribers *all = bpf_map_lookup_elem(&inodes, &key);
	struct page *page;

	if (!all)
		return 0;
	for (int i = 0; i < SUBSCRIBERS; i++) {
		u64 mm = *(volatile u64 *)&all->one[i].mm;

		page = mm ? page_of(mm) : 0;
		if (!page)
			continue;
		add(&page->ino[all->one[i].slot & (SLOTS - 1)], 1);
		wake(page);
	}
	return 0;
}

/* The effects of a worker that executes a request. */
#define NOTHING 0
#define CUTS 1	/* shortens a file */
#define TAKES 2 /* removes pages of the address space */

static __always_inline int request(struct io_kiocb *req, u8 opcode)
{
	u32 advice = ~0u;

	switch (opcode) {
	case IORING_OP_FALLOCATE:
	case IORING_OP_FTRUNCATE:
	case IORING_OP_OPENAT:
	case IORING_OP_OPENAT2:
	case IORING_OP_URING_CMD:
		return CUTS;
	case IORING_OP_MADVISE:
		/* The data of the operation is at the start of a request. */
		if (has_member(struct io_madvise, advice))
			read_member(&advice, ((struct io_madvise *)req)->advice);
		return takes_pages(advice) ? TAKES : NOTHING;
	}
	return opcode < IORING_OP_KNOWN ? NOTHING : CUTS;
}

static __always_inline int submitted(struct io_kiocb *req)
{
	int what = request(req, req->opcode);
	struct page *page;

	if (what == NOTHING)
		return 0;
	page = page_of((u64)bpf_get_current_task_btf()->mm);
	if (!page)
		return 0;
	/* A worker will execute it, and its end is not reported. */
	if (what == TAKES)
		set_bits(&page->busy, BUSY_FOREVER);
	store(&page->sticky, 1);
	if (what == TAKES)
		global(page);
	return 0;
}

SEC("tp_btf/io_uring_submit_req")
int request_submitted(u64 *ctx)
{
	return submitted((struct io_kiocb *)ctx[0]);
}

/* The same tracepoint under its older name. */
SEC("tp_btf/io_uring_submit_sqe")
int request_submitted_old(u64 *ctx)
{
	return submitted((struct io_kiocb *)ctx[0]);
}

/*
 * A request is passed to a worker. This includes requests that were submitted before the page existed and waited for a
 * timeout, a file or another request. `identify` finds requests that workers already had when the page is inserted.
 */
SEC("tp_btf/io_uring_queue_async_work")
int request_queued(u64 *ctx)
{
	return submitted((struct io_kiocb *)ctx[0]);
}

SEC("tp_btf/sys_enter")
int call_entered(u64 *ctx)
{
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	struct task_struct *task;
	struct page *page;
	u64 *counted;
	int compat;

	/* The number is checked first, because this runs at each system call of the machine. */
	if (!tracked(ctx[1]) && !tracked_compat(ctx[1]))
		return 0;
	task = bpf_get_current_task_btf();
	compat = is_compat(task, regs);
	if (!compat && !tracked(ctx[1]))
		return 0;
	page = page_of((u64)task->mm);
	if (!page)
		return 0;
	if (!compat && !begins(regs))
		return 0;
	counted = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (compat || !counted || *counted == page->name) {
		set_bits(&page->busy, BUSY_FOREVER);
		global(page);
		return 0;
	}
	*counted = page->name;
	if (!entry_only)
		add(&page->busy, 1);
	switch (number(regs)) {
	case NR_madvise:
		changed(page, ARGUMENT_1(regs), ARGUMENT_2(regs));
		break;
	case NR_mmap:
		changed_huge(page, ARGUMENT_1(regs), ARGUMENT_2(regs));
		break;
	case NR_mremap:
		remapped(page, regs);
		break;
	default:
		global(page);
	}
	return 0;
}

SEC("tp_btf/sys_exit")
int call_left(u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	struct page *page;
	u64 *counted;

	if (!tracked(number(regs)))
		return 0;
	page = page_of((u64)task->mm);
	if (!page)
		return 0;
	counted = bpf_task_storage_get(&threads, task, 0, 0);
	if (counted && *counted == page->name) {
		*counted = 0;
		if (!entry_only)
			add(&page->busy, -1);
	} else if (!is_compat(task, regs) && begins(regs))
		global(page); /* the call began before this page existed */
	return 0;
}

static long on_mapping(struct task_struct *task, struct vm_area_struct *vma, struct question *q)
{
	struct file *file = vma->vm_file;
	struct inode *inode;

	q->vm_start = vma->vm_start;
	q->vm_end = vma->vm_end;
	q->vm_flags = vma->vm_flags;
	if (!file || !vma->vm_ops) /* mappings of /dev/zero are anonymous memory, too */
		return 0;
	inode = file->f_mapping->host;
	q->dev = inode->i_sb->s_dev;
	q->ino = inode->i_ino;
	q->magic = inode->i_sb->s_magic;
	q->regular = (inode->i_mode & S_IFMT) == S_IFREG;
	return 0;
}

/* Returns whether a request waits for a worker. */
static __always_inline int has_queue(struct io_wq *wq)
{
	struct io_wq_work_node *one = 0, *other = 0;

	read_member(&one, wq->acct[0].work_list.first);
	read_member(&other, wq->acct[1].work_list.first);
	return one || other;
}

/*
 * Returns whether io_uring workers have a request that may change memory, or will get one that passes no tracepoint.
 * This is a request that waits for a worker or, if the task is a worker, a request that it executes or that begins
 * after that one.
 */
static __always_inline int has_work(struct task_struct *task)
{
	struct io_worker *worker = task->worker_private;
	struct io_uring_task *own = 0;
	struct io_wq_work *work = 0;
	struct io_wq *wq = 0;
	struct io_kiocb *req;
	u32 flags = ~0u;
	u8 opcode = ~0;

	if (!has_member(struct io_worker, cur_work) || !has_member(struct io_uring_task, io_wq) ||
	    !has_member(struct io_wq, acct) || !has_member(struct io_wq_acct, work_list))
		return !!(task->flags & PF_IO_WORKER); /* workers of a kernel with another layout */
	own = task->io_uring;
	if (own) {
		read_member(&wq, own->io_wq);
		if (wq && has_queue(wq))
			return 1;
	}
	if (!(task->flags & PF_IO_WORKER) || !worker)
		return 0;
	/* Waiting requests are checked first, because the worker may take one in the meantime. */
	read_member(&wq, worker->wq);
	if (!wq || has_queue(wq))
		return 1;
	read_member(&work, worker->cur_work);
	if (!work)
		return 0;
	req = (void *)work - offset_of_member(struct io_kiocb, work);
	read_member(&flags, req->flags);
	read_member(&opcode, req->opcode);
	return flags & REQ_F_LINKED || request(req, opcode) != NOTHING;
}

/*
 * Describes the address space of a process that a pidfd refers to: its user, the mapping at an address, and whether an
 * operation that will not be reported is in progress in it.
 */
SEC("iter/task")
int identify(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct question copy = {}, *q;
	struct pt_regs *regs;
	struct mm_struct *mm;
	u32 zero = 0;
	u64 flags = 0;

	q = bpf_map_lookup_elem(&asked, &zero);
	if (!task || !q)
		return 0;
	mm = task->mm;
	if (!mm)
		return 0;
	q->tasks++;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	if (begins(regs) && !has_returned(task, regs) && !(task->flags & PF_IO_WORKER))
		q->beginning++;
	if (has_work(task))
		q->working++;
	if (q->mm)
		return 0;
	copy.start = q->start;
	copy.end = q->end;
	copy.mm = (u64)mm;
	copy.tasks = q->tasks;
	copy.beginning = q->beginning;
	copy.working = q->working;
	copy.users = mm->mm_users.counter;
	copy.euid = task->cred->euid.val;
	if (has_member(struct mm_struct___bitmap, flags.__mm_flags))
		read_member(&flags, ((struct mm_struct___bitmap *)mm)->flags.__mm_flags[0]);
	else
		read_member(&flags, ((struct mm_struct___word *)mm)->flags);
	copy.dumpable = flags & 3;
	copy.found = q->start ? bpf_find_vma(task, q->start, on_mapping, &copy, 0) : 0;
	if ((u64)*(struct mm_struct *volatile *)&task->mm != copy.mm)
		return 0; /* exec has happened in the meantime: the mapping belongs to another program */
	*q = copy;
	return 0;
}

/* The commands of `control`. src/monitor/bpf/kernel.rs has the same values. */
#define END 0 /* no more registrations may be inserted */
#define SUBSCRIBE 1
#define UNSUBSCRIBE 2
#define ADMIT 3
#define DISMISS 4
#define DISTRUST 5 /* an operation was under way when the page was inserted */

/*
 * Executes commands of the loader for a page. The loader executes this program as a test run (BPF_PROG_TEST_RUN); it is
 * not attached. Arguments: command, mm, dev, ino, slot.
 */
SEC("raw_tp/pindown_control")
int control(struct bpf_raw_tracepoint_args *ctx)
{
	struct inode_key key = { .dev = ctx->args[2], .ino = ctx->args[3] };
	u64 what = ctx->args[0], mm = ctx->args[1], slot = ctx->args[4];
	struct subscribers *all;
	struct page *page;
	int empty = -1;
	u64 *like;

	if (what == ADMIT || what == DISMISS) {
		like = known_like(mm);
		if (!like)
			return 0;
		add(like, what == ADMIT ? 1 : -1);
		return 1;
	}
	if (what == END) {
		page = page_of(mm);
		if (!page)
			return 0;
		ended(page);
		return 1;
	}
	if (what == DISTRUST) {
		page = page_of(mm);
		if (!page)
			return 0;
		/*
		 * `slot` is not 0 on kernels that free page tables early. On others, changes by workers are reported
		 * when the pages are counted.
		 */
		if (slot)
			set_bits(&page->busy, BUSY_FOREVER);
		store(&page->sticky, 1);
		global(page);
		return 1;
	}
	all = bpf_map_lookup_elem(&inodes, &key);
	if (!all)
		return 0;
	for (int i = 0; i < SUBSCRIBERS; i++) {
		if (all->one[i].mm == mm && all->one[i].slot == slot) {
			if (what == UNSUBSCRIBE)
				all->one[i].mm = 0;
			return 1;
		}
		if (!all->one[i].mm && empty < 0)
			empty = i;
	}
	if (what != SUBSCRIBE || empty < 0)
		return 0;
	all->one[empty & (SUBSCRIBERS - 1)].slot = slot;
	store(&all->one[empty & (SUBSCRIBERS - 1)].mm, mm);
	return 1;
}
