/*
 * Unusual but legal arguments: calls that all objects have, fabrics, domains, regions, and calls that are rejected before an
 * endpoint is enabled.
 */
#include "walk.h"

/* Commands, names and bindings that no object of the class supports. */
void odd_object(struct world *w, struct fid *fid)
{
	static const int commands[] = { FI_GETFIDFLAG, FI_SETFIDFLAG, 9999, -1 };
	char *argument = exactly(64, "", 1), *text = malloc(3);
	void *ops = NULL;

	for (size_t at = 0; at < COUNT(commands); at++)
		fid->ops->control(fid, commands[at], argument);
	CHECK(fid->ops->ops_open(fid, "no such operations", 0, &ops, NULL) != 0, "an unknown name was opened");
	if (has_entry(fid->ops, 4))
		fid->ops->tostr(fid, text, 3);
	if (has_entry(fid->ops, 5))
		CHECK(fid->ops->ops_set(fid, "no such operations", 0, NULL, NULL) != 0, "operations are replaced");
	CHECK(fid->ops->bind(fid, &w->fabric->fid, 0) != 0, "bound to the fabric");
	CHECK(fid->ops->bind(fid, fid, 1ULL << 63) != 0, "bound to itself with an unknown flag");
	free(argument);
	free(text);
}

static void odd_fabric(struct world *w, struct fid_fabric *fabric)
{
	struct fid_domain *domain;
	struct fid_pep *pep;
	struct fid_eq *eq;
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_MUTEX_COND };

	CHECK(fabric->ops->domain(fabric, NULL, &domain, NULL) != 0, "a domain without an info was opened");
	CHECK(fabric->ops->domain2(fabric, w->info, &domain, 1ULL << 63, NULL) != 0, "an unknown flag was accepted");
	NEEDS(fabric->ops->domain2(fabric, w->info, &domain, 0, NULL));
	NEEDS(fi_close(&domain->fid));
	CHECK(fi_passive_ep(fabric, NULL, &pep, NULL) != 0, "a passive endpoint without an info was opened");
	NEEDS(fi_passive_ep(fabric, w->info, &pep, NULL));
	NEEDS(fi_close(&pep->fid));
	CHECK(fi_eq_open(fabric, &attr, &eq, NULL) != 0, "opened");
	NEEDS(fi_eq_open(fabric, NULL, &eq, NULL));
	NEEDS(fi_close(&eq->fid));
	odd_waiting(w, &fabric->fid);
}

/* Closes an object, unless it is NULL. */
static void close_if_opened(struct fid *fid)
{
	if (fid)
		NEEDS(fi_close(fid));
}

/* Closes an object that no other object uses. If it cannot be closed, returns it, and the caller closes it later. */
static struct fid *close_unused(struct fid *fid)
{
	int code = fi_close(fid);

	CHECK(code == 0, "fi_close of an object that could not be bound to an endpoint: %d", code);
	return code == 0 ? NULL : fid;
}

/* A rejected binding changes nothing: the rejected object can be closed, the bound object cannot. */
static void bindings(struct world *w, struct fid_domain *domain)
{
	struct fi_cq_attr wanted = { 0 };
	struct fi_cq_attr *attr = exactly(queue_attr_size(), &wanted, sizeof(wanted));
	struct fi_av_attr table = { .type = FI_AV_TABLE };
	struct fid_cq *cq[2];
	struct fid_av *av[2];
	struct fid_ep *ep;

	for (int at = 0; at < 2; at++) {
		NEEDS(fi_cq_open(domain, attr, &cq[at], NULL));
		NEEDS(fi_av_open(domain, &table, &av[at], NULL));
	}
	free(attr);
	NEEDS(fi_endpoint(domain, w->info, &ep, NULL));
	adopt(&ep->fid);
	CHECK(fi_ep_bind(ep, &cq[0]->fid, 0) != 0, "a queue was bound for no direction");
	CHECK(fi_ep_bind(ep, &cq[0]->fid, FI_RECV | 1ULL << 63) != 0, "an unknown flag was accepted");
	CHECK(fi_enable(ep) != 0, "enabled without a queue");
	NEEDS(fi_ep_bind(ep, &cq[0]->fid, FI_TRANSMIT));
	CHECK(fi_ep_bind(ep, &cq[1]->fid, FI_TRANSMIT | FI_RECV) != 0, "a second queue was bound");
	NEEDS(fi_ep_bind(ep, &cq[0]->fid, FI_RECV));
	CHECK(fi_ep_bind(ep, &cq[1]->fid, FI_RECV) != 0, "a second queue was bound");
	if (fi_ep_bind(ep, &av[0]->fid, 0) == 0)
		CHECK(fi_ep_bind(ep, &av[1]->fid, 0) != 0, "a second vector was bound");
	fi_getname(&ep->fid, NULL, &(size_t){ 0 });
	fi_cancel(&ep->fid, NULL);
	fi_send(ep, "", 0, NULL, 0, NULL);
	fi_recv(ep, NULL, 0, NULL, FI_ADDR_UNSPEC, NULL);
	struct fid *left[] = { close_unused(&cq[1]->fid), close_unused(&av[1]->fid) };
	int code = fi_close(&cq[0]->fid);
	CHECK(code == -FI_EBUSY, "fi_close of a bound queue: %d", code);
	NEEDS(fi_close(&ep->fid));
	if (code != 0)
		NEEDS(fi_close(&cq[0]->fid));
	NEEDS(fi_close(&av[0]->fid));
	close_if_opened(left[0]);
	close_if_opened(left[1]);
}

