/*
 * Peeking at messages that have arrived: FI_PEEK, FI_CLAIM, FI_DISCARD (fi_tagged(3)). Also the results if there is no
 * such message.
 */
#include "every.h"

enum { S = 0, R = 512, LEN = 700 };

static const size_t lens[] = { 0, LEN, 150000 };

static void send_one(struct pair *p, size_t len, uint64_t tag, unsigned seed)
{
	struct message out = { .tagged = true, .tag = tag, .len = len, .data = 0x99, .context = context(S),
			       .flags = FI_COMPLETION | FI_REMOTE_CQ_DATA };

	if (!p->a)
		return;
	out.buf = p->a->out;
	fill(out.buf, len, seed);
	ANSWERS(0, post_send(p->a, SENDMSG, &out));
}

static void sent_one(struct pair *p)
{
	struct message out = { .tagged = true, .context = context(S), .flags = FI_COMPLETION };

	if (p->a)
		check_sent(p->a, SENDMSG, &out);
	meet(p);
}

/* Peeks with these flags until the message has arrived. Returns its completion. */
static struct done look(struct side *b, uint64_t tag, uint64_t ignore, uint64_t flags, void *context)
{
	struct message in = { .tagged = true, .tag = tag, .ignore = ignore, .context = context,
			      .flags = FI_PEEK | FI_COMPLETION | flags };
	double until = now() + WAIT_LIMIT;
	struct done done;

	do {
		MUST(now() < until, "the message did not arrive");
		ANSWERS(0, post_receive(b, RECVMSG, &in));
		done = take(b, context);
	} while (done.err == FI_ENOMSG);
	return done;
}

static void nothing_there(struct side *b, uint64_t tag, uint64_t flags)
{
	struct message in = { .tagged = true, .tag = tag, .context = context(R), .flags = FI_PEEK | FI_COMPLETION | flags };
	struct done done;

	ANSWERS(0, post_receive(b, RECVMSG, &in));
	done = take(b, in.context);
	CHECK(done.err == FI_ENOMSG, "error %d", done.err);
}

static void check_seen(const struct side *b, const struct done *done, size_t len, uint64_t tag)
{
	CHECK(done->err == 0, "%s", fi_strerror(done->err));
	CHECK((done->flags & (FI_RECV | FI_TAGGED)) == (FI_RECV | FI_TAGGED), "flags %#llx", (unsigned long long)done->flags);
	CHECK(done->len == len, "%zu, not %zu", done->len, len);
	CHECK(done->tag == tag, "%#llx", (unsigned long long)done->tag);
	CHECK(done->source == b->peer, "%#llx", (unsigned long long)done->source);
	CHECK(!(done->flags & FI_REMOTE_CQ_DATA) || done->data == 0x99, "%#llx", (unsigned long long)done->data);
}

/* The message is peeked at several times, then received. */
static void peek(struct pair *p)
{
	for (size_t at = 0; at < COUNT(lens); at++) {
		struct message in = { .tagged = true, .tag = 0x40, .len = lens[at], .context = context(R), .flags = FI_COMPLETION };
		struct message sent = { .tagged = true, .tag = 0x40, .len = lens[at], .data = 0x99 };

		if (p->b)
			nothing_there(p->b, 0x40, 0);
		meet(p);
		send_one(p, lens[at], 0x40, 21);
		for (int times = 0; p->b && times < 3; times++) {
			struct done done = look(p->b, 0x4f, 0xf, 0, context(R + 1));
			asserts("TAG-004");
			check_seen(p->b, &done, lens[at], 0x40);
			asserts("TAG-005");
			nothing_there(p->b, 0x50, 0);
		}
		if (p->b) {
			in.buf = p->b->in;
			ANSWERS(0, post_receive(p->b, RECVMSG, &in));
			check_received(p->b, &in, &sent, true, 21);
			nothing_there(p->b, 0x40, 0);
		}
		sent_one(p);
	}
}

/* A claimed message is not found again. The operation with its context receives it. */
static void claim(struct pair *p)
{
	for (size_t at = 0; at < COUNT(lens); at++) {
		struct message in = { .tagged = true, .tag = 0x60, .len = lens[at], .context = context(R), .flags = FI_CLAIM | FI_COMPLETION };
		struct message other = { .tagged = true, .tag = 0x60, .len = LEN, .context = context(R + 1), .flags = FI_COMPLETION };
		struct message sent = { .tagged = true, .tag = 0x60, .len = lens[at], .data = 0x99 };

		send_one(p, lens[at], 0x60, 22);
		if (p->b) {
			struct done done = look(p->b, 0x60, 0, FI_CLAIM, context(R));
			asserts("TAG-006");
			check_seen(p->b, &done, lens[at], 0x60);
			nothing_there(p->b, 0x60, 0);
			/* A receive that is posted in the meantime waits for the next message. */
			other.buf = p->b->in + ROOM / 2;
			ANSWERS(0, post_receive(p->b, RECVMSG, &other));
			in.buf = p->b->in;
			ANSWERS(0, post_receive(p->b, RECVMSG, &in));
			check_received(p->b, &in, &sent, true, 22);
		}
		sent_one(p);
		send_one(p, LEN, 0x60, 23);
		sent.len = LEN;
		if (p->b)
			check_received(p->b, &other, &sent, true, 23);
		sent_one(p);
	}
}

/* Discards a message at once, or after it was claimed. */
static void discard(struct pair *p)
{
	for (size_t at = 0; at < COUNT(lens); at++) {
		for (int claimed = 0; claimed < 2; claimed++) {
			struct message gone = { .tagged = true, .tag = 0x70, .context = context(R),
						.flags = FI_CLAIM | FI_DISCARD | FI_COMPLETION };
			send_one(p, lens[at], 0x70, 24);
			if (p->b) {
				struct done done = look(p->b, 0x70, 0, claimed ? FI_CLAIM : FI_DISCARD, context(R));
				asserts("TAG-007");
				check_seen(p->b, &done, lens[at], 0x70);
				if (claimed) {
					ANSWERS(0, post_receive(p->b, RECVMSG, &gone));
					done = take(p->b, gone.context);
					CHECK(done.err == 0, "%s", fi_strerror(done.err));
				}
				nothing_there(p->b, 0x70, FI_CLAIM);
			}
			sent_one(p);
		}
	}
}

/* A claim is rejected at once if no message was claimed. */
static void claim_of_nothing(struct pair *p)
{
	struct message in = { .tagged = true, .tag = 1, .len = 8, .context = context(R), .flags = FI_CLAIM | FI_COMPLETION };

	if (!p->b)
		return;
	in.buf = p->b->in;
	CHECK(post_receive(p->b, RECVMSG, &in) < 0, "a claim of nothing was taken");
}

void peek_groups(struct pair *p)
{
	static const struct {
		const char *name;
		void (*run)(struct pair *);
	} all[] = {
		{ "tagged: peek", peek },
		{ "tagged: claim", claim },
		{ "tagged: discard", discard },
		{ "tagged: claim of nothing", claim_of_nothing },
	};

	for (size_t at = 0; at < COUNT(all); at++) {
		begin(all[at].name);
		all[at].run(p);
		quiet(p);
		end();
	}
}
