/* Triggered operations and deferred work (fi_trigger(3)). */
#include "every.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

/* libfabric 2 does not define this name. */
#ifndef FI_XPU_TRIGGER
#define FI_XPU_TRIGGER (1ULL << 44)
#endif

static const struct settings how = { .name = "triggers", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE,
				     .progress = FI_PROGRESS_MANUAL, .caps = FI_TRIGGER, .counters = true };
/* The client calls from one thread. The endpoints have no lock until an operation is triggered. */
static const struct settings alone = { .name = "triggers, one thread", .av_type = FI_AV_TABLE, .threading = FI_THREAD_DOMAIN,
				       .progress = FI_PROGRESS_MANUAL, .caps = FI_TRIGGER, .counters = true };
static const struct settings with_devices = { .name = "triggers of devices", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE,
					      .progress = FI_PROGRESS_MANUAL, .caps = FI_TRIGGER | FI_XPU_TRIGGER,
					      .api = FI_VERSION(1, 17), .counters = true };

/* Memory that peers access with a key. */
struct target {
	struct fid_mr *mr;
	char *memory;
	uint64_t key;
};

static void open_target(struct two *t, struct target *target)
{
	memset(target, 0, sizeof(*target));
	target->memory = calloc(1, 4096);
	MUST(target->memory, "out of memory");
	NEEDS(fi_mr_reg(t->room.domain, target->memory, 4096, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 800, 0, &target->mr, NULL));
	target->key = fi_mr_key(target->mr);
}

static void close_target(struct target *target)
{
	ANSWERS(0, fi_close(&target->mr->fid));
	free(target->memory);
}

static struct fid_cntr *counter_of(struct two *t)
{
	struct fid_cntr *counter;

	NEEDS(fi_cntr_open(t->room.domain, NULL, &counter, NULL));
	return counter;
}

static struct fi_triggered_context when(struct fid_cntr *counter, size_t threshold)
{
	return (struct fi_triggered_context){ .event_type = FI_TRIGGER_THRESHOLD, .trigger.threshold = { counter, threshold } };
}

static void turn(struct two *t, int times)
{
	while (times-- > 0)
		progress(&t->a), progress(&t->b);
}

static ssize_t send_when(struct two *t, const void *buf, size_t len, struct fi_triggered_context *context)
{
	struct iovec iov = { (void *)buf, len };
	struct fi_msg msg = { .msg_iov = &iov, .iov_count = 1, .addr = t->a.peer, .context = context };

	return fi_sendmsg(t->a.ep, &msg, FI_TRIGGER);
}

/*
 * Messages: none is sent below the threshold, then they are sent in the order of thresholds, with the contents of the
 * buffers at that time.
 */
static void messages(struct two *t)
{
	struct fid_cntr *counter = counter_of(t);
	struct fi_triggered_context contexts[4];
	static const size_t thresholds[4] = { 3, 1, 3, 2 };
	static const char order[4] = { 1, 3, 0, 2 };
	uint64_t before = fi_cntr_read(t->a.counters[SENT]);

	for (int n = 0; n < 4; n++)
		POSTED(&t->b, fi_recv(t->b.ep, t->b.in + 8 * n, 8, NULL, FI_ADDR_UNSPEC, context(n)));
	for (int n = 0; n < 4; n++) {
		contexts[n] = when(counter, thresholds[n]);
		t->a.out[8 * n] = 99;
		ANSWERS(0, send_when(t, t->a.out + 8 * n, 8, &contexts[n]));
	}
	turn(t, 50);
	asserts("TRIG-006");
	CHECK(fi_cntr_read(t->a.counters[SENT]) == before, "a send has begun");
	for (int n = 0; n < 4; n++)
		t->a.out[8 * n] = (char)n;
	/* Thresholds 1 and 2, and twice 3. */
	asserts("TRIG-009 TRIG-010 TRIG-011 TRIG-017");
	ANSWERS(0, fi_cntr_add(counter, 3));
	for (int n = 0; n < 4; n++) {
		CHECK(take(&t->b, context(n)).len == 8, "receive %d", n);
		CHECK(t->b.in[8 * n] == order[n], "message %d is the one of %d", n, t->b.in[8 * n]);
		CHECK(take(&t->a, &contexts[n]).err == 0, "send %d", n);
	}
	CHECK(fi_cntr_read(t->a.counters[SENT]) == before + 4, "not all sends are counted");
	/* A threshold that is already reached. */
	asserts("TRIG-008 TRIG-012");
	POSTED(&t->b, fi_recv(t->b.ep, t->b.in, 8, NULL, FI_ADDR_UNSPEC, context(0)));
	for (size_t threshold = 0; threshold <= 3; threshold += 3) {
		contexts[0] = when(counter, threshold);
		t->a.out[0] = (char)(50 + threshold);
		ANSWERS(0, send_when(t, t->a.out, 8, &contexts[0]));
		CHECK(take(&t->a, &contexts[0]).err == 0, "a send with threshold %zu", threshold);
		CHECK(take(&t->b, context(0)).len == 8 && t->b.in[0] == (char)(50 + threshold), "another message");
		if (threshold == 0)
			POSTED(&t->b, fi_recv(t->b.ep, t->b.in, 8, NULL, FI_ADDR_UNSPEC, context(0)));
	}
	ANSWERS(0, fi_close(&counter->fid));
}

/*
 * A message is forwarded without a call in between: the receive at b counts, and its counter starts a send of the same buffer
 * back to a.
 */
static void forwarded(struct two *t)
{
	struct fid_cntr *received = t->b.counters[RECEIVED];
	struct fi_triggered_context back = when(received, fi_cntr_read(received) + 1);
	struct iovec iov = { t->b.in, 300 };
	struct fi_msg msg = { .msg_iov = &iov, .iov_count = 1, .addr = t->b.peer, .context = &back };

	asserts("TRIG-007 TRIG-013");
	memset(t->b.in, 0, 300);
	POSTED(&t->b, fi_recv(t->b.ep, t->b.in, 300, NULL, FI_ADDR_UNSPEC, context(1)));
	ANSWERS(0, fi_sendmsg(t->b.ep, &msg, FI_TRIGGER));
	POSTED(&t->a, fi_recv(t->a.ep, t->a.in, 300, NULL, FI_ADDR_UNSPEC, context(2)));
	fill(t->a.out, 300, 8);
	POSTED(&t->a, fi_send(t->a.ep, t->a.out, 300, NULL, t->a.peer, context(3)));
	CHECK(take(&t->a, context(2)).len == 300 && is_filled(t->a.in, 300, 8), "another message");
	CHECK(take(&t->a, context(3)).err == 0 && take(&t->b, &back).err == 0 && take(&t->b, context(1)).len == 300, "the operations");
}

