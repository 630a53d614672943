/* Scalable endpoints and shared contexts (fi_endpoint(3)). */
#include "every.h"

#include <netinet/in.h>

#define MANY 2
#define BITS 2

/* All queues of a group. A thread that waits on one of them also drives the others, because all belong to this process. */
static struct fid_cq *queues[16];
static size_t opened;

static struct fid_cq *open_queue(struct room *room)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_TAGGED, .size = 256 };

	MUST(opened < COUNT(queues), "too many queues");
	NEEDS(fi_cq_open(room->domain, &attr, &queues[opened], NULL));
	return queues[opened++];
}

static void close_queues(void)
{
	while (opened > 0)
		ANSWERS(0, fi_close(&queues[--opened]->fid));
}

/* Returns the next completion of a queue, or its error. Meanwhile it drives the other queues, without reading them. */
static int next(struct fid_cq *cq, struct fi_cq_tagged_entry *entry, fi_addr_t *source)
{
	struct fi_cq_err_entry error = { 0 };
	double until = now() + WAIT_LIMIT;
	ssize_t got;

	while ((got = fi_cq_readfrom(cq, entry, 1, source)) == -FI_EAGAIN) {
		MUST(now() < until, "no completion arrived");
		for (size_t at = 0; at < opened; at++)
			if (queues[at] != cq)
				fi_cq_read(queues[at], NULL, 0);
	}
	if (got == -FI_EAVAIL) {
		MUST(fi_cq_readerr(cq, &error, 0) == 1, "no error to read");
		entry->op_context = error.op_context;
		entry->flags = error.flags;
		return error.err;
	}
	MUST(got == 1, "%zd (%s)", got, code_text(got));
	return 0;
}

static void nothing_at(struct fid_cq *cq)
{
	struct fi_cq_tagged_entry entry;

	for (int round = 0; round < 50; round++)
		ANSWERS(-FI_EAGAIN, fi_cq_read(cq, &entry, 1));
}

/* A scalable endpoint with its contexts, and two queues for each. */
struct scalable {
	struct fid_ep *sep, *tx[MANY], *rx[MANY];
	struct fid_cq *txcq[MANY], *rxcq[MANY];
	fi_addr_t address;
};

static void open_scalable(struct scalable *s, struct room *room, struct fid_av *av, bool enabled)
{
	memset(s, 0, sizeof(*s));
	NEEDS(fi_scalable_ep(room->domain, room->info, &s->sep, s));
	CHECK(s->sep->fid.fclass == FI_CLASS_SEP && s->sep->fid.context == s, "class %zu", s->sep->fid.fclass);
	for (int at = 0; at < MANY; at++) {
		NEEDS(fi_tx_context(s->sep, at, at ? room->info->tx_attr : NULL, &s->tx[at], s));
		NEEDS(fi_rx_context(s->sep, at, at ? room->info->rx_attr : NULL, &s->rx[at], s));
		CHECK(s->tx[at]->fid.fclass == FI_CLASS_TX_CTX, "class %zu", s->tx[at]->fid.fclass);
		CHECK(s->rx[at]->fid.fclass == FI_CLASS_RX_CTX, "class %zu", s->rx[at]->fid.fclass);
		s->txcq[at] = open_queue(room);
		s->rxcq[at] = open_queue(room);
	}
	NEEDS(fi_scalable_ep_bind(s->sep, &av->fid, 0));
	ANSWERS(-FI_EINVAL, fi_scalable_ep_bind(s->sep, &s->txcq[0]->fid, 0));
	for (int at = 0; enabled && at < MANY; at++) {
		NEEDS(fi_ep_bind(s->tx[at], &s->txcq[at]->fid, FI_TRANSMIT));
		NEEDS(fi_ep_bind(s->rx[at], &s->rxcq[at]->fid, FI_RECV));
		NEEDS(fi_enable(s->tx[at]));
		NEEDS(fi_enable(s->rx[at]));
	}
	if (enabled)
		NEEDS(fi_enable(s->sep));
}

static void insert_scalable(struct scalable *s, struct fid_av *av)
{
	struct sockaddr_in6 name;
	size_t len = sizeof(name);

	NEEDS(fi_getname(&s->sep->fid, &name, &len));
	MUST(fi_av_insert(av, &name, 1, &s->address, 0, NULL) == 1, "an address");
}

