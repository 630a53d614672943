/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The page that a client reads, and how a change is written to it. */
#ifndef PINDOWN_PAGE_H
#define PINDOWN_PAGE_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>

#define SLOTS 64
#define RECORDS 1024
#define SUBSCRIBERS 64
#define SALT 0x70696e646f776e31ull /* "pindown1": also says which layout a page has */
#define BUSY_FOREVER (1ull << 63)
#define BUSY_ENDED (1ull << 62)

/* src/monitor/bpf/page.rs has the same layout. */
struct record {
	u64 seq, start, end, check;
};

struct page {
	u64 head;
	u64 unused[7];
	u64 busy;
	u64 last_brk;
	u64 sticky;
	u64 salt;
	u64 name; /* random: of its ring in `bells`, and of this page among all that there were */
	u64 unused_too[3];
	u64 ino[SLOTS];
	u8 fill[4096 - 128 - 8 * SLOTS];
	struct record ring[RECORDS];
};

struct page_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct page));
};

/* Address space -> page. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 4096);
	__type(key, u64);
	__array(values, struct page_map);
} pages SEC(".maps");

/*
 * How many address spaces with a page fall into each bucket: what most of the machine's processes are asked first, since
 * it takes a fraction of a look into `pages`. Counted by `control` before a page is put there and after it was taken away.
 */
#define BUCKETS_SHIFT 12
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << BUCKETS_SHIFT);
	__type(key, u32);
	__type(value, u64);
} known SEC(".maps");

static __always_inline u64 *known_like(u64 mm)
{
	u32 half, bucket;

	/* The verifier does not allow arithmetic on a pointer; its lower half, moved alone, is a number, and is sufficient. */
	asm volatile("%0 = %1" : "=w"(half) : "w"((u32)mm));
	bucket = half * 0x9e3779b1u >> (32 - BUCKETS_SHIFT);

	return bpf_map_lookup_elem(&known, &bucket);
}

struct bell_map {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

/* Rings that wake clients, by the names of their pages. A name is random, so a client learns nothing about others from it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 4096);
	__type(key, u64);
	__array(values, struct bell_map);
} bells SEC(".maps");

struct inode_key {
	u64 dev, ino;
};

/* The pages of reports that count the pages that leave an inode's page cache. Written in place, by `control` alone. */
struct subscribers {
	struct {
		u64 mm, slot;
	} one[SUBSCRIBERS];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct inode_key);
	__type(value, struct subscribers);
} inodes SEC(".maps");

/*
 * For each thread: the name of the page that counts, in `busy`, the call that the thread is in, or 0. The kernel frees it with
 * the thread, so it cannot be left behind, and no number of threads of one user takes room from another's.
 */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u64);
} threads SEC(".maps");

/* Question to `identify`, and its answer. src/monitor/bpf/kernel.rs has the same layout. */
struct question {
	u64 start, end; /* in: a range to look up, or zeros */
	u64 mm, dumpable, euid, beginning;
	u64 vm_start, vm_end, vm_flags; /* zeros: nothing is mapped at start */
	u64 dev, ino, magic, regular; /* a file of bytes, and no device */
	s64 found; /* what bpf_find_vma said */
	u64 working; /* workers of io_uring that may be in the middle of a change */
	u64 tasks, users; /* tasks of the process with the address space, and all who have it */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct question);
} asked SEC(".maps");

/* The page of an address space. A page that has ended belongs to no space: the address of its mm may be another's by now. */
static __always_inline struct page *page_of(u64 mm)
{
	u64 *like = known_like(mm);
	struct page *page;
	u32 zero = 0;
	void *map;

	if (!like || !*(volatile u64 *)like)
		return 0;
	map = bpf_map_lookup_elem(&pages, &mm);
	if (!map)
		return 0;
	page = bpf_map_lookup_elem(map, &zero);
	return page && !(*(volatile u64 *)&page->busy & BUSY_ENDED) ? page : 0;
}

/*
 * Wakes waiting clients after a report. A client that is about to wait empties its ring first: one record wakes it, and
 * no other is needed until that record has been taken.
 */
static __noinline int wake(struct page *page)
{
	u64 nothing = 0, name;
	void *bell;

	if (!page)
		return 0;
	name = page->name;
	bell = bpf_map_lookup_elem(&bells, &name);
	if (bell && !bpf_ringbuf_query(bell, BPF_RB_AVAIL_DATA))
		bpf_ringbuf_output(bell, &nothing, sizeof(nothing), BPF_RB_FORCE_WAKEUP);
	return 0;
}

static __noinline int emit(struct page *page, u64 start, u64 end)
{
	if (!page)
		return 0;
	u64 i = __sync_fetch_and_add(&page->head, 1);
	volatile struct record *r = &page->ring[i & (RECORDS - 1)];

	__sync_lock_test_and_set(&r->seq, 0);
	r->start = start;
	r->end = end;
	r->check = start ^ end ^ i ^ SALT;
	__sync_lock_test_and_set(&r->seq, i + 1);
	return wake(page);
}

static __always_inline void global(struct page *page)
{
	emit(page, 0, ~0ull);
}

/* Ends a page: nothing may be kept any more, and nothing is reported from here on. */
static __always_inline void ended(struct page *page)
{
	__sync_fetch_and_or(&page->busy, BUSY_ENDED);
	global(page);
}

/*
 * Reports a range as a call names it. Bits 57 to 62 of an address may be a tag (LAM), which the kernel ignores; no
 * address of a user has bit 56, so a range from there on overlaps nothing (that is what the helper's challenge is made
 * of).
 */
static __always_inline void changed(struct page *page, u64 start, u64 len)
{
	u64 end = start + len;

	if (!len)
		return;
	if (start >> 57 || end >> 57 || end < start)
		global(page);
	else
		emit(page, start & ~4095ull, (end + 4095) & ~4095ull);
}

/* Where huge pages may lie the kernel rounds a length up to theirs; they only lie where the address is a multiple. */
static __always_inline u64 rounded(u64 start, u64 len)
{
	u64 size = start & ((1ull << 21) - 1) ? 4096 : start & ((1ull << 30) - 1) ? 1ull << 21 : 1ull << 30;

	return (len + size - 1) & ~(size - 1);
}

/* Like `changed`, but for calls that round to huge pages: to 1 GiB only what is longer than 2 MiB pages would explain. */
static __always_inline void changed_huge(struct page *page, u64 start, u64 len)
{
	changed(page, start, rounded(start, len));
}

#endif
