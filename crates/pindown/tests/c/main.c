/*
 * Tests every function of pindown.h, its errors, two threads and a fork. Prints a line for each check that succeeds,
 * and exits with 1 at the first that does not.
 */
#include "check.h"

/* Longer than the tests take under valgrind on a busy machine. */
#define LIMIT_SECONDS 300

int main(void)
{
	alarm(LIMIT_SECONDS);
	setvbuf(stdout, NULL, _IOLBF, 0);
	forks();
	opening();
	uses();
	limits();
	own_registrations();
	waiting();
	imported();
	sealed();
	userfaultfd();
	callbacks();
	threads();
	return 0;
}
