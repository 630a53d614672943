/*
 * Behaviour that the manual pages imply and programs rely on: keys, empty regions, counters that are bound late, thresholds,
 * windows.
 */
#include "registration.h"

#include <percale_fi_ext.h>
#include <sys/mman.h>

static struct world w;

static const struct settings triggered = { .name = "specification", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE,
					   .progress = FI_PROGRESS_MANUAL, .caps = FI_RMA_EVENT | FI_TRIGGER };
static const struct settings without_events = { .name = "specification", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE,
						.progress = FI_PROGRESS_MANUAL };

static struct fid_cntr *counter(void)
{
	struct fid_cntr *c;

	NEEDS(fi_cntr_open(w.domain, NULL, &c, NULL));
	return c;
}

/* Checks that the counter reaches this value and does not exceed it. */
static void counts(struct fid_cntr *c, uint64_t expected)
{
	double until = now() + WAIT_LIMIT;

	/* Not every counter here drives an endpoint. */
	while (fi_cntr_read(c) < expected && now() < until)
		progress(w.a);
	for (int n = 0; n < 50; n++)
		progress(w.a);
	ANSWERS(expected, fi_cntr_read(c));
}

/* An application may select every 64-bit key while windows are bound and raw keys are mapped. */
static void every_key(void)
{
	static const uint64_t chosen[] = { 0, 1, UINT32_MAX, (uint64_t)1 << 32, (uint64_t)1 << 63, 0xFFFFFFFDFFFFFFFF, 0xFFFFFFFE00000000,
					   0xFFFFFFFE12345678, 0xFFFFFFFF00000000, UINT64_MAX - 1, UINT64_MAX };
	char *below = pages(BYTES, 2), *memory = pages(BYTES, 1);
	struct fid_mr *lower = registered(&w, below, BYTES, BOTH_WAYS, 77, 0);
	struct percale_window_ops *ops;
	struct percale_window *window;
	struct percale_window_range range = { lower, 0, 64, PERCALE_WINDOW_READ };
	uint64_t key, address, base, mapped, keys[COUNT(chosen) + 6];
	uint8_t raw[64];
	size_t len = sizeof(raw), count = 0;

	NEEDS(fi_open_ops(&w.domain->fid, PERCALE_WINDOW_OPS, 0, (void **)&ops, NULL));
	NEEDS(ops->open(w.domain, PERCALE_WINDOW_1, &window));
	ANSWERS(0, ops->bind(window, &range, &key, &address));
	ANSWERS(0, fi_mr_raw_attr(lower, &base, raw, &len, 0));
	ANSWERS(0, fi_mr_map_raw(w.domain, base, raw, len, &mapped, 0));
	for (size_t n = 0; n < COUNT(chosen); n++)
		keys[count++] = chosen[n];
	/* Keys next to those of the window and of the mapped key. */
	for (int n = 0; n < 2; n++) {
		uint64_t near = n ? mapped : key;
		keys[count++] = near & UINT32_MAX, keys[count++] = near ^ (uint64_t)1 << 40, keys[count++] = near >> 32;
	}
	asserts("KEY-020 MW-051");
	for (size_t n = 0; n < count; n++) {
		struct fid_mr *mr = registered(&w, memory, BYTES, BOTH_WAYS, keys[n], 0);

		CHECK(fi_mr_key(mr) == keys[n], "%#llx", (unsigned long long)keys[n]);
		served(&w, 0, keys[n], memory);
		ANSWERS(0, fi_close(&mr->fid));
		CHECK(try_read(&w, 0, keys[n], 8) != 0, "%#llx of a region that was closed", (unsigned long long)keys[n]);
		fill(memory, BYTES, 1);
	}
	ANSWERS(0, try_read(&w, address, key, 64));
	ANSWERS(0, try_read(&w, base, mapped, 64));
	ANSWERS(0, fi_mr_unmap_key(w.domain, mapped));
	ANSWERS(0, ops->close(window));
	ANSWERS(0, fi_close(&lower->fid));
	munmap(below, BYTES);
	munmap(memory, BYTES);
}

