/*
 * The registration cache from fi_open_ops (percale_fi_ext.h), with a device that counts its registrations.
 */
#include "every.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "percale_fi_ext.h"

static struct settings how = { .name = "cache", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL };

struct device {
	uint64_t made, undone;
	/* The maximum number of registrations. Beyond it the device returns -ENOMEM. */
	uint64_t room;
};

static int device_pin(void *context, void *address, size_t length, uint32_t access, struct pindown_pinned *pinned)
{
	struct device *device = context;

	(void)address, (void)length, (void)access;
	if (device->made - device->undone >= device->room)
		return -ENOMEM;
	pinned->local_key = ++device->made;
	pinned->pin = NULL;
	return 0;
}

static void device_unpin(void *context, void *pin)
{
	(void)pin;
	((struct device *)context)->undone++;
}

/* A domain, its operations, and a cache over a device. */
struct world {
	struct room room;
	struct percale_cache_ops *ops;
	const struct pindown_functions *call;
	struct device device;
	struct pindown_cache *cache;
	struct pindown_lane *lane;
};

static void open_domain(struct world *w)
{
	void *ops = NULL;

	*w = (struct world){ .device.room = UINT64_MAX };
	open_room(&w->room, &how);
	NEEDS(fi_open_ops(&w->room.domain->fid, PERCALE_CACHE_OPS, 0, &ops, NULL));
	w->ops = ops;
	w->call = w->ops->pindown;
}

static void attr_of(struct device *device, struct pindown_attr *attr)
{
	*attr = (struct pindown_attr)PINDOWN_ATTR_INIT;
	attr->pin = device_pin;
	attr->unpin = device_unpin;
	attr->context = device;
}

static void open_cache(struct world *w)
{
	struct pindown_attr attr;

	attr_of(&w->device, &attr);
	NEEDS(w->ops->open(w->room.domain, &attr, &w->cache));
	NEEDS(w->call->lane_open(w->cache, &w->lane));
}

/* Imports a monitor of the program. It is used unless FI_MR_CACHE_MONITOR is `disabled`. */
static void open_world(struct world *w)
{
	open_domain(w);
	NEEDS(w->ops->import_monitor(w->room.domain, NULL, NULL));
	open_cache(w);
	CHECK(!strcmp(w->call->monitor(w->cache), "imported") || getenv("FI_MR_CACHE_MONITOR"), "%s", w->call->monitor(w->cache));
}

static void close_world(struct world *w)
{
	ANSWERS(0, w->call->lane_close(w->lane));
	ANSWERS(0, w->call->close(w->cache));
	CHECK(w->device.made == w->device.undone, "%llu remain", (unsigned long long)(w->device.made - w->device.undone));
	close_room(&w->room);
}

/* One lookup that is ended at once. Returns the key. */
static uint64_t use(struct world *w, const void *address, size_t length)
{
	struct pindown_use use = { 0 };
	uint64_t key;

	NEEDS(w->call->get(w->lane, address, length, PINDOWN_LOCAL_WRITE, &use));
	key = use.local_key;
	ANSWERS(0, w->call->end(w->lane, &use));
	return key;
}

static struct pindown_stats stats(struct world *w)
{
	struct pindown_stats stats = PINDOWN_STATS_INIT;

	ANSWERS(0, w->call->sweep(w->cache));
	ANSWERS(0, w->call->read_stats(w->cache, &stats));
	return stats;
}

static uint64_t registered(struct world *w)
{
	ANSWERS(0, w->call->sweep(w->cache));
	return w->device.made - w->device.undone;
}

/* Addresses without memory: an imported monitor does not check them. */
#define AT(n) ((char *)(uintptr_t)(0x7f0000000000 + (uintptr_t)(n) * 0x100000))

enum { PAGE = 4096 };