/* Endpoints and counters can be closed while operations wait for a counter. */
static void closed_early(struct two *t)
{
	struct fi_triggered_context *contexts = calloc(4, sizeof(*contexts));
	struct fid_cntr *counters[2] = { counter_of(t), counter_of(t) };

	MUST(contexts, "out of memory");
	asserts("TRIG-019");
	for (int n = 0; n < 4; n++) {
		contexts[n] = when(counters[n % 2], 1);
		ANSWERS(0, send_when(t, t->a.out, 8, &contexts[n]));
	}
	/* Either the counter stays open, or nothing starts the operations any more and they are cancelled. */
	int code = fi_close(&counters[0]->fid);
	CHECK(code == 0 || code == -FI_EBUSY, "%d", code);
	for (int n = 0; n < 4 && code == 0; n += 2)
		CHECK(take(&t->a, &contexts[n]).err == FI_ECANCELED, "not cancelled");
	close_side(&t->a);
	t->b.mate = NULL;
	ANSWERS(0, fi_cntr_add(counters[1], 1));
	for (int n = 0; n < 50; n++)
		progress(&t->b);
	free(contexts);
	if (code)
		ANSWERS(0, fi_close(&counters[0]->fid));
	ANSWERS(0, fi_close(&counters[1]->fid));
	close_side(&t->b);
	close_room(&t->room);
}

/* Calls that cannot be triggered are rejected, and are not executed at once. */
static void not_triggered(struct two *t)
{
	struct fid_cntr *counter = counter_of(t);
	struct fi_triggered_context wish = when(counter, 1);
	struct iovec into = { t->b.in, 4096 };
	struct fi_msg many = { .msg_iov = &into, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &wish };
	struct fi_msg_tagged look = { .iov_count = 0, .addr = FI_ADDR_UNSPEC, .tag = 1, .context = &wish };

	asserts("TRIG-004");
	CHECK(fi_recvmsg(t->b.ep, &many, FI_TRIGGER | FI_MULTI_RECV) < 0, "a triggered multi-receive");
	CHECK(fi_trecvmsg(t->b.ep, &look, FI_TRIGGER | FI_PEEK) < 0, "a triggered peek");
	CHECK(fi_trecvmsg(t->b.ep, &look, FI_TRIGGER | FI_PEEK | FI_CLAIM) < 0, "a triggered claim");
	ANSWERS(0, fi_cntr_add(counter, 1));
	turn(t, 50);
	quiet(&t->pair);
	ANSWERS(0, fi_close(&counter->fid));
}

/*
 * Tagged messages, receives, reads, writes and atomic operations with their msg calls, and an alias that triggers all of its
 * operations.
 */
static void kinds(struct two *t)
{
	struct fid_cntr *counter = counter_of(t);
	struct fi_triggered_context c[6];
	struct fid_ep *alias = NULL;
	struct target target;
	uint64_t one = 1;

	open_target(t, &target);
	for (size_t n = 0; n < COUNT(c); n++)
		c[n] = when(counter, 1);
	struct iovec from = { t->a.out, 16 }, into = { t->b.in, 16 }, fetched = { t->a.in, 16 };
	struct fi_msg_tagged receive = { .msg_iov = &into, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 5, .context = &c[0] };
	struct fi_msg_tagged send = { .msg_iov = &from, .iov_count = 1, .addr = t->a.peer, .tag = 5, .data = 77, .context = &c[1] };
	struct fi_rma_iov remote = { .addr = 0, .len = 16, .key = target.key };
	struct fi_msg_rma write = { .msg_iov = &from, .iov_count = 1, .addr = t->a.peer, .rma_iov = &remote, .rma_iov_count = 1, .context = &c[2] };
	struct fi_rma_iov other = { .addr = 1024, .len = 16, .key = target.key };
	struct fi_msg_rma read = { .msg_iov = &fetched, .iov_count = 1, .addr = t->a.peer, .rma_iov = &other, .rma_iov_count = 1, .context = &c[3] };
	struct fi_ioc operand = { &one, 1 };
	struct fi_rma_ioc word = { .addr = 512, .count = 1, .key = target.key };
	struct fi_msg_atomic add = { .msg_iov = &operand, .iov_count = 1, .addr = t->a.peer, .rma_iov = &word, .rma_iov_count = 1,
		.datatype = FI_UINT64, .op = FI_SUM, .context = &c[4] };

	fill(t->a.out, 16, 3);
	fill(target.memory + 1024, 16, 4);
	asserts("TRIG-002 TRIG-005");
	ANSWERS(0, fi_trecvmsg(t->b.ep, &receive, FI_TRIGGER));
	ANSWERS(0, fi_tsendmsg(t->a.ep, &send, FI_TRIGGER | FI_REMOTE_CQ_DATA));
	ANSWERS(0, fi_writemsg(t->a.ep, &write, FI_TRIGGER));
	ANSWERS(0, fi_readmsg(t->a.ep, &read, FI_TRIGGER));
	ANSWERS(0, fi_atomicmsg(t->a.ep, &add, FI_TRIGGER));
	ANSWERS(0, fi_ep_alias(t->a.ep, &alias, FI_TRANSMIT | FI_TRIGGER));
	if (alias)
		ANSWERS(0, fi_write(alias, t->a.out, 16, NULL, t->a.peer, 2048, target.key, &c[5]));
	turn(t, 50);
	CHECK(!target.memory[0] && !target.memory[512] && !target.memory[2048], "something has begun");
	ANSWERS(0, fi_cntr_add(counter, 1));
	asserts("TRIG-014");
	struct done done = take(&t->b, &c[0]);
	CHECK(done.tag == 5 && done.data == 77 && done.len == 16, "tag %llu, data %llu", (unsigned long long)done.tag, (unsigned long long)done.data);
	for (int n = 1; n < 6; n++)
		CHECK(take(&t->a, &c[n]).err == 0, "operation %d", n);
	CHECK(is_filled(t->b.in, 16, 3) && is_filled(target.memory, 16, 3) && is_filled(t->a.in, 16, 4), "data");
	CHECK(target.memory[512] == 1 && is_filled(target.memory + 2048, 16, 3), "data");
	if (alias)
		ANSWERS(0, fi_close(&alias->fid));
	close_target(&target);
	ANSWERS(0, fi_close(&counter->fid));
}

