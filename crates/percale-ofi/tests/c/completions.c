/* Completions: read in order, looked up by context, and checked for unexpected ones. The two processes of a pair also
 * synchronize here. */
#include "every.h"

#include <errno.h>
#include <unistd.h>

static struct fi_context2 contexts[1024];

void *context(int number)
{
	MUST(number >= 0 && (size_t)number < COUNT(contexts), "%d", number);
	return &contexts[number];
}

static void keep(struct side *side, struct done done)
{
	MUST((size_t)side->stashed < COUNT(side->stash), "too many completions that the test has not requested");
	side->stash[side->stashed++] = done;
}

static void read_error(struct side *side, struct fid_cq *cq)
{
	struct fi_cq_err_entry entry = { 0 };
	char text[128] = "";
	ssize_t got = fi_cq_readerr(cq, &entry, 0);

	/* Another thread may have read the completion (fi_cq(3)). */
	if (got == -FI_EAGAIN)
		return;
	ANSWERS(1, got);
	/* The provider must have a text for each of its own codes. */
	const char *words = fi_cq_strerror(cq, entry.prov_errno, entry.err_data, text, sizeof(text));
	CHECK(words && words[0], "no text for %d", entry.prov_errno);
	CHECK(text[0] && strlen(text) < sizeof(text), "no text in the buffer");
	keep(side, (struct done){ entry.op_context, entry.flags, entry.len, entry.buf, entry.data, entry.tag,
				  FI_ADDR_NOTAVAIL, entry.err, entry.prov_errno, entry.olen });
}

static void read_queue(struct side *side, struct fid_cq *cq)
{
	struct fi_cq_tagged_entry entries[8];
	fi_addr_t sources[8];
	ssize_t got;

	while ((got = fi_cq_readfrom(cq, entries, COUNT(entries), sources)) > 0) {
		MUST(got <= (ssize_t)COUNT(entries), "%zd", got);
		for (ssize_t at = 0; at < got; at++) {
			struct fi_cq_tagged_entry *e = &entries[at];
			keep(side, (struct done){ e->op_context, e->flags, e->len, e->buf, e->data, e->tag, sources[at], 0, 0, 0 });
		}
	}
	if (got == -FI_EAVAIL)
		read_error(side, cq);
	else
		ANSWERS(-FI_EAGAIN, got);
}

static void progress_one(struct side *side)
{
	read_queue(side, side->txcq);
	if (side->rxcq != side->txcq)
		read_queue(side, side->rxcq);
}

void progress(struct side *side)
{
	progress_one(side);
	if (side->mate)
		progress_one(side->mate);
}

static struct done take_at(struct side *side, int at)
{
	struct done done = side->stash[at];

	memmove(&side->stash[at], &side->stash[at + 1], (size_t)(--side->stashed - at) * sizeof(done));
	return done;
}

struct done take(struct side *side, void *context)
{
	double until = now() + WAIT_LIMIT;

	for (;;) {
		for (int at = 0; at < side->stashed; at++)
			if (side->stash[at].context == context)
				return take_at(side, at);
		MUST(now() < until, "the completion did not arrive");
		progress(side);
	}
}

struct done take_flags(struct side *side, uint64_t flags)
{
	double until = now() + WAIT_LIMIT;

	for (;;) {
		for (int at = 0; at < side->stashed; at++)
			if ((side->stash[at].flags & flags) == flags)
				return take_at(side, at);
		MUST(now() < until, "no completion with flags %#llx", (unsigned long long)flags);
		progress(side);
	}
}

static void none_left(struct side *side)
{
	progress(side);
	while (side->stashed > 0) {
		struct done done = take_at(side, 0);
		CHECK(false, "a completion too many: flags %#llx len %zu tag %#llx error %d", (unsigned long long)done.flags,
		      done.len, (unsigned long long)done.tag, done.err);
	}
}

void quiet(struct pair *p)
{
	meet(p);
	if (p->a)
		none_left(p->a);
	if (p->b && p->b != p->a)
		none_left(p->b);
	meet(p);
}

/* Reads from the other process and makes progress in the meantime. */
static void from_link(struct pair *p, void *to, size_t size)
{
	double until = now() + WAIT_LIMIT;

	for (size_t got = 0; got < size;) {
		ssize_t more = read(p->link, (char *)to + got, size - got);
		if (more > 0) {
			got += (size_t)more;
			continue;
		}
		MUST(more != 0, "the other process has ended");
		MUST(errno == EAGAIN || errno == EINTR, "the other process: %s", strerror(errno));
		MUST(now() < until, "the other process sends nothing");
		progress(p->a ? p->a : p->b);
	}
}

static void to_link(struct pair *p, const void *from, size_t size)
{
	MUST(write(p->link, from, size) == (ssize_t)size, "the other process: %s", strerror(errno));
}

void meet(struct pair *p)
{
	char token = 0;

	if (p->link < 0)
		return;
	to_link(p, &token, 1);
	from_link(p, &token, 1);
}

static void hand(struct pair *p, bool is_from, void *value, size_t size)
{
	if (p->link < 0)
		return;
	if (is_from)
		to_link(p, value, size);
	else
		from_link(p, value, size);
}

void hand_to_a(struct pair *p, void *value, size_t size)
{
	hand(p, p->b != NULL, value, size);
}

void hand_to_b(struct pair *p, void *value, size_t size)
{
	hand(p, p->a != NULL, value, size);
}

bool reports(const struct side *side, bool transmits, uint64_t flags)
{
	uint64_t defaults = transmits ? side->how->op_flags : side->how->op_flags & FI_COMPLETION;
	bool selective = transmits ? side->how->tx_selective : side->how->rx_selective;

	return !selective || ((flags == OWN_FLAGS ? defaults : flags) & FI_COMPLETION);
}