static void close_scalable(struct scalable *s)
{
	for (int at = 0; at < MANY; at++) {
		ANSWERS(-FI_EBUSY, fi_close(&s->sep->fid));
		ANSWERS(0, fi_close(&s->rx[at]->fid));
		ANSWERS(0, fi_close(&s->tx[at]->fid));
	}
	ANSWERS(0, fi_close(&s->sep->fid));
}

static void open_contexts(struct room *room, struct fid_av **av, const struct settings *how)
{
	struct fi_av_attr attr = { .type = FI_AV_TABLE, .count = 8, .rx_ctx_bits = BITS };

	open_room(room, how);
	room->info->ep_attr->tx_ctx_cnt = room->info->ep_attr->rx_ctx_cnt = MANY;
	NEEDS(fi_av_open(room->domain, &attr, av, NULL));
}

static const struct settings plain = { .name = "contexts", .caps = FI_NAMED_RX_CTX, .av_type = FI_AV_TABLE,
				       .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL };
static const struct settings serial = { .name = "contexts", .caps = FI_NAMED_RX_CTX, .av_type = FI_AV_TABLE,
					.threading = FI_THREAD_DOMAIN, .progress = FI_PROGRESS_MANUAL };

/* One message from a context to a context. Its source is the sender's plain address. */
static void pass(struct scalable *from, int tx, struct scalable *to, int rx, bool tagged, size_t len)
{
	fi_addr_t peer = fi_rx_addr(to->address, rx, BITS), source = FI_ADDR_UNSPEC;
	struct fi_cq_tagged_entry entry;
	static char out[1 << 17], in[1 << 17];

	fill(out, len, tx * 16 + rx);
	memset(in, 0, len);
	if (tagged) {
		NEEDS(fi_trecv(to->rx[rx], in, len, NULL, FI_ADDR_UNSPEC, 7, 0, context(1)));
		NEEDS(fi_tsend(from->tx[tx], out, len, NULL, peer, 7, context(2)));
	} else {
		NEEDS(fi_recv(to->rx[rx], in, len, NULL, FI_ADDR_UNSPEC, context(1)));
		NEEDS(fi_send(from->tx[tx], out, len, NULL, peer, context(2)));
	}
	ANSWERS(0, next(to->rxcq[rx], &entry, &source));
	CHECK(entry.op_context == context(1) && entry.len == len && is_filled(in, len, tx * 16 + rx), "another message");
	CHECK(source == from->address, "%#llx", (unsigned long long)source);
	ANSWERS(0, next(from->txcq[tx], &entry, NULL));
	CHECK(entry.op_context == context(2), "another operation");
}

static void messages(const struct settings *how)
{
	struct room room;
	struct fid_av *av;
	struct scalable a, b;
	char out[8];
	struct fi_cq_tagged_entry entry;

	open_contexts(&room, &av, how);
	open_scalable(&a, &room, av, true);
	open_scalable(&b, &room, av, true);
	insert_scalable(&a, av);
	insert_scalable(&b, av);
	asserts("AV-008 AV-051 CTX-001 CTX-002 CTX-011");
	for (int tx = 0; tx < MANY; tx++) {
		for (int rx = 0; rx < MANY; rx++) {
			for (size_t len = 8; len < 1 << 17; len *= 60) {
				pass(&a, tx, &b, rx, false, len);
				pass(&b, tx, &a, rx, true, len);
				pass(&a, tx, &a, rx, true, len);
			}
		}
	}
	for (int at = 0; at < MANY; at++) {
		nothing_at(a.rxcq[at]);
		nothing_at(b.rxcq[at]);
	}
	/* Context 3 does not exist. An address without a context is that of context 0. */
	asserts("CTX-003");
	NEEDS(fi_recv(b.rx[0], out, sizeof(out), NULL, FI_ADDR_UNSPEC, context(1)));
	NEEDS(fi_send(a.tx[1], "x", 1, NULL, b.address, context(2)));
	ANSWERS(0, next(b.rxcq[0], &entry, NULL));
	ANSWERS(0, next(a.txcq[1], &entry, NULL));
	NEEDS(fi_send(a.tx[0], "x", 1, NULL, fi_rx_addr(b.address, 3, BITS), context(3)));
	ANSWERS(FI_ECONNREFUSED, next(a.txcq[0], &entry, NULL));
	pass(&a, 0, &b, 0, false, 8);
	close_scalable(&a);
	close_scalable(&b);
	close_queues();
	ANSWERS(0, fi_close(&av->fid));
	close_room(&room);
}