/* A region of 0 bytes has a key and a descriptor, and permits no access. */
static void empty(void)
{
	char *memory = pages(BYTES, 1), *places[] = { NULL, memory };

	for (size_t n = 0; n < COUNT(places); n++) {
		struct fid_mr *mr, *second;
		uint8_t raw[64];
		uint64_t base;
		size_t len = sizeof(raw);

		asserts("MR-006 MR-077");
		NEEDS(fi_mr_reg(w.domain, places[n], 0, BOTH_WAYS, 0, 401, 0, &mr, NULL));
		CHECK(fi_mr_key(mr) == 401 && fi_mr_desc(mr), "no key");
		ANSWERS(-FI_ENOKEY, fi_mr_reg(w.domain, memory, BYTES, BOTH_WAYS, 0, 401, 0, &second, NULL));
		ANSWERS(0, fi_mr_raw_attr(mr, &base, raw, &len, 0));
		refused(&w, base, 401, memory, 1);
		CHECK(try_read(&w, base, 401, 1) != 0 && try_write(&w, base, 401, 1, 3) != 0, "a byte of an empty region was accessed");
		ANSWERS(0, try_write(&w, base, 401, 0, 3));
		ANSWERS(0, try_read(&w, base, 401, 0));
		ANSWERS(0, fi_close(&mr->fid));
		CHECK(is_filled(memory, BYTES, 1), "memory beside it");
		mr = registered(&w, memory, BYTES, BOTH_WAYS, 401, 0);
		served(&w, base_of(&w, memory), 401, memory);
		ANSWERS(0, fi_close(&mr->fid));
		fill(memory, BYTES, 1);
	}
	munmap(memory, BYTES);
}

/* Empty pieces among others, unknown access rights, ranges that wrap around. */
static void malformed(void)
{
	char *memory = pages(BYTES, 1);
	struct iovec iov[3] = { { memory, 16 }, { memory + 100, 0 }, { memory + 200, 16 } };
	struct fi_mr_attr attr = { .mr_iov = iov, .iov_count = 3, .access = BOTH_WAYS, .requested_key = 411 };
	struct fid_mr *mr = (struct fid_mr *)memory, *untouched = mr;

	asserts("MR-078");
	for (int at = 0; at < 3; at++) {
		for (int n = 0; n < 3; n++)
			iov[n].iov_len = n == at ? 0 : 16;
		ANSWERS(-FI_EINVAL, fi_mr_regv(w.domain, iov, 3, BOTH_WAYS, 0, 411, 0, &mr, NULL));
		ANSWERS(-FI_EINVAL, fi_mr_regattr(w.domain, &attr, 0, &mr));
	}
	iov[0].iov_len = iov[1].iov_len = iov[2].iov_len = 0;
	ANSWERS(-FI_EINVAL, fi_mr_regattr(w.domain, &attr, 0, &mr));
	static const uint64_t unknown[] = { 1, (uint64_t)1 << 40, (uint64_t)1 << 60, (uint64_t)1 << 61, (uint64_t)1 << 62, (uint64_t)1 << 63 };
	asserts("MR-079");
	for (size_t n = 0; n < COUNT(unknown); n++)
		ANSWERS(-FI_EBADFLAGS, fi_mr_reg(w.domain, memory, 64, BOTH_WAYS | unknown[n], 0, 411, 0, &mr, NULL));
	asserts("MR-080");
	ANSWERS(-FI_EINVAL, fi_mr_reg(w.domain, memory, SIZE_MAX - 100, BOTH_WAYS, 0, 411, 0, &mr, NULL));
	ANSWERS(-FI_EINVAL, fi_mr_reg(w.domain, memory, SIZE_MAX, BOTH_WAYS, 0, 411, 0, &mr, NULL));
	iov[0].iov_len = iov[1].iov_len = 16, iov[2] = (struct iovec){ memory, (size_t)0 - (uintptr_t)memory };
	ANSWERS(-FI_EINVAL, fi_mr_regv(w.domain, iov, 3, BOTH_WAYS, 0, 411, 0, &mr, NULL));
	CHECK(mr == untouched, "an object was returned by a failed call");
	refused(&w, 0, 411, memory, 1);
	munmap(memory, BYTES);
}

