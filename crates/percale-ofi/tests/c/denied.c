/*
 * Accesses that must not succeed (fi_rma(3), fi_mr(3)). Each one is reported to its initiator, changes nothing, and does not
 * affect later operations.
 */
#include "every.h"

enum { SIZE = 4096 };

/* Regions of b: with all rights, read-only, write-only, and closed. */
enum { OPEN, READABLE, WRITABLE, CLOSED, REGIONS };

struct targets {
	struct fid_mr *mr[REGIONS];
	char *memory[REGIONS];
	uint64_t named[REGIONS][2];
};

static void open_targets(struct pair *p, struct targets *t)
{
	static const uint64_t access[REGIONS] = { FI_REMOTE_READ | FI_REMOTE_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE,
						  FI_REMOTE_READ | FI_REMOTE_WRITE };

	memset(t, 0, sizeof(*t));
	for (int n = 0; p->b && n < REGIONS; n++) {
		int mode = p->b->room->info->domain_attr->mr_mode;
		t->memory[n] = calloc(1, SIZE);
		fill(t->memory[n], SIZE, (unsigned)n);
		NEEDS(fi_mr_reg(p->b->room->domain, t->memory[n], SIZE, access[n], 0, 80 + (uint64_t)n, 0, &t->mr[n], NULL));
		if (mode & FI_MR_ENDPOINT) {
			NEEDS(fi_mr_bind(t->mr[n], &p->b->ep->fid, 0));
			NEEDS(fi_mr_enable(t->mr[n]));
		}
		t->named[n][0] = fi_mr_key(t->mr[n]);
		t->named[n][1] = mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC) ? (uintptr_t)t->memory[n] : 0;
	}
	if (p->b)
		ANSWERS(0, fi_close(&t->mr[CLOSED]->fid));
	hand_to_a(p, t->named, sizeof(t->named));
}

/* Checks that every region has its original contents. */
static void unchanged(struct pair *p, const struct targets *t, const char *what)
{
	meet(p);
	for (int n = 0; p->b && n < REGIONS; n++)
		CHECK(is_filled(t->memory[n], SIZE, (unsigned)n), "%s changed region %d", what, n);
	meet(p);
}

struct attempt {
	const char *what;
	int region;
	size_t offset, len;
	bool reads, writes;
	/* A key that does not exist. */
	bool strange;
};

static const struct attempt attempts[] = {
	{ "an unknown key", OPEN, 0, 64, true, true, true },
	{ "an access that ends beyond the region", OPEN, SIZE - 8, 64, true, true, false },
	{ "an access that begins at the end", OPEN, SIZE, 8, true, true, false },
	{ "an access far beyond the region", OPEN, (size_t)1 << 40, 8, true, true, false },
	{ "an access that wraps around", OPEN, (size_t)-16, 64, true, true, false },
	{ "a write without the right", READABLE, 0, 64, false, true, false },
	{ "a read without the right", WRITABLE, 0, 64, true, false, false },
	{ "a closed region", CLOSED, 0, 64, true, true, false },
};

static void refused(struct side *a, const struct attempt *x, uint64_t kind, ssize_t posted, void *context)
{
	struct done done;

	/* An immediate rejection is as valid as one in a completion. */
	if (posted != 0) {
		CHECK(posted != -FI_ENOSYS, "%s", x->what);
		return;
	}
	done = take(a, context);
	CHECK(done.err == FI_EACCES || done.err == FI_EKEYREJECTED || done.err == FI_EINVAL || done.err == FI_EFAULT,
	      "%s: error %d (%s)", x->what, done.err, fi_strerror(done.err));
	CHECK((done.flags & kind) == kind, "%s: flags %#llx", x->what, (unsigned long long)done.flags);
}

