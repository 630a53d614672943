/* Scenarios, each of which opens several objects: datagram endpoints, aliases, scalable endpoints, shared contexts. */
#include "walk.h"

#define ALL_CAPS (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC)

const struct scenario scenarios[] = {
	{ "two endpoints", rdm_pair, odd_everything },
	{ "alias", rdm_alias, odd_everything },
	{ "scalable endpoint", scalable, odd_everything },
	{ "shared contexts", shared_contexts, odd_everything },
	{ "connection", connected, odd_everything },
	{ "refused connection", refused_connection, odd_everything },
	{ "connection request", requested, odd_everything },
	{ "regions", registered, odd_everything },
	{ "regions with events", registered_later, odd_everything },
	{ "windows", windows, odd_windows },
	{ "groups", grouped, odd_everything },
	{ "waiting", waited, odd_everything },
	{ "vectors", vectors, odd_everything },
	{ "deferred work", deferred, odd_everything },
};
const size_t scenario_count = COUNT(scenarios);
const struct scenario in_all_orders[] = {
	{ "all orders of one endpoint", one_endpoint, NULL },
	{ "all orders of windows", windows, NULL },
	{ "all orders of regions with events", registered_later, NULL },
};
const size_t in_all_orders_count = COUNT(in_all_orders);

/* Registers the domain's memory for operations that pass descriptors (FI_MR_LOCAL): the complete address space. */
static void describe(struct world *w)
{
	int mode = w->info->domain_attr->mr_mode;
	bool old = mode == FI_MR_BASIC || mode == FI_MR_SCALABLE;
	struct fid_mr *mr;

	if (!(old ? w->info->mode & FI_LOCAL_MR : (uint64_t)(mode & FI_MR_LOCAL)))
		return;
	/* The domain cannot be closed before the region. */
	NEEDS(fi_mr_reg(w->domain, NULL, SIZE_MAX, FI_SEND | FI_RECV | FI_READ | FI_WRITE, 0, 99, 0, &mr, NULL));
	keep(w, "description", &mr->fid, w->domain, 0);
	w->desc = fi_mr_desc(mr);
}

static bool open_room(struct world *w, uint64_t caps, bool may_describe)
{
	const bool described = may_describe && describes();
	struct fi_info *hints = hints_of(FI_EP_RDM, caps), *info;
	const bool more = setting.api >= FI_VERSION(1, 5);

	hints->domain_attr->mr_mode = any_region_mode(described);
	if (described && !more)
		hints->mode |= FI_LOCAL_MR;
	hints->ep_attr->tx_ctx_cnt = hints->ep_attr->rx_ctx_cnt = 1;
	hints->tx_attr->op_flags = below(3) ? 0 : FI_COMPLETION | (more && below(2) ? FI_DELIVERY_COMPLETE : 0);
	info = answer(NULL, NULL, 0, hints);
	if (!info) {
		hints->domain_attr->mr_mode = setting.api < FI_VERSION(1, 5) ? FI_MR_UNSPEC : 0;
		info = answer(NULL, NULL, 0, hints);
	}
	/* Registration modes that the provider clears in its results apply if the domain is opened with them. */
	if (info && more)
		info->domain_attr->mr_mode = hints->domain_attr->mr_mode;
	if (info)
		info->mode |= hints->mode & FI_LOCAL_MR;
	fi_freeinfo(hints);
	if (!info)
		return false;
	open_fabric(w, info);
	open_domain(w);
	describe(w);
	return true;
}

/* One queue for both directions, or one for each. */
static void bind_queues(struct world *w, struct side *s, struct fid_ep *ep)
{
	enum fi_wait_obj wait = any_wait();
	uint64_t selective = below(4) ? 0 : FI_SELECTIVE_COMPLETION;

	s->format = any_format();
	s->txcq = s->rxcq = open_queue(w, "queue", wait, s->format, NULL);
	if (sometimes()) {
		NEEDS(fi_ep_bind(ep, &s->txcq->fid, FI_TRANSMIT | FI_RECV | selective));
	} else {
		s->rxcq = open_queue(w, "receive queue", any_wait(), s->format, NULL);
		NEEDS(fi_ep_bind(ep, &s->txcq->fid, FI_TRANSMIT | selective));
		NEEDS(fi_ep_bind(ep, &s->rxcq->fid, FI_RECV));
		uses(w, ep, s->rxcq);
	}
	uses(w, ep, s->txcq);
}

