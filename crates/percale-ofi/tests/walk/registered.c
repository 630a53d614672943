/* Regions: their events, counters and endpoints, raw keys, and windows over them. */
#include "walk.h"

#include <percale_fi_ext.h>

static bool open_registering(struct world *w, int mode, uint64_t caps)
{
	struct fi_info *hints = hints_of(FI_EP_RDM, FI_MSG | FI_RMA | caps), *info;

	hints->domain_attr->mr_mode = setting.api < FI_VERSION(1, 5) ? (sometimes() ? FI_MR_BASIC : FI_MR_SCALABLE) : mode;
	info = answer(NULL, NULL, 0, hints);
	if (info && setting.api >= FI_VERSION(1, 5))
		info->domain_attr->mr_mode = mode;
	fi_freeinfo(hints);
	if (!info)
		return false;
	open_fabric(w, info);
	open_domain(w);
	return true;
}

static struct fid_ep *open_target(struct world *w, struct fid_cq **cq, struct fid_av **av, int *part)
{
	struct fid_ep *ep;

	*part = new_part(w);
	*cq = open_queue(w, "queue", any_wait(), any_format(), NULL);
	*av = open_vector(w, "vector", FI_AV_TABLE, 0, NULL);
	NEEDS(fi_endpoint(w->domain, w->info, &ep, w));
	keep(w, "endpoint", &ep->fid, w->domain, *part);
	NEEDS(fi_ep_bind(ep, &(*cq)->fid, FI_TRANSMIT | FI_RECV));
	NEEDS(fi_ep_bind(ep, &(*av)->fid, 0));
	uses(w, ep, *cq);
	uses(w, ep, *av);
	NEEDS(fi_enable(ep));
	return ep;
}

static void raw_keys(struct world *w, struct fid_mr *mr)
{
	uint8_t *raw;
	uint64_t base, key = 0;
	size_t size = 0;
	int code = fi_mr_raw_attr(mr, &base, NULL, &size, 0);

	/* A buffer that is too short, then one of exactly the required size. */
	raw = malloc(size + !size);
	if (code == -FI_ETOOSMALL && size > 1) {
		size_t less = size - 1;
		fi_mr_raw_attr(mr, &base, raw, &less, 0);
	}
	if (fi_mr_raw_attr(mr, &base, raw, &size, 0) == 0) {
		if (fi_mr_map_raw(w->domain, base, raw, size, &key, 0) == 0) {
			totals->closings++;
			MUST(fi_close(&w->domain->fid) == -FI_EBUSY, "a domain with a mapped key is closed");
			NEEDS(fi_mr_unmap_key(w->domain, key));
		}
		if (size > 0)
			fi_mr_map_raw(w->domain, base, raw, size - 1, &key, 0);
	}
	fi_mr_unmap_key(w->domain, key + 1);
	free(raw);
}

bool registered(struct world *w)
{
	static const int modes[] = { 0, FI_MR_ENDPOINT, FI_MR_RAW | FI_MR_PROV_KEY, FI_MR_RMA_EVENT, FI_MR_ENDPOINT | FI_MR_RMA_EVENT,
		FI_MR_VIRT_ADDR | FI_MR_MMU_NOTIFY, FI_MR_RAW | FI_MR_ENDPOINT };
	int mode = modes[below(COUNT(modes))], part, ep_part;
	struct fid_mr *mr, *several = NULL;
	struct fid_cntr *cntr;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_ep *ep;
	struct iovec iov[3];
	uint64_t flags;
	char *memory;

	if (!open_registering(w, mode, FI_RMA_EVENT))
		return false;
	mode = setting.api < FI_VERSION(1, 5) ? 0 : mode;
	flags = mode & FI_MR_RMA_EVENT ? FI_RMA_EVENT : 0;
	mr = open_region(w, "region", 4096, flags);
	cntr = open_counter(w, "counter", any_wait(), NULL);
	ep = open_target(w, &cq, &av, &ep_part);
	fi_mr_bind(mr, &cntr->fid, FI_REMOTE_WRITE);
	if (mode & FI_MR_ENDPOINT)
		NEEDS(fi_mr_bind(mr, &ep->fid, 0));
	fi_mr_enable(mr);
	if (setting.api >= FI_VERSION(1, 5)) {
		iov[0] = (struct iovec){ w->loans[0].memory, 100 };
		fi_mr_refresh(mr, iov, 1, 0);
	}
	if (mode & FI_MR_RAW)
		raw_keys(w, mr);
	part = new_part(w);
	memory = lend(w, part, 3000);
	for (int at = 0; at < 3; at++)
		iov[at] = (struct iovec){ memory + 1000 * at, 1000 };
	if (fi_mr_regv(w->domain, iov, 3, FI_REMOTE_READ | FI_SEND, 0, 777, flags, &several, w) == 0)
		keep(w, "region of pieces", &several->fid, w->domain, part);
	/* An offset, unknown flags, and no memory are rejected. */
	iov[0].iov_base = memory;
	several = NULL;
	MUST(fi_mr_reg(w->domain, memory, 10, FI_REMOTE_READ, 5, 778, 0, &several, w) != 0, "an offset was accepted");
	MUST(fi_mr_reg(w->domain, memory, 10, FI_REMOTE_READ, 0, 778, 1ULL << 63, &several, w) != 0, "unknown flag accepted");
	MUST(fi_mr_regv(w->domain, iov, 0, FI_REMOTE_READ, 0, 778, 0, &several, w) != 0, "an empty list was accepted");
	fi_addr_t self = insert_name(av, &ep->fid);
	uint64_t key = fi_mr_key(mr);
	for (int n = 0; n < 3; n++)
		fi_write(ep, lend(w, ep_part, 64), 64, NULL, self, base_of(w, w->loans[0].memory), key, NULL);
	fi_cq_read(cq, NULL, 0);
	fi_cntr_read(cntr);
	return true;
}

