/* MON-019: a child uses none of its parent's registrations, and gets errors. */
#include "check.h"

static struct device device = DEVICE_INIT;

/* Runs in the child, which exits with 0 if all checks succeed. */
static void child(struct pindown_cache *cache, struct pindown_lane *lane, struct pindown_use *use, uint64_t registration)
{
	struct pindown_stats stats = PINDOWN_STATS_INIT;
	struct pindown_use another;
	struct pindown_registration one = PINDOWN_REGISTRATION_INIT;
	struct pindown_lane *fresh = NULL;
	void *memory = NULL;
	uint64_t handle, unpins = device.unpins;

	REFUSED(pindown_get(lane, PLACE(1), 1, 0, &another), ECHILD, "fork");
	REFUSED(pindown_get(lane, PLACE(2), 1, 0, &another), ECHILD, "fork");
	REFUSED(pindown_lane_open(cache, &fresh), ECHILD, "fork");
	REFUSED(pindown_register(cache, PLACE(1), 1, 0, &one), ECHILD, "fork");
	REFUSED(pindown_deregister(cache, registration), ECHILD, "fork");
	REFUSED(pindown_check(cache, &handle), ECHILD, "fork");
	REFUSED(pindown_wait(cache, -1, &handle), ECHILD, "fork");
	REFUSED(pindown_interrupt(cache), ECHILD, "fork");
	REFUSED(pindown_changed(cache, PLACE(1), 1), ECHILD, "fork");
	REFUSED(pindown_changed_everything(cache), ECHILD, "fork");
	REFUSED(pindown_sweep(cache), ECHILD, "fork");
	REFUSED(pindown_flush(cache), ECHILD, "fork");
	REFUSED(pindown_read_stats(cache, &stats), ECHILD, "fork");
	CHECK(strcmp(pindown_monitor(cache), "imported") == 0);
	if (pindown_alloc(1, &memory) != -EOPNOTSUPP) {
		REFUSED(pindown_alloc(1, &memory), ECHILD, "fork");
		REFUSED(pindown_free(&memory), ECHILD, "fork");
	}
	CHECK(pindown_end(lane, use) == 0);
	CHECK(pindown_lane_close(lane) == 0);
	CHECK(pindown_close(cache) == 0);
	CHECK(device.unpins == unpins);
	/* A cache of the child's own. */
	cache = open_with(&device, "imported");
	CHECK(pindown_lane_open(cache, &lane) == 0);
	CHECK(pindown_get(lane, PLACE(1), 1, 0, use) == 0);
	CHECK(pindown_end(lane, use) == 0);
	CHECK(pindown_lane_close(lane) == 0);
	CHECK(pindown_close(cache) == 0);
	CHECK(device.unpins == unpins + 1);
	fflush(stdout);
	_exit(0);
}

void forks(void)
{
	struct pindown_cache *cache = open_with(&device, "imported");
	struct pindown_lane *lane = NULL;
	struct pindown_registration one = PINDOWN_REGISTRATION_INIT;
	struct pindown_use use;
	void *memory = NULL;
	uint64_t handle;
	int status, code;
	pid_t pid;

	code = pindown_alloc(1, &memory);
	CHECK(code == 0 || code == -EOPNOTSUPP);
	CHECK(pindown_lane_open(cache, &lane) == 0);
	CHECK(pindown_register(cache, PLACE(5), 1, 0, &one) == 0);
	CHECK(pindown_get(lane, PLACE(1), 1, 0, &use) == 0);
	CHECK(use.local_key == 2);
	fflush(stdout);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		child(cache, lane, &use, one.handle);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	/* The parent continues, and was not notified of the changes that the child tried to report. */
	CHECK(use_once(lane, PLACE(1), 1, 0).local_key == 2);
	CHECK(pindown_check(cache, &handle) == 0);
	CHECK(pindown_wait(cache, 0, &handle) == 0);
	CHECK(device_pinned(&device) == 2);
	CHECK(pindown_end(lane, &use) == 0);
	CHECK(pindown_deregister(cache, one.handle) == 0);
	CHECK(pindown_lane_close(lane) == 0);
	CHECK(pindown_close(cache) == 0);
	CHECK(device_pinned(&device) == 0);
	CHECK(pindown_free(memory) == 0);
}