static void opening(void)
{
	struct world w;
	struct pindown_attr attr;
	struct pindown_cache *cache = NULL;
	struct fid_eq *eq;
	struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_NONE };
	void *ops = NULL;

	begin("opening and refusals");
	open_domain(&w);
	CHECK(w.ops->size == sizeof(*w.ops) && w.call->size == sizeof(*w.call), "%zu", w.ops->size);
	CHECK(w.call->version() == PINDOWN_VERSION, "%#x", w.call->version());
	ANSWERS(-FI_ENOSYS, fi_open_ops(&w.room.domain->fid, "percale_registration_cache_of_tomorrow", 0, &ops, NULL));
	ANSWERS(-FI_EBADFLAGS, fi_open_ops(&w.room.domain->fid, PERCALE_CACHE_OPS, 1, &ops, NULL));
	NEEDS(fi_eq_open(w.room.fabric, &eq_attr, &eq, NULL));
	ANSWERS(-FI_ENOSYS, fi_open_ops(&eq->fid, PERCALE_CACHE_OPS, 0, &ops, NULL));
	ANSWERS(-FI_EINVAL, w.ops->import_monitor((struct fid_domain *)eq, NULL, NULL));
	ANSWERS(0, fi_close(&eq->fid));
	ANSWERS(-FI_EINVAL, w.ops->changed(w.room.domain, AT(1), 1));
	CHECK(strstr(w.call->last_error(), "no monitor was imported"), "%s", w.call->last_error());
	ANSWERS(-FI_EINVAL, w.ops->changed_everything(w.room.domain));
	attr_of(&w.device, &attr);
	attr.monitor = "none";
	ANSWERS(-FI_EINVAL, w.ops->open(w.room.domain, &attr, &cache));
	CHECK(strstr(w.call->last_error(), "FI_MR_CACHE_MONITOR"), "%s", w.call->last_error());
	attr_of(&w.device, &attr);
	attr.unpin = NULL;
	ANSWERS(-FI_EINVAL, w.ops->open(w.room.domain, &attr, &cache));
	ANSWERS(-FI_EINVAL, w.ops->open(NULL, &attr, &cache));
	ANSWERS(-FI_EINVAL, w.ops->open(w.room.domain, NULL, &cache));
	CHECK(!cache && w.device.made == 0, "something was opened");
	/* A cache keeps its domain open. */
	open_cache(&w);
	ANSWERS(-FI_EBUSY, fi_close(&w.room.domain->fid));
	ANSWERS(-FI_EBUSY, w.call->close(w.cache));
	close_world(&w);
	end();
}

static void hits(void)
{
	struct world w;
	uint64_t key;

	begin("one registration for many transfers, and for parts");
	asserts("RCACHE-001 RCACHE-003 RCACHE-004");
	open_world(&w);
	key = use(&w, AT(1), 4 * PAGE);
	for (int n = 0; n < 100; n++)
		CHECK(use(&w, AT(1), 4 * PAGE) == key && use(&w, AT(1) + n * 100, 700) == key, "another registration");
	CHECK(w.device.made == 1 && registered(&w) == 1, "%llu registrations", (unsigned long long)w.device.made);
	close_world(&w);
	end();
}

static void limits(void)
{
	struct world w;
	struct device device = { .room = UINT64_MAX };
	struct pindown_attr attr;
	struct pindown_cache *cache;
	struct pindown_lane *lane;
	struct pindown_use got = { 0 };

	begin("limits of the environment");
	asserts("RCACHE-005 RCACHE-022");
	setenv("FI_MR_CACHE_MAX_SIZE", "32768", 1);
	open_world(&w);
	for (int n = 0; n < 50; n++) {
		use(&w, AT(n), 3 * PAGE);
		CHECK(stats(&w).bytes <= 32768 && registered(&w) <= 2, "%llu bytes", (unsigned long long)stats(&w).bytes);
	}
	use(&w, AT(60), 9 * PAGE);
	CHECK(stats(&w).single_too_large == 1 && registered(&w) == 2, "a registration that is too large was kept");
	close_world(&w);
	/* 0 has the same effect as an unset variable. */
	asserts("RCACHE-006 RCACHE-007");
	setenv("FI_MR_CACHE_MAX_SIZE", "0", 1);
	setenv("FI_MR_CACHE_MAX_COUNT", "8", 1);
	open_world(&w);
	for (int n = 0; n < 100; n++) {
		use(&w, AT(n), 200 * PAGE);
		CHECK(registered(&w) <= 8, "%llu registered", (unsigned long long)registered(&w));
	}
	CHECK(registered(&w) >= 4, "%llu registered", (unsigned long long)registered(&w));
	/* The program's own settings take precedence. */
	attr_of(&device, &attr);
	attr.max_count = 2;
	NEEDS(w.ops->open(w.room.domain, &attr, &cache));
	NEEDS(w.call->lane_open(cache, &lane));
	for (int n = 0; n < 40; n++) {
		NEEDS(w.call->get(lane, AT(n), PAGE, 0, &got));
		ANSWERS(0, w.call->end(lane, &got));
	}
	ANSWERS(0, w.call->sweep(cache));
	CHECK(device.made - device.undone <= 2, "%llu registered", (unsigned long long)(device.made - device.undone));
	ANSWERS(0, w.call->lane_close(lane));
	ANSWERS(0, w.call->close(cache));
	CHECK(device.made == device.undone, "something remains");
	close_world(&w);
	unsetenv("FI_MR_CACHE_MAX_SIZE");
	setenv("FI_MR_CACHE_MAX_COUNT", "0", 1);
	asserts("RCACHE-009");
	open_world(&w);
	for (unsigned n = 1; n < 20; n++) {
		use(&w, AT(1), PAGE);
		CHECK(w.device.made == n && w.device.undone == n, "not registered and deregistered");
	}
	close_world(&w);
	unsetenv("FI_MR_CACHE_MAX_COUNT");
	open_world(&w);
	asserts("RCACHE-008");
	for (int n = 0; n < 1024; n++)
		use(&w, AT(n), PAGE);
	CHECK(registered(&w) == 1024, "%llu registered", (unsigned long long)registered(&w));
	for (int n = 1024; n < 1500; n++)
		use(&w, AT(n), PAGE);
	CHECK(registered(&w) <= 1024, "%llu registered", (unsigned long long)registered(&w));
	close_world(&w);
	end();
}

