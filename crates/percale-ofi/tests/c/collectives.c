/* Groups and collectives (fi_collective(3)). Names of groups begin with the requirements that they test. */
#include "every.h"

static struct settings how = { .name = "collectives", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL, .caps = FI_COLLECTIVE };

/* Both ends of a pair in one group. a has rank 0. */
struct group {
	struct two *two;
	struct fid_av_set *sets[2];
	struct fid_mc *mcs[2];
	struct side *sides[2];
	fi_addr_t members[2][2];
};

static struct fid_av_set *set_of(struct side *side, const fi_addr_t *members, size_t count)
{
	struct fi_av_set_attr attr = { .count = count, .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL };
	struct fid_av_set *set;

	NEEDS(fi_av_set(side->av, &attr, &set, side));
	CHECK(set->fid.context == side && set->fid.fclass == FI_CLASS_AV_SET, "class %zu", set->fid.fclass);
	for (size_t at = 0; at < count; at++)
		ANSWERS(0, fi_av_set_insert(set, members[at]));
	return set;
}

/* Waits for the event that reports that one end has joined or failed to join. Returns the error code. */
static int joined(struct group *g, int which, void *context)
{
	struct fi_eq_err_entry error = { 0 };
	struct fi_eq_entry entry = { 0 };
	uint32_t event = 0;
	ssize_t got;

	do {
		for (int side = 0; side < 2; side++)
			progress(g->sides[side]);
		got = fi_eq_read(g->sides[which]->eq, &event, &entry, sizeof(entry), 0);
	} while (got == -FI_EAGAIN);
	if (got == -FI_EAVAIL) {
		CHECK(fi_eq_readerr(g->sides[which]->eq, &error, 0) == sizeof(error), "no error");
		CHECK(error.fid == &g->mcs[which]->fid && error.context == context, "another's error");
		return error.err;
	}
	CHECK(got == sizeof(entry) && event == FI_JOIN_COMPLETE, "%zd, event %u", got, event);
	CHECK(entry.fid == &g->mcs[which]->fid && entry.context == context, "another's event");
	return 0;
}

/* The vector of each end contains the peer first, and then the end itself. */
static void open_group(struct group *g, struct two *two)
{
	fi_addr_t address;

	memset(g, 0, sizeof(*g));
	g->two = two;
	g->sides[0] = &two->a;
	g->sides[1] = &two->b;
	for (int side = 0; side < 2; side++) {
		char name[128];
		fi_addr_t own;

		name_of(g->sides[side], name, sizeof(name));
		ANSWERS(1, fi_av_insert(g->sides[side]->av, name, 1, &own, 0, NULL));
		g->members[side][side] = own;
		g->members[side][1 - side] = g->sides[side]->peer;
	}
	for (int side = 0; side < 2; side++) {
		g->sets[side] = set_of(g->sides[side], g->members[side], 2);
		ANSWERS(0, fi_av_set_addr(g->sets[side], &address));
		ANSWERS(0, fi_join_collective(g->sides[side]->ep, address, g->sets[side], 0, &g->mcs[side], &g->sets[side]));
		CHECK(g->mcs[side]->fid.fclass == FI_CLASS_MC, "class %zu", g->mcs[side]->fid.fclass);
	}
	for (int side = 0; side < 2; side++)
		ANSWERS(0, joined(g, side, &g->sets[side]));
}

static void close_group(struct group *g)
{
	for (int side = 0; side < 2; side++) {
		ANSWERS(0, fi_close(&g->mcs[side]->fid));
		ANSWERS(0, fi_close(&g->sets[side]->fid));
	}
}

static fi_addr_t address_of(const struct group *g, int side)
{
	return fi_mc_addr(g->mcs[side]);
}

/* Waits for both ends' completions of an operation with these contexts. */
static void done(struct group *g, int first)
{
	for (int side = 0; side < 2; side++) {
		struct done done = take(g->sides[side], context(first + side));
		CHECK(done.err == 0 && done.flags == FI_COLLECTIVE, "%d, flags %#llx", done.err, (unsigned long long)done.flags);
	}
}

