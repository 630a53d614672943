/* Raw keys (fi_mr(3), fi_mr_raw_attr, fi_mr_map_raw, fi_mr_unmap_key). */
#include "registration.h"

#include <sys/mman.h>

static struct world w;

struct raw {
	uint8_t bytes[64];
	size_t len;
	uint64_t base;
};

static struct raw raw_of(struct fid_mr *mr)
{
	struct raw raw = { .len = sizeof(raw.bytes) };

	NEEDS(fi_mr_raw_attr(mr, &raw.base, raw.bytes, &raw.len, 0));
	return raw;
}

static uint64_t mapped(const struct raw *raw)
{
	uint64_t key = 0;

	NEEDS(fi_mr_map_raw(w.domain, raw->base, (uint8_t *)raw->bytes, raw->len, &key, 0));
	return key;
}

/* With and without FI_MR_RAW. */
static void raw_keys(int taken)
{
	char *memory = pages(BYTES, 1);
	struct fid_mr *mr, *other;
	struct raw raw, second;
	uint64_t key, again, base;
	size_t len;

	open_world(&w, taken, NULL);
	mr = registered(&w, memory, BYTES, BOTH_WAYS, 700, 0);
	raw = raw_of(mr);
	base = base_of(&w, memory);
	asserts("KEY-006 KEY-011");
	CHECK(raw.base == base, "%#llx", (unsigned long long)raw.base);
	CHECK(raw.len == (taken & FI_MR_RAW ? 32 : 8), "%zu bytes", raw.len);
	if (taken & FI_MR_RAW)
		asserts("KEY-003");
	CHECK((fi_mr_key(mr) == FI_KEY_NOTAVAIL) == !!(taken & FI_MR_RAW), "%#llx", (unsigned long long)fi_mr_key(mr));
	/* Buffer sizes: too small, zero, exact, larger. */
	asserts("KEY-007 KEY-008 KEY-009");
	for (len = 0; len < raw.len; len++) {
		size_t needed = len;
		ANSWERS(-FI_ETOOSMALL, fi_mr_raw_attr(mr, &second.base, len ? second.bytes : NULL, &needed, 0));
		CHECK(needed == raw.len, "%zu", needed);
	}
	for (; len < sizeof(second.bytes); len++) {
		second.len = len;
		ANSWERS(0, fi_mr_raw_attr(mr, &second.base, second.bytes, &second.len, 0));
		CHECK(second.len == raw.len && second.base == raw.base && !memcmp(second.bytes, raw.bytes, raw.len), "another key");
	}
	ANSWERS(-FI_EBADFLAGS, fi_mr_raw_attr(mr, &second.base, second.bytes, &second.len, 1));
	/* Parts of a raw key are not keys. A mapped key grants no access after it was unmapped. */
	if (taken & FI_MR_RAW) {
		asserts("KEY-005 KEY-014");
		for (size_t at = 0; at + 8 <= raw.len; at++) {
			memcpy(&key, raw.bytes + at, 8);
			CHECK(try_read(&w, base, key, 8) != 0, "the bytes at %zu are a key", at);
		}
		refused(&w, base, 700, memory, 1);
		refused(&w, base, FI_KEY_NOTAVAIL, memory, 1);
	}
	/* A mapped key is never FI_KEY_NOTAVAIL, and permits all accesses. */
	asserts("KEY-004 KEY-012");
	if (taken & FI_MR_RAW)
		asserts("KEY-015");
	else
		asserts("KEY-013 KEY-019");
	key = mapped(&raw), again = mapped(&raw);
	CHECK(key != again && key != FI_KEY_NOTAVAIL && again != FI_KEY_NOTAVAIL, "one key for two mappings, or no key");
	served(&w, raw.base, key, memory);
	served(&w, raw.base + 8, again, memory + 8);
	asserts("KEY-016");
	ANSWERS(0, fi_mr_unmap_key(w.domain, key));
	fill(memory, BYTES, 1);
	refused(&w, raw.base, key, memory, 1);
	ANSWERS(0, try_read(&w, raw.base, again, BYTES));
	asserts("KEY-018");
	CHECK(fi_mr_unmap_key(w.domain, key) < 0, "unmapped twice");
	CHECK(fi_mr_unmap_key(w.domain, 0x1234) < 0, "never mapped");
	/* Each region has its own key. */
	other = registered(&w, memory, BYTES, FI_REMOTE_READ, 701, 0);
	second = raw_of(other);
	CHECK(memcmp(second.bytes, raw.bytes, raw.len) != 0, "two regions with one key");
	key = mapped(&second);
	ANSWERS(0, try_read(&w, second.base, key, 64));
	CHECK(try_write(&w, second.base, key, 64, 1) != 0, "a right that the region does not give");
	/* The key of a closed region is invalid, even if it is mapped again. */
	ANSWERS(0, fi_close(&other->fid));
	refused(&w, second.base, key, memory, 1);
	ANSWERS(0, fi_mr_unmap_key(w.domain, key));
	key = mapped(&second);
	refused(&w, second.base, key, memory, 1);
	ANSWERS(0, fi_mr_unmap_key(w.domain, key));
	ANSWERS(0, fi_mr_unmap_key(w.domain, again));
	ANSWERS(0, fi_close(&mr->fid));
	close_world(&w);
	munmap(memory, BYTES);
}

