/*
 * walk: calls every entry of every table of the provider with odd but legal arguments, and closes objects in every order, at every
 * threading level and API version. It is meant to run under AddressSanitizer and UndefinedBehaviorSanitizer, with a provider
 * instrumented likewise: what it looks for is memory that is used wrongly. `cargo xtask walk` builds and runs it.
 *
 *   main.c        arguments, one process for each case, the summary
 *   library.c     libfabric, by the symbol versions that programs of an API version are linked with
 *   tables.c      counts calls of table entries, and names those that were never called
 *   world.c       objects that are open, the memory that operations have, closing in an order
 *   orders.c      which orders
 *   scenarios.c, connected.c, registered.c, grouped.c, waited.c, deferred.c    what is opened together
 *   stir.c        posts operations of every kind and reads some results
 *   odd.c, odd_queues.c, odd_endpoints.c    odd but legal arguments, by class of object
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

/* Room for an address of any format that the provider has. */
#define NAME 64

/* ---- main.c ---- */

/* What a case is run with. */
struct setting {
	uint32_t api;
	enum fi_threading level;
	bool tcp;
	uint64_t seed;
};
extern struct setting setting;

/* Reports an error and ends the process: later checks would make no sense. */
void wrong(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));
/* Reports an error and continues; the case has failed. */
void complain(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* A number below `bound`, from the case's seed. */
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

/* A call without which the case makes no sense. */
#define NEEDS(call)                                                                    \
	do {                                                                           \
		long long got_ = (long long)(call);                                    \
		if (got_ != 0)                                                         \
			wrong(__FILE__, __LINE__, "%s = %lld (%s)", #call, got_, code_text(got_)); \
	} while (0)

const char *code_text(long long code);

/* What cases count, shared by all processes. */
struct totals {
	uint64_t calls, cases, closings, refusals, orders, wrong;
};
extern struct totals *totals;

/* ---- library.c ---- */

/* Loads libfabric from this directory (NULL: the system's). */
void load_library(const char *directory);
/* The newest API version that it knows. */
uint32_t newest_api(void);
struct fi_info *hints_of(enum fi_ep_type type, uint64_t caps);
/* The first answer, or NULL if there is none. */
struct fi_info *answer(const char *node, const char *service, uint64_t flags, const struct fi_info *hints);
void library_calls(void);

/* Bytes of structures as a program of the case's API version has them. */
size_t error_entry_size(void);
size_t region_attr_size(void);
size_t queue_attr_size(void);
size_t counter_attr_size(void);
/* A structure of exactly this size on the heap: what is read or written beyond is reported. Its first bytes are those given. */
void *exactly(size_t size, const void *bytes, size_t given);

/* ---- tables.c ---- */

/* Counts the calls of an object's tables from now on. */
void adopt(struct fid *fid);
/* As adopt, of a table of functions that is no object's and begins with its size. */
void *adopt_table(const char *type, void *table, size_t entries);
/* Makes room that processes share for the counts. */
void share_counts(void);
void add_up_counts(void);
/* Returns how many entries there are. With `show`, prints those that were never called, and counts them in `missed`. */
size_t report_entries(size_t *missed, bool show);
/* Calls an entry that the headers here have no name for: `slot` counts functions. False if the table has no such entry. */
bool has_entry(const void *table, size_t slot);
void *entry_of(const void *table, size_t slot);

/* ---- world.c ---- */

struct world;

struct object {
	const char *name;
	struct fid *fid;
	/* Objects that may not be closed before this one: what it was opened in, and what it is bound to. */
	struct object *uses[8];
	/* Objects of one endpoint (aliases) have one number: its memory is the program's again when all are closed. */
	int part;
	bool closed;
};

#define OBJECTS 32
#define LOANS 512

/* Memory that operations have until the part is closed. */
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
	/* Description of all memory, where operations need one (FI_MR_LOCAL). */
	void *desc;
	/* Done before anything is closed; and before a poll set that was refused is tried again. */
	void (*before_retry)(struct world *);
};

/* One side of what talks to another. */
struct side {
	struct world *world;
	struct fid_ep *tx, *rx;
	struct fid_cq *txcq, *rxcq;
	enum fi_cq_format format;
	fi_addr_t peer;
	/* Remote memory of the peer's. */
	uint64_t address, key;
	/* The numbers of the parts of memory that are lent. */
	int txpart, rxpart;
	/* It receives from any source, and may take several messages in a buffer. */
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
/* Closes all, in an order that names places of objects, and gives back what the world has. */
void close_world(struct world *w, const int *order);
/* The passive endpoint that is open. */
extern struct fid_pep *listening;
/* Closes one object: 0, or -FI_EBUSY after which it can still be used. */
int close_object(struct world *w, struct object *o);

/* Objects with the case's own attributes. */
struct fid_cq *open_queue(struct world *w, const char *name, enum fi_wait_obj wait, enum fi_cq_format format, struct fid_wait *set);
struct fid_cntr *open_counter(struct world *w, const char *name, enum fi_wait_obj wait, struct fid_wait *set);
struct fid_eq *open_events(struct world *w, const char *name, enum fi_wait_obj wait, struct fid_wait *set);
struct fid_av *open_vector(struct world *w, const char *name, enum fi_av_type type, uint64_t flags, const char *shared);
struct fid_mr *open_region(struct world *w, const char *name, size_t length, uint64_t flags);
enum fi_wait_obj any_wait(void);
enum fi_cq_format any_format(void);
/* The address of an endpoint, inserted in a vector. */
fi_addr_t insert_name(struct fid_av *av, struct fid *ep);
/* How peers name the first byte of a region. */
uint64_t base_of(struct world *w, const void *memory);
/* Whether operations describe their memory (FI_MR_LOCAL), for which the provider has tables of their own: in the first order of each case
 * as the level says, so that both kinds of tables are called whatever the seed; later by chance. */
bool describes(void);
void describe_by_level(bool by_level);
/* Registration modes of the case, chosen from its seed. */
int any_region_mode(bool described);

/* ---- orders.c ---- */

/* What is done with one order of each scenario's objects. */
struct scenario {
	const char *name;
	/* Opens everything, and leaves operations posted and results unread. False: there is no such thing in this API version. */
	bool (*open)(struct world *w);
	/* Calls with odd arguments. */
	void (*odd)(struct world *w);
};
extern const struct scenario scenarios[];
extern const size_t scenario_count;
/* Scenarios with few objects, tested in all orders. */
extern const struct scenario in_all_orders[];
extern const size_t in_all_orders_count;

/* Closes the scenario's objects in `tries` orders: any, or (`every`) those from the `from`th permutation on. */
void orders(const struct scenario *scenario, uint64_t from, uint64_t tries, bool every);

/* ---- stir.c ---- */

/* Posts this many operations of any kind, and reads some results. */
void stir(struct side *a, struct side *b, int operations);
/* Reads results, with any of the calls, if there are any. */
void read_some(struct side *s);
/* Makes progress without reading. */
void nudge(struct side *s);
/* Posts one of each. */
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
/* An event with exactly as much room as it has, or an error. */
void read_event(struct fid_eq *eq);
size_t entry_size(enum fi_cq_format format);

/* ---- threads.c ---- */

struct together {
	const char *name;
	/* The levels at which two threads may do this, as bits. */
	unsigned levels;
	void (*run)(void);
};
extern const struct together togethers[];
extern const size_t together_count;
/* forked.c */
void forked(void);

/* Opens two endpoints of one domain that know each other, with what is around them. */
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
