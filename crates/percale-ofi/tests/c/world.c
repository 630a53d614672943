/* Two ends for the registration checks, and accesses between them. */
#include "registration.h"

#include <sys/mman.h>

static const struct settings plain = { .name = "registration", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE,
				       .progress = FI_PROGRESS_MANUAL, .caps = FI_RMA_EVENT };

void open_world(struct world *w, int taken, const struct settings *how)
{
	static struct settings kept[8];
	static size_t opened;
	struct settings *own = &kept[opened++ % COUNT(kept)];
	char name[64];

	*own = how ? *how : plain;
	own->taken |= taken;
	memset(w, 0, sizeof(*w));
	if (options.alone) {
		open_room(&w->two.room, own);
		open_side(&w->two.a, &w->two.room, own);
		name_of(&w->two.a, name, sizeof(name));
		insert_peer(&w->two.a, name);
		w->a = w->b = &w->two.a;
	} else {
		open_two(&w->two, own);
		w->a = &w->two.a, w->b = &w->two.b;
	}
	w->domain = w->two.room.domain;
	w->mode = w->two.room.info->domain_attr->mr_mode;
}

void close_world(struct world *w)
{
	struct pair pair = { w->a, w->b, -1 };

	quiet(&pair);
	if (options.alone) {
		close_side(&w->two.a);
		close_room(&w->two.room);
	} else {
		close_two(&w->two);
	}
}

static int ended(struct world *w, ssize_t posted, int number)
{
	return posted ? (int)posted : take(w->a, context(number)).err;
}

int try_write(struct world *w, uint64_t address, uint64_t key, size_t len, unsigned seed)
{
	struct side *a = w->a;

	fill(a->out, len, seed);
	return ended(w, POST(a, fi_write(a->ep, a->out, len, a->out_desc, a->peer, address, key, context(0))), 0);
}

int try_read(struct world *w, uint64_t address, uint64_t key, size_t len)
{
	struct side *a = w->a;

	memset(a->in, 0, len);
	return ended(w, POST(a, fi_read(a->ep, a->in, len, a->in_desc, a->peer, address, key, context(1))), 1);
}

int try_add(struct world *w, uint64_t address, uint64_t key, uint64_t operand)
{
	struct side *a = w->a;

	memcpy(a->out, &operand, sizeof(operand));
	return ended(w, POST(a, fi_atomic(a->ep, a->out, 1, a->out_desc, a->peer, address, key, FI_UINT64, FI_SUM, context(2))), 2);
}

void refused(struct world *w, uint64_t address, uint64_t key, const char *memory, unsigned seed)
{
	CHECK(try_write(w, address, key, 64, seed + 1) != 0, "a write to %#llx by %#llx was made", (unsigned long long)address, (unsigned long long)key);
	CHECK(try_read(w, address, key, 64) != 0, "a read was made");
	for (size_t at = 0; at < 64; at++)
		CHECK(w->a->in[at] == 0, "something was read");
	CHECK(try_add(w, address, key, 1) != 0, "an atomic operation was made");
	if (memory)
		CHECK(is_filled(memory, BYTES, seed), "the memory was changed");
}

void served(struct world *w, uint64_t address, uint64_t key, char *memory)
{
	uint64_t before, after;

	ANSWERS(0, try_write(w, address + 64, key, 500, 77));
	CHECK(is_filled(memory + 64, 500, 77), "the write is not there");
	ANSWERS(0, try_read(w, address + 64, key, 500));
	CHECK(is_filled(w->a->in, 500, 77), "the read returned other bytes");
	memcpy(&before, memory + 8, 8);
	ANSWERS(0, try_add(w, address + 8, key, 5));
	memcpy(&after, memory + 8, 8);
	CHECK(after == before + 5, "%#llx, then %#llx", (unsigned long long)before, (unsigned long long)after);
}

uint64_t base_of(const struct world *w, const void *memory)
{
	return w->mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC) ? (uintptr_t)memory : 0;
}

struct fid_mr *registered(struct world *w, void *memory, size_t len, uint64_t access, uint64_t key, uint64_t flags)
{
	struct fid_mr *mr;

	NEEDS(fi_mr_reg(w->domain, memory, len, access, 0, key, flags, &mr, NULL));
	return mr;
}

char *pages(size_t len, unsigned seed)
{
	char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	MUST(memory != MAP_FAILED, "out of memory");
	fill(memory, len, seed);
	return memory;
}
