/* Binding of regions (fi_mr(3), fi_mr_bind, fi_mr_enable, fi_mr_refresh), their owners, and closing them. */
#include "registration.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

static struct world w;

static struct fid_cntr *counter(void)
{
	struct fid_cntr *c;

	NEEDS(fi_cntr_open(w.domain, NULL, &c, NULL));
	return c;
}

/* Checks that the counter reaches this value and does not exceed it. */
static void counts(struct fid_cntr *c, uint64_t expected)
{
	ANSWERS(0, fi_cntr_wait(c, expected, WAIT_LIMIT * 1000));
	for (int n = 0; n < 50; n++)
		progress(w.a);
	ANSWERS(expected, fi_cntr_read(c));
}

/* Only the writes of peers are counted. Bound objects are closed first. */
static void counting(void)
{
	char *memory = pages(BYTES, 1), *elsewhere = pages(BYTES, 2);
	struct fid_cntr *c = counter();
	struct fid_mr *mr = registered(&w, memory, BYTES, BOTH_WAYS, 801, 0), *other = registered(&w, elsewhere, BYTES, BOTH_WAYS, 802, 0);

	asserts("BIND-005");
	ANSWERS(-FI_EBADFLAGS, fi_mr_bind(mr, &c->fid, FI_REMOTE_WRITE | FI_MULTICAST));
	ANSWERS(-FI_EBADFLAGS, fi_mr_bind(mr, &c->fid, 0));
	ANSWERS(0, fi_mr_bind(mr, &c->fid, FI_REMOTE_WRITE));
	CHECK(fi_mr_bind(mr, &w.b->txcq->fid, 0) < 0, "a queue is bound");
	asserts("BIND-001");
	served(&w, 0, 801, memory);
	counts(c, 2);
	asserts("BIND-002 RMA-010");
	ANSWERS(0, try_read(&w, 0, 801, 100));
	served(&w, 0, 802, elsewhere);
	CHECK(try_write(&w, BYTES, 801, 8, 1) != 0, "beyond the end");
	counts(c, 2);
	for (uint64_t n = 1; n <= 20; n++)
		ANSWERS(0, try_write(&w, n, 801, 64 * n, 3));
	counts(c, 22);
	asserts("MR-070");
	ANSWERS(-FI_EBUSY, fi_close(&mr->fid));
	served(&w, 0, 801, memory);
	counts(c, 24);
	ANSWERS(0, fi_close(&c->fid));
	served(&w, 0, 801, memory);
	ANSWERS(0, fi_close(&mr->fid));
	ANSWERS(0, fi_close(&other->fid));
	munmap(memory, BYTES);
	munmap(elsewhere, BYTES);
}

/* A wait for the counter of a region makes progress. Nothing else does. */
static void waiting(void)
{
	char *memory = pages(BYTES, 1);
	struct fid_cntr *c = counter();
	struct fid_mr *mr = registered(&w, memory, BYTES, BOTH_WAYS, 804, 0);

	ANSWERS(0, fi_mr_bind(mr, &c->fid, FI_REMOTE_WRITE));
	served(&w, 0, 804, memory);
	counts(c, 2);
	for (uint64_t n = 3; n < 20; n++) {
		POSTED(w.a, fi_inject_write(w.a->ep, w.a->out, 8, w.a->peer, 0, 804));
		ANSWERS(0, fi_cntr_wait(c, n, WAIT_LIMIT * 1000));
	}
	ANSWERS(0, fi_close(&c->fid));
	ANSWERS(0, fi_close(&mr->fid));
	munmap(memory, BYTES);
}

/* AMB-01: programs of later versions close a region before the objects that it is bound to. */
static void regions_first(void)
{
	char *memory = pages(BYTES, 1);
	struct fid_cntr *c = counter();
	struct fid_mr *mr = registered(&w, memory, BYTES, BOTH_WAYS, 803, 0);

	ANSWERS(0, fi_mr_bind(mr, &c->fid, FI_REMOTE_WRITE));
	served(&w, 0, 803, memory);
	ANSWERS(0, fi_close(&mr->fid));
	refused(&w, 0, 803, NULL, 1);
	counts(c, 2);
	ANSWERS(0, fi_close(&c->fid));
	munmap(memory, BYTES);
}

