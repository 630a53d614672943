/* Endpoints (fi_endpoint(3)): states, options, names, aliases, default flags, cancelling. */
#include "every.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct settings how = { .name = "endpoints", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL,
				     .node = "127.0.0.1" };

/* Calls that are too early or too late, and missing objects. */
static void states(void)
{
	struct room room;
	struct fid_ep *ep;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_CONTEXT };
	char buf[8] = "";

	open_room(&room, &how);
	NEEDS(fi_av_open(room.domain, &av_attr, &av, NULL));
	NEEDS(fi_cq_open(room.domain, &cq_attr, &cq, NULL));
	NEEDS(fi_endpoint2(room.domain, room.info, &ep, 0, &room));
	CHECK(ep->fid.fclass == FI_CLASS_EP && ep->fid.context == &room, "class %zu", ep->fid.fclass);
	ANSWERS(-FI_EOPBADSTATE, fi_send(ep, buf, sizeof(buf), NULL, 0, NULL));
	ANSWERS(-FI_EOPBADSTATE, fi_recv(ep, buf, sizeof(buf), NULL, FI_ADDR_UNSPEC, NULL));
	ANSWERS(-FI_EOPBADSTATE, fi_read(ep, buf, sizeof(buf), NULL, 0, 0, 0, NULL));
	ANSWERS(-FI_EOPBADSTATE, fi_atomic(ep, buf, 1, NULL, 0, 0, 0, FI_UINT64, FI_SUM, NULL));
	ANSWERS(-FI_ENOAV, fi_enable(ep));
	NEEDS(fi_ep_bind(ep, &av->fid, 0));
	ANSWERS(-FI_ENOCQ, fi_enable(ep));
	ANSWERS(-FI_EBADFLAGS, fi_ep_bind(ep, &cq->fid, 0));
	ANSWERS(-FI_EINVAL, fi_ep_bind(ep, &room.domain->fid, 0));
	NEEDS(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	CHECK(fi_ep_bind(ep, &cq->fid, FI_RECV) < 0, "two queues for one direction");
	NEEDS(fi_enable(ep));
	ANSWERS(-FI_EOPBADSTATE, fi_ep_bind(ep, &av->fid, 0));
	/* Called through the table, because their inline functions are deprecated and cause warnings. */
	CHECK(ep->ops->rx_size_left(ep) > 0 && ep->ops->tx_size_left(ep) > 0, "no room");
	ANSWERS(0, fi_close(&ep->fid));
	/* An endpoint that was never enabled. */
	NEEDS(fi_endpoint(room.domain, room.info, &ep, NULL));
	NEEDS(fi_ep_bind(ep, &av->fid, 0));
	ANSWERS(0, fi_close(&ep->fid));
	ANSWERS(0, fi_close(&cq->fid));
	ANSWERS(0, fi_close(&av->fid));
	close_room(&room);
}

static void options_of(struct two *two)
{
	struct fid *ep = &two->a.ep->fid;
	size_t value = 0, len = sizeof(value);

	ANSWERS(0, fi_getopt(ep, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, &len));
	CHECK(value > 0 && len == sizeof(value), "%zu in %zu bytes", value, len);
	value = 16384;
	ANSWERS(0, fi_setopt(ep, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, sizeof(value)));
	value = 0;
	ANSWERS(0, fi_getopt(ep, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, &len));
	CHECK(value == 16384, "%zu", value);
	ANSWERS(0, fi_getopt(ep, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &value, &len));
	CHECK(value > 0, "%zu", value);
	len = 2;
	CHECK(fi_getopt(ep, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, &len) < 0, "read into 2 bytes");
	ANSWERS(-FI_EINVAL, fi_setopt(ep, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, 2));
	len = sizeof(value);
	/*
	 * FI_OPT_CUDA_API_PERMITTED, which exists in versions after 1.17: CUDA is required for CUDA memory, or is not
	 * available.
	 */
	const int permitted = 10;
	const char no = 0, yes = 1;
	int code = fi_setopt(ep, FI_OPT_ENDPOINT, permitted, &no, 1);
	CHECK(code == -FI_EOPNOTSUPP || code == -FI_EINVAL, "CUDA forbidden: %d", code);
	ANSWERS(code == -FI_EINVAL ? -FI_EINVAL : 0, fi_setopt(ep, FI_OPT_ENDPOINT, permitted, &yes, 1));
	ANSWERS(-FI_EINVAL, fi_setopt(ep, FI_OPT_ENDPOINT, permitted, &yes, 0));
	ANSWERS(-FI_ENOPROTOOPT, fi_getopt(ep, FI_OPT_ENDPOINT, permitted, &value, &len));
	ANSWERS(-FI_ENOPROTOOPT, fi_getopt(ep, FI_OPT_ENDPOINT, 9999, &value, &len));
	ANSWERS(-FI_ENOPROTOOPT, fi_setopt(ep, FI_OPT_ENDPOINT, 9999, &value, len));
	ANSWERS(-FI_ENOPROTOOPT, fi_getopt(ep, 77, FI_OPT_MIN_MULTI_RECV, &value, &len));
}

