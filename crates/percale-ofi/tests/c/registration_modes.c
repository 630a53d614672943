/* Registration modes (fi_mr(3), mr_mode): the modes that are agreed on, and the meaning of each. */
#include "registration.h"

#include <sys/mman.h>

static struct world w;

static const int bits[] = { FI_MR_LOCAL, FI_MR_RAW, FI_MR_VIRT_ADDR, FI_MR_ALLOCATED, FI_MR_PROV_KEY, FI_MR_MMU_NOTIFY,
			    FI_MR_RMA_EVENT, FI_MR_ENDPOINT, FI_MR_HMEM, FI_MR_COLLECTIVE };
static const char *const names[] = { "local", "raw", "virt_addr", "allocated", "prov_key", "mmu_notify", "rma_event",
				     "endpoint", "hmem", "collective" };
enum { EVERY = 0xffc };

/* Returns the mode that is granted for a mode. Stores the error code, and the `mode` bits of the result. */
static int answered(uint32_t api, int mode, uint64_t old, int *code, uint64_t *modes)
{
	static const struct settings how = { .name = "modes", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL };
	struct fi_info *hints = hints_for(&how), *info = NULL;
	int got = 0;

	hints->domain_attr->mr_mode = mode;
	hints->mode |= old;
	*code = fi_getinfo(api, NULL, NULL, 0, hints, &info);
	if (*code == 0) {
		got = info->domain_attr->mr_mode;
		if (modes)
			*modes = info->mode;
		fi_freeinfo(info);
	}
	fi_freeinfo(hints);
	return got;
}

/* Without a setting, nothing is required, and offered bits are cleared. Required bits stay, or there is no result. */
static void negotiated(void)
{
	int code;

	asserts("MR-016");
	ANSWERS(0, answered(API, 0, 0, &code, NULL));
	ANSWERS(0, code);
	asserts("MR-017");
	ANSWERS(0, answered(API, EVERY, 0, &code, NULL));
	for (size_t at = 0; at < COUNT(bits); at++) {
		ANSWERS(0, answered(API, bits[at], 0, &code, NULL));
		ANSWERS(0, code);
		setenv("FI_PERCALE_MR_MODE", names[at], 1);
		asserts("MR-018");
		ANSWERS(bits[at], answered(API, bits[at], 0, &code, NULL));
		ANSWERS(bits[at], answered(API, EVERY, 0, &code, NULL));
		asserts("MR-019");
		answered(API, EVERY & ~bits[at], 0, &code, NULL);
		ANSWERS(-FI_ENODATA, code);
		answered(API, 0, 0, &code, NULL);
		ANSWERS(-FI_ENODATA, code);
		unsetenv("FI_PERCALE_MR_MODE");
	}
}

/* The old names. */
static void old_names(void)
{
	uint64_t modes = 0;
	int code;

	for (int now = 0; now < 2; now++) {
		uint32_t api = now ? API : FI_VERSION(1, 4);
		for (uint64_t local = 0; local < 2; local++) {
			asserts("MR-021");
			ANSWERS(FI_MR_BASIC, answered(api, FI_MR_BASIC, local * FI_LOCAL_MR, &code, &modes));
			CHECK(!(modes & FI_LOCAL_MR), "local buffers need no registration");
			asserts("MR-020");
			ANSWERS(FI_MR_SCALABLE, answered(api, FI_MR_SCALABLE, local * FI_LOCAL_MR, &code, &modes));
		}
		for (size_t at = 0; at < COUNT(bits); at++) {
			asserts("MR-022");
			answered(api, FI_MR_BASIC | bits[at], 0, &code, NULL);
			CHECK(code < 0, "FI_MR_BASIC with %#x", bits[at]);
		}
	}
	/* The bits for which an old name stands satisfy the requirement. */
	setenv("FI_PERCALE_MR_MODE", "virt_addr,allocated,prov_key", 1);
	ANSWERS(FI_MR_BASIC, answered(API, FI_MR_BASIC, 0, &code, NULL));
	answered(API, FI_MR_SCALABLE, 0, &code, NULL);
	ANSWERS(-FI_ENODATA, code);
	setenv("FI_PERCALE_MR_MODE", "virt_addr,allocated,prov_key,local", 1);
	asserts("MR-024");
	ANSWERS(FI_MR_BASIC, answered(FI_VERSION(1, 4), FI_MR_BASIC, FI_LOCAL_MR, &code, &modes));
	CHECK(modes & FI_LOCAL_MR, "%#llx", (unsigned long long)modes);
	answered(FI_VERSION(1, 4), FI_MR_BASIC, 0, &code, NULL);
	ANSWERS(-FI_ENODATA, code);
	/* Together with the new names FI_LOCAL_MR has no effect. */
	setenv("FI_PERCALE_MR_MODE", "local", 1);
	asserts("MR-025");
	answered(API, FI_MR_VIRT_ADDR, FI_LOCAL_MR, &code, NULL);
	ANSWERS(-FI_ENODATA, code);
	for (uint64_t local = 0; local < 2; local++) {
		ANSWERS(FI_MR_LOCAL, answered(API, FI_MR_LOCAL, local * FI_LOCAL_MR, &code, &modes));
		CHECK(!(modes & FI_LOCAL_MR), "%#llx", (unsigned long long)modes);
	}
	unsetenv("FI_PERCALE_MR_MODE");
}

