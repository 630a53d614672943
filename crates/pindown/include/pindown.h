/*
 * pindown: a registration cache that never returns a stale registration.
 *
 * Devices that access memory directly (RDMA adapters, GPUs, io_uring's fixed buffers) need it pinned. Pinning is slow,
 * so a cache keeps memory pinned between transfers. A registration becomes *stale* when the process maps other memory
 * at its address: the device still accesses the old pages, and no error is reported. pindown returns a registration
 * only if the memory at its addresses is still the memory that was pinned. Otherwise it registers the memory again. If
 * it cannot detect changes of memory, it registers the memory for one use only.
 *
 * For all functions:
 *
 * - Functions that return int return 0 or more, or a negative errno; pindown_last_error() then returns the reason as
 *   text. -EINVAL is returned for a null pointer (except as the start of a range), an empty range, a range that extends
 *   past the last address, and unknown bits.
 * - Addresses are those of this process, lengths are in bytes. Whole pages are pinned.
 * - Any number of threads may use a cache at once. Only one thread at a time may use a lane. Do not call any function
 *   in a signal handler.
 * - In a child made by fork(2), the parent's caches cannot be used: their functions return -ECHILD and do not access
 *   the parent's registrations. The child can only end uses and close lanes and caches, which has no effect on the
 *   parent, and can open its own caches.
 * - Passing a pointer that is neither null nor valid, or that was closed before, is undefined behaviour, as with
 *   free(3).
 * - Structures may grow in later versions, except struct pindown_use. Their first field is their size, by which programs
 *   and libraries of different versions use only the fields that both have. Initialize every structure with its macro
 *   PINDOWN_..._INIT, which sets the size.
 * - A callback must not throw C++ exceptions.
 */
#ifndef PINDOWN_H
#define PINDOWN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header: major, minor and patch, 8 bits each, from the top. */
#define PINDOWN_VERSION 0x000200u

/* Returns the version of the library, in the same form. Any thread. */
uint32_t pindown_version(void);

/* A cache. */
struct pindown_cache;

/* One user of a cache: a thread, or an endpoint that one thread at a time drives. */
struct pindown_lane;

/* Rights of a registration. A device may always read the memory that it sends from. */
enum pindown_access {
	/* The device of this process writes the memory: receives, and reads of remote memory. */
	PINDOWN_LOCAL_WRITE = 1 << 0,
	/* Peers read the memory. */
	PINDOWN_REMOTE_READ = 1 << 1,
	/* Peers write the memory. Implies no other right; a device may also require PINDOWN_LOCAL_WRITE. */
	PINDOWN_REMOTE_WRITE = 1 << 2,
	/* Peers perform atomic operations on the memory. */
	PINDOWN_REMOTE_ATOMIC = 1 << 3
};

/* ---- the registrar: pins and unpins memory; implemented by the application -------------------------------------------- */

/* The result of a pin callback. */
struct pindown_pinned {
	/* The size of the structure, set by pindown. Fields beyond it do not exist: a pin callback does not write them. */
	size_t size;
	/* The local key, for work requests of this process. */
	uint64_t local_key;
	/* The remote key, for peers. */
	uint64_t remote_key;
	/* A pointer for the unpin callback. Never dereferenced by pindown; may be null. */
	void *pin;
};

#define PINDOWN_PINNED_INIT \
	{ sizeof(struct pindown_pinned), 0, 0, NULL }

/*
 * Pins `length` bytes from `address` (whole pages) so that their physical pages stay where they are, and fills in
 * `pinned`.
 *
 * Returns 0, or a negative errno, which the function that needed the registration returns; any other value counts as
 * -EIO. After -ENOMEM, -EAGAIN, -ENOSPC and -EDQUOT the cache unpins idle registrations and calls the callback again.
 *
 * Called by the threads that use the cache, by several at once, never with a lock held. The callback may call any
 * function of pindown except those of the lane that it is called for.
 */