/* A cancelled operation never begins. Invalid triggers are rejected, and nothing waits. */
static void canceled(struct two *t)
{
	struct fid_cntr *counter = counter_of(t);
	struct fi_triggered_context first = when(counter, 1), second = when(counter, 1), odd = when(counter, 1);

	ANSWERS(0, send_when(t, "first---", 8, &first));
	ANSWERS(0, send_when(t, "second--", 8, &second));
	asserts("TRIG-016");
	ANSWERS(0, fi_cancel(&t->a.ep->fid, &first));
	CHECK(take(&t->a, &first).err == FI_ECANCELED, "the operation is not reported as cancelled");
	asserts("TRIG-018");
	odd.event_type = 77;
	ANSWERS(-FI_EINVAL, send_when(t, "wrong---", 8, &odd));
	odd = when(NULL, 1);
	ANSWERS(-FI_EINVAL, send_when(t, "wrong---", 8, &odd));
	ANSWERS(-FI_EINVAL, send_when(t, "wrong---", 8, NULL));
	odd.event_type = FI_TRIGGER_XPU;
	ANSWERS(-FI_ENOSYS, send_when(t, "wrong---", 8, &odd));
	POSTED(&t->b, fi_recv(t->b.ep, t->b.in, 8, NULL, FI_ADDR_UNSPEC, context(0)));
	asserts("TRIG-012");
	ANSWERS(0, fi_cntr_set(counter, 1));
	CHECK(take(&t->b, context(0)).len == 8 && !memcmp(t->b.in, "second--", 8), "%.8s", t->b.in);
	CHECK(take(&t->a, &second).err == 0, "the second send failed");
	ANSWERS(0, fi_close(&counter->fid));
}

/*
 * The memory of a context belongs to the provider until the operation has completed or is cancelled. After that it
 * belongs to the client and the provider does not access it again, even if its counter changes (valgrind checks this).
 */
static void given_back(struct two *t)
{
	struct fid_cntr *counter = counter_of(t);
	struct fi_triggered_context *contexts[3];
	static const char *const texts[3] = { "first---", "second--", "third---" };

	for (int n = 0; n < 3; n++) {
		contexts[n] = malloc(sizeof(*contexts[n]));
		MUST(contexts[n], "out of memory");
		*contexts[n] = when(counter, (size_t)n + 1);
		ANSWERS(0, send_when(t, texts[n], 8, contexts[n]));
		POSTED(&t->b, fi_recv(t->b.ep, t->b.in + 8 * n, 8, NULL, FI_ADDR_UNSPEC, context(n)));
	}
	asserts("TRIG-015 TRIG-016");
	ANSWERS(0, fi_cancel(&t->a.ep->fid, contexts[1]));
	CHECK(take(&t->a, contexts[1]).err == FI_ECANCELED, "the second send is not reported as cancelled");
	memset(contexts[1], 0xff, sizeof(*contexts[1])), free(contexts[1]);
	ANSWERS(0, fi_cntr_add(counter, 1));
	CHECK(take(&t->a, contexts[0]).err == 0, "the first send failed");
	memset(contexts[0], 0xff, sizeof(*contexts[0])), free(contexts[0]);
	ANSWERS(0, fi_cntr_add(counter, 1));
	turn(t, 50);
	ANSWERS(0, fi_cntr_add(counter, 1));
	CHECK(take(&t->a, contexts[2]).err == 0, "the third send failed");
	free(contexts[2]);
	CHECK(take(&t->b, context(0)).len == 8 && !memcmp(t->b.in, texts[0], 8), "%.8s", t->b.in);
	CHECK(take(&t->b, context(1)).len == 8 && !memcmp(t->b.in + 8, texts[2], 8), "%.8s", t->b.in + 8);
	POSTED(&t->a, fi_send(t->a.ep, t->a.out, 8, NULL, t->a.peer, context(3)));
	CHECK(take(&t->b, context(2)).len == 8 && take(&t->a, context(3)).err == 0, "the last receive");
	ANSWERS(0, fi_close(&counter->fid));
}

static int queue(struct two *t, struct fi_deferred_work *work, enum fi_op_type type, void *op, struct fid_cntr *trigger, size_t threshold, struct fid_cntr *done)
{
	memset(work, 0, sizeof(*work));
	work->op_type = type, work->op.msg = op;
	work->triggering_cntr = trigger, work->threshold = threshold, work->completion_cntr = done;
	return fi_control(&t->room.domain->fid, FI_QUEUE_WORK, work);
}