/* Virtual addresses, mapped memory, provider keys, also with their old name. */
static void basic(int mode)
{
	char *memory = pages(BYTES, 1), *hole = pages(2 * BYTES, 2);
	uint64_t base = (uintptr_t)memory;
	struct fid_mr *mr, *other;

	MUST(mprotect(hole + BYTES, BYTES, PROT_NONE) == 0, "no hole");
	if (mode == FI_MR_BASIC)
		asserts("MR-023");
	open_world(&w, mode, NULL);
	asserts("MR-042");
	mr = registered(&w, memory, BYTES, BOTH_WAYS, 600, 0);
	other = registered(&w, memory, BYTES, BOTH_WAYS, 600, 0);
	CHECK(fi_mr_key(mr) != fi_mr_key(other) && fi_mr_key(mr) != FI_KEY_NOTAVAIL, "keys");
	asserts("MR-039 MR-043 KEY-001");
	served(&w, base, fi_mr_key(mr), memory);
	served(&w, base + 128, fi_mr_key(other), memory + 128);
	ANSWERS(0, fi_close(&other->fid));
	fill(memory, BYTES, 1);
	asserts("MR-040");
	refused(&w, base - 1, fi_mr_key(mr), memory, 1);
	refused(&w, base + BYTES - 63, fi_mr_key(mr), memory, 1);
	refused(&w, 0, fi_mr_key(mr), memory, 1);
	ANSWERS(0, fi_close(&mr->fid));
	/* All of the memory is mapped, or the registration is rejected. */
	asserts("MR-041");
	mr = registered(&w, hole, BYTES, BOTH_WAYS, 601, 0);
	ANSWERS(0, fi_close(&mr->fid));
	ANSWERS(-FI_EFAULT, fi_mr_reg(w.domain, hole, BYTES + 1, BOTH_WAYS, 0, 602, 0, &mr, NULL));
	ANSWERS(-FI_EFAULT, fi_mr_reg(w.domain, hole + BYTES, BYTES, FI_REMOTE_READ, 0, 602, 0, &mr, NULL));
	/* Memory that peers may write must be writable for the owner. */
	MUST(mprotect(hole, BYTES, PROT_READ) == 0, "no mapping for reading");
	ANSWERS(-FI_EFAULT, fi_mr_reg(w.domain, hole, BYTES, FI_REMOTE_WRITE, 0, 602, 0, &mr, NULL));
	mr = registered(&w, hole, BYTES, FI_REMOTE_READ, 603, 0);
	ANSWERS(0, try_read(&w, (uintptr_t)hole, fi_mr_key(mr), 64));
	ANSWERS(0, fi_close(&mr->fid));
	close_world(&w);
	munmap(memory, BYTES);
	munmap(hole, 2 * BYTES);
}

