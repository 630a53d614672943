/* Registration (fi_mr(3)): calls, errors, access rights, ranges, memory that is mapped and unmapped, kinds of memory. */
#include "registration.h"

#include <sys/mman.h>

static struct world w;

/* Memory that was not registered in this domain cannot be accessed. */
static void not_registered(void)
{
	char *memory = pages(BYTES, 1), *elsewhere = pages(BYTES, 2);
	struct fid_domain *other;
	struct fid_mr *mr, *closed;

	NEEDS(fi_domain(w.two.room.fabric, w.two.room.info, &other, NULL));
	NEEDS(fi_mr_reg(other, elsewhere, BYTES, BOTH_WAYS, 0, 501, 0, &mr, NULL));
	asserts("MR-001 MR-002");
	refused(&w, (uintptr_t)memory, 500, memory, 1);
	refused(&w, 0, 500, memory, 1);
	asserts("MR-003");
	refused(&w, 0, 501, elsewhere, 2);
	/* A closed region behaves like one that never existed, and others still work. */
	asserts("MR-066 MR-067 MR-068");
	closed = registered(&w, memory, BYTES, BOTH_WAYS, 502, 0);
	served(&w, 0, 502, memory);
	fill(memory, BYTES, 1);
	ANSWERS(0, fi_close(&closed->fid));
	refused(&w, 0, 502, memory, 1);
	closed = registered(&w, memory, BYTES, BOTH_WAYS, 502, 0);
	served(&w, 0, 502, memory);
	ANSWERS(0, fi_close(&closed->fid));
	ANSWERS(0, fi_close(&mr->fid));
	ANSWERS(0, fi_close(&other->fid));
	munmap(memory, BYTES);
	munmap(elsewhere, BYTES);
}

/* The three calls have the same result. */
static void three_calls(void)
{
	char *memory = pages(BYTES, 1);
	struct iovec iov = { memory, BYTES };
	struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = BOTH_WAYS, .requested_key = 513, .context = &iov };
	struct fid_mr *mr[3];

	asserts("MR-004 MR-012");
	/* All accesses are executed by their target. */
	if (getenv("FI_PERCALE_CMA") && getenv("FI_PERCALE_TRUST"))
		asserts("RMA-014");
	ANSWERS(0, fi_mr_reg(w.domain, memory, BYTES, BOTH_WAYS, 0, 511, 0, &mr[0], &iov));
	ANSWERS(0, fi_mr_regv(w.domain, &iov, 1, BOTH_WAYS, 0, 512, 0, &mr[1], &iov));
	ANSWERS(0, fi_mr_regattr(w.domain, &attr, 0, &mr[2]));
	for (int n = 0; n < 3; n++) {
		CHECK(mr[n]->fid.fclass == FI_CLASS_MR && mr[n]->fid.context == &iov, "class %zu", mr[n]->fid.fclass);
		CHECK(fi_mr_key(mr[n]) == (uint64_t)(511 + n), "key %llu", (unsigned long long)fi_mr_key(mr[n]));
		asserts("MR-008");
		CHECK(fi_mr_desc(mr[n]) != NULL, "no description");
		served(&w, 0, fi_mr_key(mr[n]), memory);
		w.a->out_desc = w.a->in_desc = fi_mr_desc(mr[n]);
		served(&w, 0, fi_mr_key(mr[n]), memory);
		w.a->out_desc = w.a->in_desc = NULL;
		CHECK(try_write(&w, BYTES - 32, fi_mr_key(mr[n]), 64, 1) != 0, "beyond the end");
	}
	for (int n = 0; n < 3; n++)
		ANSWERS(0, fi_close(&mr[n]->fid));
	munmap(memory, BYTES);
}

