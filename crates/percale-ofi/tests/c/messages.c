/*
 * Messages, tagged and untagged: every call, every flag, order, early arrival, lengths, truncation, cancelling, multi-receive
 * buffers.
 */
#include "every.h"

enum { S = 0, R = 512 };

static struct message outgoing(struct pair *p, bool tagged, size_t len, unsigned seed)
{
	struct message m = { .tagged = tagged, .tag = 0xabcdef0000000000u + seed, .buf = p->a ? p->a->out : NULL, .len = len,
			     .data = 0x0123456789abcdefu ^ seed, .context = context(S) };

	if (p->a)
		fill(m.buf, len, seed);
	return m;
}

static struct message incoming(struct pair *p, const struct message *sent, size_t room)
{
	return (struct message){ .tagged = sent->tagged, .tag = sent->tag, .buf = p->b ? p->b->in : NULL, .len = room,
				 .context = context(R), .flags = FI_COMPLETION };
}

/* One message with these calls. The receive must report a completion (`visible`), because the test waits for it. */
static void exchange(struct pair *p, enum send_call send, enum receive_call receive, struct message *out, struct message *in,
		     bool early, unsigned seed)
{
	if (p->b)
		memset(in->buf, 0, out->len);
	if (p->b && !early)
		ANSWERS(0, post_receive(p->b, receive, in));
	meet(p);
	if (p->a) {
		ANSWERS(0, post_send(p->a, send, out));
		/* The buffer of an injected message may be reused. */
		if (injects(send) || (send == SENDMSG && (out->flags & FI_INJECT)))
			memset(out->buf, 0xee, out->len);
	}
	if (early) {
		/* The message is in progress and probably arrives before its receive is posted. */
		if (p->b)
			progress(p->b);
		meet(p);
	}
	if (p->b && early)
		ANSWERS(0, post_receive(p->b, receive, in));
	if (p->b)
		check_received(p->b, in, out, carries_data(send, out->flags), seed);
	if (p->a)
		check_sent(p->a, send, out);
	meet(p);
}

static enum receive_call visible(const struct side *b, int number)
{
	return reports(b, false, OWN_FLAGS) ? (enum receive_call)(number % RECEIVE_CALLS) : RECVMSG;
}

static void every_call(struct pair *p, bool tagged, bool early)
{
	static const size_t lens[] = { 0, 1, 8, 64, 100, 1000, 2048, 4096, 20000, 300000, 2u << 20 };
	struct side *here = p->a ? p->a : p->b;
	size_t inject_size = here->room->info->tx_attr->inject_size;
	unsigned seed = 1;

	/*
	 * Sends and receives of several pieces, one of them empty; injected messages whose buffer is overwritten at once, and which
	 * report no completion (`quiet`); messages with and without data; sources; tags of which some bits are ignored.
	 */
	asserts("MSG-002 MSG-003 MSG-009");
	for (size_t at = 0; at < COUNT(lens); at += options.few ? 3 : 1) {
		for (int send = 0; send < SEND_CALLS; send++, seed++) {
			struct message out = outgoing(p, tagged, lens[at], seed);
			struct message in = incoming(p, &out, lens[at] + (seed & 7));

			if (injects((enum send_call)send) && lens[at] > inject_size)
				continue;
			/* The tag of a receive may have any value in the bits that it ignores. */
			in.ignore = 0xff0f;
			in.tag ^= 0x8305;
			out.flags = FI_COMPLETION | (seed & 1 ? FI_REMOTE_CQ_DATA : 0);
			exchange(p, (enum send_call)send, visible(here, (int)seed), &out, &in, early, seed);
		}
	}
}

/* The lengths at which the transports change the way in which they carry a message. */
static void every_length(struct pair *p, bool tagged)
{
	static const size_t lens[] = { 0, 1, 40, 512, 2048, 65536, 1u << 20, 16u << 20 };

	asserts("MSG-001");
	for (size_t at = 0; at < COUNT(lens) - (options.few ? 1 : 0); at++) {
		struct message out = outgoing(p, tagged, lens[at], 80u + (unsigned)at), in = incoming(p, &out, lens[at]);

		out.flags = FI_COMPLETION;
		exchange(p, SENDMSG, RECVMSG, &out, &in, false, 80u + (unsigned)at);
	}
}