static void evictions(void)
{
	struct world w;
	struct pindown_use held = { 0 };

	begin("registrations in use are kept, idle ones are evicted");
	asserts("RCACHE-010");
	setenv("FI_MR_CACHE_MAX_COUNT", "2", 1);
	open_world(&w);
	NEEDS(w.call->get(w.lane, AT(1), PAGE, 0, &held));
	for (int n = 2; n < 40; n++)
		use(&w, AT(n), PAGE);
	/* Keys count up. The registration in use was the first, and all others may be deregistered. */
	CHECK(held.local_key == 1 && registered(&w) >= 1, "the registration in use was evicted");
	ANSWERS(0, w.call->end(w.lane, &held));
	CHECK(registered(&w) <= 2, "%llu registered", (unsigned long long)registered(&w));
	close_world(&w);
	unsetenv("FI_MR_CACHE_MAX_COUNT");
	open_world(&w);
	w.device.room = 3;
	asserts("RCACHE-023");
	for (int n = 0; n < 40; n++)
		use(&w, AT(n), PAGE);
	CHECK(w.device.made == 40 && stats(&w).failures == 0, "%llu registrations", (unsigned long long)w.device.made);
	w.device.room = 0;
	ANSWERS(-FI_ENOMEM, w.call->get(w.lane, AT(50), PAGE, 0, &held));
	close_world(&w);
	end();
}

static void monitors(void)
{
	struct world w;

	begin("monitors by name");
	asserts("RCACHE-013");
	setenv("FI_MR_CACHE_MONITOR", "disabled", 1);
	open_world(&w);
	CHECK(!strcmp(w.call->monitor(w.cache), "none"), "%s", w.call->monitor(w.cache));
	use(&w, AT(1), PAGE);
	use(&w, AT(1), PAGE);
	CHECK(w.device.made == 2 && w.device.undone == 2, "kept");
	close_world(&w);
	asserts("RCACHE-011 RCACHE-014");
	for (int n = 0; n < 3; n++) {
		static const char *const names[] = { "userfaultfd", "memhooks", "clairvoyance" };
		const char *found;

		setenv("FI_MR_CACHE_MONITOR", names[n], 1);
		open_domain(&w);
		open_cache(&w);
		found = w.call->monitor(w.cache);
		if (n == 0)
			CHECK(!strcmp(found, "userfaultfd") || (!strcmp(found, "none") && strstr(w.call->monitor_why(w.cache), "not available")),
			      "%s: %s", found, w.call->monitor_why(w.cache));
		else
			CHECK(strcmp(found, "imported") && strcmp(found, names[n]), "%s", found);
		close_world(&w);
	}
	unsetenv("FI_MR_CACHE_MONITOR");
	end();
}

static int only_the_first(void *context, const void *address, size_t length, uint32_t access)
{
	(void)length, (void)access;
	return address == context;
}

