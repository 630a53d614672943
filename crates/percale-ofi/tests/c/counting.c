/* Counters of endpoints and of regions (fi_cntr(3)): each kind counts its own operations and no others. */
#include "every.h"

static uint64_t value(struct side *side, int kind)
{
	return fi_cntr_read(side->counters[kind]);
}

/* Waiting for the counter of one end drives only that end. If both ends are in this process, both are driven first. */
static void reach(struct side *side, int kind, uint64_t threshold)
{
	for (double until = now() + WAIT_LIMIT; side->mate && value(side, kind) < threshold;) {
		MUST(now() < until, "kind %d stays at %llu", kind, (unsigned long long)value(side, kind));
		progress(side);
	}
	ANSWERS(0, fi_cntr_wait(side->counters[kind], threshold, WAIT_LIMIT * 1000));
	CHECK(fi_cntr_read(side->counters[kind]) >= threshold, "kind %d", kind);
}

/* Stores the current values. */
static void note(struct pair *p, uint64_t a[KINDS], uint64_t b[KINDS])
{
	meet(p);
	for (int kind = 0; kind < KINDS; kind++) {
		a[kind] = p->a ? value(p->a, kind) : 0;
		b[kind] = p->b ? value(p->b, kind) : 0;
	}
	meet(p);
}

/* Checks that the counters have increased by exactly these amounts. */
static void moved(struct side *side, const uint64_t before[KINDS], const uint64_t by[KINDS], const char *what)
{
	static const char *const names[KINDS] = { "sends", "receives", "reads", "writes", "remote reads", "remote writes" };

	for (int kind = 0; kind < KINDS; kind++)
		CHECK(value(side, kind) - before[kind] == by[kind], "%s: %s moved by %lld, not %lld", what, names[kind],
		      (long long)(value(side, kind) - before[kind]), (long long)by[kind]);
}

/* An endpoint that sends to itself counts the operations of both ends. */
static void check(struct pair *p, const uint64_t a[KINDS], const uint64_t b[KINDS], int at_a, int at_b, uint64_t count, const char *what)
{
	uint64_t by_a[KINDS] = { 0 }, by_b[KINDS] = { 0 };

	by_a[at_a] = by_b[at_b] = count;
	if (p->a == p->b)
		by_a[at_b] = count;
	if (p->a)
		reach(p->a, at_a, a[at_a] + count);
	if (p->b)
		reach(p->b, at_b, b[at_b] + count);
	/* The other end may need this end's progress to count. */
	meet(p);
	if (p->a)
		moved(p->a, a, by_a, what);
	if (p->b && p->a != p->b)
		moved(p->b, b, by_b, what);
	meet(p);
}

/* Discards completions. */
static void forget(struct pair *p)
{
	meet(p);
	if (p->a)
		progress(p->a), p->a->stashed = 0;
	if (p->b)
		progress(p->b), p->b->stashed = 0;
	meet(p);
}

static void messages(struct pair *p)
{
	uint64_t a[KINDS], b[KINDS];

	for (int tagged = 0; tagged < 2; tagged++) {
		note(p, a, b);
		for (int n = 0; n < 5; n++) {
			struct message m = { .tagged = tagged, .tag = 4, .len = n == 4 ? 100000 : 50, .context = context(512 + n) };
			if (p->b) {
				m.buf = p->b->in;
				ANSWERS(0, post_receive(p->b, RECV, &m));
			}
		}
		meet(p);
		for (int n = 0; p->a && n < 5; n++) {
			struct message m = { .tagged = tagged, .tag = 4, .buf = p->a->out, .len = n == 4 ? 100000 : 50, .context = context(n) };
			ANSWERS(0, post_send(p->a, n == 2 ? INJECT : SEND, &m));
		}
		asserts("CMP-017");
		check(p, a, b, SENT, RECEIVED, 5, tagged ? "tagged messages" : "messages");
		forget(p);
	}
}

