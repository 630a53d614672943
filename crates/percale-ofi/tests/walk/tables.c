/*
 * Counts the calls of table entries. The tables of an object are replaced by copies that contain stubs: a stub counts
 * the call and jumps to the provider's function. So every entry of every table that the provider returns is known,
 * including entries that the headers do not name, and a missing call is detected.
 *
 * A table is identified by its offset in the provider's library, which is the same in all processes that share the
 * counts.
 */
#define _GNU_SOURCE
#include "walk.h"

#include <dlfcn.h>
#include <sys/mman.h>

#define STUBS 2048
#define TABLES 160
#define ENTRIES 24

/* Each stub counts in its own word and jumps to its target. */
uint64_t stub_counts[STUBS] __attribute__((visibility("hidden")));
void *stub_targets[STUBS] __attribute__((visibility("hidden")));

#if defined(__x86_64__)
#define HAS_STUBS 1
extern char stubs[] __attribute__((visibility("hidden")));
__asm__(".text\n"
	".p2align 4\n"
	".hidden stubs\n"
	".globl stubs\n"
	"stubs:\n"
	".set number, 0\n"
	".rept 2048\n"
	".p2align 4\n"
	"lock incq stub_counts + 8 * number(%rip)\n"
	"jmp *stub_targets + 8 * number(%rip)\n"
	".set number, number + 1\n"
	".endr\n");
#else
#define HAS_STUBS 0
#endif

/* The names of entries in the headers. */
struct entry {
	const char *name;
	size_t at;
};
#define E(type, field) { #field, offsetof(struct type, field) }

static const struct entry fi_ops_entries[] = { E(fi_ops, close), E(fi_ops, bind), E(fi_ops, control), E(fi_ops, ops_open), E(fi_ops, tostr),
	E(fi_ops, ops_set), { 0 } };
static const struct entry fabric_entries[] = { E(fi_ops_fabric, domain), E(fi_ops_fabric, passive_ep), E(fi_ops_fabric, eq_open),
	E(fi_ops_fabric, wait_open), E(fi_ops_fabric, trywait), E(fi_ops_fabric, domain2), { 0 } };
static const struct entry domain_entries[] = { E(fi_ops_domain, av_open), E(fi_ops_domain, cq_open), E(fi_ops_domain, endpoint),
	E(fi_ops_domain, scalable_ep), E(fi_ops_domain, cntr_open), E(fi_ops_domain, poll_open), E(fi_ops_domain, stx_ctx),
	E(fi_ops_domain, srx_ctx), E(fi_ops_domain, query_atomic), E(fi_ops_domain, query_collective), E(fi_ops_domain, endpoint2), { 0 } };
static const struct entry mr_entries[] = { E(fi_ops_mr, reg), E(fi_ops_mr, regv), E(fi_ops_mr, regattr), { 0 } };
static const struct entry av_entries[] = { E(fi_ops_av, insert), E(fi_ops_av, insertsvc), E(fi_ops_av, insertsym), E(fi_ops_av, remove),
	E(fi_ops_av, lookup), E(fi_ops_av, straddr), E(fi_ops_av, av_set), { 0 } };
static const struct entry set_entries[] = { E(fi_ops_av_set, set_union), E(fi_ops_av_set, intersect), E(fi_ops_av_set, diff),
	E(fi_ops_av_set, insert), E(fi_ops_av_set, remove), E(fi_ops_av_set, addr), { 0 } };
static const struct entry ep_entries[] = { E(fi_ops_ep, cancel), E(fi_ops_ep, getopt), E(fi_ops_ep, setopt), E(fi_ops_ep, tx_ctx),
	E(fi_ops_ep, rx_ctx), E(fi_ops_ep, rx_size_left), E(fi_ops_ep, tx_size_left), { 0 } };
static const struct entry cm_entries[] = { E(fi_ops_cm, setname), E(fi_ops_cm, getname), E(fi_ops_cm, getpeer), E(fi_ops_cm, connect),
	E(fi_ops_cm, listen), E(fi_ops_cm, accept), E(fi_ops_cm, reject), E(fi_ops_cm, shutdown), E(fi_ops_cm, join), { 0 } };