static void queries(struct fid_domain *domain)
{
	struct fi_collective_attr attr = { .op = FI_SUM, .datatype = FI_UINT64 };

	ANSWERS(0, fi_query_collective(domain, FI_ALLREDUCE, &attr, 0));
	CHECK(attr.datatype_attr.size == 8 && attr.datatype_attr.count > 1 << 20 && attr.max_members > 1000, "%zu", attr.max_members);
	ANSWERS(0, fi_query_collective(domain, FI_REDUCE, &attr, 0));
	ANSWERS(0, fi_query_collective(domain, FI_BROADCAST, &attr, 0));
	attr.op = FI_CSWAP;
	ANSWERS(-FI_EOPNOTSUPP, fi_query_collective(domain, FI_ALLREDUCE, &attr, 0));
	attr.op = FI_SUM;
	attr.datatype = FI_LONG_DOUBLE;
	ANSWERS(-FI_EOPNOTSUPP, fi_query_collective(domain, FI_ALLREDUCE, &attr, 0));
	attr.datatype = FI_VOID;
	attr.op = FI_NOOP;
	ANSWERS(0, fi_query_collective(domain, FI_BARRIER, &attr, 0));
	/* A collective that combines nothing accepts any valid operation, and needs a type. */
	ANSWERS(-FI_EOPNOTSUPP, fi_query_collective(domain, FI_ALLGATHER, &attr, 0));
	attr.datatype = FI_UINT32;
	for (int coll = FI_ALLTOALL; coll <= FI_GATHER; coll++) {
		const int combines = coll == FI_ALLREDUCE || coll == FI_REDUCE_SCATTER || coll == FI_REDUCE;
		attr.op = FI_NOOP;
		ANSWERS(combines ? -FI_EOPNOTSUPP : 0, fi_query_collective(domain, coll, &attr, 0));
		attr.op = FI_BXOR;
		ANSWERS(0, fi_query_collective(domain, coll, &attr, 0));
		CHECK(attr.datatype_attr.size == 4 && attr.datatype_attr.count > 1 << 20 && attr.max_members > 1000, "collective %d: %zu", coll, attr.max_members);
	}
	ANSWERS(-FI_ENOSYS, fi_query_collective(domain, FI_GATHER + 1, &attr, 0));
	ANSWERS(-FI_EINVAL, fi_query_collective(domain, FI_BARRIER, NULL, 0));
}

