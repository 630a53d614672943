#include <sched.h>
#include "every.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define MESSAGES 20000
#define AT_ONCE 32

/* The objects of one thread: an endpoint and its queue. */
struct part {
	struct fid_ep *ep;
	struct fid_cq *cq;
	fi_addr_t to;
	const char *problem;
};

static atomic_bool over;

static void *send_all(void *argument)
{
	struct part *part = argument;
	struct fi_cq_tagged_entry entries[16];
	char out[64] = "message";
	double until = now() + WAIT_LIMIT;
	long posted = 0, done = 0;

	while (done < MESSAGES && !part->problem) {
		if (posted < MESSAGES && posted - done < AT_ONCE) {
			ssize_t code = fi_send(part->ep, out, sizeof(out), NULL, part->to, context(1));

			posted += code == 0;
			if (code && code != -FI_EAGAIN)
				part->problem = "a send is refused";
		}
		ssize_t got = fi_cq_read(part->cq, entries, COUNT(entries));

		for (ssize_t at = 0; at < got; at++, done++)
			if (entries[at].op_context != context(1) || !(entries[at].flags & FI_SEND))
				part->problem = "a completion of no send";
		if (got < 0 && got != -FI_EAGAIN)
			part->problem = "an error instead of a send";
		if (now() > until)
			part->problem = "sends do not complete";
	}
	atomic_store(&over, true);
	return NULL;
}

static void *receive_all(void *argument)
{
	struct part *part = argument;
	struct fi_cq_tagged_entry entries[16];
	static char in[AT_ONCE][64];
	double until = now() + WAIT_LIMIT;
	long posted = 0, done = 0;

	while (done < MESSAGES && !part->problem) {
		while (posted - done < AT_ONCE) {
			if (fi_recv(part->ep, in[posted % AT_ONCE], sizeof(in[0]), NULL, FI_ADDR_UNSPEC, context(2)))
				break;
			posted++;
		}
		ssize_t got = fi_cq_read(part->cq, entries, COUNT(entries));

		for (ssize_t at = 0; at < got; at++, done++)
			if (entries[at].op_context != context(2) || !(entries[at].flags & FI_RECV) || entries[at].len != 64)
				part->problem = "a completion of no receive";
		if (got < 0 && got != -FI_EAGAIN)
			part->problem = "an error instead of a receive";
		if (now() > until)
			part->problem = "messages do not arrive";
	}
	return NULL;
}

static void *read_counter(void *counter)
{
	while (!atomic_load(&over))
		fi_cntr_read(counter);
	return NULL;
}

static void both(struct part *sender, struct part *receiver, struct fid_cntr *counter)
{
	pthread_t threads[3];

	atomic_store(&over, false);
	NEEDS(pthread_create(&threads[0], NULL, send_all, sender));
	NEEDS(pthread_create(&threads[1], NULL, receive_all, receiver));
	if (counter)
		NEEDS(pthread_create(&threads[2], NULL, read_counter, counter));
	for (int at = 0; at < (counter ? 3 : 2); at++)
		NEEDS(pthread_join(threads[at], NULL));
	CHECK(!sender->problem, "%s", sender->problem);
	CHECK(!receiver->problem, "%s", receiver->problem);
}

static const struct settings serialized = { .name = "threads", .av_type = FI_AV_TABLE, .threading = FI_THREAD_COMPLETION,
					    .progress = FI_PROGRESS_MANUAL, .caps = FI_RMA_EVENT | FI_NAMED_RX_CTX };

static struct fid_cq *queue_of(struct room *room)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_TAGGED };
	struct fid_cq *cq;

	NEEDS(fi_cq_open(room->domain, &attr, &cq, NULL));
	return cq;
}

static fi_addr_t address_of(struct fid_av *av, struct fid *ep)
{
	struct sockaddr_storage name;
	size_t len = sizeof(name);
	fi_addr_t address;

	NEEDS(fi_getname(ep, &name, &len));
	MUST(fi_av_insert(av, &name, 1, &address, 0, NULL) == 1, "an address");
	return address;
}

