/*
 * Atomic operations (fi_atomic(3)): every call, type and operation is compared with a model, including which operations are
 * supported.
 */
#include "every.h"

enum { ELEMENTS = 5, SIZE = 4096, DATATYPES = FI_LONG_DOUBLE_COMPLEX + 1, OPS = FI_MSWAP + 1 };

/* The fill byte of result buffers that a call does not write. */
#define UNTOUCHED 0x3c

enum call {
	PLAIN, PLAINV, PLAINMSG, PLAIN_INJECT, FETCH, FETCHV, FETCHMSG, COMPARE, COMPAREV, COMPAREMSG, CALLS
};

static bool fetches(enum call call)
{
	return call >= FETCH;
}

static bool compares(enum call call)
{
	return call >= COMPARE;
}

/* A region of b, and the address and key with which a accesses it. */
struct target {
	struct fid_mr *mr;
	char *memory;
	uint64_t key, address;
};

static struct target open_target(struct pair *p)
{
	struct target t = { 0 };
	uint64_t named[2] = { 0 };

	if (p->b) {
		int mode = p->b->room->info->domain_attr->mr_mode;
		NEEDS(posix_memalign((void **)&t.memory, 64, SIZE));
		memset(t.memory, 0, SIZE);
		NEEDS(fi_mr_reg(p->b->room->domain, t.memory, SIZE, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 60, 0, &t.mr, NULL));
		if (mode & FI_MR_ENDPOINT) {
			NEEDS(fi_mr_bind(t.mr, &p->b->ep->fid, 0));
			NEEDS(fi_mr_enable(t.mr));
		}
		named[0] = fi_mr_key(t.mr);
		named[1] = mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC) ? (uintptr_t)t.memory : 0;
	}
	hand_to_a(p, named, sizeof(named));
	t.key = named[0], t.address = named[1];
	return t;
}

/* One operation on ELEMENTS of a type. */
struct operation {
	enum call call;
	enum fi_datatype type;
	enum fi_op op;
	size_t offset;
	uint64_t flags;
	void *context;
};

static ssize_t post(struct side *a, const struct target *t, const struct operation *x)
{
	const size_t each = datatype_size(x->type), first = ELEMENTS / 2;
	char *operand = a->out, *compare = a->out + SIZE, *result = a->in;
	const uint64_t at = t->address + x->offset;
	struct fi_ioc o[2] = { { operand, first }, { operand + first * each, ELEMENTS - first } };
	struct fi_ioc c[2] = { { compare, first }, { compare + first * each, ELEMENTS - first } };
	struct fi_ioc r[2] = { { result, first }, { result + first * each, ELEMENTS - first } };
	struct fi_rma_ioc remote = { at, ELEMENTS, t->key };
	void *desc[2] = { a->out_desc, a->out_desc }, *to[2] = { a->in_desc, a->in_desc };
	struct fi_msg_atomic msg = { o, desc, 2, a->peer, &remote, 1, x->type, x->op, x->context, 0 };

	/* A read has no operand. */
	if (x->op == FI_ATOMIC_READ)
		msg.iov_count = 0, msg.msg_iov = NULL, operand = NULL;
	switch (x->call) {
	case PLAIN:
		return fi_atomic(a->ep, operand, ELEMENTS, desc[0], a->peer, at, t->key, x->type, x->op, x->context);
	case PLAINV:
		return fi_atomicv(a->ep, o, desc, 2, a->peer, at, t->key, x->type, x->op, x->context);
	case PLAINMSG:
		return fi_atomicmsg(a->ep, &msg, x->flags);
	case PLAIN_INJECT:
		return fi_inject_atomic(a->ep, operand, ELEMENTS, a->peer, at, t->key, x->type, x->op);
	case FETCH:
		return fi_fetch_atomic(a->ep, operand, ELEMENTS, desc[0], result, to[0], a->peer, at, t->key, x->type, x->op, x->context);
	case FETCHV:
		return fi_fetch_atomicv(a->ep, msg.msg_iov, desc, msg.iov_count, r, to, 2, a->peer, at, t->key, x->type, x->op, x->context);
	case FETCHMSG:
		return fi_fetch_atomicmsg(a->ep, &msg, r, to, 2, x->flags);
	case COMPARE:
		return fi_compare_atomic(a->ep, operand, ELEMENTS, desc[0], compare, desc[0], result, to[0], a->peer, at, t->key,
					 x->type, x->op, x->context);
	case COMPAREV:
		return fi_compare_atomicv(a->ep, o, desc, 2, c, desc, 2, r, to, 2, a->peer, at, t->key, x->type, x->op, x->context);
	default:
		return fi_compare_atomicmsg(a->ep, &msg, c, desc, 2, r, to, 2, x->flags);
	}
}

