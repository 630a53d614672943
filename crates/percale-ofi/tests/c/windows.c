/* Memory windows from percale_fi_ext.h: bound to parts of regions, and revoked. */
#include "registration.h"

#include <percale_fi_ext.h>
#include <sys/mman.h>

static struct world w;
static struct percale_window_ops *ops;
static char *memory;
static struct fid_mr *mr;

enum { ALL_RIGHTS = PERCALE_WINDOW_READ | PERCALE_WINDOW_WRITE | PERCALE_WINDOW_ATOMIC };

static struct percale_window_range part(uint64_t offset, uint64_t length, uint64_t access)
{
	return (struct percale_window_range){ mr, offset, length, access };
}

static struct percale_window_info info(struct percale_window *window)
{
	struct percale_window_info i = { 0 };

	ANSWERS(0, ops->query(window, &i));
	return i;
}

/* Type 1. */
static void type_one(void)
{
	struct percale_window_range range = part(1024, 512, ALL_RIGHTS), outside = part(BYTES - 8, 9, PERCALE_WINDOW_READ), none = part(0, 0, 0);
	struct percale_window *window;
	uint64_t key, address, last = 0;

	asserts("MW-001 MW-002 MW-005 MW-006 MW-034");
	NEEDS(ops->open(w.domain, PERCALE_WINDOW_1, &window));
	/* The key of a window that was never bound is invalid. */
	CHECK(try_read(&w, base_of(&w, memory) + 1024, info(window).key, 8) != 0, "a window that is not bound was read");
	CHECK(info(window).type == PERCALE_WINDOW_1 && info(window).state == PERCALE_WINDOW_UNBOUND && info(window).domain == w.domain, "new");
	for (int round = 0; round < 5; round++) {
		ANSWERS(0, ops->bind(window, &range, &key, &address));
		asserts("MW-021 MW-028");
		CHECK(key != last && key >> 32 && info(window).key == key && info(window).state == PERCALE_WINDOW_BOUND, "key %#llx", (unsigned long long)key);
		CHECK(address == base_of(&w, memory) + 1024, "%#llx", (unsigned long long)address);
		/* The key has a new lowest byte, and the index of the window. */
		asserts("MW-007");
		CHECK(!last || (key >> 8 & 0xffffff) == (last >> 8 & 0xffffff), "key %#llx after %#llx", (unsigned long long)key, (unsigned long long)last);
		asserts("MW-019");
		ANSWERS(0, try_write(&w, address, key, 512, 5));
		CHECK(is_filled(memory + 1024, 512, 5), "the write is not there");
		ANSWERS(0, try_add(&w, address + 8, key, 1));
		CHECK(try_write(&w, address + 1, key, 512, 5) != 0 && try_read(&w, address - 1, key, 2) != 0, "beyond the window");
		/* The region itself grants peers no read access. */
		asserts("MW-017");
		ANSWERS(0, try_read(&w, address, key, 8));
		asserts("MW-014");
		CHECK(try_read(&w, base_of(&w, memory), 960, 8) != 0, "the region is read");
		ANSWERS(0, try_write(&w, base_of(&w, memory), 960, 8, 1));
		asserts("MW-029");
		if (last)
			CHECK(try_read(&w, address, last, 8) != 0, "an old key is still valid");
		asserts("MW-004");
		ANSWERS(-FI_EBUSY, fi_close(&mr->fid));
		last = key;
	}
	asserts("MW-020");
	CHECK(ops->bind(window, &outside, &key, &address) < 0, "beyond the region");
	ANSWERS(0, try_read(&w, base_of(&w, memory) + 1024, last, 8));
	/* The window has its own access rights. */
	asserts("MW-015 MW-018");
	range.access = PERCALE_WINDOW_READ;
	ANSWERS(0, ops->bind(window, &range, &key, &address));
	ANSWERS(0, try_read(&w, address, key, 512));
	CHECK(try_write(&w, address, key, 8, 1) != 0 && try_add(&w, address, key, 1) != 0, "more than reading");
	ANSWERS(0, try_write(&w, base_of(&w, memory) + 1024, 960, 8, 1));
	asserts("MW-030");
	ANSWERS(0, ops->bind(window, &none, NULL, NULL));
	CHECK(info(window).state == PERCALE_WINDOW_UNBOUND && try_read(&w, address, key, 8) != 0, "the window is still bound, or its key is still valid");
	ANSWERS(0, ops->bind(window, &range, &key, &address));
	asserts("MW-003");
	ANSWERS(0, ops->close(window));
	CHECK(try_read(&w, address, key, 8) != 0, "the key of a closed window is still valid");
}

/* The address of a at the end that has the regions. */
static fi_addr_t peer_of_b(void)
{
	return w.b->peer;
}

