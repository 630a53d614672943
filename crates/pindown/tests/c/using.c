/* Uses: hits, misses, rights, errors, and the two limits. */
#include "check.h"

void uses(void)
{
	struct device device = DEVICE_INIT;
	struct pindown_cache *cache = open_with(&device, "imported");
	struct pindown_lane *lane = NULL, *other = NULL;
	struct pindown_use use, again, inner;
	char *place = PLACE(1);

	CHECK(pindown_lane_open(cache, &lane) == 0);
	CHECK(pindown_lane_open(cache, &other) == 0);
	REFUSED(pindown_lane_open(cache, NULL), EINVAL, "lane is NULL");

	/* RCACHE-001, RCACHE-003: one registration serves all ranges in its pages. */
	CHECK(pindown_get(lane, place + 100, 5000, PINDOWN_LOCAL_WRITE, &use) == 0);
	CHECK(!(use.ticket & PINDOWN_USE_SINGLE));
	CHECK(use.local_key == 1 && use.remote_key == UINT64_C(1) << 32);
	CHECK(device.address == place && device.length % page() == 0 && device.length >= 5100);
	CHECK(device.access == PINDOWN_LOCAL_WRITE);
	CHECK(pindown_get(lane, place + 100, 5000, PINDOWN_LOCAL_WRITE, &again) == 0);
	CHECK(pindown_get(lane, place + 4000, 8, 0, &inner) == 0);
	CHECK(again.local_key == 1 && inner.local_key == 1);
	CHECK(device.pins == 1);
	CHECK(use_once(lane, place + page(), 8, 0).local_key == 1);
	CHECK(stats_of(cache).slow_hits == 1);
	/* More rights than the registration has. */
	CHECK(use_once(lane, place + 100, 1, PINDOWN_REMOTE_READ | PINDOWN_REMOTE_WRITE).local_key == 2);
	CHECK(device.access == (PINDOWN_REMOTE_READ | PINDOWN_REMOTE_WRITE));

	REFUSED(pindown_get(NULL, place, 1, 0, &use), EINVAL, "lane is NULL");
	REFUSED(pindown_get(lane, place, 1, 0, NULL), EINVAL, "use is NULL");
	REFUSED(pindown_get(lane, place, 0, 0, &use), EINVAL, "0 bytes");
	REFUSED(pindown_get(lane, place, SIZE_MAX, 0, &use), EINVAL, "exceed the address space");
	REFUSED(pindown_get(lane, place, 1, 1u << 4, &use), EINVAL, "rights");
	REFUSED(pindown_end(NULL, &use), EINVAL, "is NULL");
	REFUSED(pindown_end(lane, NULL), EINVAL, "is NULL");
	REFUSED(pindown_end(other, &use), EINVAL, "another lane");
	REFUSED(pindown_lane_close(lane), EBUSY, "under way");

	/* RCACHE-010, RCACHE-026: a registration in use stays pinned, and is no longer found. */
	CHECK(pindown_flush(cache) == 0);
	CHECK(device_pinned(&device) == 2);
	CHECK(stats_of(cache).retired == 2);
	CHECK(pindown_end(lane, &use) == 0);
	REFUSED(pindown_end(lane, &use), EINVAL, "already ended");
	REFUSED(pindown_hold(lane, &use), EINVAL, "already ended");
	REFUSED(pindown_hold(lane, NULL), EINVAL, "is NULL");
	REFUSED(pindown_hold(other, &again), EINVAL, "another lane");
	CHECK(pindown_end(lane, &again) == 0);
	CHECK(pindown_end(lane, &inner) == 0);
	CHECK(pindown_sweep(cache) == 0);
	CHECK(device_pinned(&device) == 0);

	/* The registrar's error is returned to the caller; nothing remains pinned. */
	device.fails = -EPERM;
	REFUSED(pindown_get(lane, place, 1, 0, &use), EPERM, "cannot register");
	device.fails = 7;
	REFUSED(pindown_get(lane, place, 1, 0, &use), EIO, "returned 7");
	device.fails = INT32_MIN;
	REFUSED(pindown_get(lane, place, 1, 0, &use), EIO, "returned -2147483648");
	device.fails = 0;
	CHECK(use_once(lane, place, 1, 0).local_key == 3);
	CHECK(use_once(lane, place, 1, 0).local_key == 3);
	CHECK(stats_of(cache).hits == 3);
	CHECK(stats_of(cache).misses == 3);
	CHECK(stats_of(cache).failures == 3);
	CHECK(stats_of(cache).entries == 1 && stats_of(cache).bytes == page());

	/* RCACHE-010, RCACHE-023: a held use keeps only its own registration pinned. */
	CHECK(pindown_get(lane, place, 1, 0, &use) == 0);
	CHECK(pindown_hold(lane, &use) == 0);
	CHECK(pindown_hold(lane, &use) == 0);
	CHECK(use.ticket & PINDOWN_USE_HELD && !(use.ticket & PINDOWN_USE_SINGLE));
	CHECK(!(use_once(lane, place + 10 * page(), 1, 0).ticket & PINDOWN_USE_HELD));
	CHECK(pindown_flush(cache) == 0);
	CHECK(pindown_sweep(cache) == 0);
	CHECK(device_pinned(&device) == 1 && stats_of(cache).retired == 1);
	REFUSED(pindown_lane_close(lane), EBUSY, "under way");
	CHECK(pindown_end(lane, &use) == 0);
	REFUSED(pindown_end(lane, &use), EINVAL, "already ended");
	CHECK(pindown_sweep(cache) == 0);
	CHECK(device_pinned(&device) == 0);
	CHECK(pindown_lane_close(lane) == 0);
	CHECK(pindown_lane_close(other) == 0);
	CHECK(pindown_close(cache) == 0);
	CHECK(device_pinned(&device) == 0);
}

