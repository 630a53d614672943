/*
 * Operations that percale's libfabric provider has beyond libfabric: fi_open_ops(3) on a domain returns them.
 *
 *	struct percale_cache_ops *ops;
 *
 *	if (fi_open_ops(&domain->fid, PERCALE_CACHE_OPS, 0, (void **)&ops, NULL) == 0)
 *		...
 *
 * PERCALE_CACHE_OPS is the registration cache: a program passes the functions that register and deregister memory with a device
 * of its own, and gets registrations that are never stale. The cache is configured like the domain, by FI_MR_CACHE_MAX_SIZE,
 * FI_MR_CACHE_MAX_COUNT and FI_MR_CACHE_MONITOR (percale's docs/libfabric.md). The program itself may report memory changes to
 * it: libfabric's own fi_open("mr_cache") does not reach providers.
 *
 * pindown.h documents the structures and functions of that name; no library need be linked, the functions are in a
 * table.
 * Names such as RCACHE-020 are requirements (docs/requirements.md).
 */
#ifndef PERCALE_FI_EXT_H
#define PERCALE_FI_EXT_H

#include <stddef.h>

#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>

#include "pindown.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The name for fi_open_ops(3), on a domain. Other names, and other objects, answer -FI_ENOSYS; flags other than 0 -FI_EBADFLAGS. */
#define PERCALE_CACHE_OPS "percale_registration_cache"

/*
 * All functions return 0 or a negative error code; ops->pindown->last_error() returns the reason as text, and libfabric's log
 * shows it. The table is constant, and valid as long as the provider is loaded. Any thread may call.
 */
struct percale_cache_ops {
	/* sizeof(struct percale_cache_ops); members after it are not there. */
	size_t size;

	/*
	 * Imports the program as the monitor of all caches that are opened in the domain from now on: it reports changes
	 * through `changed` below, and nothing else does (unless FI_MR_CACHE_MONITOR is `disabled`, which keeps caching off).
	 * `answers` returns whether the program will report changes of a range of memory: it is called with `context`, by any
	 * thread, until the domain and its caches are closed; null means all memory. (RCACHE-020)
	 *
	 * -FI_EBUSY   the program has already imported a monitor into the domain
	 */
	int (*import_monitor)(struct fid_domain *domain, pindown_answers_fn answers, void *context);

	/*
	 * Reports to all caches with the imported monitor that the memory of these bytes has changed. Must be called after the
	 * old pages can no longer be pinned, and before other memory is seen there: between munmap(2) and the call that maps
	 * the addresses again. Takes no lock, allocates nothing (unless it fails), never waits. (RCACHE-021)
	 *
	 * -FI_EINVAL  no monitor was imported; or there is no such range (no byte, or past the last address): then everything
	 *             counts as changed, since something has
	 */
	int (*changed)(struct fid_domain *domain, const void *address, size_t length);

	/* As `changed`, for all addresses. */
	int (*changed_everything)(struct fid_domain *domain);

	/*
	 * Opens a cache, as pindown_open; pindown->close closes it, and the domain cannot be closed before. attr->monitor must
	 * be null: the domain's settings choose the monitor. Where that monitor does not work, the cache keeps nothing, and the
	 * log warns. attr->max_bytes and attr->max_count are used if they are set, otherwise the domain's settings.
	 *
	 * -FI_EINVAL  as pindown_open, or attr->monitor is set
	 */
	int (*open)(struct fid_domain *domain, const struct pindown_attr *attr, struct pindown_cache **cache);

	/* The functions of pindown.h, for everything that is done with a cache. */
	const struct pindown_functions *pindown;
};

/*
 * Memory windows: revocable, narrower rights to parts of regions, each with a key of its own: opaque, 64 bits, and never a key
 * that an application chose for its regions. Name for fi_open_ops(3), on a domain; flags other than 0 return -FI_EBADFLAGS.
 *
 * A window is bound to a part of a region of the same domain; peers then use its key as they use a region's, with the region's
 * addresses. Type 1 is bound by a call, which chooses the key, and is for all endpoints of the domain. Type 2 is bound by a
 * posted operation, for one peer of one endpoint; the caller chooses the lower 8 bits of the key. It works until it is
 * invalidated: by a posted operation, or by that peer with a message. An endpoint with bound windows of type 2A is not closed;
 * those of type 2B end with it. A domain has one of the two (FI_PERCALE_WINDOWS=2A or 2B). A region is not closed while windows
 * are bound to it (-FI_EBUSY).
 *
 * When an unbinding call returns 0, or the completion of an invalidation was read, no peer uses the key, and no peer can use it
 * later.
 */
