/* Registered memory (fi_mr(3)) in each mr_mode: keys, addresses, pieces, binding, enabling, closing. */
#include "every.h"

#include <sys/mman.h>

enum { SIZE = 4096 };

static const uint64_t remote = FI_REMOTE_READ | FI_REMOTE_WRITE;

/* a writes and reads back this number of bytes at this key and address of b. Returns 0 or the error. */
static int access_it(struct two *two, uint64_t address, uint64_t key, size_t len, unsigned seed)
{
	struct side *a = &two->a;
	struct done done;

	fill(a->out, len, seed);
	POSTED(a, fi_write(a->ep, a->out, len, a->out_desc, a->peer, address, key, context(0)));
	done = take(a, context(0));
	if (done.err)
		return done.err;
	memset(a->in, 0, len);
	POSTED(a, fi_read(a->ep, a->in, len, a->in_desc, a->peer, address, key, context(1)));
	done = take(a, context(1));
	CHECK(done.err || is_filled(a->in, len, seed), "other bytes than were written");
	return done.err;
}

static bool by_address(const struct two *two)
{
	return two->room.info->domain_attr->mr_mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC);
}

static bool our_keys(const struct two *two)
{
	return !(two->room.info->domain_attr->mr_mode & (FI_MR_PROV_KEY | FI_MR_BASIC));
}

/* Binds and enables the region as the mode requires. */
static void make_ready(struct two *two, struct fid_mr *mr)
{
	if (two->room.info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
		CHECK(fi_mr_enable(mr) < 0, "enabled before it was bound");
		ANSWERS(0, fi_mr_bind(mr, &two->b.ep->fid, 0));
		ANSWERS(0, fi_mr_enable(mr));
	}
}

/* The three registration calls, and their common behaviour. */
static void three_calls(struct two *two)
{
	char *memory = calloc(1, SIZE);
	struct iovec iov = { memory, SIZE };
	struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = remote, .requested_key = 103, .context = two };
	struct fid_mr *mr[3];

	NEEDS(fi_mr_reg(two->room.domain, memory, SIZE, remote, 0, 101, 0, &mr[0], two));
	NEEDS(fi_mr_regv(two->room.domain, &iov, 1, remote, 0, 102, 0, &mr[1], two));
	NEEDS(fi_mr_regattr(two->room.domain, &attr, 0, &mr[2]));
	for (int n = 0; n < 3; n++) {
		uint64_t base = by_address(two) ? (uintptr_t)memory : 0;
		make_ready(two, mr[n]);
		CHECK(mr[n]->fid.fclass == FI_CLASS_MR && mr[n]->fid.context == two, "class %zu", mr[n]->fid.fclass);
		CHECK(!our_keys(two) || fi_mr_key(mr[n]) == (uint64_t)(101 + n), "%#llx", (unsigned long long)fi_mr_key(mr[n]));
		CHECK(fi_mr_key(mr[n]) != FI_KEY_NOTAVAIL, "no key");
		for (int other = 0; other < n; other++)
			CHECK(fi_mr_key(mr[n]) != fi_mr_key(mr[other]), "one key twice");
		ANSWERS(0, access_it(two, base + 10, fi_mr_key(mr[n]), 100, (unsigned)n));
		CHECK(is_filled(memory + 10, 100, (unsigned)n), "the write is not there");
		ANSWERS(0, access_it(two, base, fi_mr_key(mr[n]), SIZE, 9));
		/* Every operation may pass a descriptor. */
		two->a.out_desc = fi_mr_desc(mr[n]);
		ANSWERS(0, access_it(two, base, fi_mr_key(mr[n]), 8, 1));
		two->a.out_desc = NULL;
	}
	for (int n = 0; n < 3; n++) {
		uint64_t key = fi_mr_key(mr[n]);
		ANSWERS(0, fi_close(&mr[n]->fid));
		CHECK(access_it(two, by_address(two) ? (uintptr_t)memory : 0, key, 8, 3) != 0, "a closed region can be accessed");
	}
	free(memory);
}