/* Keys that were changed, truncated, invented, or belong to another domain. */
static void forged(void)
{
	char *memory = pages(BYTES, 1);
	struct fid_domain *other;
	struct fid_mr *mr, *foreign;
	struct raw raw, forged_key;
	uint64_t key;

	open_world(&w, FI_MR_RAW, NULL);
	NEEDS(fi_domain(w.two.room.fabric, w.two.room.info, &other, NULL));
	NEEDS(fi_mr_reg(other, memory, BYTES, BOTH_WAYS, 0, 1, 0, &foreign, NULL));
	mr = registered(&w, memory, BYTES, BOTH_WAYS, 0, 0);
	raw = raw_of(mr);
	for (size_t bit = 0; bit < raw.len * 8; bit += options.few ? 17 : 1) {
		forged_key = raw;
		forged_key.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
		key = mapped(&forged_key);
		refused(&w, 0, key, memory, 1);
		ANSWERS(0, fi_mr_unmap_key(w.domain, key));
	}
	for (size_t len = 0; len < sizeof(raw.bytes); len++) {
		if (len == 8 || len == raw.len)
			continue;
		CHECK(fi_mr_map_raw(w.domain, 0, raw.bytes, len, &key, 0) < 0, "%zu bytes", len);
	}
	forged_key = raw, forged_key.len = 8;
	key = mapped(&forged_key);
	refused(&w, 0, key, memory, 1);
	ANSWERS(0, fi_mr_unmap_key(w.domain, key));
	forged_key = raw_of(foreign);
	key = mapped(&forged_key);
	refused(&w, 0, key, memory, 1);
	ANSWERS(0, fi_mr_unmap_key(w.domain, key));
	ANSWERS(-FI_EBADFLAGS, fi_mr_map_raw(w.domain, 0, raw.bytes, raw.len, &key, 1));
	/* A mapped key is not a raw key: mapping it grants no access. The keys next to a mapped key grant no access. */
	key = mapped(&raw);
	memcpy(forged_key.bytes, &key, 8), forged_key.len = 8;
	CHECK(try_read(&w, 0, mapped(&forged_key), 8) != 0, "a mapped key was mapped");
	ANSWERS(0, fi_mr_unmap_key(w.domain, key + 1));
	CHECK(try_read(&w, 0, key + 1, 8) != 0 && try_read(&w, 0, key - 1, 8) != 0, "a key that was not mapped");
	served(&w, 0, key, memory);
	ANSWERS(0, fi_mr_unmap_key(w.domain, key));
	ANSWERS(0, fi_close(&foreign->fid));
	/* A domain in which keys are mapped stays open. */
	asserts("KEY-017");
	NEEDS(fi_mr_map_raw(other, 0, raw.bytes, raw.len, &key, 0));
	ANSWERS(-FI_EBUSY, fi_close(&other->fid));
	ANSWERS(0, fi_mr_unmap_key(other, key));
	ANSWERS(0, fi_close(&other->fid));
	ANSWERS(0, fi_close(&mr->fid));
	close_world(&w);
	munmap(memory, BYTES);
}