static void try_all(struct pair *p, struct targets *t)
{
	for (size_t n = 0; n < COUNT(attempts); n++) {
		const struct attempt *x = &attempts[n];
		struct side *a = p->a;
		uint64_t key = t->named[x->region][0] ^ (x->strange ? 0x5a5a5a : 0);
		uint64_t at = t->named[x->region][1] + x->offset;

		if (a && x->writes) {
			memset(a->out, 0x11, x->len);
			refused(a, x, FI_WRITE, POST(a, fi_write(a->ep, a->out, x->len, a->out_desc, a->peer, at, key, context(1))), context(1));
			/* A rejected write with data adds no entry at the target (`quiet`). */
			asserts("RMA-003");
			refused(a, x, FI_WRITE, POST(a, fi_writedata(a->ep, a->out, x->len, a->out_desc, 3, a->peer, at, key, context(4))), context(4));
			refused(a, x, FI_WRITE, POST(a, fi_atomic(a->ep, a->out, x->len / 8, a->out_desc, a->peer, at, key, FI_UINT64, FI_BXOR, context(2))), context(2));
		}
		if (a && x->writes) {
			/* An injected write reports only its error. */
			ssize_t code = POST(a, fi_inject_write(a->ep, a->out, x->len, a->peer, at, key));
			asserts("RMA-002");
			CHECK(code != -FI_ENOSYS && (code || take_flags(a, FI_WRITE).err), "%s: injected", x->what);
		}
		if (a && x->reads) {
			memset(a->in, 0x22, x->len);
			refused(a, x, FI_READ, POST(a, fi_read(a->ep, a->in, x->len, a->in_desc, a->peer, at, key, context(3))), context(3));
			for (size_t b = 0; b < x->len; b++)
				MUST(a->in[b] == 0x22, "%s: something was read", x->what);
		}
		unchanged(p, t, x->what);
	}
}

/* Checks that the two ends still work. */
static void still_works(struct pair *p, struct targets *t)
{
	struct done done;

	if (p->a) {
		struct side *a = p->a;
		struct iovec iov = { a->out, 100 };
		struct fi_rma_iov remote = { t->named[OPEN][1] + 5, 100, t->named[OPEN][0] };
		struct fi_msg_rma msg = { &iov, &a->out_desc, 1, a->peer, &remote, 1, context(4), 0 };
		fill(a->out, 100, 99);
		POSTED(a, fi_writemsg(a->ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		done = take(a, context(4));
		CHECK(done.err == 0, "%s", fi_strerror(done.err));
	}
	meet(p);
	if (p->b)
		CHECK(is_filled(t->memory[OPEN] + 5, 100, 99), "the write is not there");
	meet(p);
}

/* Operations to an address that is not in the vector are rejected at once. */
static void nobody(struct pair *p)
{
	struct side *a = p->a;
	fi_addr_t none = 0x7777;

	if (!a)
		return;
	asserts("RMA-009");
	ANSWERS(-FI_EINVAL, fi_send(a->ep, a->out, 8, a->out_desc, none, context(1)));
	ANSWERS(-FI_EINVAL, fi_tsend(a->ep, a->out, 8, a->out_desc, none, 1, context(1)));
	ANSWERS(-FI_EINVAL, fi_write(a->ep, a->out, 8, a->out_desc, none, 0, 0, context(1)));
	ANSWERS(-FI_EINVAL, fi_read(a->ep, a->in, 8, a->in_desc, none, 0, 0, context(1)));
	ANSWERS(-FI_EINVAL, fi_atomic(a->ep, a->out, 1, a->out_desc, none, 0, 0, FI_UINT64, FI_SUM, context(1)));
	/* Lengths that differ. */
	for (size_t len = 7; len < 10; len += 2) {
		struct iovec iov = { a->out, 8 };
		struct fi_rma_iov there = { 0, len, 0 };
		struct fi_msg_rma msg = { &iov, &a->out_desc, 1, a->peer, &there, 1, context(1), 0 };
		ANSWERS(-FI_EINVAL, fi_writemsg(a->ep, &msg, FI_COMPLETION));
		iov.iov_base = a->in, msg.desc = &a->in_desc;
		ANSWERS(-FI_EINVAL, fi_readmsg(a->ep, &msg, FI_COMPLETION));
	}
}

void rma_refusal_groups(struct pair *p)
{
	struct targets t;

	begin("rma: rejected accesses");
	open_targets(p, &t);
	try_all(p, &t);
	still_works(p, &t);
	for (int n = 0; p->b && n < REGIONS; n++) {
		if (n != CLOSED)
			ANSWERS(0, fi_close(&t.mr[n]->fid));
		free(t.memory[n]);
	}
	quiet(p);
	end();
	begin("ep: unknown peers");
	nobody(p);
	quiet(p);
	end();
}
