/* Address vectors (fi_av(3)): maps and tables, every way in and out. */
#include "every.h"

#include <arpa/inet.h>
#include <netinet/in.h>

static struct sockaddr_in address(int number)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)(20000 + number)) };

	a.sin_addr.s_addr = htonl(0x7f000001);
	return a;
}

static bool same(const struct sockaddr_in *a, const struct sockaddr_in *b)
{
	return a->sin_family == b->sin_family && a->sin_port == b->sin_port && a->sin_addr.s_addr == b->sin_addr.s_addr;
}

static void found(struct fid_av *av, fi_addr_t peer, const struct sockaddr_in *expected)
{
	struct sockaddr_in got = { 0 };
	size_t len = sizeof(got);

	ANSWERS(0, fi_av_lookup(av, peer, &got, &len));
	CHECK(len == sizeof(got), "%zu", len);
	CHECK(same(&got, expected), "another address");
}

static void insertion(struct room *room, enum fi_av_type type)
{
	enum { MANY = 40 };
	struct fi_av_attr attr = { .type = type, .count = 4 };
	struct sockaddr_in all[MANY], zero = { 0 };
	fi_addr_t peers[MANY], again;
	int errors[3] = { 7, 7, 7 };
	struct fid_av *av;

	NEEDS(fi_av_open(room->domain, &attr, &av, room));
	CHECK(attr.type == type && av->fid.context == room, "type %d", attr.type);
	for (int n = 0; n < MANY; n++)
		all[n] = address(n);
	/* More than was said at opening: that was a hint. */
	ANSWERS(MANY, fi_av_insert(av, all, MANY, peers, 0, NULL));
	for (int n = 0; n < MANY; n++) {
		CHECK(type != FI_AV_TABLE || peers[n] == (fi_addr_t)n, "entry %d is %llu", n, (unsigned long long)peers[n]);
		CHECK(peers[n] != FI_ADDR_NOTAVAIL, "no address");
		found(av, peers[n], &all[n]);
	}
	/* Removed, and inserted again: the others stay. */
	ANSWERS(0, fi_av_remove(av, &peers[3], 2, 0));
	found(av, peers[2], &all[2]);
	found(av, peers[5], &all[5]);
	CHECK(fi_av_lookup(av, peers[3], &zero, &(size_t){ sizeof(zero) }) == -FI_EINVAL, "a removed address is there");
	ANSWERS(1, fi_av_insert(av, &all[4], 1, &again, 0, NULL));
	found(av, again, &all[4]);
	CHECK(fi_av_remove(av, &(fi_addr_t){ 0x123456 }, 1, 0) < 0, "removing nothing succeeds");
	/* One that is none fails alone, and tells so with FI_SYNC_ERR. */
	all[0] = address(100), all[1] = zero, all[2] = address(102);
	ANSWERS(2, fi_av_insert(av, all, 3, peers, FI_SYNC_ERR, errors));
	CHECK(errors[0] == 0 && errors[1] != 0 && errors[2] == 0, "%d %d %d", errors[0], errors[1], errors[2]);
	CHECK(peers[1] == FI_ADDR_NOTAVAIL && peers[0] != FI_ADDR_NOTAVAIL, "addresses");
	ANSWERS(1, fi_av_insert(av, &(struct sockaddr_in[]){ address(103) }, 1, NULL, FI_MORE, NULL));
	ANSWERS(0, fi_av_insert(av, all, 0, NULL, 0, NULL));
	ANSWERS(0, fi_close(&av->fid));
}

static void text(struct room *room)
{
	struct fi_av_attr attr = { .type = FI_AV_MAP };
	struct sockaddr_in a = address(1234 - 0);
	struct fid_av *av;
	char buf[128], tiny[6];
	size_t needed, len = sizeof(buf);

	NEEDS(fi_av_open(room->domain, &attr, &av, NULL));
	CHECK(fi_av_straddr(av, &a, buf, &len) == buf, "not the caller's buffer");
	CHECK(strstr(buf, "127.0.0.1") && strstr(buf, "21234"), "%s", buf);
	CHECK(len == strlen(buf) + 1, "%zu for %s", len, buf);
	/* Cut to the room there is, and still the whole length told. */
	needed = len, len = sizeof(tiny);
	memset(tiny, 'x', sizeof(tiny));
	CHECK(fi_av_straddr(av, &a, tiny, &len) == tiny, "not the caller's buffer");
	CHECK(len == needed && strlen(tiny) == sizeof(tiny) - 1, "%zu", len);
	ANSWERS(0, fi_close(&av->fid));
}

