/* Unusual but legal arguments for endpoints of every class, and for address vectors. */
#include "walk.h"

/* Posting calls with peers that do not exist. */
static void posts(struct world *w, struct fid_ep *ep)
{
	struct object *o = find(w, ep);
	int part = o && o->part ? o->part : new_part(w);
	struct side self = { .world = w, .tx = ep, .rx = ep, .txpart = part, .rxpart = part };
	static const fi_addr_t peers[] = { 0, 99999, FI_ADDR_UNSPEC };

	if (w->loaned + 80 > LOANS)
		return;
	self.peer = peers[below(COUNT(peers))];
	post_each(&self, &self);
}

static void no_collectives(struct fid_ep *ep)
{
	uint64_t out[2] = { 0 }, in[2];
	struct fi_ioc result = { in, 1 }, operand = { out, 1 };
	void *desc = NULL;
	struct fi_msg_collective msg = { .msg_iov = &operand, .desc = &desc, .iov_count = 1, .coll = FI_ALLREDUCE, .datatype = FI_UINT64 };
	const fi_addr_t none = 12345;

	fi_barrier(ep, none, NULL);
	fi_barrier2(ep, none, FI_COMPLETION, NULL);
	fi_broadcast(ep, out, 1, NULL, none, 0, FI_UINT64, 0, NULL);
	fi_alltoall(ep, out, 1, NULL, in, NULL, none, FI_UINT64, 0, NULL);
	fi_allreduce(ep, out, 1, NULL, in, NULL, none, FI_UINT64, FI_SUM, 0, NULL);
	fi_allgather(ep, out, 1, NULL, in, NULL, none, FI_UINT64, 0, NULL);
	fi_reduce_scatter(ep, out, 1, NULL, in, NULL, none, FI_UINT64, FI_SUM, 0, NULL);
	fi_reduce(ep, out, 1, NULL, in, NULL, none, 0, FI_UINT64, FI_SUM, 0, NULL);
	fi_scatter(ep, out, 1, NULL, in, NULL, none, 0, FI_UINT64, 0, NULL);
	fi_gather(ep, out, 1, NULL, in, NULL, none, 0, FI_UINT64, 0, NULL);
	ep->collective->msg(ep, &msg, &result, &desc, 1, 0);
	/* Too many elements, and a type and an operation that do not exist. */
	fi_allreduce(ep, out, SIZE_MAX / 4, NULL, in, NULL, none, FI_UINT64, FI_SUM, 0, NULL);
	fi_allreduce(ep, out, 1, NULL, in, NULL, none, (enum fi_datatype)99, (enum fi_op)99, 0, NULL);
}

static void names(struct fid *fid)
{
	size_t none = 0, little = 3, length = NAME;
	char *short_name = malloc(little), *name = malloc(NAME);

	memset(name, 0, NAME);
	fi_setname(fid, name, NAME);
	fi_getname(fid, NULL, &none);
	fi_getname(fid, short_name, &little);
	if (fi_getname(fid, name, &length) == 0) {
		fi_setname(fid, name, 1);
		fi_setname(fid, name, 0);
		if (setting.seed % 2)
			fi_setname(fid, name, length);
	}
	free(short_name);
	free(name);
}

static void options(struct fid *fid)
{
	size_t *value = malloc(sizeof(*value)), length = sizeof(*value), little = 2;
	char *short_value = malloc(2);

	for (int option = 0; option < 22; option++) {
		/* This option takes another structure. */
		if (option == 9)
			continue;
		fi_getopt(fid, FI_OPT_ENDPOINT, option, short_value, &little);
		little = 2;
		length = sizeof(*value);
		if (fi_getopt(fid, FI_OPT_ENDPOINT, option, value, &length) == 0)
			fi_setopt(fid, FI_OPT_ENDPOINT, option, value, length);
	}
	*value = 100;
	fi_getopt(fid, 77, 0, value, &length);
	fi_setopt(fid, 77, 0, value, sizeof(*value));
	fi_setopt(fid, FI_OPT_ENDPOINT, 999, value, sizeof(*value));
	fi_setopt(fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, short_value, 0);
	fi_setopt(fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, short_value, 2);
	free(value);
	free(short_value);
}