/* fi_rx_addr addresses the right contexts. */
static void scalable_endpoints(void)
{
	begin("scalable endpoints");
	asserts("AV-051 AV-052");
	CHECK(fi_rx_addr(5, 3, 4) == (5 | 3ull << 60), "%#llx", (unsigned long long)fi_rx_addr(5, 3, 4));
	CHECK(fi_rx_addr(5, 0, 0) == 5, "%#llx", (unsigned long long)fi_rx_addr(5, 0, 0));
	messages(&plain);
	messages(&serial);
	end();
}

/* Memory accesses through contexts, and their options, aliases and names. */
static void parts_of_endpoints(void)
{
	struct room room;
	struct fid_av *av;
	struct scalable a, b;
	struct fid_mr *mr;
	struct fid_ep *alias = NULL;
	struct fi_cq_tagged_entry entry;
	struct sockaddr_in6 names[2];
	size_t lens[2] = { sizeof(names[0]), sizeof(names[1]) };
	char out[64], in[64] = { 0 };

	begin("contexts are endpoints");
	asserts("CTX-011");
	open_contexts(&room, &av, &plain);
	open_scalable(&a, &room, av, true);
	open_scalable(&b, &room, av, true);
	insert_scalable(&a, av);
	insert_scalable(&b, av);
	memset(names, 0, sizeof(names));
	NEEDS(fi_getname(&a.sep->fid, &names[0], &lens[0]));
	NEEDS(fi_getname(&a.rx[1]->fid, &names[1], &lens[1]));
	CHECK(lens[0] == lens[1] && !memcmp(&names[0], &names[1], lens[0]), "another name");
	NEEDS(fi_mr_reg(room.domain, in, sizeof(in), FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 77, 0, &mr, NULL));
	fill(out, sizeof(out), 4);
	NEEDS(fi_write(a.tx[1], out, sizeof(out), NULL, fi_rx_addr(b.address, 1, BITS), 0, fi_mr_key(mr), context(1)));
	ANSWERS(0, next(a.txcq[1], &entry, NULL));
	CHECK(entry.flags & FI_WRITE && is_filled(in, sizeof(in), 4), "not written");
	ANSWERS(0, fi_close(&mr->fid));
	NEEDS(fi_ep_alias(a.tx[0], &alias, FI_TRANSMIT));
	NEEDS(fi_recv(b.rx[0], in, sizeof(in), NULL, FI_ADDR_UNSPEC, context(1)));
	NEEDS(fi_send(alias, out, 8, NULL, b.address, context(2)));
	ANSWERS(0, next(b.rxcq[0], &entry, NULL));
	ANSWERS(0, next(a.txcq[0], &entry, NULL));
	ANSWERS(0, fi_close(&alias->fid));
	NEEDS(fi_recv(b.rx[1], in, sizeof(in), NULL, FI_ADDR_UNSPEC, context(9)));
	ANSWERS(0, fi_cancel(&b.rx[1]->fid, context(9)));
	ANSWERS(FI_ECANCELED, next(b.rxcq[1], &entry, NULL));
	close_scalable(&a);
	close_scalable(&b);
	close_queues();
	ANSWERS(0, fi_close(&av->fid));
	close_room(&room);
	end();
}