/* Each flag that a message may have. */
static void every_flag(struct pair *p, bool tagged)
{
	static const uint64_t flags[] = {
		0, FI_COMPLETION, FI_MORE, FI_FENCE, FI_INJECT, FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE,
		FI_MATCH_COMPLETE, FI_REMOTE_CQ_DATA, FI_INJECT | FI_COMPLETION, FI_INJECT | FI_DELIVERY_COMPLETE | FI_COMPLETION,
		FI_MATCH_COMPLETE | FI_COMPLETION, FI_DELIVERY_COMPLETE | FI_REMOTE_CQ_DATA | FI_COMPLETION,
		FI_FENCE | FI_DELIVERY_COMPLETE | FI_COMPLETION,
	};
	static const size_t lens[] = { 5, 1500, 100000 };

	/* The message with FI_MORE arrives before the following one is posted. */
	asserts("MSG-017");
	if ((p->a ? p->a : p->b)->how->tx_selective)
		asserts("CMP-002");
	for (size_t at = 0; at < COUNT(flags); at++) {
		for (size_t n = 0; n < COUNT(lens); n++) {
			unsigned seed = (unsigned)(100 + at * 10 + n);
			struct message out = outgoing(p, tagged, lens[n], seed);
			struct message in = incoming(p, &out, lens[n]);

			if ((flags[at] & FI_INJECT) && lens[n] > 1500)
				continue;
			out.flags = flags[at];
			exchange(p, SENDMSG, RECVMSG, &out, &in, false, seed);
			/* FI_MORE announces another message. */
			if (flags[at] & FI_MORE) {
				out = outgoing(p, tagged, lens[n], seed + 5);
				in = incoming(p, &out, lens[n]);
				exchange(p, SENDMSG, RECVMSG, &out, &in, false, seed + 5);
			}
		}
	}
}

/*
 * With FI_MATCH_COMPLETE and FI_DELIVERY_COMPLETE a send completes only when there is a receive. With FI_INJECT_COMPLETE it may
 * complete earlier, and its buffer may be overwritten then.
 */
static void levels(struct pair *p, bool tagged)
{
	static const uint64_t flags[] = { FI_MATCH_COMPLETE | FI_COMPLETION, FI_DELIVERY_COMPLETE | FI_COMPLETION };
	struct message early = outgoing(p, tagged, 40, 78), late = incoming(p, &early, 40);

	asserts("CMP-003");
	early.flags = FI_INJECT_COMPLETE | FI_COMPLETION;
	if (p->a) {
		ANSWERS(0, post_send(p->a, SENDMSG, &early));
		check_sent(p->a, SENDMSG, &early);
		memset(early.buf, 0xee, early.len);
	}
	meet(p);
	if (p->b) {
		ANSWERS(0, post_receive(p->b, RECVMSG, &late));
		check_received(p->b, &late, &early, false, 78);
	}
	meet(p);
	asserts("CMP-006");

	for (size_t at = 0; at < COUNT(flags); at++) {
		struct message out = outgoing(p, tagged, 40, 77);
		struct message in = incoming(p, &out, 40);

		out.flags = flags[at];
		if (p->a) {
			ANSWERS(0, post_send(p->a, SENDMSG, &out));
			for (int round = 0; round < 200; round++)
				progress(p->a);
			CHECK(p->a->stashed == 0, "a send is complete before its receive (flags %#llx)",
			      (unsigned long long)flags[at]);
		}
		meet(p);
		if (p->b) {
			memset(in.buf, 0, 40);
			ANSWERS(0, post_receive(p->b, RECVMSG, &in));
			/* In one process, the bytes are visible as soon as the send has completed. */
			if (p->a && (flags[at] & FI_DELIVERY_COMPLETE)) {
				asserts("CMP-005");
				check_sent(p->a, SENDMSG, &out);
				CHECK(is_filled(in.buf, 40, 77), "a send is complete before its delivery");
			}
			check_received(p->b, &in, &out, false, 77);
		}
		if (p->a && !(p->b && (flags[at] & FI_DELIVERY_COMPLETE)))
			check_sent(p->a, SENDMSG, &out);
		meet(p);
	}
}

/*
 * Many messages at once arrive in the order of their sends (FI_ORDER_SAS), short and long ones mixed. Half of the receives are
 * posted when the messages have been sent.
 */
enum { MANY = 60 };