/* Several counters for a region, bound before and after peers accessed it. */
static void several_counters(void)
{
	char *memory = pages(BYTES, 1);
	struct fid_cntr *c[3] = { counter(), counter(), counter() };
	struct fid_mr *mr = registered(&w, memory, BYTES, BOTH_WAYS, 421, 0);

	ANSWERS(0, fi_mr_bind(mr, &c[0]->fid, FI_REMOTE_WRITE));
	ANSWERS(0, fi_mr_bind(mr, &c[1]->fid, FI_REMOTE_WRITE));
	/* A counter that is bound twice counts once. */
	asserts("BIND-021");
	ANSWERS(0, fi_mr_bind(mr, &c[1]->fid, FI_REMOTE_WRITE));
	served(&w, 0, 421, memory);
	counts(c[0], 2);
	counts(c[1], 2);
	ANSWERS(0, fi_mr_bind(mr, &c[2]->fid, FI_REMOTE_WRITE));
	for (uint64_t n = 1; n <= 10; n++)
		ANSWERS(0, try_write(&w, n, 421, 64 * n, 3));
	counts(c[0], 12);
	counts(c[1], 12);
	counts(c[2], 10);
	for (int n = 0; n < 3; n++)
		ANSWERS(0, fi_close(&c[n]->fid));
	ANSWERS(0, fi_close(&mr->fid));
	asserts("BIND-022");
	for (int before = 0; before < 4; before++) {
		mr = registered(&w, memory, BYTES, BOTH_WAYS, 422, 0);
		for (int n = 0; n < before; n++)
			ANSWERS(0, try_write(&w, 0, 422, 8, 1));
		c[0] = counter();
		ANSWERS(0, fi_mr_bind(mr, &c[0]->fid, FI_REMOTE_WRITE));
		for (int n = 0; n < 5; n++)
			ANSWERS(0, try_write(&w, 0, 422, 8, 1));
		counts(c[0], 5);
		ANSWERS(0, fi_close(&c[0]->fid));
		ANSWERS(0, fi_close(&mr->fid));
	}
	munmap(memory, BYTES);
}

/*
 * Writes through an endpoint without FI_RMA_EVENT are not counted; writes through another endpoint of the same domain
 * are.
 */
static void events_of_endpoints(void)
{
	char *memory = pages(BYTES, 1), name[64];
	struct fid_cntr *c = counter();
	struct fid_mr *mr = registered(&w, memory, BYTES, BOTH_WAYS, 431, 0);
	struct fi_info *info = fi_dupinfo(w.two.room.info);
	struct room room = w.two.room;
	struct side plain;

	info->caps &= ~FI_RMA_EVENT, info->rx_attr->caps &= ~FI_RMA_EVENT, info->tx_attr->caps &= ~FI_RMA_EVENT;
	room.info = info;
	open_side(&plain, &room, &without_events);
	name_of(&plain, name, sizeof(name));
	/* With `alone` the transport is loopback, so an endpoint reaches only itself. */
	struct side *first = w.a, *writer = options.alone ? &plain : first;
	fi_addr_t usual = writer->peer, other = 0;
	struct side *mate = writer->mate;
	ANSWERS(1, fi_av_insert(writer->av, name, 1, &other, 0, NULL));
	asserts("BIND-023");
	ANSWERS(0, fi_mr_bind(mr, &c->fid, FI_REMOTE_WRITE));
	for (uint64_t round = 1; round <= 3; round++) {
		w.a = writer, writer->peer = other, writer->mate = &plain;
		for (int n = 0; n < 4; n++)
			ANSWERS(0, try_write(&w, 0, 431, n % 2 ? BYTES : 8, 1));
		ANSWERS(0, try_add(&w, 0, 431, 1));
		writer->peer = usual, writer->mate = mate, w.a = first;
		ANSWERS(0, try_write(&w, 0, 431, 8, 1));
		counts(c, round);
	}
	close_side(&plain);
	fi_freeinfo(info);
	ANSWERS(0, fi_close(&c->fid));
	ANSWERS(0, fi_close(&mr->fid));
	munmap(memory, BYTES);
}

/* An endpoint in the domain of w, with a queue and a vector, not enabled. */
struct late {
	struct fid_ep *ep;
	struct fid_av *av;
	struct fid_cq *cq;
	fi_addr_t itself;
};

static void open_late(struct late *late)
{
	struct fi_av_attr av = { .type = FI_AV_TABLE };
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_NONE };

	NEEDS(fi_endpoint(w.domain, w.two.room.info, &late->ep, NULL));
	NEEDS(fi_av_open(w.domain, &av, &late->av, NULL));
	NEEDS(fi_cq_open(w.domain, &cq, &late->cq, NULL));
	NEEDS(fi_ep_bind(late->ep, &late->av->fid, 0));
	NEEDS(fi_ep_bind(late->ep, &late->cq->fid, FI_TRANSMIT | FI_RECV));
}

static void enable_late(struct late *late)
{
	char name[64];
	size_t len = sizeof(name);

	NEEDS(fi_enable(late->ep));
	NEEDS(fi_getname(&late->ep->fid, name, &len));
	ANSWERS(1, fi_av_insert(late->av, name, 1, &late->itself, 0, NULL));
}

static void close_late(struct late *late)
{
	ANSWERS(0, fi_close(&late->ep->fid));
	ANSWERS(0, fi_close(&late->cq->fid));
	ANSWERS(0, fi_close(&late->av->fid));
}