/* Rejected calls, and contexts with only one half in use. */
static void halves(void)
{
	struct room room;
	struct fid_av *av;
	struct scalable a;
	struct fid_ep *ep;
	struct fi_cq_tagged_entry entry;
	char in[8];

	begin("scalable endpoints that are set up by halves");
	asserts("CTX-011");
	open_contexts(&room, &av, &plain);
	CHECK(room.info->domain_attr->max_ep_tx_ctx >= MANY && room.info->domain_attr->max_ep_rx_ctx >= MANY, "too few");
	room.info->ep_attr->tx_ctx_cnt = 1 << 20;
	ANSWERS(-FI_EINVAL, fi_scalable_ep(room.domain, room.info, &ep, NULL));
	room.info->ep_attr->tx_ctx_cnt = MANY;
	room.info->ep_attr->type = FI_EP_MSG;
	ANSWERS(-FI_EINVAL, fi_scalable_ep(room.domain, room.info, &ep, NULL));
	room.info->ep_attr->type = FI_EP_RDM;
	NEEDS(fi_scalable_ep(room.domain, room.info, &ep, NULL));
	ANSWERS(-FI_ENOAV, fi_enable(ep));
	ANSWERS(-FI_EINVAL, fi_tx_context(ep, MANY, NULL, &a.tx[0], NULL));
	ANSWERS(-FI_EINVAL, fi_rx_context(ep, -1, NULL, &a.rx[0], NULL));
	ANSWERS(0, fi_close(&ep->fid));
	open_scalable(&a, &room, av, false);
	ANSWERS(-FI_EOPBADSTATE, fi_send(a.tx[0], "x", 1, NULL, 0, NULL));
	/* Each half is set up separately, at any time. */
	NEEDS(fi_ep_bind(a.tx[1], &a.txcq[1]->fid, FI_TRANSMIT));
	NEEDS(fi_enable(a.tx[1]));
	NEEDS(fi_ep_bind(a.tx[0], &a.txcq[0]->fid, FI_TRANSMIT));
	NEEDS(fi_ep_bind(a.rx[0], &a.rxcq[0]->fid, FI_RECV));
	NEEDS(fi_enable(a.rx[0]));
	NEEDS(fi_enable(a.tx[0]));
	insert_scalable(&a, av);
	NEEDS(fi_recv(a.rx[0], in, sizeof(in), NULL, FI_ADDR_UNSPEC, context(1)));
	NEEDS(fi_send(a.tx[1], "halves", 7, NULL, a.address, context(2)));
	ANSWERS(0, next(a.rxcq[0], &entry, NULL));
	CHECK(!strcmp(in, "halves"), "another message");
	ANSWERS(0, next(a.txcq[1], &entry, NULL));
	ANSWERS(-FI_EBADFLAGS, fi_ep_bind(a.rx[1], &a.rxcq[1]->fid, FI_TRANSMIT));
	ANSWERS(0, fi_ep_bind(a.rx[1], &a.rxcq[1]->fid, FI_RECV));
	ANSWERS(0, fi_enable(a.rx[1]));
	NEEDS(fi_enable(a.sep));
	pass(&a, 1, &a, 1, true, 64);
	/* Calls that belong to the other half. */
	CHECK(fi_recv(a.tx[0], in, sizeof(in), NULL, FI_ADDR_UNSPEC, NULL) == -FI_ENOSYS, "a transmit context receives");
	CHECK(fi_send(a.rx[0], in, sizeof(in), NULL, a.address, NULL) == -FI_ENOSYS, "a receive context sends");
	CHECK(fi_write(a.rx[0], in, sizeof(in), NULL, a.address, 0, 1, NULL) == -FI_ENOSYS, "a receive context writes");
	close_scalable(&a);
	close_queues();
	ANSWERS(0, fi_close(&av->fid));
	close_room(&room);
	end();
}

