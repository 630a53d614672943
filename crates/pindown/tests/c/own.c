/* Registrations that the application makes itself: handles, check and wait. */
#include "check.h"

void own_registrations(void)
{
	struct device device = DEVICE_INIT;
	struct pindown_cache *cache = open_with(&device, "imported");
	struct pindown_registration one = PINDOWN_REGISTRATION_INIT, two = one, three = one;
	uint64_t handle = 99;
	char *place = PLACE(1);

	/* MON-036 to MON-038: three registrations, two of which overlap. */
	CHECK(pindown_register(cache, place, 2 * page(), PINDOWN_LOCAL_WRITE, &one) == 0);
	CHECK(pindown_register(cache, place + page(), page(), PINDOWN_REMOTE_READ, &two) == 0);
	CHECK(pindown_register(cache, place + 4 * page(), 1, 0, &three) == 0);
	CHECK(one.local_key == 1 && two.local_key == 2 && three.remote_key == UINT64_C(3) << 32);
	CHECK(one.handle != two.handle && two.handle != three.handle);
	CHECK(one.unwatched == PINDOWN_WATCHED && one.reserved == 0);
	CHECK(stats_of(cache).own == 3);

	/* MON-043, MON-044. */
	CHECK(pindown_check(cache, &handle) == 0);
	CHECK(handle == 99);
	CHECK(pindown_changed(cache, place + page(), 1) == 0);
	CHECK(pindown_check(cache, &handle) == 1);
	CHECK(handle == one.handle || handle == two.handle);
	CHECK(pindown_check(cache, &handle) == 1);
	CHECK(handle == one.handle || handle == two.handle);
	CHECK(pindown_check(cache, &handle) == 0);
	/* RCACHE-027: the registration is reported, and still pinned. MON-039. */
	CHECK(device_pinned(&device) == 3);
	CHECK(pindown_deregister(cache, one.handle) == 0);
	REFUSED(pindown_deregister(cache, one.handle), ENOENT, "already deregistered");
	CHECK(pindown_deregister(cache, two.handle) == 0);
	CHECK(device_pinned(&device) == 1);

	/* MON-040. */
	device.fails = -EFAULT;
	REFUSED(pindown_register(cache, place, 1, 0, &one), EFAULT, "cannot register");
	device.fails = 0;
	REFUSED(pindown_register(cache, place, 0, 0, &one), EINVAL, "0 bytes");
	REFUSED(pindown_register(cache, place, 1, 1u << 9, &one), EINVAL, "rights");
	REFUSED(pindown_register(cache, place, 1, 0, NULL), EINVAL, "registration is NULL");
	REFUSED(pindown_check(cache, NULL), EINVAL, "handle is NULL");
	CHECK(stats_of(cache).own == 1);
	/* MON-041. */
	CHECK(pindown_close(cache) == 0);
	CHECK(device_pinned(&device) == 0);

	/* Changes of this registration are not reported. */
	cache = open_with(&device, "none");
	CHECK(pindown_register(cache, place, 1, 0, &one) == 0);
	CHECK(one.unwatched == PINDOWN_NOT_CACHING);
	CHECK(strcmp(pindown_reason_text(one.unwatched), "caching is off") == 0);
	CHECK(pindown_reason_text(PINDOWN_WATCHED) && pindown_reason_text(PINDOWN_CHANGED));
	CHECK(pindown_reason_text(PINDOWN_MONITOR_ENDED + 1) == NULL);
	CHECK(pindown_close(cache) == 0);
	CHECK(device_pinned(&device) == 0);
}

static void *interrupts(void *cache)
{
	usleep(20000);
	CHECK(pindown_interrupt(cache) == 0);
	return NULL;
}

static void *changes(void *cache)
{
	usleep(20000);
	CHECK(pindown_changed(cache, PLACE(1), 1) == 0);
	return NULL;
}

void waiting(void)
{
	struct device device = DEVICE_INIT;
	struct pindown_cache *cache = open_with(&device, "imported");
	struct pindown_registration one = PINDOWN_REGISTRATION_INIT;
	uint64_t handle;
	pthread_t thread;

	REFUSED(pindown_wait(cache, 0, NULL), EINVAL, "handle is NULL");
	REFUSED(pindown_wait(cache, -2, &handle), EINVAL, "use -1 to wait");
	CHECK(pindown_wait(cache, 0, &handle) == 0);
	CHECK(pindown_wait(cache, 20, &handle) == 0);
	/* MON-051: ends a wait that is under way, and the next one. */
	CHECK(pindown_interrupt(cache) == 0);
	CHECK(pindown_interrupt(cache) == 0);
	REFUSED(pindown_wait(cache, 0, &handle), ECANCELED, "interrupted");
	REFUSED(pindown_wait(cache, -1, &handle), ECANCELED, "interrupted");
	CHECK(pindown_wait(cache, 0, &handle) == 0);
	CHECK(pthread_create(&thread, NULL, interrupts, cache) == 0);
	REFUSED(pindown_wait(cache, -1, &handle), ECANCELED, "interrupted");
	CHECK(pthread_join(thread, NULL) == 0);
	/* MON-048, MON-049. */
	CHECK(pindown_register(cache, PLACE(1), 1, 0, &one) == 0);
	CHECK(pthread_create(&thread, NULL, changes, cache) == 0);
	CHECK(pindown_wait(cache, -1, &handle) == 1);
	CHECK(handle == one.handle);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(pindown_deregister(cache, handle) == 0);
	CHECK(pindown_register(cache, PLACE(1), 1, 0, &one) == 0);
	CHECK(pindown_changed_everything(cache) == 0);
	CHECK(pindown_wait(cache, 0, &handle) == 1);
	CHECK(handle == one.handle);
	CHECK(pindown_close(cache) == 0);
	CHECK(device_pinned(&device) == 0);
}
