/* Connected endpoints (fi_cm(3)): listening, connecting with data, accepting, rejecting, the end of a connection. */
#include <pthread.h>
#include "every.h"

#include <netinet/in.h>

/* One end of a connection. */
struct end {
	struct fid_eq *eq;
	struct fid_cq *cq;
	struct fid_ep *ep;
};

struct listener {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_eq *eq;
	struct fid_pep *pep;
	struct sockaddr_in address;
};

/* An event with its data. */
struct event {
	struct fi_eq_cm_entry entry;
	char data[512];
};

static struct fi_info *hints(void)
{
	struct fi_info *h = fi_allocinfo();

	MUST(h, "out of memory");
	h->fabric_attr->prov_name = strdup(options.provider);
	h->caps = FI_MSG | FI_RMA | FI_ATOMIC;
	h->mode = FI_CONTEXT;
	h->ep_attr->type = FI_EP_MSG;
	h->addr_format = FI_SOCKADDR_IN;
	return h;
}

/* Open event queues. A thread that waits on one of them also drives the others, because all belong to this process. */
static struct fid_eq *queues[6];

static struct fid_eq *open_events(struct fid_fabric *fabric)
{
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
	struct fid_eq *eq;

	NEEDS(fi_eq_open(fabric, &attr, &eq, NULL));
	for (size_t at = 0; at < COUNT(queues); at++) {
		if (!queues[at]) {
			queues[at] = eq;
			break;
		}
	}
	return eq;
}

static void close_events(struct fid_eq *eq)
{
	for (size_t at = 0; at < COUNT(queues); at++)
		if (queues[at] == eq)
			queues[at] = NULL;
	ANSWERS(0, fi_close(&eq->fid));
}

/* Waits for an event or an error, with or without a buffer for the event. */
static ssize_t wait_at(struct fid_eq *eq, uint32_t *event, struct event *e)
{
	double until = now() + WAIT_LIMIT;
	struct event other;
	uint32_t ignored;
	ssize_t got;

	while ((got = fi_eq_sread(eq, event, e, e ? sizeof(*e) : 0, 10, 0)) == -FI_EAGAIN && now() < until)
		for (size_t at = 0; at < COUNT(queues); at++)
			if (queues[at])
				fi_eq_read(queues[at], &ignored, &other, sizeof(other), FI_PEEK);
	return got;
}

static void open_listener(struct listener *l)
{
	struct fi_info *h = hints();
	size_t len = sizeof(l->address);
	int backlog = 5;

	NEEDS(fi_getinfo(API, "127.0.0.1", NULL, FI_SOURCE, h, &l->info));
	fi_freeinfo(h);
	NEEDS(fi_fabric(l->info->fabric_attr, &l->fabric, NULL));
	NEEDS(fi_domain(l->fabric, l->info, &l->domain, NULL));
	l->eq = open_events(l->fabric);
	NEEDS(fi_passive_ep(l->fabric, l->info, &l->pep, l));
	CHECK(l->pep->fid.fclass == FI_CLASS_PEP, "class %zu", l->pep->fid.fclass);
	NEEDS(fi_pep_bind(l->pep, &l->eq->fid, 0));
	ANSWERS(0, fi_control(&l->pep->fid, FI_BACKLOG, &backlog));
	NEEDS(fi_listen(l->pep));
	NEEDS(fi_getname(&l->pep->fid, &l->address, &len));
	CHECK(l->address.sin_port != 0, "no port");
}

static void close_listener(struct listener *l)
{
	ANSWERS(0, fi_close(&l->pep->fid));
	close_events(l->eq);
	ANSWERS(0, fi_close(&l->domain->fid));
	ANSWERS(0, fi_close(&l->fabric->fid));
	fi_freeinfo(l->info);
}

/* Opens an end with its own event queue, or with this one. */
static void open_end_at(struct end *end, struct listener *l, struct fi_info *info, struct fid_eq *eq)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_DATA };

	end->eq = eq ? eq : open_events(l->fabric);
	NEEDS(fi_cq_open(l->domain, &attr, &end->cq, NULL));
	NEEDS(fi_endpoint(l->domain, info, &end->ep, end));
	NEEDS(fi_ep_bind(end->ep, &end->eq->fid, 0));
	NEEDS(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV));
	NEEDS(fi_enable(end->ep));
}