/* Returns a port that is free at the time of the call. */
static struct sockaddr_in free_port(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET };
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	NEEDS(bind(fd, (struct sockaddr *)&a, len));
	NEEDS(getsockname(fd, (struct sockaddr *)&a, &len));
	close(fd);
	return a;
}

static void names(struct two *two)
{
	struct sockaddr_in wanted = free_port(), got = { 0 };
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_CONTEXT };
	size_t len = 0;
	struct fid_ep *ep;
	struct fid_cq *cq;

	/* Returns the required length. */
	ANSWERS(-FI_ETOOSMALL, fi_getname(&two->a.ep->fid, NULL, &len));
	CHECK(len == sizeof(got), "%zu", len);
	len = 4;
	ANSWERS(-FI_ETOOSMALL, fi_getname(&two->a.ep->fid, &got, &len));
	CHECK(len == sizeof(got) && got.sin_addr.s_addr == 0, "%zu", len);
	ANSWERS(0, fi_getname(&two->a.ep->fid, &got, &len));
	CHECK(got.sin_family == AF_INET && got.sin_port != 0, "port %d", ntohs(got.sin_port));
	CHECK(got.sin_addr.s_addr == htonl(INADDR_LOOPBACK), "not at the requested node");
	CHECK(fi_setname(&two->a.ep->fid, &wanted, sizeof(wanted)) < 0, "renamed when it was enabled");
	/* The address is set before the endpoint is enabled. */
	NEEDS(fi_cq_open(two->room.domain, &attr, &cq, NULL));
	NEEDS(fi_endpoint(two->room.domain, two->room.info, &ep, NULL));
	CHECK(fi_setname(&ep->fid, &wanted, 3) < 0, "named by 3 bytes");
	ANSWERS(0, fi_setname(&ep->fid, &wanted, sizeof(wanted)));
	NEEDS(fi_ep_bind(ep, &two->a.av->fid, 0));
	NEEDS(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	NEEDS(fi_enable(ep));
	len = sizeof(got);
	ANSWERS(0, fi_getname(&ep->fid, &got, &len));
	CHECK(got.sin_port == wanted.sin_port && got.sin_addr.s_addr == wanted.sin_addr.s_addr, "another name");
	ANSWERS(0, fi_close(&ep->fid));
	ANSWERS(0, fi_close(&cq->fid));
}

