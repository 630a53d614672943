/*
 * Shared by all checks: reporting, endpoints that are set up, waiting for completions, messages.
 *
 * The checks use every entry of every table of libfabric's, through its inline functions, and check results and data. A group of checks prints one
 * line. No wait is endless: what does not arrive within PATIENCE seconds fails, and ends the process.
 *
 * Groups about data are written once for both ends: `if (p->a)` is the code of the sending end, `if (p->b)` that of the other. Both are in this
 * process (one endpoint that talks to itself, or two), or each is in a process of its own.
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

/* The version of the interface that the checks are written for; newer headers have the same under it. */
#define API FI_VERSION(1, 17)

/* Seconds after which what did not come will not come: valgrind is some fifty times slower. */
#ifndef PATIENCE
#define PATIENCE 60
#endif

/* Ends that a connection joins use so much memory for what they send and receive. */
#define ROOM (4u << 20)

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- reporting: report.c ---- */

/* Begins and ends a group. */
void begin(const char *group);
void end(void);
/* Prints why a group is left out. */
void skip(const char *group, const char *why);
/* Reports an error, and continues. */
void wrong(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Ends the process: nothing that follows would make sense. */
void give_up(void) __attribute__((noreturn));
/* Whether nothing was wrong so far. */
bool all_is_well(void);
/* Seconds, from some time on. */
double now(void);
/* The name of the scenario, before each line. */
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

/* A call answers this code. */
#define ANSWERS(expected, call)                                                                                        \
	do {                                                                                                               \
		long long got_ = (long long)(call), expected_ = (expected);                                                    \
		if (got_ != expected_)                                                                                         \
			wrong(__FILE__, __LINE__, "%s: %lld (%s), not %lld (%s)", #call, got_, code_text(got_), expected_,         \
			      code_text(expected_));                                                                               \
	} while (0)

/* A call without which nothing that follows makes sense. */
#define NEEDS(call)                                                                                                    \
	do {                                                                                                               \
		long long got_ = (long long)(call);                                                                            \
		if (got_ != 0) {                                                                                               \
			wrong(__FILE__, __LINE__, "%s: %lld (%s)", #call, got_, code_text(got_));                                  \
			give_up();                                                                                                 \
		}                                                                                                              \
	} while (0)

const char *code_text(long long code);

/* ---- setting up: setup.c ---- */

/* How an endpoint and what is around it are opened. */
struct settings {
	const char *name;
	enum fi_av_type av_type;
	enum fi_threading threading;
	enum fi_progress progress;
	enum fi_wait_obj wait;
	int mr_mode;
	/* Registration modes that are taken, though they were not required: the domain is opened with them. */
	int taken;
	/* Capabilities beyond those that all ask for. */
	uint64_t caps;
	/* Another version of the interface than API. */
	uint32_t api;
	/* Authorization keys. */
	const char *domain_key, *ep_key;
	/* Completions only of operations that ask for them. */
	bool tx_selective, rx_selective;
	/* Sends and receives complete to queues of their own. */
	bool two_queues;
	/* A counter for each kind of operation. */
	bool counters;
	/* Flags of operations that have none of their own. */
	uint64_t op_flags;
	/* Address to be at; NULL: the provider chooses. */
	const char *node;
};

/* The options of the test program. */
struct options {
	const char *provider;
	/* Only scenarios with this in their names. */
	const char *only;
	/* A selection of cases, for valgrind. */
	bool few;
	/* Where registrations are tried (registration.c): at an endpoint that talks to itself. */
	bool alone;
};
extern struct options options;

/* Fabric and domain. */
struct room {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
};

/* What a completion said. */
struct done {
	void *context;
	uint64_t flags;
	size_t len;
	void *buf;
	uint64_t data;
	uint64_t tag;
	fi_addr_t source;
	/* Of a failed operation; else 0. */
	int err;
	int prov_errno;
	size_t olen;
};

enum { SENT, RECEIVED, READ, WRITTEN, REMOTELY_READ, REMOTELY_WRITTEN, KINDS };

/* An endpoint with all it needs. */
struct side {
	struct room *room;
	const struct settings *how;
	struct fid_av *av;
	struct fid_cq *txcq, *rxcq;
	struct fid_cntr *counters[KINDS];
	struct fid_ep *ep;
	/* Of endpoints with FI_COLLECTIVE; else NULL. */
	struct fid_eq *eq;
	/* The other end: its address, and itself if this process has it. */
	fi_addr_t peer;
	struct side *mate;
	/* Completions that were read, and not yet requested by the test. */
	struct done stash[512];
	int stashed;
	/* Memory that the group may use as it likes. */
	char *out, *in;
	struct fid_mr *local[2];
	void *out_desc, *in_desc;
};

/* Two ends; one is NULL here if it is in another process, and both are the same if an endpoint talks to itself. */
struct pair {
	struct side *a, *b;
	/* To the other process; -1 if there is none. */
	int link;
};

/* Two endpoints of one domain that know each other. */
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
/* The endpoint's address; returns its length. */
size_t name_of(struct side *side, void *address, size_t room);
void insert_peer(struct side *side, const void *address);

/* ---- completions: completions.c ---- */

/* Reads what there is to the stash, at both ends if both are here. */
void progress(struct side *side);
/* The completion of the operation with this context. */
struct done take(struct side *side, void *context);
/* A completion that has all these flags. */
struct done take_flags(struct side *side, uint64_t flags);
/* Nothing has completed that was not asked for. */
void quiet(struct pair *p);
/* Both ends are here. Each goes on making progress until then. */
void meet(struct pair *p);
/* Copies a value of b's to a. */
void hand_to_a(struct pair *p, void *value, size_t size);
void hand_to_b(struct pair *p, void *value, size_t size);

/* Whether an operation with these flags (or none of its own) reports its success. */
bool reports(const struct side *side, bool transmits, uint64_t flags);
#define OWN_FLAGS UINT64_MAX

/* Posts until there is room. */
#define POST(side, call)                                                                                               \
	({                                                                                                                 \
		ssize_t code_;                                                                                                 \
		double until_ = now() + PATIENCE;                                                                              \
		while ((code_ = (call)) == -FI_EAGAIN) {                                                                       \
			MUST(now() < until_, "no room for the operation");                                                         \
			progress(side);                                                                                            \
		}                                                                                                              \
		code_;                                                                                                         \
	})
#define POSTED(side, call) ANSWERS(0, POST(side, call))

/* A context for operations: the number says which. Providers may write to what it points to. */
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
	/* Of SENDMSG and RECVMSG. */
	uint64_t flags;
	/* The source to receive from; 0 is any. */
	bool directed;
	fi_addr_t from;
};

const char *send_name(enum send_call call);
bool injects(enum send_call call);
bool carries_data(enum send_call call, uint64_t flags);
ssize_t post_send(struct side *side, enum send_call call, const struct message *m);
ssize_t post_receive(struct side *side, enum receive_call call, const struct message *m);
/* The completion of a send is as it should be, if there is to be one. */
void check_sent(struct side *side, enum send_call call, const struct message *m);
/* The completion of a receive says this message, and its bytes are there. */
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

/* Whether the table of missing functions lists this one as present (refused.c). */
bool is_there(const char *what);

/* The value that an atomic operation leaves, and whether there is such an operation (model.c). */
size_t datatype_size(enum fi_datatype type);
bool model(enum fi_datatype type, enum fi_op op, void *target, const void *operand, const void *compare);

#endif