/* Type 2. */
static void type_two(void)
{
	int two = ops->type_two(w.domain);
	struct percale_window_range range = part(0, 256, ALL_RIGHTS), empty = part(0, 0, ALL_RIGHTS);
	struct percale_window *window;
	uint64_t key, address;
	struct done done;

	CHECK(two == PERCALE_WINDOW_2B, "%d", two);
	ANSWERS(-FI_EOPNOTSUPP, ops->open(w.domain, PERCALE_WINDOW_2A, &window));
	NEEDS(ops->open(w.domain, two, &window));
	asserts("MW-025");
	CHECK(ops->bind(window, &range, &key, &address) < 0, "bound by a call");
	for (int round = 0; round < 4; round++) {
		uint8_t byte = (uint8_t)(17 * round);
		ANSWERS(0, ops->post_bind(w.b->ep, peer_of_b(), window, &range, byte, &key, &address, context(10), FI_COMPLETION));
		done = take(w.b, context(10));
		CHECK(done.err == 0 && (done.flags & PERCALE_BIND) && done.data == key, "error %d flags %#llx", done.err, (unsigned long long)done.flags);
		asserts("MW-035");
		CHECK((key & 0xff) == byte && info(window).key == key, "key %#llx", (unsigned long long)key);
		ANSWERS(0, try_write(&w, address, key, 256, 6));
		CHECK(is_filled(memory, 256, 6), "the write is not there");
		CHECK(try_write(&w, address, key ^ 1, 8, 6) != 0, "another key");
		/* Bound twice, and an invalidation of another key. */
		asserts("MW-037 MW-046");
		ANSWERS(0, ops->post_bind(w.b->ep, peer_of_b(), window, &range, 99, NULL, NULL, context(11), FI_COMPLETION));
		CHECK(take(w.b, context(11)).err != 0, "bound twice");
		ANSWERS(0, ops->post_invalidate(w.b->ep, peer_of_b(), key ^ 1, context(12), FI_COMPLETION));
		CHECK(take(w.b, context(12)).err != 0, "no such key");
		asserts("MW-043");
		if (round % 2) {
			ANSWERS(0, ops->post_invalidate(w.b->ep, peer_of_b(), key, context(13), FI_COMPLETION));
			done = take(w.b, context(13));
			CHECK(done.err == 0 && (done.flags & PERCALE_INVALIDATED) && done.data == key, "error %d", done.err);
		} else {
			/* Invalidated by the peer with a message. */
			asserts("MW-045");
			fill(w.a->out, 100, 8);
			POSTED(w.b, fi_recv(w.b->ep, w.b->in, 100, NULL, w.b->peer, context(14)));
			POSTED(w.a, ops->send_invalidate(w.a->ep, w.a->out, 100, w.a->peer, key, context(15), FI_COMPLETION));
			done = take(w.b, context(14));
			CHECK(done.err == 0 && (done.flags & PERCALE_INVALIDATED) && done.data == key, "error %d flags %#llx", done.err, (unsigned long long)done.flags);
			CHECK(is_filled(w.b->in, 100, 8), "another message");
			ANSWERS(0, take(w.a, context(15)).err);
		}
		CHECK(info(window).state == PERCALE_WINDOW_UNBOUND, "state %d", info(window).state);
		refused(&w, address, key, NULL, 1);
	}
	asserts("MW-036");
	ANSWERS(0, ops->post_bind(w.b->ep, peer_of_b(), window, &empty, 1, NULL, NULL, context(16), FI_COMPLETION));
	CHECK(take(w.b, context(16)).err != 0, "bound to nothing");
	ANSWERS(0, ops->close(window));
}

