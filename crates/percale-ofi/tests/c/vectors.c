/* Address vectors (fi_av(3)): maps and tables, and every call that inserts and reads addresses. */
#include "every.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct settings how = {
	.name = "vectors", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL
};

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

	asserts("AV-001");
	NEEDS(fi_av_open(room->domain, &attr, &av, room));
	CHECK(attr.type == type && av->fid.context == room, "type %d", attr.type);
	for (int n = 0; n < MANY; n++)
		all[n] = address(n);
	/* More addresses than stated when the vector was opened, which was only a hint. */
	asserts(type == FI_AV_TABLE ? "AV-002 AV-006 AV-023 AV-029" : "AV-004 AV-006 AV-023");
	ANSWERS(MANY, fi_av_insert(av, all, MANY, peers, 0, NULL));
	for (int n = 0; n < MANY; n++) {
		CHECK(type != FI_AV_TABLE || peers[n] == (fi_addr_t)n, "entry %d is %llu", n, (unsigned long long)peers[n]);
		CHECK(peers[n] != FI_ADDR_NOTAVAIL, "no address");
		found(av, peers[n], &all[n]);
	}
	/* Addresses are removed and inserted again. The others stay. */
	asserts(type == FI_AV_TABLE ? "AV-003 AV-046 AV-047 AV-050" : "AV-046 AV-047 AV-050");
	ANSWERS(0, fi_av_remove(av, &peers[3], 2, 0));
	found(av, peers[2], &all[2]);
	found(av, peers[5], &all[5]);
	CHECK(fi_av_lookup(av, peers[3], &zero, &(size_t){ sizeof(zero) }) == -FI_EINVAL, "a removed address was found");
	ANSWERS(1, fi_av_insert(av, &all[4], 1, &again, 0, NULL));
	found(av, again, &all[4]);
	CHECK(type != FI_AV_TABLE || again == 3, "not the lowest unused index: %llu", (unsigned long long)again);
	ANSWERS(1, fi_av_insert(av, &all[3], 1, &again, 0, NULL));
	CHECK(type != FI_AV_TABLE || again == 4, "not the lowest unused index: %llu", (unsigned long long)again);
	CHECK(fi_av_remove(av, &(fi_addr_t){ 0x123456 }, 1, 0) < 0, "removing nothing succeeds");
	/* Only the invalid address fails, and FI_SYNC_ERR reports its error. */
	asserts("AV-025");
	all[0] = address(100), all[1] = zero, all[2] = address(102);
	ANSWERS(2, fi_av_insert(av, all, 3, peers, FI_SYNC_ERR, errors));
	CHECK(errors[0] == 0 && errors[1] != 0 && errors[2] == 0, "%d %d %d", errors[0], errors[1], errors[2]);
	CHECK(peers[1] == FI_ADDR_NOTAVAIL && peers[0] != FI_ADDR_NOTAVAIL, "addresses");
	/* The indices of a table are known in advance; those of a map are not. */
	asserts(type == FI_AV_TABLE ? "AV-027" : "AV-028");
	if (type == FI_AV_TABLE)
		CHECK(fi_av_lookup(av, MANY + 1, &zero, &(size_t){ sizeof(zero) }) == -FI_EINVAL, "a failed address was found");
	ANSWERS(type == FI_AV_TABLE ? 1 : -FI_EINVAL, fi_av_insert(av, &(struct sockaddr_in[]){ address(103) }, 1, NULL, FI_MORE, NULL));
	/* The lowest unused index is that of the address that failed. */
	if (type == FI_AV_TABLE)
		found(av, MANY + 1, &(struct sockaddr_in[]){ address(103) }[0]);
	asserts("AV-024");
	ANSWERS(0, fi_av_insert(av, all, 0, NULL, 0, NULL));
	/* Only the address of another family fails. */
	asserts("AV-026");
	all[0] = address(110), all[1] = address(111), all[1].sin_family = AF_INET6;
	ANSWERS(1, fi_av_insert(av, all, 2, peers, FI_SYNC_ERR, errors));
	CHECK(errors[0] == 0 && errors[1] != 0 && peers[1] == FI_ADDR_NOTAVAIL, "%d %d", errors[0], errors[1]);
	found(av, peers[0], &all[0]);
	/* Addresses in several calls with FI_MORE. */
	asserts("AV-030");
	for (int n = 0; n < 3; n++) {
		all[n] = address(120 + n);
		ANSWERS(1, fi_av_insert(av, &all[n], 1, &peers[n], n < 2 ? FI_MORE : 0, NULL));
	}
	for (int n = 0; n < 3; n++)
		found(av, peers[n], &all[n]);
	CHECK(fi_av_insert(av, all, 1, peers, FI_DELIVERY_COMPLETE, NULL) < 0, "an invalid flag was accepted");
	CHECK(fi_av_remove(av, peers, 1, FI_DELIVERY_COMPLETE) < 0, "an invalid flag was accepted");
	ANSWERS(0, fi_close(&av->fid));
}