static void open_end(struct end *end, struct listener *l, struct fi_info *info)
{
	open_end_at(end, l, info, NULL);
}

static void close_end_only(struct end *end)
{
	ANSWERS(0, fi_close(&end->ep->fid));
	ANSWERS(0, fi_close(&end->cq->fid));
}

static void close_end(struct end *end)
{
	close_end_only(end);
	close_events(end->eq);
}

/* Checks that the next event is this one. Returns the number of bytes of its data. */
static size_t expect(struct fid_eq *eq, uint32_t wanted, struct event *e)
{
	uint32_t event = 0;
	ssize_t got = wait_at(eq, &event, e);

	MUST(got >= (ssize_t)sizeof(e->entry), "event %u did not arrive: %zd", wanted, got);
	CHECK(event == wanted, "event %u, not %u", event, wanted);
	return (size_t)got - sizeof(e->entry);
}

/* Requests a connection. Returns the request as the listener receives it. */
static struct fi_info *request(struct listener *l, struct end *client, const char *data)
{
	struct event e;
	uint32_t event;
	size_t len;

	open_end(client, l, l->info);
	NEEDS(fi_connect(client->ep, &l->address, data, strlen(data) + 1));
	/* Without a buffer the event stays in the queue, because the handle of the request would be lost. */
	ANSWERS(-FI_ETOOSMALL, wait_at(l->eq, &event, NULL));
	len = expect(l->eq, FI_CONNREQ, &e);
	CHECK(e.entry.fid == &l->pep->fid && e.entry.info, "another listener's");
	CHECK(len >= strlen(data) + 1 && !strcmp((char *)e.entry.data, data), "other data");
	return e.entry.info;
}

static void exchange(struct end *from, struct end *to)
{
	char out[3000], in[3000] = "";
	struct fi_cq_data_entry entry;
	double until = now() + WAIT_LIMIT;
	int seen = 0;

	fill(out, sizeof(out), 4);
	/* There is only one peer, so the named peer is ignored. */
	asserts("AV-053");
	NEEDS(fi_recv(to->ep, in, sizeof(in), NULL, FI_ADDR_NOTAVAIL, context(1)));
	NEEDS(fi_send(from->ep, out, sizeof(out), NULL, FI_ADDR_NOTAVAIL, context(2)));
	while (seen < 2) {
		MUST(now() < until, "the message does not arrive");
		seen += fi_cq_read(from->cq, &entry, 1) == 1;
		seen += fi_cq_read(to->cq, &entry, 1) == 1;
	}
	CHECK(is_filled(in, sizeof(in), 4), "other bytes than were sent");
}

/* Waits for the completion of an access. Returns its error, or 0. */
static int accessed(struct end *from, struct end *to)
{
	struct fi_cq_err_entry error = { 0 };
	struct fi_cq_data_entry entry;
	double until = now() + WAIT_LIMIT;
	ssize_t got;

	while ((got = fi_cq_read(from->cq, &entry, 1)) == -FI_EAGAIN) {
		MUST(now() < until, "no completion");
		fi_cq_read(to->cq, NULL, 0);
	}
	if (got == 1)
		return 0;
	ANSWERS(1, fi_cq_readerr(from->cq, &error, 0));
	return error.err;
}

/* Accesses and atomic operations need no address vector either. */
static void access_peer(struct listener *l, struct end *from, struct end *to)
{
	uint64_t memory[4] = { 1, 2, 3, 4 }, out = 40, in = 0;
	struct fid_mr *mr;

	NEEDS(fi_mr_reg(l->domain, memory, sizeof(memory), FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 5, 0, &mr, NULL));
	NEEDS(fi_write(from->ep, &out, 8, NULL, FI_ADDR_NOTAVAIL, 8, 5, context(3)));
	ANSWERS(0, accessed(from, to));
	NEEDS(fi_atomic(from->ep, &out, 1, NULL, FI_ADDR_NOTAVAIL, 16, 5, FI_UINT64, FI_SUM, context(4)));
	ANSWERS(0, accessed(from, to));
	NEEDS(fi_read(from->ep, &in, 8, NULL, FI_ADDR_NOTAVAIL, 16, 5, context(5)));
	ANSWERS(0, accessed(from, to));
	CHECK(memory[1] == 40 && memory[2] == 43 && in == 43, "%llu %llu", (unsigned long long)memory[1], (unsigned long long)memory[2]);
	ANSWERS(0, fi_close(&mr->fid));
}

