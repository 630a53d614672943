/* Completion queues (fi_cq(3)): formats, several results per call, errors, sources. */
#include "every.h"

/* An endpoint with a queue of this format, and another endpoint that sends to it. With `alone` it sends to itself. */
struct one {
	struct room room;
	struct fid_av *av;
	struct fid_cq *cq, *sender_cq;
	struct fid_ep *ep, *sender;
	fi_addr_t self, source;
};

static const struct settings how = { .name = "queues", .av_type = FI_AV_TABLE, .threading = FI_THREAD_DOMAIN, .progress = FI_PROGRESS_MANUAL };

/* Opens an endpoint with a queue, and inserts its address. */
static void open_end(struct one *one, enum fi_cq_format format, struct fid_cq **cq, struct fid_ep **ep, fi_addr_t *address)
{
	struct fi_cq_attr attr = { .format = format, .size = 100 };
	char name[64];
	size_t len = sizeof(name);

	NEEDS(fi_cq_open(one->room.domain, &attr, cq, one));
	NEEDS(fi_endpoint(one->room.domain, one->room.info, ep, NULL));
	NEEDS(fi_ep_bind(*ep, &one->av->fid, 0));
	NEEDS(fi_ep_bind(*ep, &(*cq)->fid, FI_TRANSMIT | FI_RECV));
	NEEDS(fi_enable(*ep));
	NEEDS(fi_getname(&(*ep)->fid, name, &len));
	ANSWERS(1, fi_av_insert(one->av, name, 1, address, 0, NULL));
}

static void open_one(struct one *one, enum fi_cq_format format)
{
	struct fi_av_attr av = { .type = FI_AV_TABLE };

	open_room(&one->room, &how);
	NEEDS(fi_av_open(one->room.domain, &av, &one->av, NULL));
	open_end(one, format, &one->cq, &one->ep, &one->self);
	one->sender = one->ep, one->sender_cq = NULL, one->source = one->self;
	if (!options.alone)
		open_end(one, FI_CQ_FORMAT_CONTEXT, &one->sender_cq, &one->sender, &one->source);
}

/* Makes progress at the sender. */
static void turn(struct one *one)
{
	if (one->sender_cq)
		fi_cq_read(one->sender_cq, NULL, 0);
}

/* Repeats a call until there is space for it. */
#define POST_HERE(call)                                                                                                \
	do {                                                                                                               \
		double until_ = now() + WAIT_LIMIT;                                                                            \
		ssize_t code_;                                                                                                 \
		while ((code_ = (call)) == -FI_EAGAIN) {                                                                       \
			MUST(now() < until_, "no room for the operation");                                                         \
			turn(one);                                                                                                 \
			fi_cq_read(one->cq, NULL, 0);                                                                              \
		}                                                                                                              \
		ANSWERS(0, code_);                                                                                             \
	} while (0)

static void close_one(struct one *one)
{
	if (one->sender_cq) {
		ANSWERS(0, fi_close(&one->sender->fid));
		ANSWERS(0, fi_close(&one->sender_cq->fid));
	}
	ANSWERS(0, fi_close(&one->ep->fid));
	ANSWERS(0, fi_close(&one->cq->fid));
	ANSWERS(0, fi_close(&one->av->fid));
	close_room(&one->room);
}

static size_t entry_size(enum fi_cq_format format)
{
	static const size_t sizes[] = { 0, sizeof(struct fi_cq_entry), sizeof(struct fi_cq_msg_entry), sizeof(struct fi_cq_data_entry),
					sizeof(struct fi_cq_tagged_entry) };

	return sizes[format];
}

/* Checks the fields of an entry of this format for the receive of message `n`. */
static void check_entry(enum fi_cq_format format, const void *at, int n)
{
	const struct fi_cq_tagged_entry *e = at;

	CHECK(e->op_context == context(100 + n), "another context");
	if (format == FI_CQ_FORMAT_CONTEXT)
		return;
	CHECK((e->flags & (FI_TAGGED | FI_RECV)) == (FI_TAGGED | FI_RECV), "flags %#llx", (unsigned long long)e->flags);
	CHECK(e->len == (size_t)(10 + n), "%zu", e->len);
	if (format == FI_CQ_FORMAT_MSG)
		return;
	CHECK((e->flags & FI_REMOTE_CQ_DATA) && e->data == (uint64_t)(70 + n), "data %llu", (unsigned long long)e->data);
	if (format == FI_CQ_FORMAT_DATA)
		return;
	CHECK(e->tag == (uint64_t)(30 + n), "tag %llu", (unsigned long long)e->tag);
}

