/*
 * One-sided operations on windows: put, get, accumulate, fetch-and-op, compare-and-swap, under fences, locks and lock-all.
 *
 *   windows [no-swap]: omits compare-and-swap
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 1 << 16, TIMES = 50 };

static int wrong;

static void check(int good, const char *what)
{
	if (!good) {
		printf("%s is wrong\n", what);
		wrong++;
	}
}

static void fenced(MPI_Win window, uint64_t *memory, uint64_t *own, int rank, int size)
{
	const int next = (rank + 1) % size, before = (rank + size - 1) % size;

	for (int count = 1; count <= WORDS / 4; count *= 8) {
		for (int n = 0; n < count; n++)
			own[n] = (uint64_t)rank << 32 | (unsigned)(n + count);
		MPI_Win_fence(0, window);
		MPI_Put(own, count, MPI_UINT64_T, next, 8, count, MPI_UINT64_T, window);
		MPI_Win_fence(0, window);
		for (int n = 0; n < count; n++)
			check(memory[8 + n] == ((uint64_t)before << 32 | (unsigned)(n + count)), "put");
		memset(own, 0, (size_t)count * 8);
		MPI_Win_fence(0, window);
		MPI_Get(own, count, MPI_UINT64_T, next, 8, count, MPI_UINT64_T, window);
		MPI_Win_fence(0, window);
		for (int n = 0; n < count; n++)
			check(own[n] == ((uint64_t)rank << 32 | (unsigned)(n + count)), "get");
	}
}

/* All ranks add to words of rank 0. No addition may be lost. */
static void added(MPI_Win window, uint64_t *memory, int rank, int size, int swaps)
{
	const uint64_t one = 1, mine = (uint64_t)rank + 1;
	uint64_t before, sum = 0, last = 0, none = 0;

	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, window);
	for (int n = 0; n < TIMES; n++) {
		MPI_Accumulate(&mine, 1, MPI_UINT64_T, 0, 0, 1, MPI_UINT64_T, MPI_SUM, window);
		MPI_Fetch_and_op(&one, &before, MPI_UINT64_T, 0, 1, MPI_SUM, window);
		MPI_Win_flush(0, window);
		check(n == 0 || before > last, "fetch and add");
		last = before;
	}
	/* A lock in one word, which a rank takes when it finds the lock free. */
	for (int n = 0; swaps && n < TIMES / 10; n++) {
		int any;
		do {
			MPI_Compare_and_swap(&mine, &none, &before, MPI_UINT64_T, 0, 2, window);
			MPI_Win_flush(0, window);
			/*
			 * In some libraries the operations of a rank on itself make no progress. Without progress, the holder
			 * of the lock cannot release it.
			 */
			MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &any, MPI_STATUS_IGNORE);
		} while (before != 0);
		MPI_Get(&sum, 1, MPI_UINT64_T, 0, 3, 1, MPI_UINT64_T, window);
		MPI_Win_flush(0, window);
		sum++;
		MPI_Put(&sum, 1, MPI_UINT64_T, 0, 3, 1, MPI_UINT64_T, window);
		MPI_Win_flush(0, window);
		MPI_Accumulate(&none, 1, MPI_UINT64_T, 0, 2, 1, MPI_UINT64_T, MPI_REPLACE, window);
		MPI_Win_flush(0, window);
	}
	MPI_Win_unlock_all(window);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
		check(memory[0] == (uint64_t)TIMES * size * (size + 1) / 2, "accumulate");
		check(memory[1] == (uint64_t)TIMES * size, "fetch and add's sum");
		check(!swaps || memory[3] == (uint64_t)(TIMES / 10) * size, "what was counted under the lock");
		MPI_Win_unlock(0, window);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

static void locked(MPI_Win window, int rank, int size)
{
	uint64_t value[4] = { (uint64_t)rank, 2, 3, 4 }, got[4] = { 0 };

	for (int to = 0; to < size; to++) {
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, to, 0, window);
		MPI_Put(value, 4, MPI_UINT64_T, to, 100 + 4 * rank, 4, MPI_UINT64_T, window);
		MPI_Win_flush(to, window);
		MPI_Get(got, 4, MPI_UINT64_T, to, 100 + 4 * rank, 4, MPI_UINT64_T, window);
		MPI_Win_unlock(to, window);
		check(!memcmp(got, value, sizeof(got)), "put and get under a lock");
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	int rank, size;
	uint64_t *memory = calloc(WORDS, 8), *own = calloc(WORDS, 8);
	MPI_Win window;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Win_create(memory, WORDS * 8, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	fenced(window, memory, own, rank, size);
	memset(memory, 0, 64);
	MPI_Barrier(MPI_COMM_WORLD);
	added(window, memory, rank, size, argc < 2);
	locked(window, rank, size);
	MPI_Win_free(&window);
	MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("windows of %d ranks, %d wrong\n", size, wrong);
	free(memory);
	free(own);
	MPI_Finalize();
	return wrong ? 1 : 0;
}
