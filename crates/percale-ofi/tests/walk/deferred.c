/* Triggered operations and deferred work: work that has started, work that waits, and work that never starts. */
#include "walk.h"

static struct fid_cntr *counters[2];

/* Cancels waiting work in some runs, after a close was rejected. */
static void flush(struct world *w)
{
	struct object *domain = find(w, w->domain);

	if (domain && !domain->closed && below(3))
		fi_control(&w->domain->fid, FI_FLUSH_WORK, NULL);
}

static void queue_work(struct world *w, struct side *s, int kind, bool later)
{
	/* The work belongs to the provider until it is flushed, even if objects are closed in the meantime. */
	const int always = new_part(w);
	struct fi_deferred_work *work = (void *)lend(w, always, sizeof(*work));
	void *op = lend(w, always, sizeof(struct fi_op_compare_atomic));
	char *memory = lend(w, s->txpart, 64);
	struct iovec *iov = (void *)lend(w, always, sizeof(*iov));
	struct fi_rma_iov *remote = (void *)lend(w, always, sizeof(*remote));
	struct fi_ioc *ioc = (void *)lend(w, always, 3 * sizeof(*ioc));
	struct fi_rma_ioc *word = (void *)lend(w, always, sizeof(*word));

	*iov = (struct iovec){ memory, 64 };
	*remote = (struct fi_rma_iov){ s->address, 64, s->key };
	for (int at = 0; at < 3; at++)
		ioc[at] = (struct fi_ioc){ memory + 8 * at, 1 };
	*word = (struct fi_rma_ioc){ s->address, 1, s->key };
	memset(op, 0, sizeof(struct fi_op_compare_atomic));
	struct fi_msg_atomic atomic = { .msg_iov = ioc, .iov_count = 1, .addr = s->peer, .rma_iov = word, .rma_iov_count = 1,
					.datatype = FI_UINT64, .op = kind == FI_OP_COMPARE_ATOMIC ? FI_CSWAP : FI_SUM };
	*work = (struct fi_deferred_work){ .threshold = later ? 1000 + below(3) : below(4), .triggering_cntr = counters[0],
					   .completion_cntr = below(2) ? counters[1] : NULL, .op_type = (enum fi_op_type)kind };
	switch (kind) {
	case FI_OP_RECV:
	case FI_OP_SEND:
		*(struct fi_op_msg *)op = (struct fi_op_msg){ s->tx, { iov, NULL, 1, kind == FI_OP_SEND ? s->peer : FI_ADDR_UNSPEC, work, 0 }, 0 };
		break;
	case FI_OP_TRECV:
	case FI_OP_TSEND:
		*(struct fi_op_tagged *)op =
			(struct fi_op_tagged){ s->tx, { iov, NULL, 1, kind == FI_OP_TSEND ? s->peer : FI_ADDR_UNSPEC, 3, 0, work, 0 }, 0 };
		break;
	case FI_OP_READ:
	case FI_OP_WRITE:
		*(struct fi_op_rma *)op = (struct fi_op_rma){ s->tx, { iov, NULL, 1, s->peer, remote, 1, work, 0 }, 0 };
		break;
	case FI_OP_ATOMIC:
		*(struct fi_op_atomic *)op = (struct fi_op_atomic){ s->tx, atomic, 0 };
		break;
	case FI_OP_FETCH_ATOMIC:
		*(struct fi_op_fetch_atomic *)op = (struct fi_op_fetch_atomic){ s->tx, atomic, { ioc + 1, NULL, 1 }, 0 };
		break;
	case FI_OP_COMPARE_ATOMIC:
		*(struct fi_op_compare_atomic *)op =
			(struct fi_op_compare_atomic){ s->tx, atomic, { ioc + 1, NULL, 1 }, { ioc + 2, NULL, 1 }, 0 };
		break;
	default:
		*(struct fi_op_cntr *)op = (struct fi_op_cntr){ counters[1], below(5) };
	}
	work->op.msg = op;
	if (fi_control(&w->domain->fid, FI_QUEUE_WORK, work) == 0 && !below(3))
		fi_control(&w->domain->fid, FI_CANCEL_WORK, work);
}

static void trigger(struct world *w, struct side *s, bool later)
{
	struct fi_triggered_context *context = (void *)lend(w, s->txpart, sizeof(*context));
	char *memory = lend(w, s->txpart, 64);
	struct iovec iov = { memory, 64 };
	struct fi_msg msg = { &iov, NULL, 1, s->peer, context, 0 };
	struct fi_rma_iov remote = { s->address, 64, s->key };
	struct fi_msg_rma access = { &iov, NULL, 1, s->peer, &remote, 1, context, 0 };

	*context = (struct fi_triggered_context){ .event_type = FI_TRIGGER_THRESHOLD, .trigger.threshold = { counters[0], later ? 500 : below(3) } };
	switch (below(4)) {
	case 0:
		fi_sendmsg(s->tx, &msg, FI_TRIGGER);
		break;
	case 1:
		msg.addr = FI_ADDR_UNSPEC;
		fi_recvmsg(s->rx, &msg, FI_TRIGGER);
		break;
	case 2:
		fi_writemsg(s->tx, &access, FI_TRIGGER | FI_COMPLETION);
		break;
	default:
		fi_readmsg(s->tx, &access, FI_TRIGGER);
	}
	if (!below(4))
		fi_cancel(&s->tx->fid, context);
}

bool deferred(struct world *w)
{
	struct side sides[2];

	if (!open_pair(w, sides, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_TRIGGER, false))
		return false;
	for (int at = 0; at < 2; at++)
		counters[at] = open_counter(w, at ? "counter of work" : "triggering counter", any_wait(), NULL);
	for (int n = (int)below(14); n > 0; n--) {
		struct side *s = &sides[below(2)];
		if (below(3) && !w->desc)
			queue_work(w, s, (int)below(FI_OP_CNTR_ADD + 1), sometimes());
		else
			trigger(w, s, sometimes());
		nudge(&sides[0]);
		nudge(&sides[1]);
	}
	fi_cntr_add(counters[0], below(4));
	for (int n = 0; n < 20; n++)
		nudge(&sides[n % 2]);
	fi_control(&w->domain->fid, FI_FLUSH_WORK, below(3) ? NULL : counters[below(2)]);
	w->before_retry = flush;
	return true;
}