typedef int (*pindown_pin_fn)(void *context, void *address, size_t length, uint32_t access, struct pindown_pinned *pinned);

/*
 * Unpins the memory of one call of the pin callback. Called once for each such call, under the same rules as the pin
 * callback. It cannot fail.
 */
typedef void (*pindown_unpin_fn)(void *context, void *pin);

/*
 * Returns whether the application will report changes of these bytes with pindown_changed (not 0) or not (0). If not,
 * the memory is registered for one use. Only for the monitor "imported".
 */
typedef int (*pindown_answers_fn)(void *context, const void *address, size_t length, uint32_t access);

/* ---- opening ---------------------------------------------------------------------------------------------------------- */

/* pindown_attr.max_bytes: no limit. */
#define PINDOWN_NO_LIMIT UINT64_MAX

/* pindown_attr.max_count: the library's default (1,024). */
#define PINDOWN_DEFAULT_COUNT UINT32_MAX

/*
 * pindown_attr.flags: the application promises that no code in this process, including its libraries, ever installs
 * guard pages (MADV_GUARD_INSTALL, Linux 6.13) in registered memory, or attaches a System V segment over it (shmat with
 * SHM_REMAP). userfaultfd does not report these changes, so without this promise it keeps only sealed memory.
 */
#define PINDOWN_NO_UNSEEN_CHANGES 1u

/*
 * pindown_attr.flags: with userfaultfd, each hit checks by a second system call whether the process still has the
 * rights that the registration was made with; a registration with rights that the process has lost is dropped. Other
 * monitors ignore this flag, because they are notified of mprotect(2) or do not need to be.
 */
#define PINDOWN_CHECK_RIGHTS 2u

/*
 * pindown_attr.flags: an alternative to PINDOWN_NO_UNSEEN_CHANGES (which takes precedence). With userfaultfd, kept
 * memory is locked (mlock2(2) with MLOCK_ONFAULT), so that the kernel rejects guard pages there. The application
 * promises that no code in the process attaches a System V segment over registered memory, or unlocks it (munlock,
 * munlockall).
 *
 * MADV_DONTNEED, MADV_FREE and MADV_REMOVE then fail with EINVAL there. This affects allocators, and code that discards
 * pages to get zeroed ones. The memory is unlocked when its last registration is unpinned, unless it was locked before
 * it was registered. The locks count against RLIMIT_MEMLOCK; memory beyond the limit is registered for one use.
 */
#define PINDOWN_REFUSE_GUARDS 4u

/*
 * pindown_attr.flags: a miss merges its pages with kept registrations of private memory that have the same rights and
 * overlap or adjoin them, as long as each page is registered again only in a registration of at least twice the size
 * (at most 1 GiB and a quarter of max_bytes). The registrations that the larger one contains are dropped, and unpinned
 * when their uses have ended. After merging, a change drops more memory from the cache.
 */
#define PINDOWN_MERGE 8u

/* The configuration of a cache. Begin with PINDOWN_ATTR_INIT and set at least pin and unpin. */
struct pindown_attr {
	/* sizeof(struct pindown_attr). */
	size_t size;
	pindown_pin_fn pin;
	pindown_unpin_fn unpin;
	/*
	 * The first argument of every callback. May be null; pindown does not dereference it. Must be valid until
	 * pindown_close.
	 */
	void *context;
	/*
	 * The name of the monitor, which reports memory changes. Null is "best". The name ends with a zero byte and is
	 * not needed after pindown_open.
	 *
	 * "best"         the first of these that is available, down to "none"; pindown_monitor_why returns the reason
	 * "bpf"          keeps every kind of memory that can be pinned, with few exceptions; requires root, or pindown-helper
	 *                (at /run/pindown/helper.sock, or the path in the environment variable PINDOWN_SOCKET)
	 * "userfaultfd"  keeps private anonymous memory (see PINDOWN_NO_UNSEEN_CHANGES) and sealed memory; a hit makes a
	 *                system call. Without PINDOWN_CHECK_RIGHTS, keeps a registration even after mprotect(2)
	 * "sealed"       keeps memory of pindown_alloc, which cannot change
	 * "imported"     keeps memory if the application reports its changes with pindown_changed. Never selected by "best"
	 * "none"         keeps no registration: each is for one use
	 */
	const char *monitor;
	/* The maximum number of bytes that are kept. */
	uint64_t max_bytes;
	/* The maximum number of registrations that are kept. With 0, each registration is for one use. */
	uint32_t max_count;
	/* PINDOWN_NO_UNSEEN_CHANGES and the other flags above, or 0. */
	uint32_t flags;
	/* If null, the application reports changes of all memory. */
	pindown_answers_fn answers;
};