static void operations(struct group *g)
{
	enum { LONG = 1 << 17 };
	uint64_t *in = calloc(LONG, sizeof(*in)), *out[2] = { calloc(LONG, sizeof(*in)), calloc(LONG, sizeof(*in)) };
	int first = 500;

	MUST(in && out[0] && out[1], "out of memory");
	for (int round = 0; round < 20; round++, first += 10) {
		for (int side = 0; side < 2; side++)
			ANSWERS(0, fi_barrier(g->sides[side]->ep, address_of(g, side), context(first + side)));
		done(g, first);
	}
	/* One end has to wait for the other. */
	ANSWERS(0, fi_barrier2(g->sides[0]->ep, address_of(g, 0), FI_COMPLETION, context(first)));
	for (int turn = 0; turn < 100; turn++)
		progress(g->sides[0]), progress(g->sides[1]);
	quiet(&g->two->pair);
	ANSWERS(0, fi_barrier2(g->sides[1]->ep, address_of(g, 1), FI_COMPLETION, context(first + 1)));
	done(g, first);
	for (size_t count = 1; count <= LONG; count *= 16, first += 10) {
		for (size_t at = 0; at < count; at++)
			in[at] = at * count;
		for (int side = 0; side < 2; side++)
			ANSWERS(0, fi_allreduce(g->sides[side]->ep, in, count, NULL, out[side], NULL, address_of(g, side), FI_UINT64, FI_SUM, 0, context(first + side)));
		done(g, first);
		for (size_t at = 0; at < count; at++)
			MUST(out[0][at] == 2 * in[at] && out[1][at] == 2 * in[at], "element %zu of %zu", at, count);
		/* In place. */
		for (int side = 0; side < 2; side++)
			ANSWERS(0, fi_allreduce(g->sides[side]->ep, out[side], count, NULL, out[side], NULL, address_of(g, side), FI_UINT64, FI_SUM, 0, context(first + 2 + side)));
		done(g, first + 2);
		for (size_t at = 0; at < count; at++)
			MUST(out[0][at] == 4 * in[at] && out[1][at] == 4 * in[at], "element %zu of %zu", at, count);
		/* b broadcasts its elements. Then a receives the maxima of the elements of both. */
		memcpy(out[1], in, count * sizeof(*in));
		for (int side = 0; side < 2; side++)
			ANSWERS(0, fi_broadcast(g->sides[side]->ep, out[side], count, NULL, address_of(g, side), g->members[side][1], FI_UINT64, 0, context(first + 4 + side)));
		done(g, first + 4);
		CHECK(!memcmp(out[0], in, count * sizeof(*in)), "%zu elements", count);
		for (int side = 0; side < 2; side++)
			ANSWERS(0, fi_reduce(g->sides[side]->ep, in, count, NULL, side ? NULL : out[0], NULL, address_of(g, side), g->members[side][0], FI_UINT64, FI_MAX, 0, context(first + 6 + side)));
		done(g, first + 6);
		CHECK(!memcmp(out[0], in, count * sizeof(*in)), "%zu elements", count);
	}
	free(in), free(out[0]), free(out[1]);
}

/* Exchanges of blocks: count is the number of elements of one block. Elements are 1000 * rank + the element's number. */
static void exchanges(struct group *g)
{
	enum { LONG = 1 << 16 };
	uint64_t *in[2], *out[2];
	int first = 700;

	for (int side = 0; side < 2; side++) {
		in[side] = calloc(2 * LONG, 8), out[side] = calloc(2 * LONG, 8);
		MUST(in[side] && out[side], "out of memory");
		for (size_t at = 0; at < 2 * LONG; at++)
			in[side][at] = (uint64_t)side * 1000 + at;
	}
	for (size_t count = 1; count <= LONG; count *= 256) {
		for (int side = 0; side < 2; side++)
			ANSWERS(0, fi_allgather(g->sides[side]->ep, in[side], count, NULL, out[side], NULL, address_of(g, side), FI_UINT64, 0, context(first + side)));
		done(g, first);
		for (int side = 0; side < 2; side++)
			for (int of = 0; of < 2; of++)
				CHECK(!memcmp(out[side] + (size_t)of * count, in[of], count * 8), "%zu elements of %d for %d", count, of, side);
		first += 2;
		for (int side = 0; side < 2; side++)
			ANSWERS(0, fi_alltoall(g->sides[side]->ep, in[side], count, NULL, out[side], NULL, address_of(g, side), FI_UINT64, 0, context(first + side)));
		done(g, first);
		for (int side = 0; side < 2; side++)
			for (int of = 0; of < 2; of++)
				CHECK(!memcmp(out[side] + (size_t)of * count, in[of] + (size_t)side * count, count * 8), "%zu elements of %d for %d", count, of, side);
		first += 2;
		for (int side = 0; side < 2; side++)
			ANSWERS(0, fi_reduce_scatter(g->sides[side]->ep, in[side], count, NULL, out[side], NULL, address_of(g, side), FI_UINT64, FI_SUM, 0, context(first + side)));
		done(g, first);
		for (int side = 0; side < 2; side++)
			for (size_t at = 0; at < count; at++)
				MUST(out[side][at] == 1000 + 2 * ((size_t)side * count + at), "element %zu of %zu", at, count);
		first += 2;
		for (int root = 0; root < 2; root++) {
			/* The other members pass no elements, or do not receive any. */
			for (int side = 0; side < 2; side++)
				ANSWERS(0, fi_scatter(g->sides[side]->ep, side == root ? in[side] : NULL, count, NULL, out[side], NULL, address_of(g, side), g->members[side][root], FI_UINT64, 0, context(first + side)));
			done(g, first);
			for (int side = 0; side < 2; side++)
				CHECK(!memcmp(out[side], in[root] + (size_t)side * count, count * 8), "%zu elements for %d", count, side);
			first += 2;
			for (int side = 0; side < 2; side++)
				ANSWERS(0, fi_gather(g->sides[side]->ep, in[side], count, NULL, side == root ? out[side] : NULL, NULL, address_of(g, side), g->members[side][root], FI_UINT64, 0, context(first + side)));
			done(g, first);
			for (int of = 0; of < 2; of++)
				CHECK(!memcmp(out[root] + (size_t)of * count, in[of], count * 8), "%zu elements of %d", count, of);
			first += 2;
		}
	}
	/* In place. */
	for (int side = 0; side < 2; side++) {
		memcpy(out[side], in[side], 80);
		ANSWERS(0, fi_alltoall(g->sides[side]->ep, out[side], 5, NULL, out[side], NULL, address_of(g, side), FI_UINT64, 0, context(first + side)));
	}
	done(g, first);
	for (int side = 0; side < 2; side++)
		for (int of = 0; of < 2; of++)
			CHECK(!memcmp(out[side] + 5 * of, in[of] + 5 * side, 40), "of %d for %d", of, side);
	for (int side = 0; side < 2; side++)
		free(in[side]), free(out[side]);
}