/* Separate pieces form one region, one after the other. */
static void pieces(struct two *two)
{
	size_t limit = two->room.info->domain_attr->mr_iov_limit;
	char *memory = calloc(1, SIZE);
	struct iovec iov[2] = { { memory + 2048, 1000 }, { memory, 500 } };
	struct fid_mr *mr;

	if (limit < 2 || by_address(two)) {
		free(memory);
		return;
	}
	NEEDS(fi_mr_regv(two->room.domain, iov, 2, remote, 0, 110, 0, &mr, NULL));
	make_ready(two, mr);
	ANSWERS(0, access_it(two, 900, fi_mr_key(mr), 300, 14));
	CHECK(is_filled(two->a.in, 300, 14) && !memcmp(memory + 2048 + 900, two->a.in, 100) && !memcmp(memory, two->a.in + 100, 200),
	      "the bytes are elsewhere");
	CHECK(access_it(two, 1400, fi_mr_key(mr), 101, 15) != 0, "there is more than was registered");
	ANSWERS(0, fi_close(&mr->fid));
	free(memory);
}

static void keys(struct two *two)
{
	char *memory = calloc(1, SIZE);
	struct fid_mr *first, *second;

	NEEDS(fi_mr_reg(two->room.domain, memory, SIZE, remote, 0, 120, 0, &first, NULL));
	if (our_keys(two)) {
		/* If keys are assigned when a region is enabled, a key that is in use is detected then. */
		int code = fi_mr_reg(two->room.domain, memory, SIZE, remote, 0, 120, 0, &second, NULL);
		if (two->room.info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
			if (!code)
				ANSWERS(0, fi_close(&second->fid));
		} else {
			ANSWERS(-FI_ENOKEY, code);
		}
	} else {
		NEEDS(fi_mr_reg(two->room.domain, memory, SIZE, remote, 0, 120, 0, &second, NULL));
		make_ready(two, first);
		make_ready(two, second);
		CHECK(fi_mr_key(first) != fi_mr_key(second), "one key twice");
		ANSWERS(0, fi_close(&second->fid));
	}
	ANSWERS(0, fi_close(&first->fid));
	/* The key is free again. */
	ANSWERS(0, fi_mr_reg(two->room.domain, memory, SIZE, remote, 0, 120, 0, &first, NULL));
	ANSWERS(0, fi_close(&first->fid));
	ANSWERS(-FI_EBADFLAGS, fi_mr_reg(two->room.domain, memory, SIZE, remote, 0, 121, FI_MULTICAST, &first, NULL));
	free(memory);
}