#define PINDOWN_ATTR_INIT \
	{ sizeof(struct pindown_attr), NULL, NULL, NULL, NULL, PINDOWN_NO_LIMIT, PINDOWN_DEFAULT_COUNT, 0, NULL }

/*
 * Opens a cache, and writes it to `*cache`. Any thread. A process may open any number of caches.
 *
 * -EINVAL      no pin or unpin, an unknown monitor or flag, a wrong size, more registrations than a cache can keep
 * -E2BIG       attr contains a setting that this version does not have
 * -EOPNOTSUPP  this build does not contain the monitor, or this kernel does not support it
 * others       errors of the kernel for the monitor, or for membarrier(2), which a cache needs
 */
int pindown_open(const struct pindown_attr *attr, struct pindown_cache **cache);

/*
 * Closes a cache and unpins everything that it holds, including registrations of pindown_register. No other function of
 * this cache may be running or be called later.
 *
 * -EBUSY   lanes are open; the cache stays open
 *
 * In a forked child: frees the child's memory and unpins nothing.
 */
int pindown_close(struct pindown_cache *cache);

/*
 * Returns the name of the monitor in use: never "best"; "userfaultfd-plain" is userfaultfd of Linux 5.18 to 6.6. Valid
 * until pindown_close; null for a null cache. Any thread.
 */
const char *pindown_monitor(const struct pindown_cache *cache);

/*
 * Returns the reason why this monitor was selected, as text: the monitors that were tried before it, and why each of
 * them is not available. Valid as for pindown_monitor.
 */
const char *pindown_monitor_why(const struct pindown_cache *cache);

/*
 * Returns the reason why the last failed call of this thread failed, as text; "" if none has failed. Valid until the
 * next call of this thread that fails.
 */
const char *pindown_last_error(void);

/* ---- using registrations ---------------------------------------------------------------------------------------------- */

/* Opens a lane, and writes it to `*lane`. Any thread; another thread may use the lane afterwards. */
int pindown_lane_open(struct pindown_cache *cache, struct pindown_lane **lane);

/*
 * Closes a lane. Uses of registrations that were made for one use may still be under way. They can no longer be ended
 * and stay pinned until pindown_close, so end them first.
 *
 * -EBUSY   uses are under way; the lane stays open
 */
int pindown_lane_close(struct pindown_lane *lane);

/*
 * A registration while an operation uses it. This structure never changes, because comparing a size would slow down each
 * hit.
 */
struct pindown_use {
	/* The local key from the pin callback, for work requests of this process. */
	uint64_t local_key;
	/* The remote key, for peers. */
	uint64_t remote_key;
	/* Used by pindown to end the use. 0 after that. */
	uint64_t ticket;
};

#define PINDOWN_USE_INIT \
	{ 0, 0, 0 }

/* A bit of pindown_use.ticket: the registration is for this use only, and is unpinned when the use ends. */
#define PINDOWN_USE_SINGLE (UINT64_C(1) << 33)
/* Another bit: the use is held (pindown_hold). */
#define PINDOWN_USE_HELD (UINT64_C(1) << 34)