static void refused_by(struct group *g)
{
	uint64_t in[4] = { 1, 2, 3, 4 }, out[4];
	struct fi_ioc ioc = { in, 4 }, result = { out, 4 };
	struct fi_msg_collective msg = { .msg_iov = &ioc, .iov_count = 1, .coll = FI_ALLREDUCE, .datatype = FI_UINT64, .op = FI_SUM };
	struct fid_ep *ep = g->sides[0]->ep;
	fi_addr_t group = address_of(g, 0);
	struct fid_av_set *lonely;
	struct fid_mc *mc;

	ANSWERS(-FI_EINVAL, fi_barrier(ep, 12345, NULL));
	ANSWERS(-FI_EINVAL, fi_broadcast(ep, in, 4, NULL, group, 4711, FI_UINT64, 0, NULL));
	ANSWERS(-FI_EOPNOTSUPP, fi_allreduce(ep, in, 4, NULL, out, NULL, group, FI_DOUBLE, FI_BOR, 0, NULL));
	ANSWERS(-FI_EOPNOTSUPP, fi_allreduce(ep, in, 4, NULL, out, NULL, group, FI_UINT64, FI_ATOMIC_WRITE, 0, NULL));
	ANSWERS(-FI_EINVAL, fi_allreduce(ep, in, 4, NULL, NULL, NULL, group, FI_UINT64, FI_SUM, 0, NULL));
	ANSWERS(-FI_EINVAL, fi_alltoall(ep, in, 2, NULL, NULL, NULL, group, FI_UINT64, 0, NULL));
	ANSWERS(-FI_EINVAL, fi_alltoall(ep, in, 2, NULL, out, NULL, 12345, FI_UINT64, 0, NULL));
	ANSWERS(-FI_EINVAL, fi_allgather(ep, NULL, 2, NULL, out, NULL, group, FI_UINT64, 0, NULL));
	ANSWERS(-FI_EINVAL, fi_allgather(ep, in, SIZE_MAX / 9, NULL, out, NULL, group, FI_UINT64, 0, NULL));
	ANSWERS(-FI_EOPNOTSUPP, fi_allgather(ep, in, 2, NULL, out, NULL, group, FI_VOID, 0, NULL));
	ANSWERS(-FI_EINVAL, fi_reduce_scatter(ep, NULL, 2, NULL, out, NULL, group, FI_UINT64, FI_SUM, 0, NULL));
	ANSWERS(-FI_EOPNOTSUPP, fi_reduce_scatter(ep, in, 2, NULL, out, NULL, group, FI_DOUBLE, FI_BOR, 0, NULL));
	ANSWERS(-FI_EINVAL, fi_scatter(ep, in, 2, NULL, out, NULL, group, 4711, FI_UINT64, 0, NULL));
	ANSWERS(-FI_EINVAL, fi_scatter(ep, NULL, 2, NULL, out, NULL, group, g->members[0][0], FI_UINT64, 0, NULL));
	ANSWERS(-FI_EINVAL, fi_gather(ep, in, 2, NULL, out, NULL, group, 4711, FI_UINT64, 0, NULL));
	ANSWERS(-FI_EINVAL, fi_gather(ep, in, 2, NULL, NULL, NULL, group, g->members[0][0], FI_UINT64, 0, NULL));
	/* libfabric has no inline function for this entry. */
	ANSWERS(-FI_ENOSYS, ep->collective->msg(ep, &msg, &result, NULL, 1, 0));
	/* A set without this endpoint, no set, and a set of another vector. */
	lonely = set_of(g->sides[0], &g->members[0][1], 1);
	ANSWERS(-FI_EINVAL, fi_join_collective(ep, FI_ADDR_NOTAVAIL, lonely, 0, &mc, NULL));
	ANSWERS(-FI_EINVAL, fi_join_collective(ep, FI_ADDR_NOTAVAIL, NULL, 0, &mc, NULL));
	ANSWERS(-FI_EINVAL, fi_join_collective(g->sides[1]->ep, FI_ADDR_NOTAVAIL, lonely, 0, &mc, NULL));
	ANSWERS(0, fi_close(&lonely->fid));
	quiet(&g->two->pair);
}

