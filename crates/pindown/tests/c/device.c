/* The device, and the output of checks. */
#include "check.h"

void check_that(int well, const char *what, const char *file, int line)
{
	if (well) {
		printf("ok %s\n", what);
		return;
	}
	fprintf(stderr, "%s:%d: not so: %s (the last refusal of this thread: \"%s\")\n", file, line, what,
		pindown_last_error());
	exit(1);
}

void refused_with(int code, int expected, const char *word, const char *what, const char *file, int line)
{
	if (code == expected && strstr(pindown_last_error(), word)) {
		printf("ok %s is refused: %s\n", what, pindown_last_error());
		return;
	}
	fprintf(stderr, "%s:%d: %s returned %d (\"%s\"), not %d with a word of \"%s\"\n", file, line, what, code,
		pindown_last_error(), expected, word);
	exit(1);
}

void skip(const char *capability, const char *why)
{
	printf("SKIPPED (%s): %s\n", capability, why);
}

int device_pin(void *context, void *address, size_t length, uint32_t access, struct pindown_pinned *pinned)
{
	struct device *device = context;
	int code = 0;

	if (pinned->size < sizeof(*pinned))
		return -EPROTO;
	pthread_mutex_lock(&device->lock);
	if (device->fails) {
		code = device->fails;
	} else if (device->pins - device->unpins >= device->room) {
		code = -ENOMEM;
	} else {
		device->pins += 1;
		device->address = address;
		device->length = length;
		device->access = access;
		pinned->local_key = device->pins;
		pinned->remote_key = device->pins << 32;
		/* Valgrind reports pins that are lost. */
		pinned->pin = malloc(8);
		device->latest[device->pins % 4] = pinned->pin;
	}
	pthread_mutex_unlock(&device->lock);
	return code;
}

void device_unpin(void *context, void *pin)
{
	struct device *device = context;

	free(pin);
	pthread_mutex_lock(&device->lock);
	device->unpins += 1;
	pthread_mutex_unlock(&device->lock);
}

uint64_t device_pinned(struct device *device)
{
	uint64_t pinned;

	pthread_mutex_lock(&device->lock);
	pinned = device->pins - device->unpins;
	pthread_mutex_unlock(&device->lock);
	return pinned;
}

struct pindown_cache *open_with(struct device *device, const char *monitor)
{
	struct pindown_attr attr = PINDOWN_ATTR_INIT;
	struct pindown_cache *cache = NULL;

	attr.pin = device_pin;
	attr.unpin = device_unpin;
	attr.context = device;
	attr.monitor = monitor;
	CHECK(pindown_open(&attr, &cache) == 0);
	return cache;
}

struct pindown_stats stats_of(struct pindown_cache *cache)
{
	struct pindown_stats stats = PINDOWN_STATS_INIT;

	CHECK(pindown_read_stats(cache, &stats) == 0);
	return stats;
}

struct pindown_use use_once(struct pindown_lane *lane, const void *address, size_t length, uint32_t access)
{
	struct pindown_use got, kept;

	CHECK(pindown_get(lane, address, length, access, &got) == 0);
	kept = got;
	CHECK(pindown_end(lane, &got) == 0);
	CHECK(got.ticket == 0);
	return kept;
}

size_t page(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}