static void open_side(struct world *w, struct side *s, struct fid_av *av, bool counted)
{
	static const uint64_t all[] = { FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE };
	int part = new_part(w);

	*s = (struct side){ .world = w, .txpart = part, .rxpart = part, .can_receive = true, .can_send = true, .can_access = true };
	NEEDS(fi_endpoint(w->domain, w->info, &s->tx, s));
	s->rx = s->tx;
	keep(w, "endpoint", &s->tx->fid, w->domain, part);
	bind_queues(w, s, s->tx);
	if (counted) {
		struct fid_cntr *cntr = open_counter(w, "counter", any_wait(), NULL);
		uint64_t flags = 0;
		for (size_t at = 0; at < COUNT(all); at++)
			flags |= below(2) * all[at];
		NEEDS(fi_ep_bind(s->tx, &cntr->fid, flags ? flags : FI_SEND));
		uses(w, s->tx, cntr);
	}
	NEEDS(fi_ep_bind(s->tx, &av->fid, 0));
	uses(w, s->tx, av);
	if (counted && sometimes())
		NEEDS(fi_setopt(&s->tx->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &(size_t){ below(200) }, sizeof(size_t)));
	NEEDS(fi_enable(s->tx));
}

static void reach(struct side *s, struct fid_mr *mr, const void *memory)
{
	s->key = fi_mr_key(mr);
	s->address = base_of(s->world, memory);
}

bool open_pair(struct world *w, struct side sides[2], uint64_t caps, bool counted)
{
	struct fid_av *av;
	struct fid_mr *mr;
	enum fi_av_type type;

	if (!open_room(w, caps, true))
		return false;
	type = w->info->domain_attr->av_type == FI_AV_MAP || below(2) ? FI_AV_MAP : FI_AV_TABLE;
	av = open_vector(w, "vector", type, 0, NULL);
	mr = open_region(w, "region", 8192, 0);
	for (int at = 0; at < 2; at++)
		open_side(w, &sides[at], av, counted);
	for (int at = 0; at < 2; at++) {
		sides[at].peer = insert_name(av, &sides[1 - at].tx->fid);
		reach(&sides[at], mr, w->loans[0].memory);
	}
	return true;
}

bool rdm_pair(struct world *w)
{
	struct side sides[2];

	if (!open_pair(w, sides, ALL_CAPS | FI_DIRECTED_RECV | FI_SOURCE, sometimes()))
		return false;
	if (!below(6))
		post_each(&sides[0], &sides[1]);
	stir(&sides[0], &sides[1], (int)below(24));
	return true;
}

bool rdm_alias(struct world *w)
{
	struct side sides[2], aliased;
	struct fid_ep *alias = NULL;

	if (!open_pair(w, sides, ALL_CAPS, false))
		return false;
	NEEDS(fi_ep_alias(sides[0].tx, &alias, FI_TRANSMIT | below(2) * FI_COMPLETION));
	keep(w, "alias", &alias->fid, w->domain, sides[0].txpart);
	uses(w, alias, sides[0].txcq);
	aliased = sides[0];
	aliased.tx = aliased.rx = alias;
	stir(&aliased, &sides[1], (int)below(12));
	return true;
}

bool scalable(struct world *w)
{
	struct side sides[2];
	struct fid_ep *sep;
	struct fid_av *av;
	struct fid_mr *mr;

	if (!open_room(w, ALL_CAPS, true))
		return false;
	av = open_vector(w, "vector", FI_AV_TABLE, 0, NULL);
	mr = open_region(w, "region", 8192, 0);
	NEEDS(fi_scalable_ep(w->domain, w->info, &sep, w));
	keep(w, "scalable endpoint", &sep->fid, w->domain, 0);
	NEEDS(fi_scalable_ep_bind(sep, &av->fid, 0));
	uses(w, sep, av);
	open_side(w, &sides[1], av, false);
	sides[0] = (struct side){ .world = w, .txpart = new_part(w), .rxpart = new_part(w), .format = any_format(),
				  .can_receive = true, .can_send = true, .can_access = true };
	NEEDS(fi_tx_context(sep, 0, sometimes() ? w->info->tx_attr : NULL, &sides[0].tx, w));
	keep(w, "transmit context", &sides[0].tx->fid, sep, sides[0].txpart);
	NEEDS(fi_rx_context(sep, 0, sometimes() ? w->info->rx_attr : NULL, &sides[0].rx, w));
	keep(w, "receive context", &sides[0].rx->fid, sep, sides[0].rxpart);
	sides[0].txcq = open_queue(w, "transmit queue", any_wait(), sides[0].format, NULL);
	sides[0].rxcq = open_queue(w, "receive queue", any_wait(), sides[0].format, NULL);
	NEEDS(fi_ep_bind(sides[0].tx, &sides[0].txcq->fid, FI_TRANSMIT));
	NEEDS(fi_ep_bind(sides[0].rx, &sides[0].rxcq->fid, FI_RECV));
	uses(w, sides[0].tx, sides[0].txcq);
	uses(w, sides[0].rx, sides[0].rxcq);
	NEEDS(fi_enable(sides[0].tx));
	NEEDS(fi_enable(sides[0].rx));
	NEEDS(fi_enable(sep));
	sides[0].peer = insert_name(av, &sides[1].tx->fid);
	sides[1].peer = insert_name(av, &sep->fid);
	for (int at = 0; at < 2; at++)
		reach(&sides[at], mr, w->loans[0].memory);
	stir(&sides[0], &sides[1], (int)below(20));
	/* A posted receive, and the message for it in progress. */
	fi_recv(sides[0].rx, lend(w, sides[0].rxpart, 64), 64, w->desc, FI_ADDR_UNSPEC, NULL);
	if (sometimes())
		fi_send(sides[1].tx, lend(w, sides[1].txpart, 64), 64, w->desc, sides[1].peer, NULL);
	return true;
}