#define PERCALE_WINDOW_OPS "percale_windows"

/* Types (MW-024, MW-034). */
#define PERCALE_WINDOW_1 1
#define PERCALE_WINDOW_2A 2
#define PERCALE_WINDOW_2B 3

/* What peers may do, in any combination (MW-015). */
#define PERCALE_WINDOW_READ 1
#define PERCALE_WINDOW_WRITE 2
#define PERCALE_WINDOW_ATOMIC 4

/* States (MW-005). */
#define PERCALE_WINDOW_UNBOUND 0
#define PERCALE_WINDOW_BOUND 1
#define PERCALE_WINDOW_REVOKING 2

/* Flags of completions: a bind, with the key in `data`; an invalidation, or a receive that invalidated the key in `data`. */
#define PERCALE_BIND (1ULL << 50)
#define PERCALE_INVALIDATED (1ULL << 51)

struct percale_window;

struct percale_window_info {
	int type;
	int state;
	/* The key of the last bind, whether it is still valid or not. */
	uint64_t key;
	struct fid_domain *domain;
};

/* A part of a region. */
struct percale_window_range {
	struct fid_mr *mr;
	/* Counted from the region's first byte. */
	uint64_t offset, length;
	/* PERCALE_WINDOW_READ, ... */
	uint64_t access;
};

/*
 * All functions return 0 or a negative error code; libfabric's log has the reason as text. A failed call changes nothing,
 * unless its description states otherwise. The table is constant, and valid as long as the provider is loaded. A window is used
 * by one thread at a time.
 */
struct percale_window_ops {
	/* sizeof(struct percale_window_ops); members after it are not there. */
	size_t size;

	/* PERCALE_WINDOW_2A or PERCALE_WINDOW_2B, whichever the domain has. */
	int (*type_two)(struct fid_domain *domain);

	/*
	 * Makes a window. The domain stays open as long as the window. (MW-001)
	 *
	 * -FI_EOPNOTSUPP  the domain has the other windows of type 2
	 * -FI_ENOSPC      no keys are left
	 */
	int (*open)(struct fid_domain *domain, int type, struct percale_window **window);

	/*
	 * Unbinds the window if it is bound, and frees it. (MW-003)
	 *
	 * -FI_EBUSY  a peer in the middle of an access does not progress; the key is invalid, and the call may be tried again
	 */
	int (*close)(struct percale_window *window);

	/* Returns the type and state of the window. (MW-005) */
	int (*query)(struct percale_window *window, struct percale_window_info *info);

	/*
	 * Binds a window of type 1, under a new key; the old key becomes invalid. A length of 0 unbinds. `key` and `address`
	 * (of the first byte, as peers name it) may be null. (MW-028 to MW-030)
	 *
	 * -FI_EINVAL  the window is of type 2, or the part is not in the region
	 * -FI_EACCES  the region is another domain's, or its memory is read-only
	 * -FI_EBUSY   a peer in the middle of an access does not progress; the old key is invalid
	 */
	int (*bind)(struct percale_window *window, const struct percale_window_range *range, uint64_t *key, uint64_t *address);

	/*
	 * Posts the bind of a window of type 2 for a peer, in order with the messages to it: a key that is sent to the peer
	 * afterwards can be used by the peer. Completes as a send does, with PERCALE_BIND; errors are reported by an error
	 * completion. Flags are those of fi_sendmsg(3), FI_FENCE and FI_COMPLETION among them. (MW-026, MW-035 to MW-037)
	 */
	ssize_t (*post_bind)(struct fid_ep *ep, fi_addr_t peer, struct percale_window *window, const struct percale_window_range *range,
			     uint8_t key_byte, uint64_t *key, uint64_t *address, void *context, uint64_t flags);

	/* Posts the invalidation of a key of a window that was bound through this endpoint. Completes with PERCALE_INVALIDATED. (MW-044) */
	ssize_t (*post_invalidate)(struct fid_ep *ep, fi_addr_t peer, uint64_t key, void *context, uint64_t flags);

	/*
	 * Sends a message and makes its receiver invalidate this key, which the receiver had bound for this endpoint; then the
	 * receive completes, with PERCALE_INVALIDATED and the key in `data`. If the key is not of that kind, the message is not
	 * received, and the send fails. (MW-045 to MW-047)
	 */
	ssize_t (*send_invalidate)(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t peer, uint64_t key, void *context, uint64_t flags);
};

#ifdef __cplusplus
}
#endif

#endif
