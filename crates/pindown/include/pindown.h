/*
 * pindown: a registration cache that is never wrong.
 *
 * Devices that reach memory by themselves (RDMA adapters, GPUs, io_uring's fixed buffers) want it pinned. Pinning is slow,
 * so a cache keeps memory pinned between transfers. A registration is *stale* once the process has given the address other
 * memory: the device still reaches the old pages, and no error is reported. pindown serves a registration only while the memory
 * at its addresses is still the memory that was pinned, and registers anew, or for one use only, where it cannot know that.
 *
 * For all functions:
 *
 * - Functions that return int return 0 or more, or a negative errno; pindown_last_error() then returns the reason as text.
 *   -EINVAL stands for a null pointer, an empty range, one that goes past the last address, and unknown bits.
 * - Addresses are those of this process, lengths are bytes. What is pinned is whole pages.
 * - A cache may be used by any number of threads at once, a lane by one at a time. Nothing may be called in a signal handler.
 * - In a child that fork(2) made, the parent's caches cannot be used: their functions return -ECHILD and touch nothing of the
 *   parent's. The child opens caches of its own. (MON-019)
 * - A pointer that is neither null nor valid, or that was closed before, is undefined behaviour, as it is in free(3).
 * - Structures with a first field `size` may grow in later versions: set it to the structure's sizeof.
 * - No C++ exception may leave a callback.
 *
 * Names such as MON-036 and RCACHE-007 are the requirements that a function implements (docs/requirements.md).
 */
#ifndef PINDOWN_H
#define PINDOWN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header: major, minor and patch, 8 bits each, from the top. */
#define PINDOWN_VERSION 0x000100u

/* The version of the library, in the same form. Any thread. */
uint32_t pindown_version(void);

/* A cache. */
struct pindown_cache;

/* One user of a cache: a thread, or an endpoint that one thread at a time drives. */
struct pindown_lane;

/*
 * Rights of a registration. A device always may read the memory that it sends from.
 */
enum pindown_access {
	/* The device of this process writes here: receives, reads of others' memory. */
	PINDOWN_LOCAL_WRITE = 1 << 0,
	/* Peers read from here. */
	PINDOWN_REMOTE_READ = 1 << 1,
	/* Peers write here. Implies nothing else; a device may ask for PINDOWN_LOCAL_WRITE too. */
	PINDOWN_REMOTE_WRITE = 1 << 2,
	/* Peers make atomic operations here. */
	PINDOWN_REMOTE_ATOMIC = 1 << 3,
};

/* ---- the registrar: pins and unpins memory; implemented by the application -------------------------------------------- */

/* What a pin callback fills in. */
struct pindown_pinned {
	/* What work requests of this process name the memory by. */
	uint64_t local_key;
	/* What peers name it by. */
	uint64_t remote_key;
	/* Whatever the unpin callback needs. Never followed by pindown; may be null. */
	void *pin;
};

/*
 * Pins `length` bytes from `address` (whole pages) so that their physical pages stay where they are (MON-052), and fills in
 * `pinned`.
 *
 * Returns 0, or a negative errno, which the function that needed the registration returns; any other value counts as -EIO.
 * On -ENOMEM, -EAGAIN, -ENOSPC and -EDQUOT idle registrations are unpinned first, and the callback is called again
 * (RCACHE-023).
 *
 * Called by the threads that use the cache, by several at once, never with a lock held. It may call any function of
 * pindown but those of the lane that it is called for.
 */
typedef int (*pindown_pin_fn)(void *context, void *address, size_t length, uint32_t access, struct pindown_pinned *pinned);

/* Unpins what the pin callback pinned: called once for each. It cannot fail. Called under the same rules as the pin callback. */
typedef void (*pindown_unpin_fn)(void *context, void *pin);

/*
 * Returns whether the application will report changes of these bytes with pindown_changed (not 0) or not (0). Bytes
 * that it does not answer for are registered for one use. For the monitor "imported" alone.
 */
typedef int (*pindown_answers_fn)(void *context, const void *address, size_t length, uint32_t access);

