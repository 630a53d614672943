/*
 * Measures the sum of two ranks' doubles (MPI_Allreduce). Prints the time of one operation at the slower rank in nanoseconds, as the
 * median of many rounds.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 101, WARM = 10 };

static int ascending(const void *one, const void *other)
{
	const double a = *(const double *)one, b = *(const double *)other;

	return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
	int rank, size;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	const int bytes = argc == 2 ? atoi(argv[1]) : 0;
	const int count = bytes / (int)sizeof(double), times = bytes <= 4096 ? 2000 : 24;
	double *ours = malloc(bytes), *sum = malloc(bytes), rounds[ROUNDS];

	if (size != 2 || count < 1 || ours == NULL || sum == NULL)
		MPI_Abort(MPI_COMM_WORLD, 2);
	for (int n = 0; n < count; n++)
		ours[n] = rank + n % 7;
	for (int round = -WARM; round < ROUNDS; round++) {
		const double start = MPI_Wtime();

		for (int n = 0; n < times; n++)
			MPI_Allreduce(ours, sum, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		double took = (MPI_Wtime() - start) / times * 1e9, slower;
		MPI_Reduce(&took, &slower, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
		if (round >= 0)
			rounds[round] = slower;
	}
	for (int n = 0; n < count; n++)
		if (sum[n] != 1 + 2 * (n % 7))
			MPI_Abort(MPI_COMM_WORLD, 3);
	if (rank == 0) {
		qsort(rounds, ROUNDS, sizeof rounds[0], ascending);
		printf("allreduce of %d bytes: %.1f ns\n", bytes, rounds[ROUNDS / 2]);
	}
	free(ours);
	free(sum);
	MPI_Finalize();
	return 0;
}