/* The hints about nodes may affect only allocation. The map address of a vector without a name is ignored. */
static void hints(struct room *room)
{
	static const size_t some[] = { 0, 1, 1000, SIZE_MAX };

	for (size_t at = 0; at < COUNT(some); at++) {
		struct fi_av_attr attr = { .type = FI_AV_TABLE, .count = some[at], .ep_per_node = some[at], .map_addr = room };
		struct sockaddr_in a = address(31);
		struct fid_av *av;
		fi_addr_t peer;

		asserts("AV-007 AV-016");
		NEEDS(fi_av_open(room->domain, &attr, &av, NULL));
		ANSWERS(1, fi_av_insert(av, &a, 1, &peer, 0, NULL));
		CHECK(peer == 0, "%llu", (unsigned long long)peer);
		found(av, peer, &a);
		ANSWERS(0, fi_close(&av->fid));
	}
}

/* A vector stays open as long as an endpoint uses it. Messages to a removed peer are rejected. */
static void in_use(struct room *room)
{
	struct side side;
	struct sockaddr_in a = address(41);
	fi_addr_t peer;
	char byte = 0;

	open_side(&side, room, &how);
	asserts("AV-018");
	ANSWERS(-FI_EBUSY, fi_close(&side.av->fid));
	ANSWERS(1, fi_av_insert(side.av, &a, 1, &peer, 0, NULL));
	found(side.av, peer, &a);
	asserts("AV-046 AV-047");
	ANSWERS(0, fi_av_remove(side.av, &peer, 1, 0));
	CHECK(fi_inject(side.ep, &byte, 1, peer) < 0, "a removed address is sent to");
	ANSWERS(1, fi_av_insert(side.av, &a, 1, &peer, 0, NULL));
	found(side.av, peer, &a);
	close_side(&side);
}

static void text(struct room *room)
{
	struct fi_av_attr attr = { .type = FI_AV_MAP };
	struct sockaddr_in a = address(1234 - 0);
	struct fid_av *av;
	char buf[128], tiny[6];
	size_t needed, len = sizeof(buf);

	NEEDS(fi_av_open(room->domain, &attr, &av, NULL));
	asserts("AV-054");
	CHECK(fi_av_straddr(av, &a, buf, &len) == buf, "not the caller's buffer");
	CHECK(strstr(buf, "127.0.0.1") && strstr(buf, "21234"), "%s", buf);
	CHECK(len == strlen(buf) + 1, "%zu for %s", len, buf);
	/* The text is truncated to the buffer, but the full length is returned. */
	asserts("AV-055");
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
	asserts("AV-049");
	ANSWERS(0, fi_av_lookup(av, peer, got, &len));
	CHECK(len == sizeof(a), "%zu", len);
	CHECK(!memcmp(got, &a, 4) && got[4] == 0xab, "more or less than there is room for");
	asserts("AV-050 AV-056");
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
	asserts("AV-040 AV-048");
	ANSWERS(1, fi_av_insertsvc(av, "127.0.0.1", "20007", &peer, 0, NULL));
	found(av, peer, &a);
	ANSWERS(1, fi_av_insertsvc(av, "127.0.0.1", "20008", &peer, 0, NULL));
	a = address(8);
	found(av, peer, &a);
	asserts("AV-041");
	CHECK(fi_av_insertsvc(av, "127.0.0.1", "no-such-service", &peer, 0, NULL) <= 0, "an invalid service was accepted");
	CHECK(peer == FI_ADDR_NOTAVAIL, "%llu", (unsigned long long)peer);
	CHECK(fi_av_insertsvc(av, "no such node.", "20007", &peer, 0, NULL) <= 0, "an invalid name was resolved");
	CHECK(fi_av_lookup(av, 2, &a, &(size_t){ sizeof(a) }) == -FI_EINVAL, "a failed insertion left an entry");
	CHECK(fi_av_insertsvc(av, NULL, "20007", &peer, 0, NULL) <= 0, "a missing node was accepted");
	ANSWERS(0, fi_close(&av->fid));
}

