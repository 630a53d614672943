/*
 * walk: calls every entry of every table of the provider with unusual but legal arguments, and closes objects in many
 * orders, at all threading levels and API versions. It runs under AddressSanitizer and UndefinedBehaviorSanitizer, with
 * a provider that is instrumented in the same way, to find memory errors. `cargo xtask walk` builds and runs it.
 *
 *   main.c        arguments, one process for each case, the summary
 *   library.c     libfabric, through the symbol versions that programs of an API version are linked with
 *   tables.c      counts the calls of table entries, and names the entries that were never called
 *   world.c       open objects, the memory of operations, closing in an order
 *   orders.c      the orders
 *   scenarios.c, connected.c, registered.c, grouped.c, waited.c, deferred.c    the scenarios
 *   stir.c        posts operations of every kind and reads some results
 *   odd.c, odd_queues.c, odd_endpoints.c    unusual but legal arguments, by class of object
 *   threads.c     two threads
 *   forked.c      forked children
 */
#ifndef WALK_H
#define WALK_H

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_trigger.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* The size of an address of any format that the provider supports. */
#define NAME 64

/* ---- main.c ---- */

/* The settings of a case. */
struct setting {
	uint32_t api;
	enum fi_threading level;
	bool tcp;
	uint64_t seed;
};
extern struct setting setting;

