/* Poll sets and wait sets (fi_poll(3)): the queues and counters that have results, and waiting for any of them. */
#include "every.h"

#include <poll.h>

static struct settings how = { .name = "sets", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL };

/* Creates an unread message in one of b's queues. */
static void deliver(struct two *two)
{
	NEEDS(fi_trecv(two->b.ep, two->b.in, 100, two->b.in_desc, FI_ADDR_UNSPEC, 9, 0, context(3)));
	POSTED(&two->a, fi_tinject(two->a.ep, two->a.out, 40, two->a.peer, 9));
}

static void take_it(struct two *two)
{
	CHECK(take(&two->b, context(3)).len == 40, "another message");
}

static bool among(void *const *contexts, int count, const void *wanted)
{
	for (int n = 0; n < count; n++)
		if (contexts[n] == wanted)
			return true;
	return false;
}

/* A member of a poll set cannot be closed, because the set could not be emptied any more. */
static void members_stay(struct two *two, struct fid_poll *set, struct fid_cntr *cntr)
{
	struct fid_cq *cq;
	struct fid_eq *eq;

	NEEDS(fi_cq_open(two->room.domain, NULL, &cq, NULL));
	NEEDS(fi_eq_open(two->room.fabric, NULL, &eq, NULL));
	struct fid *members[] = { &cq->fid, &cntr->fid, &eq->fid };
	for (size_t at = 0; at < COUNT(members); at++) {
		NEEDS(fi_poll_add(set, members[at], 0));
		ANSWERS(-FI_EBUSY, fi_close(members[at]));
		ANSWERS(-FI_EBUSY, fi_close(&set->fid));
		ANSWERS(0, fi_poll_del(set, members[at], 0));
	}
	ANSWERS(0, fi_close(&cq->fid));
	ANSWERS(0, fi_close(&eq->fid));
}

static void polling(void)
{
	struct two two;
	struct fi_poll_attr attr = { .flags = 0 };
	struct fid_poll *set;
	struct fid_cntr *cntr;
	void *contexts[4];
	int got;

	open_two(&two, &how);
	deliver(&two);
	take_it(&two);
	NEEDS(fi_poll_open(two.room.domain, &attr, &set));
	CHECK(set->fid.fclass == FI_CLASS_POLL, "class %zu", set->fid.fclass);
	NEEDS(fi_cntr_open(two.room.domain, NULL, &cntr, &two));
	NEEDS(fi_poll_add(set, &two.b.rxcq->fid, 0));
	NEEDS(fi_poll_add(set, &cntr->fid, 0));
	MUST(fi_close(&set->fid) == -FI_EBUSY, "closed although it has members");
	CHECK(fi_poll_add(set, &two.room.domain->fid, 0) < 0, "a domain in a poll set");
	ANSWERS(0, fi_cntr_read(cntr));
	ANSWERS(0, fi_poll(set, contexts, 4));
	deliver(&two);
	for (double until = now() + WAIT_LIMIT; (got = fi_poll(set, contexts, 4)) == 0;) {
		MUST(now() < until, "the message does not arrive");
		/* Makes progress only for the sender. The set must make progress for the receiver's queue. */
		fi_cq_read(two.a.txcq, NULL, 0);
	}
	/* The context of the queue is the side for which it was opened. */
	CHECK(got >= 1 && among(contexts, got, &two.b), "%d contexts, none of the queue", got);
	take_it(&two);
	ANSWERS(0, fi_cntr_adderr(cntr, 1));
	got = fi_poll(set, contexts, 4);
	CHECK(got >= 1 && among(contexts, got, &two), "%d contexts, none of the counter", got);
	ANSWERS(0, fi_poll_del(set, &two.b.rxcq->fid, 0));
	ANSWERS(0, fi_poll_del(set, &cntr->fid, 0));
	CHECK(fi_poll_del(set, &cntr->fid, 0) < 0, "taken out twice");
	ANSWERS(0, fi_poll(set, contexts, 4));
	members_stay(&two, set, cntr);
	ANSWERS(0, fi_close(&set->fid));
	ANSWERS(0, fi_close(&cntr->fid));
	close_two(&two);
}