/* ---- opening ---------------------------------------------------------------------------------------------------------- */

/* pindown_attr.max_bytes: no limit. */
#define PINDOWN_NO_LIMIT UINT64_MAX

/* pindown_attr.max_count: the library's default (1,024). */
#define PINDOWN_DEFAULT_COUNT UINT32_MAX

/*
 * pindown_attr.flags: no code in this process, its libraries included, ever installs guard pages (MADV_GUARD_INSTALL, Linux
 * 6.13) in memory that is registered, nor attaches a System V segment over it (shmat with SHM_REMAP). userfaultfd does not
 * report those, so without this promise it keeps sealed memory only.
 */
#define PINDOWN_NO_UNSEEN_CHANGES 1u

/*
 * pindown_attr.flags: with userfaultfd, each hit asks the kernel by a second system call whether the process still has the
 * rights that the registration was made with; one that outlived a right is dropped (MON-014). Other monitors are
 * notified of mprotect(2), or need not be, and ignore this flag.
 */
#define PINDOWN_CHECK_RIGHTS 2u

/*
 * pindown_attr.flags: instead of PINDOWN_NO_UNSEEN_CHANGES (which prevails): with userfaultfd, what is kept is locked
 * (mlock2(2) with MLOCK_ONFAULT), so that the kernel refuses guard pages there; the application promises that no code in the
 * process attaches a System V segment over registered memory, nor unlocks it (munlock, munlockall).
 *
 * MADV_DONTNEED, MADV_FREE and MADV_REMOVE then answer EINVAL there (MON-031 is not held): mind allocators, and code that
 * drops pages to find zeros. The memory is unlocked when its last registration is unpinned, unless it was locked before it was
 * registered. The locks count against RLIMIT_MEMLOCK, and memory that it leaves no room for is registered for one use.
 */
#define PINDOWN_REFUSE_GUARDS 4u

/*
 * pindown_attr.flags: a miss registers, together with its pages, kept ones with the same rights that overlap or adjoin them, as
 * long as each page is registered again only into a registration of at least twice the size (1 GiB and a quarter of max_bytes
 * at most). What the larger one holds is dropped, and unpinned when its uses have ended. A change then drops more.
 */
#define PINDOWN_MERGE 8u

/* The configuration of a cache. Begin with PINDOWN_ATTR_INIT and set at least pin and unpin. */
struct pindown_attr {
	/* sizeof(struct pindown_attr). */
	size_t size;
	pindown_pin_fn pin;
	pindown_unpin_fn unpin;
	/* The first argument of every callback. May be null; pindown does not follow it. Must be good until pindown_close. */
	void *context;
	/*
	 * The name of the monitor, which reports memory changes. Null is "best". The name ends with a zero byte and is not
	 * needed after pindown_open.
	 *
	 * "best"         the first of these that works here, down to "none"; pindown_monitor_why returns the reason
	 * "bpf"          keeps every kind of memory that can be pinned, with few exceptions; root, or pindown-helper
	 * "userfaultfd"  keeps private anonymous memory (see PINDOWN_NO_UNSEEN_CHANGES) and sealed memory; a hit makes a system
	 *                call. Keeps a registration through mprotect(2) (MON-014 is not held) without PINDOWN_CHECK_RIGHTS
	 * "sealed"       keeps memory of pindown_alloc, which cannot change
	 * "imported"     keeps what the application answers for; it calls pindown_changed. Never chosen by "best"
	 * "none"         keeps nothing: every registration is for one use
	 */
	const char *monitor;
	/* Bytes that are kept at most (RCACHE-005, RCACHE-006). */
	uint64_t max_bytes;
	/* Registrations that are kept at most (RCACHE-007, RCACHE-008); 0: none is, each is for one use (RCACHE-009). */
	uint32_t max_count;
	/* PINDOWN_NO_UNSEEN_CHANGES and the other flags above, or 0. */
	uint32_t flags;
	/* Null: the application answers for all memory. */
	pindown_answers_fn answers;
};

#define PINDOWN_ATTR_INIT \
	{ sizeof(struct pindown_attr), NULL, NULL, NULL, NULL, PINDOWN_NO_LIMIT, PINDOWN_DEFAULT_COUNT, 0, NULL }

