/*
 * The functions that percale does not implement, with their error codes. Only this table changes when one of them is
 * implemented. A code of 0 means that the function is implemented. Tests of its effects call is_there() first.
 */
#include "every.h"

static struct settings how = { .name = "refused", .caps = FI_HMEM, .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL };

static struct fid_ep *none_ep;
static char bytes[64];

static int passive_ep(struct two *t) { struct fid_pep *p; return fi_passive_ep(t->room.fabric, t->room.info, &p, NULL); }
static int wait_open(struct two *t) { struct fid_wait *w; struct fi_wait_attr a = { .wait_obj = FI_WAIT_FD }; return fi_wait_open(t->room.fabric, &a, &w); }
static int poll_open(struct two *t) { struct fid_poll *p; struct fi_poll_attr a = { .flags = 0 }; return fi_poll_open(t->room.domain, &a, &p); }
static int domain_flags(struct two *t) { struct fid_domain *d; return fi_domain2(t->room.fabric, t->room.info, &d, FI_PEER, NULL); }
static int ep_flags(struct two *t) { return fi_endpoint2(t->room.domain, t->room.info, &none_ep, FI_PEER, NULL); }
static int scalable(struct two *t) { return fi_scalable_ep(t->room.domain, t->room.info, &none_ep, NULL); }
static int stx(struct two *t) { struct fid_stx *s; return fi_stx_context(t->room.domain, t->room.info->tx_attr, &s, NULL); }
static int srx(struct two *t) { return fi_srx_context(t->room.domain, t->room.info->rx_attr, &none_ep, NULL); }
static int tx(struct two *t) { return fi_tx_context(t->a.ep, 0, t->room.info->tx_attr, &none_ep, NULL); }
static int rx(struct two *t) { return fi_rx_context(t->a.ep, 0, t->room.info->rx_attr, &none_ep, NULL); }

static int cq_mutex(struct two *t) { struct fid_cq *q; struct fi_cq_attr a = { .wait_obj = FI_WAIT_MUTEX_COND }; return fi_cq_open(t->room.domain, &a, &q, NULL); }
static int eq_mutex(struct two *t) { struct fid_eq *q; struct fi_eq_attr a = { .wait_obj = FI_WAIT_MUTEX_COND }; return fi_eq_open(t->room.fabric, &a, &q, NULL); }
static int cntr_mutex(struct two *t) { struct fid_cntr *c; struct fi_cntr_attr a = { .wait_obj = FI_WAIT_MUTEX_COND }; return fi_cntr_open(t->room.domain, &a, &c, NULL); }

static int av_bind(struct two *t) { return fi_av_bind(t->a.av, &t->a.txcq->fid, 0); }
static int av_set(struct two *t) { struct fid_av_set *s; struct fi_av_set_attr a = { .count = 2, .start_addr = FI_ADDR_NOTAVAIL }; return fi_av_set(t->a.av, &a, &s, NULL); }

static int unmap_key(struct two *t) { return fi_mr_unmap_key(t->room.domain, 5); }

static int with_attr(struct two *t, struct fi_mr_attr attr)
{
	struct iovec iov = { bytes, sizeof(bytes) };
	struct fid_mr *mr;

	attr.mr_iov = &iov, attr.iov_count = 1, attr.access = FI_REMOTE_READ, attr.requested_key = 901;
	return fi_mr_regattr(t->room.domain, &attr, 0, &mr);
}

static int mr_device(struct two *t) { return with_attr(t, (struct fi_mr_attr){ .iface = FI_HMEM_CUDA }); }
static int mr_persistent(struct two *t) { struct fid_mr *mr; return fi_mr_reg(t->room.domain, bytes, sizeof(bytes), FI_REMOTE_READ, 0, 902, FI_RMA_PMEM, &mr, NULL); }

/* Calls of connected endpoints. */
static int getpeer(struct two *t) { size_t len = sizeof(bytes); return fi_getpeer(t->a.ep, bytes, &len); }
static int connect_it(struct two *t) { return fi_connect(t->a.ep, bytes, NULL, 0); }
static int accept_it(struct two *t) { return fi_accept(t->a.ep, NULL, 0); }
static int shut_down(struct two *t) { return fi_shutdown(t->a.ep, 0); }
static int listen_it(struct two *t) { return t->a.ep->cm->listen((struct fid_pep *)t->a.ep); }
static int reject_it(struct two *t) { return t->a.ep->cm->reject((struct fid_pep *)t->a.ep, NULL, NULL, 0); }
static int join_it(struct two *t) { struct fid_mc *mc; return fi_join(t->a.ep, bytes, 0, &mc, NULL); }

static int flagged(struct two *t, uint64_t flags)
{
	struct iovec iov = { t->a.out, 8 };
	struct fi_msg msg = { .msg_iov = &iov, .iov_count = 1, .addr = t->a.peer };

	return (int)fi_sendmsg(t->a.ep, &msg, flags);
}

static int triggered(struct two *t) { return flagged(t, FI_TRIGGER); }
static int committed(struct two *t) { return flagged(t, FI_COMMIT_COMPLETE); }

