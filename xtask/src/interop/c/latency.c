/* Prints half of the round-trip time between two ranks in microseconds: the median of many short runs, for each requested size. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 41, MOST = 4 << 20 };

static int ascending(const void *one, const void *other)
{
	const double a = *(const double *)one, b = *(const double *)other;

	return (a > b) - (a < b);
}

static double run(int rank, char *buffer, int len, int times)
{
	const double start = MPI_Wtime();

	for (int n = 0; n < times; n++) {
		if (rank == 0) {
			MPI_Send(buffer, len, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
			MPI_Recv(buffer, len, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		} else {
			MPI_Recv(buffer, len, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Send(buffer, len, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
		}
	}
	return (MPI_Wtime() - start) / times / 2 * 1e6;
}

int main(int argc, char **argv)
{
	int rank, size;
	char *buffer = malloc(MOST);

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (size != 2 || buffer == NULL)
		MPI_Abort(MPI_COMM_WORLD, 2);
	memset(buffer, 1, MOST);
	for (int n = 1; n < argc; n++) {
		const int len = atoi(argv[n]);
		const int times = len <= 4096 ? 4000 : len <= 65536 ? 1000 : 60;
		double halves[RUNS];

		if (len < 0 || len > MOST)
			MPI_Abort(MPI_COMM_WORLD, 2);
		run(rank, buffer, len, times); /* Connects, and warms up. */
		for (int at = 0; at < RUNS; at++)
			halves[at] = run(rank, buffer, len, times);
		qsort(halves, RUNS, sizeof halves[0], ascending);
		if (rank == 0)
			printf("%d bytes %.3f us\n", len, halves[RUNS / 2]);
	}
	free(buffer);
	MPI_Finalize();
	return 0;
}