/* Memory that is not registered, or not for collectives, is rejected. */
static void registered_memory(void)
{
	struct settings own = how;
	struct group g;
	struct two two;
	uint64_t *in[2], *out[2];

	own.name = "collective registration";
	for (int local = 0; local < 2; local++) {
		struct fid_mr *good[2][2], *bad[2];
		own.taken = local ? FI_MR_LOCAL : FI_MR_COLLECTIVE;
		open_two(&two, &own);
		open_group(&g, &two);
		const uint64_t mark = local ? 0 : FI_COLLECTIVE;
		const uint64_t rights[2] = { FI_SEND | mark, FI_RECV | mark };
		for (int side = 0; side < 2; side++) {
			in[side] = calloc(64, 8), out[side] = calloc(64, 8);
			MUST(in[side] && out[side], "out of memory");
			for (int at = 0; at < 64; at++)
				in[side][at] = (uint64_t)at;
			NEEDS(fi_mr_reg(two.room.domain, in[side], 512, rights[0], 0, (uint64_t)(700 + 10 * side), 0, &good[side][0], NULL));
			NEEDS(fi_mr_reg(two.room.domain, out[side], 512, rights[1], 0, (uint64_t)(701 + 10 * side), 0, &good[side][1], NULL));
		}
		/* Memory that is registered, but not for collectives, or not for this direction. */
		NEEDS(fi_mr_reg(two.room.domain, in[0], 512, local ? FI_REMOTE_READ : FI_SEND | FI_RECV, 0, 800, 0, &bad[0], NULL));
		NEEDS(fi_mr_reg(two.room.domain, out[0], 512, local ? FI_SEND : FI_SEND | mark, 0, 801, 0, &bad[1], NULL));
		struct fid_ep *ep = g.sides[0]->ep;
		fi_addr_t group = address_of(&g, 0);
		void *in_desc = fi_mr_desc(good[0][0]), *out_desc = fi_mr_desc(good[0][1]);
		if (!local)
			asserts("MR-035 MR-045");
		ANSWERS(-FI_EINVAL, fi_allreduce(ep, in[0], 64, NULL, out[0], NULL, group, FI_UINT64, FI_SUM, 0, NULL));
		ANSWERS(-FI_EINVAL, fi_allreduce(ep, in[0], 64, in_desc, out[0], NULL, group, FI_UINT64, FI_SUM, 0, NULL));
		ANSWERS(-FI_EINVAL, fi_allreduce(ep, in[0], 64, fi_mr_desc(bad[0]), out[0], out_desc, group, FI_UINT64, FI_SUM, 0, NULL));
		ANSWERS(-FI_EINVAL, fi_allreduce(ep, in[0], 64, in_desc, out[0], fi_mr_desc(bad[1]), group, FI_UINT64, FI_SUM, 0, NULL));
		ANSWERS(-FI_EINVAL, fi_allreduce(ep, in[0], 65, in_desc, out[0], out_desc, group, FI_UINT64, FI_SUM, 0, NULL));
		ANSWERS(-FI_EINVAL, fi_broadcast(ep, in[0], 64, out_desc, group, g.members[0][0], FI_UINT64, 0, NULL));
		ANSWERS(-FI_EINVAL, fi_broadcast(ep, out[0], 64, NULL, group, g.members[0][1], FI_UINT64, 0, NULL));
		asserts(local ? "MR-046 MR-047" : "MR-044 MR-046 MR-047");
		for (int side = 0; side < 2; side++)
			ANSWERS(0, fi_allreduce(g.sides[side]->ep, in[side], 64, fi_mr_desc(good[side][0]), out[side], fi_mr_desc(good[side][1]), address_of(&g, side), FI_UINT64, FI_SUM, 0, context(side)));
		done(&g, 0);
		for (int at = 0; at < 64; at++)
			CHECK(out[0][at] == 2 * (uint64_t)at && out[1][at] == 2 * (uint64_t)at, "element %d", at);
		/* All blocks are checked, and memory that a member does not need is not checked. */
		ANSWERS(-FI_EINVAL, fi_allgather(ep, in[0], 33, in_desc, out[0], out_desc, group, FI_UINT64, 0, NULL));
		ANSWERS(-FI_EINVAL, fi_alltoall(ep, in[0], 33, in_desc, out[0], out_desc, group, FI_UINT64, 0, NULL));
		ANSWERS(-FI_EINVAL, fi_scatter(ep, in[0], 32, out_desc, out[0], out_desc, group, g.members[0][0], FI_UINT64, 0, NULL));
		ANSWERS(-FI_EINVAL, fi_gather(ep, in[0], 32, in_desc, out[0], in_desc, group, g.members[0][0], FI_UINT64, 0, NULL));
		for (int side = 0; side < 2; side++)
			ANSWERS(0, fi_allgather(g.sides[side]->ep, in[side], 32, fi_mr_desc(good[side][0]), out[side], fi_mr_desc(good[side][1]), address_of(&g, side), FI_UINT64, 0, context(side)));
		done(&g, 0);
		for (int at = 0; at < 32; at++)
			CHECK(out[0][32 + at] == (uint64_t)at && out[1][at] == (uint64_t)at, "element %d", at);
		for (int side = 0; side < 2; side++)
			ANSWERS(0, fi_gather(g.sides[side]->ep, in[side], 32, fi_mr_desc(good[side][0]), side ? NULL : out[0], side ? NULL : out_desc, address_of(&g, side), g.members[side][0], FI_UINT64, 0, context(side)));
		done(&g, 0);
		/* A barrier uses no memory. */
		for (int side = 0; side < 2; side++)
			ANSWERS(0, fi_barrier(g.sides[side]->ep, address_of(&g, side), context(side)));
		done(&g, 0);
		for (int side = 0; side < 2; side++) {
			ANSWERS(0, fi_close(&bad[side]->fid));
			ANSWERS(0, fi_close(&good[side][0]->fid));
			ANSWERS(0, fi_close(&good[side][1]->fid));
			free(in[side]), free(out[side]);
		}
		close_group(&g);
		close_two(&two);
	}
}

