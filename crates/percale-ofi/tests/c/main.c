/*
 * every: uses every entry of every table of a libfabric provider, and checks results and data.
 *
 *   every [-p PROVIDER] [-o PART OF A SCENARIO'S NAME] [-s] [-a]
 *   every -v NAME
 *
 * Each scenario runs in separate processes, forked before any call of libfabric: two processes for endpoints of two
 * processes, otherwise one. -s runs a selection of cases (for valgrind). -a runs the registration tests with one
 * endpoint that sends to itself. -v is the second process of the test of named vectors (vectors.c). The exit status is
 * 0 if there were no errors.
 */
#include "every.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct options options = { .provider = "percale" };

static const struct settings ways[] = {
	/* Endpoints that are read directly: one queue on which no thread sleeps, and one thread. */
	{ .name = "direct", .av_type = FI_AV_MAP, .threading = FI_THREAD_DOMAIN, .progress = FI_PROGRESS_MANUAL, .wait = FI_WAIT_NONE },
	/* With sleeping threads, two queues, sends that report on request, virtual addresses, provider keys, and counters. */
	{ .name = "slept on", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL, .wait = FI_WAIT_FD,
	  .mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY, .tx_selective = true, .two_queues = true, .counters = true,
	  .node = "127.0.0.1" },
	/*
	 * The settings of MPICH: both directions have selective completion, operations request completions by default,
	 * and sends complete at delivery.
	 */
	{ .name = "as mpich", .av_type = FI_AV_TABLE, .threading = FI_THREAD_DOMAIN, .progress = FI_PROGRESS_MANUAL, .wait = FI_WAIT_NONE,
	  .mr_mode = FI_MR_ENDPOINT, .tx_selective = true, .rx_selective = true, .op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE,
	  .counters = true },
	/* With a progress thread of the provider. */
	{ .name = "automatic", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_AUTO, .wait = FI_WAIT_UNSPEC,
	  .op_flags = FI_TRANSMIT_COMPLETE },
};

enum arrangement { SELF, TWO, PROCESSES, ARRANGEMENTS };
static const char *const arrangements[ARRANGEMENTS] = { "to itself", "two endpoints", "two processes" };

static void pair_groups(struct pair *p)
{
	message_groups(p);
	tagged_groups(p);
	peek_groups(p);
	rma_groups(p);
	rma_refusal_groups(p);
	atomic_groups(p);
	counter_groups(p);
}

static int pair_in_one_process(const struct settings *how, enum arrangement arrangement)
{
	struct two two;
	char name[64];

	if (arrangement == TWO) {
		open_two(&two, how);
		pair_groups(&two.pair);
		close_two(&two);
	} else {
		open_room(&two.room, how);
		open_side(&two.a, &two.room, how);
		name_of(&two.a, name, sizeof(name));
		insert_peer(&two.a, name);
		two.pair = (struct pair){ &two.a, &two.a, -1 };
		pair_groups(&two.pair);
		close_side(&two.a);
		close_room(&two.room);
	}
	return all_is_well() ? 0 : 1;
}

/* One of two processes. The first one sends; the second one receives and has the memory. */
static int pair_of_processes(const struct settings *how, int link, bool first)
{
	struct room room;
	struct side side;
	struct pair pair = { first ? &side : NULL, first ? NULL : &side, link };
	char name[64] = "", peer[64];

	open_room(&room, how);
	open_side(&side, &room, how);
	name_of(&side, name, sizeof(name));
	memcpy(peer, name, sizeof(peer));
	hand_to_a(&pair, peer, sizeof(peer));
	if (first)
		insert_peer(&side, peer);
	memcpy(peer, name, sizeof(peer));
	hand_to_b(&pair, peer, sizeof(peer));
	if (!first)
		insert_peer(&side, peer);
	pair_groups(&pair);
	/* The end that closes first makes the last operations of the other fail. */
	meet(&pair);
	close_side(&side);
	close_room(&room);
	return all_is_well() ? 0 : 1;
}

/* Tests that need no pair. Each area is a scenario. */
static const struct area {
	const char *name;
	void (*run)(void);
} areas[] = {
	{ "getinfo", info_groups },
	{ "fabrics", fabric_groups },
	{ "vectors", vector_groups },
	{ "event queues", event_groups },
	{ "endpoints", endpoint_groups },
	{ "completion queues", queue_groups },
	{ "waiting", wait_groups },
	{ "regions", region_groups },
	{ "registration: calls", registration_groups },
	{ "registration: modes", registration_modes_groups },
	{ "registration: keys", registration_keys_groups },
	{ "registration: binding", registration_binding_groups },
	{ "registration: events", registration_events_groups },
	{ "windows", window_groups },
	{ "specification", specification_groups },
	{ "sets", set_groups },
	{ "connections", connection_groups },
	{ "contexts", context_groups },
	{ "forked", forked_groups },
	{ "threads", thread_groups },
	{ "triggers", trigger_groups },
	{ "collectives", collective_groups },
	{ "registration cache", cache_groups },
	{ "devices", device_groups },
	{ "refused", refused_groups },
};

