/*
 * Posts operations of every kind and reads some results. Arrays of pieces and descriptors are heap allocations of exactly the
 * required size, and are freed when the call returns. The memory of operations belongs to the endpoint until it is closed.
 */
#include "walk.h"

/* The number of bytes at the start of a region that operations access. */
#define REACHED 4096

static size_t any_length(void)
{
	static const size_t all[] = { 0, 1, 8, 64, 100, 1000, 4096, 20000, 300000 };

	return all[below(COUNT(all))];
}

/* Memory in pieces, some of which are empty. */
struct pieces {
	struct iovec *iov;
	void **desc;
	size_t count;
};

static struct pieces pieces_of(struct side *s, int part, size_t length)
{
	struct pieces p = { .count = 1 + below(3) };
	char *memory = lend(s->world, part, length);
	size_t at = 0;

	p.iov = malloc(p.count * sizeof(*p.iov));
	p.desc = malloc(p.count * sizeof(*p.desc));
	MUST(p.iov && p.desc, "out of memory");
	for (size_t n = 0; n < p.count; n++) {
		size_t piece = n + 1 == p.count ? length - at : below(length - at + 1);
		p.iov[n] = (struct iovec){ memory + at, piece };
		p.desc[n] = s->world->desc;
		at += piece;
	}
	return p;
}

static void free_pieces(struct pieces *p)
{
	free(p->iov);
	free(p->desc);
}

/* Contexts are only returned, so they need not be valid pointers. */
static void *any_context(void)
{
	return (void *)(uintptr_t)(below(3) ? below(1000) : UINT64_MAX - below(8));
}

static uint64_t any_send_flags(size_t length)
{
	static const uint64_t all[] = { 0, FI_COMPLETION, FI_TRANSMIT_COMPLETE | FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_MORE, FI_FENCE,
		FI_REMOTE_CQ_DATA, FI_REMOTE_CQ_DATA | FI_COMPLETION | FI_DELIVERY_COMPLETE };
	uint64_t flags = all[below(COUNT(all))];

	return length <= 64 && !below(4) ? (flags | FI_INJECT) & ~FI_TRANSMIT_COMPLETE & ~FI_DELIVERY_COMPLETE : flags;
}

static uint64_t tag(void)
{
	return below(3);
}

static void receive(struct side *s, int kind)
{
	const bool tagged = kind >= 3;
	const size_t length = any_length();
	fi_addr_t from = below(3) ? FI_ADDR_UNSPEC : s->peer;
	struct pieces p = pieces_of(s, s->rxpart, length);
	uint64_t flags = !tagged && length >= 100 && !below(3) ? FI_MULTI_RECV : below(2) * FI_COMPLETION;
	struct fi_msg *msg = exactly(sizeof(*msg), &(struct fi_msg){ p.iov, p.desc, p.count, from, any_context(), 0 }, sizeof(*msg));
	struct fi_msg_tagged *tagged_msg = exactly(sizeof(*tagged_msg),
		&(struct fi_msg_tagged){ p.iov, p.desc, p.count, from, tag(), below(2), any_context(), 0 }, sizeof(*tagged_msg));

	if (flags & FI_MULTI_RECV)
		msg->iov_count = 1, p.iov[0].iov_len = length > p.iov[0].iov_len ? p.iov[0].iov_len : length;
	switch (kind) {
	case 0:
		fi_recv(s->rx, p.iov[0].iov_base, p.iov[0].iov_len, p.desc[0], from, any_context());
		break;
	case 1:
		fi_recvv(s->rx, p.iov, p.desc, p.count, from, any_context());
		break;
	case 2:
		fi_recvmsg(s->rx, msg, p.iov[0].iov_len < 64 ? flags & ~FI_MULTI_RECV : flags);
		break;
	case 3:
		fi_trecv(s->rx, p.iov[0].iov_base, p.iov[0].iov_len, p.desc[0], from, tag(), below(2) ? 0 : UINT64_MAX, any_context());
		break;
	case 4:
		fi_trecvv(s->rx, p.iov, p.desc, p.count, from, tag(), 0, any_context());
		break;
	default:
		fi_trecvmsg(s->rx, tagged_msg, below(4) ? below(2) * FI_COMPLETION : FI_PEEK | (below(3) ? 0 : below(2) ? FI_CLAIM : FI_DISCARD));
	}
	free(msg);
	free(tagged_msg);
	free_pieces(&p);
}