/* Closing a context ends it. The context with the same number in the other half continues. */
static void closed_halves(const struct settings *how)
{
	struct room room;
	struct fid_av *av;
	struct scalable a, b;
	static char in[1 << 17], out[1 << 17], sink[1 << 17];
	struct fi_cq_tagged_entry entry;

	/* The send completes when a receive takes the message. */
	struct iovec iov = { out, 100 };
	struct fi_msg_tagged delivered = { .msg_iov = &iov, .iov_count = 1, .tag = 99, .context = context(3) };

	open_contexts(&room, &av, how);
	open_scalable(&a, &room, av, true);
	open_scalable(&b, &room, av, true);
	insert_scalable(&a, av);
	insert_scalable(&b, av);
	pass(&a, 0, &b, 0, false, 64);
	pass(&b, 0, &a, 0, false, 64);
	for (int round = 0; round < 3; round++) {
		pass(&a, 1, &b, 0, true, 64);
		/* The receive context is closed, with its receives and its queue. */
		memset(in, '.', sizeof(in));
		NEEDS(fi_recv(b.rx[0], in, sizeof(in), NULL, FI_ADDR_UNSPEC, context(1)));
		NEEDS(fi_send(a.tx[0], out, 1 << 17, NULL, fi_rx_addr(b.address, 1, BITS), context(5)));
		delivered.addr = b.address;
		NEEDS(fi_tsendmsg(a.tx[1], &delivered, FI_MATCH_COMPLETE));
		ANSWERS(0, fi_close(&b.rx[0]->fid));
		ANSWERS(0, fi_close(&b.rxcq[0]->fid));
		for (size_t at = 0; at < opened; at++)
			if (queues[at] == b.rxcq[0])
				queues[at] = queues[--opened];
		memset(in, '.', sizeof(in));
		CHECK(next(a.txcq[1], &entry, NULL) != 0 && entry.op_context == context(3), "a closed context has received");
		/* The other half sends, and another context receives. */
		NEEDS(fi_recv(b.rx[1], sink, sizeof(sink), NULL, FI_ADDR_UNSPEC, context(4)));
		ANSWERS(0, next(b.rxcq[1], &entry, NULL));
		ANSWERS(0, next(a.txcq[0], &entry, NULL));
		pass(&b, 0, &a, 0, true, 64);
		pass(&a, 1, &b, 1, false, 64);
		for (size_t at = 0; at < sizeof(in); at++)
			MUST(in[at] == '.', "byte %zu was written after the context was closed", at);
		/* The context is opened again. */
		NEEDS(fi_rx_context(b.sep, 0, NULL, &b.rx[0], NULL));
		b.rxcq[0] = open_queue(&room);
		NEEDS(fi_ep_bind(b.rx[0], &b.rxcq[0]->fid, FI_RECV));
		NEEDS(fi_enable(b.rx[0]));
		pass(&a, 1, &b, 0, false, 64);
		/* The transmit context is closed with a send in progress. The receive context stays open. */
		NEEDS(fi_send(b.tx[0], out, 1 << 17, NULL, a.address, context(6)));
		ANSWERS(0, fi_close(&b.tx[0]->fid));
		ANSWERS(0, fi_close(&b.txcq[0]->fid));
		for (size_t at = 0; at < opened; at++)
			if (queues[at] == b.txcq[0])
				queues[at] = queues[--opened];
		pass(&a, 0, &b, 0, true, 64);
		NEEDS(fi_tx_context(b.sep, 0, NULL, &b.tx[0], NULL));
		b.txcq[0] = open_queue(&room);
		NEEDS(fi_ep_bind(b.tx[0], &b.txcq[0]->fid, FI_TRANSMIT));
		NEEDS(fi_enable(b.tx[0]));
		pass(&b, 0, &a, 0, true, 64);
	}
	close_scalable(&a);
	close_scalable(&b);
	close_queues();
	ANSWERS(0, fi_close(&av->fid));
	close_room(&room);
}

/* Endpoints that share receives, and one endpoint that sends to them. */
#define SHARERS 3
struct sharing {
	struct room room;
	struct fid_av *av;
	struct fid_stx *stx;
	struct fid_ep *srx, *eps[SHARERS + 1];
	struct fid_cq *rxcq[SHARERS + 1], *txcq;
	fi_addr_t addresses[SHARERS + 1];
};