/* All kinds of work. Only the completion counter changes, and the queue has no completions unless they were requested. */
static void work(struct two *t)
{
	struct fid_cntr *trigger = counter_of(t), *done = counter_of(t), *other = counter_of(t);
	struct fi_deferred_work works[12];
	struct target target;
	uint64_t sent = fi_cntr_read(t->a.counters[SENT]);
	uint64_t five = 5, expected = 0, old[2] = { 9, 9 };

	open_target(t, &target);
	struct iovec from = { t->a.out, 16 }, into = { t->b.in, 16 }, tinto = { t->b.in + 64, 16 }, fetched = { t->a.in, 16 };
	struct fi_op_msg send = { t->a.ep, { .msg_iov = &from, .iov_count = 1, .addr = t->a.peer, .context = context(1) }, FI_COMPLETION };
	struct fi_op_msg receive = { t->b.ep, { .msg_iov = &into, .iov_count = 1, .addr = FI_ADDR_UNSPEC }, 0 };
	struct fi_op_tagged tsend = { t->a.ep, { .msg_iov = &from, .iov_count = 1, .addr = t->a.peer, .tag = 8 }, 0 };
	struct fi_op_tagged treceive = { t->b.ep, { .msg_iov = &tinto, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 8 }, 0 };
	struct fi_rma_iov here = { 0, 16, target.key }, there = { 1024, 16, target.key };
	struct fi_op_rma write = { t->a.ep, { .msg_iov = &from, .iov_count = 1, .addr = t->a.peer, .rma_iov = &here, .rma_iov_count = 1 }, 0 };
	struct fi_op_rma read = { t->a.ep, { .msg_iov = &fetched, .iov_count = 1, .addr = t->a.peer, .rma_iov = &there, .rma_iov_count = 1 }, 0 };
	struct fi_ioc operand = { &five, 1 }, compare = { &expected, 1 }, results[2] = { { &old[0], 1 }, { &old[1], 1 } };
	struct fi_rma_ioc words[3] = { { 512, 1, target.key }, { 520, 1, target.key }, { 528, 1, target.key } };
	struct fi_msg_atomic atomic = { .msg_iov = &operand, .iov_count = 1, .addr = t->a.peer, .rma_iov = &words[0], .rma_iov_count = 1, .datatype = FI_UINT64, .op = FI_SUM };
	struct fi_op_atomic add = { t->a.ep, atomic, 0 };
	struct fi_op_fetch_atomic fetch = { t->a.ep, atomic, { .msg_iov = &results[0], .iov_count = 1 }, 0 };
	struct fi_op_compare_atomic swap = { t->a.ep, atomic, { .msg_iov = &results[1], .iov_count = 1 }, { .msg_iov = &compare, .iov_count = 1 }, 0 };
	struct fi_op_cntr set = { other, 40 }, more = { other, 2 };

	fetch.msg.rma_iov = &words[1];
	swap.msg.rma_iov = &words[2], swap.msg.op = FI_CSWAP;
	fill(target.memory + 1024, 16, 6);
	/* Work of every kind, of both endpoints, with one trigger. */
	asserts("DWQ-001 DWQ-004 DWQ-023");
	ANSWERS(0, queue(t, &works[0], FI_OP_SEND, &send, trigger, 2, done));
	ANSWERS(0, queue(t, &works[1], FI_OP_RECV, &receive, trigger, 2, done));
	ANSWERS(0, queue(t, &works[2], FI_OP_TSEND, &tsend, trigger, 2, done));
	ANSWERS(0, queue(t, &works[3], FI_OP_TRECV, &treceive, trigger, 2, done));
	ANSWERS(0, queue(t, &works[4], FI_OP_WRITE, &write, trigger, 2, done));
	ANSWERS(0, queue(t, &works[5], FI_OP_READ, &read, trigger, 2, done));
	ANSWERS(0, queue(t, &works[6], FI_OP_ATOMIC, &add, trigger, 2, done));
	ANSWERS(0, queue(t, &works[7], FI_OP_FETCH_ATOMIC, &fetch, trigger, 2, done));
	ANSWERS(0, queue(t, &works[8], FI_OP_COMPARE_ATOMIC, &swap, trigger, 2, done));
	ANSWERS(0, queue(t, &works[9], FI_OP_CNTR_SET, &set, done, 9, NULL));
	ANSWERS(0, queue(t, &works[10], FI_OP_CNTR_ADD, &more, done, 9, NULL));
	asserts("DWQ-002 DWQ-017");
	fill(t->a.out, 16, 5); /* Read when the send begins. */
	ANSWERS(0, fi_cntr_adderr(trigger, 1)); /* Errors also count. */
	turn(t, 50);
	CHECK(fi_cntr_read(done) == 0 && !target.memory[0] && !target.memory[512], "work has begun");
	ANSWERS(0, fi_cntr_add(trigger, 1));
	ANSWERS(0, fi_cntr_wait(done, 9, WAIT_LIMIT * 1000));
	ANSWERS(0, fi_cntr_wait(other, 42, WAIT_LIMIT * 1000));
	asserts("DWQ-005 DWQ-007");
	CHECK(fi_cntr_read(other) == 42 && fi_cntr_read(done) == 9 && fi_cntr_readerr(done) == 0, "exactly");
	CHECK(is_filled(t->b.in, 16, 5) && is_filled(t->b.in + 64, 16, 5) && is_filled(target.memory, 16, 5) && is_filled(t->a.in, 16, 6), "data");
	uint64_t *words_now = (uint64_t *)(target.memory + 512);
	CHECK(words_now[0] == 5 && words_now[1] == 5 && words_now[2] == 5 && old[0] == 0 && old[1] == 0, "atomic operations");
	asserts("DWQ-009 DWQ-011");
	CHECK(fi_cntr_read(t->a.counters[SENT]) == sent, "the endpoint's counter has moved");
	CHECK(take(&t->a, context(1)).err == 0, "the requested completion reports an error");
	turn(t, 50);
	CHECK(t->a.stashed == 0 && t->b.stashed == 0, "completions that were not requested");
	/* Work with a threshold that is already reached begins at once. Without a completion counter it is not counted. */
	asserts("DWQ-003 DWQ-006");
	POSTED(&t->b, fi_trecv(t->b.ep, t->b.in + 128, 16, NULL, FI_ADDR_UNSPEC, 8, 0, context(2)));
	ANSWERS(0, queue(t, &works[11], FI_OP_TSEND, &tsend, trigger, 2, NULL));
	CHECK(take(&t->b, context(2)).len == 16 && is_filled(t->b.in + 128, 16, 5), "a message");
	turn(t, 50);
	CHECK(fi_cntr_read(trigger) == 1 && fi_cntr_read(done) == 9 && fi_cntr_read(other) == 42, "a counter has moved");
	CHECK(fi_cntr_read(t->a.counters[SENT]) == sent, "the endpoint's counter has moved");
	/* The endpoint's own counter as the completion counter. */
	asserts("DWQ-010");
	POSTED(&t->b, fi_trecv(t->b.ep, t->b.in + 128, 16, NULL, FI_ADDR_UNSPEC, 8, 0, context(2)));
	ANSWERS(0, queue(t, &works[11], FI_OP_TSEND, &tsend, trigger, 2, t->a.counters[SENT]));
	CHECK(take(&t->b, context(2)).len == 16, "a message");
	ANSWERS(0, fi_cntr_wait(t->a.counters[SENT], sent + 1, WAIT_LIMIT * 1000));
	turn(t, 50);
	CHECK(fi_cntr_read(t->a.counters[SENT]) == sent + 1, "the endpoint's counter has moved by more than one");
	quiet(&t->pair);
	close_target(&target);
	ANSWERS(0, fi_close(&trigger->fid));
	ANSWERS(0, fi_close(&done->fid));
	ANSWERS(0, fi_close(&other->fid));
}