/* Reports an error and ends the process, because later checks would be useless. */
void wrong(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));
/* Reports an error and continues. The case has failed. */
void complain(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Returns a number below `bound`, derived from the case's seed. */
uint64_t below(uint64_t bound);
bool sometimes(void);

#define MUST(condition, ...)                                  \
	do {                                                  \
		if (!(condition))                             \
			wrong(__FILE__, __LINE__, #condition ": " __VA_ARGS__); \
	} while (0)

#define CHECK(condition, ...)                                 \
	do {                                                  \
		if (!(condition))                             \
			complain(__FILE__, __LINE__, #condition ": " __VA_ARGS__); \
	} while (0)

/* A call that must succeed, because the case depends on it. */
#define NEEDS(call)                                                                    \
	do {                                                                           \
		long long got_ = (long long)(call);                                    \
		if (got_ != 0)                                                         \
			wrong(__FILE__, __LINE__, "%s = %lld (%s)", #call, got_, code_text(got_)); \
	} while (0)

const char *code_text(long long code);

/* The counts of cases, shared by all processes. */
struct totals {
	uint64_t calls, cases, closings, refusals, orders, wrong;
};
extern struct totals *totals;

/* ---- library.c ---- */

/* Loads libfabric from this directory, or the system's if it is NULL. */
void load_library(const char *directory);
/* Returns the newest API version that libfabric supports. */
uint32_t newest_api(void);
struct fi_info *hints_of(enum fi_ep_type type, uint64_t caps);
/* Returns the first result, or NULL if there is none. */
struct fi_info *answer(const char *node, const char *service, uint64_t flags, const struct fi_info *hints);
void library_calls(void);

/* The sizes of structures in programs of the case's API version. */
size_t error_entry_size(void);
size_t region_attr_size(void);
size_t queue_attr_size(void);
size_t counter_attr_size(void);
/* Copies bytes into a heap allocation of exactly this size, so that an access beyond its end is reported. */
void *exactly(size_t size, const void *bytes, size_t given);

/* ---- tables.c ---- */

/* Counts the calls of an object's tables from now on. */
void adopt(struct fid *fid);
/* Like adopt, for a table of functions that belongs to no object and begins with its size. */
void *adopt_table(const char *type, void *table, size_t entries);
/* Allocates the shared memory for the counts. */
void share_counts(void);
void add_up_counts(void);
/* Returns the number of entries. With `show`, prints those that were never called and counts them in `missed`. */
size_t report_entries(size_t *missed, bool show);
/*
 * Entries that the headers do not name. `slot` is the index of the function. has_entry returns whether a table has it.
 */
bool has_entry(const void *table, size_t slot);
void *entry_of(const void *table, size_t slot);

/* ---- world.c ---- */

struct world;

struct object {
	const char *name;
	struct fid *fid;
	/* Objects that must not be closed before this one: its parent and the objects that it is bound to. */
	struct object *uses[8];
	/*
	 * The objects of one endpoint (aliases) share one number. Their memory belongs to the program again when all are
	 * closed.
	 */
	int part;
	bool closed;
};

#define OBJECTS 32
#define LOANS 512

/* Memory that belongs to operations until the part is closed. */
struct loan {
	char *memory;
	size_t length;
	int part;
	bool returned;
};

struct world {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct object objects[OBJECTS];
	int count, parts;
	struct loan loans[LOANS];
	int loaned;
	/* The descriptor of all memory, if operations need one (FI_MR_LOCAL). */
	void *desc;
	/* Called after the close of an object was rejected. */
	void (*before_retry)(struct world *);
};

/* One of two communicating sides. */
struct side {
	struct world *world;
	struct fid_ep *tx, *rx;
	struct fid_cq *txcq, *rxcq;
	enum fi_cq_format format;
	fi_addr_t peer;
	/* The peer's remote memory. */
	uint64_t address, key;
	/* The part numbers of lent memory. */
	int txpart, rxpart;
	/* Whether the side receives from any source (and may use multi-receive buffers), sends, and accesses remote memory. */
	bool can_receive, can_send, can_access;
};

void open_fabric(struct world *w, struct fi_info *info);
void open_domain(struct world *w);
struct object *keep(struct world *w, const char *name, struct fid *fid, const void *within, int part);
void uses(struct world *w, const void *user, const void *used);
void no_longer_uses(struct world *w, const void *user, const void *used);
int new_part(struct world *w);
char *lend(struct world *w, int part, size_t length);
struct object *find(struct world *w, const void *fid);
/* Closes all objects in this order of their indices (NULL: the last one first), and frees the memory of the world. */
void close_world(struct world *w, const int *order);
/* The open passive endpoint. */
extern struct fid_pep *listening;
/* Closes one object. Returns 0, or -FI_EBUSY, in which case the object can still be used. */
int close_object(struct world *w, struct object *o);

/* Open objects with the case's attributes. */
struct fid_cq *open_queue(struct world *w, const char *name, enum fi_wait_obj wait, enum fi_cq_format format, struct fid_wait *set);
struct fid_cntr *open_counter(struct world *w, const char *name, enum fi_wait_obj wait, struct fid_wait *set);
struct fid_eq *open_events(struct world *w, const char *name, enum fi_wait_obj wait, struct fid_wait *set);
struct fid_av *open_vector(struct world *w, const char *name, enum fi_av_type type, uint64_t flags, const char *shared);
struct fid_mr *open_region(struct world *w, const char *name, size_t length, uint64_t flags);
enum fi_wait_obj any_wait(void);
enum fi_cq_format any_format(void);
/* Inserts the address of an endpoint in a vector and returns it. */
fi_addr_t insert_name(struct fid_av *av, struct fid *ep);
/* Returns the address of a region's first byte for peers. */
uint64_t base_of(struct world *w, const void *memory);
/*
 * Whether operations pass descriptors (FI_MR_LOCAL), for which the provider has separate tables. In the first order of each
 * case the level decides, so that both kinds of tables are called with any seed. Later orders are random.
 */
bool describes(void);
void describe_by_level(bool by_level);
/* Returns registration modes of the case, derived from its seed. */
int any_region_mode(bool described);

/* ---- orders.c ---- */

/* A scenario. Its objects are closed in one order at a time. */
struct scenario {
	const char *name;
	/*
	 * Opens all objects, and leaves operations posted and results unread. Returns false if the API version does not support
	 * the scenario.
	 */
	bool (*open)(struct world *w);
	/* Calls with unusual arguments. */
	void (*odd)(struct world *w);
};
extern const struct scenario scenarios[];
extern const size_t scenario_count;
/* Scenarios with few objects, which are tested in all orders. */
extern const struct scenario in_all_orders[];
extern const size_t in_all_orders_count;

/* Closes the scenario's objects in `tries` orders: random ones or, with `every`, the permutations from number `from` on. */
void orders(const struct scenario *scenario, uint64_t from, uint64_t tries, bool every);

/* ---- stir.c ---- */

/* Posts this number of random operations and reads some results. */
void stir(struct side *a, struct side *b, int operations);
/* Reads results, if there are any, with a random call. */
void read_some(struct side *s);
/* Makes progress without reading. */
void nudge(struct side *s);
/* Posts one operation of each kind. */
void post_each(struct side *a, struct side *b);

/* ---- odd.c, odd_queues.c, odd_endpoints.c ---- */

void odd_object(struct world *w, struct fid *fid);
void odd_everything(struct world *w);
void odd_queue(struct fid_cq *cq, enum fi_cq_format format);
void odd_events(struct fid_eq *eq);
void odd_counter(struct fid_cntr *cntr);
void odd_waiting(struct world *w, struct fid *fid);
void odd_endpoint(struct world *w, struct fid_ep *ep);
void odd_vector(struct world *w, struct fid_av *av);
/* Reads an event or an error, into a heap allocation of exactly the size of the buffer. */
void read_event(struct fid_eq *eq);
size_t entry_size(enum fi_cq_format format);

/* ---- threads.c ---- */

struct together {
	const char *name;
	/* The levels at which two threads may run this, as bits. */
	unsigned levels;
	void (*run)(void);
};
extern const struct together togethers[];
extern const size_t together_count;
/* forked.c */
void forked(void);

/* Opens two endpoints of one domain that have each other's addresses, with all required objects. */
bool open_pair(struct world *w, struct side sides[2], uint64_t caps, bool counted);

bool one_endpoint(struct world *w);
bool rdm_pair(struct world *w);
bool rdm_alias(struct world *w);
bool scalable(struct world *w);
bool shared_contexts(struct world *w);
bool connected(struct world *w);
bool refused_connection(struct world *w);
bool requested(struct world *w);
bool registered(struct world *w);
bool registered_later(struct world *w);
bool windows(struct world *w);
bool grouped(struct world *w);
bool waited(struct world *w);
bool vectors(struct world *w);
bool deferred(struct world *w);
void odd_windows(struct world *w);

#endif