/* Another object for the same endpoint, with its own default flags (fi_ep_alias(3)). */
static void aliases(struct two *two)
{
	struct side *a = &two->a, *b = &two->b;
	struct fid_ep *injecting = NULL, *own = a->ep;
	struct message in = { .buf = b->in, .len = 100, .context = context(600), .tagged = true, .tag = 8 };
	struct message out = { .buf = a->out, .len = 100, .context = context(1), .tagged = true, .tag = 8 };
	uint64_t flags;

	NEEDS(fi_ep_alias(a->ep, &injecting, FI_TRANSMIT | FI_INJECT | FI_COMPLETION));
	CHECK(injecting != a->ep, "the same object");
	fill(a->out, 100, 3);
	ANSWERS(0, post_receive(b, RECV, &in));
	a->ep = injecting;
	ANSWERS(0, post_send(a, SEND, &out));
	/* The message was injected, so the buffer may be reused. */
	memset(a->out, 0, 100);
	check_sent(a, SEND, &out);
	a->ep = own;
	check_received(b, &in, &out, false, 3);
	/* The alias has its own flags. */
	flags = FI_TRANSMIT;
	ANSWERS(0, fi_control(&injecting->fid, FI_GETOPSFLAG, &flags));
	CHECK(flags & FI_INJECT, "%#llx", (unsigned long long)flags);
	flags = FI_TRANSMIT;
	ANSWERS(0, fi_control(&a->ep->fid, FI_GETOPSFLAG, &flags));
	CHECK(!(flags & FI_INJECT), "%#llx", (unsigned long long)flags);
	CHECK(fi_ep_alias(a->ep, &injecting, 0) < 0, "an alias of neither direction");
	ANSWERS(0, fi_close(&injecting->fid));
	/* The endpoint works without the alias. */
	ANSWERS(0, post_receive(b, RECV, &in));
	fill(a->out, 100, 4);
	ANSWERS(0, post_send(a, SEND, &out));
	check_sent(a, SEND, &out);
	check_received(b, &in, &out, false, 4);
}

static void own_flags(struct two *two)
{
	struct fid *ep = &two->a.ep->fid;
	uint64_t flags = FI_TRANSMIT | FI_DELIVERY_COMPLETE;

	ANSWERS(0, fi_control(ep, FI_SETOPSFLAG, &flags));
	flags = FI_TRANSMIT;
	ANSWERS(0, fi_control(ep, FI_GETOPSFLAG, &flags));
	CHECK(flags & FI_DELIVERY_COMPLETE, "%#llx", (unsigned long long)flags);
	flags = FI_RECV;
	ANSWERS(0, fi_control(ep, FI_GETOPSFLAG, &flags));
	CHECK(!(flags & FI_DELIVERY_COMPLETE), "%#llx", (unsigned long long)flags);
	flags = FI_TRANSMIT | FI_RECV;
	CHECK(fi_control(ep, FI_GETOPSFLAG, &flags) < 0, "flags of both directions");
	flags = FI_TRANSMIT;
	ANSWERS(0, fi_control(ep, FI_SETOPSFLAG, &flags));
	ANSWERS(-FI_ENOSYS, fi_control(ep, 9999, NULL));
}

/* Unsupported flags are rejected everywhere, and change nothing. */
static void unknown_flags(struct two *two)
{
	static const uint64_t unknown[] = { FI_COMMIT_COMPLETE, 1ull << 62, FI_COMMIT_COMPLETE | FI_COMPLETION };
	struct room *room = &two->room;
	struct fid *ep = &two->a.ep->fid;
	struct fi_info *info = fi_dupinfo(room->info);
	struct fid_ep *other = NULL;
	uint64_t before = FI_TRANSMIT, flags;

	ANSWERS(0, fi_control(ep, FI_GETOPSFLAG, &before));
	for (size_t at = 0; at < COUNT(unknown); at++) {
		flags = FI_TRANSMIT | unknown[at];
		ANSWERS(-FI_EBADFLAGS, fi_control(ep, FI_SETOPSFLAG, &flags));
		ANSWERS(-FI_EBADFLAGS, fi_ep_alias(two->a.ep, &other, FI_TRANSMIT | unknown[at]));
		ANSWERS(-FI_EBADFLAGS, fi_ep_alias(two->a.ep, &other, FI_RECV | unknown[at]));
		info->tx_attr->op_flags = unknown[at];
		ANSWERS(-FI_EBADFLAGS, fi_endpoint(room->domain, info, &other, NULL));
		ANSWERS(-FI_EBADFLAGS, fi_scalable_ep(room->domain, info, &other, NULL));
		info->tx_attr->op_flags = 0;
		info->rx_attr->op_flags = unknown[at];
		ANSWERS(-FI_EBADFLAGS, fi_endpoint(room->domain, info, &other, NULL));
		ANSWERS(-FI_EBADFLAGS, fi_srx_context(room->domain, info->rx_attr, &other, NULL));
		info->rx_attr->op_flags = 0;
	}
	CHECK(!other, "something was opened");
	flags = FI_TRANSMIT;
	ANSWERS(0, fi_control(ep, FI_GETOPSFLAG, &flags));
	CHECK(flags == before, "%#llx", (unsigned long long)flags);
	fi_freeinfo(info);
}