/* Without FI_MR_ALLOCATED, memory need not be mapped before it is used. */
static void not_allocated(struct two *two)
{
	static char *const page = (char *)0x200000000000;
	struct fid_mr *mr;
	uint64_t base;

	if (two->room.info->domain_attr->mr_mode & (FI_MR_ALLOCATED | FI_MR_BASIC))
		return;
	NEEDS(fi_mr_reg(two->room.domain, page, SIZE, remote, 0, 130, 0, &mr, NULL));
	make_ready(two, mr);
	base = by_address(two) ? (uintptr_t)page : 0;
	CHECK(access_it(two, base, fi_mr_key(mr), 100, 1) != 0, "memory that is not there was written");
	MUST(mmap(page, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == page, "no mapping");
	ANSWERS(0, access_it(two, base + 50, fi_mr_key(mr), 100, 2));
	CHECK(is_filled(page + 50, 100, 2), "the write is not there");
	ANSWERS(0, fi_close(&mr->fid));
	munmap(page, SIZE);
	/* The complete address space, as MPICH registers it. */
	NEEDS(fi_mr_reg(two->room.domain, NULL, SIZE_MAX, remote, 0, 131, 0, &mr, NULL));
	make_ready(two, mr);
	memset(two->b.in, 0, 200);
	ANSWERS(0, access_it(two, (uintptr_t)two->b.in, fi_mr_key(mr), 200, 3));
	CHECK(is_filled(two->b.in, 200, 3), "the write is not there");
	ANSWERS(0, fi_close(&mr->fid));
}

/* Counted writes. The counter is bound before the region is enabled if FI_MR_RMA_EVENT requires that. */
static void counted(struct two *two)
{
	int mode = two->room.info->domain_attr->mr_mode;
	char *memory = calloc(1, SIZE);
	uint64_t base = by_address(two) ? (uintptr_t)memory : 0;
	struct fid_cntr *counter;
	struct fid_mr *mr;

	if (!(two->room.info->caps & FI_RMA_EVENT)) {
		free(memory);
		return;
	}
	NEEDS(fi_cntr_open(two->room.domain, NULL, &counter, NULL));
	NEEDS(fi_mr_reg(two->room.domain, memory, SIZE, remote, 0, 140, FI_RMA_EVENT, &mr, NULL));
	ANSWERS(0, fi_mr_bind(mr, &counter->fid, FI_REMOTE_WRITE));
	if (mode & FI_MR_ENDPOINT)
		ANSWERS(0, fi_mr_bind(mr, &two->b.ep->fid, 0));
	if (mode & (FI_MR_RMA_EVENT | FI_MR_ENDPOINT))
		ANSWERS(0, fi_mr_enable(mr));
	for (int n = 0; n < 3; n++)
		ANSWERS(0, access_it(two, base, fi_mr_key(mr), 64, (unsigned)n));
	ANSWERS(0, fi_cntr_wait(counter, 3, WAIT_LIMIT * 1000));
	ANSWERS(3, fi_cntr_read(counter));
	CHECK(fi_mr_bind(mr, &two->a.txcq->fid, 0) < 0, "a queue is bound");
	/* Bound objects are closed first. The endpoint is used by other tests. */
	ANSWERS(-FI_EBUSY, fi_close(&mr->fid));
	ANSWERS(0, fi_close(&counter->fid));
	ANSWERS(0, fi_close(&mr->fid));
	free(memory);
}

/* Memory that only its owner accesses. */
static void local_only(struct two *two)
{
	char *memory = calloc(1, SIZE);
	struct fid_mr *mr;

	NEEDS(fi_mr_reg(two->room.domain, memory, SIZE, FI_SEND | FI_RECV | FI_READ | FI_WRITE, 0, 150, 0, &mr, NULL));
	make_ready(two, mr);
	if (fi_mr_key(mr) != FI_KEY_NOTAVAIL)
		CHECK(access_it(two, by_address(two) ? (uintptr_t)memory : 0, fi_mr_key(mr), 8, 1) != 0, "a peer may write it");
	ANSWERS(0, fi_close(&mr->fid));
	free(memory);
}

void region_groups(void)
{
	static const struct {
		const char *name;
		int mode;
	} modes[] = {
		{ "mr: scalable (0)", 0 },
		{ "mr: scalable (its old name)", FI_MR_SCALABLE },
		{ "mr: basic", FI_MR_BASIC },
		{ "mr: virtual addresses, allocated, provider's keys", FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY },
		{ "mr: provider's keys", FI_MR_PROV_KEY },
		{ "mr: virtual addresses", FI_MR_VIRT_ADDR },
		{ "mr: bound to endpoints", FI_MR_ENDPOINT },
		{ "mr: bound to endpoints, virtual addresses, provider's keys", FI_MR_ENDPOINT | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY },
		{ "mr: events", FI_MR_RMA_EVENT },
		{ "mr: local", FI_MR_LOCAL },
	};

	for (size_t at = 0; at < COUNT(modes); at++) {
		struct settings how = { .name = "regions", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL,
					.mr_mode = modes[at].mode, .counters = true };
		struct two two;

		begin(modes[at].name);
		open_two(&two, &how);
		three_calls(&two);
		pieces(&two);
		keys(&two);
		not_allocated(&two);
		counted(&two);
		local_only(&two);
		quiet(&two.pair);
		close_two(&two);
		end();
	}
}