static const struct entry msg_entries[] = { E(fi_ops_msg, recv), E(fi_ops_msg, recvv), E(fi_ops_msg, recvmsg), E(fi_ops_msg, send),
	E(fi_ops_msg, sendv), E(fi_ops_msg, sendmsg), E(fi_ops_msg, inject), E(fi_ops_msg, senddata), E(fi_ops_msg, injectdata), { 0 } };
static const struct entry tagged_entries[] = { E(fi_ops_tagged, recv), E(fi_ops_tagged, recvv), E(fi_ops_tagged, recvmsg),
	E(fi_ops_tagged, send), E(fi_ops_tagged, sendv), E(fi_ops_tagged, sendmsg), E(fi_ops_tagged, inject), E(fi_ops_tagged, senddata),
	E(fi_ops_tagged, injectdata), { 0 } };
static const struct entry rma_entries[] = { E(fi_ops_rma, read), E(fi_ops_rma, readv), E(fi_ops_rma, readmsg), E(fi_ops_rma, write),
	E(fi_ops_rma, writev), E(fi_ops_rma, writemsg), E(fi_ops_rma, inject), E(fi_ops_rma, writedata), E(fi_ops_rma, injectdata), { 0 } };
static const struct entry atomic_entries[] = { E(fi_ops_atomic, write), E(fi_ops_atomic, writev), E(fi_ops_atomic, writemsg),
	E(fi_ops_atomic, inject), E(fi_ops_atomic, readwrite), E(fi_ops_atomic, readwritev), E(fi_ops_atomic, readwritemsg),
	E(fi_ops_atomic, compwrite), E(fi_ops_atomic, compwritev), E(fi_ops_atomic, compwritemsg), E(fi_ops_atomic, writevalid),
	E(fi_ops_atomic, readwritevalid), E(fi_ops_atomic, compwritevalid), { 0 } };
static const struct entry collective_entries[] = { E(fi_ops_collective, barrier), E(fi_ops_collective, broadcast),
	E(fi_ops_collective, alltoall), E(fi_ops_collective, allreduce), E(fi_ops_collective, allgather), E(fi_ops_collective, reduce_scatter),
	E(fi_ops_collective, reduce), E(fi_ops_collective, scatter), E(fi_ops_collective, gather), E(fi_ops_collective, msg),
	E(fi_ops_collective, barrier2), { 0 } };
static const struct entry eq_entries[] = { E(fi_ops_eq, read), E(fi_ops_eq, readerr), E(fi_ops_eq, write), E(fi_ops_eq, sread),
	E(fi_ops_eq, strerror), { 0 } };
static const struct entry cq_entries[] = { E(fi_ops_cq, read), E(fi_ops_cq, readfrom), E(fi_ops_cq, readerr), E(fi_ops_cq, sread),
	E(fi_ops_cq, sreadfrom), E(fi_ops_cq, signal), E(fi_ops_cq, strerror), { 0 } };
static const struct entry cntr_entries[] = { E(fi_ops_cntr, read), E(fi_ops_cntr, readerr), E(fi_ops_cntr, add), E(fi_ops_cntr, set),
	E(fi_ops_cntr, wait), E(fi_ops_cntr, adderr), E(fi_ops_cntr, seterr), { 0 } };
static const struct entry wait_entries[] = { E(fi_ops_wait, wait), { 0 } };
static const struct entry poll_entries[] = { E(fi_ops_poll, poll), E(fi_ops_poll, poll_add), E(fi_ops_poll, poll_del), { 0 } };