/* Without the capability nothing is counted, and the binding fails. */
static void not_counting(void)
{
	char *memory = pages(BYTES, 1);
	struct fid_cntr *c = counter();
	struct fid_mr *mr = registered(&w, memory, BYTES, BOTH_WAYS, 803, FI_RMA_EVENT);

	asserts("BIND-003 MR-073");
	ANSWERS(-FI_ENOSYS, fi_mr_bind(mr, &c->fid, FI_REMOTE_WRITE));
	served(&w, 0, 803, memory);
	ANSWERS(0, fi_close(&mr->fid));
	ANSWERS(0, fi_close(&c->fid));
	munmap(memory, BYTES);
}

/* With FI_MR_RMA_EVENT a region that counts is enabled after its counter was bound. */
static void enabling(void)
{
	char *memory = pages(BYTES, 1);
	struct iovec iov = { memory, BYTES };
	struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = BOTH_WAYS, .requested_key = 811 };
	struct fid_cntr *c = counter(), *late = counter();
	struct fid_mr *mr;

	asserts("MR-075");
	for (int call = 0; call < 3; call++) {
		if (call == 0)
			NEEDS(fi_mr_reg(w.domain, memory, BYTES, BOTH_WAYS, 0, 811, FI_RMA_EVENT, &mr, NULL));
		else if (call == 1)
			NEEDS(fi_mr_regv(w.domain, &iov, 1, BOTH_WAYS, 0, 811, FI_RMA_EVENT, &mr, NULL));
		else
			NEEDS(fi_mr_regattr(w.domain, &attr, FI_RMA_EVENT, &mr));
		fill(memory, BYTES, 1);
		asserts("BIND-006");
		refused(&w, 0, 811, memory, 1);
		/* The key is in use, although no peer can access the region. */
		struct fid_mr *second;
		ANSWERS(-FI_ENOKEY, fi_mr_reg(w.domain, memory, BYTES, BOTH_WAYS, 0, 811, 0, &second, NULL));
		if (call == 0)
			ANSWERS(0, fi_mr_bind(mr, &c->fid, FI_REMOTE_WRITE));
		refused(&w, 0, 811, memory, 1);
		asserts("BIND-008");
		ANSWERS(0, fi_mr_enable(mr));
		served(&w, 0, 811, memory);
		counts(c, 2);
		asserts("BIND-009");
		ANSWERS(-FI_EOPBADSTATE, fi_mr_bind(mr, &late->fid, FI_REMOTE_WRITE));
		ANSWERS(-FI_EOPBADSTATE, fi_mr_bind(mr, &w.b->ep->fid, 0));
		ANSWERS(0, fi_mr_enable(mr));
		if (call == 0) {
			ANSWERS(-FI_EBUSY, fi_close(&mr->fid));
			ANSWERS(0, fi_close(&c->fid));
			c = counter();
			fi_cntr_add(c, 2);
		}
		ANSWERS(0, fi_close(&mr->fid));
		refused(&w, 0, 811, NULL, 1);
	}
	/* Without the flag the region need not be enabled and does not count. */
	asserts("BIND-007");
	mr = registered(&w, memory, BYTES, BOTH_WAYS, 812, 0);
	served(&w, 0, 812, memory);
	CHECK(fi_mr_bind(mr, &late->fid, FI_REMOTE_WRITE) < 0, "bound without FI_RMA_EVENT");
	ANSWERS(0, fi_mr_enable(mr));
	ANSWERS(0, fi_close(&mr->fid));
	ANSWERS(0, fi_close(&late->fid));
	ANSWERS(0, fi_close(&c->fid));
	munmap(memory, BYTES);
}

