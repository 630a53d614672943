/*
 * walk [-l DIRECTORY] [-s SEED] [-n ORDERS] [-a] [-j PROCESSES] [-v VERSION] [-t LEVEL] [-c PART OF A NAME] [-i]
 *
 *   -l  the directory of libfabric; without it the system's
 *   -s  the first seed
 *   -n  the number of orders of each case
 *   -a  every version at every level; without it each scenario runs once at each level, with alternating versions
 *   -j  the number of cases that run at a time
 *   -v  only this version, such as 1.17
 *   -t  only this level, 0 to 6 as in libfabric's headers
 *   -c  only cases with this text in their names
 *   -i  in this process, for a debugger: needs -v, -t and -c
 *
 * Each case runs in a separate process. The last line counts calls, orders, levels, versions and reports. The exit
 * status is 0 if there were no errors and a walk without -v, -t and -c called every entry of every table.
 */
#define _GNU_SOURCE
#include "walk.h"

#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
#define LEAKS() __lsan_do_recoverable_leak_check()
#define TRACE() __sanitizer_print_stack_trace()
#define IS_SANITIZED true
#endif
#endif
#ifndef IS_SANITIZED
#define LEAKS() 0
#define TRACE() (void)0
#define IS_SANITIZED false
#endif

/* The time in seconds after which a case counts as hanging. */
#define WAIT_LIMIT 120

/* All permutations of six objects are tested, BLOCK of them in each process. */
#define PERMUTATIONS 720
#define BLOCK 360

struct setting setting;
struct totals *totals;

static const char *only;
static uint64_t seed = 1, tries = 8;
static bool all_pairs, in_this_process;
static int processes = 2;
static const char *library;
static uint32_t only_api;
static int only_level = -1;
static char case_name[160];

/* ---- random numbers ---- */

static uint64_t state;

uint64_t below(uint64_t bound)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 11) % bound;
}

bool sometimes(void)
{
	return below(2);
}

/* ---- reports ---- */

const char *code_text(long long code)
{
	return code < 0 ? fi_strerror((int)-code) : "no error";
}

static bool has_failed;

static void say(const char *file, int line, const char *format, va_list arguments)
{
	const char *name = strrchr(file, '/');

	fprintf(stderr, "WRONG  %s:%d: ", name ? name + 1 : file, line);
	vfprintf(stderr, format, arguments);
	fprintf(stderr, "\n");
}

void wrong(const char *file, int line, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say(file, line, format, arguments);
	va_end(arguments);
	_exit(3);
}

void complain(const char *file, int line, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say(file, line, format, arguments);
	va_end(arguments);
	has_failed = true;
}

/* Reports the position at which a case hangs. */
static void on_alarm(int number)
{
	(void)number;
	fprintf(stderr, "WRONG  a call does not return\n");
	TRACE();
	_exit(4);
}

/* ---- cases ---- */

/* The task of one process. */
struct job {
	struct setting setting;
	const struct scenario *scenario;
	const struct together *together;
	uint64_t from, tries;
	bool every;
};

static void describe(const struct job *job)
{
	snprintf(case_name, sizeof(case_name), "%s, API %u.%u, level %d, %s, seed %llu", job->scenario ? job->scenario->name : job->together->name,
		 FI_MAJOR(job->setting.api), FI_MINOR(job->setting.api), (int)job->setting.level, job->setting.tcp ? "tcp" : "shm",
		 (unsigned long long)job->setting.seed);
}

static void run(const struct job *job)
{
	setting = job->setting;
	state = setting.seed * 0x9e3779b97f4a7c15ULL + 1;
	setenv("FI_PERCALE_TRANSPORT", setting.tcp ? "tcp" : "auto", 1);
	if (!setting.tcp)
		unsetenv("FI_PERCALE_TRANSPORT");
	load_library(library);
	if (job->scenario) {
		if (job->scenario == scenarios)
			library_calls();
		orders(job->scenario, job->from, job->tries, job->every);
	} else {
		job->together->run();
	}
	add_up_counts();
	totals->cases++;
	/*
	 * Leaks are checked before libfabric unloads the provider, because after that no pointers to its intentional
	 * allocations exist.
	 */
	if (LEAKS())
		wrong(__FILE__, __LINE__, "memory is lost");
	if (has_failed)
		_exit(3);
}

static pid_t running[16];
static char names[16][sizeof(case_name)];

