/* The memory that each monitor keeps, and the memory that it does not. */
#include "check.h"

/* Accepts only one address. */
static int answers(void *context, const void *address, size_t length, uint32_t access)
{
	(void)context;
	(void)access;
	return address == PLACE(1) && length == page();
}

void imported(void)
{
	struct device device = DEVICE_INIT;
	struct pindown_attr attr = PINDOWN_ATTR_INIT;
	struct pindown_cache *cache = NULL;
	struct pindown_lane *lane = NULL;

	attr.pin = device_pin;
	attr.unpin = device_unpin;
	attr.context = &device;
	attr.monitor = "imported";
	attr.answers = answers;
	CHECK(pindown_open(&attr, &cache) == 0);
	CHECK(strcmp(pindown_monitor(cache), "imported") == 0);
	CHECK(pindown_lane_open(cache, &lane) == 0);
	CHECK(!(use_once(lane, PLACE(1), 1, 0).ticket & PINDOWN_USE_SINGLE));
	CHECK(use_once(lane, PLACE(2), 1, 0).ticket & PINDOWN_USE_SINGLE);
	CHECK(stats_of(cache).single_not_watchable == 1);
	/* RCACHE-021. */
	CHECK(use_once(lane, PLACE(1), 1, 0).local_key == 1);
	CHECK(pindown_changed(cache, (char *)PLACE(1) + page(), 1) == 0);
	CHECK(use_once(lane, PLACE(1), 1, 0).local_key == 1);
	CHECK(pindown_changed(cache, (char *)PLACE(1) + 17, 1) == 0);
	CHECK(use_once(lane, PLACE(1), 1, 0).local_key == 3);
	CHECK(pindown_changed_everything(cache) == 0);
	CHECK(use_once(lane, PLACE(1), 1, 0).local_key == 4);
	CHECK(stats_of(cache).invalidations == 2 && stats_of(cache).flushes == 1);
	/* The range is invalid, so all memory counts as changed, and no kept registration is used again. */
	REFUSED(pindown_changed(cache, PLACE(1), 0), EINVAL, "0 bytes");
	CHECK(use_once(lane, PLACE(1), 1, 0).local_key == 5);
	REFUSED(pindown_changed(cache, PLACE(1), SIZE_MAX), EINVAL, "exceed the address space");
	CHECK(use_once(lane, PLACE(1), 1, 0).local_key == 6);
	CHECK(stats_of(cache).flushes == 3);
	CHECK(pindown_lane_close(lane) == 0);
	CHECK(pindown_close(cache) == 0);
	CHECK(device_pinned(&device) == 0);

	cache = open_with(&device, "none");
	REFUSED(pindown_changed(cache, PLACE(1), 1), EINVAL, "imported");
	REFUSED(pindown_changed_everything(cache), EINVAL, "imported");
	CHECK(pindown_close(cache) == 0);
}

void sealed(void)
{
	struct device device = DEVICE_INIT;
	struct pindown_cache *cache;
	struct pindown_lane *lane = NULL;
	char *memory = NULL, *stack[16];
	void *again = NULL;
	size_t n;
	int code;

	REFUSED(pindown_alloc(1, NULL), EINVAL, "memory is NULL");
	REFUSED(pindown_alloc(0, &again), EINVAL, "0 bytes");
	REFUSED(pindown_alloc(SIZE_MAX, &again), ENOMEM, "exceed the address space");
	CHECK(pindown_free(NULL) == 0);
	REFUSED(pindown_free(stack), EINVAL, "not allocated by");
	code = pindown_alloc(3 * page() - 1, (void **)&memory);
	if (code == -EOPNOTSUPP) {
		skip("mseal", pindown_last_error());
		return;
	}
	CHECK(code == 0);
	CHECK((uintptr_t)memory % page() == 0);
	for (n = 0; n < 3 * page(); n++)
		if (memory[n] != 0)
			break;
	CHECK(n == 3 * page());
	memset(memory, 5, 3 * page());
	/* Sealed memory cannot be unmapped or protected. */
	CHECK(munmap(memory, page()) == -1);
	CHECK(mprotect(memory, page(), PROT_NONE) == -1);

	cache = open_with(&device, "sealed");
	CHECK(pindown_lane_open(cache, &lane) == 0);
	CHECK(!(use_once(lane, memory + 10, 2 * page(), PINDOWN_LOCAL_WRITE).ticket & PINDOWN_USE_SINGLE));
	CHECK(use_once(lane, memory + 10, 1, PINDOWN_LOCAL_WRITE).local_key == 1);
	CHECK(use_once(lane, stack, sizeof(stack), PINDOWN_LOCAL_WRITE).ticket & PINDOWN_USE_SINGLE);
	CHECK(pindown_lane_close(lane) == 0);
	CHECK(pindown_close(cache) == 0);
	CHECK(device_pinned(&device) == 0);

	REFUSED(pindown_free(memory + page()), EINVAL, "not allocated by");
	CHECK(pindown_free(memory) == 0);
	REFUSED(pindown_free(memory), EINVAL, "already freed");
	CHECK(pindown_alloc(3 * page(), &again) == 0);
	CHECK(*(char *)again == 0);
	CHECK(pindown_free(again) == 0);
}

void userfaultfd(void)
{
	struct device device = DEVICE_INIT;
	struct pindown_attr attr = PINDOWN_ATTR_INIT;
	struct pindown_cache *cache = NULL;
	struct pindown_lane *lane = NULL;
	int protection = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS, turn;
	struct pindown_use first, second;
	char *memory;

	attr.pin = device_pin;
	attr.unpin = device_unpin;
	attr.context = &device;
	attr.monitor = "userfaultfd";
	attr.flags = PINDOWN_NO_UNSEEN_CHANGES;
	if (pindown_open(&attr, &cache) != 0) {
		CHECK(strstr(pindown_last_error(), "userfaultfd"));
		skip("userfaultfd", pindown_last_error());
		return;
	}
	CHECK(pindown_lane_open(cache, &lane) == 0);
	/* MON-011, MON-013: other memory at the same address. */
	memory = mmap(NULL, 4 * page(), protection, kind, -1, 0);
	CHECK(memory != MAP_FAILED);
	for (turn = 0; turn < 3; turn++) {
		memset(memory, turn, 4 * page());
		first = use_once(lane, memory, 4 * page(), PINDOWN_LOCAL_WRITE);
		CHECK(!(first.ticket & PINDOWN_USE_SINGLE));
		CHECK(use_once(lane, memory, page(), 0).local_key == first.local_key);
		CHECK(mmap(memory, 4 * page(), protection, kind | MAP_FIXED, -1, 0) == memory);
		memset(memory, turn, 4 * page());
		second = use_once(lane, memory, page(), 0);
		CHECK(second.local_key != first.local_key);
	}
	CHECK(munmap(memory, 4 * page()) == 0);
	CHECK(pindown_sweep(cache) == 0);
	CHECK(device_pinned(&device) == 0);
	CHECK(pindown_lane_close(lane) == 0);
	CHECK(pindown_close(cache) == 0);
}
