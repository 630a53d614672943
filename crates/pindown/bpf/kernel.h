/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The kernel's types, as far as the programs look into them. Offsets are not these: the loader takes them from the
 * running kernel's BTF (preserve_access_index). A suffix after three underscores is no part of a type's name.
 */
#ifndef PINDOWN_KERNEL_H
#define PINDOWN_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef __u8 u8;
typedef __u32 u32;
typedef __u64 u64;
typedef __s64 s64;

/* What bpf(2) says of map types and flags (linux/bpf.h): declared here so that no header of the C library is needed. */
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
	struct super_block *i_sb;
	unsigned long i_ino;
	unsigned int i_flags;
};

struct address_space {
	struct inode *host;
};

struct folio {
	struct address_space *mapping;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
};

struct path {
	struct dentry *dentry;
};

struct file {
	struct address_space *f_mapping;
	struct path f_path;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	unsigned long vm_flags;
	struct file *vm_file;
};

typedef struct {
	int counter;
} atomic_t;

struct mm_struct {
	atomic_t mm_users;
	unsigned long brk;
};

/* Until 6.17 a word, since then a bitmap in a structure: the first word is the same. */
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

struct thread_info {
	u32 status;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int flags;
	int pid;
	struct mm_struct *mm;
	const struct cred *cred;
};

struct pt_regs {
	unsigned long r10, r9, r8;
	unsigned long ax, dx, si, di;
	unsigned long orig_ax;
};

struct io_kiocb {
	u8 opcode;
};

struct io_madvise {
	u32 advice;
};

struct bpf_iter__task {
	struct task_struct *task;
};

#pragma clang attribute pop

struct bpf_raw_tracepoint_args {
	__u64 args[0];
};

/* include/linux/sched.h */
#define PF_IO_WORKER 0x10
#define PF_MEMALLOC 0x800
#define PF_KTHREAD 0x200000
/* arch/x86/include/asm/thread_info.h: a system call of the 32-bit kind is running */
#define TS_COMPAT 2
/* include/linux/mm_types_task.h */
#define MM_SWAPENTS 2
/* include/linux/fs.h: no path of a user's leads to the inode */
#define S_PRIVATE (1 << 9)

/* System calls of x86-64. */
enum {
	NR_open = 2,
	NR_mmap = 9,
	NR_mprotect = 10,
	NR_munmap = 11,
	NR_brk = 12,
	NR_mremap = 25,
	NR_madvise = 28,
	NR_shmat = 30,
	NR_clone = 56,
	NR_fork = 57,
	NR_vfork = 58,
	NR_shmdt = 67,
	NR_truncate = 76,
	NR_ftruncate = 77,
	NR_creat = 85,
	NR_mlock = 149,
	NR_munlock = 150,
	NR_mlockall = 151,
	NR_munlockall = 152,
	NR_prctl = 157,
	NR_remap_file_pages = 216,
	NR_mbind = 237,
	NR_set_mempolicy = 238,
	NR_get_mempolicy = 239,
	NR_migrate_pages = 256,
	NR_openat = 257,
	NR_move_pages = 279,
	NR_fallocate = 285,
	NR_mlock2 = 325,
	NR_pkey_mprotect = 329,
	NR_pkey_alloc = 330,
	NR_pkey_free = 331,
	NR_clone3 = 435,
	NR_openat2 = 437,
	NR_process_madvise = 440,
	NR_set_mempolicy_home_node = 450,
	NR_mseal = 462,
};

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
#define ENOSYS 38
#define EBUSY 16

enum {
	IORING_OP_FALLOCATE = 17,
	IORING_OP_OPENAT = 18,
	IORING_OP_MADVISE = 25,
	IORING_OP_OPENAT2 = 28,
	IORING_OP_FTRUNCATE = 55,
};

#endif