static void connected(struct listener *l)
{
	struct end client, server;
	struct fi_info *info;
	struct event e;
	struct sockaddr_in a, b;
	size_t len = sizeof(a);
	char question[256], answer[256];

	memset(question, '?', sizeof(question)), memset(answer, '!', sizeof(answer));
	question[255] = answer[255] = 0;
	asserts("CON-013");
	info = request(l, &client, question);
	open_end(&server, l, info);
	NEEDS(fi_accept(server.ep, answer, sizeof(answer)));
	fi_freeinfo(info);
	len = expect(client.eq, FI_CONNECTED, &e);
	CHECK(len >= sizeof(answer) && !strcmp((char *)e.entry.data, answer), "other data");
	expect(server.eq, FI_CONNECTED, &e);
	CHECK(e.entry.fid == &server.ep->fid, "another endpoint");
	exchange(&client, &server);
	exchange(&server, &client);
	access_peer(l, &client, &server);
	access_peer(l, &server, &client);
	len = sizeof(a);
	ANSWERS(0, fi_getpeer(client.ep, &a, &len));
	CHECK(a.sin_port == l->address.sin_port, "another peer");
	len = sizeof(a);
	ANSWERS(0, fi_getname(&client.ep->fid, &a, &len));
	ANSWERS(0, fi_getpeer(server.ep, &b, &len));
	CHECK(a.sin_family == b.sin_family, "another family");
	len = sizeof(a);
	ANSWERS(0, fi_getname(&server.ep->fid, &a, &len));
	CHECK(a.sin_port == l->address.sin_port && a.sin_addr.s_addr == l->address.sin_addr.s_addr, "not the listener's name");
	ANSWERS(0, fi_shutdown(client.ep, 0));
	expect(server.eq, FI_SHUTDOWN, &e);
	CHECK(e.entry.fid == &server.ep->fid, "another endpoint");
	close_end(&client);
	close_end(&server);
}