/* Makes posting calls of many kinds with these descriptors for sent and received memory. Returns 0 if all succeeded. */
static int each_call(void *from, void *into, uint64_t key, size_t len)
{
	struct side *a = w.a, *b = w.b;
	struct iovec iov = { a->out, len }, in = { a->in, len };
	struct fi_ioc ioc = { a->out, 1 }, ioc_in = { a->in, 1 };
	struct fi_rma_iov there = { 0, len, key };
	struct fi_msg_rma rma = { &iov, &from, 1, a->peer, &there, 1, context(5), 0 };
	ssize_t codes[] = {
		fi_write(a->ep, a->out, len, from, a->peer, 0, key, context(5)),
		fi_writev(a->ep, &iov, &from, 1, a->peer, 0, key, context(5)),
		fi_writemsg(a->ep, &rma, FI_COMPLETION),
		fi_writedata(a->ep, a->out, len, from, 9, a->peer, 0, key, context(5)),
		fi_read(a->ep, a->in, len, into, a->peer, 0, key, context(5)),
		fi_readv(a->ep, &in, &into, 1, a->peer, 0, key, context(5)),
		fi_atomic(a->ep, a->out, 1, from, a->peer, 0, key, FI_UINT64, FI_SUM, context(5)),
		fi_atomicv(a->ep, &ioc, &from, 1, a->peer, 0, key, FI_UINT64, FI_SUM, context(5)),
		fi_fetch_atomic(a->ep, a->out, 1, from, a->in, into, a->peer, 0, key, FI_UINT64, FI_SUM, context(5)),
		fi_fetch_atomicv(a->ep, &ioc, &from, 1, &ioc_in, &into, 1, a->peer, 0, key, FI_UINT64, FI_SUM, context(5)),
		fi_compare_atomic(a->ep, a->out, 1, from, a->out, from, a->in, into, a->peer, 0, key, FI_UINT64, FI_CSWAP, context(5)),
		fi_recv(b->ep, b->in, len, b == a ? into : b->in_desc, b->peer, context(6)),
		fi_send(a->ep, a->out, len, from, a->peer, context(5)),
		fi_trecv(b->ep, b->in, len, b == a ? into : b->in_desc, b->peer, 3, 0, context(6)),
		fi_tsend(a->ep, a->out, len, from, a->peer, 3, context(5)),
		fi_trecvv(b->ep, &(struct iovec){ b->in, len }, b == a ? &into : &b->in_desc, 1, b->peer, 4, 0, context(6)),
		fi_tsendv(a->ep, &iov, &from, 1, a->peer, 4, context(5)),
	};
	int made = 0, worst = 0;

	for (size_t at = 0; at < COUNT(codes); at++) {
		struct side *at_b = at == 11 || at == 13 || at == 15 ? b : NULL;
		if (codes[at] == 0) {
			made++;
			ANSWERS(0, take(at_b ? at_b : a, context(at_b ? 6 : 5)).err);
		} else {
			ANSWERS(-FI_EINVAL, codes[at]);
			worst = (int)codes[at];
		}
	}
	/* The remote data of fi_writedata. */
	if (codes[3] == 0)
		take_flags(b, FI_REMOTE_CQ_DATA);
	CHECK(worst == 0 || made == 0 || b != a, "%d calls of %zu were made", made, COUNT(codes));
	return worst;
}

/* With FI_MR_LOCAL memory needs the descriptor of its own region, with the right for the operation. */
static void described(void)
{
	char *memory = pages(BYTES, 1);
	struct fid_domain *other;
	struct fid_mr *target, *mr, *foreign;
	void *out, *in, *others[6];

	open_world(&w, FI_MR_LOCAL, NULL);
	target = registered(&w, memory, BYTES, BOTH_WAYS, 610, 0);
	out = w.a->out_desc, in = w.a->in_desc;
	CHECK(out && in && out != in, "descriptions");
	fill(w.a->out, 64, 3);
	/* The memory of `in` is registered for receiving and reading, that of `out` for sending and writing. */
	asserts("MR-036 MR-047");
	ANSWERS(0, each_call(out, in, 610, 64));
	/* Injected data is copied and needs no descriptor. */
	ANSWERS(0, POST(w.a, fi_inject_write(w.a->ep, w.a->out, 64, w.a->peer, 0, 610)));
	ANSWERS(0, try_read(&w, 0, 610, 64));
	/*
	 * No descriptor, invalid ones, other regions, a region that is too short, a region of another domain, and a
	 * closed region.
	 */
	NEEDS(fi_domain(w.two.room.fabric, w.two.room.info, &other, NULL));
	NEEDS(fi_mr_reg(other, w.a->out, ROOM, FI_SEND | FI_WRITE, 0, 1, 0, &foreign, NULL));
	mr = registered(&w, w.a->out, 64, FI_SEND | FI_WRITE, 611, 0);
	others[0] = NULL, others[1] = w.a->out, others[2] = in, others[3] = fi_mr_desc(target), others[5] = (void *)~(uintptr_t)0;
	others[4] = fi_mr_desc(mr);
	ANSWERS(0, fi_send(w.a->ep, NULL, 0, NULL, w.a->peer, context(7)));
	ANSWERS(0, fi_recv(w.b->ep, NULL, 0, NULL, w.b->peer, context(8)));
	take(w.a, context(7)), take(w.b, context(8));
	fill(memory, BYTES, 1);
	asserts("MR-037 MR-038");
	for (size_t at = 0; at < COUNT(others); at++) {
		CHECK(fi_write(w.a->ep, w.a->out, 65, others[at], w.a->peer, 0, 610, context(0)) == -FI_EINVAL, "description %zu", at);
		CHECK(fi_send(w.a->ep, w.a->out, 65, others[at], w.a->peer, context(0)) == -FI_EINVAL, "description %zu", at);
		CHECK(fi_read(w.a->ep, w.a->in, 65, at == 2 ? out : others[at], w.a->peer, 0, 610, context(0)) == -FI_EINVAL, "description %zu", at);
		CHECK(fi_recv(w.b->ep, w.b->in, 65, at == 2 ? w.b->out_desc : others[at], w.b->peer, context(0)) == -FI_EINVAL, "description %zu", at);
		CHECK(fi_fetch_atomic(w.a->ep, w.a->out, 1, out, w.a->in, at == 2 ? out : others[at], w.a->peer, 0, 610, FI_UINT64, FI_SUM,
				      context(0)) == -FI_EINVAL, "description %zu", at);
	}
	/* Descriptors are not secret: a region of another domain may have the same number, but not this memory. */
	CHECK(fi_write(w.a->ep, w.a->in, 64, fi_mr_desc(foreign), w.a->peer, 0, 610, context(0)) == -FI_EINVAL, "of another domain");
	ANSWERS(0, fi_close(&mr->fid));
	CHECK(fi_write(w.a->ep, w.a->out, 64, others[4], w.a->peer, 0, 610, context(0)) == -FI_EINVAL, "a closed region's");
	CHECK(is_filled(memory, BYTES, 1), "something was written");
	/* Each right for its own direction. */
	asserts("MR-046 MR-054");
	mr = registered(&w, w.a->out, BYTES, FI_SEND, 612, 0);
	ANSWERS(0, each_call(fi_mr_desc(mr), in, 610, 64));
	ANSWERS(0, fi_close(&mr->fid));
	asserts("MR-049");
	mr = registered(&w, w.a->out, BYTES, FI_WRITE, 612, 0);
	ANSWERS(0, each_call(fi_mr_desc(mr), in, 610, 64));
	ANSWERS(0, fi_close(&mr->fid));
	mr = registered(&w, w.a->out, BYTES, FI_RECV | FI_READ | BOTH_WAYS, 612, 0);
	CHECK(fi_send(w.a->ep, w.a->out, 64, fi_mr_desc(mr), w.a->peer, context(0)) == -FI_EINVAL, "without the right to send");
	ANSWERS(0, fi_close(&mr->fid));
	asserts("MR-048");
	mr = registered(&w, w.a->in, BYTES, FI_READ, 612, 0);
	ANSWERS(0, each_call(out, fi_mr_desc(mr), 610, 64));
	ANSWERS(0, fi_close(&mr->fid));
	mr = registered(&w, w.a->in, BYTES, FI_SEND | FI_WRITE | BOTH_WAYS, 612, 0);
	CHECK(fi_read(w.a->ep, w.a->in, 64, fi_mr_desc(mr), w.a->peer, 0, 610, context(0)) == -FI_EINVAL, "without the right to read");
	ANSWERS(0, fi_close(&mr->fid));
	ANSWERS(0, fi_close(&foreign->fid));
	ANSWERS(0, fi_close(&other->fid));
	ANSWERS(0, fi_close(&target->fid));
	close_world(&w);
	munmap(memory, BYTES);
}