/* Invalid arguments are rejected, and nothing is registered. */
static void arguments(void)
{
	size_t limit = w.two.room.info->domain_attr->mr_iov_limit;
	char *memory = pages(64 * 1024, 1);
	struct iovec iov[64];
	struct fi_mr_attr attr = { .mr_iov = iov, .iov_count = 1, .access = BOTH_WAYS, .requested_key = 521 };
	struct fid_mr *mr, *untouched = (struct fid_mr *)memory;

	for (size_t at = 0; at < COUNT(iov); at++)
		iov[at] = (struct iovec){ memory + at * 1024, 1024 };
	mr = untouched;
	/* Every failure below is a negative code. */
	asserts("MR-005 MR-007");
	ANSWERS(-FI_EINVAL, fi_mr_reg(w.domain, memory, BYTES, BOTH_WAYS, 8, 521, 0, &mr, NULL));
	ANSWERS(-FI_EINVAL, fi_mr_regv(w.domain, iov, 1, BOTH_WAYS, 8, 521, 0, &mr, NULL));
	attr.offset = 1;
	ANSWERS(-FI_EINVAL, fi_mr_regattr(w.domain, &attr, 0, &mr));
	attr.offset = 0;
	asserts("MR-011");
	MUST(limit < COUNT(iov), "%zu pieces", limit);
	ANSWERS(-FI_EINVAL, fi_mr_regv(w.domain, iov, limit + 1, BOTH_WAYS, 0, 521, 0, &mr, NULL));
	asserts("MR-013 MR-074 MR-076");
	ANSWERS(-FI_EBADFLAGS, fi_mr_reg(w.domain, memory, BYTES, BOTH_WAYS, 0, 521, FI_MULTICAST, &mr, NULL));
	ANSWERS(-FI_EBADFLAGS, fi_mr_regv(w.domain, iov, 1, BOTH_WAYS, 0, 521, FI_RMA_PMEM, &mr, NULL));
	ANSWERS(-FI_EBADFLAGS, fi_mr_regattr(w.domain, &attr, FI_RMA_PMEM | FI_RMA_EVENT, &mr));
	CHECK(mr == untouched, "an object was returned by a failed call");
	refused(&w, 0, 521, memory, 1);
	/* The maximum number of pieces, and a key that is in use. */
	ANSWERS(0, fi_mr_regv(w.domain, iov, limit, BOTH_WAYS, 0, 521, 0, &mr, NULL));
	untouched = mr;
	asserts("MR-071");
	ANSWERS(-FI_ENOKEY, fi_mr_reg(w.domain, memory, BYTES, BOTH_WAYS, 0, 521, 0, &untouched, NULL));
	CHECK(untouched == mr, "an object was returned by a failed call");
	served(&w, 0, 521, memory);
	ANSWERS(0, fi_close(&mr->fid));
	munmap(memory, 64 * 1024);
}

/* Separate pieces form one region, one after the other. */
static void pieces(void)
{
	char *memory = pages(BYTES, 1);
	struct iovec iov[2] = { { memory + 2048, 1000 }, { memory, 500 } };
	struct fid_mr *mr;

	asserts("MR-010");
	NEEDS(fi_mr_regv(w.domain, iov, 2, BOTH_WAYS, 0, 531, 0, &mr, NULL));
	ANSWERS(0, try_write(&w, 900, 531, 300, 14));
	CHECK(!memcmp(memory + 2048 + 900, w.a->out, 100) && !memcmp(memory, w.a->out + 100, 200), "the bytes are elsewhere");
	ANSWERS(0, try_read(&w, 900, 531, 300));
	CHECK(is_filled(w.a->in, 300, 14), "other bytes");
	CHECK(try_write(&w, 1400, 531, 101, 15) != 0, "there is more than was registered");
	ANSWERS(0, fi_close(&mr->fid));
	munmap(memory, BYTES);
}

/* Adds 1 to a word and fetches its value. Returns 0 or the error. */
static int try_fetch(uint64_t address, uint64_t key)
{
	struct side *a = w.a;
	uint64_t one = 1;
	ssize_t code;

	memcpy(a->out, &one, sizeof(one));
	code = POST(a, fi_fetch_atomic(a->ep, a->out, 1, a->out_desc, a->in, a->in_desc, a->peer, address, key, FI_UINT64, FI_SUM, context(3)));
	return code ? (int)code : take(a, context(3)).err;
}