static void accesses(struct pair *p)
{
	uint64_t a[KINDS], b[KINDS], named[2] = { 0 }, base = 0;
	struct fid_cntr *counter = NULL;
	struct fid_mr *mr = NULL;
	char *memory = NULL;

	if (p->b) {
		int mode = p->b->room->info->domain_attr->mr_mode;
		memory = calloc(1, 4096);
		NEEDS(fi_cntr_open(p->b->room->domain, NULL, &counter, NULL));
		NEEDS(fi_mr_reg(p->b->room->domain, memory, 4096, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 70, FI_RMA_EVENT, &mr, NULL));
		ANSWERS(0, fi_mr_bind(mr, &counter->fid, FI_REMOTE_WRITE));
		if (mode & FI_MR_ENDPOINT)
			NEEDS(fi_mr_bind(mr, &p->b->ep->fid, 0));
		if (mode & (FI_MR_ENDPOINT | FI_MR_RMA_EVENT))
			NEEDS(fi_mr_enable(mr));
		named[0] = fi_mr_key(mr);
		named[1] = mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC) ? (uintptr_t)memory : 0;
	}
	hand_to_a(p, named, sizeof(named));
	note(p, a, b);
	for (int n = 0; p->a && n < 4; n++) {
		struct side *side = p->a;
		if (n & 1)
			POSTED(side, fi_inject_write(side->ep, side->out, 8, side->peer, named[1], named[0]));
		else
			POSTED(side, fi_write(side->ep, side->out, 300, side->out_desc, side->peer, named[1], named[0], context(n)));
	}
	/* Notifications of remote writes are not receives. */
	if (p->a)
		POSTED(p->a, fi_writedata(p->a->ep, p->a->out, 16, p->a->out_desc, 7, p->a->peer, named[1], named[0], context(5)));
	asserts("CMP-017 CMP-018");
	check(p, a, b, WRITTEN, REMOTELY_WRITTEN, 5, "writes");
	if (p->b) {
		ANSWERS(0, fi_cntr_wait(counter, 5, WAIT_LIMIT * 1000));
		ANSWERS(5, fi_cntr_read(counter));
	}
	forget(p);
	note(p, a, b);
	for (int n = 0; p->a && n < 3; n++)
		POSTED(p->a, fi_read(p->a->ep, p->a->in, 200, p->a->in_desc, p->a->peer, named[1], named[0], context(n)));
	check(p, a, b, READ, REMOTELY_READ, 3, "reads");
	if (p->b)
		ANSWERS(5, fi_cntr_read(counter));
	forget(p);
	/* An operation that fetches is a read, also if it modifies the memory. */
	note(p, a, b);
	for (int n = 0; p->a && n < 2; n++)
		POSTED(p->a, fi_fetch_atomic(p->a->ep, p->a->out, 1, p->a->out_desc, p->a->in, p->a->in_desc, p->a->peer, named[1], named[0],
					     FI_UINT64, n ? FI_ATOMIC_READ : FI_SUM, context(n)));
	check(p, a, b, READ, REMOTELY_READ, 2, "fetching operations");
	forget(p);
	if (p->b)
		base = fi_cntr_read(counter);
	note(p, a, b);
	for (int n = 0; p->a && n < 3; n++)
		POSTED(p->a, fi_atomic(p->a->ep, p->a->out, 1, p->a->out_desc, p->a->peer, named[1], named[0], FI_UINT64, FI_SUM, context(n)));
	check(p, a, b, WRITTEN, REMOTELY_WRITTEN, 3, "atomic operations");
	if (p->b)
		ANSWERS(base + 3, fi_cntr_read(counter));
	forget(p);
	if (p->b) {
		ANSWERS(0, fi_close(&counter->fid));
		/*
		 * A region that is bound to its endpoint is closed after the endpoint (fi_mr(3)); here the endpoint stays open.
		 */
		if (!(p->b->room->info->domain_attr->mr_mode & FI_MR_ENDPOINT))
			ANSWERS(0, fi_close(&mr->fid));
		free(memory);
	}
	meet(p);
}

/* Failures are counted separately, and end a wait. The target does not count them. Peeks are not counted. */
static void failures(struct pair *p)
{
	uint64_t at_a[KINDS], at_b[KINDS];
	struct side *a = p->a;

	note(p, at_a, at_b);
	if (p->b) {
		struct message none = { .tagged = true, .tag = 0x1234, .context = context(512), .flags = FI_PEEK | FI_COMPLETION };
		struct message gone = { .tagged = true, .tag = 0x1234, .len = 8, .buf = p->b->in, .context = context(513), .flags = FI_COMPLETION };
		uint64_t errors = fi_cntr_readerr(p->b->counters[RECEIVED]);

		ANSWERS(0, post_receive(p->b, RECVMSG, &none));
		ANSWERS(FI_ENOMSG, take(p->b, none.context).err);
		ANSWERS(errors, fi_cntr_readerr(p->b->counters[RECEIVED]));
		asserts("CMP-011");
		ANSWERS(0, post_receive(p->b, RECVMSG, &gone));
		ANSWERS(0, fi_cancel(&p->b->ep->fid, gone.context));
		ANSWERS(FI_ECANCELED, take(p->b, gone.context).err);
		ANSWERS(errors + 1, fi_cntr_readerr(p->b->counters[RECEIVED]));
	}
	meet(p);
	if (a) {
		uint64_t errors = fi_cntr_readerr(a->counters[WRITTEN]), good = value(a, WRITTEN);
		POSTED(a, fi_write(a->ep, a->out, 8, a->out_desc, a->peer, 0, 0x123456789, context(0)));
		if (!a->mate)
			ANSWERS(-FI_EAVAIL, fi_cntr_wait(a->counters[WRITTEN], good + 1, WAIT_LIMIT * 1000));
		for (double until = now() + WAIT_LIMIT; fi_cntr_readerr(a->counters[WRITTEN]) == errors;) {
			MUST(now() < until, "the failure is not counted");
			progress(a);
		}
		ANSWERS(errors + 1, fi_cntr_readerr(a->counters[WRITTEN]));
		ANSWERS(good, value(a, WRITTEN));
		CHECK(take(a, context(0)).err != 0, "an error without a reason");
	}
	meet(p);
	asserts("CMP-017 CMP-018");
	for (int kind = 0; kind < KINDS; kind++)
		CHECK((!a || value(a, kind) == at_a[kind]) && (!p->b || value(p->b, kind) == at_b[kind]), "kind %d was counted", kind);
	meet(p);
}

void counter_groups(struct pair *p)
{
	static const struct {
		const char *name;
		void (*run)(struct pair *);
	} all[] = {
		{ "cntr: messages", messages },
		{ "cntr: accesses", accesses },
		{ "cntr: failures", failures },
	};

	if (!(p->a ? p->a : p->b)->how->counters)
		return;
	for (size_t at = 0; at < COUNT(all); at++) {
		begin(all[at].name);
		all[at].run(p);
		quiet(p);
		end();
	}
}
