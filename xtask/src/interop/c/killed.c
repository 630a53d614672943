/*
 * The last rank is killed by SIGKILL while the other ranks wait for it, each in a receive. On request, even ranks wait in a long
 * send. Each of them must get an error, and prints the time until the error. No rank waits beyond the limit.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONG = 8 << 20, LIMIT = 60 };

static void hangs(int signal)
{
	static const char text[] = "a rank hangs: 1 wrong\n";

	(void)signal;
	if (write(1, text, sizeof text - 1) < 0)
		_exit(4);
	_exit(3);
}

int main(int argc, char **argv)
{
	const int sends = argc > 1 && strcmp(argv[1], "send") == 0;
	int rank, size, code, last;
	char *buffer = malloc(LONG);
	double start, took;

	MPI_Init(&argc, &argv);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	last = size - 1;
	memset(buffer, 1, LONG);
	if (rank == last) {
		/* After this exchange, all ranks are connected. */
		for (int other = 0; other < last; other++) {
			MPI_Recv(buffer, 8, MPI_BYTE, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Send(buffer, 8, MPI_BYTE, other, 0, MPI_COMM_WORLD);
		}
		usleep(200000);
		for (int other = 0; other < last; other++)
			MPI_Send(buffer, 8, MPI_BYTE, other, 1, MPI_COMM_WORLD);
		raise(SIGKILL);
	}
	signal(SIGALRM, hangs);
	alarm(LIMIT);
	MPI_Send(buffer, 8, MPI_BYTE, last, 0, MPI_COMM_WORLD);
	MPI_Recv(buffer, 8, MPI_BYTE, last, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Recv(buffer, 8, MPI_BYTE, last, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	start = MPI_Wtime();
	if (sends && rank % 2 == 0)
		code = MPI_Send(buffer, LONG, MPI_BYTE, last, 2, MPI_COMM_WORLD);
	else
		code = MPI_Recv(buffer, 8, MPI_BYTE, last, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	took = MPI_Wtime() - start;
	printf("rank %d: an error after %.0f ms, %d wrong\n", rank, took * 1e3, code == MPI_SUCCESS);
	fflush(stdout);
	/* MPI_Finalize is impossible without the rank that died. */
	_exit(code == MPI_SUCCESS);
}
