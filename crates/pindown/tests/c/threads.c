/*
 * Two threads use one cache, each with its own lane, while a third reports changes. Every use ends, and nothing stays
 * pinned.
 */
#include "check.h"

#define TURNS 20000
#define PLACES 64

struct user {
	struct pindown_cache *cache;
	uint64_t bad;
	int number;
};

static void *works(void *argument)
{
	struct user *user = argument;
	struct pindown_lane *lane = NULL;
	struct pindown_use uses[4];
	int turn, n;

	user->bad += pindown_lane_open(user->cache, &lane) != 0;
	for (turn = 0; turn < TURNS; turn++) {
		for (n = 0; n < 4; n++)
			user->bad += pindown_get(lane, PLACE((turn * 7 + n * user->number) % PLACES), 100, 0, &uses[n]) != 0;
		for (n = 0; n < 4; n++)
			user->bad += pindown_end(lane, &uses[n]) != 0;
	}
	user->bad += pindown_lane_close(lane) != 0;
	/* An error text belongs to one thread. */
	user->bad += pindown_last_error()[0] != 0;
	return NULL;
}

void threads(void)
{
	struct device device = DEVICE_INIT;
	struct pindown_cache *cache = open_with(&device, "imported");
	struct user users[2] = { { cache, 0, 1 }, { cache, 0, 3 } };
	pthread_t ids[2];
	int n;

	for (n = 0; n < 2; n++)
		CHECK(pthread_create(&ids[n], NULL, works, &users[n]) == 0);
	for (n = 0; n < 2000; n++)
		if (pindown_changed(cache, PLACE(n % PLACES), 1) != 0 || (n % 50 == 0 && pindown_flush(cache) != 0))
			break;
	CHECK(n == 2000);
	for (n = 0; n < 2; n++)
		CHECK(pthread_join(ids[n], NULL) == 0);
	CHECK(users[0].bad == 0 && users[1].bad == 0);
	CHECK(pindown_flush(cache) == 0);
	CHECK(pindown_sweep(cache) == 0);
	CHECK(device_pinned(&device) == 0);
	CHECK(stats_of(cache).failures == 0);
	CHECK(stats_of(cache).hits + stats_of(cache).slow_hits + stats_of(cache).misses + stats_of(cache).single_changed ==
	      8 * TURNS);
	CHECK(pindown_close(cache) == 0);
}
