/*
 * Reports: one line for each group, and one line for each error. The line of a group ends with the requirements that its checks
 * assert, in brackets.
 */
#include "every.h"

#include <stdarg.h>
#include <time.h>
#include <unistd.h>

const char *scenario = "";
static const char *group;
static int wrong_here;
static bool well = true;
/* The requirements that the checks of this group assert: " MR-004 MR-005". */
static char asserted[2048];

/* The maximum number of errors of a group that are printed. */
#define SHOWN 6

void begin(const char *name)
{
	group = name;
	wrong_here = 0;
	asserted[0] = 0;
}

void asserts(const char *requirements)
{
	for (size_t len; *requirements; requirements += len + (requirements[len] == ' ')) {
		char one[32];
		size_t used = strlen(asserted);

		len = strcspn(requirements, " ");
		snprintf(one, sizeof(one), " %.*s", (int)len, requirements);
		if (strstr(asserted, one))
			continue;
		MUST(used + len + 2 < sizeof(asserted), "no room for %s", one);
		strcpy(asserted + used, one);
	}
}

void end(void)
{
	printf("%-6s %s: %s%s%s%s\n", wrong_here ? "WRONG" : "ok", scenario, group ? group : "setting up", asserted[0] ? " [" : "",
	       asserted[0] ? asserted + 1 : "", asserted[0] ? "]" : "");
	group = NULL;
	asserted[0] = 0;
}

void skip(const char *name, const char *why)
{
	printf("SKIPPED %s: %s: %s\n", scenario, name, why);
}

void wrong(const char *file, int line, const char *format, ...)
{
	const char *base = strrchr(file, '/');
	va_list arguments;

	well = false;
	/* An error often occurs in every round. */
	if (++wrong_here > SHOWN) {
		if (wrong_here == SHOWN + 1)
			printf("       %s: %s: and more\n", scenario, group ? group : "setting up");
		return;
	}
	printf("       %s: %s: %s:%d: ", scenario, group ? group : "setting up", base ? base + 1 : file, line);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
}

void give_up(void)
{
	end();
	fflush(stdout);
	/* Not exit(): nothing was closed, and libraries may wait for that in their exit handlers. */
	_exit(1);
}

bool all_is_well(void)
{
	return well;
}

double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

const char *code_text(long long code)
{
	return code < 0 ? fi_strerror((int)-code) : "no error";
}

void fill(void *buffer, size_t len, unsigned seed)
{
	unsigned char *to = buffer;
	uint32_t state = seed * 2654435761u + 1;

	for (size_t at = 0; at < len; at++) {
		state = state * 1664525u + 1013904223u;
		to[at] = (unsigned char)(state >> 24);
	}
}

bool is_filled(const void *buffer, size_t len, unsigned seed)
{
	const unsigned char *from = buffer;
	uint32_t state = seed * 2654435761u + 1;

	for (size_t at = 0; at < len; at++) {
		state = state * 1664525u + 1013904223u;
		if (from[at] != (unsigned char)(state >> 24))
			return false;
	}
	return true;
}
