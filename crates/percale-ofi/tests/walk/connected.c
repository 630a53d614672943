/* Connected and passive endpoints: connections, rejections, requests without an answer. */
#include "walk.h"

#include <netinet/in.h>
#include <time.h>

/* A listener, and a client that has requested a connection. */
struct meeting {
	struct fid_pep *pep;
	struct fid_eq *server_eq, *client_eq;
	struct side client;
	struct sockaddr_in address;
};

/* The time in milliseconds. */
static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* An event of a connection with its data. */
struct cm_event {
	struct fi_eq_cm_entry entry;
	char data[64];
};

/* Waits until there is an event or an error. FI_PEEK in `flags` leaves it in the queue. Also drives the other queue. */
static ssize_t wait_for(struct fid_eq *eq, struct fid_eq *other, uint32_t *event, struct cm_event *e, uint64_t flags)
{
	uint64_t until = now() + 20000;
	struct cm_event ignored;
	uint32_t which;
	ssize_t got;

	while ((got = fi_eq_read(eq, event, e, sizeof(*e), flags)) == -FI_EAGAIN) {
		MUST(now() < until, "no event arrived");
		fi_eq_read(other, &which, &ignored, sizeof(ignored), FI_PEEK);
	}
	return got;
}

static void open_end(struct world *w, struct side *s, const char *name, struct fi_info *info, struct fid_eq *eq)
{
	int part = new_part(w);

	*s = (struct side){ .world = w, .txpart = part, .rxpart = part, .format = any_format(), .peer = FI_ADDR_NOTAVAIL,
			    .can_receive = true, .can_send = true };
	s->txcq = s->rxcq = open_queue(w, "queue", any_wait(), s->format, NULL);
	NEEDS(fi_endpoint(w->domain, info, &s->tx, w));
	s->rx = s->tx;
	keep(w, name, &s->tx->fid, w->domain, part);
	NEEDS(fi_ep_bind(s->tx, &eq->fid, 0));
	NEEDS(fi_ep_bind(s->tx, &s->txcq->fid, FI_TRANSMIT | FI_RECV));
	uses(w, s->tx, s->txcq);
	uses(w, s->tx, eq);
	NEEDS(fi_enable(s->tx));
}

static bool listen_here(struct world *w, struct meeting *m)
{
	struct fi_info *hints = hints_of(FI_EP_MSG, FI_MSG | FI_TAGGED), *info;
	size_t length = sizeof(m->address);

	hints->addr_format = FI_SOCKADDR_IN;
	hints->domain_attr->mr_mode = setting.api < FI_VERSION(1, 5) ? FI_MR_UNSPEC : 0;
	info = answer("127.0.0.1", "0", FI_SOURCE, hints);
	fi_freeinfo(hints);
	if (!info)
		return false;
	open_fabric(w, info);
	m->server_eq = open_events(w, "server's events", any_wait(), NULL);
	m->client_eq = open_events(w, "client's events", any_wait(), NULL);
	NEEDS(fi_passive_ep(w->fabric, w->info, &m->pep, w));
	keep(w, "passive endpoint", &m->pep->fid, w->fabric, 0);
	NEEDS(fi_pep_bind(m->pep, &m->server_eq->fid, 0));
	uses(w, m->pep, m->server_eq);
	NEEDS(fi_listen(m->pep));
	NEEDS(fi_getname(&m->pep->fid, &m->address, &length));
	listening = m->pep;
	open_domain(w);
	return true;
}

static void ask(struct world *w, struct meeting *m)
{
	open_end(w, &m->client, "client", w->info, m->client_eq);
	NEEDS(fi_connect(m->client.tx, &m->address, "may I?", below(2) * 7));
}

/* Returns the request that arrived. */
static struct fi_info *request(struct meeting *m)
{
	struct cm_event e;
	uint32_t event = 0;

	MUST(wait_for(m->server_eq, m->client_eq, &event, &e, 0) >= (ssize_t)sizeof(e.entry) && event == FI_CONNREQ, "event %u", event);
	return e.entry.info;
}

bool connected(struct world *w)
{
	struct meeting m;
	struct side server;
	struct fi_info *info;
	struct cm_event e;
	uint32_t event;

	if (!listen_here(w, &m))
		return false;
	ask(w, &m);
	info = request(&m);
	open_end(w, &server, "server", info, m.server_eq);
	fi_freeinfo(info);
	NEEDS(fi_accept(server.tx, "welcome", below(2) * 8));
	/* Unread events stay in the queue. */
	if (sometimes()) {
		wait_for(m.client_eq, m.server_eq, &event, &e, below(2) ? FI_PEEK : 0);
		if (sometimes())
			wait_for(m.server_eq, m.client_eq, &event, &e, 0);
		stir(&m.client, &server, (int)below(16));
	}
	if (sometimes())
		fi_shutdown(sometimes() ? m.client.tx : server.tx, 0);
	if (sometimes())
		read_event(m.server_eq);
	return true;
}

bool refused_connection(struct world *w)
{
	struct meeting m;
	struct fi_info *info;
	struct cm_event e;
	struct fid_ep *alias = NULL;
	uint32_t event;

	if (!listen_here(w, &m))
		return false;
	ask(w, &m);
	if (sometimes()) {
		NEEDS(fi_ep_alias(m.client.tx, &alias, FI_TRANSMIT));
		keep(w, "alias", &alias->fid, w->domain, m.client.txpart);
		uses(w, alias, m.client.txcq);
		uses(w, alias, m.client_eq);
	}
	info = request(&m);
	NEEDS(fi_reject(m.pep, info->handle, "no", below(2) * 3));
	fi_freeinfo(info);
	/* The error is available, and stays until it is read. */
	MUST(wait_for(m.client_eq, m.server_eq, &event, &e, 0) == -FI_EAVAIL, "no error, event %u", event);
	if (!below(3))
		read_event(m.client_eq);
	return true;
}

bool requested(struct world *w)
{
	struct meeting m;
	struct side server;
	struct fi_info *info;
	struct fid_ep *attempt;
	struct cm_event e;
	uint32_t event;
	unsigned way = (unsigned)below(5);

	if (!listen_here(w, &m))
		return false;
	ask(w, &m);
	/* The request is never read, or only peeked at. */
	if (way == 0)
		return true;
	if (way == 1) {
		wait_for(m.server_eq, m.client_eq, &event, &e, FI_PEEK);
		return true;
	}
	info = request(&m);
	if (way == 2) {
		open_end(w, &server, "server", info, m.server_eq);
	} else {
		/*
		 * An endpoint is opened for the request, cannot be enabled, and is closed. After that the request is
		 * answered in another way.
		 */
		int code;
		NEEDS(fi_endpoint(w->domain, info, &attempt, w));
		adopt(&attempt->fid);
		code = fi_enable(attempt);
		MUST(code < 0, "an endpoint without a queue is enabled");
		NEEDS(fi_close(&attempt->fid));
		if (way == 3) {
			fi_reject(m.pep, info->handle, NULL, 0);
		} else if (fi_endpoint(w->domain, info, &attempt, w) == 0) {
			keep(w, "second attempt", &attempt->fid, w->domain, 0);
		}
	}
	fi_freeinfo(info);
	return true;
}