bool shared_contexts(struct world *w)
{
	struct side sides[2];
	struct fid_ep *srx;
	struct fid_stx *stx = NULL;
	struct fid_av *av;
	struct fid_mr *mr;
	int shared;

	if (!open_room(w, ALL_CAPS, true))
		return false;
	av = open_vector(w, "vector", FI_AV_TABLE, 0, NULL);
	mr = open_region(w, "region", 8192, 0);
	NEEDS(fi_srx_context(w->domain, w->info->rx_attr, &srx, w));
	shared = new_part(w);
	keep(w, "shared receive context", &srx->fid, w->domain, shared);
	NEEDS(fi_stx_context(w->domain, w->info->tx_attr, &stx, w));
	keep(w, "shared transmit context", &stx->fid, w->domain, 0);
	for (int at = 0; at < 2; at++) {
		struct side *s = &sides[at];
		*s = (struct side){ .world = w, .txpart = new_part(w), .rxpart = shared, .format = any_format(),
				    .can_receive = true, .can_send = true, .can_access = true, .rx = srx };
		NEEDS(fi_endpoint(w->domain, w->info, &s->tx, s));
		keep(w, "endpoint", &s->tx->fid, w->domain, s->txpart);
		s->txcq = s->rxcq = open_queue(w, "queue", any_wait(), s->format, NULL);
		NEEDS(fi_ep_bind(s->tx, &s->txcq->fid, FI_TRANSMIT | FI_RECV));
		NEEDS(fi_ep_bind(s->tx, &av->fid, 0));
		NEEDS(fi_ep_bind(s->tx, &srx->fid, 0));
		NEEDS(fi_ep_bind(s->tx, &stx->fid, 0));
		uses(w, s->tx, s->txcq);
		uses(w, s->tx, av);
		uses(w, s->tx, srx);
		uses(w, s->tx, stx);
		NEEDS(fi_enable(s->tx));
		reach(s, mr, w->loans[0].memory);
	}
	for (int at = 0; at < 2; at++)
		sides[at].peer = insert_name(av, &sides[1 - at].tx->fid);
	stir(&sides[0], &sides[1], (int)below(20));
	return true;
}

/* Fabric, domain, vector, queue, region, and an endpoint that sends to itself. */
bool one_endpoint(struct world *w)
{
	struct side s;
	struct fid_av *av;
	struct fid_mr *mr;
	int part;

	if (!open_room(w, ALL_CAPS, false))
		return false;
	av = open_vector(w, "vector", FI_AV_TABLE, 0, NULL);
	mr = open_region(w, "region", 8192, 0);
	part = new_part(w);
	s = (struct side){ .world = w, .txpart = part, .rxpart = part, .can_receive = true, .can_send = true, .can_access = true,
			   .format = any_format() };
	s.txcq = s.rxcq = open_queue(w, "queue", any_wait(), s.format, NULL);
	NEEDS(fi_endpoint(w->domain, w->info, &s.tx, w));
	s.rx = s.tx;
	keep(w, "endpoint", &s.tx->fid, w->domain, part);
	NEEDS(fi_ep_bind(s.tx, &s.txcq->fid, FI_TRANSMIT | FI_RECV));
	NEEDS(fi_ep_bind(s.tx, &av->fid, 0));
	uses(w, s.tx, s.txcq);
	uses(w, s.tx, av);
	NEEDS(fi_enable(s.tx));
	s.peer = insert_name(av, &s.tx->fid);
	reach(&s, mr, w->loans[0].memory);
	stir(&s, &s, (int)below(6));
	return true;
}