bool registered_later(struct world *w)
{
	struct fid_eq *eq;
	struct fid_mr *mr[3];

	if (!open_registering(w, 0, 0))
		return false;
	eq = open_events(w, "events", any_wait(), NULL);
	NEEDS(fi_domain_bind(w->domain, &eq->fid, FI_REG_MR));
	uses(w, w->domain, eq);
	for (int at = 0; at < 3; at++)
		mr[at] = open_region(w, "region", 100, 0);
	/* Some events are read. Other regions are closed before their events are read. */
	for (uint64_t n = below(3); n > 0; n--)
		read_event(eq);
	if (sometimes())
		fi_mr_bind(mr[1], &eq->fid, 0);
	return true;
}

/* ---- windows ---- */

static struct percale_window_ops *ops;
static struct percale_window *open_windows[2];
static struct fid_mr *under;

static bool open_window_table(struct world *w)
{
	void *table = NULL;

	if (fi_open_ops(&w->domain->fid, PERCALE_WINDOW_OPS, 0, &table, NULL) != 0)
		return false;
	ops = adopt_table("percale_window_ops", table, (sizeof(*ops) - sizeof(size_t)) / sizeof(void *));
	return true;
}

/* Windows are not libfabric objects. They are closed after the close of an object was rejected. */
static void close_windows(struct world *w)
{
	(void)w;
	for (size_t at = 0; at < COUNT(open_windows); at++)
		if (open_windows[at] && ops->close(open_windows[at]) == 0)
			open_windows[at] = NULL;
}

bool windows(struct world *w)
{
	struct percale_window_range range;
	struct percale_window_info info;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_ep *ep;
	uint64_t key = 0, address;
	int part;

	if (!open_registering(w, 0, 0))
		return false;
	if (!open_window_table(w))
		return false;
	under = open_region(w, "region", 4096, 0);
	ep = open_target(w, &cq, &av, &part);
	fi_addr_t self = insert_name(av, &ep->fid);
	range = (struct percale_window_range){ under, 128, 256, PERCALE_WINDOW_READ | PERCALE_WINDOW_WRITE };
	NEEDS(ops->open(w->domain, PERCALE_WINDOW_1, &open_windows[0]));
	NEEDS(ops->open(w->domain, ops->type_two(w->domain), &open_windows[1]));
	NEEDS(ops->bind(open_windows[0], &range, sometimes() ? &key : NULL, NULL));
	NEEDS(ops->query(open_windows[0], &info));
	if (sometimes())
		ops->post_bind(ep, self, open_windows[1], &range, 7, &key, sometimes() ? &address : NULL, NULL, FI_COMPLETION);
	fi_cq_read(cq, NULL, 0);
	if (sometimes())
		ops->post_invalidate(ep, self, key, NULL, FI_COMPLETION);
	fi_recv(ep, lend(w, part, 64), 64, NULL, FI_ADDR_UNSPEC, NULL);
	if (sometimes())
		ops->send_invalidate(ep, lend(w, part, 64), 64, self, key, NULL, 0);
	w->before_retry = close_windows;
	return true;
}

void odd_windows(struct world *w)
{
	struct percale_window *none = NULL;
	struct percale_window_range outside = { under, 4000, 4000, 7 }, wrapping = { under, UINT64_MAX, 2, 1 }, empty = { under, 0, 0, 0 };
	struct percale_window_info info;
	void *table = NULL;

	odd_everything(w);
	MUST(fi_open_ops(&w->domain->fid, PERCALE_WINDOW_OPS, 1, &table, NULL) != 0, "an unknown flag was accepted");
	MUST(ops->open(w->domain, 99, &none) != 0, "an unknown type was accepted");
	MUST(ops->bind(open_windows[0], &outside, NULL, NULL) != 0, "bound beyond the region");
	MUST(ops->bind(open_windows[0], &wrapping, NULL, NULL) != 0, "bound around the end of addresses");
	ops->bind(open_windows[0], &empty, NULL, NULL);
	MUST(ops->bind(open_windows[1], &outside, NULL, NULL) != 0, "a window of type 2 is bound by a call");
	NEEDS(ops->query(open_windows[1], &info));
	if (fi_open_ops(&w->domain->fid, PERCALE_CACHE_OPS, 0, &table, NULL) == 0) {
		struct percale_cache_ops *cache = adopt_table("percale_cache_ops", table, 4);
		struct pindown_attr attr = { 0 };
		struct pindown_cache *opened = NULL;
		cache->open(w->domain, &attr, &opened);
		cache->changed(w->domain, "", 1);
		cache->changed(w->domain, NULL, 0);
		cache->changed_everything(w->domain);
		cache->import_monitor(w->domain, NULL, NULL);
		cache->import_monitor(w->domain, NULL, NULL);
		cache->changed(w->domain, "", 1);
		cache->changed_everything(w->domain);
	}
}