static void flags(struct fid *fid)
{
	struct fid *made = NULL;
	struct fi_alias alias = { &made, 0 };
	uint64_t *word = malloc(sizeof(*word));
	static const uint64_t which[] = { FI_TRANSMIT, FI_RECV, FI_TRANSMIT | FI_RECV, 0 };

	for (size_t at = 0; at < COUNT(which); at++) {
		*word = which[at];
		if (fi_control(fid, FI_GETOPSFLAG, word) == 0) {
			*word |= which[at];
			fi_control(fid, FI_SETOPSFLAG, word);
		}
	}
	if (fid->fclass == FI_CLASS_EP)
		CHECK(fi_control(fid, FI_ALIAS, &alias) != 0, "an alias of no direction");
	free(word);
}

static void contexts(struct fid_ep *ep)
{
	static const int indices[] = { -1, 100000 };
	struct fid_ep *made;

	for (size_t at = 0; at < COUNT(indices); at++) {
		CHECK(fi_tx_context(ep, indices[at], NULL, &made, NULL) != 0, "context %d", indices[at]);
		CHECK(fi_rx_context(ep, indices[at], NULL, &made, NULL) != 0, "context %d", indices[at]);
	}
}

static void connections(struct world *w, struct fid_ep *ep)
{
	struct { uint16_t family; char rest[14]; } nowhere = { 0, "" };
	struct fi_collective_addr { const struct fid_av_set *set; fi_addr_t group; } members = { NULL, 0 };
	char *peer = malloc(NAME), *little = malloc(2);
	size_t length = NAME, two = 2;
	struct fid_mc *mc = NULL;

	ep->cm->getpeer(ep, peer, &length);
	ep->cm->getpeer(ep, little, &two);
	/* These calls are for an endpoint without connections, or are too late for a connected one. */
	if (find(w, ep)->fid->fclass != FI_CLASS_EP || w->info->ep_attr->type != FI_EP_MSG) {
		CHECK(ep->cm->connect(ep, &nowhere, NULL, 0) != 0, "connected");
		CHECK(ep->cm->accept(ep, NULL, 0) != 0, "accepted");
		ep->cm->shutdown(ep, 0);
	}
	CHECK(ep->cm->shutdown(ep, 99) != 0, "an unknown flag was accepted");
	CHECK(ep->cm->listen((struct fid_pep *)ep) != 0, "an endpoint listens");
	CHECK(ep->cm->reject((struct fid_pep *)ep, NULL, NULL, 0) != 0, "nothing is rejected");
	CHECK(ep->cm->join(ep, &nowhere, 0, &mc, NULL) != 0, "there is no multicast");
	CHECK(ep->cm->join(ep, &members, FI_COLLECTIVE, &mc, NULL) != 0, "a group of no set");
	free(peer);
	free(little);
}

void odd_endpoint(struct world *w, struct fid_ep *ep)
{
	names(&ep->fid);
	options(&ep->fid);
	flags(&ep->fid);
	fi_cancel(&ep->fid, NULL);
	fi_cancel(&ep->fid, w);
	ep->ops->rx_size_left(ep);
	ep->ops->tx_size_left(ep);
	contexts(ep);
	connections(w, ep);
	no_collectives(ep);
	posts(w, ep);
	if (has_entry(ep->ops, 7)) {
		int (*export)(struct fid_ep *, uint64_t, void *) = entry_of(ep->ops, 7);
		CHECK(export(ep, 0, NULL) != 0, "an export without a destination succeeded");
	}
	fi_enable(ep);
}