/* A rejected binding does not change an existing one. */
static void refused_bindings(struct two *two)
{
	struct room *room = &two->room, other;
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_TAGGED };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_NONE };
	struct fid_cq *cqs[3];
	struct fid_av *avs[2];
	struct fid_eq *eqs[2];
	struct fid_ep *ep, *sep, *srxs[2];
	struct fid_stx *stxs[2];
	struct fid_cntr *cntr;
	struct fi_cq_tagged_entry entry;
	struct sockaddr_in6 name, moved = { 0 };
	size_t len = sizeof(name);
	fi_addr_t self;
	double until = now() + WAIT_LIMIT;

	open_room(&other, &how);
	for (int at = 0; at < 3; at++)
		NEEDS(fi_cq_open(at == 2 ? other.domain : room->domain, &attr, &cqs[at], NULL));
	for (int at = 0; at < 2; at++) {
		NEEDS(fi_av_open(room->domain, &av_attr, &avs[at], NULL));
		NEEDS(fi_eq_open(room->fabric, &eq_attr, &eqs[at], NULL));
		NEEDS(fi_srx_context(room->domain, room->info->rx_attr, &srxs[at], NULL));
		NEEDS(fi_stx_context(room->domain, room->info->tx_attr, &stxs[at], NULL));
	}
	NEEDS(fi_cntr_open(other.domain, NULL, &cntr, NULL));
	NEEDS(fi_endpoint(room->domain, room->info, &ep, NULL));
	/* An object of another domain. */
	ANSWERS(-FI_EINVAL, fi_ep_bind(ep, &cqs[2]->fid, FI_TRANSMIT | FI_RECV));
	ANSWERS(-FI_EINVAL, fi_ep_bind(ep, &cntr->fid, FI_SEND));
	ANSWERS(0, fi_close(&cqs[2]->fid));
	ANSWERS(0, fi_close(&cntr->fid));
	ANSWERS(0, fi_ep_bind(ep, &cqs[0]->fid, FI_TRANSMIT));
	/* One of the two directions is bound already: neither is bound by this call. */
	ANSWERS(-FI_EINVAL, fi_ep_bind(ep, &cqs[1]->fid, FI_TRANSMIT | FI_RECV));
	ANSWERS(0, fi_ep_bind(ep, &cqs[0]->fid, FI_RECV));
	ANSWERS(-FI_EINVAL, fi_ep_bind(ep, &cqs[1]->fid, FI_RECV));
	ANSWERS(-FI_EBADFLAGS, fi_ep_bind(ep, &cqs[1]->fid, FI_RECV | FI_COMPLETION));
	for (int at = 0; at < 2; at++) {
		ANSWERS(at ? -FI_EINVAL : 0, fi_ep_bind(ep, &avs[at]->fid, 0));
		ANSWERS(at ? -FI_EINVAL : 0, fi_ep_bind(ep, &eqs[at]->fid, 0));
		ANSWERS(at ? -FI_EINVAL : 0, fi_ep_bind(ep, &stxs[at]->fid, 0));
	}
	NEEDS(fi_enable(ep));
	NEEDS(fi_getname(&ep->fid, &name, &len));
	moved.sin6_family = name.sin6_family;
	ANSWERS(-FI_EOPBADSTATE, fi_setname(&ep->fid, &moved, len));
	/* Rejected objects are not in use. */
	ANSWERS(0, fi_close(&cqs[1]->fid));
	ANSWERS(0, fi_close(&avs[1]->fid));
	ANSWERS(0, fi_close(&eqs[1]->fid));
	ANSWERS(0, fi_close(&stxs[1]->fid));
	ANSWERS(-FI_EBUSY, fi_close(&cqs[0]->fid));
	MUST(fi_av_insert(avs[0], &name, 1, &self, 0, NULL) == 1, "an address");
	NEEDS(fi_send(ep, "x", 1, NULL, self, context(1)));
	while (fi_cq_read(cqs[0], &entry, 1) != 1)
		MUST(now() < until, "no completion");
	CHECK(entry.op_context == context(1), "another operation");
	ANSWERS(0, fi_close(&ep->fid));
	/* A scalable endpoint. */
	NEEDS(fi_av_open(room->domain, &av_attr, &avs[1], NULL));
	NEEDS(fi_scalable_ep(room->domain, room->info, &sep, NULL));
	ANSWERS(0, fi_scalable_ep_bind(sep, &avs[0]->fid, 0));
	ANSWERS(-FI_EINVAL, fi_scalable_ep_bind(sep, &avs[1]->fid, 0));
	ANSWERS(0, fi_close(&avs[1]->fid));
	ANSWERS(-FI_EBUSY, fi_close(&avs[0]->fid));
	ANSWERS(0, fi_close(&sep->fid));
	/* Shared receives. */
	NEEDS(fi_endpoint(room->domain, room->info, &ep, NULL));
	ANSWERS(0, fi_ep_bind(ep, &srxs[0]->fid, 0));
	ANSWERS(-FI_EINVAL, fi_ep_bind(ep, &srxs[1]->fid, 0));
	ANSWERS(0, fi_close(&srxs[1]->fid));
	ANSWERS(-FI_EBUSY, fi_close(&srxs[0]->fid));
	ANSWERS(0, fi_close(&ep->fid));
	ANSWERS(0, fi_close(&srxs[0]->fid));
	ANSWERS(0, fi_close(&stxs[0]->fid));
	ANSWERS(0, fi_close(&cqs[0]->fid));
	ANSWERS(0, fi_close(&avs[0]->fid));
	ANSWERS(0, fi_close(&eqs[0]->fid));
	close_room(&other);
}