/* Adding a member again keeps one member, with its latest context. If several members have one context, each is reported. */
static void added_twice(void)
{
	struct two two;
	struct fi_poll_attr attr = { .flags = 0 };
	struct fid_poll *set;
	struct fid_cntr *cntr;
	void *contexts[8];
	int other, got;

	open_two(&two, &how);
	NEEDS(fi_poll_open(two.room.domain, &attr, &set));
	NEEDS(fi_cntr_open(two.room.domain, NULL, &cntr, &two));
	struct fid *members[] = { &two.b.rxcq->fid, &cntr->fid };
	for (size_t at = 0; at < COUNT(members); at++) {
		NEEDS(fi_poll_add(set, members[at], 0));
		ANSWERS(0, fi_poll_add(set, members[at], 0));
		members[at]->context = &other;
		ANSWERS(0, fi_poll_add(set, members[at], 0));
	}
	ANSWERS(0, fi_cntr_add(cntr, 1));
	got = fi_poll(set, contexts, 8);
	CHECK(got == 1 && contexts[0] == &other, "%d contexts of one counter", got);
	deliver(&two);
	for (double until = now() + WAIT_LIMIT; (got = fi_poll(set, contexts, 8)) == 0;) {
		MUST(now() < until, "the message does not arrive");
		fi_cq_read(two.a.txcq, NULL, 0);
	}
	CHECK(got == 1 && contexts[0] == &other, "%d contexts of one queue", got);
	ANSWERS(0, fi_cntr_add(cntr, 1));
	got = fi_poll(set, contexts, 8);
	CHECK(got == 2 && contexts[0] == &other && contexts[1] == &other, "%d contexts of a counter and a queue", got);
	take_it(&two);
	/* It was one member, so the set is empty after one removal. */
	for (size_t at = 0; at < COUNT(members); at++)
		ANSWERS(0, fi_poll_del(set, members[at], 0));
	ANSWERS(0, fi_cntr_add(cntr, 1));
	ANSWERS(0, fi_poll(set, contexts, 8));
	ANSWERS(0, fi_close(&set->fid));
	ANSWERS(0, fi_close(&cntr->fid));
	close_two(&two);
}

static void waiting(enum fi_wait_obj kind)
{
	struct room room;
	struct fi_wait_attr attr = { .wait_obj = kind };
	struct fi_cntr_attr counted = { .wait_obj = FI_WAIT_SET };
	struct fi_cq_attr queued = { .wait_obj = FI_WAIT_SET, .format = FI_CQ_FORMAT_CONTEXT };
	struct fid_wait *set;
	struct fid_cntr *cntr;
	struct fid_cq *cq;
	struct pollfd one = { .events = POLLIN };
	struct fid *fids[1];
	double start = now();

	open_room(&room, &how);
	NEEDS(fi_wait_open(room.fabric, &attr, &set));
	CHECK(set->fid.fclass == FI_CLASS_WAIT, "class %zu", set->fid.fclass);
	counted.wait_set = queued.wait_set = set;
	NEEDS(fi_cntr_open(room.domain, &counted, &cntr, NULL));
	NEEDS(fi_cq_open(room.domain, &queued, &cq, NULL));
	ANSWERS(-FI_EBUSY, fi_close(&set->fid));
	ANSWERS(-FI_ETIMEDOUT, fi_wait(set, 40));
	CHECK(now() - start >= 0.035, "%f s", now() - start);
	ANSWERS(0, fi_cntr_add(cntr, 1));
	ANSWERS(0, fi_wait(set, WAIT_LIMIT * 1000));
	ANSWERS(1, fi_cntr_read(cntr));
	if (kind == FI_WAIT_FD) {
		fids[0] = &set->fid;
		ANSWERS(0, fi_control(&set->fid, FI_GETWAIT, &one.fd));
		ANSWERS(0, fi_trywait(room.fabric, fids, 1));
		ANSWERS(0, poll(&one, 1, 20));
		ANSWERS(0, fi_cntr_add(cntr, 1));
		ANSWERS(1, poll(&one, 1, WAIT_LIMIT * 1000));
	}
	ANSWERS(0, fi_close(&cq->fid));
	ANSWERS(0, fi_close(&cntr->fid));
	ANSWERS(0, fi_close(&set->fid));
	close_room(&room);
}

void set_groups(void)
{
	static const enum fi_wait_obj kinds[] = { FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_YIELD };

	if (is_there("fi_poll_open")) {
		begin("poll sets");
		polling();
		end();
		begin("poll sets: members that are added twice");
		added_twice();
		end();
	}
	for (size_t at = 0; is_there("fi_wait_open") && at < COUNT(kinds); at++) {
		begin("wait sets");
		waiting(kinds[at]);
		end();
	}
}