/*
 * The attributes of older versions are shorter: they have no authorization keys before 1.5, and no kind of memory before
 * 1.9, even if the application requests FI_HMEM.
 */
static void older_attributes(void)
{
	static const uint32_t versions[] = { FI_VERSION(1, 4), FI_VERSION(1, 8) };

	for (size_t at = 0; at < 2 * COUNT(versions); at++) {
		uint32_t version = versions[at / 2];
		bool keys = FI_VERSION_GE(version, FI_VERSION(1, 5)), devices = at & 1;
		const struct settings old = { .name = "old", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL,
					      .mr_mode = keys ? 0 : FI_MR_SCALABLE, .caps = devices ? FI_HMEM : 0, .api = version };
		char *memory = pages(BYTES, 1);
		struct iovec iov = { memory, BYTES };
		struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = BOTH_WAYS, .requested_key = 620,
					   .auth_key = keys ? NULL : (uint8_t *)8, .auth_key_size = keys ? 0 : 12345,
					   .iface = FI_HMEM_CUDA, .device.cuda = 3 };
		struct fid_mr *mr;

		open_world(&w, 0, &old);
		CHECK(!!(w.two.room.info->caps & FI_HMEM) == devices, "caps %#llx", (unsigned long long)w.two.room.info->caps);
		asserts("MR-057");
		NEEDS(fi_mr_regattr(w.domain, &attr, 0, &mr));
		served(&w, 0, 620, memory);
		ANSWERS(0, fi_close(&mr->fid));
		close_world(&w);
		munmap(memory, BYTES);
	}
}

void registration_modes_groups(void)
{
	begin("mr: modes that are required, or not");
	negotiated();
	end();
	begin("mr: old names of modes");
	old_names();
	end();
	begin("mr: virtual addresses, allocated memory, the provider's keys");
	basic(FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY);
	end();
	begin("mr: basic");
	basic(FI_MR_BASIC);
	end();
	begin("mr: local memory is described");
	described();
	end();
	begin("mr: attributes of older versions");
	older_attributes();
	end();
}
