/* Reads and writes of the other end's memory (fi_rma(3)): every call, every flag, data for the target, several pieces. */
#include "every.h"

enum { LOCAL = 0, SIZE = 1 << 20 };

/* The region of b that a accesses. */
struct target {
	struct fid_mr *mr;
	char *memory;
	/* The key and the address that a uses. */
	uint64_t key, address;
};

static const uint64_t both_ways = FI_REMOTE_READ | FI_REMOTE_WRITE;

static struct target open_target(struct pair *p, uint64_t wanted_key)
{
	struct target t = { 0 };
	uint64_t named[2] = { 0 };

	if (p->b) {
		int mode = p->b->room->info->domain_attr->mr_mode;
		t.memory = calloc(1, SIZE);
		NEEDS(fi_mr_reg(p->b->room->domain, t.memory, SIZE, both_ways, 0, wanted_key, 0, &t.mr, NULL));
		if (mode & FI_MR_ENDPOINT) {
			NEEDS(fi_mr_bind(t.mr, &p->b->ep->fid, 0));
			NEEDS(fi_mr_enable(t.mr));
		}
		named[0] = fi_mr_key(t.mr);
		named[1] = mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC) ? (uintptr_t)t.memory : 0;
		CHECK((mode & (FI_MR_PROV_KEY | FI_MR_BASIC)) || named[0] == wanted_key, "%#llx", (unsigned long long)named[0]);
	}
	hand_to_a(p, named, sizeof(named));
	t.key = named[0], t.address = named[1];
	return t;
}

static void close_target(struct pair *p, struct target *t)
{
	meet(p);
	if (p->b) {
		ANSWERS(0, fi_close(&t->mr->fid));
		free(t->memory);
	}
}

enum write_call { WRITE, WRITEV, WRITEMSG, INJECT_WRITE, WRITEDATA, INJECT_WRITEDATA, WRITE_CALLS };

/* The properties of an access that vary. */
struct access {
	size_t len, offset;
	uint64_t data, flags;
	void *context;
	unsigned seed;
};

/* A local buffer in two pieces, and remote memory in up to two pieces. */
static struct fi_msg_rma message(struct side *a, const struct target *t, const struct access *x, char *buf, void **desc,
				 struct iovec iov[2], struct fi_rma_iov remote[2])
{
	size_t locals = a->room->info->tx_attr->iov_limit > 1 ? 2 : 1;
	size_t remotes = a->room->info->tx_attr->rma_iov_limit > 1 ? 2 : 1;
	size_t first = locals > 1 ? x->len / 4 : x->len, there = remotes > 1 ? x->len / 2 : x->len;
	uint64_t at = t->address + x->offset;

	iov[0] = (struct iovec){ buf, first };
	iov[1] = (struct iovec){ buf + first, x->len - first };
	remote[0] = (struct fi_rma_iov){ at, there, t->key };
	remote[1] = (struct fi_rma_iov){ at + there, x->len - there, t->key };
	return (struct fi_msg_rma){ iov, desc, locals, a->peer, remote, remotes, x->context, x->data };
}

static ssize_t post_write(struct side *a, enum write_call call, const struct target *t, const struct access *x)
{
	struct iovec iov[2];
	struct fi_rma_iov remote[2];
	void *desc[2] = { a->out_desc, a->out_desc };
	struct fi_msg_rma msg = message(a, t, x, a->out, desc, iov, remote);
	uint64_t at = t->address + x->offset;

	switch (call) {
	case WRITE:
		return POST(a, fi_write(a->ep, a->out, x->len, desc[0], a->peer, at, t->key, x->context));
	case WRITEV:
		return POST(a, fi_writev(a->ep, iov, desc, msg.iov_count, a->peer, at, t->key, x->context));
	case WRITEMSG:
		return POST(a, fi_writemsg(a->ep, &msg, x->flags));
	case INJECT_WRITE:
		return POST(a, fi_inject_write(a->ep, a->out, x->len, a->peer, at, t->key));
	case WRITEDATA:
		return POST(a, fi_writedata(a->ep, a->out, x->len, desc[0], x->data, a->peer, at, t->key, x->context));
	default:
		return POST(a, fi_inject_writedata(a->ep, a->out, x->len, x->data, a->peer, at, t->key));
	}
}

static void check_access(struct side *a, const struct access *x, uint64_t kind)
{
	struct done done = take(a, x->context);

	CHECK(done.err == 0, "%s", fi_strerror(done.err));
	CHECK((done.flags & (FI_RMA | kind)) == (FI_RMA | kind), "flags %#llx", (unsigned long long)done.flags);
	CHECK(!(done.flags & (FI_MSG | FI_TAGGED | FI_REMOTE_WRITE | FI_REMOTE_READ)), "flags %#llx", (unsigned long long)done.flags);
}