/* Waits for a process to end. */
static void collect(void)
{
	int status;
	pid_t ended = wait(&status);

	for (size_t at = 0; at < COUNT(running); at++) {
		if (running[at] != ended)
			continue;
		running[at] = 0;
		if (status != 0) {
			totals->wrong++;
			printf("REPORT  %s: %s %d\n", names[at], WIFSIGNALED(status) ? "signal" : "exit code",
			       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
			fflush(stdout);
		}
	}
}

static void start(const struct job *job)
{
	size_t at = 0;

	describe(job);
	if (only && !strstr(case_name, only))
		return;
	if (in_this_process) {
		run(job);
		return;
	}
	for (int many = 0;; many = 0) {
		for (size_t n = 0; n < COUNT(running); n++)
			many += running[n] != 0;
		if (many < processes)
			break;
		collect();
	}
	while (running[at])
		at++;
	fflush(stdout);
	running[at] = fork();
	MUST(running[at] >= 0, "no process");
	if (running[at] == 0) {
		signal(SIGALRM, on_alarm);
		alarm(WAIT_LIMIT);
		run(job);
		/* The calls that libfabric makes at process exit are not part of the walk. */
		_exit(0);
	}
	strcpy(names[at], case_name);
}

/* ---- versions and levels ---- */

static uint32_t versions[64];
static size_t version_count;

static void list_versions(uint32_t newest)
{
	/* The last minor version before 2.0 was 1.22. */
	for (uint32_t minor = 0; minor <= 22; minor++)
		versions[version_count++] = FI_VERSION(1, minor);
	for (uint32_t minor = 0; minor <= 40; minor++)
		versions[version_count++] = FI_VERSION(2, minor);
	while (version_count > 0 && versions[version_count - 1] > newest)
		version_count--;
}

#define LEVELS 7

static bool is_level(int level)
{
	return level <= FI_THREAD_ENDPOINT && (only_level < 0 || level == only_level);
}

static struct job job_of(uint32_t api, int level)
{
	struct job job = { .setting = { api, (enum fi_threading)level, seed % 3 == 0, seed }, .tries = tries };

	seed++;
	return job;
}

/* Returns whether this pair is tested for a scenario. */
static bool is_walked(size_t scenario, size_t version, int level)
{
	if ((only_api && versions[version] != only_api) || !is_level(level))
		return false;
	/* Each level is tested once for each scenario, with alternating versions. */
	return all_pairs || only_api || ((size_t)level * 5 + scenario * 7) % version_count == version;
}

static void walk(void)
{
	for (size_t scenario = 0; scenario < scenario_count; scenario++)
		for (size_t version = 0; version < version_count; version++)
			for (int level = 0; level < LEVELS; level++) {
				if (!is_walked(scenario, version, level))
					continue;
				struct job job = job_of(versions[version], level);
				job.scenario = &scenarios[scenario];
				start(&job);
			}
	for (size_t at = 0; at < together_count; at++)
		for (int level = 0; level < LEVELS; level++) {
			if (!is_level(level) || !(togethers[at].levels & 1u << level))
				continue;
			struct job job = job_of(only_api ? only_api : versions[version_count - 1 - at % version_count], level);
			job.together = &togethers[at];
			start(&job);
		}
	for (size_t at = 0; at < in_all_orders_count; at++)
		for (int level = 0; level < LEVELS; level++)
			for (uint64_t from = 0; from < PERMUTATIONS; from += BLOCK) {
				/* Only at one level, unless all pairs are tested. */
				if (!is_level(level) || (!all_pairs && only_level < 0 && level != (int)(1 + at)))
					continue;
				struct job job = job_of(only_api ? only_api : versions[version_count - 1], level);
				job.scenario = &in_all_orders[at];
				job.from = from;
				job.tries = BLOCK;
				job.every = true;
				start(&job);
			}
}

static uint32_t parse_version(const char *text)
{
	unsigned major = 0, minor = 0;

	int read = sscanf(text, "%u.%u", &major, &minor);

	MUST(read == 2, "-v needs a version such as 1.17");
	return FI_VERSION(major, minor);
}

/* Returns the newest version of the library, which a separate process requests. */
static uint32_t ask_newest(void)
{
	uint32_t *answer = mmap(NULL, sizeof(*answer), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t child = fork();
	int status;

	if (child == 0) {
		load_library(library);
		*answer = newest_api();
		_exit(0);
	}
	MUST(waitpid(child, &status, 0) == child && status == 0, "libfabric cannot be loaded");
	return *answer;
}

int main(int argc, char **argv)
{
	size_t missed = 0, entries, levels = 0, walked = 0;
	int option;

	while ((option = getopt(argc, argv, "l:s:n:aj:v:t:c:i")) != -1) {
		switch (option) {
		case 'l':
			library = optarg;
			break;
		case 's':
			seed = strtoull(optarg, NULL, 0);
			break;
		case 'n':
			tries = strtoull(optarg, NULL, 0);
			break;
		case 'a':
			all_pairs = true;
			break;
		case 'j':
			processes = atoi(optarg);
			break;
		case 'v':
			only_api = parse_version(optarg);
			break;
		case 't':
			only_level = atoi(optarg);
			break;
		case 'c':
			only = optarg;
			break;
		case 'i':
			in_this_process = true;
			break;
		default:
			fprintf(stderr, "usage: %s [-l directory] [-s seed] [-n orders] [-a] [-j processes] [-v version] [-t level] [-c case] [-i]\n", argv[0]);
			return 2;
		}
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	totals = mmap(NULL, sizeof(*totals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(totals != MAP_FAILED, "out of memory");
	share_counts();
	list_versions(ask_newest());
	walk();
	for (size_t at = 0; at < COUNT(running); at++)
		while (running[at])
			collect();
	for (int level = 0; level <= FI_THREAD_ENDPOINT; level++)
		levels += is_level(level);
	for (size_t at = 0; at < version_count; at++)
		walked += !only_api || versions[at] == only_api;
	/* A partial walk calls only some of the entries. */
	entries = report_entries(&missed, !(only || only_api || only_level >= 0));
	printf("walk: sanitized %s, %llu calls, %zu entries, %zu never called, %llu cases, %llu orders, %llu closings, %llu refused, %zu levels, "
	       "%zu versions, %llu reports\n",
	       IS_SANITIZED ? "yes" : "no", (unsigned long long)totals->calls, entries, missed, (unsigned long long)totals->cases,
	       (unsigned long long)totals->orders, (unsigned long long)totals->closings, (unsigned long long)totals->refusals, levels, walked,
	       (unsigned long long)totals->wrong);
	return totals->wrong || missed ? 1 : 0;
}