/* A region that is accessed through one endpoint only. */
static void endpoints(bool bound)
{
	char *memory = pages(BYTES, 1);
	struct fid_mr *mr = registered(&w, memory, BYTES, BOTH_WAYS, 821, 0);
	struct side third;

	/* Another endpoint of the domain. */
	open_side(&third, &w.two.room, w.b->how);
	asserts("BIND-004");
	ANSWERS(-FI_EBADFLAGS, fi_mr_bind(mr, &w.b->ep->fid, FI_REMOTE_WRITE));
	if (!bound) {
		asserts("BIND-012");
		served(&w, 0, 821, memory);
		ANSWERS(0, fi_mr_bind(mr, &third.ep->fid, 0));
		served(&w, 0, 821, memory);
		ANSWERS(0, fi_mr_enable(mr));
		served(&w, 0, 821, memory);
		ANSWERS(-FI_EBUSY, fi_close(&mr->fid));
		close_side(&third);
		ANSWERS(0, fi_close(&mr->fid));
		munmap(memory, BYTES);
		return;
	}
	asserts("BIND-010");
	refused(&w, 0, 821, memory, 1);
	ANSWERS(-FI_EOPBADSTATE, fi_mr_enable(mr));
	refused(&w, 0, 821, memory, 1);
	ANSWERS(0, fi_mr_bind(mr, &third.ep->fid, 0));
	CHECK(fi_mr_bind(mr, &w.b->ep->fid, 0) < 0, "bound to two");
	ANSWERS(0, fi_mr_enable(mr));
	/* The region belongs to the third endpoint, not to b. */
	asserts("BIND-011 MR-070");
	refused(&w, 0, 821, memory, 1);
	ANSWERS(-FI_EBUSY, fi_close(&mr->fid));
	close_side(&third);
	refused(&w, 0, 821, memory, 1);
	ANSWERS(0, fi_close(&mr->fid));
	mr = registered(&w, memory, BYTES, BOTH_WAYS, 821, 0);
	refused(&w, 0, 821, memory, 1);
	ANSWERS(0, fi_mr_bind(mr, &w.b->ep->fid, 0));
	refused(&w, 0, 821, memory, 1);
	ANSWERS(0, fi_mr_enable(mr));
	served(&w, 0, 821, memory);
	ANSWERS(-FI_EOPBADSTATE, fi_mr_bind(mr, &w.b->ep->fid, 0));
	ANSWERS(-FI_EBUSY, fi_close(&mr->fid));
	served(&w, 0, 821, memory);
	close_side(&w.two.a);
	if (!options.alone)
		close_side(&w.two.b);
	ANSWERS(0, fi_close(&mr->fid));
	close_room(&w.two.room);
	munmap(memory, BYTES);
}

/* Objects of another domain cannot be bound, and the region remains unbound. */
static void another_domain(void)
{
	char *memory = pages(BYTES, 1);
	struct fid_mr *mr = registered(&w, memory, BYTES, BOTH_WAYS, 826, 0);
	struct room elsewhere = w.two.room;
	struct fid_cntr *c;
	struct side third;

	NEEDS(fi_domain(elsewhere.fabric, elsewhere.info, &elsewhere.domain, NULL));
	NEEDS(fi_cntr_open(elsewhere.domain, NULL, &c, NULL));
	open_side(&third, &elsewhere, w.b->how);
	ANSWERS(-FI_EINVAL, fi_mr_bind(mr, &c->fid, FI_REMOTE_WRITE));
	ANSWERS(-FI_EINVAL, fi_mr_bind(mr, &third.ep->fid, 0));
	served(&w, 0, 826, memory);
	ANSWERS(0, fi_cntr_read(c));
	/* A region that is bound to an open object could not be closed (MR-070). */
	ANSWERS(0, fi_close(&mr->fid));
	close_side(&third);
	ANSWERS(0, fi_close(&c->fid));
	ANSWERS(0, fi_close(&elsewhere.domain->fid));
	munmap(memory, BYTES);
}