/* Several results, read in portions with both calls. Nothing is written beyond the results. */
static void formats(struct one *one, enum fi_cq_format format)
{
	enum { MANY = 7, AT_ONCE = 3 };
	const size_t each = entry_size(format);
	char out[64] = "", in[MANY][64], entries[AT_ONCE * sizeof(struct fi_cq_tagged_entry) + 8];
	fi_addr_t sources[AT_ONCE + 1];
	int got = 0;

	for (int n = 0; n < MANY; n++)
		NEEDS(fi_trecv(one->ep, in[n], sizeof(in[n]), NULL, FI_ADDR_UNSPEC, (uint64_t)(30 + n), 0, context(100 + n)));
	for (int n = 0; n < MANY; n++)
		POST_HERE(fi_tinjectdata(one->sender, out, (size_t)(10 + n), (uint64_t)(70 + n), one->self, (uint64_t)(30 + n)));
	asserts("CMP-001 CMP-008 CMP-010");
	for (double until = now() + WAIT_LIMIT; got < MANY;) {
		ssize_t more;
		MUST(now() < until, "%d of %d results arrived", got, MANY);
		turn(one);
		memset(entries, 0x6b, sizeof(entries));
		sources[AT_ONCE] = 0x6b;
		/* A read of 0 results loses none. */
		more = fi_cq_read(one->cq, NULL, 0);
		CHECK(more == 0 || more == -FI_EAGAIN, "%zd", more);
		more = got & 1 ? fi_cq_read(one->cq, entries, AT_ONCE) : fi_cq_readfrom(one->cq, entries, AT_ONCE, sources);
		if (more == -FI_EAGAIN)
			continue;
		MUST(more > 0 && more <= AT_ONCE, "%zd results", more);
		for (ssize_t n = 0; n < more; n++) {
			check_entry(format, entries + (size_t)n * each, got + (int)n);
			CHECK((got & 1) || sources[n] == one->source, "from %#llx", (unsigned long long)sources[n]);
		}
		for (size_t at = (size_t)more * each; at < sizeof(entries); at++)
			MUST(entries[at] == 0x6b, "written beyond %zd results", more);
		CHECK(sources[AT_ONCE] == 0x6b, "an element beyond the sources was written");
		got += (int)more;
	}
	ANSWERS(-FI_EAGAIN, fi_cq_read(one->cq, entries, 1));
}

/* An error blocks the queue until it is read. After that the following results are available. */
static void errors(struct one *one)
{
	char in[8], out[40] = "";
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	char text[8];
	ssize_t got;

	memset(&error, 0, sizeof(error));
	ANSWERS(-FI_EAGAIN, fi_cq_readerr(one->cq, &error, 0));
	NEEDS(fi_trecv(one->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 1, 0, context(1)));
	NEEDS(fi_trecv(one->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 2, 0, context(2)));
	POST_HERE(fi_tinject(one->sender, out, sizeof(out), one->self, 1));
	POST_HERE(fi_tinject(one->sender, out, 5, one->self, 2));
	asserts("CMP-007");
	for (double until = now() + WAIT_LIMIT; (got = fi_cq_read(one->cq, &entry, 1)) == -FI_EAGAIN; turn(one))
		MUST(now() < until, "the error does not come");
	ANSWERS(-FI_EAVAIL, got);
	ANSWERS(-FI_EAVAIL, fi_cq_read(one->cq, &entry, 1));
	ANSWERS(-FI_EAVAIL, fi_cq_readfrom(one->cq, &entry, 1, &(fi_addr_t){ 0 }));
	ANSWERS(1, fi_cq_readerr(one->cq, &error, 0));
	CHECK(error.op_context == context(1) && error.err == FI_ETRUNC && error.olen == 32 && error.len == 8 && error.tag == 1,
	      "error %d, %zu bytes over, %zu arrived", error.err, error.olen, error.len);
	ANSWERS(-FI_EAGAIN, fi_cq_readerr(one->cq, &error, 0));
	/* Error texts, complete or truncated. */
	memset(text, 'x', sizeof(text));
	CHECK(fi_cq_strerror(one->cq, error.prov_errno, error.err_data, text, sizeof(text)), "no error text");
	CHECK(memchr(text, 0, sizeof(text)), "the error text is not terminated");
	CHECK(fi_cq_strerror(one->cq, error.prov_errno, error.err_data, NULL, 0), "no error text without a buffer");
	CHECK(fi_cq_strerror(one->cq, -12345, NULL, NULL, 0), "no error text for an invalid code");
	for (double until = now() + WAIT_LIMIT; (got = fi_cq_read(one->cq, &entry, 1)) == -FI_EAGAIN; turn(one))
		MUST(now() < until, "the result after the error did not arrive");
	ANSWERS(1, got);
	CHECK(entry.op_context == context(2) && entry.len == 5, "another result");
}