/* Returns 0, or the error of an access by the endpoint to a region through itself. */
static int try_late(struct late *late, uint64_t address, uint64_t key, bool writes)
{
	static char bytes[8];
	struct fi_cq_entry entry;
	struct fi_cq_err_entry error = { 0 };
	double until = now() + WAIT_LIMIT;
	ssize_t code;

	while ((code = writes ? fi_write(late->ep, bytes, 8, NULL, late->itself, address, key, context(1)) :
				fi_read(late->ep, bytes, 8, NULL, late->itself, address, key, context(1))) == -FI_EAGAIN) {
		MUST(now() < until, "no room for the operation");
		progress(w.a);
	}
	if (code)
		return (int)code;
	while ((code = fi_cq_read(late->cq, &entry, 1)) == -FI_EAGAIN) {
		MUST(now() < until, "no completion");
		progress(w.a);
	}
	if (code == 1)
		return 0;
	ANSWERS(1, fi_cq_readerr(late->cq, &error, 0));
	return error.err;
}

/* The end a accesses the region 441 through the endpoint. */
static void access_late(struct late *late, fi_addr_t peer, bool writes)
{
	struct side *a = w.a;
	double until = now() + WAIT_LIMIT;
	int stashed = a->stashed;
	ssize_t code;

	while ((code = writes ? fi_write(a->ep, a->out, 8, a->out_desc, peer, 0, 441, context(4)) :
				fi_read(a->ep, a->in, 8, a->in_desc, peer, 0, 441, context(4))) == -FI_EAGAIN) {
		MUST(now() < until, "no room for the operation");
		progress(a);
		fi_cq_read(late->cq, NULL, 0);
	}
	ANSWERS(0, code);
	while (a->stashed == stashed) {
		MUST(now() < until, "no completion");
		progress(a);
		fi_cq_read(late->cq, NULL, 0);
	}
	ANSWERS(0, take(a, context(4)).err);
}

/*
 * Counters that are bound to an enabled endpoint. With `alone` it exchanges messages with itself and accesses its own memory,
 * otherwise its peer is a.
 */
static void late_counters(void)
{
	char *memory = pages(BYTES, 1);
	struct fid_mr *mr = registered(&w, memory, BYTES, BOTH_WAYS, 441, 0);
	struct fid_cntr *c[KINDS], *other = counter();
	static const uint64_t kinds[KINDS] = { FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE };
	struct late late;
	char out[8] = "late", in[8], name[64];
	struct fi_cq_entry entry;
	fi_addr_t back;
	size_t len = sizeof(name);

	open_late(&late);
	enable_late(&late);
	back = late.itself;
	if (!options.alone) {
		NEEDS(fi_getname(&late.ep->fid, name, &len));
		ANSWERS(1, fi_av_insert(w.a->av, name, 1, &back, 0, NULL));
		name_of(w.a, name, sizeof(name));
		ANSWERS(1, fi_av_insert(late.av, name, 1, &late.itself, 0, NULL));
	}
	asserts("CMP-021");
	for (int kind = 0; kind < KINDS; kind++) {
		c[kind] = counter();
		ANSWERS(0, fi_ep_bind(late.ep, &c[kind]->fid, kinds[kind]));
		CHECK(fi_ep_bind(late.ep, &other->fid, kinds[kind]) < 0, "two counters for one kind");
	}
	ANSWERS(-FI_EBADFLAGS, fi_ep_bind(late.ep, &other->fid, FI_MULTICAST));
	ANSWERS(-FI_EOPBADSTATE, fi_ep_bind(late.ep, &late.cq->fid, FI_RECV));
	for (int n = 0; n < 3; n++)
		ANSWERS(0, try_late(&late, 0, 441, true));
	for (int n = 0; n < 2; n++)
		ANSWERS(0, try_late(&late, 0, 441, false));
	for (int n = 0; !options.alone && n < 5; n++)
		access_late(&late, back, n < 3);
	NEEDS(fi_recv(late.ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, context(2)));
	NEEDS(fi_send(late.ep, out, sizeof(out), NULL, late.itself, context(3)));
	if (!options.alone) {
		POSTED(w.a, fi_recv(w.a->ep, w.a->in, 8, w.a->in_desc, FI_ADDR_UNSPEC, context(5)));
		POSTED(w.a, fi_send(w.a->ep, w.a->out, 8, w.a->out_desc, back, context(6)));
	}
	double until = now() + WAIT_LIMIT;
	for (int done = 0; done < 2;) {
		done += fi_cq_read(late.cq, &entry, 1) == 1;
		progress(w.a);
		MUST(now() < until, "no completion");
	}
	if (!options.alone) {
		ANSWERS(0, take(w.a, context(5)).err);
		ANSWERS(0, take(w.a, context(6)).err);
	}
	static const uint64_t wanted[KINDS] = { 1, 1, 2, 3, 2, 3 };
	for (int kind = 0; kind < KINDS; kind++) {
		ANSWERS(0, fi_cntr_wait(c[kind], wanted[kind], WAIT_LIMIT * 1000));
		ANSWERS(wanted[kind], fi_cntr_read(c[kind]));
		ANSWERS(-FI_EBUSY, fi_close(&c[kind]->fid));
	}
	close_late(&late);
	for (int kind = 0; kind < KINDS; kind++)
		ANSWERS(0, fi_close(&c[kind]->fid));
	ANSWERS(0, fi_close(&other->fid));
	ANSWERS(0, fi_close(&mr->fid));
	munmap(memory, BYTES);
}

