/* Messages, tagged and untagged: every call that sends or receives one, with a common description. */
#include "every.h"

/* Memory in up to three pieces, one of them empty. */
struct pieces {
	struct iovec iov[3];
	void *desc[3];
	size_t count;
};

static struct pieces split(void *buf, size_t len, size_t limit, void *desc)
{
	struct pieces pieces = { .count = limit < 3 ? limit : 3 };
	size_t first = pieces.count > 1 ? len / 3 : len;
	char *at = buf;

	pieces.iov[0] = (struct iovec){ at, first };
	if (pieces.count > 1)
		pieces.iov[pieces.count - 1] = (struct iovec){ at + first, len - first };
	if (pieces.count == 3)
		pieces.iov[1] = (struct iovec){ at + first, 0 };
	for (size_t n = 0; n < pieces.count; n++)
		pieces.desc[n] = desc;
	return pieces;
}

const char *send_name(enum send_call call)
{
	static const char *const names[SEND_CALLS] = { "send", "sendv", "sendmsg", "inject", "senddata", "injectdata" };

	return names[call];
}

bool injects(enum send_call call)
{
	return call == INJECT || call == INJECTDATA;
}

bool carries_data(enum send_call call, uint64_t flags)
{
	return call == SENDDATA || call == INJECTDATA || (call == SENDMSG && (flags & FI_REMOTE_CQ_DATA));
}

static ssize_t send_plain(struct side *s, enum send_call call, const struct message *m, struct pieces *pieces)
{
	struct fi_msg msg = { pieces->iov, pieces->desc, pieces->count, s->peer, m->context, m->data };

	switch (call) {
	case SEND:
		return fi_send(s->ep, m->buf, m->len, s->out_desc, s->peer, m->context);
	case SENDV:
		return fi_sendv(s->ep, pieces->iov, pieces->desc, pieces->count, s->peer, m->context);
	case SENDMSG:
		return fi_sendmsg(s->ep, &msg, m->flags);
	case INJECT:
		return fi_inject(s->ep, m->buf, m->len, s->peer);
	case SENDDATA:
		return fi_senddata(s->ep, m->buf, m->len, s->out_desc, m->data, s->peer, m->context);
	default:
		return fi_injectdata(s->ep, m->buf, m->len, m->data, s->peer);
	}
}

static ssize_t send_tagged(struct side *s, enum send_call call, const struct message *m, struct pieces *pieces)
{
	struct fi_msg_tagged msg = { pieces->iov, pieces->desc, pieces->count, s->peer,
				     m->tag, 0, m->context, m->data };

	switch (call) {
	case SEND:
		return fi_tsend(s->ep, m->buf, m->len, s->out_desc, s->peer, m->tag, m->context);
	case SENDV:
		return fi_tsendv(s->ep, pieces->iov, pieces->desc, pieces->count, s->peer, m->tag, m->context);
	case SENDMSG:
		return fi_tsendmsg(s->ep, &msg, m->flags);
	case INJECT:
		return fi_tinject(s->ep, m->buf, m->len, s->peer, m->tag);
	case SENDDATA:
		return fi_tsenddata(s->ep, m->buf, m->len, s->out_desc, m->data, s->peer, m->tag, m->context);
	default:
		return fi_tinjectdata(s->ep, m->buf, m->len, m->data, s->peer, m->tag);
	}
}

ssize_t post_send(struct side *side, enum send_call call, const struct message *m)
{
	struct pieces pieces = split(m->buf, m->len, side->room->info->tx_attr->iov_limit, side->out_desc);

	return POST(side, m->tagged ? send_tagged(side, call, m, &pieces) : send_plain(side, call, m, &pieces));
}

static ssize_t receive(struct side *s, enum receive_call call, const struct message *m, struct pieces *pieces)
{
	fi_addr_t from = m->directed ? m->from : FI_ADDR_UNSPEC;
	struct fi_msg msg = { pieces->iov, pieces->desc, pieces->count, from, m->context, 0 };
	struct fi_msg_tagged tagged = { pieces->iov, pieces->desc, pieces->count, from, m->tag, m->ignore, m->context, 0 };

	switch (call) {
	case RECV:
		return m->tagged ? fi_trecv(s->ep, m->buf, m->len, s->in_desc, from, m->tag, m->ignore, m->context)
				 : fi_recv(s->ep, m->buf, m->len, s->in_desc, from, m->context);
	case RECVV:
		return m->tagged ? fi_trecvv(s->ep, pieces->iov, pieces->desc, pieces->count, from, m->tag, m->ignore, m->context)
				 : fi_recvv(s->ep, pieces->iov, pieces->desc, pieces->count, from, m->context);
	default:
		return m->tagged ? fi_trecvmsg(s->ep, &tagged, m->flags) : fi_recvmsg(s->ep, &msg, m->flags);
	}
}

ssize_t post_receive(struct side *side, enum receive_call call, const struct message *m)
{
	struct pieces pieces = split(m->buf, m->len, side->room->info->rx_attr->iov_limit, side->in_desc);

	/* A multi-receive buffer and a peek have one piece. */
	if (m->flags & (FI_MULTI_RECV | FI_PEEK))
		pieces = split(m->buf, m->len, 1, side->in_desc);
	return POST(side, receive(side, call, m, &pieces));
}

void check_sent(struct side *side, enum send_call call, const struct message *m)
{
	const uint64_t kind = m->tagged ? FI_TAGGED : FI_MSG;
	struct done done;

	if (injects(call) || !reports(side, true, call == SENDMSG ? m->flags : OWN_FLAGS))
		return;
	done = take(side, m->context);
	CHECK(done.err == 0, "%s failed: %s", send_name(call), fi_strerror(done.err));
	CHECK((done.flags & (FI_SEND | kind)) == (FI_SEND | kind), "%s: flags %#llx", send_name(call),
	      (unsigned long long)done.flags);
	CHECK(!(done.flags & (FI_RECV | FI_REMOTE_CQ_DATA | FI_RMA | FI_ATOMIC)), "%s: flags %#llx", send_name(call),
	      (unsigned long long)done.flags);
}

void check_received(struct side *side, const struct message *m, const struct message *sent, bool with_data, unsigned seed)
{
	const uint64_t kind = m->tagged ? FI_TAGGED : FI_MSG;
	const uint64_t flags = FI_RECV | kind | (with_data ? FI_REMOTE_CQ_DATA : 0);
	struct done done = take(side, m->context);

	CHECK(done.err == 0, "the receive failed: %s", fi_strerror(done.err));
	CHECK((done.flags & flags) == flags, "flags %#llx", (unsigned long long)done.flags);
	CHECK(with_data || !(done.flags & FI_REMOTE_CQ_DATA), "flags %#llx", (unsigned long long)done.flags);
	CHECK(!(done.flags & (FI_SEND | FI_RMA | FI_ATOMIC | (m->tagged ? FI_MSG : FI_TAGGED))), "flags %#llx",
	      (unsigned long long)done.flags);
	CHECK(done.len == sent->len, "%zu, not %zu", done.len, sent->len);
	CHECK(!with_data || done.data == sent->data, "%#llx", (unsigned long long)done.data);
	CHECK(!m->tagged || done.tag == sent->tag, "%#llx", (unsigned long long)done.tag);
	CHECK(done.source == side->peer, "%#llx, not %#llx", (unsigned long long)done.source, (unsigned long long)side->peer);
	CHECK(is_filled(m->buf, sent->len, seed), "other bytes than were sent (%zu)", sent->len);
}