/* An endpoint that was opened without FI_COLLECTIVE has no collectives. */
static void without(void)
{
	struct settings plain = how;
	struct fid_av_set *set;
	struct fid_mc *mc;
	struct two two;

	plain.caps = 0;
	open_two(&two, &plain);
	set = set_of(&two.a, &two.a.peer, 1);
	ANSWERS(-FI_EOPNOTSUPP, fi_join_collective(two.a.ep, FI_ADDR_NOTAVAIL, set, 0, &mc, NULL));
	ANSWERS(-FI_ENOSYS, fi_barrier(two.a.ep, 0, NULL));
	ANSWERS(-FI_ENOSYS, fi_barrier2(two.a.ep, 0, FI_COMPLETION, NULL));
	ANSWERS(0, fi_close(&set->fid));
	quiet(&two.pair);
	close_two(&two);
}

/* The other end closes: the operation that waits for it ends with an error, and so does the next one. */
static void left_alone(void)
{
	struct two two;
	struct group g;
	struct done done;

	open_two(&two, &how);
	open_group(&g, &two);
	ANSWERS(0, fi_barrier(two.a.ep, address_of(&g, 0), context(1)));
	ANSWERS(0, fi_barrier(two.a.ep, address_of(&g, 0), context(2)));
	close_group(&(struct group){ .two = &two, .sets = { g.sets[0], g.sets[1] }, .mcs = { g.mcs[0], g.mcs[1] } });
	close_side(&two.b);
	two.a.mate = NULL;
	for (int n = 1; n < 3; n++) {
		done = take(&two.a, context(n));
		CHECK(done.err != 0 && done.flags == FI_COLLECTIVE, "%d, flags %#llx", done.err, (unsigned long long)done.flags);
	}
	close_side(&two.a);
	close_room(&two.room);
}