/* A region that is enabled before its endpoint can be accessed once the endpoint is enabled (FI_MR_ENDPOINT). */
static void enabled_first(void)
{
	char *memory = pages(BYTES, 1);
	struct fid_mr *mr, *closed;
	struct late late;

	open_late(&late);
	mr = registered(&w, memory, BYTES, BOTH_WAYS, 451, 0);
	closed = registered(&w, memory, BYTES, BOTH_WAYS, 452, 0);
	for (int n = 0; n < 2; n++) {
		struct fid_mr *one = n ? closed : mr;
		ANSWERS(-FI_EOPBADSTATE, fi_mr_enable(one));
		ANSWERS(0, fi_mr_bind(one, &late.ep->fid, 0));
		ANSWERS(0, fi_mr_enable(one));
		ANSWERS(-FI_EOPBADSTATE, fi_mr_bind(one, &late.ep->fid, 0));
	}
	asserts("BIND-024");
	ANSWERS(0, fi_mr_refresh(mr, NULL, 0, 0));
	refused(&w, 0, 451, memory, 1);
	enable_late(&late);
	ANSWERS(0, try_late(&late, 0, 451, true));
	ANSWERS(0, try_late(&late, 0, 452, false));
	/* It cannot be accessed through another endpoint. */
	CHECK(try_read(&w, 0, 451, 8) != 0 && try_write(&w, 0, 451, 8, 1) != 0, "through another endpoint");
	close_late(&late);
	ANSWERS(0, fi_close(&mr->fid));
	ANSWERS(0, fi_close(&closed->fid));
	/* The endpoint of a region is closed before it is enabled. */
	open_late(&late);
	mr = registered(&w, memory, BYTES, BOTH_WAYS, 453, 0);
	ANSWERS(0, fi_mr_bind(mr, &late.ep->fid, 0));
	ANSWERS(0, fi_mr_enable(mr));
	close_late(&late);
	ANSWERS(0, fi_close(&mr->fid));
	munmap(memory, BYTES);
}

/* In a domain with raw keys the attributes state their length. */
static void raw_key_size(void)
{
	char *memory = pages(BYTES, 1);
	struct fid_mr *mr = registered(&w, memory, BYTES, BOTH_WAYS, 461, 0);
	size_t said = w.two.room.info->domain_attr->mr_key_size, room = said;
	uint8_t raw[64];
	uint64_t base;

	MUST(said <= sizeof(raw), "%zu bytes", said);
	ANSWERS(0, fi_mr_raw_attr(mr, &base, raw, &room, 0));
	asserts("KEY-021");
	CHECK(room == said && said > 8, "%zu bytes of %zu", room, said);
	ANSWERS(0, fi_close(&mr->fid));
	munmap(memory, BYTES);
}