/* Access rights and ranges. */
static void rights(void)
{
	static const uint64_t access[] = { FI_SEND | FI_RECV | FI_READ | FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE, BOTH_WAYS };
	uint64_t word;

	for (size_t at = 0; at < COUNT(access); at++) {
		char *memory = pages(BYTES, 1);
		struct fid_mr *mr = registered(&w, memory, BYTES, access[at], 541, 0);
		bool reads = access[at] & FI_REMOTE_READ, writes = access[at] & FI_REMOTE_WRITE;
		static const uint64_t beyond[] = { BYTES - 63, BYTES, BYTES + 1, (uint64_t)1 << 40, (uint64_t)-64, UINT64_MAX };

		asserts("MR-032");
		CHECK(fi_mr_key(mr) == 541, "another key");
		asserts("MR-009 MR-030 MR-050 MR-051");
		CHECK((try_read(&w, 0, 541, 64) == 0) == reads, "reading");
		CHECK(!reads || is_filled(w.a->in, 64, 1), "other bytes");
		CHECK(is_filled(memory, BYTES, 1), "reading has changed it");
		asserts("MR-014");
		for (size_t n = 0; n < COUNT(beyond); n++)
			refused(&w, beyond[n], 541, memory, 1);
		asserts("MR-031");
		refused(&w, (uintptr_t)memory, 541, memory, 1);
		/* An operation that also fetches needs both rights, and changes nothing otherwise. */
		asserts("ATM-006");
		if (!reads || !writes) {
			CHECK(try_fetch(0, 541) != 0, "a fetching operation");
			CHECK(is_filled(memory, BYTES, 1), "it was changed");
		}
		memcpy(&word, memory, sizeof(word));
		asserts("MR-052 MR-053");
		CHECK((try_add(&w, 0, 541, 3) == 0) == writes, "an atomic operation");
		CHECK((try_write(&w, 64, 541, 64, 9) == 0) == writes, "writing");
		if (writes) {
			uint64_t now_there;
			memcpy(&now_there, memory, sizeof(word));
			CHECK(now_there == word + 3 && is_filled(memory + 64, 64, 9), "the written bytes did not arrive");
			if (reads)
				ANSWERS(0, try_fetch(0, 541));
		} else {
			CHECK(is_filled(memory, BYTES, 1), "it was changed");
		}
		ANSWERS(0, fi_close(&mr->fid));
		munmap(memory, BYTES);
	}
}