/* Work in the order of thresholds, and a chain in which each piece of work starts the next one. */
static void chained(struct two *t)
{
	enum { STAGES = 6 };
	static const size_t thresholds[4] = { 3, 1, 3, 2 };
	static const char order[4] = { 1, 3, 0, 2 };
	struct fid_cntr *trigger = counter_of(t), *done = counter_of(t), *stages[STAGES + 1];
	struct fi_deferred_work works[STAGES];
	struct fi_op_msg sends[4];
	struct fi_op_rma writes[STAGES];
	struct fi_rma_iov there[STAGES];
	struct iovec iov[STAGES];
	struct target target;

	asserts("DWQ-021");
	for (int n = 0; n < 4; n++) {
		POSTED(&t->b, fi_recv(t->b.ep, t->b.in + 8 * n, 8, NULL, FI_ADDR_UNSPEC, context(n)));
		t->a.out[8 * n] = (char)n;
		iov[n] = (struct iovec){ t->a.out + 8 * n, 8 };
		sends[n] = (struct fi_op_msg){ t->a.ep, { .msg_iov = &iov[n], .iov_count = 1, .addr = t->a.peer }, 0 };
		ANSWERS(0, queue(t, &works[n], FI_OP_SEND, &sends[n], trigger, thresholds[n], done));
	}
	ANSWERS(0, fi_cntr_add(trigger, 3));
	ANSWERS(0, fi_cntr_wait(done, 4, WAIT_LIMIT * 1000));
	for (int n = 0; n < 4; n++)
		CHECK(take(&t->b, context(n)).len == 8 && t->b.in[8 * n] == order[n], "message %d is the one of %d", n, t->b.in[8 * n]);
	/* Stage n copies 16 bytes to the place from which stage n + 1 copies them. */
	asserts("DWQ-020");
	open_target(t, &target);
	for (int n = 0; n <= STAGES; n++)
		stages[n] = counter_of(t);
	for (int n = 0; n < STAGES; n++) {
		iov[n] = (struct iovec){ target.memory + 16 * n, 16 };
		there[n] = (struct fi_rma_iov){ 16 * (uint64_t)(n + 1), 16, target.key };
		writes[n] = (struct fi_op_rma){ t->a.ep, { .msg_iov = &iov[n], .iov_count = 1, .addr = t->a.peer, .rma_iov = &there[n],
							   .rma_iov_count = 1 }, 0 };
		ANSWERS(0, queue(t, &works[n], FI_OP_WRITE, &writes[n], stages[n], 1, stages[n + 1]));
	}
	turn(t, 50);
	ANSWERS(0, fi_cntr_read(stages[STAGES]));
	fill(target.memory, 16, 9);
	ANSWERS(0, fi_cntr_add(stages[0], 1));
	/* Only the target is driven. It executes the writes if the transport cannot make them directly. */
	for (double until = now() + WAIT_LIMIT; fi_cntr_read(stages[STAGES]) < 1;) {
		MUST(now() < until, "the last stage is not reached");
		fi_cq_read(t->b.txcq, NULL, 0);
	}
	CHECK(is_filled(target.memory + 16 * STAGES, 16, 9), "the last stage did not write");
	/* Work whose trigger never counts does not start. It is cancelled, and does not prevent closing. */
	asserts("DWQ-015");
	memset(target.memory + 16, 0, 16);
	ANSWERS(0, queue(t, &works[0], FI_OP_WRITE, &writes[0], trigger, 100, done));
	turn(t, 50);
	CHECK(!target.memory[16] && fi_cntr_read(done) == 4, "the work has begun");
	ANSWERS(0, fi_control(&t->room.domain->fid, FI_CANCEL_WORK, &works[0]));
	ANSWERS(0, fi_cntr_set(trigger, 100));
	turn(t, 50);
	CHECK(!target.memory[16] && fi_cntr_read(done) == 4, "cancelled work has begun");
	quiet(&t->pair);
	close_target(&target);
	for (int n = 0; n <= STAGES; n++)
		ANSWERS(0, fi_close(&stages[n]->fid));
	ANSWERS(0, fi_close(&trigger->fid));
	ANSWERS(0, fi_close(&done->fid));
}