/* The largest threshold works like any other. */
static void largest_threshold(void)
{
	struct fid_cntr *trigger = counter(), *count = counter();
	struct fi_op_cntr add = { count, 1 };

	asserts("DWQ-024");
	for (uint64_t at = UINT64_MAX - 2;; at++) {
		struct fi_deferred_work work = { .op_type = FI_OP_CNTR_ADD, .op.cntr = &add, .triggering_cntr = trigger, .threshold = at };

		fi_cntr_set(trigger, 0);
		fi_cntr_set(count, 0);
		NEEDS(fi_control(&w.domain->fid, FI_QUEUE_WORK, &work));
		fi_cntr_set(trigger, at - 1);
		ANSWERS(0, fi_cntr_read(count));
		fi_cntr_add(trigger, 1);
		counts(count, 1);
		if (at == UINT64_MAX)
			break;
	}
	/* Errors also count, and the sum does not wrap around. */
	struct fi_deferred_work work = { .op_type = FI_OP_CNTR_ADD, .op.cntr = &add, .triggering_cntr = trigger, .threshold = UINT64_MAX };
	fi_cntr_set(trigger, UINT64_MAX - 1);
	NEEDS(fi_control(&w.domain->fid, FI_QUEUE_WORK, &work));
	ANSWERS(1, fi_cntr_read(count));
	fi_cntr_adderr(trigger, 7);
	counts(count, 2);
	fi_cntr_seterr(trigger, 0);
	/* A triggered operation. */
	struct side *a = w.a, *b = w.b;
	struct fi_triggered_context2 triggered_by = { .event_type = FI_TRIGGER_THRESHOLD, .trigger.threshold = { trigger, SIZE_MAX } };
	struct iovec iov = { a->out, 8 };
	struct fi_msg message = { .msg_iov = &iov, .desc = &a->out_desc, .iov_count = 1, .addr = a->peer, .context = &triggered_by };
	fi_cntr_set(trigger, 0);
	POSTED(b, fi_recv(b->ep, b->in, 8, b->in_desc, FI_ADDR_UNSPEC, context(5)));
	NEEDS(fi_sendmsg(a->ep, &message, FI_TRIGGER | FI_COMPLETION));
	asserts("TRIG-020");
	fi_cntr_set(trigger, UINT64_MAX);
	ANSWERS(0, take(a, &triggered_by).err);
	ANSWERS(0, take(b, context(5)).err);
	ANSWERS(0, fi_close(&trigger->fid));
	ANSWERS(0, fi_close(&count->fid));
}

/* The numbers of local and remote elements must be equal; a missing list of pieces. */
static void unequal_lengths(void)
{
	char *memory = pages(BYTES, 1);
	struct fid_mr *mr = registered(&w, memory, BYTES, BOTH_WAYS, 471, 0);
	struct fid_cntr *trigger = counter();
	struct side *a = w.a;
	uint64_t operands[2] = { 1, 1 }, results[2];
	ssize_t code;

	asserts("ATM-007");
	for (int k = 0; k < 2; k++) {
		struct fi_ioc local = { operands, k ? 2 : 1 }, result = { results, k ? 2 : 1 };
		struct fi_rma_ioc remote = { 0, k ? 1 : 2, 471 };
		struct fi_msg_atomic message = { .msg_iov = &local, .iov_count = 1, .addr = a->peer, .rma_iov = &remote, .rma_iov_count = 1,
						 .datatype = FI_UINT64, .op = FI_SUM, .context = context(1) };

		ANSWERS(-FI_EINVAL, fi_atomicmsg(a->ep, &message, FI_COMPLETION));
		ANSWERS(-FI_EINVAL, fi_fetch_atomicmsg(a->ep, &message, &result, NULL, 1, FI_COMPLETION));
		message.op = FI_ATOMIC_READ;
		ANSWERS(-FI_EINVAL, fi_fetch_atomicmsg(a->ep, &message, &result, NULL, 1, FI_COMPLETION));
		message.op = FI_CSWAP;
		ANSWERS(-FI_EINVAL, fi_compare_atomicmsg(a->ep, &message, &local, NULL, 1, &result, NULL, 1, FI_COMPLETION));
		struct fi_op_atomic op = { a->ep, message, 0 };
		struct fi_deferred_work work = { .op_type = FI_OP_ATOMIC, .op.atomic = &op, .triggering_cntr = trigger, .threshold = 1 };
		op.msg.op = FI_SUM;
		ANSWERS(-FI_EINVAL, fi_control(&w.domain->fid, FI_QUEUE_WORK, &work));
	}
	CHECK(is_filled(memory, BYTES, 1), "something was done");
	struct fi_rma_iov there = { 0, 8, 471 };
	struct fi_rma_ioc elements = { 0, 1, 471 };
	struct fi_op_msg msg = { a->ep, { .iov_count = 1, .addr = a->peer }, 0 };
	struct fi_op_tagged tagged = { a->ep, { .iov_count = 1, .addr = a->peer }, 0 };
	struct fi_op_rma rma = { a->ep, { .iov_count = 1, .addr = a->peer, .rma_iov = &there, .rma_iov_count = 1 }, 0 };
	struct fi_op_atomic atomic = { a->ep, { .iov_count = 1, .addr = a->peer, .rma_iov = &elements, .rma_iov_count = 1, .datatype = FI_UINT64, .op = FI_SUM }, 0 };
	struct fi_op_fetch_atomic fetch = { a->ep, atomic.msg, { .iov_count = 1 }, 0 };
	struct fi_deferred_work works[] = {
		{ .op_type = FI_OP_SEND, .op.msg = &msg }, { .op_type = FI_OP_RECV, .op.msg = &msg },
		{ .op_type = FI_OP_TSEND, .op.tagged = &tagged }, { .op_type = FI_OP_TRECV, .op.tagged = &tagged },
		{ .op_type = FI_OP_WRITE, .op.rma = &rma }, { .op_type = FI_OP_READ, .op.rma = &rma },
		{ .op_type = FI_OP_ATOMIC, .op.atomic = &atomic }, { .op_type = FI_OP_FETCH_ATOMIC, .op.fetch_atomic = &fetch },
	};
	asserts("DWQ-027");
	for (size_t n = 0; n < COUNT(works); n++) {
		works[n].triggering_cntr = trigger, works[n].threshold = 1;
		code = fi_control(&w.domain->fid, FI_QUEUE_WORK, &works[n]);
		CHECK(code == -FI_EINVAL, "work %zu without its pieces: %zd", n, code);
	}
	struct iovec here = { operands, 8 };
	rma.msg.msg_iov = &here, rma.msg.rma_iov = NULL;
	ANSWERS(-FI_EINVAL, fi_control(&w.domain->fid, FI_QUEUE_WORK, &works[4]));
	fi_cntr_add(trigger, 1);
	ANSWERS(0, fi_close(&trigger->fid));
	ANSWERS(0, fi_close(&mr->fid));
	munmap(memory, BYTES);
}