/* A buffer of mr_key_size bytes is always large enough. */
static void sizes(void)
{
	setenv("FI_PERCALE_MR_MODE", "raw", 1);
	for (int raw = 0; raw < 2; raw++) {
		const struct settings how = { .name = "sizes", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL,
					      .mr_mode = raw ? FI_MR_RAW : 0 };
		char *memory = pages(BYTES, 1);
		struct fid_mr *mr;
		struct raw key;

		if (!raw)
			unsetenv("FI_PERCALE_MR_MODE");
		else
			setenv("FI_PERCALE_MR_MODE", "raw", 1);
		open_world(&w, 0, &how);
		CHECK(w.mode == how.mr_mode, "%#x", w.mode);
		mr = registered(&w, memory, BYTES, BOTH_WAYS, 9, 0);
		key = raw_of(mr);
		asserts("KEY-010");
		CHECK(key.len == w.two.room.info->domain_attr->mr_key_size, "a raw key of %zu bytes, not %zu", key.len,
		      w.two.room.info->domain_attr->mr_key_size);
		ANSWERS(0, fi_close(&mr->fid));
		close_world(&w);
		munmap(memory, BYTES);
	}
	unsetenv("FI_PERCALE_MR_MODE");
}

/* All kinds of operations, in pieces and injected, with mapped keys. */
static void operations(void)
{
	char *memory = pages(1 << 20, 1);
	struct side *a;
	struct fid_mr *mr;
	struct raw raw;
	uint64_t key;

	open_world(&w, FI_MR_RAW | FI_MR_VIRT_ADDR, NULL);
	a = w.a;
	mr = registered(&w, memory, 1 << 20, BOTH_WAYS, 0, 0);
	raw = raw_of(mr);
	key = mapped(&raw);
	for (size_t len = 1; len <= 1 << 20; len *= 4) {
		struct iovec iov[2] = { { a->out, len / 2 }, { a->out + len / 2, len - len / 2 } };
		struct fi_rma_iov there[2] = { { raw.base, len - len / 2, key }, { raw.base + len - len / 2, len / 2, key } };
		struct fi_msg_rma msg = { iov, NULL, 2, a->peer, there, 2, context(0), 0 };

		fill(a->out, len, (unsigned)len);
		POSTED(a, fi_writemsg(a->ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		ANSWERS(0, take(a, context(0)).err);
		CHECK(is_filled(memory, len, (unsigned)len), "%zu bytes were not written", len);
		ANSWERS(0, try_read(&w, raw.base, key, len));
		CHECK(is_filled(a->in, len, (unsigned)len), "a read of %zu bytes returned other bytes", len);
	}
	fill(a->out, 100, 5);
	ANSWERS(0, POST(a, fi_inject_write(a->ep, a->out, 100, a->peer, raw.base, key)));
	ANSWERS(0, try_read(&w, raw.base, key, 100));
	CHECK(is_filled(memory, 100, 5), "the injected bytes did not arrive");
	ANSWERS(0, fi_mr_unmap_key(w.domain, key));
	CHECK(fi_inject_write(a->ep, a->out, 100, a->peer, raw.base, key) < 0, "injected by a key that is unmapped");
	ANSWERS(0, fi_close(&mr->fid));
	close_world(&w);
	munmap(memory, 1 << 20);
}

void registration_keys_groups(void)
{
	begin("key: raw keys");
	raw_keys(FI_MR_RAW);
	end();
	begin("key: raw keys, virtual addresses");
	raw_keys(FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY);
	end();
	begin("key: raw keys without FI_MR_RAW");
	raw_keys(0);
	end();
	begin("key: forged keys");
	forged();
	end();
	begin("key: sizes");
	sizes();
	end();
	begin("key: operations by mapped keys");
	operations();
	end();
}
