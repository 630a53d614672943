/* Registration whose completion is an event (fi_mr(3), FI_REG_MR), and registration without an event. */
#include "registration.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

static struct world w;
static struct fid_eq *eq;

static void bind_events(enum fi_wait_obj wait)
{
	struct fi_eq_attr attr = { .size = 64, .wait_obj = wait };

	NEEDS(fi_eq_open(w.two.room.fabric, &attr, &eq, NULL));
	CHECK(fi_domain_bind(w.domain, &w.a->txcq->fid, FI_REG_MR) < 0, "a completion queue is bound");
	ANSWERS(-FI_EBADFLAGS, fi_domain_bind(w.domain, &eq->fid, FI_REG_MR | FI_MULTICAST));
	ANSWERS(0, fi_domain_bind(w.domain, &eq->fid, FI_REG_MR));
}

/* The domain keeps its event queue open and is closed first. */
static void unbind_events(bool bound)
{
	struct room *room = &w.two.room;

	if (bound)
		ANSWERS(-FI_EBUSY, fi_close(&eq->fid));
	close_side(&w.two.a);
	if (!options.alone)
		close_side(&w.two.b);
	ANSWERS(0, fi_close(&room->domain->fid));
	ANSWERS(0, fi_close(&eq->fid));
	ANSWERS(0, fi_close(&room->fabric->fid));
	fi_freeinfo(room->info);
}

/* Checks that the next event reports that this region is registered. */
static void comes(struct fid_mr *mr, void *context)
{
	struct fi_eq_entry entry = { 0 };
	uint32_t event = 0;

	ANSWERS(sizeof(entry), fi_eq_sread(eq, &event, &entry, sizeof(entry), WAIT_LIMIT * 1000, 0));
	CHECK(event == FI_MR_COMPLETE, "event %u", event);
	CHECK(entry.fid == &mr->fid && entry.context == context, "of another region, or another context");
}

static void nothing_comes(void)
{
	struct fi_eq_entry entry;
	uint32_t event;

	ANSWERS(-FI_EAGAIN, fi_eq_read(eq, &event, &entry, sizeof(entry), 0));
}

/* Without the binding the region is complete at once, and there is no event. */
static void at_once(void)
{
	char *memory = pages(BYTES, 1);
	struct fi_eq_attr attr = { .size = 64, .wait_obj = FI_WAIT_NONE };
	struct fid_mr *mr;

	open_world(&w, 0, NULL);
	NEEDS(fi_eq_open(w.two.room.fabric, &attr, &eq, NULL));
	ANSWERS(0, fi_domain_bind(w.domain, &eq->fid, 0));
	asserts("MR-058");
	NEEDS(fi_mr_reg(w.domain, memory, BYTES, BOTH_WAYS, 0, 900, 0, &mr, &w));
	CHECK(fi_mr_key(mr) == 900 && fi_mr_desc(mr), "the key or the descriptor is missing");
	served(&w, 0, 900, memory);
	asserts("MR-059");
	nothing_comes();
	ANSWERS(0, fi_close(&mr->fid));
	unbind_events(false);
	munmap(memory, BYTES);
}