static void send_it(struct side *s, int kind)
{
	const bool injects = kind == 3 || kind == 5 || kind == 9 || kind == 11;
	const size_t length = injects ? below(65) : any_length();
	struct pieces p = pieces_of(s, s->txpart, length);
	char *memory = exactly(length ? length : 1, p.iov[0].iov_base, p.iov[0].iov_len);
	struct fi_msg *msg = exactly(sizeof(*msg), &(struct fi_msg){ p.iov, p.desc, p.count, s->peer, any_context(), 7 }, sizeof(*msg));
	struct fi_msg_tagged *tagged = exactly(sizeof(*tagged),
		&(struct fi_msg_tagged){ p.iov, p.desc, p.count, s->peer, tag(), 0, any_context(), 7 }, sizeof(*tagged));
	void *first = p.iov[0].iov_base, *desc = p.desc[0];
	size_t some = p.iov[0].iov_len;

	switch (kind) {
	case 0:
		fi_send(s->tx, first, some, desc, s->peer, any_context());
		break;
	case 1:
		fi_sendv(s->tx, p.iov, p.desc, p.count, s->peer, any_context());
		break;
	case 2:
		fi_sendmsg(s->tx, msg, any_send_flags(length));
		break;
	case 3:
		fi_inject(s->tx, memory, some, s->peer);
		break;
	case 4:
		fi_senddata(s->tx, first, some, desc, below(2) ? UINT64_MAX : 0, s->peer, any_context());
		break;
	case 5:
		fi_injectdata(s->tx, memory, some, 9, s->peer);
		break;
	case 6:
		fi_tsend(s->tx, first, some, desc, s->peer, tag(), any_context());
		break;
	case 7:
		fi_tsendv(s->tx, p.iov, p.desc, p.count, s->peer, tag(), any_context());
		break;
	case 8:
		fi_tsendmsg(s->tx, tagged, any_send_flags(length));
		break;
	case 9:
		fi_tinject(s->tx, memory, some, s->peer, tag());
		break;
	case 10:
		fi_tsenddata(s->tx, first, some, desc, 3, s->peer, tag(), any_context());
		break;
	default:
		fi_tinjectdata(s->tx, memory, some, 3, s->peer, tag());
	}
	free(memory);
	free(msg);
	free(tagged);
	free_pieces(&p);
}

static void access_memory(struct side *s, int kind)
{
	const bool injects = kind >= 6 && kind <= 7;
	size_t length = injects ? below(65) : below(REACHED);
	struct pieces p = pieces_of(s, s->txpart, length);
	char *memory = exactly(length ? length : 1, NULL, 0);
	uint64_t at = s->address + below(REACHED - length), key = below(16) ? s->key : s->key + 77;
	struct fi_rma_iov remote = { at, length, key };
	struct fi_rma_iov *there = exactly(sizeof(remote), &remote, sizeof(remote));
	struct fi_msg_rma *msg = exactly(sizeof(*msg),
		&(struct fi_msg_rma){ p.iov, p.desc, p.count, s->peer, there, 1, any_context(), 5 }, sizeof(*msg));
	void *first = p.iov[0].iov_base, *desc = p.desc[0];
	size_t some = p.iov[0].iov_len;

	memset(memory, 3, length);
	switch (kind) {
	case 0:
		fi_read(s->tx, first, some, desc, s->peer, at, key, any_context());
		break;
	case 1:
		fi_readv(s->tx, p.iov, p.desc, p.count, s->peer, at, key, any_context());
		break;
	case 2:
		fi_readmsg(s->tx, msg, below(2) * FI_COMPLETION);
		break;
	case 3:
		fi_write(s->tx, first, some, desc, s->peer, at, key, any_context());
		break;
	case 4:
		fi_writev(s->tx, p.iov, p.desc, p.count, s->peer, at, key, any_context());
		break;
	case 5:
		fi_writemsg(s->tx, msg, any_send_flags(length));
		break;
	case 6:
		fi_inject_write(s->tx, memory, length, s->peer, at, key);
		break;
	case 7:
		fi_inject_writedata(s->tx, memory, length, 4, s->peer, at, key);
		break;
	default:
		fi_writedata(s->tx, first, some, desc, 4, s->peer, at, key, any_context());
	}
	free(memory);
	free(there);
	free(msg);
	free_pieces(&p);
}