/* Sends that there is no connection for are rejected. Receives may be posted at any time. Each end connects once. */
static void before_and_after(struct listener *l)
{
	struct end client, server;
	struct fi_info *info;
	struct event e;
	char out[8] = "message", in[8] = "", last[8];

	asserts("CON-014");
	open_end(&client, l, l->info);
	NEEDS(fi_recv(client.ep, in, sizeof(in), NULL, FI_ADDR_NOTAVAIL, context(1)));
	ANSWERS(-FI_EOPBADSTATE, fi_send(client.ep, out, sizeof(out), NULL, FI_ADDR_NOTAVAIL, context(2)));
	ANSWERS(-FI_EOPBADSTATE, fi_inject(client.ep, out, sizeof(out), FI_ADDR_NOTAVAIL));
	ANSWERS(-FI_EOPBADSTATE, fi_write(client.ep, out, sizeof(out), NULL, FI_ADDR_NOTAVAIL, 0, 5, context(2)));
	NEEDS(fi_connect(client.ep, &l->address, NULL, 0));
	ANSWERS(-FI_EOPBADSTATE, fi_send(client.ep, out, sizeof(out), NULL, FI_ADDR_NOTAVAIL, context(2)));
	CHECK(fi_connect(client.ep, &l->address, NULL, 0) < 0, "connected twice");
	expect(l->eq, FI_CONNREQ, &e);
	info = e.entry.info;
	open_end(&server, l, info);
	ANSWERS(-FI_EOPBADSTATE, fi_send(server.ep, out, sizeof(out), NULL, FI_ADDR_NOTAVAIL, context(2)));
	NEEDS(fi_accept(server.ep, NULL, 0));
	ANSWERS(-FI_EOPBADSTATE, fi_accept(server.ep, NULL, 0));
	fi_freeinfo(info);
	expect(client.eq, FI_CONNECTED, &e);
	expect(server.eq, FI_CONNECTED, &e);
	CHECK(fi_connect(client.ep, &l->address, NULL, 0) < 0, "connected twice");
	/* The message is received by the receive from before. */
	NEEDS(fi_send(server.ep, out, sizeof(out), NULL, FI_ADDR_NOTAVAIL, context(2)));
	ANSWERS(0, accessed(&server, &client));
	ANSWERS(0, accessed(&client, &server));
	CHECK(!strcmp(in, "message"), "%s", in);
	NEEDS(fi_recv(client.ep, last, sizeof(last), NULL, FI_ADDR_NOTAVAIL, context(3)));
	ANSWERS(0, fi_shutdown(server.ep, 0));
	ANSWERS(-FI_EOPBADSTATE, fi_send(server.ep, out, sizeof(out), NULL, FI_ADDR_NOTAVAIL, context(2)));
	expect(client.eq, FI_SHUTDOWN, &e);
	CHECK(accessed(&client, &server) != 0, "a receive that no message can reach is open");
	ANSWERS(-FI_EOPBADSTATE, fi_send(client.ep, out, sizeof(out), NULL, FI_ADDR_NOTAVAIL, context(2)));
	NEEDS(fi_recv(client.ep, last, sizeof(last), NULL, FI_ADDR_NOTAVAIL, context(3)));
	CHECK(accessed(&client, &server) != 0, "a receive that no message can reach is open");
	close_end(&client);
	close_end(&server);
}

/* One queue for a listener and its connections: the end of one connection is reported before the request for the next. */
static void one_queue(struct listener *l)
{
	struct end clients[3], servers[3];
	struct event e;

	open_end(&clients[0], l, l->info);
	NEEDS(fi_connect(clients[0].ep, &l->address, NULL, 0));
	for (size_t at = 0; at < 3; at++) {
		expect(l->eq, FI_CONNREQ, &e);
		MUST(e.entry.info, "no request");
		open_end_at(&servers[at], l, e.entry.info, l->eq);
		fi_freeinfo(e.entry.info);
		NEEDS(fi_accept(servers[at].ep, NULL, 0));
		expect(clients[at].eq, FI_CONNECTED, &e);
		if (at < 2) {
			open_end(&clients[at + 1], l, l->info);
			NEEDS(fi_connect(clients[at + 1].ep, &l->address, NULL, 0));
		}
		expect(l->eq, FI_CONNECTED, &e);
		CHECK(e.entry.fid == &servers[at].ep->fid, "another endpoint than %zu", at);
	}
	for (size_t at = 0; at < 3; at++) {
		exchange(&clients[at], &servers[at]);
		close_end(&clients[at]);
		close_end_only(&servers[at]);
	}
}

static void rejected(struct listener *l)
{
	struct end client;
	struct fi_info *info = request(l, &client, "may I?");
	struct fi_eq_err_entry error = { 0 };
	struct event e;
	uint32_t event;

	NEEDS(fi_reject(l->pep, info->handle, "no", 3));
	fi_freeinfo(info);
	ANSWERS(-FI_EAVAIL, wait_at(client.eq, &event, &e));
	ANSWERS(sizeof(error), fi_eq_readerr(client.eq, &error, 0));
	CHECK(error.err == FI_ECONNREFUSED && error.fid == &client.ep->fid, "error %d", error.err);
	CHECK(error.err_data_size >= 3 && !memcmp(error.err_data, "no", 3), "%zu bytes of data", error.err_data_size);
	close_end(&client);
}