/*
 * Gets a registration of `length` bytes from `address` with at least the rights `access` (enum pindown_access, or 0).
 * Returns a registration of the cache if one covers the memory that is mapped there now. Otherwise makes a new one,
 * which is kept if its memory can be watched and the limits allow it. Fills in `use`. The pages stay pinned until
 * pindown_end, even if the process changes its address space meanwhile. Until then no registration that is removed from
 * the cache after this call is unpinned, unless the use is held (pindown_hold).
 *
 * Only one thread at a time may call this for a lane. Any number of uses may be under way.
 *
 * -ECHILD   the cache belongs to this process's parent
 * others    the value that the pin callback returned; nothing remains pinned
 */
int pindown_get(struct pindown_lane *lane, const void *address, size_t length, uint32_t access, struct pindown_use *use);

/*
 * Holds a use for an operation that may take a long time, because it waits for a peer or a device. Call this when the
 * operation has been posted. A registration that was removed from the cache is unpinned only when all uses of any
 * registration that began earlier have ended; a held use keeps only its own registration pinned. Has no effect on a use
 * that is already held, or whose registration is for this use only (PINDOWN_USE_SINGLE). Must be called for the lane
 * that returned the use, by one thread at a time for a lane. Earlier copies of the structure are invalid afterwards.
 *
 * -EINVAL   the use has ended, or belongs to another lane
 */
int pindown_hold(struct pindown_lane *lane, struct pindown_use *use);

/*
 * Ends a use, after its operation has completed. Must be called for the lane that returned the use, by one thread at a
 * time for a lane. The structure may have been copied; only one copy may be ended.
 *
 * -EINVAL   the use has ended, or belongs to another lane
 */
int pindown_end(struct pindown_lane *lane, struct pindown_use *use);

/*
 * Processes the changes that the monitor has reported, and unpins registrations that are no longer used. pindown_get
 * also does this whenever it registers memory. A program that has stopped using the cache calls this function to
 * release the memory. Any thread.
 */
int pindown_sweep(struct pindown_cache *cache);

/* Drops all registrations of pindown_get. Those in use are unpinned by a later call, after their uses have ended. */
int pindown_flush(struct pindown_cache *cache);

/* Statistics since the cache was opened. Begin with PINDOWN_STATS_INIT. */
struct pindown_stats {
	/* sizeof(struct pindown_stats), set by the caller. */
	size_t size;
	/* Look-ups that found a registration without a lock. */
	uint64_t hits;
	/*
	 * Look-ups that found a registration under the lock: after a change, or at a new address in a registered range.
	 */
	uint64_t slow_hits;
	/* Look-ups that made a registration that was kept. */
	uint64_t misses;
	/* Look-ups that failed because the registrar returned an error. */
	uint64_t failures;
	/* Registrations dropped to make room. */
	uint64_t evictions;
	/* Registrations dropped because their memory changed, the process lost a right, or all were dropped. */
	uint64_t invalidations;
	/* The number of times that all registrations were dropped because the changed addresses were unknown. */
	uint64_t flushes;
	/* Registrations of pindown_register that were not deregistered. */
	uint64_t own;
	/* Registrations that are kept now, and their bytes. */
	uint64_t entries;
	uint64_t bytes;
	/*
	 * Registrations removed from the cache but not yet unpinned, because their last use has not ended or has not
	 * been checked; and their bytes.
	 */
	uint64_t retired;
	uint64_t retired_bytes;
	/* Look-ups that made a registration for one use, by enum pindown_reason. */
	uint64_t single_not_caching;
	uint64_t single_too_large;
	uint64_t single_not_watchable;
	uint64_t single_in_use;
	uint64_t single_changed;
	/* The monitor may have missed changes, so no more registrations are kept. */
	uint64_t single_monitor_ended;
};