/* Work is cancelled one by one, by counter, and all at once; invalid calls are rejected. */
static void taken_back(struct two *t)
{
	struct fid_cntr *trigger = counter_of(t), *other = counter_of(t), *count = counter_of(t);
	struct fi_deferred_work works[6], bad;
	struct fi_op_cntr add = { count, 1 };
	struct fid *domain = &t->room.domain->fid;

	for (int n = 0; n < 6; n++)
		ANSWERS(0, queue(t, &works[n], FI_OP_CNTR_ADD, &add, n < 4 ? trigger : other, 1, NULL));
	asserts("DWQ-012");
	ANSWERS(0, fi_control(domain, FI_CANCEL_WORK, &works[0]));
	ANSWERS(-FI_ENOENT, fi_control(domain, FI_CANCEL_WORK, &works[0]));
	asserts("DWQ-014");
	ANSWERS(0, fi_control(domain, FI_FLUSH_WORK, other));
	ANSWERS(0, fi_cntr_add(other, 1));
	CHECK(fi_cntr_read(count) == 0, "flushed work has begun");
	ANSWERS(0, fi_cntr_add(trigger, 1));
	CHECK(fi_cntr_read(count) == 3, "%llu, not 3", (unsigned long long)fi_cntr_read(count));
	ANSWERS(-FI_ENOENT, fi_control(domain, FI_CANCEL_WORK, &works[1]));
	ANSWERS(0, queue(t, &works[0], FI_OP_CNTR_ADD, &add, trigger, 2, NULL));
	ANSWERS(0, queue(t, &works[1], FI_OP_CNTR_ADD, &add, other, 2, NULL));
	asserts("DWQ-013");
	ANSWERS(0, fi_control(domain, FI_FLUSH_WORK, NULL));
	ANSWERS(0, fi_cntr_add(trigger, 1));
	ANSWERS(0, fi_cntr_add(other, 1));
	CHECK(fi_cntr_read(count) == 3, "flushed work has begun");
	asserts("DWQ-008");
	ANSWERS(-FI_EINVAL, queue(t, &bad, FI_OP_CNTR_ADD, &add, trigger, 9, count)); /* Completion counters are only for transfers. */
	asserts("DWQ-016 DWQ-018");
	ANSWERS(-FI_EINVAL, queue(t, &bad, FI_OP_CNTR_ADD, NULL, trigger, 9, NULL));
	ANSWERS(-FI_EINVAL, queue(t, &bad, FI_OP_CNTR_ADD, &add, NULL, 9, NULL));
	ANSWERS(-FI_ENOSYS, queue(t, &bad, (enum fi_op_type)99, &add, trigger, 9, NULL));
	ANSWERS(-FI_EINVAL, fi_control(domain, FI_QUEUE_WORK, NULL));
	struct fi_op_msg nobody = { NULL, { 0 }, 0 };
	ANSWERS(-FI_EINVAL, queue(t, &bad, FI_OP_SEND, &nobody, trigger, 9, NULL));
	/* Waiting work does not prevent closing. */
	asserts("DWQ-022");
	ANSWERS(0, queue(t, &works[2], FI_OP_CNTR_ADD, &add, trigger, 100, NULL));
	ANSWERS(0, fi_close(&trigger->fid));
	ANSWERS(0, fi_close(&other->fid));
	ANSWERS(0, fi_close(&count->fid));
}

/* Holds a thread in a signal handler until a byte arrives. */
static int gate[2];
static atomic_bool held;

static void hold(int signal)
{
	int before = errno;
	char byte;

	(void)signal;
	atomic_store(&held, true);
	while (read(gate[0], &byte, 1) < 0 && errno == EINTR)
		;
	errno = before;
}

/* The first line of a file of a thread of this process, or an empty line if there is none. */
static void line_of(const char *thread, const char *file, char *line, int room)
{
	char path[300];
	FILE *from;

	line[0] = 0;
	snprintf(path, sizeof(path), "/proc/self/task/%s/%s", thread, file);
	if (!(from = fopen(path, "r")))
		return;
	if (!fgets(line, room, from))
		line[0] = 0;
	fclose(from);
}

/*
 * Returns the thread that drives an endpoint with deferred work once it sleeps, because it holds no lock then. Returns 0 if
 * there is none.
 */
static pid_t sleeping_driver(void)
{
	DIR *threads = opendir("/proc/self/task");
	struct dirent *thread;
	pid_t found = 0;

	MUST(threads, "no list of threads");
	while (!found && (thread = readdir(threads))) {
		char name[64], state[512], *end;

		line_of(thread->d_name, "comm", name, sizeof(name));
		line_of(thread->d_name, "stat", state, sizeof(state));
		end = strrchr(state, ')');
		if (!strncmp(name, "percale-progres", 15) && end && end[1] && end[2] == 'S')
			found = (pid_t)atol(thread->d_name);
	}
	closedir(threads);
	return found;
}

static void receive_work(struct two *t, struct fi_deferred_work *work, struct fi_op_tagged *op, struct iovec *into, struct fid_cntr *trigger, struct fid_cntr *done)
{
	*into = (struct iovec){ t->b.in, 16 };
	*op = (struct fi_op_tagged){ t->b.ep, { .msg_iov = into, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 8 }, 0 };
	ANSWERS(0, queue(t, work, FI_OP_TRECV, op, trigger, 0, done));
}

/*
 * Reading a completion counter and waiting for it drive the endpoint that has the work, even if the endpoint's own thread does
 * nothing. The counter counts only work, or also sends of the other endpoint.
 */
static void driven(struct two *t)
{
	struct sigaction action = { .sa_handler = hold, .sa_flags = SA_RESTART }, before;
	struct fid_cntr *trigger = counter_of(t), *own = counter_of(t);
	pid_t thread = 0;

	if (options.few)
		goto over; /* Under valgrind a thread also sleeps while it holds a lock. */
	POSTED(&t->b, fi_trecv(t->b.ep, t->b.in, 16, NULL, FI_ADDR_UNSPEC, 8, 0, context(0)));
	POSTED(&t->a, fi_tinject(t->a.ep, t->a.out, 16, t->a.peer, 8));
	CHECK(take(&t->b, context(0)).len == 16, "the first message");
	MUST(pipe2(gate, O_CLOEXEC) == 0 && sigaction(SIGUSR1, &action, &before) == 0, "no signals");
	for (int both = 0; both < 2; both++) {
		struct fid_cntr *done = both ? t->a.counters[SENT] : own;
		uint64_t value = fi_cntr_read(done);
		struct fi_deferred_work work;
		struct fi_op_tagged op;
		struct iovec into;

		for (int waits = 0; waits < 2; waits++) {
			double until = now() + WAIT_LIMIT;

			receive_work(t, &work, &op, &into, trigger, done);
			while (!(thread = sleeping_driver()))
				MUST(now() < until, "no thread that sleeps");
			atomic_store(&held, false);
			MUST(syscall(SYS_tgkill, getpid(), thread, SIGUSR1) == 0, "no signal");
			while (!atomic_load(&held))
				MUST(now() < until, "the thread is not held");
			ANSWERS(0, fi_tinject(t->a.ep, t->a.out, 16, t->a.peer, 8));
			value += both ? 2 : 1;
			if (waits)
				ANSWERS(0, fi_cntr_wait(done, value, 5000));
			for (until = now() + 5; fi_cntr_read(done) < value && now() < until;)
				;
			CHECK(fi_cntr_read(done) == value, "the work is not done: %llu, not %llu", (unsigned long long)fi_cntr_read(done), (unsigned long long)value);
			MUST(write(gate[1], "", 1) == 1, "the thread cannot be released");
			ANSWERS(0, fi_cntr_wait(done, value, WAIT_LIMIT * 1000));
		}
	}
	sigaction(SIGUSR1, &before, NULL);
	close(gate[0]), close(gate[1]);
over:
	quiet(&t->pair);
	ANSWERS(0, fi_close(&trigger->fid));
	ANSWERS(0, fi_close(&own->fid));
}