/* Injected deferred work is copied when it is queued; deferred work that fails. */
static void injected_and_failing(void)
{
	char *memory = pages(BYTES, 1);
	struct fid_mr *mr = registered(&w, memory, BYTES, BOTH_WAYS, 491, 0);
	struct fid_cntr *trigger = counter(), *count = counter();
	struct side *a = w.a;
	size_t limit = w.two.room.info->tx_attr->inject_size;
	struct iovec here = { a->out, 64 };
	struct fi_rma_iov there = { 0, 64, 491 };
	struct fi_op_rma rma = { a->ep, { .msg_iov = &here, .iov_count = 1, .addr = a->peer, .rma_iov = &there, .rma_iov_count = 1,
					  .context = context(1) }, FI_INJECT };
	struct fi_deferred_work work = { .op_type = FI_OP_WRITE, .op.rma = &rma, .triggering_cntr = trigger, .completion_cntr = count, .threshold = 1 };

	asserts("DWQ-025");
	fill(a->out, 64, 7);
	NEEDS(fi_control(&w.domain->fid, FI_QUEUE_WORK, &work));
	fill(a->out, 64, 8);
	fi_cntr_add(trigger, 1);
	counts(count, 1);
	CHECK(is_filled(memory, 64, 7), "not the bytes at the time of queueing");
	here.iov_len = there.len = limit + 1;
	ANSWERS(-FI_EMSGSIZE, fi_control(&w.domain->fid, FI_QUEUE_WORK, &work));
	here.iov_len = there.len = 64;
	/* No region has this key. */
	asserts("DWQ-026");
	for (int flag = 0; flag < 2; flag++) {
		rma.flags = flag ? FI_COMPLETION : 0, there.key = 492, work.threshold = 1, rma.msg.context = context(2 + flag);
		NEEDS(fi_control(&w.domain->fid, FI_QUEUE_WORK, &work));
		CHECK(take(a, context(2 + flag)).err != 0, "the work should have failed");
		ANSWERS(1 + flag, fi_cntr_readerr(count));
		ANSWERS(1, fi_cntr_read(count));
	}
	ANSWERS(0, fi_close(&trigger->fid));
	ANSWERS(0, fi_close(&count->fid));
	ANSWERS(0, fi_close(&mr->fid));
	munmap(memory, BYTES);
}

/* The key of a closed region is used for other memory with other rights, and the old ones are no longer valid. */
static void registered_anew(void)
{
	char *memory[2] = { pages(BYTES, 1), pages(BYTES, 2) };
	struct fid_mr *mr = registered(&w, memory[0], BYTES, BOTH_WAYS, 495, 0);

	asserts("MR-082");
	for (int round = 0; round < 4; round++) {
		ANSWERS(0, try_write(&w, 0, 495, BYTES, 1));
		ANSWERS(0, fi_close(&mr->fid));
		mr = registered(&w, memory[1], 64, FI_REMOTE_READ, 495, 0);
		ANSWERS(0, try_read(&w, 0, 495, 64));
		CHECK(is_filled(w.a->in, 64, 2), "the old memory");
		CHECK(try_write(&w, 0, 495, 8, 3) != 0 && try_add(&w, 0, 495, 1) != 0, "the old rights");
		CHECK(try_read(&w, 0, 495, 65) != 0, "the old length");
		CHECK(is_filled(memory[0], BYTES, 1) && is_filled(memory[1], BYTES, 2), "something was written");
		ANSWERS(0, fi_close(&mr->fid));
		mr = registered(&w, memory[0], BYTES, BOTH_WAYS, 495, 0);
	}
	ANSWERS(0, fi_close(&mr->fid));
	munmap(memory[0], BYTES);
	munmap(memory[1], BYTES);
}