/* Checks the completion that reports remote data to a target. */
static void check_told(struct side *b, uint64_t data, size_t len)
{
	const uint64_t flags = FI_REMOTE_CQ_DATA | FI_RMA | FI_REMOTE_WRITE;
	struct done done = take_flags(b, flags);

	CHECK(done.err == 0, "%s", fi_strerror(done.err));
	CHECK(done.data == data, "%#llx", (unsigned long long)done.data);
	CHECK(done.len == len, "%zu, not %zu", done.len, len);
	CHECK(!(done.flags & (FI_MSG | FI_TAGGED | FI_RECV | FI_WRITE)), "flags %#llx", (unsigned long long)done.flags);
}

/* Reads the memory back. The read is ordered after the writes only if they have completed. */
static void read_back(struct side *a, const struct target *t, const struct access *x)
{
	struct access r = { .len = x->len, .offset = x->offset, .context = context(LOCAL + 1), .flags = FI_COMPLETION };
	struct iovec iov[2];
	struct fi_rma_iov remote[2];
	void *desc[2] = { a->in_desc, a->in_desc };
	struct fi_msg_rma msg = message(a, t, &r, a->in, desc, iov, remote);

	memset(a->in, 0, x->len);
	ANSWERS(0, POST(a, fi_readmsg(a->ep, &msg, FI_COMPLETION)));
	check_access(a, &r, FI_READ);
	CHECK(is_filled(a->in, x->len, x->seed), "other bytes than were written (%zu at %zu)", x->len, x->offset);
}

/* Waits until the bytes have arrived, because an access without a completion has no other sign of its end. */
static void watch(struct pair *p, const struct target *t, const struct access *x)
{
	double until = now() + WAIT_LIMIT;

	while (p->b && !is_filled(t->memory + x->offset, x->len, x->seed)) {
		MUST(now() < until, "%zu bytes do not arrive at %zu", x->len, x->offset);
		progress(p->b);
	}
}

static void one_write(struct pair *p, struct target *t, enum write_call call, const struct access *x)
{
	bool silent = call == INJECT_WRITE || call == INJECT_WRITEDATA;
	bool tells = call == WRITEDATA || call == INJECT_WRITEDATA || (call == WRITEMSG && (x->flags & FI_REMOTE_CQ_DATA));

	if (p->a) {
		fill(p->a->out, x->len, x->seed);
		ANSWERS(0, post_write(p->a, call, t, x));
		if (silent || (call == WRITEMSG && (x->flags & FI_INJECT)))
			memset(p->a->out, 0xdd, x->len);
		if (!silent && reports(p->a, true, call == WRITEMSG ? x->flags : OWN_FLAGS)) {
			check_access(p->a, x, FI_WRITE);
			/* In one process, the bytes are visible as soon as the write has completed, for each completion level. */
			if (p->b) {
				asserts("RMA-008");
				CHECK(is_filled(t->memory + x->offset, x->len, x->seed), "a write is complete before its bytes are there");
			}
		}
	}
	watch(p, t, x);
	if (p->b && tells)
		check_told(p->b, x->data, x->len);
	meet(p);
	if (p->a)
		read_back(p->a, t, x);
	meet(p);
}

static void every_write(struct pair *p, struct target *t)
{
	static const size_t lens[] = { 0, 1, 8, 100, 2048, 5000, 70000, SIZE };
	struct side *here = p->a ? p->a : p->b;

	/* Each byte beside the written ones keeps its value. */
	if (p->b)
		memset(t->memory, 0x5c, SIZE);
	asserts("RMA-001 RMA-002 RMA-003");
	for (size_t at = 0; at < COUNT(lens); at += options.few ? 3 : 1) {
		for (int call = 0; call < WRITE_CALLS; call++) {
			unsigned seed = (unsigned)(at * 10 + (size_t)call);
			struct access x = { .len = lens[at], .offset = lens[at] == SIZE ? 0 : 100 + seed, .data = 0x1122334455667788u + seed,
					    .context = context(LOCAL), .flags = FI_COMPLETION | (at & 1 ? FI_REMOTE_CQ_DATA : 0), .seed = seed };
			if ((call == INJECT_WRITE || call == INJECT_WRITEDATA) && lens[at] > here->room->info->tx_attr->inject_size)
				continue;
			one_write(p, t, (enum write_call)call, &x);
			if (p->b && x.len < SIZE && !options.few) {
				for (size_t byte = 0; byte < SIZE; byte++)
					if (byte < x.offset || byte >= x.offset + x.len)
						MUST(t->memory[byte] == 0x5c, "byte %zu was written by %zu at %zu", byte, x.len, x.offset);
				memset(t->memory + x.offset, 0x5c, x.len);
			}
			meet(p);
		}
	}
}

