/* Callbacks that call the library, that block, and that return invalid values. */
#include "check.h"

/* A device with callbacks that use the cache that calls them. */
struct caller {
	struct device device;
	struct pindown_cache *cache;
	/* Another lane than the one for which the callbacks are called. */
	struct pindown_lane *lane;
	/* The depth of nested calls, which limits the recursion. */
	int depth;
	uint64_t bad;
	/* The pin callback waits here for another thread. */
	int blocks;
	pthread_barrier_t entered, leave;
};

static int calling_pin(void *context, void *address, size_t length, uint32_t access, struct pindown_pinned *pinned)
{
	struct caller *caller = context;
	struct pindown_stats stats = PINDOWN_STATS_INIT;
	struct pindown_registration own = PINDOWN_REGISTRATION_INIT;
	struct pindown_use use;

	if (caller->blocks) {
		pthread_barrier_wait(&caller->entered);
		pthread_barrier_wait(&caller->leave);
	}
	caller->depth++;
	if (caller->cache && caller->depth == 1) {
		caller->bad += pindown_get(caller->lane, PLACE(20), 10, 0, &use) != 0;
		caller->bad += pindown_hold(caller->lane, &use) != 0;
		caller->bad += pindown_end(caller->lane, &use) != 0;
		caller->bad += pindown_register(caller->cache, PLACE(21), 10, 0, &own) != 0;
		caller->bad += pindown_deregister(caller->cache, own.handle) != 0;
		caller->bad += pindown_changed(caller->cache, PLACE(20), 10) != 0;
		caller->bad += pindown_flush(caller->cache) != 0;
		caller->bad += pindown_read_stats(caller->cache, &stats) != 0;
		/* The cache cannot be closed while lanes are open. */
		caller->bad += pindown_close(caller->cache) != -EBUSY;
	}
	caller->depth--;
	return device_pin(&caller->device, address, length, access, pinned);
}

static void calling_unpin(void *context, void *pin)
{
	struct caller *caller = context;

	caller->depth++;
	if (caller->cache && caller->depth == 1) {
		caller->bad += pindown_sweep(caller->cache) != 0;
		caller->bad += pindown_changed_everything(caller->cache) != 0;
	}
	caller->depth--;
	device_unpin(&caller->device, pin);
}

static void open_caller(struct caller *caller, struct pindown_lane **lane)
{
	struct pindown_attr attr = PINDOWN_ATTR_INIT;
	struct pindown_cache *cache = NULL;

	attr.pin = calling_pin;
	attr.unpin = calling_unpin;
	attr.context = caller;
	attr.monitor = "imported";
	CHECK(pindown_open(&attr, &cache) == 0);
	CHECK(pindown_lane_open(cache, &caller->lane) == 0);
	CHECK(pindown_lane_open(cache, lane) == 0);
	caller->cache = cache;
}

static void close_caller(struct caller *caller, struct pindown_lane *lane)
{
	struct pindown_cache *cache = caller->cache;

	CHECK(pindown_lane_close(lane) == 0);
	CHECK(pindown_lane_close(caller->lane) == 0);
	/* The last unpins must not call a cache that is being closed. */
	caller->cache = NULL;
	CHECK(pindown_close(cache) == 0);
	CHECK(device_pinned(&caller->device) == 0);
	CHECK(caller->bad == 0);
}

static void *looks_up(void *argument)
{
	struct caller *caller = argument;
	struct pindown_lane *lane = NULL;
	struct pindown_use use;

	caller->bad += pindown_lane_open(caller->cache, &lane) != 0;
	caller->bad += pindown_get(lane, PLACE(2), 10, 0, &use) != 0;
	caller->bad += pindown_end(lane, &use) != 0;
	caller->bad += pindown_lane_close(lane) != 0;
	return NULL;
}

void callbacks(void)
{
	struct caller caller = { .device = DEVICE_INIT };
	struct pindown_lane *lane = NULL;
	struct pindown_use use;
	pthread_t thread;
	int turn;

	open_caller(&caller, &lane);
	for (turn = 0; turn < 100; turn++) {
		use_once(lane, PLACE(turn % 7), 10, 0);
		CHECK(pindown_changed(caller.cache, PLACE(turn % 5), 10) == 0);
		CHECK(pindown_sweep(caller.cache) == 0);
	}
	/* The registrations of the callbacks have been unpinned. */
	CHECK(pindown_flush(caller.cache) == 0);
	CHECK(pindown_sweep(caller.cache) == 0);
	CHECK(device_pinned(&caller.device) == 0);
	close_caller(&caller, lane);

	/* While a pin callback waits, other threads look up, register and sweep. */
	open_caller(&caller, &lane);
	use_once(lane, PLACE(1), 10, 0);
	CHECK(pthread_barrier_init(&caller.entered, NULL, 2) == 0);
	CHECK(pthread_barrier_init(&caller.leave, NULL, 2) == 0);
	caller.blocks = 1;
	/* From here on the callbacks do not call the library, because several threads would use the lane at once. */
	caller.depth = 1;
	CHECK(pthread_create(&thread, NULL, looks_up, &caller) == 0);
	pthread_barrier_wait(&caller.entered);
	CHECK(use_once(lane, PLACE(1), 10, 0).local_key != 0);
	CHECK(pindown_changed(caller.cache, PLACE(3), 10) == 0);
	CHECK(pindown_sweep(caller.cache) == 0);
	CHECK(stats_of(caller.cache).entries == 1);
	pthread_barrier_wait(&caller.leave);
	CHECK(pthread_join(thread, NULL) == 0);
	caller.blocks = 0;
	CHECK(pthread_barrier_destroy(&caller.entered) == 0);
	CHECK(pthread_barrier_destroy(&caller.leave) == 0);

	/* A number that is not an errno, and one that the system does not define. */
	caller.device.fails = 1;
	REFUSED(pindown_get(lane, PLACE(4), 10, 0, &use), EIO, "returned 1");
	caller.device.fails = -100000;
	REFUSED(pindown_get(lane, PLACE(4), 10, 0, &use), EIO, "returned -100000");
	caller.device.fails = 0;
	caller.depth = 0;
	close_caller(&caller, lane);
}