/* An unspecified type is replaced by the domain's type, which is returned. */
static void unspecified(struct room *room)
{
	struct fi_av_attr attr = { .type = FI_AV_UNSPEC };
	struct fid_av *av;

	asserts("AV-005");
	NEEDS(fi_av_open(room->domain, &attr, &av, NULL));
	CHECK(attr.type == room->info->domain_attr->av_type, "%d", attr.type);
	ANSWERS(0, fi_close(&av->fid));
	asserts("AV-001");
	attr = (struct fi_av_attr){ .type = (enum fi_av_type)17 };
	CHECK(fi_av_open(room->domain, &attr, &av, NULL) < 0, "an invalid type was accepted");
}

/* The upper bits of an address select a receive context. */
static void receive_contexts(struct room *room)
{
	struct fi_av_attr attr = { .type = FI_AV_MAP, .rx_ctx_bits = 4 };
	struct sockaddr_in a = address(11);
	struct fid_av *av;
	fi_addr_t peer;

	NEEDS(fi_av_open(room->domain, &attr, &av, NULL));
	ANSWERS(1, fi_av_insert(av, &a, 1, &peer, 0, NULL));
	asserts("AV-008 AV-052");
	CHECK(peer >> 60 == 0, "the upper bits are used: %#llx", (unsigned long long)peer);
	CHECK(fi_rx_addr(peer, 5, 4) == (peer | (fi_addr_t)5 << 60), "fi_rx_addr");
	ANSWERS(0, fi_close(&av->fid));
}