/* Pages that the client reports (FI_MR_MMU_NOTIFY). */
static void refreshing(void)
{
	char *place = pages(4 * BYTES, 1);
	struct iovec outside = { place + 2 * BYTES - 1, 2 }, within = { place + BYTES, BYTES }, before = { place - 1, 2 };
	struct fid_mr *mr;

	MUST(mmap(place, 2 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == place, "no hole");
	mr = registered(&w, place, 2 * BYTES, BOTH_WAYS, 831, 0);
	refused(&w, 0, 831, NULL, 1);
	MUST(mmap(place, 2 * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == place, "no mapping");
	fill(place, BYTES, 1);
	/* The pages are present, but have not been reported. */
	asserts("BIND-013");
	refused(&w, 0, 831, place, 1);
	asserts("BIND-017");
	ANSWERS(-FI_EINVAL, fi_mr_refresh(mr, &outside, 1, 0));
	ANSWERS(-FI_EINVAL, fi_mr_refresh(mr, &before, 1, 0));
	refused(&w, 0, 831, place, 1);
	asserts("BIND-016");
	ANSWERS(0, fi_mr_refresh(mr, NULL, 0, 0));
	served(&w, 0, 831, place);
	served(&w, BYTES, 831, place + BYTES);
	/* Other pages at the same address. */
	asserts("BIND-014 BIND-015");
	for (unsigned round = 0; round < 5; round++) {
		MUST(munmap(place + BYTES, BYTES) == 0, "no hole");
		MUST(mmap(place + BYTES, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == place + BYTES, "no mapping");
		fill(place + BYTES, BYTES, round);
		ANSWERS(0, round % 2 ? fi_mr_refresh(mr, &within, 1, 0) : fi_mr_refresh(mr, NULL, 0, 0));
		ANSWERS(0, try_read(&w, BYTES, 831, BYTES));
		CHECK(is_filled(w.a->in, BYTES, round), "stale bytes");
		served(&w, BYTES, 831, place + BYTES);
	}
	/* Missing memory cannot be accessed until it is mapped and reported. */
	MUST(mmap(place, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == place, "no hole");
	ANSWERS(-FI_EFAULT, fi_mr_refresh(mr, NULL, 0, 0));
	CHECK(try_read(&w, BYTES, 831, 64) != 0, "served before it was refreshed");
	MUST(mmap(place, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == place, "no mapping");
	ANSWERS(0, fi_mr_refresh(mr, NULL, 0, 0));
	served(&w, 0, 831, place);
	ANSWERS(0, fi_close(&mr->fid));
	munmap(place, 4 * BYTES);
}

/*
 * The region is refreshed continuously while it is read. Each access succeeds or fails, and after the last
 * refresh all succeed.
 */
static struct fid_mr *volatile shaken;
static atomic_bool shaking;
static atomic_long rounds;

static void *shake(void *nothing)
{
	while (atomic_load(&shaking)) {
		if (fi_mr_refresh(shaken, NULL, 0, 0) != 0)
			return "fi_mr_refresh";
		atomic_fetch_add(&rounds, 1);
		usleep(50);
	}
	return nothing;
}

static void shaking_it(void)
{
	char *memory = pages(BYTES, 1);
	long served_now = 0, failed = 0;
	double until = now() + WAIT_LIMIT;
	pthread_t thread;
	void *problem;

	if (!(w.mode & FI_MR_MMU_NOTIFY))
		asserts("BIND-020");
	shaken = registered(&w, memory, BYTES, BOTH_WAYS, 841, 0);
	atomic_store(&shaking, true);
	MUST(pthread_create(&thread, NULL, shake, NULL) == 0, "no thread");
	while ((atomic_load(&rounds) < 200 || served_now < 200) && now() < until) {
		if (try_read(&w, 0, 841, BYTES) == 0) {
			CHECK(is_filled(w.a->in, BYTES, 1), "other bytes");
			served_now++;
		} else {
			failed++;
		}
	}
	atomic_store(&shaking, false);
	pthread_join(thread, &problem);
	CHECK(!problem, "%s", (char *)problem);
	CHECK(served_now >= 200 && atomic_load(&rounds) >= 200, "%ld served, %ld failed", served_now, failed);
	CHECK((w.mode & FI_MR_MMU_NOTIFY) || failed == 0, "%ld failed without FI_MR_MMU_NOTIFY", failed);
	served(&w, 0, 841, memory);
	ANSWERS(0, fi_close(&shaken->fid));
	munmap(memory, BYTES);
}

/* Regions with the domain's authorization key, and with other keys. */
static void authorized(void)
{
	static const char *const keys[] = { NULL, "of the domain", "of the endpoints", "of no object" };
	char *memory = pages(BYTES, 1);

	/* Endpoints with the domain's key, and with another key. */
	for (int own = 0; own < 2; own++) {
		const struct settings how = { .name = "keys", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL,
					      .domain_key = keys[1], .ep_key = own ? keys[2] : NULL };
		open_world(&w, 0, &how);
		for (size_t at = 0; at < COUNT(keys); at++) {
			struct iovec iov = { memory, BYTES };
			struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = BOTH_WAYS, .requested_key = 851,
						   .auth_key = (uint8_t *)keys[at], .auth_key_size = keys[at] ? strlen(keys[at]) : 0 };
			struct fid_mr *mr;

			NEEDS(fi_mr_regattr(w.domain, &attr, 0, &mr));
			fill(memory, BYTES, 1);
			asserts(keys[at] ? "MR-056" : "MR-055");
			if (own ? at == 2 : at < 2)
				served(&w, 0, 851, memory);
			else
				refused(&w, 0, 851, memory, 1);
			ANSWERS(0, fi_close(&mr->fid));
			attr.auth_key = NULL, attr.auth_key_size = 8;
			ANSWERS(-FI_EINVAL, fi_mr_regattr(w.domain, &attr, 0, &mr));
		}
		close_world(&w);
	}
	munmap(memory, BYTES);
}

/* The memory of an endpoint with another key cannot be read. */
static void strangers(void)
{
	const struct settings mine = { .name = "keys", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL, .ep_key = "mine" };
	struct settings theirs = mine;
	char *memory = pages(BYTES, 1), name[64];
	struct fid_mr *mr;
	struct room room;
	struct side side;
	fi_addr_t known;

	if (options.alone)
		return;
	theirs.ep_key = "theirs";
	open_world(&w, 0, &mine);
	open_room(&room, &theirs);
	open_side(&side, &room, &theirs);
	name_of(&side, name, sizeof(name));
	NEEDS(fi_mr_reg(room.domain, memory, BYTES, BOTH_WAYS, 0, 852, 0, &mr, NULL));
	known = w.a->peer;
	insert_peer(w.a, name);
	w.a->mate = &side;
	CHECK(try_read(&w, 0, 852, 8) != 0, "a stranger's memory was read");
	w.a->mate = w.b;
	w.a->peer = known;
	ANSWERS(0, fi_close(&mr->fid));
	close_side(&side);
	close_room(&room);
	close_world(&w);
	munmap(memory, BYTES);
}

static void group(const char *name, int taken, const struct settings *how, void (*run)(void))
{
	begin(name);
	open_world(&w, taken, how);
	run();
	close_world(&w);
	end();
}

static void unbound(void)
{
	endpoints(false);
}

void registration_binding_groups(void)
{
	static const struct settings quiet_one = { .name = "uncounted", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL };
	static const struct settings later = { .name = "later", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL,
					       .caps = FI_RMA_EVENT, .api = FI_VERSION(1, 18) };

	group("bind: counters", 0, NULL, counting);
	group("bind: waiting for a counter", 0, NULL, waiting);
	if (FI_VERSION_GE(fi_version(), later.api))
		group("bind: regions first", 0, &later, regions_first);
	group("bind: no counters", 0, &quiet_one, not_counting);
	group("bind: enabled with a counter", FI_MR_RMA_EVENT, NULL, enabling);
	begin("bind: to an endpoint");
	open_world(&w, FI_MR_ENDPOINT, NULL);
	endpoints(true);
	end();
	group("bind: to no endpoint", 0, NULL, unbound);
	group("bind: objects of another domain", 0, NULL, another_domain);
	group("bind: refreshed", FI_MR_MMU_NOTIFY, NULL, refreshing);
	group("bind: refreshed all the time", FI_MR_MMU_NOTIFY, NULL, shaking_it);
	group("bind: refreshed without FI_MR_MMU_NOTIFY", 0, NULL, shaking_it);
	begin("mr: authorization keys");
	authorized();
	strangers();
	end();
}