/* Entries that exist since 2.x. */
static void newer_entries(struct fid_av *av)
{
	char *bytes = malloc(16);
	size_t length = 16;
	fi_addr_t address = 0;

	if (has_entry(av->ops, 7)) {
		int (*insert)(struct fid_av *, const void *, size_t, fi_addr_t *, uint64_t) = entry_of(av->ops, 7);
		CHECK(insert(av, bytes, 16, &address, 0) != 0, "a key in a vector");
	}
	if (has_entry(av->ops, 8)) {
		int (*lookup)(struct fid_av *, fi_addr_t, void *, size_t *) = entry_of(av->ops, 8);
		CHECK(lookup(av, 0, bytes, &length) != 0, "a key in a vector");
	}
	if (has_entry(av->ops, 9)) {
		int (*set)(struct fid_av *, fi_addr_t, fi_addr_t, uint64_t) = entry_of(av->ops, 9);
		CHECK(set(av, 0, 7, 0) != 0, "another number");
	}
	if (has_entry(av->ops, 10)) {
		int (*lookup)(struct fid_av *, fi_addr_t, void *, size_t *, uint64_t, void *) = entry_of(av->ops, 10);
		CHECK(lookup(av, 0, bytes, &length, 0, NULL) != 0, "a device's address");
	}
	free(bytes);
}

static void sets(struct world *w, struct fid_av *av)
{
	struct fi_av_set_attr empty = { .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL }, odd = empty;
	struct fid_av_set *one, *two, *none = NULL;
	fi_addr_t address;

	odd.flags = 1ULL << 63;
	CHECK(fi_av_set(av, &odd, &none, NULL) != 0, "an unknown flag was accepted");
	odd = (struct fi_av_set_attr){ .start_addr = 5, .end_addr = 1, .stride = 0 };
	if (fi_av_set(av, &odd, &none, NULL) == 0)
		NEEDS(fi_close(&none->fid));
	NEEDS(fi_av_set(av, &empty, &one, w));
	adopt(&one->fid);
	NEEDS(fi_av_set(av, &empty, &two, w));
	adopt(&two->fid);
	odd_object(w, &one->fid);
	fi_av_set_insert(one, 0);
	fi_av_set_insert(one, 0);
	fi_av_set_insert(one, 123456);
	fi_av_set_insert(one, FI_ADDR_UNSPEC);
	fi_av_set_remove(one, 654321);
	fi_av_set_union(two, one);
	fi_av_set_union(two, two);
	fi_av_set_intersect(two, one);
	fi_av_set_intersect(two, two);
	fi_av_set_diff(one, two);
	fi_av_set_diff(two, two);
	fi_av_set_addr(one, &address);
	CHECK(fi_close(&av->fid) == -FI_EBUSY, "a vector with sets is closed");
	NEEDS(fi_close(&one->fid));
	NEEDS(fi_close(&two->fid));
}

void odd_vector(struct world *w, struct fid_av *av)
{
	char *name = malloc(NAME), *text = malloc(4);
	size_t none = 0, three = 3, length = NAME, four = 4;
	/* If an event reports the completion of insertions, the memory belongs to the provider until then. */
	fi_addr_t unknown[2] = { 987654, FI_ADDR_NOTAVAIL }, *room = (void *)lend(w, new_part(w), sizeof(*room));
	struct sockaddr_of_no_family { uint16_t family; char rest[30]; } nowhere = { 77, "" };

	fi_av_insert(av, NULL, 0, NULL, 0, NULL);
	fi_av_insert(av, &nowhere, 1, room, 0, NULL);
	fi_av_insertsvc(av, "no such host name", "1", room, 0, NULL);
	fi_av_insertsvc(av, "127.0.0.1", "no such service", room, 0, NULL);
	fi_av_insertsym(av, "127.0.0.1", 0, "4000", 1, room, 0, NULL);
	fi_av_insertsym(av, "127.0.0.1", 1, "4000", 0, room, 0, NULL);
	fi_av_insertsym(av, "127.0.0.1", SIZE_MAX, "4000", 2, room, 0, NULL);
	fi_av_remove(av, NULL, 0, 0);
	fi_av_remove(av, unknown, 2, 0);
	if (fi_av_lookup(av, 0, name, &length) == 0) {
		fi_av_lookup(av, 0, NULL, &none);
		fi_av_lookup(av, 0, name, &three);
		fi_av_straddr(av, name, text, &four);
		none = 0;
		fi_av_straddr(av, name, text, &none);
	}
	fi_av_lookup(av, 987654, name, &length);
	fi_av_straddr(av, &nowhere, text, &four);
	newer_entries(av);
	if (setting.api >= FI_VERSION(1, 9))
		sets(w, av);
	free(name), free(text);
}
