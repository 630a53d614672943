/*
 * The common part of all checks: reports, endpoint setup, waits for completions, messages.
 *
 * The checks use every entry of every libfabric table through its inline functions, and check results and data. Each group of
 * checks prints one line. Every wait has a limit: if a result does not arrive within WAIT_LIMIT seconds, the check fails and the
 * process ends.
 *
 * Groups that transfer data are written once for both ends: `if (p->a)` is the code of the sending end, `if (p->b)` that of
 * the other end. Both are in this process (one endpoint that sends to itself, or two endpoints), or each is in its own process.
 */
#ifndef EVERY_H
#define EVERY_H

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
#include <sys/uio.h>

/* The interface version that the checks are written for. Newer headers have the same interface under this version. */
#define API FI_VERSION(1, 17)

/* The time limit of a wait in seconds. valgrind is about fifty times slower. */
#ifndef WAIT_LIMIT
#define WAIT_LIMIT 60
#endif

/* The size of the send and receive memory of each end of a connection. */
#define ROOM ((16u << 20) + 4096)

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- reports: report.c ---- */

/* Begins and ends a group. */
void begin(const char *group);
void end(void);
/*
 * States that checks of this group assert these requirements of docs/requirements.md ("MR-004 MR-005"). It stands beside the
 * checks. The requirements are proved if no check of the group fails.
 */
