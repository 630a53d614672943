/*
 * A growing token is passed through all ranks. Each rank adds its mark. At the end the token must contain the marks of all ranks.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 200, MOST = 1 << 20 };

static size_t length(int round)
{
	return round % 10 == 9 ? MOST : (size_t)1 << (round % 17);
}

int main(int argc, char **argv)
{
	int rank, size, wrong = 0;
	unsigned char *token = malloc(MOST);

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (int round = 0; round < ROUNDS; round++) {
		const size_t len = length(round);
		const int next = (rank + 1) % size, before = (rank + size - 1) % size;
		MPI_Status status;
		int got;

		if (rank == 0) {
			memset(token, round & 0x7f, len);
			MPI_Send(token, (int)len, MPI_BYTE, next, round, MPI_COMM_WORLD);
		}
		MPI_Recv(token, MOST, MPI_BYTE, before, round, MPI_COMM_WORLD, &status);
		MPI_Get_count(&status, MPI_BYTE, &got);
		wrong += (size_t)got != len;
		/* All previous ranks have added 1. */
		for (size_t at = 0; at < len; at++)
			wrong += token[at] != (unsigned char)((round & 0x7f) + (rank == 0 ? size - 1 : rank - 1));
		for (size_t at = 0; at < len; at++)
			token[at]++;
		if (rank != 0)
			MPI_Send(token, (int)len, MPI_BYTE, next, round, MPI_COMM_WORLD);
	}
	MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d rounds over %d ranks, %d wrong\n", ROUNDS, size, wrong);
	free(token);
	MPI_Finalize();
	return wrong ? 1 : 0;
}
