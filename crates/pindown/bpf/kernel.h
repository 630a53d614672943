/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The parts of the kernel's types and constants that the programs read, as far as they are the same on every processor;
 * x86_64.h and aarch64.h have the others. Offsets are not used: the loader takes them from the running kernel's BTF
 * (preserve_access_index). A suffix after three underscores is not part of a type's name.
 */
#ifndef PINDOWN_KERNEL_H
#define PINDOWN_KERNEL_H

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

/* Map types and flags of bpf(2) (include/uapi/linux/bpf.h). */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_HASH_OF_MAPS = 13,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
	BPF_F_NO_PREALLOC = 1,
	BPF_F_MMAPABLE = 1 << 10,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
	BPF_RB_FORCE_WAKEUP = 2,
	BPF_RB_AVAIL_DATA = 0,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct super_block {
	u32 s_dev;
	unsigned long s_magic;
};

struct inode {
	unsigned short i_mode;
	struct super_block *i_sb;
	unsigned long i_ino;
};

struct address_space {
	struct inode *host;
};

struct folio {
	struct address_space *mapping;
};

struct file {
	struct address_space *f_mapping;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_flags;
	const struct vm_operations_struct *vm_ops;
	struct file *vm_file;
};

typedef struct {
	int counter;
} atomic_t;

struct mm_struct {
	atomic_t mm_users;
	unsigned long brk;
};

/* A word until Linux 6.17. Since then a bitmap in a structure with the same first word. */
struct mm_struct___word {
	unsigned long flags;
};

struct mm_flags {
	unsigned long __mm_flags[1];
};

struct mm_struct___bitmap {
	struct mm_flags flags;
};

struct kuid {
	u32 val;
};

struct cred {
	struct kuid euid;
};

struct task_struct {
	unsigned int flags;
	int pid;
	struct mm_struct *mm;
	const struct cred *cred;
	void *worker_private;
	struct io_uring_task *io_uring;
};

struct io_wq_work_node {
	struct io_wq_work_node *next;
};

struct io_wq_work {
	struct io_wq_work_node list;
};

struct io_wq_work_list {
	struct io_wq_work_node *first;
};

struct io_wq_acct {
	struct io_wq_work_list work_list;
};

struct io_wq {
	struct io_wq_acct acct[2];
};

struct io_uring_task {
	struct io_wq *io_wq;
};

struct io_worker {
	struct io_wq *wq;
	struct io_wq_work *cur_work;
};

struct io_kiocb {
	u8 opcode;
	u32 flags;
	struct io_wq_work work;
};

struct io_madvise {
	u32 advice;
};

struct bpf_iter__task {
	struct task_struct *task;
};

#pragma clang attribute pop

struct bpf_raw_tracepoint_args {
	u64 args[0];
};

/* include/linux/sched.h */
#define PF_IO_WORKER 0x10
#define PF_MEMALLOC 0x800
#define PF_USER_WORKER 0x4000
#define PF_KTHREAD 0x200000
/* include/linux/mm_types_task.h */
#define MM_SWAPENTS 2
/* include/uapi/linux/stat.h */
#define S_IFMT 00170000
#define S_IFREG 0100000

#define PROT_READ 1
#define PROT_WRITE 2
#define PROT_GROWS 0x03000000 /* PROT_GROWSDOWN, PROT_GROWSUP */
#define MAP_FIXED 0x10
#define MAP_FIXED_NOREPLACE 0x100000
#define MREMAP_FIXED 2
#define MREMAP_DONTUNMAP 4
#define SHM_REMAP 040000
#define O_TRUNC 01000
#define PR_SET_MM 35
#define UFFDIO_MOVE 5
#define ENOSYS 38

enum {
	IORING_OP_FALLOCATE = 17,
	IORING_OP_OPENAT = 18,
	IORING_OP_MADVISE = 25,
	IORING_OP_OPENAT2 = 28,
	IORING_OP_URING_CMD = 46,
	IORING_OP_FTRUNCATE = 55,
	IORING_OP_KNOWN = 63, /* the first unknown one */
};

/* include/linux/io_uring_types.h: other requests follow, which begin after this one has ended */
#define REQ_F_LINKED (1 << 2 | 1 << 3)

#endif