static void open_sharing(struct sharing *s)
{
	struct fi_info *hints = hints_for(&plain);
	struct fi_av_attr attr = { .type = FI_AV_TABLE, .count = 8 };

	memset(s, 0, sizeof(*s));
	hints->ep_attr->tx_ctx_cnt = hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
	NEEDS(fi_getinfo(API, NULL, NULL, 0, hints, &s->room.info));
	fi_freeinfo(hints);
	CHECK(s->room.info->ep_attr->tx_ctx_cnt == FI_SHARED_CONTEXT && s->room.info->ep_attr->rx_ctx_cnt == FI_SHARED_CONTEXT,
	      "%zu", s->room.info->ep_attr->rx_ctx_cnt);
	CHECK(s->room.info->domain_attr->max_ep_stx_ctx > 0 && s->room.info->domain_attr->max_ep_srx_ctx > 0, "none");
	NEEDS(fi_fabric(s->room.info->fabric_attr, &s->room.fabric, NULL));
	NEEDS(fi_domain(s->room.fabric, s->room.info, &s->room.domain, NULL));
	NEEDS(fi_av_open(s->room.domain, &attr, &s->av, NULL));
	NEEDS(fi_stx_context(s->room.domain, s->room.info->tx_attr, &s->stx, s));
	NEEDS(fi_srx_context(s->room.domain, s->room.info->rx_attr, &s->srx, s));
	CHECK(s->stx->fid.fclass == FI_CLASS_STX_CTX && s->srx->fid.fclass == FI_CLASS_SRX_CTX, "other classes");
	NEEDS(fi_enable(s->srx));
	s->txcq = open_queue(&s->room);
	for (int at = 0; at <= SHARERS; at++) {
		struct sockaddr_in6 name;
		size_t len = sizeof(name);

		NEEDS(fi_endpoint(s->room.domain, s->room.info, &s->eps[at], s));
		NEEDS(fi_ep_bind(s->eps[at], &s->av->fid, 0));
		NEEDS(fi_ep_bind(s->eps[at], &s->stx->fid, 0));
		NEEDS(fi_ep_bind(s->eps[at], &s->txcq->fid, FI_TRANSMIT));
		if (at < SHARERS) {
			NEEDS(fi_ep_bind(s->eps[at], &s->srx->fid, 0));
			ANSWERS(-FI_ENOCQ, fi_enable(s->eps[at]));
		}
		s->rxcq[at] = open_queue(&s->room);
		NEEDS(fi_ep_bind(s->eps[at], &s->rxcq[at]->fid, FI_RECV));
		NEEDS(fi_enable(s->eps[at]));
		NEEDS(fi_getname(&s->eps[at]->fid, &name, &len));
		MUST(fi_av_insert(s->av, &name, 1, &s->addresses[at], 0, NULL) == 1, "an address");
	}
}

static void close_sharing(struct sharing *s)
{
	ANSWERS(-FI_EBUSY, fi_close(&s->srx->fid));
	ANSWERS(-FI_EBUSY, fi_close(&s->stx->fid));
	ANSWERS(-FI_EBUSY, fi_close(&s->room.domain->fid));
	for (int at = 0; at <= SHARERS; at++)
		ANSWERS(0, fi_close(&s->eps[at]->fid));
	ANSWERS(0, fi_close(&s->srx->fid));
	close_queues();
	ANSWERS(0, fi_close(&s->av->fid));
	/* Only the transmit context is still open. */
	ANSWERS(-FI_EBUSY, fi_close(&s->room.domain->fid));
	ANSWERS(0, fi_close(&s->stx->fid));
	close_room(&s->room);
}

/* Posts a shared receive in each possible way. */
static void post(struct sharing *s, int way, char *in, size_t len)
{
	struct iovec iov[2] = { { in, len / 2 }, { in + len / 2, len - len / 2 } };
	struct fi_msg msg = { .msg_iov = iov, .iov_count = 2, .addr = FI_ADDR_UNSPEC, .context = context(way) };
	struct fi_msg_tagged tagged = { .msg_iov = iov, .iov_count = 2, .addr = FI_ADDR_UNSPEC, .tag = 5, .context = context(way) };

	switch (way) {
	case 0: NEEDS(fi_recv(s->srx, in, len, NULL, FI_ADDR_UNSPEC, context(way))); break;
	case 1: NEEDS(fi_recvv(s->srx, iov, NULL, 2, FI_ADDR_UNSPEC, context(way))); break;
	case 2: NEEDS(fi_recvmsg(s->srx, &msg, FI_COMPLETION)); break;
	case 3: NEEDS(fi_trecv(s->srx, in, len, NULL, FI_ADDR_UNSPEC, 5, 0, context(way))); break;
	case 4: NEEDS(fi_trecvv(s->srx, iov, NULL, 2, FI_ADDR_UNSPEC, 5, 0, context(way))); break;
	case 5: NEEDS(fi_trecvmsg(s->srx, &tagged, FI_COMPLETION)); break;
	}
}