/* A transmit context and its queue in one thread, and the receive context with the same number in another. */
static void halves(void)
{
	struct room room;
	struct fi_av_attr attr = { .type = FI_AV_TABLE };
	struct fid_av *av;
	struct fid_ep *sep;
	struct part tx = { 0 }, rx = { 0 };

	open_room(&room, &serialized);
	NEEDS(fi_av_open(room.domain, &attr, &av, NULL));
	NEEDS(fi_scalable_ep(room.domain, room.info, &sep, NULL));
	NEEDS(fi_scalable_ep_bind(sep, &av->fid, 0));
	NEEDS(fi_tx_context(sep, 0, NULL, &tx.ep, NULL));
	NEEDS(fi_rx_context(sep, 0, NULL, &rx.ep, NULL));
	tx.cq = queue_of(&room);
	rx.cq = queue_of(&room);
	NEEDS(fi_ep_bind(tx.ep, &tx.cq->fid, FI_TRANSMIT));
	NEEDS(fi_ep_bind(rx.ep, &rx.cq->fid, FI_RECV));
	NEEDS(fi_enable(tx.ep));
	NEEDS(fi_enable(rx.ep));
	NEEDS(fi_enable(sep));
	tx.to = address_of(av, &sep->fid);
	both(&tx, &rx, NULL);
	ANSWERS(0, fi_close(&tx.ep->fid));
	ANSWERS(0, fi_close(&rx.ep->fid));
	ANSWERS(0, fi_close(&sep->fid));
	ANSWERS(0, fi_close(&tx.cq->fid));
	ANSWERS(0, fi_close(&rx.cq->fid));
	ANSWERS(0, fi_close(&av->fid));
	close_room(&room);
}

/* Two endpoints in two threads, and a third thread that reads a region's counter. */
static void regions(void)
{
	struct room room;
	struct fi_av_attr attr = { .type = FI_AV_TABLE };
	struct fid_av *av;
	struct fid_cntr *counter;
	struct fid_mr *mr;
	struct part parts[2] = { 0 };
	static char memory[64];

	open_room(&room, &serialized);
	NEEDS(fi_av_open(room.domain, &attr, &av, NULL));
	for (int at = 0; at < 2; at++) {
		parts[at].cq = queue_of(&room);
		NEEDS(fi_endpoint(room.domain, room.info, &parts[at].ep, NULL));
		NEEDS(fi_ep_bind(parts[at].ep, &av->fid, 0));
		NEEDS(fi_ep_bind(parts[at].ep, &parts[at].cq->fid, FI_TRANSMIT | FI_RECV));
		NEEDS(fi_enable(parts[at].ep));
	}
	NEEDS(fi_cntr_open(room.domain, NULL, &counter, NULL));
	NEEDS(fi_mr_reg(room.domain, memory, sizeof(memory), FI_REMOTE_WRITE, 0, 55, FI_RMA_EVENT, &mr, NULL));
	NEEDS(fi_mr_bind(mr, &counter->fid, FI_REMOTE_WRITE));
	NEEDS(fi_mr_enable(mr));
	parts[0].to = address_of(av, &parts[1].ep->fid);
	both(&parts[0], &parts[1], counter);
	ANSWERS(0, fi_close(&counter->fid));
	ANSWERS(0, fi_close(&mr->fid));
	for (int at = 0; at < 2; at++) {
		ANSWERS(0, fi_close(&parts[at].ep->fid));
		ANSWERS(0, fi_close(&parts[at].cq->fid));
	}
	ANSWERS(0, fi_close(&av->fid));
	close_room(&room);
}

static pthread_barrier_t start;

static void *close_it(void *object)
{
	pthread_barrier_wait(&start);
	return (void *)(intptr_t)fi_close(object);
}