/*
 * Opens a cache, and writes it to `*cache`. Any thread. (MON-035: as many as wanted in a process; MON-041; RCACHE-011,
 * RCACHE-014)
 *
 * -EINVAL      no pin or unpin, an unknown monitor or flag, a wrong size, more registrations than a cache can keep
 * -E2BIG       something is set in attr that this version does not know
 * -EOPNOTSUPP  the monitor is not in this version, or this kernel cannot
 * others       errors of the kernel for the monitor, or for membarrier(2), which a cache needs
 */
int pindown_open(const struct pindown_attr *attr, struct pindown_cache **cache);

/*
 * Closes a cache and unpins everything that it holds, registrations of pindown_register too (MON-041). Of one cache, no
 * other function may be running or be called later.
 *
 * -EBUSY   lanes are open; the cache stays open
 *
 * In a forked child: gives the child's memory back and unpins nothing.
 */
int pindown_close(struct pindown_cache *cache);

/*
 * The name of the monitor in use: never "best"; "userfaultfd-plain" is userfaultfd of Linux 5.18 to 6.6. Good until
 * pindown_close; null for a null cache. Any thread.
 */
const char *pindown_monitor(const struct pindown_cache *cache);

/* Why this monitor was chosen, as text: which monitors were tried before, and why each is not available. Valid as for pindown_monitor. */
const char *pindown_monitor_why(const struct pindown_cache *cache);

/*
 * The reason, as text, why the last failed call of this thread failed; "" if none has failed. Good until the next call
 * of this thread that fails.
 */
const char *pindown_last_error(void);

/* ---- using registrations ---------------------------------------------------------------------------------------------- */

/*
 * Opens a lane, and writes it to `*lane`. Any thread; the lane may then be used by another. (RCACHE-026)
 */
int pindown_lane_open(struct pindown_cache *cache, struct pindown_lane **lane);

/*
 * Closes a lane. Uses of registrations that were made for one use may still be under way; they cannot be ended any more and
 * stay pinned until pindown_close: end them first.
 *
 * -EBUSY   uses are under way; the lane stays open
 */
int pindown_lane_close(struct pindown_lane *lane);

/* A registration while an operation uses it. */
struct pindown_use {
	/* What work requests of this process name the memory by: the pin callback's. */
	uint64_t local_key;
	/* What peers name it by. */
	uint64_t remote_key;
	/* pindown's own: what ends the use. 0 after that. */
	uint64_t ticket;
};

/* A bit of pindown_use.ticket: the registration was made for this use alone, and is undone when it ends. */
#define PINDOWN_USE_SINGLE (UINT64_C(1) << 33)
/* Another: the use is held (pindown_hold). */
#define PINDOWN_USE_HELD (UINT64_C(1) << 34)

/*
 * Gets a registration of `length` bytes from `address` with at least the rights `access` (enum pindown_access, or 0): one that
 * the cache has, if it is of the memory that is there now (RCACHE-001, RCACHE-003, RCACHE-021, MON-013), else a new one, which
 * is kept if it can be watched and fits (RCACHE-004). Fills in `use`. The pages stay pinned until pindown_end, whatever the
 * process does to its address space meanwhile (MON-050). Until then no registration that leaves the cache is unpinned, unless
 * the use is held (pindown_hold).
 *
 * To be called by one thread at a time for a lane. Any number of uses may be under way.
 *
 * -ECHILD   the cache is this process' parent's
 * others    what the pin callback returned; nothing remains pinned
 */
int pindown_get(struct pindown_lane *lane, const void *address, size_t length, uint32_t access, struct pindown_use *use);

/*
 * Holds a use for an operation that may last, because it waits for a peer or a device: call this when the operation has been
 * posted. What has left the cache is unpinned when the uses that began earlier have ended, whichever registrations they use; a
 * held use keeps only its own registration pinned (RCACHE-010, RCACHE-023). A use that is held already, or that is single,
 * stays as it is. To be called for the lane that gave the use, by one thread at a time for a lane; copies of the structure that
 * were made before are void.
 *
 * -EINVAL   the use has ended, or belongs to another lane
 */