void limits(void)
{
	struct device device = DEVICE_INIT;
	struct pindown_attr attr = PINDOWN_ATTR_INIT;
	struct pindown_cache *cache = NULL;
	struct pindown_lane *lane = NULL;
	struct pindown_use use;
	int n;

	attr.pin = device_pin;
	attr.unpin = device_unpin;
	attr.context = &device;
	attr.monitor = "imported";
	attr.max_count = 4;
	attr.max_bytes = 8 * page();
	CHECK(pindown_open(&attr, &cache) == 0);
	CHECK(pindown_lane_open(cache, &lane) == 0);
	/* RCACHE-007, RCACHE-005, RCACHE-022. */
	for (n = 0; n < 20; n++)
		use_once(lane, PLACE(n), 1, 0);
	CHECK(stats_of(cache).entries <= 4);
	CHECK(stats_of(cache).evictions >= 16);
	use_once(lane, PLACE(30), 6 * page(), 0);
	CHECK(stats_of(cache).bytes <= 8 * page());
	CHECK(use_once(lane, PLACE(40), 9 * page(), 0).ticket & PINDOWN_USE_SINGLE);
	CHECK(stats_of(cache).single_too_large == 1);
	/* RCACHE-023: idle registrations make room. */
	pindown_sweep(cache);
	device.room = device_pinned(&device);
	use_once(lane, PLACE(50), page(), 0);
	CHECK(pindown_lane_close(lane) == 0);
	CHECK(pindown_close(cache) == 0);
	CHECK(device_pinned(&device) == 0);

	/* RCACHE-009. */
	device.room = UINT64_MAX;
	attr.max_count = 0;
	CHECK(pindown_open(&attr, &cache) == 0);
	CHECK(pindown_lane_open(cache, &lane) == 0);
	CHECK(pindown_get(lane, PLACE(1), 1, 0, &use) == 0);
	CHECK(use.ticket & PINDOWN_USE_SINGLE);
	CHECK(device_pinned(&device) == 1);
	CHECK(pindown_end(lane, &use) == 0);
	CHECK(device_pinned(&device) == 0);
	CHECK(stats_of(cache).single_not_caching == 1);
	CHECK(pindown_lane_close(lane) == 0);
	CHECK(pindown_close(cache) == 0);
}
