/* Groups and their collectives; address vectors, their sets and their events. */
#include "walk.h"

/* Two endpoints of one domain in one group. */
struct group {
	struct fid_ep *ep[2];
	struct fid_cq *cq[2];
	struct fid_mc *mc[2];
	struct fid_av_set *set;
	struct fid_eq *eq;
	int parts[2];
};

static void drive(struct group *g)
{
	for (int at = 0; at < 2; at++)
		fi_cq_read(g->cq[at], NULL, 0);
}

static void post_collective(struct world *w, struct group *g, int side, int kind)
{
	fi_addr_t group = fi_mc_addr(g->mc[side]);
	struct fid_ep *ep = g->ep[side];
	char *out = lend(w, g->parts[side], 64), *in = lend(w, g->parts[side], 128);

	switch (kind) {
	case 0:
		fi_barrier(ep, group, NULL);
		break;
	case 1:
		fi_barrier2(ep, group, FI_COMPLETION, NULL);
		break;
	case 2:
		fi_broadcast(ep, out, 8, NULL, group, 0, FI_UINT64, 0, NULL);
		break;
	case 3:
		fi_alltoall(ep, out, 4, NULL, in, NULL, group, FI_UINT64, 0, NULL);
		break;
	case 4:
		fi_allreduce(ep, out, 8, NULL, in, NULL, group, FI_UINT64, FI_SUM, 0, NULL);
		break;
	case 5:
		fi_allgather(ep, out, 8, NULL, in, NULL, group, FI_UINT64, 0, NULL);
		break;
	case 6:
		fi_reduce_scatter(ep, out, 4, NULL, in, NULL, group, FI_UINT64, FI_SUM, 0, NULL);
		break;
	case 7:
		fi_reduce(ep, out, 8, NULL, in, NULL, group, 1, FI_UINT64, FI_BXOR, 0, NULL);
		break;
	case 8:
		fi_scatter(ep, out, 4, NULL, in, NULL, group, 0, FI_UINT64, 0, NULL);
		break;
	case 9:
		fi_gather(ep, out, 8, NULL, in, NULL, group, 0, FI_UINT64, 0, NULL);
		break;
	default: {
		/* No inline function calls this entry. */
		struct fi_ioc result = { in, 8 }, operand = { out, 8 };
		void *desc = NULL;
		struct fi_msg_collective msg = { .msg_iov = &operand, .desc = &desc, .iov_count = 1, .coll_addr = group, .root_addr = 0,
						 .coll = FI_ALLREDUCE, .datatype = FI_UINT64, .op = FI_SUM };
		ep->collective->msg(ep, &msg, &result, &desc, 1, 0);
	}
	}
}

bool grouped(struct world *w)
{
	struct fi_av_set_attr attr = { .count = 2, .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL };
	struct fi_info *hints, *info;
	struct group g = { 0 };
	struct fid_av *av;
	fi_addr_t members[2], address;

	if (setting.api < FI_VERSION(1, 9))
		return false;
	hints = hints_of(FI_EP_RDM, FI_MSG | FI_COLLECTIVE);
	info = answer(NULL, NULL, 0, hints);
	fi_freeinfo(hints);
	if (!info)
		return false;
	open_fabric(w, info);
	open_domain(w);
	av = open_vector(w, "vector", FI_AV_TABLE, 0, NULL);
	g.eq = open_events(w, "events", any_wait(), NULL);
	for (int at = 0; at < 2; at++) {
		g.parts[at] = new_part(w);
		g.cq[at] = open_queue(w, "queue", any_wait(), any_format(), NULL);
		NEEDS(fi_endpoint(w->domain, w->info, &g.ep[at], w));
		keep(w, "endpoint", &g.ep[at]->fid, w->domain, g.parts[at]);
		NEEDS(fi_ep_bind(g.ep[at], &g.cq[at]->fid, FI_TRANSMIT | FI_RECV));
		NEEDS(fi_ep_bind(g.ep[at], &av->fid, 0));
		NEEDS(fi_ep_bind(g.ep[at], &g.eq->fid, 0));
		uses(w, g.ep[at], g.cq[at]);
		uses(w, g.ep[at], av);
		uses(w, g.ep[at], g.eq);
		NEEDS(fi_enable(g.ep[at]));
	}
	NEEDS(fi_av_set(av, &attr, &g.set, w));
	keep(w, "set", &g.set->fid, av, 0);
	for (int at = 0; at < 2; at++) {
		members[at] = insert_name(av, &g.ep[at]->fid);
		NEEDS(fi_av_set_insert(g.set, members[at]));
	}
	NEEDS(fi_av_set_addr(g.set, &address));
	/* In some runs only one of them joins, and the group never forms. */
	for (int at = 0; at < 2 - !below(4); at++) {
		NEEDS(fi_join_collective(g.ep[at], address, g.set, 0, &g.mc[at], w));
		keep(w, "group", &g.mc[at]->fid, w->domain, 0);
	}
	for (int n = 0; n < 2000 && g.mc[1] && fi_mc_addr(g.mc[1]) == FI_ADDR_NOTAVAIL; n++) {
		drive(&g);
		if (!below(8))
			read_event(g.eq);
	}
	for (int n = (int)below(12); n > 0 && g.mc[1]; n--) {
		int kind = (int)below(11);
		for (int at = 0; at < 2; at++)
			if (below(5))
				post_collective(w, &g, at, kind);
		drive(&g);
	}
	return true;
}