/* The data of an error is cut to the client's buffer, and nothing beyond the buffer is written. */
static void data_of_errors(struct listener *l)
{
	static const char reason[] = "not today";
	static const size_t rooms[] = { 1, sizeof(reason) - 1, sizeof(reason), 32 };

	for (size_t at = 0; at < COUNT(rooms); at++) {
		size_t room = rooms[at], least = room < sizeof(reason) ? room : sizeof(reason);
		char data[64];
		struct fi_eq_err_entry error = { .err_data = data, .err_data_size = room };
		struct end client;
		struct fi_info *info = request(l, &client, "may I?");
		struct event e;
		uint32_t event;

		NEEDS(fi_reject(l->pep, info->handle, reason, sizeof(reason)));
		fi_freeinfo(info);
		ANSWERS(-FI_EAVAIL, wait_at(client.eq, &event, &e));
		memset(data, '.', sizeof(data));
		ANSWERS(sizeof(error), fi_eq_readerr(client.eq, &error, 0));
		CHECK(error.err_data == data && error.err_data_size >= least && error.err_data_size <= room,
		      "%zu bytes of data in a buffer of %zu", error.err_data_size, room);
		CHECK(!memcmp(data, reason, least), "other data in a buffer of %zu", room);
		for (size_t n = room; n < sizeof(data); n++)
			CHECK(data[n] == '.', "byte %zu was written in a buffer of %zu", n, room);
		close_end(&client);
	}
}

/* An answer that is rejected because of its data has no effect: the request can still be answered. */
static void too_much_data(struct listener *l)
{
	static char data[1 << 16];
	struct end client, server;
	struct fi_info *info = request(l, &client, "may I?");
	struct event e;
	size_t most = 0, len = sizeof(most);

	ANSWERS(0, fi_getopt(&l->pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &most, &len));
	MUST(most > 0 && most < sizeof(data), "%zu", most);
	ANSWERS(-FI_EINVAL, fi_connect(client.ep, &l->address, data, most + 1));
	ANSWERS(-FI_EINVAL, fi_reject(l->pep, info->handle, data, most + 1));
	open_end(&server, l, info);
	ANSWERS(-FI_EINVAL, fi_accept(server.ep, data, most + 1));
	ANSWERS(0, fi_accept(server.ep, "welcome", 8));
	ANSWERS(-FI_EOPBADSTATE, fi_accept(server.ep, "welcome", 8));
	fi_freeinfo(info);
	expect(client.eq, FI_CONNECTED, &e);
	expect(server.eq, FI_CONNECTED, &e);
	exchange(&client, &server);
	close_end(&client);
	close_end(&server);
}

/* The client's connection is rejected with these bytes of data. */
static void turned_away(struct end *client, const char *data, size_t len)
{
	struct fi_eq_err_entry error = { 0 };
	struct event e;
	uint32_t event;

	ANSWERS(-FI_EAVAIL, wait_at(client->eq, &event, &e));
	ANSWERS(sizeof(error), fi_eq_readerr(client->eq, &error, 0));
	CHECK(error.err == FI_ECONNREFUSED, "error %d", error.err);
	CHECK(error.err_data_size >= len && !memcmp(error.err_data, data, len), "%zu bytes of data", error.err_data_size);
	close_end(client);
}

/* The listener's thread: sleeps in one call until the next request, and rejects it. */
static void *sleep_at_listener(void *at)
{
	struct listener *l = at;
	struct event e;
	uint32_t event = 0;

	MUST(fi_eq_sread(l->eq, &event, &e, sizeof(e), WAIT_LIMIT * 1000, 0) >= (ssize_t)sizeof(e.entry), "no event");
	MUST(event == FI_CONNREQ, "event %u", event);
	MUST(fi_reject(l->pep, e.entry.info->handle, "no", 3) == 0, "not rejected");
	fi_freeinfo(e.entry.info);
	return NULL;
}