static bool says_when_done(const struct side *a, const struct operation *x)
{
	bool is_msg = x->call == PLAINMSG || x->call == FETCHMSG || x->call == COMPAREMSG;

	return x->call != PLAIN_INJECT && reports(a, true, is_msg ? x->flags : OWN_FLAGS);
}

/* Small values, so that products of floats are exact. They include a zero and two equal values. */
static void operands(enum fi_datatype type, unsigned seed, char *to)
{
	static const int values[] = { 3, 0, 7, 2, 5, 7, 1 };
	const size_t each = datatype_size(type);

	for (size_t n = 0; n < ELEMENTS; n++) {
		int value = values[(n + seed) % COUNT(values)];
		float f = (float)value / 2;
		double d = -(double)value / 2;
		int64_t i = (seed & 1) && type % 2 == 0 ? -value : value;
		memcpy(to + n * each, type == FI_FLOAT ? (void *)&f : type == FI_DOUBLE ? (void *)&d : (void *)&i, each);
	}
}

/* Executes an operation, and compares the result in memory and the fetched values with the model. */
static void one(struct pair *p, struct target *t, const struct operation *x, unsigned seed)
{
	const size_t each = datatype_size(x->type), all = each * ELEMENTS;
	char before[ELEMENTS * 8], after[ELEMENTS * 8], now_there[ELEMENTS * 8];
	char operand[ELEMENTS * 8], compare[ELEMENTS * 8];

	operands(x->type, seed + 2, before);
	operands(x->type, seed, operand);
	operands(x->type, seed + 4, compare);
	memcpy(after, before, all);
	for (size_t n = 0; n < ELEMENTS; n++)
		MUST(model(x->type, x->op, after + n * each, operand + n * each, compare + n * each), "there is no such operation");
	if (p->b)
		memcpy(t->memory + x->offset, before, all);
	meet(p);
	if (p->a) {
		struct side *a = p->a;
		memcpy(a->out, operand, all);
		memcpy(a->out + SIZE, compare, all);
		memset(a->in, UNTOUCHED, all);
		POSTED(a, post(a, t, x));
		if (x->call == PLAIN_INJECT || (x->flags & FI_INJECT))
			memset(a->out, 0x77, all);
		if (says_when_done(a, x)) {
			struct done done = take(a, x->context);
			CHECK(done.err == 0, "%s", fi_strerror(done.err));
			CHECK((done.flags & FI_ATOMIC) && (done.flags & (FI_READ | FI_WRITE)), "flags %#llx", (unsigned long long)done.flags);
		}
	}
	/* An operation without a completion is detected by its effect in memory, or by the fetched values. */
	for (double until = now() + WAIT_LIMIT; p->b;) {
		memcpy(now_there, t->memory + x->offset, all);
		if (!memcmp(now_there, after, all))
			break;
		MUST(now() < until, "call %d type %d op %d leaves other values than the model", x->call, x->type, x->op);
		progress(p->b);
	}
	for (double until = now() + WAIT_LIMIT; p->a && fetches(x->call) && memcmp(p->a->in, before, all);) {
		MUST(now() < until && !says_when_done(p->a, x), "call %d type %d op %d fetches other values than were there",
		     x->call, x->type, x->op);
		progress(p->a);
	}
	meet(p);
}

/* Queries the maximum number of elements of a call. Returns -FI_EOPNOTSUPP if there is no such operation. */
static int ask(struct side *a, enum call call, enum fi_datatype type, enum fi_op op, size_t *count)
{
	if (compares(call))
		return fi_compare_atomicvalid(a->ep, type, op, count);
	return fetches(call) ? fi_fetch_atomicvalid(a->ep, type, op, count) : fi_atomicvalid(a->ep, type, op, count);
}

/*
 * Whether the manual page permits a kind of call (fi_atomic(3)). percale supports integers of up to 8 bytes and two float
 * types.
 */
static bool exists(enum call call, enum fi_datatype type, enum fi_op op)
{
	char t[8] = { 0 }, o[8] = { 0 }, c[8] = { 0 };

	if (!model(type, op, t, o, c))
		return false;
	if (compares(call))
		return op >= FI_CSWAP;
	return op < FI_CSWAP && (fetches(call) || op != FI_ATOMIC_READ);
}