static const struct {
	const char *type;
	const struct entry *entries;
} types[] = {
	{ "fi_ops", fi_ops_entries }, { "fi_ops_fabric", fabric_entries }, { "fi_ops_domain", domain_entries }, { "fi_ops_mr", mr_entries },
	{ "fi_ops_av", av_entries }, { "fi_ops_av_set", set_entries }, { "fi_ops_ep", ep_entries }, { "fi_ops_cm", cm_entries },
	{ "fi_ops_msg", msg_entries }, { "fi_ops_tagged", tagged_entries }, { "fi_ops_rma", rma_entries }, { "fi_ops_atomic", atomic_entries },
	{ "fi_ops_collective", collective_entries }, { "fi_ops_eq", eq_entries }, { "fi_ops_cq", cq_entries }, { "fi_ops_cntr", cntr_entries },
	{ "fi_ops_wait", wait_entries }, { "fi_ops_poll", poll_entries },
};

static const char *const classes[] = { "", "fabric", "domain", "ep", "sep", "rx_ctx", "srx_ctx", "tx_ctx", "stx_ctx", "pep", "interface", "av",
	"mr", "eq", "cq", "cntr", "wait", "poll", "connreq", "mc", "nic", "av_set" };

/* A table, as shared by all processes. */
struct known {
	char type[24];
	size_t class, place, entries;
	uint64_t calls[ENTRIES];
};
static struct shared {
	size_t count;
	struct known tables[TABLES];
} *shared;

/* A table in this process: the provider's table and the copy with stubs. */
static struct copy {
	const void *original;
	size_t class, first, entries, known;
	void *words;
} copies[TABLES];
static size_t copied, stubbed;

void share_counts(void)
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(shared != MAP_FAILED, "out of memory");
}

/* Returns the index of a table in the memory that all processes share. */
static size_t known_table(const char *type, size_t class, const void *table, size_t entries)
{
	Dl_info info = { 0 };
	size_t place;

	MUST(dladdr(table, &info), "a table of no library");
	place = (size_t)((const char *)table - (const char *)info.dli_fbase);
	for (size_t at = 0; at < shared->count; at++) {
		struct known *known = &shared->tables[at];
		if (known->place == place && known->class == class && !strcmp(known->type, type))
			return at;
	}
	MUST(shared->count < TABLES, "too many tables");
	struct known *known = &shared->tables[shared->count];
	snprintf(known->type, sizeof(known->type), "%s", type);
	known->class = class;
	known->place = place;
	known->entries = entries;
	return shared->count++;
}

static void *stubs_for(const char *type, size_t class, void *table, size_t entries)
{
	void **words;

	if (!HAS_STUBS || !table)
		return table;
	for (size_t at = 0; at < copied; at++)
		if (copies[at].words == table || (copies[at].original == table && copies[at].class == class))
			return copies[at].words;
	MUST(copied < TABLES && stubbed + entries <= STUBS && entries <= ENTRIES, "%s has %zu entries", type, entries);
	words = malloc((1 + entries) * sizeof(void *));
	MUST(words, "out of memory");
	memcpy(words, table, (1 + entries) * sizeof(void *));
#if HAS_STUBS
	for (size_t at = 0; at < entries; at++) {
		stub_targets[stubbed + at] = words[1 + at];
		words[1 + at] = stubs + 16 * (stubbed + at);
	}
#endif
	copies[copied++] = (struct copy){ table, class, stubbed, entries, known_table(type, class, table, entries), words };
	stubbed += entries;
	return words;
}

void *adopt_table(const char *type, void *table, size_t entries)
{
	return stubs_for(type, 0, table, entries);
}

#define ADOPT(object, field, type)                                                                                      \
	do {                                                                                                            \
		if ((object)->field)                                                                                    \
			(object)->field = stubs_for(#type, (object)->fid.fclass, (object)->field,                        \
						    (*(size_t *)(object)->field - sizeof(size_t)) / sizeof(void *));     \
	} while (0)

/* The C structure of an object begins with its fid. */
#define AS(type) ((struct type *)(void *)fid)

