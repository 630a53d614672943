/* Opening and closing: attributes, names and errors. */
#include "check.h"

static struct device device = DEVICE_INIT;

static struct pindown_attr attributes(void)
{
	struct pindown_attr attr = PINDOWN_ATTR_INIT;

	attr.pin = device_pin;
	attr.unpin = device_unpin;
	attr.context = &device;
	return attr;
}

/* Opens a cache, which must succeed, and closes it. */
static void opens(const struct pindown_attr *attr)
{
	struct pindown_cache *cache = NULL;

	CHECK(pindown_open(attr, &cache) == 0);
	CHECK(cache != NULL);
	CHECK(pindown_close(cache) == 0);
}

static int never_asked(void *context, const void *address, size_t length, uint32_t access)
{
	(void)context, (void)address, (void)length, (void)access;
	CHECK(!"a field that the caller does not have was read");
	return 0;
}

/* The structures of older versions are shorter. What follows them in memory is not read. */
static void older_sizes(void)
{
	static const size_t sizes[] = {
		offsetof(struct pindown_attr, monitor), offsetof(struct pindown_attr, max_bytes),
		offsetof(struct pindown_attr, max_count), offsetof(struct pindown_attr, answers),
	};

	for (size_t at = 0; at < sizeof(sizes) / sizeof(sizes[0]); at++) {
		struct device own = DEVICE_INIT;
		struct pindown_attr attr = attributes();
		struct pindown_cache *cache = NULL;
		struct pindown_lane *lane = NULL;

		/* With each of these values, the cache would not open, or would keep nothing. */
		attr.size = sizes[at];
		attr.context = &own;
		attr.monitor = at < 1 ? "memhooks" : "imported";
		attr.max_bytes = at < 2 ? 0 : PINDOWN_NO_LIMIT;
		attr.max_count = at < 3 ? 0 : PINDOWN_DEFAULT_COUNT;
		attr.flags = at < 3 ? 1u << 31 : 0;
		attr.answers = never_asked;
		CHECK(pindown_open(&attr, &cache) == 0);
		CHECK(pindown_lane_open(cache, &lane) == 0);
		if (at > 0) {
			use_once(lane, PLACE(1), 1, 0);
			CHECK(stats_of(cache).entries == 1);
		}
		CHECK(pindown_lane_close(lane) == 0);
		CHECK(pindown_close(cache) == 0);
		CHECK(device_pinned(&own) == 0);
	}
}

/* The registration of a newer program has more fields, which this version sets to 0. */
static void registration_sizes(struct pindown_cache *cache)
{
	struct {
		struct pindown_registration registration;
		uint64_t newer;
	} longer = { PINDOWN_REGISTRATION_INIT, 7 };

	longer.registration.size = sizeof(longer);
	CHECK(pindown_register(cache, PLACE(1), 1, 0, &longer.registration) == 0);
	CHECK(longer.registration.size == sizeof(longer) && longer.newer == 0);
	CHECK(pindown_deregister(cache, longer.registration.handle) == 0);
	longer.registration.size = sizeof(longer.registration) - 8;
	REFUSED(pindown_register(cache, PLACE(1), 1, 0, &longer.registration), EINVAL, "registration->size is 32");
	longer.registration.size = 1 << 20;
	REFUSED(pindown_register(cache, PLACE(1), 1, 0, &longer.registration), EINVAL, "registration->size");
}

static void sizes(void)
{
	struct {
		struct pindown_attr attr;
		uint64_t newer;
	} longer = { attributes(), 0 };
	struct pindown_attr attr = attributes();
	struct pindown_cache *cache = NULL;
	struct pindown_stats stats = { 0 };

	attr.size = offsetof(struct pindown_attr, monitor) - 8;
	REFUSED(pindown_open(&attr, &cache), EINVAL, "size");
	attr.size = sizeof(attr) - 4;
	REFUSED(pindown_open(&attr, &cache), EINVAL, "size");
	attr.size = 1 << 20;
	REFUSED(pindown_open(&attr, &cache), E2BIG, "size");
	longer.attr.size = sizeof(longer);
	opens(&longer.attr);
	longer.newer = 1;
	REFUSED(pindown_open(&longer.attr, &cache), E2BIG, "unknown field");

	cache = open_with(&device, "none");
	REFUSED(pindown_read_stats(cache, &stats), EINVAL, "size");
	stats.size = offsetof(struct pindown_stats, slow_hits);
	stats.slow_hits = 7;
	CHECK(pindown_read_stats(cache, &stats) == 0);
	CHECK(stats.slow_hits == 7);
	registration_sizes(cache);
	CHECK(pindown_close(cache) == 0);
}