/* An endpoint and its aliases are closed concurrently. The last one releases the endpoint with its receives. */
static void closing_at_once(void)
{
	static const struct settings safe = { .name = "threads", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE,
					      .progress = FI_PROGRESS_MANUAL };
	struct two two;

	open_two(&two, &safe);
	pthread_barrier_init(&start, NULL, 3);
	for (int round = 0; round < 100; round++) {
		struct fid_ep *eps[3];
		struct fid_cq *cq = queue_of(&two.room);
		pthread_t threads[3];
		static char in[64];
		void *code;

		NEEDS(fi_endpoint(two.room.domain, two.room.info, &eps[0], NULL));
		NEEDS(fi_ep_bind(eps[0], &two.b.av->fid, 0));
		NEEDS(fi_ep_bind(eps[0], &cq->fid, FI_TRANSMIT | FI_RECV));
		NEEDS(fi_enable(eps[0]));
		NEEDS(fi_ep_alias(eps[0], &eps[1], FI_TRANSMIT));
		NEEDS(fi_ep_alias(eps[1], &eps[2], FI_RECV));
		NEEDS(fi_recv(eps[1], in, sizeof(in), NULL, FI_ADDR_UNSPEC, NULL));
		for (int at = 0; at < 3; at++)
			NEEDS(pthread_create(&threads[at], NULL, close_it, &eps[at]->fid));
		for (int at = 0; at < 3; at++) {
			NEEDS(pthread_join(threads[at], &code));
			ANSWERS(0, (intptr_t)code);
		}
		/* The queue has no users any more. */
		ANSWERS(0, fi_close(&cq->fid));
	}
	pthread_barrier_destroy(&start);
	close_two(&two);
}

/* A region is closed while another thread reads the event of its registration. */
static void *read_events(void *eq)
{
	struct fi_eq_entry entry;
	uint32_t event;
	char *problem = NULL;

	while (!atomic_load(&over) && !problem) {
		ssize_t got = fi_eq_read(eq, &event, &entry, sizeof(entry), 0);

		if (got != -FI_EAGAIN && (got != sizeof(entry) || event != FI_MR_COMPLETE || entry.context != context(7)))
			problem = "another event";
	}
	return problem;
}

static void closing_regions(void)
{
	static const struct settings safe = { .name = "threads", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE,
					      .progress = FI_PROGRESS_MANUAL };
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_NONE };
	struct room room;
	struct fid_eq *eq;
	pthread_t reader;
	static char memory[4096];
	void *problem;

	open_room(&room, &safe);
	NEEDS(fi_eq_open(room.fabric, &attr, &eq, NULL));
	NEEDS(fi_domain_bind(room.domain, &eq->fid, FI_REG_MR));
	atomic_store(&over, false);
	NEEDS(pthread_create(&reader, NULL, read_events, eq));
	for (int n = 0; n < 5000; n++) {
		struct fid_mr *mr;
		int code;

		/* The event queue is full until the reading thread runs. */
		while ((code = fi_mr_reg(room.domain, memory, sizeof(memory), FI_REMOTE_WRITE, 0, 1 + (uint64_t)n, 0, &mr,
					 context(7))) == -FI_EAGAIN)
			sched_yield();
		NEEDS(code);
		ANSWERS(0, fi_close(&mr->fid));
	}
	atomic_store(&over, true);
	NEEDS(pthread_join(reader, &problem));
	CHECK(!problem, "%s", (char *)problem);
	ANSWERS(0, fi_close(&room.domain->fid));
	ANSWERS(0, fi_close(&eq->fid));
	ANSWERS(0, fi_close(&room.fabric->fid));
	fi_freeinfo(room.info);
}

void thread_groups(void)
{
	begin("threads: the halves of a context");
	halves();
	end();
	begin("threads: a region's counter");
	regions();
	end();
	begin("threads: closing aliases");
	closing_at_once();
	end();
	begin("threads: closing regions");
	closing_regions();
	end();
}