static void order_once(struct pair *p, bool tagged)
{
	size_t at_out[MANY], at_in[MANY], len[MANY], out_at = 0;
	struct message m = { .tagged = tagged, .tag = 5, .flags = FI_COMPLETION };

	for (int n = 0; n < MANY; n++) {
		len[n] = n == 31 ? 200000 : n % 7 == 3 ? 30000 : (size_t)(n * 13 % 300);
		at_out[n] = at_in[n] = out_at;
		out_at += len[n];
		if (p->a)
			fill(p->a->out + at_out[n], len[n], 900u + (unsigned)n);
	}
	for (int n = 0; p->b && n < MANY / 2; n++) {
		m.buf = p->b->in + at_in[n], m.len = len[n], m.context = context(R + n);
		ANSWERS(0, post_receive(p->b, RECVMSG, &m));
	}
	meet(p);
	for (int n = 0; p->a && n < MANY; n++) {
		m.buf = p->a->out + at_out[n], m.len = len[n], m.context = context(S + n);
		ANSWERS(0, post_send(p->a, SENDMSG, &m));
	}
	for (int n = MANY / 2; p->b && n < MANY; n++) {
		m.buf = p->b->in + at_in[n], m.len = len[n], m.context = context(R + n);
		ANSWERS(0, post_receive(p->b, RECVMSG, &m));
	}
	for (int n = 0; n < MANY; n++) {
		struct message sent = { .tagged = tagged, .tag = 5, .len = len[n], .context = context(S + n), .flags = FI_COMPLETION };
		if (p->b) {
			m.buf = p->b->in + at_in[n], m.len = len[n], m.context = context(R + n);
			check_received(p->b, &m, &sent, false, 900u + (unsigned)n);
		}
		if (p->a)
			check_sent(p->a, SENDMSG, &sent);
	}
	meet(p);
}

/* More than 10,000 messages. */
static void order(struct pair *p, bool tagged)
{
	asserts("MSG-010 MSG-012");
	for (int sent = 0; sent < (options.few ? MANY : 10000); sent += MANY)
		order_once(p, tagged);
}

static void truncation(struct pair *p, bool tagged)
{
	static const size_t lens[] = { 20, 1500, 200000 };

	for (size_t at = 0; at < COUNT(lens); at++) {
		struct message out = outgoing(p, tagged, lens[at], 31);
		struct message in = incoming(p, &out, lens[at] - 9);

		out.flags = FI_COMPLETION | FI_REMOTE_CQ_DATA;
		if (p->b) {
			memset(in.buf, 0x5a, lens[at]);
			ANSWERS(0, post_receive(p->b, RECVMSG, &in));
		}
		meet(p);
		if (p->a) {
			asserts(tagged ? "TAG-010" : "MSG-015");
			ANSWERS(0, post_send(p->a, SENDMSG, &out));
			/* The sender gets no error. */
			check_sent(p->a, SENDMSG, &out);
		}
		if (p->b) {
			struct done done = take(p->b, in.context);
			asserts(tagged ? "TAG-010" : "MSG-015");
			const uint64_t kind = FI_RECV | (tagged ? FI_TAGGED : FI_MSG);
			CHECK(done.err == FI_ETRUNC, "error %d", done.err);
			CHECK(done.olen == 9, "%zu bytes over", done.olen);
			CHECK(done.len == in.len, "%zu bytes arrived, not %zu", done.len, in.len);
			CHECK((done.flags & kind) == kind, "flags %#llx", (unsigned long long)done.flags);
			CHECK(!tagged || done.tag == out.tag, "tag %#llx", (unsigned long long)done.tag);
			CHECK(done.data == out.data, "data %#llx", (unsigned long long)done.data);
			CHECK(is_filled(in.buf, in.len, 31), "other bytes than were sent");
			CHECK(((char *)in.buf)[in.len] == 0x5a, "a byte behind the buffer was written");
		}
		meet(p);
	}
}

