/* Open objects, the memory of operations, and closing in an order. */
#include "walk.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#endif
#ifdef SANITIZED
#include <sanitizer/asan_interface.h>
#define FORBID(at, length) __asan_poison_memory_region(at, length)
#define ALLOW(at, length) __asan_unpoison_memory_region(at, length)
#else
#define FORBID(at, length) (void)(at), (void)(length)
#define ALLOW(at, length) (void)(at), (void)(length)
#endif

/* The number of passes over all objects without a successful close, after which the close has failed. */
#define PASSES 50

/* The contents of memory that belongs to the program again. */
#define OURS 0xa5

struct fid_pep *listening;

/* Objects begin with their fid. */
struct object *find(struct world *w, const void *fid)
{
	for (int at = 0; at < w->count; at++)
		if ((const void *)w->objects[at].fid == fid)
			return &w->objects[at];
	return NULL;
}

void uses(struct world *w, const void *user, const void *used)
{
	struct object *one = find(w, user), *other = find(w, used);

	MUST(one && other, "no such object");
	for (size_t at = 0; at < COUNT(one->uses); at++)
		if (!one->uses[at]) {
			one->uses[at] = other;
			return;
		}
	MUST(false, "too many uses of %s", one->name);
}

void no_longer_uses(struct world *w, const void *user, const void *used)
{
	struct object *one = find(w, user), *other = find(w, used);

	for (size_t at = 0; at < COUNT(one->uses); at++)
		if (one->uses[at] == other)
			one->uses[at] = NULL;
}

struct object *keep(struct world *w, const char *name, struct fid *fid, const void *within, int part)
{
	struct object *o = &w->objects[w->count];

	MUST(w->count < OBJECTS, "too many objects");
	*o = (struct object){ .name = name, .fid = fid, .part = part };
	w->count++;
	adopt(fid);
	if (within)
		uses(w, fid, within);
	return o;
}

int new_part(struct world *w)
{
	return ++w->parts;
}

void open_fabric(struct world *w, struct fi_info *info)
{
	memset(w, 0, sizeof(*w));
	w->info = info;
	NEEDS(fi_fabric(info->fabric_attr, &w->fabric, w));
	keep(w, "fabric", &w->fabric->fid, NULL, 0);
}

void open_domain(struct world *w)
{
	NEEDS(fi_domain(w->fabric, w->info, &w->domain, w));
	keep(w, "domain", &w->domain->fid, w->fabric, 0);
}

uint64_t base_of(struct world *w, const void *memory)
{
	int mode = w->info->domain_attr->mr_mode;
	bool is_virtual = mode == FI_MR_BASIC || (mode != FI_MR_SCALABLE && (mode & FI_MR_VIRT_ADDR));

	return is_virtual ? (uint64_t)(uintptr_t)memory : 0;
}

static bool by_level;

void describe_by_level(bool is_first)
{
	by_level = is_first;
}

bool describes(void)
{
	return by_level ? setting.level % 2 : sometimes();
}

int any_region_mode(bool described)
{
	static const int old[] = { FI_MR_SCALABLE, FI_MR_BASIC, FI_MR_UNSPEC };
	static const int modes[] = { 0, FI_MR_VIRT_ADDR, FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY, FI_MR_PROV_KEY };

	if (setting.api < FI_VERSION(1, 5))
		return old[below(COUNT(old))];
	return modes[below(COUNT(modes))] | (described ? FI_MR_LOCAL : 0);
}

enum fi_wait_obj any_wait(void)
{
	static const enum fi_wait_obj all[] = { FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_YIELD };

	return all[below(COUNT(all) - (setting.api < FI_VERSION(1, 10)))];
}

enum fi_cq_format any_format(void)
{
	return (enum fi_cq_format)(FI_CQ_FORMAT_CONTEXT + below(4));
}

struct fid_cq *open_queue(struct world *w, const char *name, enum fi_wait_obj wait, enum fi_cq_format format, struct fid_wait *set)
{
	struct fi_cq_attr wanted = { .size = below(2) * 16, .format = format, .wait_obj = wait, .wait_set = set };
	struct fi_cq_attr *attr = exactly(queue_attr_size(), &wanted, sizeof(wanted));
	struct fid_cq *cq;