/* Ranges of nodes and services (fi_av_insertsym). */
static void symmetric(struct room *room)
{
	struct fi_av_attr attr = { .type = FI_AV_TABLE, .flags = FI_SYMMETRIC, .count = 4, .ep_per_node = 2 };
	struct sockaddr_in a = { .sin_family = AF_INET };
	fi_addr_t peers[64];
	struct fid_av *av;
	int errors[2];

	asserts("AV-009");
	NEEDS(fi_av_open(room->domain, &attr, &av, NULL));
	asserts("AV-042 AV-043");
	ANSWERS(4, fi_av_insertsym(av, "10.1.1.1", 2, "5000", 2, peers, 0, NULL));
	for (int n = 0; n < 4; n++) {
		CHECK(peers[n] == (fi_addr_t)n, "entry %d is %llu", n, (unsigned long long)peers[n]);
		a.sin_addr.s_addr = htonl(0x0a010101 + (uint32_t)n / 2);
		a.sin_port = htons((uint16_t)(5000 + n % 2));
		found(av, peers[n], &a);
	}
	/* A long range is one entry. Its parts are removed and added like other addresses. */
	ANSWERS(1000000, fi_av_insertsym(av, "10.2.0.1", 1000, "1000", 1000, NULL, 0, NULL));
	a.sin_addr.s_addr = htonl(0x0a020001 + 999), a.sin_port = htons(1999);
	found(av, 1000003, &a);
	ANSWERS(0, fi_av_remove(av, &(fi_addr_t){ 1000003 }, 1, 0));
	CHECK(fi_av_lookup(av, 1000003, &a, &(size_t){ sizeof(a) }) == -FI_EINVAL, "a removed address was found");
	ANSWERS(1, fi_av_insertsym(av, "10.9.9.9", 1, "7", 1, peers, FI_SYNC_ERR, errors));
	CHECK(peers[0] == 1000003 && errors[0] == 0, "%llu", (unsigned long long)peers[0]);
	ANSWERS(0, fi_av_insertsym(av, "10.1.1.1", 0, "5000", 2, peers, 0, NULL));
	/* Names that a resolver knows without a query: 127.9 is 127.0.0.9, and 127.10 is the next one. */
	asserts("AV-044");
	ANSWERS(4, fi_av_insertsym(av, "127.9", 2, "5000", 2, peers, 0, NULL));
	for (int n = 0; n < 4; n++) {
		a.sin_addr.s_addr = htonl(0x7f000009 + (uint32_t)n / 2);
		a.sin_port = htons((uint16_t)(5000 + n % 2));
		found(av, peers[n], &a);
	}
	asserts("AV-045");
	ANSWERS(-FI_EINVAL, fi_av_insertsym(av, "nonumber", 2, "5000", 1, peers, 0, NULL));
	ANSWERS(-FI_EINVAL, fi_av_insertsym(av, "10.1.1.1", 1, "65535", 2, peers, 0, NULL));
	ANSWERS(-FI_EINVAL, fi_av_insertsym(av, "10.1.1.1", SIZE_MAX, "5", SIZE_MAX, NULL, 0, NULL));
	asserts("AV-058");
	ANSWERS(-FI_EINVAL, fi_av_insertsym(av, NULL, 1, "5", 1, peers, 0, NULL));
	ANSWERS(-FI_EINVAL, fi_av_insertsym(av, "10.1.1.1", 1, NULL, 1, peers, 0, NULL));
	ANSWERS(-FI_EINVAL, fi_av_insertsvc(av, NULL, "5", peers, 0, NULL));
	ANSWERS(-FI_EINVAL, fi_av_insertsvc(av, "10.1.1.1", NULL, peers, 0, NULL));
	ANSWERS(0, fi_av_insertsym(av, "10.1.1.1", 2, "5000", 0, peers, 0, NULL));
	ANSWERS(-FI_EINVAL, fi_av_insertsym(av, "10.1.1.1", 1, "5", 1, peers, FI_DELIVERY_COMPLETE, NULL));
	CHECK(fi_av_insertsym(av, "fe80::1", 1, "5", 1, peers, 0, NULL) < 0, "an address of another family");
	CHECK(fi_av_insertsym(av, "10.1.1.1", 1, "none", 1, peers, 0, NULL) < 0, "an invalid service was accepted");
	ANSWERS(0, fi_close(&av->fid));
}