/* Several windows over one region. */
static void several(void)
{
	struct percale_window_range low = part(0, 512, PERCALE_WINDOW_READ), high = part(256, 512, PERCALE_WINDOW_READ | PERCALE_WINDOW_WRITE);
	struct percale_window *one, *other, *two;
	uint64_t key[3], address[3], base = base_of(&w, memory);

	NEEDS(ops->open(w.domain, PERCALE_WINDOW_1, &one));
	NEEDS(ops->open(w.domain, PERCALE_WINDOW_1, &other));
	NEEDS(ops->open(w.domain, ops->type_two(w.domain), &two));
	asserts("MW-018 MW-022 MW-023");
	ANSWERS(0, ops->bind(one, &low, &key[0], &address[0]));
	ANSWERS(0, ops->bind(other, &high, &key[1], &address[1]));
	ANSWERS(0, ops->post_bind(w.b->ep, peer_of_b(), two, &low, 7, &key[2], &address[2], context(20), FI_COMPLETION));
	ANSWERS(0, take(w.b, context(20)).err);
	/* All keys can read the common bytes. One window's key and the region's key can write them. */
	for (int at = 0; at < 3; at++)
		ANSWERS(0, try_read(&w, base + 256, key[at], 256));
	CHECK(try_write(&w, base + 256, key[0], 8, 1) != 0 && try_write(&w, base + 256, key[2], 8, 1) != 0, "more than reading");
	ANSWERS(0, try_write(&w, base + 256, key[1], 8, 11));
	CHECK(is_filled(memory + 256, 8, 11), "the write is not there");
	ANSWERS(0, try_write(&w, base + 256, 960, 8, 12));
	/* A key with other lower 8 bits, and a key with an unused index. */
	asserts("MW-008 MW-010");
	CHECK(try_read(&w, base + 256, (key[2] & ~(uint64_t)0xff) | ((key[2] + 1) & 0xff), 8) != 0, "bits of another key");
	CHECK(try_read(&w, base + 256, key[0] ^ (1 << 30), 8) != 0, "an index of none");
	asserts("MW-024 MW-031 MW-047");
	/* A window of type 1 cannot be bound by a posted operation, and cannot be invalidated by its owner or by the peer. */
	ANSWERS(0, ops->post_bind(w.b->ep, peer_of_b(), one, &low, 1, NULL, NULL, context(21), FI_COMPLETION));
	CHECK(take(w.b, context(21)).err != 0, "type 1 bound by a post");
	ANSWERS(0, ops->post_invalidate(w.b->ep, peer_of_b(), key[0], context(22), FI_COMPLETION));
	CHECK(take(w.b, context(22)).err != 0, "type 1 invalidated");
	POSTED(w.a, ops->send_invalidate(w.a->ep, w.a->out, 8, w.a->peer, key[0], context(23), FI_COMPLETION));
	CHECK(take(w.a, context(23)).err != 0, "type 1 invalidated by the peer");
	ANSWERS(0, try_read(&w, base, key[0], 8));
	/* A key can be invalidated once, and no other key is affected. */
	asserts("MW-046 MW-048");
	ANSWERS(0, ops->post_invalidate(w.b->ep, peer_of_b(), key[2], context(24), FI_COMPLETION));
	ANSWERS(0, take(w.b, context(24)).err);
	ANSWERS(0, ops->post_invalidate(w.b->ep, peer_of_b(), key[2], context(25), FI_COMPLETION));
	CHECK(take(w.b, context(25)).err != 0, "invalidated twice");
	CHECK(try_read(&w, base + 256, key[2], 8) != 0, "an invalidated key is still valid");
	ANSWERS(0, try_read(&w, base, key[0], 8));
	ANSWERS(0, try_write(&w, base + 256, key[1], 8, 13));
	ANSWERS(0, try_write(&w, base, 960, 8, 14));
	ANSWERS(0, ops->close(two));
	ANSWERS(0, ops->close(other));
	ANSWERS(0, ops->close(one));
}

/* Invalid windows, regions and types are rejected. */
static void arguments(void)
{
	struct percale_window_range range = part(0, 8, 8), good = part(0, 8, 1), nothing = good;
	struct percale_window *window, *untouched = (struct percale_window *)memory;
	void *table;

	ANSWERS(-FI_EBADFLAGS, fi_open_ops(&w.domain->fid, PERCALE_WINDOW_OPS, 1, &table, NULL));
	ANSWERS(-FI_EINVAL, ops->type_two((struct fid_domain *)w.b->ep));
	window = untouched;
	ANSWERS(-FI_EINVAL, ops->open(w.domain, 0, &window));
	ANSWERS(-FI_EINVAL, ops->open(w.domain, 4, &window));
	CHECK(window == untouched, "an object was returned by a failed call");
	NEEDS(ops->open(w.domain, PERCALE_WINDOW_1, &window));
	ANSWERS(-FI_EINVAL, ops->bind(window, NULL, NULL, NULL));
	ANSWERS(-FI_EINVAL, ops->bind(window, &range, NULL, NULL));
	nothing.mr = (struct fid_mr *)w.b->ep;
	ANSWERS(-FI_EINVAL, ops->bind(window, &nothing, NULL, NULL));
	good.length = UINT64_MAX, good.offset = 2;
	ANSWERS(-FI_EINVAL, ops->bind(window, &good, NULL, NULL));
	ANSWERS(-FI_EINVAL, ops->query(NULL, NULL));
	ANSWERS(0, ops->close(window));
}

static void group(const char *name, void (*run)(void))
{
	begin(name);
	open_world(&w, 0, NULL);
	NEEDS(fi_open_ops(&w.domain->fid, PERCALE_WINDOW_OPS, 0, (void **)&ops, NULL));
	CHECK(ops->size == sizeof(*ops), "%zu", ops->size);
	memory = pages(BYTES, 1);
	/* The owner can change the memory, and windows let peers write it. The region itself grants peers no read access. */
	mr = registered(&w, memory, BYTES, FI_REMOTE_WRITE, 960, 0);
	run();
	ANSWERS(0, fi_close(&mr->fid));
	close_world(&w);
	munmap(memory, BYTES);
	end();
}

void window_groups(void)
{
	group("mw: type 1", type_one);
	group("mw: type 2", type_two);
	group("mw: several", several);
	group("mw: arguments", arguments);
}