int pindown_hold(struct pindown_lane *lane, struct pindown_use *use);

/*
 * Ends a use, after its operation has completed. To be called for the lane that gave the use, by one thread at a time
 * for a lane. The structure may have been copied meanwhile; only one copy may be ended.
 *
 * -EINVAL   the use has ended, or belongs to another lane
 */
int pindown_end(struct pindown_lane *lane, struct pindown_use *use);

/*
 * Processes the changes that the monitor has reported, and unpins registrations that are no longer used (MON-054). pindown_get
 * does this too whenever it registers; a program that has stopped using the cache calls this function to release the memory.
 * Any thread.
 */
int pindown_sweep(struct pindown_cache *cache);

/* Drops every registration of pindown_get; those in use are unpinned when their uses have ended, at one of the next calls. */
int pindown_flush(struct pindown_cache *cache);

/* Counts since the cache was opened. */
struct pindown_stats {
	/* sizeof(struct pindown_stats), set by the caller. */
	size_t size;
	/* Look-ups that found a registration without a lock. */
	uint64_t hits;
	/* Look-ups that found one behind the lock: after a change, or at a new place of a registered range. */
	uint64_t slow_hits;
	/* Look-ups that made a registration and kept it. */
	uint64_t misses;
	/* Look-ups that the registrar refused. */
	uint64_t failures;
	/* Registrations dropped for want of room. */
	uint64_t evictions;
	/* Registrations dropped because their memory changed, or with all others. */
	uint64_t invalidations;
	/* How often everything was dropped because it was not known what had changed. */
	uint64_t flushes;
	/* Registrations of pindown_register that were not undone. */
	uint64_t own;
	/* Registrations kept now, and their bytes. */
	uint64_t entries;
	uint64_t bytes;
	/* Registrations taken out of the cache but not yet unpinned, because their last use has not ended or has not been checked, and their bytes. */
	uint64_t retired;
	uint64_t retired_bytes;
	/* Look-ups that made a registration for one use, by enum pindown_reason. */
	uint64_t single_not_caching;
	uint64_t single_too_large;
	uint64_t single_not_watchable;
	uint64_t single_in_use;
	uint64_t single_changed;
	/* The monitor may have missed changes: nothing is kept any more. */
	uint64_t single_monitor_ended;
};

/*
 * Fills in as much of `*stats` as its size has room for; fields that this version does not count are 0. Any thread.
 * (RCACHE-022)
 */
int pindown_read_stats(struct pindown_cache *cache, struct pindown_stats *stats);

/* ---- registrations of the application's own ---------------------------------------------------------------------------- */

/* Why a registration is for one use only, or its changes will not be reported. */
enum pindown_reason {
	/* No reason: changes are reported. */
	PINDOWN_WATCHED = 0,
	/*
	 * The cache keeps nothing: no monitor, no room by its limits, or the kernel refuses membarrier(2) since the cache was
	 * opened and a lane that is not used holds up what was taken out.
	 */
	PINDOWN_NOT_CACHING = 1,
	/* The range alone is larger than the limit of bytes. */
	PINDOWN_TOO_LARGE = 2,
	/* The monitor cannot report all changes of this kind of memory. */
	PINDOWN_NOT_WATCHABLE = 3,
	/* All that may be kept is in use. */
	PINDOWN_IN_USE = 4,
	/* The memory changed, or may have, while it was being registered. */
	PINDOWN_CHANGED = 5,
	/* The monitor may have missed changes: nothing is kept any more. */
	PINDOWN_MONITOR_ENDED = 6,
};

/* A reason as text; null for an unknown one. Any thread. */
const char *pindown_reason_text(uint32_t reason);

/* What pindown_register made. */
struct pindown_registration {
	/* What pindown_deregister takes and pindown_check gives. Any value is possible; it is never used again for another. */
	uint64_t handle;
	uint64_t local_key;
	uint64_t remote_key;
	/* enum pindown_reason. Unless PINDOWN_WATCHED: changes of this memory are never reported. */
	uint32_t unwatched;
	/* 0. */
	uint32_t reserved;
};

