/*
 * What percale's libfabric provider has beyond libfabric: operations on a domain that fi_open_ops(3) gives.
 *
 *	struct percale_cache_ops *ops;
 *
 *	if (fi_open_ops(&domain->fid, PERCALE_CACHE_OPS, 0, (void **)&ops, NULL) == 0)
 *		...
 *
 * PERCALE_CACHE_OPS is the registration cache: a program gives the functions that register and deregister memory with a device
 * of its own, and gets registrations that are never stale. The cache is set as the domain is, by FI_MR_CACHE_MAX_SIZE,
 * FI_MR_CACHE_MAX_COUNT and FI_MR_CACHE_MONITOR (percale's docs/libfabric.md). It may be told what changes by the program
 * itself: libfabric's own fi_open("mr_cache") does not reach providers.
 *
 * pindown.h says what structures and functions of that name are; nothing need be linked, the functions are in a table.
 * Names such as RCACHE-020 are requirements (docs/requirements.md).
 */
#ifndef PERCALE_FI_EXT_H
#define PERCALE_FI_EXT_H

#include <stddef.h>

#include <rdma/fi_domain.h>

#include "pindown.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The name for fi_open_ops(3), on a domain. Other names, and other objects, answer -FI_ENOSYS; flags other than 0 -FI_EBADFLAGS. */
#define PERCALE_CACHE_OPS "percale_registration_cache"

/*
 * All functions return 0 or a negative error code; ops->pindown->last_error() tells the reason in words, and so does libfabric's
 * log. The table is constant, and good as long as the provider is loaded. Any thread may call.
 */
struct percale_cache_ops {
	/* sizeof(struct percale_cache_ops); members after it are not there. */
	size_t size;

	/*
	 * The caches that are opened in the domain from now on are told changes by the program, through `changed` below, and by
	 * nobody else (unless FI_MR_CACHE_MONITOR is `disabled`, which keeps caching off). `answers` says which memory the program
	 * will tell changes of: called with `context`, by any thread, until the domain and its caches are closed; null is all
	 * memory. (RCACHE-020)
	 *
	 * -FI_EBUSY   the domain has a monitor of the program's
	 */
	int (*import_monitor)(struct fid_domain *domain, pindown_answers_fn answers, void *context);

	/*
	 * The memory of these bytes is no longer what it was: tells all caches that have the imported monitor. Must be called after
	 * the old pages can no longer be pinned, and before other memory is seen there: between munmap(2) and whatever maps the
	 * addresses again. Takes no lock, allocates nothing (unless it fails), never waits. (RCACHE-021)
	 *
	 * -FI_EINVAL  no monitor was imported; or there is no such range (no byte, or past the last address): then everything
	 *             counts as changed, since something has
	 */
	int (*changed)(struct fid_domain *domain, const void *address, size_t length);

	/* Nothing is known to be what it was. As `changed`, of every address. */
	int (*changed_everything)(struct fid_domain *domain);

	/*
	 * Opens a cache, as pindown_open; pindown->close closes it, and the domain cannot be closed before. attr->monitor must be
	 * null: the domain's settings say which. Where that one does not work, the cache keeps nothing, and the log warns.
	 * attr->max_bytes and attr->max_count count if they are set, else the domain's settings do.
	 *
	 * -FI_EINVAL  as pindown_open, or attr->monitor is set
	 */
	int (*open)(struct fid_domain *domain, const struct pindown_attr *attr, struct pindown_cache **cache);

	/* Everything that is done with a cache: the functions of pindown.h. */
	const struct pindown_functions *pindown;
};

#ifdef __cplusplus
}
#endif

#endif