/* The request of a closed endpoint is rejected while the only thread of the listener sleeps. */
static void abandoned_while_asleep(struct listener *l)
{
	struct end client, server, next;
	struct fi_info *info = request(l, &client, "may I?");
	struct event e;
	uint32_t event;
	pthread_t sleeper;

	open_end(&server, l, info);
	close_end(&server);
	fi_freeinfo(info);
	MUST(pthread_create(&sleeper, NULL, sleep_at_listener, l) == 0, "no thread");
	ANSWERS(-FI_EAVAIL, fi_eq_sread(client.eq, &event, &e, sizeof(e), WAIT_LIMIT * 500, 0));
	turned_away(&client, NULL, 0);
	open_end(&next, l, l->info);
	NEEDS(fi_connect(next.ep, &l->address, "me", 3));
	ANSWERS(-FI_EAVAIL, fi_eq_sread(next.eq, &event, &e, sizeof(e), WAIT_LIMIT * 500, 0));
	turned_away(&next, "no", 3);
	pthread_join(sleeper, NULL);
}

/* The requests to a closed listener are rejected. Later uses of their handles are rejected too. */
static void closed_listener(struct listener *l)
{
	struct listener other;
	struct end client;
	struct fi_info *info;
	struct fid_ep *late = NULL;

	open_listener(&other);
	info = request(&other, &client, "may I?");
	ANSWERS(0, fi_close(&other.pep->fid));
	ANSWERS(-FI_EINVAL, fi_reject(l->pep, info->handle, "no", 3));
	ANSWERS(-FI_ECONNABORTED, fi_endpoint(other.domain, info, &late, NULL));
	fi_freeinfo(info);
	turned_away(&client, NULL, 0);
	close_events(other.eq);
	ANSWERS(0, fi_close(&other.domain->fid));
	ANSWERS(0, fi_close(&other.fabric->fid));
	fi_freeinfo(other.info);
}

/* A request outlives the endpoints that were opened for it, until it is answered. Later uses of its handle are
 * rejected. */
static void requests(struct listener *l)
{
	struct end client, server;
	struct fi_info *info;
	struct fid_ep *late = NULL;
	struct event e;

	/* The request is rejected. */
	info = request(l, &client, "may I?");
	open_end(&server, l, info);
	close_end(&server);
	ANSWERS(0, fi_reject(l->pep, info->handle, "no", 3));
	ANSWERS(-FI_EINVAL, fi_reject(l->pep, info->handle, "no", 3));
	ANSWERS(-FI_ECONNABORTED, fi_endpoint(l->domain, info, &late, NULL));
	turned_away(&client, "no", 3);
	/* The request is accepted with another endpoint. */
	struct fi_info *other = request(l, &client, "may I?");
	ANSWERS(-FI_ECONNABORTED, fi_endpoint(l->domain, info, &late, NULL));
	open_end(&server, l, other);
	close_end(&server);
	open_end(&server, l, other);
	NEEDS(fi_accept(server.ep, NULL, 0));
	ANSWERS(-FI_EINVAL, fi_reject(l->pep, other->handle, NULL, 0));
	expect(client.eq, FI_CONNECTED, &e);
	expect(server.eq, FI_CONNECTED, &e);
	exchange(&client, &server);
	close_end(&client);
	close_end(&server);
	fi_freeinfo(info);
	fi_freeinfo(other);
	/* The request is rejected while an endpoint is open for it. */
	info = request(l, &client, "may I?");
	open_end(&server, l, info);
	ANSWERS(0, fi_reject(l->pep, info->handle, "no", 3));
	ANSWERS(-FI_EOPBADSTATE, fi_accept(server.ep, NULL, 0));
	close_end(&server);
	fi_freeinfo(info);
	turned_away(&client, "no", 3);
	/* The endpoint is closed and the request is not answered: the client gets an event. */
	info = request(l, &client, "may I?");
	open_end(&server, l, info);
	close_end(&server);
	fi_freeinfo(info);
	turned_away(&client, NULL, 0);
	abandoned_while_asleep(l);
	/* Handles that are not requests. */
	ANSWERS(-FI_EINVAL, fi_reject(l->pep, NULL, NULL, 0));
	ANSWERS(-FI_EINVAL, fi_reject(l->pep, &l->pep->fid, NULL, 0));
}