#define PINDOWN_STATS_INIT \
	{ sizeof(struct pindown_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/*
 * Fills in the fields of `*stats` that its size has room for; fields that this version does not count are 0. Any
 * thread.
 */
int pindown_read_stats(struct pindown_cache *cache, struct pindown_stats *stats);

/* ---- registrations that the application manages ------------------------------------------------------------------------ */

/* The reasons why a registration is for one use only, or why its changes will not be reported. */
enum pindown_reason {
	/* No reason: changes are reported. */
	PINDOWN_WATCHED = 0,
	/*
	 * The cache keeps no registration: it has no monitor, or its limits allow none. Or the kernel has rejected
	 * membarrier(2) since the cache was opened, and an unused lane prevents removed registrations from being unpinned.
	 */
	PINDOWN_NOT_CACHING = 1,
	/* The range alone is larger than the limit of bytes, or is at the end of the address space. */
	PINDOWN_TOO_LARGE = 2,
	/* The monitor cannot report all changes of this kind of memory. */
	PINDOWN_NOT_WATCHABLE = 3,
	/* The registrations in use leave no room within the cache's limits. */
	PINDOWN_IN_USE = 4,
	/* The memory changed, or may have changed, while it was being registered. */
	PINDOWN_CHANGED = 5,
	/* The monitor may have missed changes, so no more registrations are kept. */
	PINDOWN_MONITOR_ENDED = 6
};

/* Returns a reason as text; null for an unknown one. Any thread. */
const char *pindown_reason_text(uint32_t reason);

/* The result of pindown_register. Begin with PINDOWN_REGISTRATION_INIT. */
struct pindown_registration {
	/* sizeof(struct pindown_registration), set by the caller. */
	size_t size;
	/*
	 * The handle that pindown_deregister takes and pindown_check returns. It needs all 64 bits. A process never uses
	 * a handle again, in any cache.
	 */
	uint64_t handle;
	uint64_t local_key;
	uint64_t remote_key;
	/* enum pindown_reason. If it is not PINDOWN_WATCHED, changes of this memory are never reported. */
	uint32_t unwatched;
	/* Always 0. */
	uint32_t reserved;
};

#define PINDOWN_REGISTRATION_INIT \
	{ sizeof(struct pindown_registration), 0, 0, 0, 0, 0 }

/*
 * Pins `length` bytes from `address` with the rights `access` until pindown_deregister, and fills in the fields of
 * `registration` that its size has room for. Registrations may overlap; each has its own handle. pindown_get does not return them, and a change does not unpin
 * them: pindown_check returns the handles of those that must not be used again. Any thread.
 *
 * -EINVAL   also if registration->size is wrong
 * -ECHILD   the cache belongs to this process's parent
 * others    the value that the pin callback returned; nothing remains pinned
 */
int pindown_register(struct pindown_cache *cache, const void *address, size_t length, uint32_t access,
                     struct pindown_registration *registration);

/*
 * Unpins a registration, even if it was reported as changed. No operation may use it any more. Any thread.
 *
 * -ENOENT   no registration has this handle (any more)
 */
int pindown_deregister(struct pindown_cache *cache, uint64_t handle);

/*
 * Returns a registration of memory that changed before this call. Each registration is returned once. Does not wait for
 * changes. To avoid using a stale registration, call this function before each use of one, until it returns 0. Any
 * thread.
 *
 * Returns 1 and fills in `*handle`, or 0 if there is none.
 */
int pindown_check(struct pindown_cache *cache, uint64_t *handle);

/*
 * Waits until pindown_check would return a registration, for at most `timeout_ms` milliseconds, or without a limit if
 * it is -1. Any thread; if several threads wait, each registration is returned to one of them.
 *
 * Returns 1 and fills in `*handle`, or 0 after the timeout.
 *
 * -ECANCELED   pindown_interrupt was called
 */
int pindown_wait(struct pindown_cache *cache, int timeout_ms, uint64_t *handle);

/* Ends one wait: one that is under way, or otherwise the next one. Each call ends another wait. Any thread. */
int pindown_interrupt(struct pindown_cache *cache);

/* ---- the application's own monitor: "imported" ------------------------------------------------------------------------- */

/*
 * Reports that the memory of these bytes has changed. Must be called after the old pages can no longer be pinned, and
 * before other memory there is visible: between munmap(2) and the next mapping of these addresses. Any thread. Takes no
 * lock, allocates no memory (except on failure), and never waits.
 *
 * -EINVAL   the monitor is not "imported"; or the range is invalid (empty, or past the last address), in which case all
 *           memory is reported as changed, because the changed addresses are unknown
 */
int pindown_changed(struct pindown_cache *cache, const void *address, size_t length);

/* Like pindown_changed, but for all addresses. */
int pindown_changed_everything(struct pindown_cache *cache);

/* ---- sealed memory ----------------------------------------------------------------------------------------------------- */

/*
 * Allocates memory that cannot change: at least `length` bytes, zeroed, at the start of a page, and writes its address
 * to `*memory`. No code in the process can unmap, move, replace or protect it, so the monitors "sealed" and
 * "userfaultfd" need not watch it, and the cache can keep registrations of it. The memory is shared with children made
 * by fork(2), and is never returned to the kernel. Any thread.
 *
 * -ENOMEM      no memory
 * -EOPNOTSUPP  the kernel cannot seal mappings: mseal(2) requires Linux 6.10
 * -ECHILD      the process is a forked child of a process that has allocated sealed memory, and shares that memory
 */
int pindown_alloc(size_t length, void **memory);

/*
 * Frees memory of pindown_alloc, for reuse by a later pindown_alloc. Operations that use it must have ended.
 * Registrations of it stay in the cache, and are valid for the next owner. Null has no effect. Any thread.
 *
 * -EINVAL   not the start of memory that pindown_alloc returned
 * -ECHILD   as for pindown_alloc
 */
int pindown_free(void *memory);

/* ---- function table ---------------------------------------------------------------------------------------------------- */

/*
 * The functions above, under their names without "pindown_" (`register` is a keyword of C). A library that contains
 * pindown but does not export these names passes this table to its callers. Members after `size` bytes do not exist.
 */
struct pindown_functions {
	size_t size;
	uint32_t (*version)(void);
	int (*open)(const struct pindown_attr *attr, struct pindown_cache **cache);
	int (*close)(struct pindown_cache *cache);
	const char *(*monitor)(const struct pindown_cache *cache);
	const char *(*monitor_why)(const struct pindown_cache *cache);
	const char *(*last_error)(void);
	int (*lane_open)(struct pindown_cache *cache, struct pindown_lane **lane);
	int (*lane_close)(struct pindown_lane *lane);
	int (*get)(struct pindown_lane *lane, const void *address, size_t length, uint32_t access, struct pindown_use *use);
	int (*end)(struct pindown_lane *lane, struct pindown_use *use);
	int (*sweep)(struct pindown_cache *cache);
	int (*flush)(struct pindown_cache *cache);
	int (*read_stats)(struct pindown_cache *cache, struct pindown_stats *stats);
	const char *(*reason_text)(uint32_t reason);
	int (*register_memory)(struct pindown_cache *cache, const void *address, size_t length, uint32_t access,
	                       struct pindown_registration *registration);
	int (*deregister)(struct pindown_cache *cache, uint64_t handle);
	int (*check)(struct pindown_cache *cache, uint64_t *handle);
	int (*wait)(struct pindown_cache *cache, int timeout_ms, uint64_t *handle);
	int (*interrupt)(struct pindown_cache *cache);
	int (*changed)(struct pindown_cache *cache, const void *address, size_t length);
	int (*changed_everything)(struct pindown_cache *cache);
	int (*alloc)(size_t length, void **memory);
	int (*free)(void *memory);
	int (*hold)(struct pindown_lane *lane, struct pindown_use *use);
};

/* For a table of the application, for example one of wrappers. */
#define PINDOWN_FUNCTIONS_INIT \
	{ sizeof(struct pindown_functions), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
	  NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

#ifdef __cplusplus
}
#endif

#endif