/* An invalid key is rejected: the endpoint is not opened without it. */
static void keys(struct two *two)
{
	static const size_t refused[] = { 4097, 1 << 20, SIZE_MAX };
	struct fi_info *info = fi_dupinfo(two->room.info);
	struct fid_ep *ep = NULL;

	free(info->ep_attr->auth_key);
	info->ep_attr->auth_key = calloc(1, 1 << 20);
	for (size_t at = 0; at < COUNT(refused); at++) {
		info->ep_attr->auth_key_size = refused[at];
		ANSWERS(-FI_EINVAL, fi_endpoint(two->room.domain, info, &ep, NULL));
		ANSWERS(-FI_EINVAL, fi_scalable_ep(two->room.domain, info, &ep, NULL));
	}
	info->ep_attr->auth_key_size = 4096;
	ANSWERS(0, fi_endpoint(two->room.domain, info, &ep, NULL));
	ANSWERS(0, fi_close(&ep->fid));
	free(info->ep_attr->auth_key);
	info->ep_attr->auth_key = NULL;
	ANSWERS(-FI_EINVAL, fi_endpoint(two->room.domain, info, &ep, NULL));
	info->ep_attr->auth_key_size = 0;
	fi_freeinfo(info);
}

/* An endpoint is closed with outstanding receives. */
static void closing(void)
{
	struct two two;
	struct message in = { .len = 50, .context = context(600) };

	open_two(&two, &how);
	in.buf = two.b.in;
	for (int n = 0; n < 10; n++)
		ANSWERS(0, post_receive(&two.b, RECV, &in));
	fill(two.a.out, 50, 1);
	POSTED(&two.a, fi_inject(two.a.ep, two.a.out, 50, two.a.peer));
	for (double until = now() + WAIT_LIMIT; two.b.stashed == 0;) {
		MUST(now() < until, "the message does not arrive");
		progress(&two.b);
	}
	/* The other operations are cancelled or dropped when the endpoint is closed. */
	close_two(&two);
}

void endpoint_groups(void)
{
	static const struct {
		const char *name;
		void (*run)(struct two *);
	} all[] = {
		{ "ep: options", options_of },
		{ "ep: names", names },
		{ "ep: aliases", aliases },
		{ "ep: flags of its own", own_flags },
		{ "ep: unknown flags", unknown_flags },
		{ "ep: bindings that are refused", refused_bindings },
		{ "ep: keys that are refused", keys },
	};
	struct two two;

	begin("ep: states");
	states();
	end();
	for (size_t at = 0; at < COUNT(all); at++) {
		begin(all[at].name);
		open_two(&two, &how);
		all[at].run(&two);
		quiet(&two.pair);
		close_two(&two);
		end();
	}
	begin("ep: closing with receives outstanding");
	closing();
	end();
}
