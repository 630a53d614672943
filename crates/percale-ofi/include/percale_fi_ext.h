/*
 * Extensions of percale's libfabric provider: tables of functions that fi_open_ops(3) on a domain returns.
 *
 *	struct percale_cache_ops *ops;
 *
 *	if (fi_open_ops(&domain->fid, PERCALE_CACHE_OPS, 0, (void **)&ops, NULL) == 0)
 *		...
 *
 * PERCALE_CACHE_OPS is the registration cache: a program passes the functions that register and deregister memory with its
 * device, and gets registrations that are never stale. The cache is configured like the domain, with FI_MR_CACHE_MAX_SIZE,
 * FI_MR_CACHE_MAX_COUNT and FI_MR_CACHE_MONITOR (percale's docs/libfabric.md). The program may report memory changes to the
 * cache itself, which is not possible with fi_open("mr_cache"), because libfabric does not pass that monitor to providers.
 *
 * pindown.h documents the pindown structures and functions. The program need not be linked with any library for this,
 * because the functions are in a table.
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

/*
 * The name for fi_open_ops(3) on a domain. Unknown names and other objects return -FI_ENOSYS. Flags other than 0 return
 * -FI_EBADFLAGS.
 */
#define PERCALE_CACHE_OPS "percale_registration_cache"

/*
 * All functions return 0 or a negative error code. ops->pindown->last_error() returns the reason as text, which is also written
 * to libfabric's log. The table is constant, and valid as long as the provider is loaded. The functions are thread-safe.
 */
struct percale_cache_ops {
	/* The size of the table in bytes. Members beyond this size do not exist. */
	size_t size;

	/*
	 * Makes the program the monitor of all caches that are opened in the domain from now on. The program reports changes
	 * with `changed` below, and no other monitor is used. (If FI_MR_CACHE_MONITOR is `disabled`, caching stays off.)
	 * `answers` returns whether the program will report changes of a range of memory. It is called with `context`, by any
	 * thread, until the domain and its caches are closed. If `answers` is null, the program reports changes of all memory.
	 *
	 * -FI_EBUSY   the program has already imported a monitor into the domain
	 */
	int (*import_monitor)(struct fid_domain *domain, pindown_answers_fn answers, void *context);

	/*
	 * Reports to all caches with the imported monitor that the mapping of these bytes has changed. Must be called after
	 * the old pages can no longer be pinned, and before other memory is visible at these addresses: between munmap(2) and
	 * the call that maps the addresses again. Takes no lock, allocates no memory (except on failure), and never waits.
	 *
	 * -FI_EINVAL  no monitor was imported, or the range is invalid (it is empty or ends beyond the last address). For an
	 *             invalid range, all memory counts as changed, because some memory has changed.
	 */
	int (*changed)(struct fid_domain *domain, const void *address, size_t length);

	/* Like `changed`, for all addresses. */
	int (*changed_everything)(struct fid_domain *domain);

	/*
	 * Opens a cache, like pindown_open. pindown->close closes it. The domain cannot be closed before its caches.
	 * attr->monitor must be null, because the domain's settings select the monitor. If that monitor does not work, the cache
	 * keeps no registrations, and a warning is logged. attr->max_bytes and attr->max_count override the domain's settings
	 * if they are set.
	 *
	 * -FI_EINVAL  as for pindown_open, or attr->monitor is set
	 */
	int (*open)(struct fid_domain *domain, const struct pindown_attr *attr, struct pindown_cache **cache);

	/* The functions of pindown.h that operate on a cache. */
	const struct pindown_functions *pindown;
};

/*
 * Memory windows: revocable, restricted access rights to parts of regions. Each window has its own key: an opaque 64-bit value
 * that is never equal to a key that an application selected for a region. PERCALE_WINDOW_OPS is the name for fi_open_ops(3) on a
 * domain. Flags other than 0 return -FI_EBADFLAGS.
 *
 * A window is bound to a part of a region of the same domain. Peers then use its key like a region's key, with the region's
 * addresses. A window of type 1 is bound by a call, which selects the key, and is valid for all endpoints of the domain. A window
 * of type 2 is bound by a posted operation for one peer of one endpoint, and the caller selects the lower 8 bits of the key. It is
 * valid until it is invalidated by a posted operation, or by that peer with a message. An endpoint with bound windows of type 2A
 * cannot be closed; windows of type 2B end with their endpoint. A domain supports one of the two types (FI_PERCALE_WINDOWS=2A or
 * 2B). A region cannot be closed while windows are bound to it (-FI_EBUSY).
 *
 * After an unbinding call has returned 0, or the completion of an invalidation was read, no peer is using the key, and no peer
 * can use it later.
 */