static void validity(struct pair *p)
{
	static const enum call kinds[] = { PLAIN, FETCH, COMPARE };
	static const uint64_t flags[] = { 0, FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC };
	struct side *here = p->a ? p->a : p->b;

	for (size_t kind = 0; kind < COUNT(kinds); kind++) {
		for (int type = 0; type < DATATYPES; type++) {
			for (int op = 0; op < OPS; op++) {
				size_t count = 0;
				struct fi_atomic_attr attr = { 0 };
				int expected = exists(kinds[kind], (enum fi_datatype)type, (enum fi_op)op) ? 0 : -FI_EOPNOTSUPP;
				int got = ask(here, kinds[kind], (enum fi_datatype)type, (enum fi_op)op, &count);
				int same = fi_query_atomic(here->room->domain, (enum fi_datatype)type, (enum fi_op)op, &attr, flags[kind]);
				CHECK(got == expected, "kind %zu type %d op %d: %d", kind, type, op, got);
				CHECK(same == expected, "fi_query_atomic: kind %zu type %d op %d: %d", kind, type, op, same);
				CHECK(got || count >= ELEMENTS, "kind %zu type %d op %d: %zu elements", kind, type, op, count);
				CHECK(same || (attr.count == count && attr.size == datatype_size((enum fi_datatype)type)),
				      "fi_query_atomic: %zu elements of %zu bytes", attr.count, attr.size);
			}
		}
	}
	ANSWERS(-FI_EOPNOTSUPP, fi_atomicvalid(here->ep, (enum fi_datatype)200, FI_SUM, &(size_t){ 0 }));
}

/*
 * A selection of the supported combinations of a call, a type and an operation: every third, or every eleventh with -s.
 */
static void against_model(struct pair *p, struct target *t)
{
	unsigned seed = 0;

	asserts("ATM-002");
	for (int call = 0; call < CALLS; call++) {
		for (int type = 0; type < FI_FLOAT_COMPLEX; type++) {
			for (int op = 0; op < OPS; op++) {
				struct operation x = { (enum call)call, (enum fi_datatype)type, (enum fi_op)op, 64, FI_COMPLETION, context(0) };
				if (!exists(x.call, x.type, x.op))
					continue;
				if (options.few ? seed++ % 11 == 0 : seed++ % 3 == 0)
					one(p, t, &x, seed);
			}
		}
	}
}

static void every_flag(struct pair *p, struct target *t)
{
	static const uint64_t flags[] = { 0, FI_COMPLETION, FI_FENCE | FI_COMPLETION, FI_MORE | FI_COMPLETION, FI_INJECT | FI_COMPLETION,
					  FI_DELIVERY_COMPLETE | FI_COMPLETION, FI_TRANSMIT_COMPLETE };
	static const enum call calls[] = { PLAINMSG, FETCHMSG, COMPAREMSG };

	for (size_t at = 0; at < COUNT(flags); at++) {
		for (size_t n = 0; n < COUNT(calls); n++) {
			struct operation x = { calls[n], FI_UINT32, compares(calls[n]) ? FI_CSWAP_NE : FI_SUM, 8 * at, flags[at], context(0) };
			one(p, t, &x, (unsigned)at);
		}
	}
}

/* Calls with arguments that do not fit together. */
static void mismatches(struct pair *p, struct target *t)
{
	struct operation x = { PLAIN, FI_UINT64, FI_CSWAP, 0, FI_COMPLETION, context(0) };
	struct side *a = p->a;

	if (p->b)
		memset(t->memory, 0x7e, SIZE);
	meet(p);
	if (a) {
		struct done done;
		asserts("ATM-004");
		ANSWERS(-FI_EOPNOTSUPP, post(a, t, &x));
		x.call = FETCH;
		ANSWERS(-FI_EOPNOTSUPP, post(a, t, &x));
		x.call = COMPARE, x.op = FI_SUM;
		ANSWERS(-FI_EOPNOTSUPP, post(a, t, &x));
		x.call = PLAIN, x.op = FI_BOR, x.type = FI_DOUBLE;
		ANSWERS(-FI_EOPNOTSUPP, post(a, t, &x));
		x.type = FI_LONG_DOUBLE, x.op = FI_SUM;
		ANSWERS(-FI_EOPNOTSUPP, fi_atomic(a->ep, a->out, 1, a->out_desc, a->peer, t->address, t->key, x.type, x.op, x.context));
		/* An element that is not aligned to its size. */
		x.call = FETCHMSG, x.type = FI_UINT64, x.offset = 3;
		ANSWERS(0, post(a, t, &x));
		done = take(a, x.context);
		CHECK(done.err == FI_EINVAL || done.err == FI_EACCES, "error %d", done.err);
	}
	meet(p);
	asserts("ATM-003");
	for (size_t at = 0; p->b && at < SIZE; at++)
		MUST(t->memory[at] == 0x7e, "byte %zu was changed", at);
	meet(p);
}

void atomic_groups(struct pair *p)
{
	static const struct {
		const char *name;
		void (*run)(struct pair *, struct target *);
	} all[] = {
		{ "atomic: against a model", against_model },
		{ "atomic: every flag", every_flag },
		{ "atomic: invalid combinations", mismatches },
	};
	struct target t = open_target(p);

	begin("atomic: supported combinations");
	validity(p);
	quiet(p);
	end();
	for (size_t at = 0; at < COUNT(all); at++) {
		begin(all[at].name);
		all[at].run(p, &t);
		quiet(p);
		end();
	}
	if (p->b) {
		ANSWERS(0, fi_close(&t.mr->fid));
		free(t.memory);
	}
	meet(p);
}