/* Writes the variable of a device. Here a thread writes it with a plain store. */
static void store(const struct fi_trigger_var *var)
{
	CHECK(var->datatype == FI_UINT64 && var->count == 1 && var->addr, "a variable of 64 bits");
	__atomic_store_n((uint64_t *)var->addr, var->value.val64, __ATOMIC_RELEASE);
}

static struct fi_triggered_context when_stored(struct fi_trigger_var *var, int count)
{
	return (struct fi_triggered_context){ .event_type = FI_TRIGGER_XPU, .trigger.xpu = { .count = count, .iface = FI_HMEM_SYSTEM, .var = var } };
}

/* Messages that devices start, in the order of the queue; their requirements; cancelled and rejected ones. */
static void devices(struct two *t)
{
	struct fi_trigger_var vars[5], before;
	struct fi_triggered_context contexts[4], bad;
	struct fi_trigger_xpu needs = { .iface = FI_HMEM_SYSTEM };
	size_t len = sizeof(needs);

	asserts("XPU-006");
	ANSWERS(0, fi_getopt(&t->a.ep->fid, FI_OPT_ENDPOINT, FI_OPT_XPU_TRIGGER, &needs, &len));
	CHECK(needs.count == 1, "%d variables", needs.count);
	asserts("XPU-007");
	needs = (struct fi_trigger_xpu){ .count = 5, .iface = FI_HMEM_SYSTEM, .var = vars };
	memset(vars, 0xAA, sizeof(vars));
	ANSWERS(0, fi_getopt(&t->a.ep->fid, FI_OPT_ENDPOINT, FI_OPT_XPU_TRIGGER, &needs, &len));
	CHECK(needs.count == 1 && vars[0].datatype == FI_UINT64 && vars[0].count == 1, "of 64 bits");
	CHECK(vars[1].count == (int)0xAAAAAAAA, "more than that was written");
	asserts("XPU-005");
	needs.iface = FI_HMEM_CUDA;
	ANSWERS(-FI_EOPNOTSUPP, fi_getopt(&t->a.ep->fid, FI_OPT_ENDPOINT, FI_OPT_XPU_TRIGGER, &needs, &len));
	len = 4;
	ANSWERS(-FI_ETOOSMALL, fi_getopt(&t->a.ep->fid, FI_OPT_ENDPOINT, FI_OPT_XPU_TRIGGER, &needs, &len));

	for (int n = 0; n < 3; n++)
		POSTED(&t->b, fi_recv(t->b.ep, t->b.in + 8 * n, 8, NULL, FI_ADDR_UNSPEC, context(n)));
	/* `store` checks the output: one variable of 64 bits. */
	asserts("XPU-008 XPU-009");
	for (int n = 0; n < 4; n++) {
		contexts[n] = when_stored(&vars[n], 1);
		t->a.out[8 * n] = 99;
		ANSWERS(0, send_when(t, t->a.out + 8 * n, 8, &contexts[n]));
		CHECK(contexts[n].trigger.xpu.count == 1, "%d variables", contexts[n].trigger.xpu.count);
	}
	asserts("XPU-017");
	ANSWERS(0, fi_cancel(&t->a.ep->fid, &contexts[1]));
	CHECK(take(&t->a, &contexts[1]).err == FI_ECANCELED, "cancelled");
	for (int n = 0; n < 4; n++)
		t->a.out[8 * n] = (char)n;
	store(&vars[2]); /* Out of order, and the variable of a cancelled operation. */
	store(&vars[1]);
	turn(t, 50);
	asserts("XPU-012");
	CHECK(t->b.in[0] == 0 && t->b.in[8] == 0, "a send has begun");
	asserts("XPU-013 XPU-018 XPU-019");
	store(&vars[0]);
	CHECK(take(&t->a, &contexts[0]).err == 0 && take(&t->a, &contexts[2]).err == 0, "sent");
	CHECK(take(&t->b, context(0)).len == 8 && take(&t->b, context(1)).len == 8, "received");
	CHECK(t->b.in[0] == 0 && t->b.in[8] == 2, "in the order of the queue");
	asserts("XPU-016");
	before = vars[3];
	turn(t, 50);
	CHECK(!memcmp(&before, &vars[3], sizeof(before)), "the variable's description is the client's");
	store(&vars[3]);
	CHECK(take(&t->a, &contexts[3]).err == 0 && take(&t->b, context(2)).len == 8 && t->b.in[16] == 3, "the last");

	memset(&vars[4], 0xAA, sizeof(vars[4]));
	asserts("XPU-014");
	bad = when_stored(&vars[4], 0);
	ANSWERS(-FI_ETOOSMALL, send_when(t, t->a.out, 8, &bad));
	bad = when_stored(NULL, 1);
	ANSWERS(-FI_EINVAL, send_when(t, t->a.out, 8, &bad));
	bad = when_stored(&vars[4], 1);
	bad.trigger.xpu.iface = FI_HMEM_CUDA;
	ANSWERS(-FI_EOPNOTSUPP, send_when(t, t->a.out, 8, &bad));
	CHECK(vars[4].count == (int)0xAAAAAAAA, "refused, but written");
	/* Waiting operations do not prevent closing. */
	contexts[0] = when_stored(&vars[0], 1);
	ANSWERS(0, send_when(t, t->a.out, 8, &contexts[0]));
	quiet(&t->pair);
}

/*
 * An operation that does not wait for a store overtakes one that does, and so does one that waits for a counter (libfabric does
 * not define this).
 */