static int deferred(struct two *t, int command)
{
	struct fi_op_cntr op = { 0 };
	struct fi_deferred_work work = { .op_type = FI_OP_CNTR_ADD, .op.cntr = &op }; /* The work has no counter. */

	return fi_control(&t->room.domain->fid, command, &work);
}

static int queue_work(struct two *t) { return deferred(t, FI_QUEUE_WORK); }
static int cancel_work(struct two *t) { return deferred(t, FI_CANCEL_WORK); }
static int flush_work(struct two *t) { return fi_control(&t->room.domain->fid, FI_FLUSH_WORK, NULL); }

static int open_ops(struct two *t) { void *ops; return fi_open_ops(&t->room.domain->fid, "none", 0, &ops, NULL); }
static int set_ops(struct two *t) { return fi_set_ops(&t->room.domain->fid, FI_SET_OPS_HMEM_OVERRIDE, 0, bytes, NULL); }
static int to_str(struct two *t) { return t->a.ep->fid.ops->tostr(&t->a.ep->fid, bytes, sizeof(bytes)); }
static int get_val(struct two *t) { return fi_get_val(&t->a.ep->fid, 3, bytes); }
static int set_val(struct two *t) { return fi_set_val(&t->a.ep->fid, 3, bytes); }

static const struct refusal {
	const char *what;
	int code;
	int (*call)(struct two *);
} all[] = {
	{ "fi_passive_ep", 0, passive_ep },
	{ "fi_wait_open", 0, wait_open },
	{ "fi_poll_open", 0, poll_open },
	{ "fi_domain2 with flags", -FI_EOPNOTSUPP, domain_flags },
	{ "fi_endpoint2 with flags", -FI_EBADFLAGS, ep_flags },
	{ "fi_scalable_ep", 0, scalable },
	{ "fi_stx_context", 0, stx },
	{ "fi_srx_context", 0, srx },
	{ "fi_tx_context of an ordinary endpoint", -FI_ENOSYS, tx },
	{ "fi_rx_context of an ordinary endpoint", -FI_ENOSYS, rx },
	{ "FI_WAIT_MUTEX_COND of queues", -FI_ENOSYS, cq_mutex },
	{ "FI_WAIT_MUTEX_COND of event queues", -FI_ENOSYS, eq_mutex },
	{ "FI_WAIT_MUTEX_COND of counters", -FI_ENOSYS, cntr_mutex },
	{ "fi_av_bind of a completion queue", -FI_EINVAL, av_bind },
	{ "fi_av_set of a range that ends before it begins", -FI_EINVAL, av_set },
	{ "fi_mr_unmap_key of a key that is not mapped", -FI_ENOKEY, unmap_key },
	{ "memory of devices", -FI_ENOSYS, mr_device },
	{ "persistent memory", -FI_EBADFLAGS, mr_persistent },
	{ "fi_getpeer of a datagram endpoint", -FI_ENOTCONN, getpeer },
	{ "fi_connect of a datagram endpoint", -FI_EOPNOTSUPP, connect_it },
	{ "fi_accept of a datagram endpoint", -FI_EOPNOTSUPP, accept_it },
	{ "fi_shutdown of a datagram endpoint", -FI_EOPNOTSUPP, shut_down },
	{ "fi_listen of a datagram endpoint", -FI_ENOSYS, listen_it },
	{ "fi_reject of a datagram endpoint", -FI_ENOSYS, reject_it },
	{ "fi_join of anything but a collective group", -FI_ENOSYS, join_it },
	{ "FI_TRIGGER without the capability", -FI_EBADFLAGS, triggered },
	{ "FI_COMMIT_COMPLETE", -FI_EBADFLAGS, committed },
	{ "FI_QUEUE_WORK of nothing", -FI_EINVAL, queue_work },
	{ "FI_CANCEL_WORK of work that was not queued", -FI_ENOENT, cancel_work },
	{ "FI_FLUSH_WORK", 0, flush_work },
	{ "fi_open_ops", -FI_ENOSYS, open_ops },
	{ "fi_set_ops", -FI_ENOSYS, set_ops },
	{ "fi_ops.tostr", -FI_ENOSYS, to_str },
	{ "fi_get_val", -FI_ENOSYS, get_val },
	{ "fi_set_val", -FI_ENOSYS, set_val },
	/* collectives.c tests all of them. */
	{ "collectives", 0, NULL },
};

bool is_there(const char *what)
{
	for (size_t at = 0; at < COUNT(all); at++)
		if (!strcmp(all[at].what, what))
			return all[at].code == 0;
	wrong(__FILE__, __LINE__, "the table has no %s", what);
	return false;
}

void refused_groups(void)
{
	struct two two;

	begin("unsupported calls and arguments");
	open_two(&two, &how);
	for (size_t at = 0; at < COUNT(all); at++) {
		int code;
		if (all[at].code == 0 || !all[at].call)
			continue;
		if (all[at].call == triggered)
			asserts("TRIG-001");
		code = all[at].call(&two);
		CHECK(code == all[at].code, "%s: %d (%s), not %d", all[at].what, code, code_text(code), all[at].code);
	}
	quiet(&two.pair);
	close_two(&two);
	end();
}
