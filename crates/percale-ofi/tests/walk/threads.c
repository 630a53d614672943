/* Two threads at the levels that permit it. */
#define _GNU_SOURCE
#include "walk.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define LEVEL(name) (1u << FI_THREAD_##name)
#define SAFE (LEVEL(SAFE) | LEVEL(UNSPEC))
#define ROUNDS 150

/* Runs two functions at the same time. */
struct race {
	void (*run[2])(void *);
	void *argument[2];
	atomic_int ready;
};

struct racer {
	struct race *race;
	int which;
};

static void *race_one(void *argument)
{
	struct racer *racer = argument;

	atomic_fetch_add(&racer->race->ready, 1);
	while (atomic_load(&racer->race->ready) < 2)
		;
	racer->race->run[racer->which](racer->race->argument[racer->which]);
	return NULL;
}

static void race(void (*first)(void *), void *a, void (*second)(void *), void *b)
{
	struct race both = { { first, second }, { a, b }, 0 };
	struct racer racers[2] = { { &both, 0 }, { &both, 1 } };
	pthread_t threads[2];

	for (int at = 0; at < 2; at++)
		MUST(pthread_create(&threads[at], NULL, race_one, &racers[at]) == 0, "no thread");
	for (int at = 0; at < 2; at++)
		pthread_join(threads[at], NULL);
}

/* Closes an object that the world does not contain. */
static void close_it(void *argument)
{
	struct fid *fid = argument;

	NEEDS(fi_close(fid));
}

static void open_simple(struct world *w, uint64_t caps, struct fid_av **av)
{
	struct fi_info *hints = hints_of(FI_EP_RDM, caps), *info;

	hints->domain_attr->mr_mode = setting.api < FI_VERSION(1, 5) ? FI_MR_UNSPEC : 0;
	info = answer(NULL, NULL, 0, hints);
	MUST(info, "fi_getinfo returns no info");
	fi_freeinfo(hints);
	open_fabric(w, info);
	open_domain(w);
	*av = open_vector(w, "vector", FI_AV_TABLE, 0, NULL);
}

static struct fid_ep *open_bound(struct world *w, struct fid_av *av, struct fid_cq *cq)
{
	struct fid_ep *ep;