/* A scalable endpoint uses one vector. A rejected vector is not in use. */
static void scalable_bindings(struct world *w, struct fid_domain *domain)
{
	struct fi_av_attr table = { .type = FI_AV_TABLE };
	struct fid_av *av[2];
	struct fid_ep *sep;

	if (fi_scalable_ep(domain, w->info, &sep, NULL) != 0)
		return;
	adopt(&sep->fid);
	for (int at = 0; at < 2; at++)
		NEEDS(fi_av_open(domain, &table, &av[at], NULL));
	NEEDS(fi_scalable_ep_bind(sep, &av[0]->fid, 0));
	CHECK(fi_scalable_ep_bind(sep, &av[1]->fid, 0) != 0, "a second vector was bound");
	struct fid *left = close_unused(&av[1]->fid);
	NEEDS(fi_close(&sep->fid));
	NEEDS(fi_close(&av[0]->fid));
	close_if_opened(left);
}

/* An endpoint is not opened if its key is too long. */
static void long_key(struct world *w, struct fid_domain *domain)
{
	struct fi_info *info;
	struct fid_ep *ep;
	const size_t size = 5000;

	if (setting.api < FI_VERSION(1, 5))
		return;
	info = fi_dupinfo(w->info);
	MUST(info && !info->ep_attr->auth_key, "the walk gives no keys");
	info->ep_attr->auth_key = malloc(size);
	info->ep_attr->auth_key_size = size;
	memset(info->ep_attr->auth_key, 7, size);
	ep = NULL;
	CHECK(fi_endpoint(domain, info, &ep, NULL) != 0, "opened without its key of %zu bytes", size);
	close_if_opened(ep ? &ep->fid : NULL);
	ep = NULL;
	CHECK(fi_scalable_ep(domain, info, &ep, NULL) != 0, "opened without its key of %zu bytes", size);
	close_if_opened(ep ? &ep->fid : NULL);
	fi_freeinfo(info);
}