	NEEDS(fi_cq_open(w->domain, attr, &cq, w));
	free(attr);
	keep(w, name, &cq->fid, w->domain, 0);
	if (set)
		uses(w, cq, set);
	return cq;
}

struct fid_cntr *open_counter(struct world *w, const char *name, enum fi_wait_obj wait, struct fid_wait *set)
{
	struct fi_cntr_attr wanted = { .wait_obj = wait, .wait_set = set };
	struct fi_cntr_attr *attr = exactly(counter_attr_size(), &wanted, sizeof(wanted));
	struct fid_cntr *cntr;

	NEEDS(fi_cntr_open(w->domain, attr, &cntr, w));
	free(attr);
	keep(w, name, &cntr->fid, w->domain, 0);
	if (set)
		uses(w, cntr, set);
	return cntr;
}

struct fid_eq *open_events(struct world *w, const char *name, enum fi_wait_obj wait, struct fid_wait *set)
{
	struct fi_eq_attr wanted = { .size = below(2) * 8, .flags = FI_WRITE, .wait_obj = wait, .wait_set = set };
	struct fi_eq_attr *attr = exactly(sizeof(wanted), &wanted, sizeof(wanted));
	struct fid_eq *eq;

	NEEDS(fi_eq_open(w->fabric, attr, &eq, w));
	free(attr);
	keep(w, name, &eq->fid, w->fabric, 0);
	if (set)
		uses(w, eq, set);
	return eq;
}

struct fid_av *open_vector(struct world *w, const char *name, enum fi_av_type type, uint64_t flags, const char *shared)
{
	struct fi_av_attr wanted = { .type = type, .count = below(2) * 4, .flags = flags, .name = shared };
	struct fi_av_attr *attr = exactly(sizeof(wanted), &wanted, sizeof(wanted));
	struct fid_av *av;

	NEEDS(fi_av_open(w->domain, attr, &av, w));
	free(attr);
	keep(w, name, &av->fid, w->domain, 0);
	return av;
}

struct fid_mr *open_region(struct world *w, const char *name, size_t length, uint64_t flags)
{
	static uint64_t key = 100;
	struct iovec iov;
	struct fi_mr_attr wanted = { .mr_iov = &iov, .iov_count = 1, .requested_key = key++, .context = w,
		.access = FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE | FI_SEND | FI_RECV };
	struct fi_mr_attr *attr;
	struct fid_mr *mr;
	int part = new_part(w);

	iov = (struct iovec){ lend(w, part, length), length };
	attr = exactly(region_attr_size(), &wanted, sizeof(wanted));
	NEEDS(fi_mr_regattr(w->domain, attr, flags, &mr));
	free(attr);
	keep(w, name, &mr->fid, w->domain, part);
	return mr;
}

fi_addr_t insert_name(struct fid_av *av, struct fid *ep)
{
	char *name = malloc(NAME);
	size_t length = NAME;
	fi_addr_t address = FI_ADDR_NOTAVAIL;

	MUST(name, "out of memory");
	NEEDS(fi_getname(ep, name, &length));
	/* Reallocated to exactly the required size. */
	name = realloc(name, length);
	MUST(name && fi_av_insert(av, name, 1, &address, 0, NULL) == 1, "the address cannot be inserted");
	free(name);
	return address;
}

char *lend(struct world *w, int part, size_t length)
{
	struct loan *loan = &w->loans[w->loaned];

	MUST(w->loaned < LOANS, "too many loans");
	*loan = (struct loan){ malloc(length ? length : 1), length, part, false };
	MUST(loan->memory, "out of memory");
	memset(loan->memory, (int)(w->loaned & 0x7f), length);
	w->loaned++;
	return loan->memory;
}