/* Memory may be mapped after the registration, and unmapped before the region is closed. */
static void comes_and_goes(void)
{
	char *place = pages(2 * BYTES, 1);
	struct fid_mr *mr;

	/* A hole that no other mapping can take, because its addresses stay mapped without access rights. */
	MUST(mprotect(place, 2 * BYTES, PROT_NONE) == 0, "no hole");
	asserts("MR-026");
	mr = registered(&w, place, BYTES, BOTH_WAYS, 551, 0);
	asserts("MR-028 MR-029");
	CHECK(try_write(&w, 0, 551, 64, 3) != 0 && try_read(&w, 0, 551, 64) != 0 && try_add(&w, 0, 551, 1) != 0, "inaccessible memory was accessed");
	MUST(mmap(place, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == place, "no mapping");
	fill(place, BYTES, 5);
	asserts("MR-027");
	ANSWERS(0, try_read(&w, 0, 551, BYTES));
	CHECK(is_filled(w.a->in, BYTES, 5), "the bytes of the new mapping were not read");
	served(&w, 0, 551, place);
	MUST(mmap(place, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == place, "no hole");
	CHECK(try_write(&w, 0, 551, 64, 3) != 0 && try_read(&w, 0, 551, 64) != 0, "removed memory was accessed");
	MUST(mmap(place, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == place, "no mapping");
	served(&w, 0, 551, place);
	ANSWERS(0, fi_close(&mr->fid));
	munmap(place, 2 * BYTES);
}

/* Without FI_MR_LOCAL, descriptors of local memory are ignored. */
static void not_described(void)
{
	char *memory = pages(BYTES, 1);
	struct fid_mr *mr = registered(&w, memory, BYTES, BOTH_WAYS, 561, 0), *stale = registered(&w, memory, 64, FI_SEND, 562, 0);
	void *descriptions[] = { NULL, (void *)1, (void *)~(uintptr_t)0, memory + 3, fi_mr_desc(stale) };
	struct side *a = w.a, *b = w.b;

	ANSWERS(0, fi_close(&stale->fid));
	asserts("MR-033 MR-034");
	for (size_t at = 0; at < COUNT(descriptions); at++) {
		void *desc = descriptions[at];
		a->out_desc = a->in_desc = desc;
		served(&w, 0, 561, memory);
		for (int tagged = 0; tagged < 2; tagged++) {
			fill(a->out, 300, (unsigned)at);
			memset(b->in, 0, 300);
			if (tagged) {
				POSTED(b, fi_trecv(b->ep, b->in, 300, desc, b->peer, 7, 0, context(4)));
				POSTED(a, fi_tsend(a->ep, a->out, 300, desc, a->peer, 7, context(3)));
			} else {
				POSTED(b, fi_recv(b->ep, b->in, 300, desc, b->peer, context(4)));
				POSTED(a, fi_send(a->ep, a->out, 300, desc, a->peer, context(3)));
			}
			ANSWERS(0, take(a, context(3)).err);
			ANSWERS(0, take(b, context(4)).err);
			CHECK(is_filled(b->in, 300, (unsigned)at), "another message");
		}
	}
	a->out_desc = a->in_desc = NULL;
	ANSWERS(0, fi_close(&mr->fid));
	munmap(memory, BYTES);
}

/* The kind of memory, for applications that requested FI_HMEM. Only host memory is available. */
static void kinds_of_memory(void)
{
	static const enum fi_hmem_iface ifaces[] = { FI_HMEM_CUDA, FI_HMEM_ROCR, FI_HMEM_ZE, FI_HMEM_NEURON, FI_HMEM_SYNAPSEAI, 99 };
	const struct settings hmem = { .name = "kinds", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL,
				       .caps = FI_RMA_EVENT | FI_HMEM };

	for (int asked = 0; asked < 2; asked++) {
		char *memory = pages(BYTES, 1);
		struct iovec iov = { memory, BYTES };
		struct fid_mr *mr;

		open_world(&w, 0, asked ? &hmem : NULL);
		CHECK(!!(w.two.room.info->caps & FI_HMEM) == asked, "caps %#llx", (unsigned long long)w.two.room.info->caps);
		for (size_t at = 0; at < COUNT(ifaces); at++) {
			struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = BOTH_WAYS, .requested_key = 571, .iface = ifaces[at] };
			attr.device.cuda = 3;
			asserts(asked ? "HMEM-005 HMEM-006" : "HMEM-001");
			ANSWERS(asked ? -FI_ENOSYS : 0, fi_mr_regattr(w.domain, &attr, 0, &mr));
			if (asked) {
				refused(&w, 0, 571, memory, 1);
			} else {
				served(&w, 0, 571, memory);
				ANSWERS(0, fi_close(&mr->fid));
			}
		}
		/* Host memory belongs to no device, so any device number is accepted. */
		asserts("HMEM-002 HMEM-008");
		for (uint64_t device = 0; device < 3; device++) {
			struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = BOTH_WAYS, .requested_key = 571, .iface = FI_HMEM_SYSTEM };
			attr.device.reserved = device * 0x123456789;
			NEEDS(fi_mr_regattr(w.domain, &attr, 0, &mr));
			served(&w, 0, 571, memory);
			ANSWERS(0, fi_close(&mr->fid));
		}
		close_world(&w);
		munmap(memory, BYTES);
	}
	asserts("HMEM-007");
	CHECK(sizeof(((struct fi_mr_attr *)0)->device) == 8, "another layout");
}

void registration_groups(void)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = {
		{ "mr: memory that was not registered", not_registered }, { "mr: three calls", three_calls }, { "mr: arguments", arguments },
		{ "mr: pieces", pieces }, { "mr: rights and ranges", rights }, { "mr: changing mappings", comes_and_goes },
		{ "mr: nothing is described", not_described },
	};

	for (size_t at = 0; at < COUNT(all); at++) {
		begin(all[at].name);
		open_world(&w, 0, NULL);
		all[at].run();
		close_world(&w);
		end();
	}
	begin("hmem: kinds of memory");
	kinds_of_memory();
	end();
}