/* With the binding, the region is complete when its event was read. */
static void later(void)
{
	char *memory = pages(BYTES, 1);
	struct iovec iov = { memory, BYTES };
	struct fid_mr *mr[3], *failed;
	struct fi_eq_err_entry error = { 0 };
	struct fi_eq_entry entry;
	uint64_t base;
	uint8_t raw[64];
	size_t len = sizeof(raw);
	uint32_t event;
	struct fid *asleep;

	open_world(&w, 0, NULL);
	bind_events(FI_WAIT_FD);
	asleep = &eq->fid;
	nothing_comes();
	ANSWERS(0, fi_trywait(w.two.room.fabric, &asleep, 1));
	NEEDS(fi_mr_reg(w.domain, memory, BYTES, BOTH_WAYS, 0, 910, 0, &mr[0], &mr[0]));
	NEEDS(fi_mr_regv(w.domain, &iov, 1, BOTH_WAYS, 0, 911, 0, &mr[1], &mr[1]));
	NEEDS(fi_mr_regattr(w.domain, &(struct fi_mr_attr){ .mr_iov = &iov, .iov_count = 1, .access = BOTH_WAYS, .requested_key = 912,
							   .context = &mr[2] }, 0, &mr[2]));
	asserts("MR-062 KEY-002");
	for (int n = 0; n < 3; n++) {
		CHECK(fi_mr_key(mr[n]) == FI_KEY_NOTAVAIL, "a key before the end");
		CHECK(fi_mr_raw_attr(mr[n], &base, raw, &len, 0) < 0, "a raw key before the end");
		refused(&w, 0, (uint64_t)(910 + n), memory, 1);
	}
	ANSWERS(-FI_EAGAIN, fi_trywait(w.two.room.fabric, &asleep, 1));
	/* A buffer that is too small, and FI_PEEK, do not remove the event. */
	ANSWERS(-FI_ETOOSMALL, fi_eq_read(eq, &event, &entry, sizeof(entry) - 1, 0));
	ANSWERS(sizeof(entry), fi_eq_read(eq, &event, &entry, sizeof(entry), FI_PEEK));
	asserts("MR-060");
	for (int n = 0; n < 3; n++) {
		comes(mr[n], &mr[n]);
		CHECK(fi_mr_key(mr[n]) == (uint64_t)(910 + n) && fi_mr_desc(mr[n]), "the key or the descriptor is missing");
		len = sizeof(raw);
		ANSWERS(0, fi_mr_raw_attr(mr[n], &base, raw, &len, 0));
		served(&w, 0, (uint64_t)(910 + n), memory);
	}
	nothing_comes();
	/* A rejected call causes no event. A later failure causes an error event. */
	asserts("MR-063 MR-064");
	ANSWERS(-FI_EINVAL, fi_mr_reg(w.domain, memory, BYTES, BOTH_WAYS, 1, 913, 0, &failed, NULL));
	ANSWERS(-FI_EBADFLAGS, fi_mr_reg(w.domain, memory, BYTES, BOTH_WAYS, 0, 913, FI_RMA_PMEM, &failed, NULL));
	nothing_comes();
	ANSWERS(0, fi_mr_reg(w.domain, memory, BYTES, BOTH_WAYS, 0, 911, 0, &failed, &iov));
	ANSWERS(-FI_EAVAIL, fi_eq_sread(eq, &event, &entry, sizeof(entry), WAIT_LIMIT * 1000, 0));
	ANSWERS(sizeof(error), fi_eq_readerr(eq, &error, 0));
	CHECK(error.err == FI_ENOKEY && error.fid == &failed->fid && error.context == &iov, "error %d", error.err);
	CHECK(fi_mr_key(failed) == FI_KEY_NOTAVAIL, "a failed registration has a key");
	nothing_comes();
	ANSWERS(0, fi_close(&failed->fid));
	served(&w, 0, 911, memory);
	/* A region that is closed before its event was read has no event. */
	NEEDS(fi_mr_reg(w.domain, memory, BYTES, BOTH_WAYS, 0, 914, 0, &failed, NULL));
	ANSWERS(0, fi_close(&failed->fid));
	nothing_comes();
	refused(&w, 0, 914, NULL, 1);
	for (int n = 0; n < 3; n++)
		ANSWERS(0, fi_close(&mr[n]->fid));
	unbind_events(true);
	munmap(memory, BYTES);
}

/* A thread that reads the event finds the region in the location that the registering caller passed. */
enum { MANY = 300 };
static _Atomic(struct fid_mr *) slots[MANY];

static void *read_them(void *problem)
{
	for (int n = 0; n < MANY; n++) {
		struct fi_eq_entry entry;
		uint32_t event;
		ssize_t got = fi_eq_sread(eq, &event, &entry, sizeof(entry), WAIT_LIMIT * 1000, 0);
		struct fid_mr *written = atomic_load((_Atomic(struct fid_mr *) *)entry.context);

		if (got != sizeof(entry) || event != FI_MR_COMPLETE || !written || entry.fid != &written->fid ||
		    fi_mr_key(written) == FI_KEY_NOTAVAIL)
			return "an event before its region";
	}
	return problem;
}

static void another_thread(void)
{
	char *memory = pages(BYTES, 1);
	pthread_t thread;
	void *problem;

	open_world(&w, 0, NULL);
	bind_events(FI_WAIT_UNSPEC);
	asserts("MR-061");
	MUST(pthread_create(&thread, NULL, read_them, NULL) == 0, "no thread");
	for (int n = 0; n < MANY; n++)
		NEEDS(fi_mr_reg(w.domain, memory, BYTES, BOTH_WAYS, 0, 920 + (uint64_t)n, 0, (struct fid_mr **)&slots[n], (void *)&slots[n]));
	pthread_join(thread, &problem);
	CHECK(!problem, "%s", (char *)problem);
	for (int n = 0; n < MANY; n++)
		ANSWERS(0, fi_close(&atomic_load(&slots[n])->fid));
	unbind_events(true);
	munmap(memory, BYTES);
}

void registration_events_groups(void)
{
	begin("mr: registered at once");
	at_once();
	end();
	begin("mr: registered later");
	later();
	end();
	begin("mr: registered later, read by another thread");
	another_thread();
	end();
}
