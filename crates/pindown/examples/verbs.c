/*
 * A program that uses pindown and sends with verbs: cc verbs.c $(pkg-config --cflags --libs pindown) -o verbs
 * docs/libpindown.md describes how the program finds the library when it runs.
 *
 * The device is a mock. With libibverbs, delete it, include <infiniband/verbs.h>, and use a real ibv_pd.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pindown.h>

/* ---- the mock of verbs ---- */

enum { IBV_ACCESS_LOCAL_WRITE = 1, IBV_ACCESS_REMOTE_WRITE = 2, IBV_ACCESS_REMOTE_READ = 4, IBV_ACCESS_REMOTE_ATOMIC = 8 };

struct ibv_pd {
	int registered;
};

struct ibv_mr {
	struct ibv_pd *pd;
	uint32_t lkey, rkey;
};

static struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
	struct ibv_mr *mr = malloc(sizeof(*mr));

	(void)address, (void)length, (void)access;
	if (mr) {
		pd->registered += 1;
		*mr = (struct ibv_mr){ pd, (uint32_t)pd->registered, (uint32_t)pd->registered << 8 };
	}
	return mr;
}

static int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

/* ---- the registrar: two callbacks ---- */

static int pin(void *context, void *address, size_t length, uint32_t access, struct pindown_pinned *pinned)
{
	struct ibv_mr *mr;
	int rights = 0;

	if (access & PINDOWN_LOCAL_WRITE)
		rights |= IBV_ACCESS_LOCAL_WRITE;
	if (access & PINDOWN_REMOTE_READ)
		rights |= IBV_ACCESS_REMOTE_READ;
	/* Verbs requires the local write right together with these rights. */
	if (access & PINDOWN_REMOTE_WRITE)
		rights |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
	if (access & PINDOWN_REMOTE_ATOMIC)
		rights |= IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_LOCAL_WRITE;
	mr = ibv_reg_mr(context, address, length, rights);
	if (!mr)
		return errno ? -errno : -ENOMEM;
	pinned->local_key = mr->lkey;
	pinned->remote_key = mr->rkey;
	pinned->pin = mr;
	return 0;
}

static void unpin(void *context, void *pin)
{
	(void)context;
	if (ibv_dereg_mr(pin) != 0)
		fprintf(stderr, "ibv_dereg_mr: %s\n", strerror(errno));
}

/* ---- a program ---- */

static int fail(const char *what, int code)
{
	fprintf(stderr, "%s: %s: %s\n", what, strerror(-code), pindown_last_error());
	return 1;
}

int main(void)
{
	struct ibv_pd pd = { 0 };
	struct pindown_attr attr = PINDOWN_ATTR_INIT;
	struct pindown_cache *cache;
	struct pindown_lane *lane;
	struct pindown_use use = PINDOWN_USE_INIT;
	void *buffer;
	int code, n, sealed;

	attr.pin = pin;
	attr.unpin = unpin;
	attr.context = &pd;
	code = pindown_open(&attr, &cache);
	if (code != 0)
		return fail("pindown_open", code);
	printf("monitor %s (%s)\n", pindown_monitor(cache), pindown_monitor_why(cache));
	code = pindown_lane_open(cache, &lane);
	if (code != 0)
		return fail("pindown_lane_open", code);

	/*
	 * Every monitor except "none" keeps memory that cannot change. Without such memory, the program makes one send.
	 */
	sealed = pindown_alloc(1 << 16, &buffer) == 0;
	if (!sealed)
		buffer = malloc(1 << 16);
	if (!buffer)
		return 1;
	memset(buffer, 1, 1 << 16);
	code = pindown_get(lane, buffer, 1 << 16, 0, &use);
	if (code != 0)
		return fail("pindown_get", code);
	for (n = 0; sealed && n < 999; n++) {
		struct pindown_use another = PINDOWN_USE_INIT;

		code = pindown_get(lane, buffer, 1 << 16, 0, &another);
		if (code != 0)
			return fail("pindown_get", code);
		/* Post the work request with another.local_key here. When it has completed: */
		pindown_end(lane, &another);
	}
	pindown_end(lane, &use);
	printf("ibv_reg_mr was called %d times for %d sends\n", pd.registered, sealed ? 1000 : 1);

	pindown_lane_close(lane);
	code = pindown_close(cache);
	if (sealed)
		pindown_free(buffer);
	else
		free(buffer);
	return code == 0 ? 0 : fail("pindown_close", code);
}