void asserts(const char *requirements);
/* Prints the reason why a group is skipped. */
void skip(const char *group, const char *why);
/* Reports an error, and continues. */
void wrong(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Ends the process, because the following checks would be useless. */
void give_up(void) __attribute__((noreturn));
/* Returns whether there were no errors so far. */
bool all_is_well(void);
/* The time in seconds since an arbitrary start. */
double now(void);
/* The name of the scenario, which begins each line. */
extern const char *scenario;

#define CHECK(condition, ...)                                                                                          \
	do {                                                                                                               \
		if (!(condition))                                                                                              \
			wrong(__FILE__, __LINE__, #condition ": " __VA_ARGS__);                                                    \
	} while (0)

#define MUST(condition, ...)                                                                                           \
	do {                                                                                                               \
		if (!(condition)) {                                                                                            \
			wrong(__FILE__, __LINE__, #condition ": " __VA_ARGS__);                                                    \
			give_up();                                                                                                 \
		}                                                                                                              \
	} while (0)

/* Checks that a call returns this code. */
#define ANSWERS(expected, call)                                                                                        \
	do {                                                                                                               \
		long long got_ = (long long)(call), expected_ = (expected);                                                    \
		if (got_ != expected_)                                                                                         \
			wrong(__FILE__, __LINE__, "%s: %lld (%s), not %lld (%s)", #call, got_, code_text(got_), expected_,         \
			      code_text(expected_));                                                                               \
	} while (0)

/* A call that must succeed, because the following checks depend on it. */
#define NEEDS(call)                                                                                                    \
	do {                                                                                                               \
		long long got_ = (long long)(call);                                                                            \
		if (got_ != 0) {                                                                                               \
			wrong(__FILE__, __LINE__, "%s: %lld (%s)", #call, got_, code_text(got_));                                  \
			give_up();                                                                                                 \
		}                                                                                                              \
	} while (0)

const char *code_text(long long code);

/* ---- setup: setup.c ---- */

/* The settings of an endpoint and the objects that it needs. */
struct settings {
	const char *name;
	enum fi_av_type av_type;
	enum fi_threading threading;
	enum fi_progress progress;
	enum fi_wait_obj wait;
	int mr_mode;
	/* Registration modes with which the domain is opened although they were not required. */
	int taken;
	/* Capabilities in addition to the common ones. */
	uint64_t caps;
	/* An interface version other than API. */
	uint32_t api;
	/* Authorization keys. */
	const char *domain_key, *ep_key;
	/* Only operations that request it report completions. */
	bool tx_selective, rx_selective;
	/* Sends and receives complete to separate queues. */
	bool two_queues;
	/* A counter for each kind of operation. */
	bool counters;
	/* The default flags of operations. */
	uint64_t op_flags;
	/* The address to bind to, or NULL if the provider selects one. */
	const char *node;
};

/* The options of the test program. */
struct options {
	const char *provider;
	/* Only scenarios with this text in their names. */
	const char *only;
	/* A selection of cases, for valgrind. */
	bool few;
	/* The registration tests (registration.c) use an endpoint that sends to itself. */
	bool alone;
};
extern struct options options;

/* A fabric and a domain. */
struct room {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
};

/* The contents of a completion. */
struct done {
	void *context;
	uint64_t flags;
	size_t len;
	void *buf;
	uint64_t data;
	uint64_t tag;
	fi_addr_t source;
	/* The error of a failed operation, or 0. */
	int err;
	int prov_errno;
	size_t olen;
};

enum { SENT, RECEIVED, READ, WRITTEN, REMOTELY_READ, REMOTELY_WRITTEN, KINDS };

/* An endpoint with all required objects. */
struct side {
	struct room *room;
	const struct settings *how;
	struct fid_av *av;
	struct fid_cq *txcq, *rxcq;
	struct fid_cntr *counters[KINDS];
	struct fid_ep *ep;
	/* Set for endpoints with FI_COLLECTIVE, otherwise NULL. */
	struct fid_eq *eq;
	/* The other end: its address, and the object if it is in this process. */
	fi_addr_t peer;
	struct side *mate;
	/* Completions that were read and not yet requested by the test. */
	struct done stash[512];
	int stashed;
	/* Memory that the group may use. */
	char *out, *in;
	struct fid_mr *local[2];
	void *out_desc, *in_desc;
};

/* Two ends. One is NULL here if it is in another process, and both are equal if an endpoint sends to itself. */
struct pair {
	struct side *a, *b;
	/* A socket to the other process, or -1. */
	int link;
};

/* Two endpoints of one domain that have each other's addresses. */
struct two {
	struct room room;
	struct side a, b;
	struct pair pair;
};

void open_two(struct two *two, const struct settings *how);
void close_two(struct two *two);

struct fi_info *hints_for(const struct settings *how);
void open_room(struct room *room, const struct settings *how);
void close_room(struct room *room);
void open_side(struct side *side, struct room *room, const struct settings *how);
void close_side(struct side *side);
/* Writes the endpoint's address and returns its length. */
size_t name_of(struct side *side, void *address, size_t room);
void insert_peer(struct side *side, const void *address);

/* ---- completions: completions.c ---- */

/* Reads available completions into the stash, at both ends if both are in this process. */
void progress(struct side *side);
/* Returns the completion of the operation with this context. */
struct done take(struct side *side, void *context);
/* Returns a completion that has all these flags. */
struct done take_flags(struct side *side, uint64_t flags);
/* Checks that there are no completions that the test did not request. */
void quiet(struct pair *p);
/* Waits until both ends have reached this point. Each one makes progress until then. */
void meet(struct pair *p);
/* Copies a value from b to a. */
void hand_to_a(struct pair *p, void *value, size_t size);
void hand_to_b(struct pair *p, void *value, size_t size);

/* Returns whether an operation with these flags (or the default flags) reports success. */
bool reports(const struct side *side, bool transmits, uint64_t flags);
#define OWN_FLAGS UINT64_MAX

/* Posts an operation, and repeats the call until there is space for it. */
#define POST(side, call)                                                                                               \
	({                                                                                                                 \
		ssize_t code_;                                                                                                 \
		double until_ = now() + WAIT_LIMIT;                                                                              \
		while ((code_ = (call)) == -FI_EAGAIN) {                                                                       \
			MUST(now() < until_, "no room for the operation");                                                         \
			progress(side);                                                                                            \
		}                                                                                                              \
		code_;                                                                                                         \
	})
#define POSTED(side, call) ANSWERS(0, POST(side, call))

/* The context of an operation with this number. Providers may write to the memory that it points to. */
void *context(int number);

void fill(void *buffer, size_t len, unsigned seed);
bool is_filled(const void *buffer, size_t len, unsigned seed);

/* ---- messages: transfer.c ---- */

enum send_call { SEND, SENDV, SENDMSG, INJECT, SENDDATA, INJECTDATA, SEND_CALLS };
enum receive_call { RECV, RECVV, RECVMSG, RECEIVE_CALLS };

struct message {
	bool tagged;
	uint64_t tag, ignore;
	void *buf;
	size_t len;
	uint64_t data;
	void *context;
	/* The flags of SENDMSG and RECVMSG. */
	uint64_t flags;
	/* Set if the receive names its source. Otherwise it accepts any source. */
	bool directed;
	fi_addr_t from;
};

const char *send_name(enum send_call call);
bool injects(enum send_call call);
bool carries_data(enum send_call call, uint64_t flags);
ssize_t post_send(struct side *side, enum send_call call, const struct message *m);
ssize_t post_receive(struct side *side, enum receive_call call, const struct message *m);
/* Checks the completion of a send, if it should have one. */
void check_sent(struct side *side, enum send_call call, const struct message *m);
/* Checks that the completion of a receive belongs to this message, and that its bytes have arrived. */
void check_received(struct side *side, const struct message *m, const struct message *sent, bool with_data, unsigned seed);

/* ---- groups ---- */

void message_groups(struct pair *p);
void tagged_groups(struct pair *p);
void peek_groups(struct pair *p);
void rma_groups(struct pair *p);
void rma_refusal_groups(struct pair *p);
void atomic_groups(struct pair *p);
void counter_groups(struct pair *p);

void info_groups(void);
void fabric_groups(void);
void vector_groups(void);
int vector_writer(const char *name);
void region_groups(void);
void registration_groups(void);
void registration_modes_groups(void);
void registration_keys_groups(void);
void registration_binding_groups(void);
void registration_events_groups(void);
void window_groups(void);
void specification_groups(void);
void queue_groups(void);
void wait_groups(void);
void event_groups(void);
void endpoint_groups(void);
void set_groups(void);
void connection_groups(void);
void context_groups(void);
void refused_groups(void);
void device_groups(void);
void cache_groups(void);
void forked_groups(void);
void thread_groups(void);
void trigger_groups(void);
void address_sets(void);
void collective_groups(void);

/* Returns whether the table of missing functions lists this one as implemented (refused.c). */
bool is_there(const char *what);

/* The result of an atomic operation, and whether the operation exists (model.c). */
size_t datatype_size(enum fi_datatype type);
bool model(enum fi_datatype type, enum fi_op op, void *target, const void *operand, const void *compare);

#endif