static void mixed(struct two *t)
{
	struct fid_cntr *counter = counter_of(t);
	struct fi_trigger_var var;
	struct fi_triggered_context stored = when_stored(&var, 1), counted = when(counter, 1);

	for (int n = 0; n < 3; n++)
		POSTED(&t->b, fi_recv(t->b.ep, t->b.in + 8 * n, 8, NULL, FI_ADDR_UNSPEC, context(n)));
	for (int n = 0; n < 3; n++)
		t->a.out[8 * n] = (char)(n + 1);
	asserts("XPU-003");
	ANSWERS(0, send_when(t, t->a.out, 8, &stored));
	ANSWERS(0, send_when(t, t->a.out + 8, 8, &counted));
	POSTED(&t->a, fi_send(t->a.ep, t->a.out + 16, 8, NULL, t->a.peer, context(3)));
	CHECK(take(&t->a, context(3)).err == 0 && take(&t->b, context(0)).len == 8 && t->b.in[0] == 3, "the plain one");
	ANSWERS(0, fi_cntr_add(counter, 1));
	CHECK(take(&t->a, &counted).err == 0 && take(&t->b, context(1)).len == 8 && t->b.in[8] == 2, "the counter's");
	store(&var);
	CHECK(take(&t->a, &stored).err == 0 && take(&t->b, context(2)).len == 8 && t->b.in[16] == 1, "the store's");
	quiet(&t->pair);
	ANSWERS(0, fi_close(&counter->fid));
}

/* Not available to applications that did not request it, and not without FI_TRIGGER. */
static void no_devices(struct two *t)
{
	struct fi_trigger_var var;
	struct fi_triggered_context wish = when_stored(&var, 1);
	struct fi_trigger_xpu needs = { .iface = FI_HMEM_SYSTEM };
	size_t len = sizeof(needs);
	struct settings bare = with_devices;
	struct fi_info *hints, *info = NULL;

	asserts("XPU-001");
	ANSWERS(-FI_ENOSYS, send_when(t, t->a.out, 8, &wish));
	ANSWERS(-FI_EOPNOTSUPP, fi_getopt(&t->a.ep->fid, FI_OPT_ENDPOINT, FI_OPT_XPU_TRIGGER, &needs, &len));
	asserts("XPU-002");
	bare.caps = FI_XPU_TRIGGER;
	hints = hints_for(&bare);
	ANSWERS(-FI_ENODATA, fi_getinfo(bare.api, NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
}

/* Sends a message in each direction. */
static void used(struct two *t)
{
	POSTED(&t->b, fi_recv(t->b.ep, t->b.in, 8, NULL, FI_ADDR_UNSPEC, context(60)));
	POSTED(&t->a, fi_recv(t->a.ep, t->a.in, 8, NULL, FI_ADDR_UNSPEC, context(61)));
	POSTED(&t->a, fi_send(t->a.ep, t->a.out, 8, NULL, t->a.peer, context(62)));
	POSTED(&t->b, fi_send(t->b.ep, t->b.out, 8, NULL, t->b.peer, context(63)));
	CHECK(take(&t->b, context(60)).len == 8 && take(&t->a, context(61)).len == 8, "the messages");
	CHECK(take(&t->a, context(62)).err == 0 && take(&t->b, context(63)).err == 0, "the sends");
}

/* Operations that were posted before the first triggered operation continue after it. */
static void goes_on(struct two *t)
{
	struct fid_cntr *counter = counter_of(t);
	struct fi_triggered_context first = when(counter, 1);

	used(t);
	POSTED(&t->a, fi_recv(t->a.ep, t->a.in, 8, NULL, FI_ADDR_UNSPEC, context(64)));
	POSTED(&t->b, fi_recv(t->b.ep, t->b.in, 8, NULL, FI_ADDR_UNSPEC, context(65)));
	ANSWERS(0, send_when(t, t->a.out, 8, &first));
	POSTED(&t->b, fi_send(t->b.ep, t->b.out, 8, NULL, t->b.peer, context(66)));
	CHECK(take(&t->a, context(64)).len == 8, "a receive from before");
	CHECK(take(&t->b, context(66)).err == 0, "the receive failed");
	ANSWERS(0, fi_cntr_add(counter, 1));
	CHECK(take(&t->b, context(65)).len == 8, "the triggered message");
	CHECK(take(&t->a, &first).err == 0, "its send");
	used(t);
	ANSWERS(0, fi_close(&counter->fid));
}

void trigger_groups(void)
{
	static const struct {
		const char *name;
		const struct settings *how;
		void (*run)(struct two *);
	} all[] = {
		{ "messages that wait for a counter", &how, messages },
		{ "every kind of triggered operation", &how, kinds },
		{ "cancelled, and refused", &how, canceled },
		{ "the owner of the context's memory", &how, given_back },
		{ "a message that is forwarded", &how, forwarded },
		{ "calls that cannot be triggered", &how, not_triggered },
		{ "deferred work of every kind", &how, work },
		{ "deferred work in order, and in a chain", &how, chained },
		{ "deferred work that is taken back, and refused", &how, taken_back },
		{ "one thread: messages that wait for a counter", &alone, messages },
		{ "one thread: every kind of triggered operation", &alone, kinds },
		{ "one thread: cancelled, and refused", &alone, canceled },
		{ "one thread: deferred work of every kind", &alone, work },
		{ "one thread: deferred work that is taken back, and refused", &alone, taken_back },
		{ "reading and waiting for completion counters make progress", &how, driven },
		{ "one thread: reading and waiting for completion counters make progress", &alone, driven },
		{ "one thread: operations before the first triggered one", &alone, goes_on },
		{ "messages that a store starts", &with_devices, devices },
		{ "stores together with other operations", &with_devices, mixed },
		{ "no devices", &how, no_devices },
	};
	struct two two;

	begin("sizes of triggered contexts");
	asserts("TRIG-003");
	CHECK(sizeof(struct fi_triggered_context) == sizeof(struct fi_context), "%zu bytes", sizeof(struct fi_triggered_context));
	CHECK(sizeof(struct fi_triggered_context2) == sizeof(struct fi_context2), "%zu bytes", sizeof(struct fi_triggered_context2));
	end();
	begin("closed while operations wait");
	open_two(&two, &how);
	closed_early(&two);
	end();
	for (size_t at = 0; at < COUNT(all); at++) {
		begin(all[at].name);
		open_two(&two, all[at].how);
		all[at].run(&two);
		close_two(&two);
		end();
	}
}