/*
 * Pins `length` bytes from `address` with the rights `access` until pindown_deregister, and fills in `registration` (MON-036,
 * MON-037). Registrations may overlap; each has its own handle (MON-038). They are not served by pindown_get, and no change
 * undoes them (RCACHE-027): pindown_check returns those that must not be used again. Any thread.
 *
 * -ECHILD   the cache is this process' parent's
 * others    what the pin callback returned; nothing remains pinned (MON-040)
 */
int pindown_register(struct pindown_cache *cache, const void *address, size_t length, uint32_t access,
                     struct pindown_registration *registration);

/*
 * Unpins a registration, also one that was reported as changed (MON-036, MON-039). No operation may use it any more.
 * Any thread.
 *
 * -ENOENT   no registration has this handle (any more)
 */
int pindown_deregister(struct pindown_cache *cache, uint64_t handle);

/*
 * Returns a registration with memory that changed before this call, each registration once (MON-043 to MON-047). It does not
 * wait for changes. Calling it before each use of a registration, until it returns 0, is enough to never use a stale one. Any
 * thread.
 *
 * Returns 1 and fills in `*handle`, or 0 if there is none.
 */
int pindown_check(struct pindown_cache *cache, uint64_t *handle);

/*
 * Waits until pindown_check would return a registration (MON-048, MON-049), `timeout_ms` milliseconds at most; -1: for ever.
 * Any thread; if several threads wait, each registration is returned to one of them.
 *
 * Returns 1 and fills in `*handle`, or 0 after the timeout.
 *
 * -ECANCELED   pindown_interrupt was called
 */
int pindown_wait(struct pindown_cache *cache, int timeout_ms, uint64_t *handle);

/* Ends one wait, now or the next one to come (MON-051). Any thread. */
int pindown_interrupt(struct pindown_cache *cache);

/* ---- the application's own monitor: "imported" ------------------------------------------------------------------------- */

/*
 * Reports that the memory of these bytes is no longer what it was. Must be called after the old pages can no longer be
 * pinned, and before other memory is seen there: between munmap(2) and whatever maps the addresses again. Any thread;
 * takes no lock, allocates nothing (unless it fails), never waits. (RCACHE-020, RCACHE-021)
 *
 * -EINVAL   the monitor is not "imported"; or there is no such range (no byte, or past the last address): then everything counts
 *           as changed, since something has
 */
int pindown_changed(struct pindown_cache *cache, const void *address, size_t length);

/* Like pindown_changed, but for all addresses. */
int pindown_changed_everything(struct pindown_cache *cache);

/* ---- sealed memory ----------------------------------------------------------------------------------------------------- */

/*
 * Allocates memory that cannot change: at least `length` bytes, zeroed, at the beginning of a page, written to `*memory`. No
 * code in the process can unmap, move, replace or protect it, so registrations of it need no watching: the monitors "sealed"
 * and "userfaultfd" keep them permanently. It is shared with children that fork(2) makes, and never goes back to the kernel.
 * Any thread.
 *
 * -ENOMEM      no memory
 * -EOPNOTSUPP  the kernel cannot seal mappings: mseal(2) came with Linux 6.10
 * -ECHILD      the process that this one is a fork of has taken some: what it has, this one shares
 */
int pindown_alloc(size_t length, void **memory);

/*
 * Frees memory of pindown_alloc, for reuse by the next pindown_alloc. Operations that use it must have ended; registrations of
 * it remain, and remain valid for the next owner. Null does nothing. Any thread.
 *
 * -EINVAL   not the beginning of memory that pindown_alloc gave
 * -ECHILD   as for pindown_alloc
 */
int pindown_free(void *memory);

/* ---- all of them in a table -------------------------------------------------------------------------------------------- */

/*
 * The functions above, under their names without "pindown_" (`register` is a word of C's). A library that has pindown inside
 * and exports none of these names gives its callers such a table; members after `size` bytes are not there.
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

#ifdef __cplusplus
}
#endif

#endif