/* Memory of a closed part belongs to the program again: the provider neither reads nor writes it. */
static void take_back(struct world *w, int part)
{
	for (int at = 0; at < w->count; at++)
		if (w->objects[at].part == part && !w->objects[at].closed)
			return;
	for (int at = 0; at < w->loaned; at++) {
		struct loan *loan = &w->loans[at];
		if (loan->part != part || loan->returned)
			continue;
		memset(loan->memory, OURS, loan->length);
		FORBID(loan->memory, loan->length);
		loan->returned = true;
	}
}

int close_object(struct world *w, struct object *o)
{
	int code;

	totals->closings++;
	/* Requests to a closed listener cannot be rejected through it. */
	if (listening && o->fid == &listening->fid)
		listening = NULL;
	code = fi_close(o->fid);
	if (code == -FI_EBUSY) {
		totals->refusals++;
		return code;
	}
	if (code != 0)
		wrong(__FILE__, __LINE__, "fi_close of %s: %d (%s)", o->name, code, code_text(code));
	for (int at = 0; at < w->count; at++)
		for (size_t use = 0; use < COUNT(o->uses); use++)
			if (!w->objects[at].closed && w->objects[at].uses[use] == o)
				wrong(__FILE__, __LINE__, "fi_close of %s returns 0 while %s is open", o->name, w->objects[at].name);
	o->closed = true;
	if (o->part)
		take_back(w, o->part);
	return 0;
}

/* An object is unchanged after its close was rejected. */
static void still_there(struct world *w, struct object *o)
{
	struct fid_cntr *cntr;
	struct fid_eq *eq;
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_NONE };
	char name[NAME];
	size_t length = sizeof(name);

	switch (o->fid->fclass) {
	case FI_CLASS_FABRIC:
		NEEDS(fi_eq_open((struct fid_fabric *)o->fid, &attr, &eq, NULL));
		NEEDS(fi_close(&eq->fid));
		break;
	case FI_CLASS_DOMAIN:
		NEEDS(fi_cntr_open((struct fid_domain *)o->fid, NULL, &cntr, NULL));
		NEEDS(fi_close(&cntr->fid));
		break;
	case FI_CLASS_CQ:
		fi_cq_read((struct fid_cq *)o->fid, NULL, 0);
		break;
	case FI_CLASS_EQ:
		if (sometimes())
			read_event((struct fid_eq *)o->fid);
		break;
	case FI_CLASS_CNTR:
		fi_cntr_read((struct fid_cntr *)o->fid);
		break;
	case FI_CLASS_AV:
		fi_av_lookup((struct fid_av *)o->fid, 0, name, &length);
		break;
	case FI_CLASS_EP:
	case FI_CLASS_SEP:
		fi_getname(o->fid, name, &length);
		break;
	}
	if (w->before_retry)
		w->before_retry(w);
}

static void free_world(struct world *w)
{
	for (int at = 0; at < w->loaned; at++) {
		struct loan *loan = &w->loans[at];
		ALLOW(loan->memory, loan->length);
		for (size_t byte = 0; loan->returned && byte < loan->length; byte++)
			if ((unsigned char)loan->memory[byte] != OURS)
				wrong(__FILE__, __LINE__, "byte %zu of %zu was written after its last user was closed (part %d)",
				      byte, loan->length, loan->part);
		free(loan->memory);
	}
	fi_freeinfo(w->info);
	memset(w, 0, sizeof(*w));
}

void close_world(struct world *w, const int *order)
{
	int left = 0, stuck = 0;

	for (int at = 0; at < w->count; at++)
		left += !w->objects[at].closed;
	while (left > 0) {
		int before = left;
		for (int at = 0; at < w->count; at++) {
			struct object *o = &w->objects[order ? order[at] : w->count - 1 - at];
			if (o->closed)
				continue;
			if (close_object(w, o) == 0)
				left--;
			else
				still_there(w, o);
		}
		stuck = left == before ? stuck + 1 : 0;
		if (stuck == PASSES) {
			char names[512] = "";
			for (int at = 0; at < w->count; at++)
				if (!w->objects[at].closed)
					snprintf(names + strlen(names), sizeof(names) - strlen(names), " %s", w->objects[at].name);
			wrong(__FILE__, __LINE__, "none of these objects can be closed:%s", names);
		}
	}
	free_world(w);
}