/* An event contains the object and the context from the time of its creation, even if the object is closed later. */
static void events_outlive_objects(struct listener *l)
{
	struct fi_eq_err_entry error = { 0 };
	struct end client;
	struct fi_info *info = request(l, &client, "may I?");
	struct fid_ep *base, *alias = NULL;
	struct event e;
	uint32_t event;

	NEEDS(fi_reject(l->pep, info->handle, "no", 3));
	fi_freeinfo(info);
	ANSWERS(-FI_EAVAIL, wait_at(client.eq, &event, &e));
	base = client.ep;
	ANSWERS(0, fi_close(&client.ep->fid));
	ANSWERS(sizeof(error), fi_eq_readerr(client.eq, &error, 0));
	CHECK(error.fid == &base->fid && error.context == &client, "another endpoint's");
	ANSWERS(0, fi_close(&client.cq->fid));
	close_events(client.eq);
	/* Only an alias is open when the event arrives. */
	info = request(l, &client, "may I?");
	NEEDS(fi_ep_alias(client.ep, &alias, FI_TRANSMIT));
	alias->fid.context = &alias;
	ANSWERS(0, fi_close(&client.ep->fid));
	ANSWERS(-FI_EBUSY, fi_close(&client.cq->fid));
	NEEDS(fi_reject(l->pep, info->handle, "no", 3));
	fi_freeinfo(info);
	ANSWERS(-FI_EAVAIL, wait_at(client.eq, &event, &e));
	memset(&error, 0, sizeof(error));
	ANSWERS(sizeof(error), fi_eq_readerr(client.eq, &error, 0));
	CHECK(error.fid == &alias->fid && error.context == &alias, "another endpoint's");
	ANSWERS(0, fi_close(&alias->fid));
	ANSWERS(0, fi_close(&client.cq->fid));
	close_events(client.eq);
}

/* Before 1.5 an error entry is not an input, and may contain anything. */
static void uninitialised_entries(void)
{
	struct fi_info *h = hints(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_eq *eq;
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_DATA };
	struct sockaddr_in nobody = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct fi_eq_err_entry error;
	char untouched[64];
	struct event e;
	uint32_t event;

	h->domain_attr->mr_mode = FI_MR_SCALABLE;
	NEEDS(fi_getinfo(FI_VERSION(1, 4), "127.0.0.1", NULL, FI_SOURCE, h, &info));
	fi_freeinfo(h);
	NEEDS(fi_fabric(info->fabric_attr, &fabric, NULL));
	NEEDS(fi_domain(fabric, info, &domain, NULL));
	eq = open_events(fabric);
	NEEDS(fi_cq_open(domain, &attr, &cq, NULL));
	NEEDS(fi_endpoint(domain, info, &ep, NULL));
	NEEDS(fi_ep_bind(ep, &eq->fid, 0));
	NEEDS(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	NEEDS(fi_connect(ep, &nobody, NULL, 0));
	ANSWERS(-FI_EAVAIL, wait_at(eq, &event, &e));
	memset(&error, 0xff, sizeof(error));
	memset(untouched, '.', sizeof(untouched));
	error.err_data = untouched;
	error.err_data_size = sizeof(untouched);
	ANSWERS(sizeof(error), fi_eq_readerr(eq, &error, 0));
	CHECK(error.err_data != untouched, "the initial value of err_data was used as a buffer");
	for (size_t at = 0; at < sizeof(untouched); at++)
		CHECK(untouched[at] == '.', "byte %zu", at);
	ANSWERS(0, fi_close(&ep->fid));
	ANSWERS(0, fi_close(&cq->fid));
	close_events(eq);
	ANSWERS(0, fi_close(&domain->fid));
	ANSWERS(0, fi_close(&fabric->fid));
	fi_freeinfo(info);
}

/* An active endpoint takes over the address of a passive one (fi_endpoint(3)). */
static void converted(struct listener *l)
{
	struct sockaddr_in free_port, name;
	size_t len = sizeof(free_port);
	struct listener other;
	struct end end = { .eq = open_events(l->fabric) };
	struct fid_pep *pep;
	struct fid_eq *second = open_events(l->fabric);
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_DATA };
	struct fid_ep *late = NULL;
	struct fi_info *info = fi_dupinfo(l->info);

	open_listener(&other);
	free_port = other.address;
	/* A listening endpoint keeps its address. */
	info->handle = &other.pep->fid;
	ANSWERS(-FI_EOPBADSTATE, fi_endpoint(l->domain, info, &late, NULL));
	/* A second event queue, or one of another fabric, does not replace the first. */
	ANSWERS(-FI_EINVAL, fi_pep_bind(other.pep, &end.eq->fid, 0));
	close_listener(&other);
	NEEDS(fi_passive_ep(l->fabric, l->info, &pep, NULL));
	ANSWERS(-FI_EBADFLAGS, fi_pep_bind(pep, &end.eq->fid, FI_SEND));
	ANSWERS(0, fi_pep_bind(pep, &end.eq->fid, 0));
	ANSWERS(-FI_EINVAL, fi_pep_bind(pep, &second->fid, 0));
	ANSWERS(0, fi_close(&second->fid));
	for (size_t at = 0; at < COUNT(queues); at++)
		if (queues[at] == second)
			queues[at] = NULL;
	NEEDS(fi_setname(&pep->fid, &free_port, sizeof(free_port)));
	info->handle = &pep->fid;
	NEEDS(fi_endpoint(l->domain, info, &end.ep, NULL));
	ANSWERS(-FI_EOPBADSTATE, fi_endpoint(l->domain, info, &late, NULL));
	ANSWERS(-FI_EOPBADSTATE, fi_listen(pep));
	ANSWERS(0, fi_close(&pep->fid));
	NEEDS(fi_cq_open(l->domain, &attr, &end.cq, NULL));
	NEEDS(fi_ep_bind(end.ep, &end.eq->fid, 0));
	NEEDS(fi_ep_bind(end.ep, &end.cq->fid, FI_TRANSMIT | FI_RECV));
	NEEDS(fi_enable(end.ep));
	ANSWERS(0, fi_getname(&end.ep->fid, &name, &len));
	CHECK(name.sin_port == free_port.sin_port, "port %d, not %d", ntohs(name.sin_port), ntohs(free_port.sin_port));
	/* Other handles are rejected. */
	info->handle = &l->domain->fid;
	ANSWERS(-FI_EINVAL, fi_endpoint(l->domain, info, &late, NULL));
	info->handle = NULL;
	fi_freeinfo(info);
	close_end(&end);
}