static void change_atomically(struct side *s, int kind)
{
	const size_t count = 1 + below(8);
	const size_t bytes = count * sizeof(uint64_t);
	struct side *m = s;
	char *operand = lend(m->world, m->txpart, bytes), *result = lend(m->world, m->txpart, bytes), *compare = lend(m->world, m->txpart, bytes);
	uint64_t at = s->address + 8 * below(REACHED / 8 - count), key = s->key;
	void *desc = s->world->desc;
	struct fi_ioc *from = exactly(sizeof(*from), &(struct fi_ioc){ operand, count }, sizeof(*from));
	struct fi_ioc *into = exactly(sizeof(*into), &(struct fi_ioc){ result, count }, sizeof(*into));
	struct fi_ioc *with = exactly(sizeof(*with), &(struct fi_ioc){ compare, count }, sizeof(*with));
	struct fi_rma_ioc *there = exactly(sizeof(*there), &(struct fi_rma_ioc){ at, count, key }, sizeof(*there));
	void **descs = exactly(sizeof(desc), &desc, sizeof(desc));
	enum fi_op op = kind < 4 ? FI_SUM : kind < 7 ? (below(2) ? FI_ATOMIC_READ : FI_BXOR) : FI_CSWAP;
	struct fi_msg_atomic *msg = exactly(sizeof(*msg),
		&(struct fi_msg_atomic){ .msg_iov = from, .desc = descs, .iov_count = 1, .addr = s->peer, .rma_iov = there, .rma_iov_count = 1,
					 .datatype = FI_UINT64, .op = op, .context = any_context() }, sizeof(*msg));
	size_t room;

	switch (kind) {
	case 0:
		fi_atomic(s->tx, operand, count, desc, s->peer, at, key, FI_UINT64, op, any_context());
		break;
	case 1:
		fi_atomicv(s->tx, from, descs, 1, s->peer, at, key, FI_UINT64, op, any_context());
		break;
	case 2:
		fi_atomicmsg(s->tx, msg, below(2) ? FI_INJECT : FI_COMPLETION);
		break;
	case 3:
		fi_inject_atomic(s->tx, operand, count, s->peer, at, key, FI_UINT64, op);
		break;
	case 4:
		fi_fetch_atomic(s->tx, operand, count, desc, result, desc, s->peer, at, key, FI_UINT64, op, any_context());
		break;
	case 5:
		fi_fetch_atomicv(s->tx, from, descs, 1, into, descs, 1, s->peer, at, key, FI_UINT64, op, any_context());
		break;
	case 6:
		fi_fetch_atomicmsg(s->tx, msg, into, descs, 1, FI_COMPLETION);
		break;
	case 7:
		fi_compare_atomic(s->tx, operand, count, desc, compare, desc, result, desc, s->peer, at, key, FI_UINT64, op, any_context());
		break;
	case 8:
		fi_compare_atomicv(s->tx, from, descs, 1, with, descs, 1, into, descs, 1, s->peer, at, key, FI_UINT64, op, any_context());
		break;
	case 9:
		fi_compare_atomicmsg(s->tx, msg, with, descs, 1, into, descs, 1, FI_COMPLETION | below(2) * FI_INJECT);
		break;
	case 10:
		fi_atomicvalid(s->tx, (enum fi_datatype)below(16), (enum fi_op)below(24), &room);
		break;
	case 11:
		fi_fetch_atomicvalid(s->tx, (enum fi_datatype)below(16), (enum fi_op)below(24), &room);
		break;
	default:
		fi_compare_atomicvalid(s->tx, (enum fi_datatype)below(16), (enum fi_op)below(24), &room);
	}
	free(from), free(into), free(with), free(there), free(descs), free(msg);
}