static const char *const shared_name = "percale-walk";

bool vectors(struct world *w)
{
	struct fi_info *hints = hints_of(FI_EP_RDM, FI_MSG), *info;
	const bool sets = setting.api >= FI_VERSION(1, 9);
	static fi_addr_t inserted[8];
	struct fid_av *later, *map, *named = NULL;
	struct fid_eq *eq;
	struct fi_av_attr attr = { .type = FI_AV_TABLE, .name = shared_name, .flags = below(3) ? 0 : FI_READ };
	int errors[4];

	hints->domain_attr->mr_mode = any_region_mode(false);
	hints->addr_format = FI_SOCKADDR_IN;
	info = answer(NULL, NULL, 0, hints);
	fi_freeinfo(hints);
	if (!info)
		return false;
	open_fabric(w, info);
	open_domain(w);
	eq = open_events(w, "events", any_wait(), NULL);
	later = open_vector(w, "vector with events", FI_AV_TABLE, FI_EVENT, NULL);
	MUST(fi_av_insertsvc(later, "127.0.0.1", "4000", inserted, 0, NULL) < 0, "no event queue is bound");
	NEEDS(fi_av_bind(later, &eq->fid, 0));
	uses(w, later, eq);
	MUST(fi_av_bind(later, &eq->fid, 0) != 0, "bound twice");
	NEEDS(fi_av_insertsvc(later, "127.0.0.1", "4000", inserted, 0, w));
	NEEDS(fi_av_insertsym(later, "127.0.0.1", 2, "4000", 2, inserted + 1, 0, w));
	NEEDS(fi_av_insertsvc(later, "no such host name", "4000", inserted + 5, 0, w));
	for (uint64_t n = below(5); n > 0; n--)
		read_event(eq);
	map = open_vector(w, "map", FI_AV_MAP, 0, NULL);
	MUST(fi_av_insertsvc(map, "127.0.0.1", "4001", inserted + 6, 0, NULL) == 1, "not inserted");
	fi_av_insertsym(map, "127.0.0.1", 2, "4002", 1, inserted + 6, FI_SYNC_ERR, errors);
	fi_av_remove(map, inserted + 6, 1, 0);
	fi_av_remove(map, inserted + 6, 1, 0);
	if (fi_av_open(w->domain, &attr, &named, w) == 0) {
		keep(w, "named vector", &named->fid, w->domain, 0);
		fi_av_insertsvc(named, "127.0.0.1", "4003", NULL, 0, NULL);
	}
	for (int n = 0; sets && n < 2; n++) {
		struct fi_av_set_attr of = { .count = below(3), .start_addr = n ? 0 : FI_ADDR_NOTAVAIL, .end_addr = n ? 1 : FI_ADDR_NOTAVAIL, .stride = 1 };
		struct fid_av_set *set = NULL;
		if (fi_av_set(later, &of, &set, w) == 0)
			keep(w, "set", &set->fid, later, 0);
	}
	return true;
}