void adopt(struct fid *fid)
{
	size_t class = fid->fclass;

	fid->ops = stubs_for("fi_ops", class, fid->ops, (fid->ops->size - sizeof(size_t)) / sizeof(void *));
	switch (class) {
	case FI_CLASS_FABRIC:
		ADOPT(AS(fid_fabric), ops, fi_ops_fabric);
		break;
	case FI_CLASS_DOMAIN:
		ADOPT(AS(fid_domain), ops, fi_ops_domain);
		ADOPT(AS(fid_domain), mr, fi_ops_mr);
		break;
	case FI_CLASS_EP:
	case FI_CLASS_SEP:
	case FI_CLASS_RX_CTX:
	case FI_CLASS_TX_CTX:
	case FI_CLASS_SRX_CTX:
		ADOPT(AS(fid_ep), ops, fi_ops_ep);
		ADOPT(AS(fid_ep), cm, fi_ops_cm);
		ADOPT(AS(fid_ep), msg, fi_ops_msg);
		ADOPT(AS(fid_ep), rma, fi_ops_rma);
		ADOPT(AS(fid_ep), tagged, fi_ops_tagged);
		ADOPT(AS(fid_ep), atomic, fi_ops_atomic);
		ADOPT(AS(fid_ep), collective, fi_ops_collective);
		break;
	case FI_CLASS_PEP:
		ADOPT(AS(fid_pep), ops, fi_ops_ep);
		ADOPT(AS(fid_pep), cm, fi_ops_cm);
		break;
	case FI_CLASS_STX_CTX:
		ADOPT(AS(fid_stx), ops, fi_ops_ep);
		break;
	case FI_CLASS_AV:
		ADOPT(AS(fid_av), ops, fi_ops_av);
		break;
	case FI_CLASS_AV_SET:
		ADOPT(AS(fid_av_set), ops, fi_ops_av_set);
		break;
	case FI_CLASS_EQ:
		ADOPT(AS(fid_eq), ops, fi_ops_eq);
		break;
	case FI_CLASS_CQ:
		ADOPT(AS(fid_cq), ops, fi_ops_cq);
		break;
	case FI_CLASS_CNTR:
		ADOPT(AS(fid_cntr), ops, fi_ops_cntr);
		break;
	case FI_CLASS_WAIT:
		ADOPT(AS(fid_wait), ops, fi_ops_wait);
		break;
	case FI_CLASS_POLL:
		ADOPT(AS(fid_poll), ops, fi_ops_poll);
		break;
	}
}

bool has_entry(const void *table, size_t slot)
{
	return table && *(const size_t *)table >= (2 + slot) * sizeof(void *);
}

void *entry_of(const void *table, size_t slot)
{
	return ((void *const *)table)[1 + slot];
}

/* Adds the counts of this process to the shared counts. */
void add_up_counts(void)
{
	for (size_t at = 0; at < copied; at++)
		for (size_t entry = 0; entry < copies[at].entries; entry++) {
			uint64_t count = __atomic_exchange_n(&stub_counts[copies[at].first + entry], 0, __ATOMIC_RELAXED);
			__atomic_fetch_add(&shared->tables[copies[at].known].calls[entry], count, __ATOMIC_RELAXED);
			totals->calls += count;
		}
}

static const char *name_of_entry(const char *type, size_t entry)
{
	static char number[32];

	for (size_t at = 0; at < COUNT(types); at++) {
		if (strcmp(types[at].type, type))
			continue;
		for (const struct entry *one = types[at].entries; one->name; one++)
			if (one->at == (1 + entry) * sizeof(void *))
				return one->name;
	}
	snprintf(number, sizeof(number), "entry %zu", entry);
	return number;
}

size_t report_entries(size_t *missed, bool show)
{
	size_t all = 0;

	*missed = 0;
	for (size_t at = 0; at < shared->count; at++) {
		const struct known *known = &shared->tables[at];
		for (size_t entry = 0; entry < known->entries; entry++) {
			all++;
			if (known->calls[entry] || !show)
				continue;
			++*missed;
			printf("NEVER CALLED  %s of %s: %s\n", known->type, known->class < COUNT(classes) ? classes[known->class] : "?",
			       name_of_entry(known->type, entry));
		}
	}
	return all;
}