/* The listener no longer exists. */
static void refused(void)
{
	struct listener l;
	struct end client;
	struct fi_eq_err_entry error = { 0 };
	struct event e;
	uint32_t event;

	open_listener(&l);
	ANSWERS(0, fi_close(&l.pep->fid));
	open_end(&client, &l, l.info);
	if (fi_connect(client.ep, &l.address, NULL, 0) == 0) {
		ANSWERS(-FI_EAVAIL, wait_at(client.eq, &event, &e));
		ANSWERS(sizeof(error), fi_eq_readerr(client.eq, &error, 0));
		CHECK(error.err == FI_ECONNREFUSED, "error %d", error.err);
	}
	close_end(&client);
	close_events(l.eq);
	ANSWERS(0, fi_close(&l.domain->fid));
	ANSWERS(0, fi_close(&l.fabric->fid));
	fi_freeinfo(l.info);
}

void connection_groups(void)
{
	struct listener l;

	if (!is_there("fi_passive_ep"))
		return;
	open_listener(&l);
	begin("cm: connect, accept, shut down");
	connected(&l);
	end();
	begin("cm: before and after the connection");
	before_and_after(&l);
	end();
	begin("cm: one queue");
	one_queue(&l);
	end();
	begin("cm: reject");
	rejected(&l);
	data_of_errors(&l);
	end();
	begin("cm: answers that are refused");
	too_much_data(&l);
	end();
	begin("cm: requests outlive endpoints");
	requests(&l);
	end();
	begin("cm: requests end with their listener");
	closed_listener(&l);
	end();
	begin("cm: events outlive endpoints");
	events_outlive_objects(&l);
	end();
	begin("cm: endpoints opened from passive ones");
	converted(&l);
	end();
	close_listener(&l);
	begin("cm: error entries before 1.5");
	uninitialised_entries();
	end();
	begin("cm: no listener");
	refused();
	end();
}