/* With the caller's buffer for error data. */
static void error_data(struct one *one)
{
	char in[4], out[40] = "", more[64];
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = { .err_data = more, .err_data_size = sizeof(more) };

	NEEDS(fi_recv(one->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, context(1)));
	POST_HERE(fi_inject(one->sender, out, sizeof(out), one->self));
	for (double until = now() + WAIT_LIMIT; fi_cq_read(one->cq, &entry, 1) == -FI_EAGAIN; turn(one))
		MUST(now() < until, "the error does not come");
	ANSWERS(1, fi_cq_readerr(one->cq, &error, 0));
	CHECK(error.err_data_size <= sizeof(more), "%zu", error.err_data_size);
	CHECK(error.err_data_size == 0 || error.err_data == more, "another buffer");
}

/* Messages from a sender that is in the vector, and after it was removed from there. */
static void strangers(void)
{
	struct settings plain = how;
	struct two two;
	struct message m = { .len = 20, .context = context(1), .tagged = true };
	struct done done;

	open_two(&two, &plain);
	m.buf = two.b.in;
	asserts("MSG-008");
	for (int known = 1; known >= 0; known--) {
		if (!known)
			ANSWERS(0, fi_av_remove(two.b.av, &two.b.peer, 1, 0));
		ANSWERS(0, post_receive(&two.b, RECV, &m));
		fill(two.a.out, 20, 2);
		ANSWERS(0, POST(&two.a, fi_tinject(two.a.ep, two.a.out, 20, two.a.peer, 0)));
		done = take(&two.b, context(1));
		CHECK(done.err == 0 && done.source == (known ? two.b.peer : FI_ADDR_NOTAVAIL) && is_filled(two.b.in, 20, 2),
		      "error %d, from %#llx", done.err, (unsigned long long)done.source);
	}
	close_two(&two);
}

/*
 * An endpoint that sends as much as it can is told that there is no space before a completion could be lost. When the completions
 * are read, there is space again, and each message that was accepted has arrived.
 */
static void full(struct one *one)
{
	enum { LIMIT = 100000 };
	struct fi_cq_tagged_entry entry;
	double until = now() + WAIT_LIMIT;
	int posted = 0, sent = 0, received = 0;
	static int numbers[LIMIT], in;
	ssize_t code;

	asserts("MSG-018 CMP-009");
	for (; posted < LIMIT; posted++) {
		numbers[posted] = posted;
		if ((code = fi_send(one->sender, &numbers[posted], sizeof(int), NULL, one->self, context(1))) == -FI_EAGAIN)
			break;
		ANSWERS(0, code);
	}
	MUST(posted > 0 && posted < LIMIT, "%d sends", posted);
	/* One receive at a time, and one send more after the first completions. */
	for (int extra = 0, waiting = 0; sent < posted || received < posted || !extra;) {
		MUST(now() < until, "%d of %d sends, %d receives", sent, posted, received);
		if (!waiting && received < posted) {
			code = fi_recv(one->ep, &in, sizeof(in), NULL, FI_ADDR_UNSPEC, context(2));
			CHECK(code == 0 || code == -FI_EAGAIN, "%zd", code);
			waiting = code == 0;
		}
		if (!extra && sent > 0 && posted < LIMIT) {
			numbers[posted] = posted;
			code = fi_send(one->sender, &numbers[posted], sizeof(int), NULL, one->self, context(1));
			CHECK(code == 0 || code == -FI_EAGAIN, "%zd", code);
			extra = code == 0;
			posted += extra;
		}
		while (one->sender_cq && (code = fi_cq_read(one->sender_cq, &entry, 1)) == 1)
			sent++;
		while ((code = fi_cq_read(one->cq, &entry, 1)) == 1) {
			if (entry.op_context == context(1)) {
				sent++;
				continue;
			}
			CHECK(in == received, "message %d instead of %d", in, received);
			received++, waiting = 0;
		}
		ANSWERS(-FI_EAGAIN, code);
	}
	CHECK(sent == posted && received == posted, "%d sends and %d receives of %d", sent, received, posted);
}

void queue_groups(void)
{
	static const struct {
		const char *name;
		enum fi_cq_format format;
	} all[] = {
		{ "cq: format context", FI_CQ_FORMAT_CONTEXT },
		{ "cq: format msg", FI_CQ_FORMAT_MSG },
		{ "cq: format data", FI_CQ_FORMAT_DATA },
		{ "cq: format tagged", FI_CQ_FORMAT_TAGGED },
	};
	struct one one;

	for (size_t at = 0; at < COUNT(all); at++) {
		begin(all[at].name);
		open_one(&one, all[at].format);
		formats(&one, all[at].format);
		close_one(&one);
		end();
	}
	open_one(&one, FI_CQ_FORMAT_TAGGED);
	begin("cq: errors");
	errors(&one);
	error_data(&one);
	end();
	close_one(&one);
	begin("cq: full");
	open_one(&one, FI_CQ_FORMAT_TAGGED);
	full(&one);
	close_one(&one);
	end();
	if (options.alone)
		return;
	begin("cq: messages of strangers");
	strangers();
	end();
}