void opening(void)
{
	struct pindown_attr attr = attributes();
	struct pindown_cache *cache = NULL;
	struct pindown_lane *lane = NULL;

	CHECK(pindown_version() == PINDOWN_VERSION);
	REFUSED(pindown_open(NULL, &cache), EINVAL, "attr is NULL");
	REFUSED(pindown_open(&attr, NULL), EINVAL, "cache is NULL");
	attr.pin = NULL;
	REFUSED(pindown_open(&attr, &cache), EINVAL, "unpin");
	attr = attributes();
	attr.unpin = NULL;
	REFUSED(pindown_open(&attr, &cache), EINVAL, "unpin");
	attr = attributes();
	attr.monitor = "memhooks";
	REFUSED(pindown_open(&attr, &cache), EINVAL, "memhooks");
	attr.monitor = "\xff";
	REFUSED(pindown_open(&attr, &cache), EINVAL, "valid names are best");
	attr = attributes();
	attr.flags = 1u << 31;
	REFUSED(pindown_open(&attr, &cache), EINVAL, "flags");
	attr = attributes();
	attr.max_count = UINT32_MAX - 1;
	REFUSED(pindown_open(&attr, &cache), EINVAL, "registrations");
	CHECK(cache == NULL);
	sizes();
	older_sizes();

	attr = attributes();
	CHECK(pindown_open(&attr, &cache) == 0);
	printf("ok %s: %s\n", pindown_monitor(cache), pindown_monitor_why(cache));
	CHECK(strcmp(pindown_monitor(cache), "best") != 0);
	CHECK(strncmp(pindown_monitor_why(cache), "the monitor is ", 15) == 0);
	CHECK(strstr(pindown_monitor_why(cache), pindown_monitor(cache)) != NULL);
	CHECK(pindown_close(cache) == 0);
	cache = open_with(&device, "none");
	CHECK(strcmp(pindown_monitor(cache), "none") == 0);
	CHECK(strcmp(pindown_monitor_why(cache), "the monitor is none") == 0);
	CHECK(pindown_lane_open(cache, &lane) == 0);
	REFUSED(pindown_close(cache), EBUSY, "1 lanes");
	CHECK(pindown_lane_close(lane) == 0);
	CHECK(pindown_close(cache) == 0);

	REFUSED(pindown_close(NULL), EINVAL, "NULL");
	CHECK(pindown_monitor(NULL) == NULL);
	CHECK(pindown_monitor_why(NULL) == NULL);
	REFUSED(pindown_sweep(NULL), EINVAL, "NULL");
	REFUSED(pindown_flush(NULL), EINVAL, "NULL");
	REFUSED(pindown_read_stats(NULL, NULL), EINVAL, "NULL");
	REFUSED(pindown_lane_open(NULL, &lane), EINVAL, "NULL");
	REFUSED(pindown_lane_close(NULL), EINVAL, "NULL");
	REFUSED(pindown_check(NULL, NULL), EINVAL, "NULL");
	REFUSED(pindown_wait(NULL, 0, NULL), EINVAL, "NULL");
	REFUSED(pindown_interrupt(NULL), EINVAL, "NULL");
	REFUSED(pindown_register(NULL, PLACE(1), 1, 0, NULL), EINVAL, "NULL");
	REFUSED(pindown_deregister(NULL, 0), EINVAL, "NULL");
	REFUSED(pindown_changed(NULL, PLACE(1), 1), EINVAL, "NULL");
	REFUSED(pindown_changed_everything(NULL), EINVAL, "NULL");
	CHECK(device_pinned(&device) == 0);
}