static void odd_domain(struct world *w, struct fid_domain *domain)
{
	struct fi_cq_attr format = { .format = (enum fi_cq_format)99 }, object = { .wait_obj = FI_WAIT_MUTEX_COND };
	struct fi_cntr_attr events = { .events = (enum fi_cntr_events)5 };
	struct fi_av_attr kind = { .type = (enum fi_av_type)77 }, flagged = { .flags = 1ULL << 63 };
	struct fi_atomic_attr *atomic = exactly(sizeof(*atomic), "", 1);
	struct fi_collective_attr collective = { .op = (enum fi_op)99 };
	struct fi_deferred_work odd_work = { .op_type = (enum fi_op_type)99 };
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_cntr *cntr;
	struct fid_ep *ep;
	struct fid_stx *stx = NULL;
	struct fid_mr *mr;
	struct fi_mr_attr nothing = { 0 };
	struct fi_mr_attr *attr = exactly(region_attr_size(), &nothing, sizeof(nothing));

	CHECK(fi_cq_open(domain, &format, &cq, NULL) != 0, "an unknown format was accepted");
	CHECK(fi_cq_open(domain, &object, &cq, NULL) != 0, "an unknown wait object was accepted");
	object.wait_obj = FI_WAIT_SET;
	CHECK(fi_cq_open(domain, &object, &cq, NULL) != 0, "a missing wait set was accepted");
	NEEDS(fi_cq_open(domain, NULL, &cq, NULL));
	NEEDS(fi_close(&cq->fid));
	CHECK(fi_cntr_open(domain, &events, &cntr, NULL) != 0, "counting unknown events was accepted");
	CHECK(fi_av_open(domain, &kind, &av, NULL) != 0, "an unknown type was accepted");
	CHECK(fi_av_open(domain, &flagged, &av, NULL) != 0, "an unknown flag was accepted");
	CHECK(fi_endpoint(domain, NULL, &ep, NULL) != 0, "an endpoint without an info was opened");
	if (has_entry(domain->ops, 10)) {
		CHECK(domain->ops->endpoint2(domain, w->info, &ep, 1ULL << 63, NULL) != 0, "an unknown flag was accepted");
		NEEDS(domain->ops->endpoint2(domain, w->info, &ep, 0, NULL));
		NEEDS(fi_close(&ep->fid));
	}
	CHECK(fi_scalable_ep(domain, NULL, &ep, NULL) != 0, "an endpoint without an info was opened");
	NEEDS(fi_srx_context(domain, NULL, &ep, NULL));
	adopt(&ep->fid);
	NEEDS(fi_close(&ep->fid));
	NEEDS(fi_stx_context(domain, NULL, &stx, NULL));
	adopt(&stx->fid);
	for (size_t slot = 0; slot < 2; slot++)
		fi_cancel(&stx->fid, NULL);
	fi_getopt(&stx->fid, 0, 0, atomic, &(size_t){ sizeof(*atomic) });
	fi_setopt(&stx->fid, 0, 0, atomic, sizeof(size_t));
	odd_object(w, &stx->fid);
	stx->ops->tx_ctx((struct fid_ep *)stx, 0, NULL, &ep, NULL);
	stx->ops->rx_ctx((struct fid_ep *)stx, 0, NULL, &ep, NULL);
	stx->ops->rx_size_left((struct fid_ep *)stx);
	stx->ops->tx_size_left((struct fid_ep *)stx);
	if (has_entry(stx->ops, 7)) {
		int (*export)(struct fid_stx *, uint64_t, void *) = entry_of(stx->ops, 7);
		CHECK(export(stx, 0, NULL) != 0, "an export without a destination succeeded");
	}
	NEEDS(fi_close(&stx->fid));
	fi_query_atomic(domain, FI_UINT64, FI_SUM, atomic, 0);
	fi_query_atomic(domain, (enum fi_datatype)99, (enum fi_op)99, atomic, FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC);
	fi_query_collective(domain, FI_BARRIER, &collective, 0);
	fi_query_collective(domain, (enum fi_collective_op)99, &collective, 1ULL << 63);
	if (has_entry(domain->ops, 11)) {
		int (*open)(struct fid_domain *, void *, void **, void *) = entry_of(domain->ops, 11);
		void *made;
		CHECK(open(domain, NULL, &made, NULL) != 0, "a device's context");
	}
	CHECK(fi_mr_regattr(domain, attr, 0, &mr) != 0, "a region without memory was registered");
	CHECK(fi_mr_reg(domain, attr, 1, FI_REMOTE_READ, 1, 5, 0, &mr, NULL) != 0, "an offset");
	CHECK(fi_mr_regv(domain, NULL, 0, FI_REMOTE_READ, 0, 5, 0, &mr, NULL) != 0, "a region without memory was registered");
	CHECK(fi_control(&domain->fid, FI_QUEUE_WORK, &odd_work) != 0, "work of an unknown type was queued");
	fi_control(&domain->fid, FI_FLUSH_WORK, NULL);
	odd_waiting(w, &domain->fid);
	long_key(w, domain);
	scalable_bindings(w, domain);
	bindings(w, domain);
	free(atomic);
	free(attr);
}