void nudge(struct side *s)
{
	if (s->txcq)
		fi_cq_read(s->txcq, NULL, 0);
	if (s->rxcq && s->rxcq != s->txcq)
		fi_cq_read(s->rxcq, NULL, 0);
}

static void read_from_queue(struct fid_cq *cq, enum fi_cq_format format)
{
	size_t count = below(3) == 0 ? 0 : 1 + below(4);
	char *entries = malloc(count * entry_size(format) + !count);
	fi_addr_t *sources = malloc(count * sizeof(*sources) + !count);
	ssize_t got;

	MUST(entries && sources, "out of memory");
	switch (below(4)) {
	case 0:
		got = fi_cq_readfrom(cq, entries, count, below(2) ? sources : NULL);
		break;
	case 1:
		got = fi_cq_sread(cq, entries, count, NULL, (int)below(2));
		break;
	case 2:
		got = fi_cq_sreadfrom(cq, entries, count, sources, NULL, (int)below(2));
		break;
	default:
		got = fi_cq_read(cq, entries, count);
	}
	MUST(got <= (ssize_t)count, "%zd entries of %zu", got, count);
	if (got == -FI_EAVAIL && below(3)) {
		struct fi_cq_err_entry *entry = exactly(error_entry_size(), NULL, 0);
		size_t room = below(2) * 5;
		char *data = malloc(room + 1);
		if (setting.api >= FI_VERSION(1, 5)) {
			entry->err_data = data;
			entry->err_data_size = room;
		}
		got = fi_cq_readerr(cq, entry, 0);
		if (got == 1)
			fi_cq_strerror(cq, entry->prov_errno, entry->err_data, data, room);
		free(data);
		free(entry);
	}
	free(entries);
	free(sources);
}

void read_some(struct side *s)
{
	if (s->rxcq && (!s->txcq || sometimes()))
		read_from_queue(s->rxcq, s->format);
	else if (s->txcq)
		read_from_queue(s->txcq, s->format);
}

static void any_operation(struct side *a, struct side *b)
{
	switch (below(4)) {
	case 0:
		if (b->can_receive)
			receive(b, (int)below(6));
		break;
	case 1:
		if (a->can_send)
			send_it(a, (int)below(12));
		break;
	case 2:
		if (a->can_access)
			access_memory(a, (int)below(9));
		break;
	default:
		if (a->can_access)
			change_atomically(a, (int)below(13));
	}
}

void stir(struct side *a, struct side *b, int operations)
{
	for (int n = 0; n < operations && a->world->loaned + 4 < LOANS; n++) {
		if (sometimes())
			any_operation(a, b);
		else
			any_operation(b, a);
		if (!below(3))
			read_some(below(2) ? a : b);
		nudge(a);
		nudge(b);
	}
}

void post_each(struct side *a, struct side *b)
{
	for (int kind = 0; kind < 6; kind++)
		receive(b, kind);
	for (int kind = 0; kind < 12; kind++)
		send_it(a, kind), nudge(b);
	for (int kind = 0; kind < 9; kind++)
		access_memory(a, kind), nudge(b);
	for (int kind = 0; kind < 13; kind++)
		change_atomically(a, kind), nudge(b);
}