/* Sends a message to a peer of this vector. */
static void send_by(struct room *room, struct fid_av *av, fi_addr_t peer)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_CONTEXT };
	struct fi_cq_entry entry;
	double until = now() + WAIT_LIMIT;
	struct fid_ep *ep;
	struct fid_cq *cq;
	ssize_t code;

	NEEDS(fi_endpoint(room->domain, room->info, &ep, NULL));
	NEEDS(fi_cq_open(room->domain, &attr, &cq, NULL));
	NEEDS(fi_ep_bind(ep, &av->fid, 0));
	NEEDS(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	NEEDS(fi_enable(ep));
	while ((code = fi_send(ep, "by index", 8, NULL, peer, context(2))) == -FI_EAGAIN)
		MUST(now() < until, "no room for the operation");
	ANSWERS(0, code);
	while ((code = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
		MUST(now() < until, "the message was not sent");
	ANSWERS(1, code);
	ANSWERS(0, fi_close(&ep->fid));
	ANSWERS(0, fi_close(&cq->fid));
}

/* Named vectors are shared with other processes, one of which inserts addresses here. */
static void named(struct room *room)
{
	char name[64];
	struct sockaddr_in a = address(21);
	struct fid_av *av, *other, *elsewhere;
	fi_addr_t peer, inserted[2], mine;
	int link[2], status;
	char byte = 0;
	pid_t child;

	snprintf(name, sizeof(name), "every-%ld", (long)getpid());
	struct fi_av_attr attr = { .type = FI_AV_MAP, .name = name, .count = 100 };
	struct fi_av_attr unnamed = { .type = FI_AV_MAP, .flags = FI_READ }, reading = { .type = FI_AV_MAP, .name = name, .flags = FI_READ };

	asserts("AV-013");
	ANSWERS(-FI_EINVAL, fi_av_open(room->domain, &unnamed, &av, NULL));
	ANSWERS(-FI_ENOENT, fi_av_open(room->domain, &reading, &av, NULL));
	asserts("AV-010 AV-015 AV-017");
	NEEDS(fi_av_open(room->domain, &attr, &av, NULL));
	MUST(attr.map_addr != NULL, "map_addr is not returned");
	ANSWERS(1, fi_av_insert(av, &a, 1, &peer, 0, NULL));
	NEEDS(fi_av_open(room->domain, &reading, &other, NULL));
	/* The address of the indices, for processes that did not insert. */
	MUST(reading.map_addr != NULL, "map_addr is not returned");
	CHECK(((fi_addr_t *)reading.map_addr)[0] == peer, "another number");
	asserts("AV-012");
	found(other, peer, &a);
	ANSWERS(-FI_EACCES, fi_av_insert(other, &a, 1, &mine, 0, NULL));
	ANSWERS(-FI_EACCES, fi_av_remove(other, &peer, 1, 0));
	/* Another program, which a second process executes, inserts an address. */
	asserts("AV-011 AV-014");
	MUST(!socketpair(AF_UNIX, SOCK_STREAM, 0, link), "no sockets");
	child = fork();
	if (child == 0) {
		char *self = realpath("/proc/self/exe", NULL);

		dup2(link[1], 0);
		execl(self, self, "-v", name, (char *)NULL);
		_exit(9);
	}
	close(link[1]);
	MUST(read(link[0], inserted, sizeof(inserted)) == sizeof(inserted), "no message from the other process");
	mine = inserted[0];
	a = address(22);
	found(av, mine, &a);
	found(other, mine, &a);
	/* The second address is that of an endpoint of the other process, which is reached through the read-only vector. */
	send_by(room, other, inserted[1]);
	CHECK(write(link[0], &byte, 1) == 1, "the other process has exited");
	MUST(waitpid(child, &status, 0) == child && status == 0, "the other process ended with %d", status);
	close(link[0]);
	found(av, mine, &a);
	CHECK(((fi_addr_t *)reading.map_addr)[1] == mine, "another number");
	/* Indices have the same meaning at any mapping address. */
	attr.map_addr = (void *)0x10000000;
	NEEDS(fi_av_open(room->domain, &attr, &elsewhere, NULL));
	CHECK(attr.map_addr == (void *)0x10000000, "map_addr is not the client's any more");
	found(elsewhere, mine, &a);
	ANSWERS(0, fi_close(&elsewhere->fid));
	/* The creator may close its vector first. The vector is removed when the last user closes it. */
	ANSWERS(0, fi_close(&av->fid));
	found(other, mine, &a);
	ANSWERS(0, fi_close(&other->fid));
	ANSWERS(-FI_ENOENT, fi_av_open(room->domain, &reading, &other, NULL));
}

/*
 * The other process of named(): inserts an address and that of its endpoint, sends the indices, receives a message, and waits for
 * a byte.
 */
int vector_writer(const char *name)
{
	static const struct settings how = { .name = "vector writer", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL };
	struct fi_av_attr attr = { .type = FI_AV_MAP, .name = name };
	struct sockaddr_in a = address(22);
	static struct side side;
	struct room room;
	struct fid_av *av;
	fi_addr_t peers[2];
	char byte, own[64];

	open_room(&room, &how);
	NEEDS(fi_av_open(room.domain, &attr, &av, NULL));
	ANSWERS(1, fi_av_insert(av, &a, 1, &peers[0], 0, NULL));
	open_side(&side, &room, &how);
	name_of(&side, own, sizeof(own));
	ANSWERS(1, fi_av_insert(av, own, 1, &peers[1], 0, NULL));
	POSTED(&side, fi_recv(side.ep, side.in, 8, side.in_desc, FI_ADDR_UNSPEC, context(1)));
	MUST(write(0, peers, sizeof(peers)) == sizeof(peers), "the first process has exited");
	CHECK(take(&side, context(1)).len == 8 && !memcmp(side.in, "by index", 8), "another message");
	MUST(read(0, &byte, 1) == 1, "the first process has exited");
	close_side(&side);
	ANSWERS(0, fi_close(&av->fid));
	close_room(&room);
	return all_is_well() ? 0 : 1;
}

/* Reads the result of an insertion: the errors, each with the index of its address, and the completion. */
static uint64_t ended(struct fid_eq *eq, struct fid_av *av, void *context, const uint64_t *failing, int errors)
{
	struct fi_eq_err_entry error;
	struct fi_eq_entry entry;
	uint32_t event = 0;
	ssize_t got = 0;

	for (int at = 0; at <= errors; at++) {
		got = fi_eq_sread(eq, &event, &entry, sizeof(entry), WAIT_LIMIT * 1000, 0);
		if (at == errors)
			break;
		ANSWERS(-FI_EAVAIL, got);
		memset(&error, 0, sizeof(error));
		MUST(fi_eq_readerr(eq, &error, 0) > 0, "no error");
		CHECK(error.fid == &av->fid && error.context == context && error.err != 0, "error %d", error.err);
		CHECK(error.data == failing[at], "index %llu", (unsigned long long)error.data);
	}
	MUST(got == sizeof(entry), "%zd", got);
	CHECK(event == FI_AV_COMPLETE && entry.fid == &av->fid && entry.context == context, "event %u", event);
	return entry.data;
}

static void asynchronous(struct room *room)
{
	struct fi_av_attr attr = { .type = FI_AV_TABLE, .flags = FI_EVENT };
	struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_FD };
	struct sockaddr_in all[4] = { address(1), { 0 }, address(2), { 0 } }, one = address(3);
	fi_addr_t peers[4] = { 0 }, more[4] = { 0 };
	uint64_t failing[] = { 1, 3 };
	struct fi_eq_entry entry;
	struct fid_eq *eq;
	struct fid_av *av, *plain;
	uint32_t event;

	NEEDS(fi_av_open(room->domain, &attr, &av, NULL));
	asserts("AV-022");
	ANSWERS(-FI_ENOEQ, fi_av_insert(av, all, 1, peers, 0, NULL));
	ANSWERS(-FI_ENOEQ, fi_av_insertsvc(av, "127.0.0.1", "5", peers, 0, NULL));
	ANSWERS(-FI_ENOEQ, fi_av_insertsym(av, "127.0.0.1", 1, "5", 1, peers, 0, NULL));
	NEEDS(fi_eq_open(room->fabric, &eq_attr, &eq, NULL));
	asserts("AV-021");
	ANSWERS(0, fi_av_bind(av, &eq->fid, 0));
	CHECK(fi_av_bind(av, &eq->fid, 0) < 0, "bound twice");
	asserts("AV-033 AV-034 AV-035 AV-037");
	ANSWERS(0, fi_av_insert(av, all, 4, peers, 0, context(1)));
	ANSWERS(2, ended(eq, av, context(1), failing, 2));
	CHECK(peers[0] == 0 && peers[2] == 2, "indices");
	CHECK(peers[1] == FI_ADDR_NOTAVAIL && peers[3] == FI_ADDR_NOTAVAIL, "failed addresses");
	found(av, 2, &all[2]);
	/* An insertion is also reported as complete if all of its addresses fail. */
	asserts("AV-036");
	ANSWERS(0, fi_av_insert(av, &all[1], 1, peers, 0, context(2)));
	ANSWERS(0, ended(eq, av, context(2), (uint64_t[]){ 0 }, 1));
	/* Two insertions at a time, one of which calls a resolver. The indices follow the order of the calls. */
	asserts("AV-031 AV-032 AV-038");
	ANSWERS(0, fi_av_insertsvc(av, "localhost", "20001", peers, FI_MORE, context(3)));
	ANSWERS(0, fi_av_insert(av, &one, 1, more, 0, context(4)));
	ANSWERS(1, ended(eq, av, context(3), NULL, 0));
	ANSWERS(1, ended(eq, av, context(4), NULL, 0));
	CHECK(peers[0] == 1 && more[0] == 3, "%llu %llu", (unsigned long long)peers[0], (unsigned long long)more[0]);
	found(av, 3, &one);
	ANSWERS(0, fi_av_insertsym(av, "10.1.1.1", 2, "5000", 2, more, 0, context(5)));
	ANSWERS(4, ended(eq, av, context(5), NULL, 0));
	CHECK(more[3] == 7, "%llu", (unsigned long long)more[3]);
	/* An insertion of no addresses is also reported as complete. */
	asserts("AV-057");
	ANSWERS(0, fi_av_insert(av, all, 0, more, 0, context(8)));
	ANSWERS(0, ended(eq, av, context(8), NULL, 0));
	ANSWERS(0, fi_av_insertsym(av, "10.1.1.1", 0, "5000", 2, more, 0, context(9)));
	ANSWERS(0, ended(eq, av, context(9), NULL, 0));
	ANSWERS(0, fi_av_insertsym(av, "10.1.1.1", 2, "5000", 0, NULL, 0, context(10)));
	ANSWERS(0, ended(eq, av, context(10), NULL, 0));
	/* An insertion that does not begin has no events; neither does one without a node or a service. */
	asserts("AV-033 AV-058");
	ANSWERS(-FI_EINVAL, fi_av_insertsvc(av, NULL, "5000", more, 0, context(6)));
	ANSWERS(-FI_EINVAL, fi_av_insertsvc(av, "10.1.1.1", NULL, more, 0, context(6)));
	ANSWERS(-FI_EINVAL, fi_av_insertsym(av, NULL, 1, "5000", 1, more, 0, context(6)));
	ANSWERS(-FI_EINVAL, fi_av_insertsym(av, "10.1.1.1", 1, NULL, 1, more, 0, context(6)));
	CHECK(fi_av_insertsym(av, "nonumber", 2, "5000", 1, more, 0, context(6)) < 0, "names without numbers");
	CHECK(fi_av_insert(av, NULL, 1, more, 0, context(6)) < 0, "no addresses");
	CHECK(fi_av_insert(av, &one, 1, more, FI_SYNC_ERR, more) < 0, "codes at once");
	ANSWERS(-FI_EAGAIN, fi_eq_read(eq, &event, &entry, sizeof(entry), 0));
	/* Events outlive their vector. */
	asserts("AV-020 CMP-014");
	ANSWERS(0, fi_av_insert(av, &one, 1, more, 0, context(7)));
	ANSWERS(-FI_EBUSY, fi_close(&eq->fid));
	ANSWERS(0, fi_close(&av->fid));
	ANSWERS(sizeof(entry), fi_eq_read(eq, &event, &entry, sizeof(entry), FI_PEEK));
	ANSWERS(-FI_ETOOSMALL, fi_eq_read(eq, &event, &entry, sizeof(entry) - 1, 0));
	ANSWERS(sizeof(entry), fi_eq_read(eq, &event, &entry, sizeof(entry), 0));
	CHECK(event == FI_AV_COMPLETE && entry.data == 1 && entry.context == context(7), "%u", event);
	attr.flags = 0;
	NEEDS(fi_av_open(room->domain, &attr, &plain, NULL));
	CHECK(fi_av_bind(plain, &eq->fid, 0) < 0, "a vector without events was bound");
	ANSWERS(0, fi_close(&plain->fid));
	ANSWERS(0, fi_close(&eq->fid));
	attr.flags = 1ull << 50;
	CHECK(fi_av_open(room->domain, &attr, &plain, NULL) < 0, "invalid flags were accepted");
}

void vector_groups(void)
{
	static const struct {
		const char *name;
		void (*run)(struct room *);
	} all[] = {
		{ "av: hints", hints },
		{ "av: in use", in_use },
		{ "av: text", text },
		{ "av: lookup with little room", lookup_with_little_room },
		{ "av: nodes and services", services },
		{ "av: unspecified type", unspecified },
		{ "av: receive contexts", receive_contexts },
		{ "av: symmetric", symmetric },
		{ "av: asynchronous", asynchronous },
		{ "av: named", named },
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