static void cancelling(struct pair *p, bool tagged)
{
	struct message in = { .tagged = tagged, .tag = 0x77, .len = 100, .context = context(R), .flags = FI_COMPLETION };
	struct message out = outgoing(p, tagged, 60, 8);

	if (p->b) {
		in.buf = p->b->in;
		/* The queue may report only operations that request it, but it reports each failed one. */
		if (p->b->how->rx_selective)
			asserts("CMP-002");
		in.flags = 0;
		ANSWERS(0, post_receive(p->b, RECVMSG, &in));
		ANSWERS(0, fi_cancel(&p->b->ep->fid, in.context));
		ANSWERS(FI_ECANCELED, take(p->b, in.context).err);
		in.flags = FI_COMPLETION;
		asserts("TAG-008");
		for (int call = 0; call < RECEIVE_CALLS; call++) {
			struct done done;
			ANSWERS(0, post_receive(p->b, (enum receive_call)call, &in));
			ANSWERS(0, fi_cancel(&p->b->ep->fid, in.context));
			done = take(p->b, in.context);
			CHECK(done.err == FI_ECANCELED, "error %d", done.err);
			CHECK((done.flags & FI_RECV) && (done.flags & (tagged ? FI_TAGGED : FI_MSG)), "flags %#llx",
			      (unsigned long long)done.flags);
		}
		ANSWERS(-FI_ENOENT, fi_cancel(&p->b->ep->fid, context(R + 1)));
	}
	meet(p);
	/* A later message does not match the cancelled receive. */
	out.tag = in.tag, out.flags = FI_COMPLETION;
	if (p->b)
		in.buf = p->b->in + 1000, in.context = context(R + 2);
	exchange(p, SENDMSG, RECVMSG, &out, &in, true, 8);
}

static void injecting(struct pair *p, bool tagged)
{
	struct side *here = p->a ? p->a : p->b;
	size_t most = here->room->info->tx_attr->inject_size;
	struct message out = outgoing(p, tagged, most, 12), in = incoming(p, &out, most), more = out;

	CHECK(most >= 64, "inject_size is %zu", most);
	exchange(p, INJECT, visible(here, 1), &out, &in, false, 12);
	out = outgoing(p, tagged, most, 13);
	in = incoming(p, &out, most);
	exchange(p, INJECTDATA, visible(here, 2), &out, &in, true, 13);
	more.len = most + 1;
	more.flags = FI_INJECT;
	if (p->a) {
		asserts("MSG-004");
		ANSWERS(-FI_EMSGSIZE, post_send(p->a, INJECT, &more));
		ANSWERS(-FI_EMSGSIZE, post_send(p->a, SENDMSG, &more));
	}
	meet(p);
}

/*
 * A receive from one peer does not match messages of others, which wait for their own receive. The test uses an endpoint that also
 * sends to itself.
 */
static void directed_at(struct pair *p, bool tagged, bool waits)
{
	struct message own = { .tagged = tagged, .tag = 3, .context = context(R), .directed = true, .flags = FI_COMPLETION };
	struct message others = own, out = outgoing(p, tagged, 333, 41), from_self = out;
	char name[64];
	struct side *b = p->b;
	fi_addr_t self = FI_ADDR_UNSPEC, peer = FI_ADDR_UNSPEC;

	/* There is no other endpoint. */
	if (p->a == p->b)
		return;
	out.tag = from_self.tag = 3;
	out.flags = from_self.flags = FI_COMPLETION;
	from_self.context = context(S + 1);
	if (b) {
		name_of(b, name, sizeof(name));
		ANSWERS(1, fi_av_insert(b->av, name, 1, &self, 0, NULL));
		peer = b->peer;
		own.from = self, own.buf = b->in, own.len = 400;
		others.from = peer, others.buf = b->in + 1000, others.len = 400, others.context = context(R + 1);
		asserts("MSG-007");
		ANSWERS(0, post_receive(b, RECVMSG, &own));
		if (!waits)
			ANSWERS(0, post_receive(b, RECVMSG, &others));
	}
	meet(p);
	if (p->a)
		ANSWERS(0, post_send(p->a, SENDMSG, &out));
	for (int turn = 0; waits && turn < 100; turn++)
		progress(p->a ? p->a : b);
	meet(p);
	if (b) {
		CHECK(!waits || b->stashed == 0, "a receive from another peer has taken the message");
		if (!waits)
			check_received(b, &others, &out, false, 41);
		fill(b->out + 2000, 222, 42);
		from_self.buf = b->out + 2000, from_self.len = 222;
		b->peer = self;
		ANSWERS(0, post_send(b, SENDMSG, &from_self));
		check_sent(b, SENDMSG, &from_self);
		check_received(b, &own, &from_self, false, 42);
		b->peer = peer;
		if (waits) {
			ANSWERS(0, post_receive(b, RECVMSG, &others));
			check_received(b, &others, &out, false, 41);
		}
		ANSWERS(0, fi_av_remove(b->av, &self, 1, 0));
	}
	if (p->a)
		check_sent(p->a, SENDMSG, &out);
	meet(p);
}

