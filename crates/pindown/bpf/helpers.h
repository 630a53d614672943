/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The kernel's interface to BPF programs, as far as the programs use it: helper functions by their numbers
 * (include/uapi/linux/bpf.h), the declaration of maps and programs, and accesses that the loader relocates. Declared
 * here, so that the programs depend on no header of the machine that compiles them.
 */
#ifndef PINDOWN_HELPERS_H
#define PINDOWN_HELPERS_H

#include "kernel.h"

#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))

/* Places a program or an object in the section that the loader expects. */
#define SEC(name) __attribute__((section(name), used))

/*
 * The members of a map's declaration, which the loader reads from the BTF of the object: a number is the length of an
 * array, a type is that of a pointer, and the maps in a map of maps are an array of pointers.
 */
#define __uint(name, number) int (*name)[number]
#define __type(name, kind) __typeof__(kind) *name
#define __array(name, kind) __typeof__(kind) *name[]

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*const bpf_ringbuf_output)(void *ring, const void *data, u64 size, u64 flags) = (void *)130;
static u64 (*const bpf_ringbuf_query)(void *ring, u64 what) = (void *)134;
static void *(*const bpf_task_storage_get)(void *map, struct task_struct *task, void *value, u64 flags) = (void *)156;
static struct task_struct *(*const bpf_get_current_task_btf)(void) = (void *)158;
static long (*const bpf_task_pt_regs)(struct task_struct *task) = (void *)175;
static long (*const bpf_find_vma)(struct task_struct *task, u64 address, void *callback, void *context,
				  u64 flags) = (void *)180;

/* Reads a member of a structure of the kernel at an address that the verifier does not know to be valid. */
#define read_member(to, member) bpf_probe_read_kernel(to, sizeof(*(to)), __builtin_preserve_access_index(&(member)))

/* Whether the running kernel's type has the member. */
#define has_member(type, member) __builtin_preserve_field_info(((type *)0)->member, 2 /* BPF_CORE_FIELD_EXISTS */)

/* The offset of a member in the running kernel's type. */
#define offset_of_member(type, member) \
	__builtin_preserve_field_info(((type *)0)->member, 0 /* BPF_CORE_FIELD_BYTE_OFFSET */)

/*
 * Atomic operations on words that other processors read. Each is a full barrier. On aarch64 this holds only for the
 * instructions that return the old value; a compiler selects these if the value is used.
 */
static __always_inline u64 add(u64 *word, u64 value)
{
	u64 old = __sync_fetch_and_add(word, value);

	asm volatile("" : : "r"(old));
	return old;
}

static __always_inline void set_bits(u64 *word, u64 bits)
{
	u64 old = __sync_fetch_and_or(word, bits);

	asm volatile("" : : "r"(old));
}

static __always_inline void store(volatile u64 *word, u64 value)
{
	u64 old = __sync_lock_test_and_set(word, value);

	asm volatile("" : : "r"(old));
}

#endif