#define PERCALE_WINDOW_OPS "percale_windows"

/* The types of windows. */
#define PERCALE_WINDOW_1 1
#define PERCALE_WINDOW_2A 2
#define PERCALE_WINDOW_2B 3

/* The access rights of peers, in any combination. */
#define PERCALE_WINDOW_READ 1
#define PERCALE_WINDOW_WRITE 2
#define PERCALE_WINDOW_ATOMIC 4

/* The states of a window. */
#define PERCALE_WINDOW_UNBOUND 0
#define PERCALE_WINDOW_BOUND 1
#define PERCALE_WINDOW_REVOKING 2

/*
 * Completion flags. PERCALE_BIND: a bind, with the key in `data`. PERCALE_INVALIDATED: an invalidation, or a receive that
 * invalidated the key in `data`.
 */
#define PERCALE_BIND (1ULL << 50)
#define PERCALE_INVALIDATED (1ULL << 51)

struct percale_window;

struct percale_window_info {
	int type;
	int state;
	/* The key of the last bind, which may be invalid by now. */
	uint64_t key;
	struct fid_domain *domain;
};

/* A part of a region. */
struct percale_window_range {
	struct fid_mr *mr;
	/* Relative to the first byte of the region. */
	uint64_t offset, length;
	/* PERCALE_WINDOW_READ, ... */
	uint64_t access;
};

/*
 * Functions return 0 or a negative error code, unless their descriptions state otherwise. If the code alone does not
 * explain an error, libfabric's log contains the reason as text. A failed call changes nothing unless its description
 * states otherwise. The table is constant, and valid as long as the provider is loaded. Only one thread at a time may
 * use a window.
 */
struct percale_window_ops {
	/* The size of the table in bytes. Members beyond this size do not exist. */
	size_t size;

	/* Returns the type that the domain supports: PERCALE_WINDOW_2A or PERCALE_WINDOW_2B. */
	int (*type_two)(struct fid_domain *domain);

	/*
	 * Opens a window. The domain cannot be closed before the window.
	 *
	 * -FI_EOPNOTSUPP  the domain supports the other kind of type 2
	 * -FI_ENOSPC      no keys are left
	 */
	int (*open)(struct fid_domain *domain, int type, struct percale_window **window);

	/*
	 * Unbinds the window if it is bound, and frees it.
	 *
	 * -FI_EBUSY  a peer has not finished an access; the key is invalid, and the call may be repeated
	 */
	int (*close)(struct percale_window *window);

	/* Returns the type and state of the window. */
	int (*query)(struct percale_window *window, struct percale_window_info *info);

	/*
	 * Binds a window of type 1 under a new key. The old key becomes invalid. A length of 0 unbinds the window. `key` and
	 * `address` (the address of the first byte for peers) may be null.
	 *
	 * -FI_EINVAL  the window is of type 2, or the range is not inside the region
	 * -FI_EACCES  the region belongs to another domain, or its memory is read-only
	 * -FI_EBUSY   a peer has not finished an access; the old key is invalid
	 */
	int (*bind)(struct percale_window *window, const struct percale_window_range *range, uint64_t *key, uint64_t *address);

	/*
	 * Posts the bind of a window of type 2 for a peer. The bind is ordered with the messages to the peer, so the peer can
	 * use a key that it receives in a later message. The bind completes like a send, with PERCALE_BIND, and an error is
	 * reported as an error completion. The flags are those of fi_sendmsg(3), including FI_FENCE and FI_COMPLETION.
	 */
	ssize_t (*post_bind)(struct fid_ep *ep, fi_addr_t peer, struct percale_window *window, const struct percale_window_range *range,
			     uint8_t key_byte, uint64_t *key, uint64_t *address, void *context, uint64_t flags);

	/* Posts the invalidation of a key of a window that was bound through this endpoint. Completes with PERCALE_INVALIDATED. */
	ssize_t (*post_invalidate)(struct fid_ep *ep, fi_addr_t peer, uint64_t key, void *context, uint64_t flags);

	/*
	 * Sends a message that makes its receiver invalidate this key, which the receiver must have bound for this endpoint. The
	 * receive then completes with PERCALE_INVALIDATED and the key in `data`. If the receiver has not bound the key for this
	 * endpoint, the message is not received, and the send fails.
	 */
	ssize_t (*send_invalidate)(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t peer, uint64_t key, void *context, uint64_t flags);
};

#ifdef __cplusplus
}
#endif

#endif