static void changes(void)
{
	struct world w;
	struct device device = { .room = UINT64_MAX };
	struct pindown_attr attr;
	struct pindown_cache *other;
	struct pindown_lane *lane;
	struct pindown_use got = { 0 };
	uint64_t key, neighbour;

	begin("a monitor of the program");
	asserts("RCACHE-020 RCACHE-021");
	open_world(&w);
	ANSWERS(-FI_EBUSY, w.ops->import_monitor(w.room.domain, NULL, NULL));
	ANSWERS(-FI_EINVAL, w.ops->changed(w.room.domain, AT(1), 0));
	neighbour = use(&w, AT(1) + 4 * PAGE, PAGE);
	key = use(&w, AT(1), 4 * PAGE);
	attr_of(&device, &attr);
	NEEDS(w.ops->open(w.room.domain, &attr, &other));
	NEEDS(w.call->lane_open(other, &lane));
	NEEDS(w.call->get(lane, AT(1), PAGE, 0, &got));
	ANSWERS(0, w.call->end(lane, &got));
	ANSWERS(0, w.ops->changed(w.room.domain, AT(1), 1));
	CHECK(use(&w, AT(1), 4 * PAGE) != key, "stale");
	CHECK(use(&w, AT(1) + 4 * PAGE, PAGE) == neighbour, "an unchanged registration was dropped");
	NEEDS(w.call->get(lane, AT(1), PAGE, 0, &got));
	ANSWERS(0, w.call->end(lane, &got));
	CHECK(device.made == 2, "the other cache did not get the change");
	ANSWERS(0, w.ops->changed_everything(w.room.domain));
	key = use(&w, AT(1) + 4 * PAGE, PAGE);
	CHECK(key != neighbour, "stale");
	ANSWERS(-FI_EINVAL, w.ops->changed(w.room.domain, AT(9), 0));
	neighbour = use(&w, AT(1) + 4 * PAGE, PAGE);
	CHECK(neighbour != key, "an empty range did not drop everything");
	ANSWERS(-FI_EINVAL, w.ops->changed(w.room.domain, AT(9), SIZE_MAX));
	CHECK(use(&w, AT(1) + 4 * PAGE, PAGE) != neighbour, "a range beyond the last address did not drop everything");
	ANSWERS(0, w.call->lane_close(lane));
	ANSWERS(0, w.call->close(other));
	CHECK(device.undone == 2, "something remains");
	close_world(&w);
	open_domain(&w);
	NEEDS(w.ops->import_monitor(w.room.domain, only_the_first, AT(1)));
	open_cache(&w);
	for (int n = 0; n < 5; n++) {
		use(&w, AT(1), PAGE);
		use(&w, AT(2), PAGE);
	}
	CHECK(w.device.made == 6 && registered(&w) == 1, "%llu registrations", (unsigned long long)w.device.made);
	close_world(&w);
	end();
}

/* With the best monitor of this machine. */
static void remapped(void)
{
	struct world w;
	char *memory;
	uint64_t before, key;

	begin("memory that is mapped again");
	asserts("RCACHE-021");
	open_domain(&w);
	open_cache(&w);
	memory = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(memory != MAP_FAILED, "no memory");
	for (int n = 0; n < 50; n++) {
		key = use(&w, memory, 4 * PAGE);
		before = w.device.made;
		MUST(mmap(memory, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory, "no memory");
		CHECK(use(&w, memory, 4 * PAGE) != key && w.device.made == before + 1, "stale, with the monitor %s", w.call->monitor(w.cache));
	}
	munmap(memory, 4 * PAGE);
	close_world(&w);
	end();
}

static void own(void)
{
	struct world w;
	struct pindown_registration registration = PINDOWN_REGISTRATION_INIT;
	uint64_t handle = 0;

	begin("registrations of the program itself");
	asserts("RCACHE-027");
	open_world(&w);
	NEEDS(w.call->register_memory(w.cache, AT(1), PAGE, PINDOWN_REMOTE_READ, &registration));
	use(&w, AT(2), PAGE);
	ANSWERS(0, w.call->check(w.cache, &handle));
	ANSWERS(0, w.ops->changed(w.room.domain, AT(1), PAGE));
	ANSWERS(0, w.ops->changed(w.room.domain, AT(2), PAGE));
	CHECK(registered(&w) == 1, "%llu registered", (unsigned long long)registered(&w));
	ANSWERS(1, w.call->check(w.cache, &handle));
	CHECK(handle == registration.handle, "another");
	ANSWERS(0, w.call->check(w.cache, &handle));
	ANSWERS(0, w.call->deregister(w.cache, handle));
	ANSWERS(-FI_ENOENT, w.call->deregister(w.cache, handle));
	CHECK(registered(&w) == 0, "it remains");
	close_world(&w);
	end();
}

void cache_groups(void)
{
	if (strcmp(options.provider, "percale")) {
		skip("registration cache", "another provider");
		return;
	}
	opening();
	hits();
	limits();
	evictions();
	monitors();
	changes();
	remapped();
	own();
}