static void odd_region(struct world *w, struct fid_mr *mr)
{
	size_t little = 1;
	uint8_t *raw = malloc(1);
	uint64_t base;

	CHECK(fi_mr_bind(mr, &w->domain->fid, 0) != 0, "bound to the domain");
	fi_mr_raw_attr(mr, &base, raw, &little, 0);
	fi_mr_key(mr);
	fi_mr_desc(mr);
	fi_mr_enable(mr);
	fi_mr_enable(mr);
	free(raw);
}

static void odd_passive(struct fid_pep *pep)
{
	char *little = malloc(2), *name = malloc(NAME);
	size_t two = 2, length = NAME, value, room = sizeof(value);
	int *backlog = exactly(sizeof(*backlog), &(int){ -1 }, sizeof(*backlog));
	struct fid_ep *ep = NULL;
	struct fid_mc *mc = NULL;

	fi_getname(&pep->fid, little, &two);
	if (fi_getname(&pep->fid, name, &length) == 0)
		fi_setname(&pep->fid, name, length);
	fi_control(&pep->fid, FI_BACKLOG, backlog);
	*backlog = 0;
	fi_control(&pep->fid, FI_BACKLOG, backlog);
	*backlog = 1 << 30;
	fi_control(&pep->fid, FI_BACKLOG, backlog);
	fi_listen(pep);
	CHECK(fi_reject(pep, NULL, NULL, 0) != 0, "nothing is rejected");
	fi_getopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &value, &room);
	two = 2;
	fi_getopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, little, &two);
	fi_setopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &value, sizeof(value));
	/* Calls that have no effect on passive endpoints. */
	fi_cancel(&pep->fid, NULL);
	pep->ops->tx_ctx((struct fid_ep *)pep, 0, NULL, &ep, NULL);
	pep->ops->rx_ctx((struct fid_ep *)pep, 0, NULL, &ep, NULL);
	pep->ops->rx_size_left((struct fid_ep *)pep);
	pep->ops->tx_size_left((struct fid_ep *)pep);
	if (has_entry(pep->ops, 7)) {
		int (*export)(struct fid_pep *, uint64_t, void *) = entry_of(pep->ops, 7);
		CHECK(export(pep, 0, NULL) != 0, "an export without a destination succeeded");
	}
	length = NAME;
	pep->cm->getpeer((struct fid_ep *)pep, name, &length);
	pep->cm->connect((struct fid_ep *)pep, name, NULL, 0);
	pep->cm->accept((struct fid_ep *)pep, NULL, 0);
	pep->cm->shutdown((struct fid_ep *)pep, 0);
	pep->cm->join((struct fid_ep *)pep, name, 0, &mc, NULL);
	free(little), free(name), free(backlog);
}

void odd_everything(struct world *w)
{
	const int count = w->count;

	for (int at = 0; at < count; at++) {
		struct fid *fid = w->objects[at].fid;
		odd_object(w, fid);
		switch (fid->fclass) {
		case FI_CLASS_FABRIC:
			odd_fabric(w, (struct fid_fabric *)fid);
			break;
		case FI_CLASS_DOMAIN:
			odd_domain(w, (struct fid_domain *)fid);
			break;
		case FI_CLASS_CQ:
			odd_queue((struct fid_cq *)fid, FI_CQ_FORMAT_TAGGED);
			odd_waiting(w, fid);
			break;
		case FI_CLASS_EQ:
			odd_events((struct fid_eq *)fid);
			odd_waiting(w, fid);
			break;
		case FI_CLASS_CNTR:
			odd_counter((struct fid_cntr *)fid);
			odd_waiting(w, fid);
			break;
		case FI_CLASS_WAIT:
		case FI_CLASS_POLL:
			odd_waiting(w, fid);
			break;
		case FI_CLASS_AV:
			odd_vector(w, (struct fid_av *)fid);
			break;
		case FI_CLASS_MR:
			odd_region(w, (struct fid_mr *)fid);
			break;
		case FI_CLASS_PEP:
			odd_passive((struct fid_pep *)fid);
			break;
		case FI_CLASS_EP:
		case FI_CLASS_SEP:
		case FI_CLASS_TX_CTX:
		case FI_CLASS_RX_CTX:
		case FI_CLASS_SRX_CTX:
			odd_endpoint(w, (struct fid_ep *)fid);
			break;
		}
	}
}
