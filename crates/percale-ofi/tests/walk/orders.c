/* Orders of closing: all permutations of a few objects, and a sample of the permutations of many. */
#include "walk.h"

/* With more objects than this, the number of permutations is not computed. */
#define MOST 12

static uint64_t factorial(int count)
{
	uint64_t product = 1;

	for (int factor = 2; factor <= count; factor++)
		product *= (uint64_t)factor;
	return product;
}

/* The permutation with this number, in lexicographical order. */
static void permutation(uint64_t number, int count, int *order)
{
	int rest[OBJECTS];

	for (int at = 0; at < count; at++)
		rest[at] = at;
	for (int at = 0; at < count; at++) {
		uint64_t block = factorial(count - 1 - at);
		int chosen = (int)(number / block);
		number %= block;
		order[at] = rest[chosen];
		memmove(rest + chosen, rest + chosen + 1, (size_t)(count - at - 1 - chosen) * sizeof(int));
	}
}

static void shuffle(int count, int *order)
{
	for (int at = 0; at < count; at++)
		order[at] = at;
	for (int at = count - 1; at > 0; at--) {
		int other = (int)below((uint64_t)at + 1), kept = order[at];
		order[at] = order[other];
		order[other] = kept;
	}
}

void orders(const struct scenario *scenario, uint64_t from, uint64_t tries, bool every)
{
	for (uint64_t try = 0; try < tries; try++) {
		static struct world w;
		int order[OBJECTS];
		uint64_t all;

		describe_by_level(try == 0 && !every);
		if (!scenario->open(&w))
			return;
		if (try == 0 && scenario->odd)
			scenario->odd(&w);
		all = w.count > MOST ? UINT64_MAX : factorial(w.count);
		if (every)
			permutation((from + try) % all, w.count, order);
		else
			shuffle(w.count, order);
		close_world(&w, order);
		totals->orders++;
	}
}