static void lookup_with_little_room(struct room *room)
{
	struct fi_av_attr attr = { .type = FI_AV_TABLE };
	struct sockaddr_in a = address(9);
	unsigned char got[sizeof(a)];
	size_t len = 4;
	struct fid_av *av;
	fi_addr_t peer;

	NEEDS(fi_av_open(room->domain, &attr, &av, NULL));
	ANSWERS(1, fi_av_insert(av, &a, 1, &peer, 0, NULL));
	memset(got, 0xab, sizeof(got));
	ANSWERS(0, fi_av_lookup(av, peer, got, &len));
	CHECK(len == sizeof(a), "%zu", len);
	CHECK(!memcmp(got, &a, 4) && got[4] == 0xab, "more or less than there is room for");
	ANSWERS(-FI_EINVAL, fi_av_lookup(av, 77, got, &len));
	ANSWERS(0, fi_close(&av->fid));
}

static void services(struct room *room)
{
	struct fi_av_attr attr = { .type = FI_AV_TABLE };
	struct sockaddr_in a = address(7);
	struct fid_av *av;
	fi_addr_t peer = 5;

	NEEDS(fi_av_open(room->domain, &attr, &av, NULL));
	ANSWERS(1, fi_av_insertsvc(av, "127.0.0.1", "20007", &peer, 0, NULL));
	found(av, peer, &a);
	ANSWERS(1, fi_av_insertsvc(av, "127.0.0.1", "20008", &peer, 0, NULL));
	a = address(8);
	found(av, peer, &a);
	CHECK(fi_av_insertsvc(av, "127.0.0.1", "no-such-service", &peer, 0, NULL) <= 0, "no port is taken for one");
	CHECK(peer == FI_ADDR_NOTAVAIL, "%llu", (unsigned long long)peer);
	CHECK(fi_av_insertsvc(av, NULL, "20007", &peer, 0, NULL) <= 0, "no node is taken for one");
	ANSWERS(0, fi_close(&av->fid));
}

/* The type that is left open is the domain's, and told. */
static void unspecified(struct room *room)
{
	struct fi_av_attr attr = { .type = FI_AV_UNSPEC };
	struct fid_av *av;

	NEEDS(fi_av_open(room->domain, &attr, &av, NULL));
	CHECK(attr.type == room->info->domain_attr->av_type, "%d", attr.type);
	ANSWERS(0, fi_close(&av->fid));
	attr = (struct fi_av_attr){ .type = (enum fi_av_type)17 };
	CHECK(fi_av_open(room->domain, &attr, &av, NULL) < 0, "a type that is none");
}

/* Receive contexts are named in the upper bits of an address. */
static void receive_contexts(struct room *room)
{
	struct fi_av_attr attr = { .type = FI_AV_MAP, .rx_ctx_bits = 4 };
	struct sockaddr_in a = address(11);
	struct fid_av *av;
	fi_addr_t peer;

	NEEDS(fi_av_open(room->domain, &attr, &av, NULL));
	ANSWERS(1, fi_av_insert(av, &a, 1, &peer, 0, NULL));
	CHECK(peer >> 60 == 0, "the upper bits are used: %#llx", (unsigned long long)peer);
	CHECK(fi_rx_addr(peer, 5, 4) == (peer | (fi_addr_t)5 << 60), "fi_rx_addr");
	ANSWERS(0, fi_close(&av->fid));
}

void vector_groups(void)
{
	static const struct settings how = { .name = "vectors", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL };
	static const struct {
		const char *name;
		void (*run)(struct room *);
	} all[] = {
		{ "av: text", text },
		{ "av: lookup with little room", lookup_with_little_room },
		{ "av: nodes and services", services },
		{ "av: type left open", unspecified },
		{ "av: receive contexts", receive_contexts },
	};
	struct room room;

	open_room(&room, &how);
	begin("av: map");
	insertion(&room, FI_AV_MAP);
	end();
	begin("av: table");
	insertion(&room, FI_AV_TABLE);
	end();
	for (size_t at = 0; at < COUNT(all); at++) {
		begin(all[at].name);
		all[at].run(&room);
		end();
	}
	close_room(&room);
}