static void directed(struct pair *p, bool tagged)
{
	directed_at(p, tagged, false);
	directed_at(p, tagged, true);
}

/* Sends a short message with this tag, or without one. Its first byte is the number. */
static void send_short(struct pair *p, bool tagged, uint64_t tag, int number)
{
	struct message out = { .tagged = tagged, .tag = tag, .buf = p->a->out + number, .len = 1, .context = context(S + number), .flags = FI_COMPLETION };

	p->a->out[number] = (char)number;
	ANSWERS(0, post_send(p->a, SENDMSG, &out));
}

/* Posts a receive for a tag, or without one. */
static void await(struct pair *p, bool tagged, uint64_t tag, uint64_t ignore, int number)
{
	struct message in = { .tagged = tagged, .tag = tag, .ignore = ignore, .buf = p->b->in + number, .len = 1, .context = context(R + number),
			      .flags = FI_COMPLETION };

	ANSWERS(0, post_receive(p->b, RECVMSG, &in));
}

static void expect(struct pair *p, int receive, int message)
{
	CHECK(take(p->b, context(R + receive)).err == 0, "receive %d", receive);
	CHECK(p->b->in[receive] == message, "receive %d has message %d, not %d", receive, p->b->in[receive], message);
}

/* The messages that receives match: the oldest one, and none of another kind; and the receives that messages match. */
static void matching(struct pair *p)
{
	/* Messages wait for their receives. */
	for (int n = 0; p->a && n < 6; n++)
		send_short(p, n != 1, n < 4 ? 10 + (uint64_t)n : 99, n);
	for (int turn = 0; turn < 100; turn++)
		progress(p->a ? p->a : p->b);
	meet(p);
	if (p->b) {
		asserts("TAG-001");
		await(p, true, 12, 0, 0);
		expect(p, 0, 2);
		await(p, true, 0x10f, 0xff0, 1);
		await(p, true, 0x1f, 0xfffff, 2);
		expect(p, 2, 0);
		await(p, true, 8, 7, 3);
		expect(p, 3, 3);
		await(p, true, 0, UINT64_MAX, 4);
		expect(p, 4, 4);
		/* Message 1 has no tag, so the receive of any tag above took a later one. */
		asserts("TAG-003");
		await(p, false, 0, 0, 5);
		expect(p, 5, 1);
		await(p, true, 99, 0, 6);
		expect(p, 6, 5);
		/* The first of several receives that match. */
		asserts("TAG-002");
		await(p, true, 0x20, 0xf, 7);
		await(p, true, 0x21, 0, 8);
		await(p, false, 0, 0, 9);
	}
	meet(p);
	if (p->a) {
		send_short(p, true, 0x21, 7);
		send_short(p, true, 0x21, 8);
		send_short(p, true, 0x50f, 9);
		send_short(p, false, 0, 10);
	}
	if (p->b) {
		expect(p, 7, 7);
		expect(p, 8, 8);
		expect(p, 9, 10);
		expect(p, 1, 9);
	}
	for (int n = 0; p->a && n < 11; n += n == 5 ? 2 : 1)
		CHECK(take(p->a, context(S + n)).err == 0, "send %d", n);
	meet(p);
}