static int run_area(const struct area *area)
{
	area->run();
	return all_is_well() ? 0 : 1;
}

static void finish(int code)
{
	fflush(stdout);
	close(STDIN_FILENO);
	exit(code);
}

/* Waits for the children. Ends the remaining ones when the time limit is reached. */
static bool collect(pid_t *children, int count)
{
	/* A scenario under valgrind on a busy machine takes a few minutes. */
	double until = now() + 20 * WAIT_LIMIT;
	bool good = true;
	int left = count;

	while (left > 0) {
		int status;
		pid_t ended = waitpid(-1, &status, WNOHANG);

		if (ended > 0) {
			left--;
			for (int n = 0; n < count; n++)
				if (children[n] == ended)
					children[n] = 0;
			if (status != 0) {
				good = false;
				if (WIFSIGNALED(status))
					printf("WRONG  %s: ended by signal %d\n", scenario, WTERMSIG(status));
				else
					printf("WRONG  %s: exit code %d\n", scenario, WEXITSTATUS(status));
			}
			continue;
		}
		if (now() > until) {
			printf("WRONG  %s: takes too long\n", scenario);
			good = false;
			for (int n = 0; n < count; n++)
				if (children[n] > 0)
					kill(children[n], SIGKILL);
			until = now() + WAIT_LIMIT;
		}
		usleep(2000);
	}
	return good;
}

/* Either an area, or a pair of settings and an arrangement. */
static bool run_scenario(const struct area *area, const struct settings *how, enum arrangement arrangement)
{
	static char name[64];
	pid_t children[2] = { 0 };
	int count = !area && arrangement == PROCESSES ? 2 : 1, link[2] = { -1, -1 };

	if (area)
		snprintf(name, sizeof(name), "%s", area->name);
	else
		snprintf(name, sizeof(name), "%s, %s", how->name, arrangements[arrangement]);
	scenario = name;
	if (options.only && !strstr(name, options.only))
		return true;
	if (area && getenv("EVERY_WITHOUT") && !strcmp(name, getenv("EVERY_WITHOUT"))) {
		printf("left out %s: EVERY_WITHOUT\n", name);
		return true;
	}
	fflush(stdout);
	if (count == 2 && socketpair(AF_UNIX, SOCK_STREAM, 0, link) != 0) {
		perror("socketpair");
		return false;
	}
	for (int n = 0; n < count; n++) {
		children[n] = fork();
		if (children[n] == 0) {
			static char own[80];
			if (count == 2) {
				close(link[1 - n]);
				fcntl(link[n], F_SETFL, O_NONBLOCK);
				snprintf(own, sizeof(own), "%s, %s", name, n == 0 ? "first" : "second");
				scenario = own;
			}
			if (area)
				finish(run_area(area));
			finish(count == 2 ? pair_of_processes(how, link[n], n == 0) : pair_in_one_process(how, arrangement));
		}
		if (children[n] < 0) {
			perror("fork");
			return false;
		}
	}
	for (int n = 0; n < 2; n++)
		if (link[n] >= 0)
			close(link[n]);
	return collect(children, count);
}

int main(int argc, char **argv)
{
	bool good = true;
	int option;

	while ((option = getopt(argc, argv, "p:o:sav:")) != -1) {
		switch (option) {
		case 'p':
			options.provider = optarg;
			break;
		case 'o':
			options.only = optarg;
			break;
		case 's':
			options.few = true;
			break;
		case 'v':
			return vector_writer(optarg);
		case 'a':
			options.alone = true;
			break;
		default:
			fprintf(stderr, "usage: %s [-p provider] [-o part of a scenario's name] [-s] [-a]\n", argv[0]);
			return 2;
		}
	}
	/* The output is line-buffered, also into a pipe, because two processes write. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	for (size_t area = 0; area < COUNT(areas); area++)
		good &= run_scenario(&areas[area], NULL, SELF);
	for (size_t way = 0; way < COUNT(ways); way++)
		for (int arrangement = 0; arrangement < ARRANGEMENTS; arrangement++)
			good &= run_scenario(NULL, &ways[way], (enum arrangement)arrangement);
	scenario = "all";
	printf("%s\n", good ? "all is well" : "not all is well");
	return good ? 0 : 1;
}