static void shared_receives(void)
{
	struct sharing s;
	struct fi_cq_tagged_entry entry;
	struct iovec iov;
	struct fi_msg msg = { .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = context(8) };
	size_t minimum = 0, len = sizeof(minimum);
	static char out[5000], in[5000];

	begin("shared contexts");
	asserts("CTX-007 CTX-011");
	open_sharing(&s);
	for (int way = 0; way < 6; way++) {
		for (int to = 0; to < SHARERS; to++) {
			for (int first = 0; first < 2; first++) {
				size_t size = to == 2 ? sizeof(out) : 64;
				fi_addr_t source = FI_ADDR_UNSPEC;

				fill(out, size, way * 8 + to);
				memset(in, 0, size);
				if (first)
					post(&s, way, in, size);
				if (way < 3)
					NEEDS(fi_send(s.eps[SHARERS], out, size, NULL, s.addresses[to], context(7)));
				else
					NEEDS(fi_tsend(s.eps[SHARERS], out, size, NULL, s.addresses[to], 5, context(7)));
				if (!first)
					post(&s, way, in, size);
				ANSWERS(0, next(s.rxcq[to], &entry, &source));
				CHECK(entry.op_context == context(way) && entry.len == size, "%zu", entry.len);
				CHECK(is_filled(in, size, way * 8 + to), "other bytes");
				CHECK(source == s.addresses[SHARERS], "%#llx", (unsigned long long)source);
				ANSWERS(0, next(s.txcq, &entry, NULL));
			}
		}
	}
	for (int at = 0; at < SHARERS; at++)
		nothing_at(s.rxcq[at]);
	/* One of the endpoints reports the cancellation, and the receive takes no message. */
	post(&s, 0, in, 8);
	ANSWERS(0, fi_cancel(&s.srx->fid, context(0)));
	ANSWERS(-FI_ENOENT, fi_cancel(&s.srx->fid, context(0)));
	ANSWERS(FI_ECANCELED, next(s.rxcq[0], &entry, NULL));
	for (int at = 0; at < SHARERS; at++)
		nothing_at(s.rxcq[at]);
	memset(in, '.', 8);
	NEEDS(fi_send(s.eps[SHARERS], out, 8, NULL, s.addresses[1], context(7)));
	post(&s, 0, in + 100, 8);
	ANSWERS(0, next(s.rxcq[1], &entry, NULL));
	ANSWERS(0, next(s.txcq, &entry, NULL));
	for (size_t at = 0; at < 8; at++)
		CHECK(in[at] == '.', "a cancelled receive has taken a message");
	/* Options, and a multi-receive buffer. */
	NEEDS(fi_getopt(&s.srx->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &minimum, &len));
	CHECK(minimum > 0 && len == sizeof(minimum), "%zu", minimum);
	minimum = 1000;
	NEEDS(fi_setopt(&s.srx->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &minimum, sizeof(minimum)));
	ANSWERS(-FI_ENOPROTOOPT, fi_setopt(&s.srx->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &minimum, sizeof(minimum)));
	iov.iov_base = in, iov.iov_len = 3000;
	NEEDS(fi_recvmsg(s.srx, &msg, FI_MULTI_RECV));
	fill(out, 1000, 3);
	for (int to = 0; to < SHARERS; to++) {
		NEEDS(fi_send(s.eps[SHARERS], out, 1000, NULL, s.addresses[to], context(7)));
		ANSWERS(0, next(s.rxcq[to], &entry, NULL));
		CHECK(entry.buf == in + to * 1000 && is_filled(entry.buf, 1000, 3), "another part");
		CHECK(!(entry.flags & FI_MULTI_RECV) == (to < 2), "%#llx", (unsigned long long)entry.flags);
		ANSWERS(0, next(s.txcq, &entry, NULL));
	}
	/* FI_PEEK is only for endpoints. */
	ANSWERS(-FI_EINVAL, fi_recvmsg(s.srx, &msg, FI_PEEK));
	CHECK(fi_send(s.srx, out, 8, NULL, s.addresses[0], NULL) == -FI_ENOSYS, "a receive context sends");
	close_sharing(&s);
	end();
}

void context_groups(void)
{
	scalable_endpoints();
	parts_of_endpoints();
	halves();
	begin("contexts that are closed");
	closed_halves(&plain);
	closed_halves(&serial);
	end();
	shared_receives();
}
