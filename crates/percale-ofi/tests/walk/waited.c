/* Wait sets and poll sets with their members. */
#include "walk.h"

static struct fid_poll *poll_set;
static struct fid *members[3];

/* A poll set must be emptied before it is closed. Removes some of the members that are open. */
static void empty(struct world *w)
{
	for (size_t at = 0; at < COUNT(members); at++) {
		struct object *o = members[at] ? find(w, members[at]) : NULL;
		if (!o || o->closed || find(w, poll_set)->closed || below(2))
			continue;
		NEEDS(fi_poll_del(poll_set, members[at], 0));
		no_longer_uses(w, poll_set, members[at]);
		members[at] = NULL;
	}
}

bool waited(struct world *w)
{
	struct fi_wait_attr wait = { .wait_obj = below(2) ? FI_WAIT_FD : FI_WAIT_UNSPEC };
	struct fi_poll_attr poll = { 0 };
	struct fi_info *hints = hints_of(FI_EP_RDM, FI_MSG), *info;
	struct fid_wait *set;
	struct fid_cq *cq;
	struct fid_cntr *cntr;
	struct fid_eq *eq;
	struct side s;
	void *contexts[3];
	int code;

	hints->domain_attr->mr_mode = any_region_mode(false);
	info = answer(NULL, NULL, 0, hints);
	fi_freeinfo(hints);
	if (!info)
		return false;
	open_fabric(w, info);
	code = fi_wait_open(w->fabric, below(4) ? &wait : NULL, &set);
	NEEDS(code);
	keep(w, "wait set", &set->fid, w->fabric, 0);
	open_domain(w);
	cq = open_queue(w, "queue", FI_WAIT_SET, any_format(), set);
	cntr = open_counter(w, "counter", FI_WAIT_SET, set);
	eq = open_events(w, "events", FI_WAIT_SET, set);
	NEEDS(fi_poll_open(w->domain, below(2) ? &poll : NULL, &poll_set));
	keep(w, "poll set", &poll_set->fid, w->domain, 0);
	NEEDS(fi_poll_add(poll_set, &cq->fid, 0));
	members[0] = &cq->fid;
	NEEDS(fi_poll_add(poll_set, &cntr->fid, 0));
	members[1] = &cntr->fid;
	members[2] = NULL;
	if (fi_poll_add(poll_set, &eq->fid, 0) == 0)
		members[2] = &eq->fid;
	for (size_t at = 0; at < COUNT(members); at++)
		if (members[at])
			uses(w, poll_set, (void *)members[at]);
	MUST(fi_poll_add(poll_set, &w->domain->fid, 0) != 0, "a domain is polled");

	/* The thread waits for results of this endpoint. */
	struct fid_av *av = open_vector(w, "vector", FI_AV_TABLE, 0, NULL);
	s = (struct side){ .world = w, .txcq = cq, .rxcq = cq, .txpart = new_part(w), .can_receive = true, .can_send = true };
	s.rxpart = s.txpart;
	NEEDS(fi_endpoint(w->domain, w->info, &s.tx, w));
	s.rx = s.tx;
	keep(w, "endpoint", &s.tx->fid, w->domain, s.txpart);
	NEEDS(fi_ep_bind(s.tx, &cq->fid, FI_TRANSMIT | FI_RECV));
	NEEDS(fi_ep_bind(s.tx, &cntr->fid, FI_SEND | FI_RECV));
	NEEDS(fi_ep_bind(s.tx, &av->fid, 0));
	uses(w, s.tx, cq);
	uses(w, s.tx, cntr);
	uses(w, s.tx, av);
	NEEDS(fi_enable(s.tx));
	fi_addr_t self = insert_name(av, &s.tx->fid);
	fi_recv(s.rx, lend(w, s.rxpart, 100), 100, NULL, FI_ADDR_UNSPEC, NULL);
	fi_send(s.tx, lend(w, s.txpart, 10), 10, NULL, self, NULL);
	fi_poll(poll_set, contexts, (int)below(4));
	fi_wait(set, 0);
	if (sometimes()) {
		/* There is a result, or one will arrive. */
		fi_cntr_add(cntr, 1);
		code = fi_wait(set, -1);
		MUST(code == 0 || code == -FI_EAGAIN || code == -FI_ETIMEDOUT, "%d", code);
		fi_poll(poll_set, contexts, 3);
	}
	w->before_retry = empty;
	return true;
}