static void every_flag(struct pair *p, struct target *t)
{
	static const uint64_t flags[] = {
		0, FI_COMPLETION, FI_MORE | FI_COMPLETION, FI_FENCE | FI_COMPLETION, FI_INJECT | FI_COMPLETION, FI_INJECT_COMPLETE,
		FI_TRANSMIT_COMPLETE | FI_COMPLETION, FI_DELIVERY_COMPLETE | FI_COMPLETION, FI_REMOTE_CQ_DATA,
		FI_DELIVERY_COMPLETE | FI_REMOTE_CQ_DATA | FI_COMPLETION,
	};

	for (size_t at = 0; at < COUNT(flags); at++) {
		struct access x = { .len = 1200, .offset = 64 * at, .data = at, .context = context(LOCAL), .flags = flags[at],
				    .seed = 300u + (unsigned)at };
		one_write(p, t, WRITEMSG, &x);
	}
}

static void every_read(struct pair *p, struct target *t)
{
	static const size_t lens[] = { 0, 1, 8, 100, 5000, 300000 };

	asserts("RMA-001");
	for (size_t at = 0; at < COUNT(lens); at += options.few ? 3 : 1) {
		for (int call = 0; call < 3; call++) {
			unsigned seed = (unsigned)(500 + at * 3 + (size_t)call);
			struct access x = { .len = lens[at], .offset = 17, .context = context(LOCAL), .seed = seed };
			struct iovec iov[2];
			struct fi_rma_iov remote[2];
			struct side *a = p->a;

			if (p->b)
				fill(t->memory + x.offset, x.len, seed);
			meet(p);
			if (a) {
				void *desc[2] = { a->in_desc, a->in_desc };
				struct fi_msg_rma msg = message(a, t, &x, a->in, desc, iov, remote);
				uint64_t from = t->address + x.offset;
				double until = now() + WAIT_LIMIT;

				memset(a->in, 0, x.len);
				if (call == 0)
					POSTED(a, fi_read(a->ep, a->in, x.len, desc[0], a->peer, from, t->key, x.context));
				else if (call == 1)
					POSTED(a, fi_readv(a->ep, iov, desc, msg.iov_count, a->peer, from, t->key, x.context));
				else
					POSTED(a, fi_readmsg(a->ep, &msg, FI_COMPLETION));
				if (reports(a, true, call == 2 ? FI_COMPLETION : OWN_FLAGS))
					check_access(a, &x, FI_READ);
				while (!is_filled(a->in, x.len, seed)) {
					MUST(!reports(a, true, call == 2 ? FI_COMPLETION : OWN_FLAGS) && now() < until, "other bytes than are there");
					progress(a);
				}
			}
			meet(p);
		}
	}
}

/* Many accesses at once to separate locations. None is lost. */
static void many(struct pair *p, struct target *t)
{
	enum { MANY = 64, EACH = 3000 };
	struct access x = { .len = EACH, .flags = FI_COMPLETION };

	for (int n = 0; p->a && n < MANY; n++) {
		uint64_t at = t->address + (uint64_t)n * EACH;
		struct iovec iov = { p->a->out + n * EACH, EACH };
		struct fi_rma_iov remote = { at, EACH, t->key };
		struct fi_msg_rma msg = { &iov, &p->a->out_desc, 1, p->a->peer, &remote, 1, context(LOCAL + n), 0 };
		fill(iov.iov_base, EACH, 700u + (unsigned)n);
		POSTED(p->a, fi_writemsg(p->a->ep, &msg, FI_COMPLETION));
	}
	for (int n = 0; p->a && n < MANY; n++) {
		x.context = context(LOCAL + n);
		check_access(p->a, &x, FI_WRITE);
	}
	meet(p);
	for (int n = 0; p->b && n < MANY; n++)
		CHECK(is_filled(t->memory + n * EACH, EACH, 700u + (unsigned)n), "write %d is not there", n);
	meet(p);
}

void rma_groups(struct pair *p)
{
	static const struct {
		const char *name;
		void (*run)(struct pair *, struct target *);
	} all[] = {
		{ "rma: every write", every_write },
		{ "rma: every flag", every_flag },
		{ "rma: every read", every_read },
		{ "rma: many at once", many },
	};
	struct target t;

	for (size_t at = 0; at < COUNT(all); at++) {
		begin(all[at].name);
		t = open_target(p, 40 + at);
		all[at].run(p, &t);
		close_target(p, &t);
		quiet(p);
		end();
	}
}