/* One buffer takes messages until its free space is below the endpoint's minimum. */
static void many_in_one(struct pair *p)
{
	enum { SIZE = 4096, EACH = 300, MINIMUM = 1000 };
	const int fit = (SIZE - MINIMUM) / EACH + 1;
	struct message next_in = { .context = context(R + 1), .len = SIZE, .flags = FI_MULTI_RECV | FI_COMPLETION };
	struct message in = { .context = context(R), .len = SIZE, .flags = FI_MULTI_RECV | FI_COMPLETION };
	struct message out = outgoing(p, false, EACH, 55);
	size_t minimum = MINIMUM;
	char *next = NULL;

	if (p->b) {
		NEEDS(fi_setopt(&p->b->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &minimum, sizeof(minimum)));
		in.buf = next = p->b->in;
		next_in.buf = p->b->in + 2 * SIZE;
		asserts("MSG-005 MSG-006");
		ANSWERS(0, post_receive(p->b, RECVMSG, &in));
		ANSWERS(0, post_receive(p->b, RECVMSG, &next_in));
	}
	meet(p);
	for (int n = 0; n < fit; n++) {
		out.flags = FI_COMPLETION | (n & 1 ? FI_REMOTE_CQ_DATA : 0);
		out.data = (uint64_t)n;
		if (p->a) {
			fill(out.buf, EACH, 600u + (unsigned)n);
			ANSWERS(0, post_send(p->a, SENDMSG, &out));
			check_sent(p->a, SENDMSG, &out);
		}
		if (p->b) {
			struct done done = take(p->b, in.context);
			bool released = done.flags & FI_MULTI_RECV;
			CHECK(done.err == 0, "%s", fi_strerror(done.err));
			CHECK(done.len == EACH, "%zu", done.len);
			CHECK((char *)done.buf >= p->b->in && (char *)done.buf + EACH <= p->b->in + SIZE, "outside of the buffer");
			CHECK(done.buf == next, "message %d is %td bytes from where the last one ended", n, (char *)done.buf - next);
			CHECK(is_filled(done.buf, EACH, 600u + (unsigned)n), "other bytes than were sent");
			CHECK(!(n & 1) || done.data == (uint64_t)n, "%llu", (unsigned long long)done.data);
			CHECK(released == (n == fit - 1), "message %d of %d: flags %#llx", n, fit, (unsigned long long)done.flags);
			next = (char *)done.buf + EACH;
		}
		meet(p);
	}
	/* The next message uses the next buffer. */
	out.flags = FI_COMPLETION;
	if (p->a) {
		fill(out.buf, EACH, 55);
		ANSWERS(0, post_send(p->a, SENDMSG, &out));
		check_sent(p->a, SENDMSG, &out);
	}
	if (p->b) {
		struct done done = take(p->b, next_in.context);
		CHECK(done.buf == next_in.buf && done.len == EACH && is_filled(done.buf, EACH, 55), "%zu bytes", done.len);
		CHECK(!(done.flags & FI_MULTI_RECV), "released too early");
	}
	meet(p);
	/* Cancelling returns a buffer with free space, and one that received nothing. */
	if (p->b) {
		ANSWERS(0, fi_cancel(&p->b->ep->fid, next_in.context));
		CHECK(take(p->b, next_in.context).flags & FI_MULTI_RECV, "not released");
		ANSWERS(0, post_receive(p->b, RECVMSG, &in));
		ANSWERS(0, fi_cancel(&p->b->ep->fid, in.context));
		ANSWERS(FI_ECANCELED, take(p->b, in.context).err);
	}
	meet(p);
}

static void groups(struct pair *p, bool tagged)
{
	static const struct {
		const char *name[2];
		void (*run)(struct pair *, bool);
	} all[] = {
		{ { "msg: every length", "tagged: every length" }, every_length },
		{ { "msg: every flag", "tagged: every flag" }, every_flag },
		{ { "msg: completion levels", "tagged: completion levels" }, levels },
		{ { "msg: order", "tagged: order" }, order },
		{ { "msg: truncation", "tagged: truncation" }, truncation },
		{ { "msg: cancel", "tagged: cancel" }, cancelling },
		{ { "msg: inject sizes", "tagged: inject sizes" }, injecting },
		{ { "msg: directed receive", "tagged: directed receive" }, directed },
	};

	begin(tagged ? "tagged: every call, receive first" : "msg: every call, receive first");
	every_call(p, tagged, false);
	quiet(p);
	end();
	begin(tagged ? "tagged: every call, message first" : "msg: every call, message first");
	every_call(p, tagged, true);
	quiet(p);
	end();
	for (size_t at = 0; at < COUNT(all); at++) {
		begin(all[at].name[tagged]);
		all[at].run(p, tagged);
		quiet(p);
		end();
	}
}

void message_groups(struct pair *p)
{
	groups(p, false);
	begin("msg: multi-receive");
	many_in_one(p);
	quiet(p);
	end();
}

void tagged_groups(struct pair *p)
{
	groups(p, true);
	begin("tagged: matching");
	matching(p);
	quiet(p);
	end();
}