/* A group may outlive its endpoint. The domain must outlive both. */
static void domain_stays(void)
{
	struct two two;
	struct group g;

	open_two(&two, &how);
	open_group(&g, &two);
	for (int side = 0; side < 2; side++)
		ANSWERS(0, fi_close(&g.sets[side]->fid));
	ANSWERS(-FI_EBUSY, fi_close(&g.sides[0]->eq->fid));
	/* The event queues must stay open as long. */
	for (int side = 0; side < 2; side++) {
		struct fid_ep *ep = g.sides[side]->ep;
		ANSWERS(0, fi_close(&ep->fid));
		ANSWERS(-FI_EBUSY, fi_close(&g.sides[side]->eq->fid));
		ANSWERS(0, fi_close(&g.sides[side]->txcq->fid));
		ANSWERS(0, fi_close(&g.sides[side]->av->fid));
		free(g.sides[side]->out);
		free(g.sides[side]->in);
	}
	ANSWERS(-FI_EBUSY, fi_close(&two.room.domain->fid));
	for (int side = 0; side < 2; side++) {
		ANSWERS(0, fi_close(&g.mcs[side]->fid));
		ANSWERS(0, fi_close(&g.sides[side]->eq->fid));
	}
	close_room(&two.room);
}

void collective_groups(void)
{
	struct two two;
	struct group g;

	if (!is_there("collectives"))
		return;
	begin("address sets");
	address_sets();
	end();
	begin("collectives");
	open_two(&two, &how);
	open_group(&g, &two);
	queries(two.room.domain);
	operations(&g);
	exchanges(&g);
	refused_by(&g);
	quiet(&two.pair);
	close_group(&g);
	close_two(&two);
	end();
	begin("a domain with groups");
	domain_stays();
	end();
	begin("registered memory of collectives");
	registered_memory();
	end();
	begin("endpoints without collectives");
	without();
	end();
	begin("a member that has exited");
	left_alone();
	end();
}