/*
 * An endpoint with bound windows of type 2A cannot be closed. Only an operation to its own peer invalidates a window.
 */
static void windows_of_endpoints(void)
{
	char *memory = pages(BYTES, 1), name[64];
	struct fid_mr *mr = registered(&w, memory, BYTES, 0, 481, 0);
	struct percale_window_ops *ops;
	struct percale_window *window;
	struct percale_window_range range = { mr, 0, 64, PERCALE_WINDOW_READ };
	struct percale_window_info info;
	struct side other;
	struct side *b = w.b;
	fi_addr_t stranger;
	uint64_t key, address;

	NEEDS(fi_open_ops(&w.domain->fid, PERCALE_WINDOW_OPS, 0, (void **)&ops, NULL));
	NEEDS(ops->open(w.domain, ops->type_two(w.domain), &window));
	open_side(&other, &w.two.room, b->how);
	name_of(&other, name, sizeof(name));
	ANSWERS(1, fi_av_insert(b->av, name, 1, &stranger, 0, NULL));
	ANSWERS(0, ops->post_bind(b->ep, b->peer, window, &range, 1, &key, &address, context(1), FI_COMPLETION));
	ANSWERS(0, take(b, context(1)).err);
	ANSWERS(0, try_read(&w, address, key, 64));
	/* An operation to another peer does not invalidate the window. */
	other.mate = b;
	asserts("MW-052");
	ANSWERS(0, ops->post_invalidate(b->ep, stranger, key, context(2), FI_COMPLETION));
	CHECK(take(b, context(2)).err != 0, "invalidated for another peer");
	ANSWERS(0, ops->query(window, &info));
	CHECK(info.state == PERCALE_WINDOW_BOUND && info.key == key, "state %d", info.state);
	ANSWERS(0, try_read(&w, address, key, 64));
	if (ops->type_two(w.domain) == PERCALE_WINDOW_2A) {
		asserts("MW-039");
		ANSWERS(-FI_EBUSY, fi_close(&b->ep->fid));
		ANSWERS(0, ops->query(window, &info));
		CHECK(info.state == PERCALE_WINDOW_BOUND, "state %d", info.state);
		ANSWERS(0, try_read(&w, address, key, 64));
	}
	ANSWERS(0, ops->post_invalidate(b->ep, b->peer, key, context(3), FI_COMPLETION));
	ANSWERS(0, take(b, context(3)).err);
	CHECK(try_read(&w, address, key, 64) != 0, "an invalidated key is still valid");
	ANSWERS(0, ops->close(window));
	close_side(&other);
	ANSWERS(0, fi_close(&mr->fid));
	munmap(memory, BYTES);
}

static void group(const char *name, void (*checks)(void), int taken, const struct settings *how)
{
	begin(name);
	open_world(&w, taken, how);
	checks();
	close_world(&w);
	end();
}

void specification_groups(void)
{
	group("specification: every key", every_key, 0, NULL);
	group("specification: empty regions", empty, 0, NULL);
	group("specification: empty regions, virtual addresses", empty, FI_MR_VIRT_ADDR, NULL);
	group("specification: malformed registrations", malformed, 0, NULL);
	group("specification: several counters", several_counters, 0, NULL);
	group("specification: endpoints without FI_RMA_EVENT", events_of_endpoints, 0, NULL);
	group("specification: late counters", late_counters, 0, NULL);
	group("specification: enabled before its endpoint", enabled_first, FI_MR_ENDPOINT, NULL);
	group("specification: length of raw keys", raw_key_size, FI_MR_RAW, NULL);
	group("specification: the largest threshold", largest_threshold, 0, &triggered);
	group("specification: unequal lengths", unequal_lengths, 0, &triggered);
	group("specification: injected and failing deferred work", injected_and_failing, 0, &triggered);
	group("specification: registered again", registered_anew, 0, NULL);
	group("specification: windows of endpoints", windows_of_endpoints, 0, NULL);
	setenv("FI_PERCALE_WINDOWS", "2A", 1);
	group("specification: windows of type 2A", windows_of_endpoints, 0, NULL);
	unsetenv("FI_PERCALE_WINDOWS");
}
