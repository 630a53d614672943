/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The page that a client reads, and the functions that write changes to it. */
#ifndef PINDOWN_PAGE_H
#define PINDOWN_PAGE_H

#if defined(PINDOWN_X86_64)
#include "x86_64.h"
#elif defined(PINDOWN_AARCH64)
#include "aarch64.h"
#else
#error "define PINDOWN_X86_64 or PINDOWN_AARCH64"
#endif

#define SLOTS 64
#define RECORDS 1024
#define SUBSCRIBERS 64
#define SALT 0x70696e646f776e31ull /* "pindown1": also identifies the layout of a page */
#define BUSY_FOREVER (1ull << 63)
#define BUSY_ENDED (1ull << 62)

/* src/journal/page.rs has the same layout. */
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
	u64 name; /* random: identifies its ring in `bells`, and this page among all that ever existed */
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
 * The number of address spaces with a page in each bucket. The programs read this first, because most of the machine's
 * processes have no page, and reading it takes a fraction of the time of a look-up in `pages`. `control` increments the
 * count before a page is inserted there, and decrements it after the page has ended.
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

	/*
	 * The verifier does not allow arithmetic on a pointer. The lower half of the pointer, moved separately, is a number
	 * for the verifier, and is sufficient.
	 */
	asm volatile("%0 = %1" : "=w"(half) : "w"((u32)mm));
	bucket = half * 0x9e3779b1u >> (32 - BUCKETS_SHIFT);

	return bpf_map_lookup_elem(&known, &bucket);
}

struct bell_map {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

/*
 * The rings that wake up clients, by the names of their pages. A name is random, so it reveals nothing about other
 * clients.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 4096);
	__type(key, u64);
	__array(values, struct bell_map);
} bells SEC(".maps");

struct inode_key {
	u64 dev, ino;
};

/* The report pages that count the pages removed from an inode's page cache. Written in place, only by `control`. */
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
 * For each thread: 0, or the name of the page whose `busy` counts the thread's current call. The kernel frees this with
 * the thread, so no entry remains, and the threads of one user do not use another user's space.
 */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u64);
} threads SEC(".maps");

/* The input and output of `identify`. src/monitor/bpf/kernel.rs has the same layout. */
struct question {
	u64 start, end; /* in: a range to look up, or zeros */
	u64 mm, dumpable, euid, beginning;
	u64 vm_start, vm_end, vm_flags; /* zeros if nothing is mapped at start */
	u64 dev, ino, magic, regular; /* whether it is a regular file, and not a device */
	s64 found; /* the result of bpf_find_vma */
	u64 working; /* io_uring workers that may be in the middle of a change */
	u64 tasks, users; /* tasks of the process in the address space, and all its users */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct question);
} asked SEC(".maps");

/*
 * Returns the page of an address space. A page that has ended belongs to no address space, because its mm may now
 * belong to another one.
 */
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
 * Wakes up waiting clients after a report. A client empties its ring before it waits. One record wakes it up, and no
 * further record is needed until that one has been read.
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
	u64 i = add(&page->head, 1);
	volatile struct record *r = &page->ring[i & (RECORDS - 1)];

	store(&r->seq, 0);
	r->start = start;
	r->end = end;
	r->check = start ^ end ^ i ^ SALT;
	store(&r->seq, i + 1);
	return wake(page);
}

static __always_inline void global(struct page *page)
{
	emit(page, 0, ~0ull);
}

/* Ends a page: no more registrations may be kept, and nothing is reported from now on. */
static __always_inline void ended(struct page *page)
{
	set_bits(&page->busy, BUSY_ENDED);
	global(page);
}

/*
 * Reports a range in the form in which a call specifies it. Addresses may have tags. No user address has the highest
 * bit below ADDRESS_BITS set, so a range that starts with this bit set overlaps no memory. The helper's challenge uses
 * such ranges.
 */
static __always_inline void changed(struct page *page, u64 start, u64 len)
{
	u64 end;

	if (!len)
		return;
	start = without_tag(start);
	end = start + len;
	if (start >> ADDRESS_BITS || end >> ADDRESS_BITS || end < start)
		global(page);
	else
		emit(page, start & ~4095ull, (end + 4095) & ~4095ull);
}

/*
 * For memory that may have huge pages, the kernel rounds a length up to their size. They start only at multiples of
 * their size.
 */
static __always_inline u64 rounded(u64 start, u64 len)
{
	u64 size = largest_page(start);

	return (len + size - 1) & ~(size - 1);
}

/* Like `changed`, for calls that round to huge pages. Rounds to 1 GiB only if the start is a multiple of 1 GiB. */
static __always_inline void changed_huge(struct page *page, u64 start, u64 len)
{
	changed(page, start, rounded(start, len));
}

#endif