	NEEDS(fi_endpoint(w->domain, w->info, &ep, w));
	NEEDS(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	NEEDS(fi_ep_bind(ep, &av->fid, 0));
	NEEDS(fi_enable(ep));
	return ep;
}

/* Closing the last of the two releases the endpoint that both use. */
static void alias_closed_at_once(void)
{
	struct world w;
	struct fid_av *av;

	open_simple(&w, FI_MSG, &av);
	for (int round = 0; round < ROUNDS; round++) {
		struct fid_cq *cq;
		struct fid_ep *ep, *alias = NULL;
		NEEDS(fi_cq_open(w.domain, NULL, &cq, NULL));
		ep = open_bound(&w, av, cq);
		NEEDS(fi_ep_alias(ep, &alias, FI_TRANSMIT));
		char *buffer = malloc(64);
		fi_recv(ep, buffer, 64, NULL, FI_ADDR_UNSPEC, NULL);
		race(close_it, ep, close_it, alias);
		free(buffer);
		/* The queue has no users any more. */
		NEEDS(fi_close(&cq->fid));
	}
	close_world(&w, NULL);
}

static void read_events(void *argument)
{
	struct fid_eq *eq = argument;
	struct fi_eq_entry entry;
	uint32_t event;

	for (int n = 0; n < 20; n++)
		fi_eq_read(eq, &event, &entry, sizeof(entry), 0);
}

static void region_closed_while_its_event_is_read(void)
{
	static char memory[100];
	struct world w;
	struct fid_eq *eq;
	struct fid_av *av;

	open_simple(&w, FI_MSG | FI_RMA, &av);
	eq = open_events(&w, "events", FI_WAIT_NONE, NULL);
	NEEDS(fi_domain_bind(w.domain, &eq->fid, FI_REG_MR));
	for (int round = 0; round < ROUNDS; round++) {
		struct fid_mr *mr;
		NEEDS(fi_mr_reg(w.domain, memory, sizeof(memory), FI_REMOTE_READ, 0, (uint64_t)round, 0, &mr, &w));
		race(close_it, mr, read_events, eq);
		read_events(eq);
	}
	close_world(&w, NULL);
}

static void read_queue(void *argument)
{
	struct fid_cq *cq = argument;
	struct fi_cq_tagged_entry entries[4];

	for (int n = 0; n < 50; n++) {
		if (fi_cq_sread(cq, entries, 4, NULL, 0) == -FI_EAVAIL) {
			struct fi_cq_err_entry *error = exactly(error_entry_size(), "", 1);
			fi_cq_readerr(cq, error, 0);
			free(error);
		}
	}
}

static void read_counter(void *argument)
{
	for (int n = 0; n < 100; n++) {
		fi_cntr_read(argument);
		fi_cntr_wait(argument, 1000, 0);
	}
}

static void endpoint_closed_while_its_queue_is_read(void)
{
	struct world w;
	struct fid_av *av;

	open_simple(&w, FI_MSG, &av);
	for (int round = 0; round < ROUNDS; round++) {
		struct fi_cq_attr wanted = { .wait_obj = round % 2 ? FI_WAIT_NONE : FI_WAIT_FD, .format = FI_CQ_FORMAT_TAGGED };
		struct fi_cq_attr *attr = exactly(queue_attr_size(), &wanted, sizeof(wanted));
		struct fid_cq *cq;
		struct fid_cntr *cntr;
		struct fid_ep *ep;
		char *buffer = malloc(64);
		NEEDS(fi_cq_open(w.domain, attr, &cq, NULL));
		free(attr);
		NEEDS(fi_cntr_open(w.domain, NULL, &cntr, NULL));
		NEEDS(fi_endpoint(w.domain, w.info, &ep, NULL));
		NEEDS(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
		NEEDS(fi_ep_bind(ep, &cntr->fid, FI_RECV));
		NEEDS(fi_ep_bind(ep, &av->fid, 0));
		NEEDS(fi_enable(ep));
		fi_addr_t self = insert_name(av, &ep->fid);
		fi_recv(ep, buffer, 64, NULL, FI_ADDR_UNSPEC, NULL);
		fi_send(ep, "message", 8, NULL, self, NULL);
		race(close_it, ep, round % 3 ? read_queue : read_counter, round % 3 ? (void *)cq : (void *)cntr);
		free(buffer);
		fi_av_remove(av, &self, 1, 0);
		NEEDS(fi_close(&cq->fid));
		NEEDS(fi_close(&cntr->fid));
	}
	close_world(&w, NULL);
}

/* Each context and its queue in a separate thread. */
struct half {
	struct fid_ep *ep;
	struct fid_cq *cq;
	fi_addr_t peer;
	bool receives;
	char memory[64];
};

static void use_half(void *argument)
{
	struct half *half = argument;
	struct fi_cq_tagged_entry entries[8];

	for (int n = 0; n < 3000; n++) {
		if (half->receives)
			fi_recv(half->ep, half->memory, sizeof(half->memory), NULL, FI_ADDR_UNSPEC, NULL);
		else
			fi_send(half->ep, half->memory, 8, NULL, half->peer, NULL);
		for (int turn = 0; turn < 3; turn++)
			fi_cq_read(half->cq, entries, 8);
	}
}

static void halves_in_two_threads(void)
{
	struct world w;
	struct fid_av *av;
	struct fid_ep *sep;
	struct half halves[2] = { { .receives = true }, { .receives = false } };

	open_simple(&w, FI_MSG, &av);
	NEEDS(fi_scalable_ep(w.domain, w.info, &sep, &w));
	keep(&w, "scalable endpoint", &sep->fid, w.domain, 0);
	NEEDS(fi_scalable_ep_bind(sep, &av->fid, 0));
	NEEDS(fi_rx_context(sep, 0, NULL, &halves[0].ep, &w));
	NEEDS(fi_tx_context(sep, 0, NULL, &halves[1].ep, &w));
	for (int at = 0; at < 2; at++) {
		halves[at].cq = open_queue(&w, "queue", FI_WAIT_NONE, FI_CQ_FORMAT_TAGGED, NULL);
		keep(&w, "context", &halves[at].ep->fid, sep, 0);
		NEEDS(fi_ep_bind(halves[at].ep, &halves[at].cq->fid, at ? FI_TRANSMIT : FI_RECV));
		NEEDS(fi_enable(halves[at].ep));
	}
	NEEDS(fi_enable(sep));
	halves[1].peer = insert_name(av, &sep->fid);
	race(use_half, &halves[0], use_half, &halves[1]);
	close_world(&w, NULL);
}

static void read_for_long(void *argument)
{
	for (int n = 0; n < 20000; n++)
		fi_cntr_read(argument);
}

/* One thread uses an endpoint with its queue, the other a region's counter. */
static void counter_beside_endpoint(void)
{
	struct world w;
	struct fid_av *av;
	struct fid_mr *mr;
	struct fid_cntr *cntr;
	struct half half = { 0 };

	open_simple(&w, FI_MSG | FI_RMA | FI_RMA_EVENT, &av);
	half.cq = open_queue(&w, "queue", FI_WAIT_NONE, FI_CQ_FORMAT_TAGGED, NULL);
	half.ep = open_bound(&w, av, half.cq);
	keep(&w, "endpoint", &half.ep->fid, w.domain, new_part(&w));
	cntr = open_counter(&w, "counter", FI_WAIT_NONE, NULL);
	mr = open_region(&w, "region", 4096, 0);
	fi_mr_bind(mr, &cntr->fid, FI_REMOTE_WRITE);
	half.peer = insert_name(av, &half.ep->fid);
	race(use_half, &half, read_for_long, cntr);
	close_world(&w, NULL);
}

/* Each thread uses an endpoint with its own objects. */
static void two_endpoints(void)
{
	struct world w;
	struct fid_av *av;
	struct half halves[2] = { { .receives = true }, { .receives = false } };

	open_simple(&w, FI_MSG, &av);
	for (int at = 0; at < 2; at++) {
		halves[at].cq = open_queue(&w, "queue", at ? FI_WAIT_NONE : any_wait(), FI_CQ_FORMAT_TAGGED, NULL);
		halves[at].ep = open_bound(&w, av, halves[at].cq);
		keep(&w, "endpoint", &halves[at].ep->fid, w.domain, new_part(&w));
	}
	halves[1].peer = insert_name(av, &halves[0].ep->fid);
	race(use_half, &halves[0], use_half, &halves[1]);
	close_world(&w, NULL);
}

/* ---- all objects of a scenario, closed by two threads ---- */

struct closer {
	struct world *world;
	int first;
};

/* Closes every second object. A rejected close is repeated. */
static void close_half(void *argument)
{
	struct closer *closer = argument;
	struct world *w = closer->world;

	for (bool left = true; left;) {
		left = false;
		for (int at = w->count - 1; at >= 0; at--) {
			struct object *o = &w->objects[at];
			if (at % 2 != closer->first || o->closed)
				continue;
			int code = fi_close(o->fid);
			MUST(code == 0 || code == -FI_EBUSY, "fi_close of %s: %d (%s)", o->name, code, code_text(code));
			o->closed = code == 0;
			left |= code != 0;
		}
		if (left)
			usleep(50);
	}
}

static void closed_by_two(void)
{
	for (size_t at = 0; at < scenario_count; at++)
		for (int round = 0; round < 8; round++) {
			static struct world w;
			struct closer closers[2] = { { &w, 0 }, { &w, 1 } };
			if (!scenarios[at].open(&w))
				continue;
			/* Scenarios with objects that must be emptied first are closed by one thread. */
			if (!w.before_retry)
				race(close_half, &closers[0], close_half, &closers[1]);
			close_world(&w, NULL);
		}
}

#define EACH_ITS_OWN (SAFE | LEVEL(FID) | LEVEL(COMPLETION) | LEVEL(ENDPOINT))

const struct together togethers[] = {
	{ "an endpoint and its alias closed at once", SAFE, alias_closed_at_once },
	{ "a region closed while its event is read", SAFE, region_closed_while_its_event_is_read },
	{ "an endpoint closed while its queue is read", SAFE, endpoint_closed_while_its_queue_is_read },
	{ "halves of a pair of contexts in two threads", EACH_ITS_OWN, halves_in_two_threads },
	{ "a region's counter beside an endpoint", EACH_ITS_OWN, counter_beside_endpoint },
	{ "everything closed by two threads", SAFE, closed_by_two },
	{ "two endpoints in two threads", EACH_ITS_OWN, two_endpoints },
	{ "forked children", ~0u, forked },
};
const size_t together_count = COUNT(togethers);
