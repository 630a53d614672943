/* Pairs of ranks exchange messages of all sizes with blocking and nonblocking calls, expected and unexpected, and check every byte. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4 << 20, WINDOW = 32 };

static int wrong;

static void fill(unsigned char *to, size_t len, unsigned seed)
{
	for (size_t at = 0; at < len; at++)
		to[at] = (unsigned char)(at * 31 + seed * 7 + (at >> 8));
}

static void check(const unsigned char *from, size_t len, unsigned seed, const char *what)
{
	for (size_t at = 0; at < len; at++) {
		if (from[at] != (unsigned char)(at * 31 + seed * 7 + (at >> 8))) {
			printf("%s: byte %zu of %zu is wrong\n", what, at, len);
			wrong++;
			return;
		}
	}
}

/* One message in each direction. */
static void exchange(int rank, int peer, size_t len, unsigned char *out, unsigned char *in)
{
	for (unsigned times = 0; times < (len > 100000 ? 3u : 20u); times++) {
		memset(in, 0, len);
		fill(out, len, times + (unsigned)rank);
		if (rank < peer) {
			MPI_Send(out, (int)len, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
			MPI_Recv(in, (int)len, MPI_BYTE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		} else {
			MPI_Recv(in, (int)len, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Ssend(out, (int)len, MPI_BYTE, peer, 2, MPI_COMM_WORLD);
		}
		check(in, len, times + (unsigned)peer, "ping-pong");
	}
}

/* Many messages in both directions at the same time. The receives are posted last and accept any tag. */
static void flood(int rank, int peer, unsigned char *out, unsigned char *in)
{
	enum { EACH = 5000 };
	MPI_Request requests[2 * WINDOW];
	MPI_Status status;

	for (int n = 0; n < WINDOW; n++) {
		fill(out + n * EACH, EACH, (unsigned)(n + rank));
		MPI_Isend(out + n * EACH, EACH, MPI_BYTE, peer, n, MPI_COMM_WORLD, &requests[n]);
	}
	MPI_Probe(peer, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
	for (int n = WINDOW - 1; n >= 0; n--)
		MPI_Irecv(in + n * EACH, EACH, MPI_BYTE, MPI_ANY_SOURCE, n, MPI_COMM_WORLD, &requests[WINDOW + n]);
	MPI_Waitall(2 * WINDOW, requests, MPI_STATUSES_IGNORE);
	for (int n = 0; n < WINDOW; n++)
		check(in + n * EACH, EACH, (unsigned)(n + peer), "flood");
}

int main(int argc, char **argv)
{
	int rank, size, peer;
	unsigned char *out = malloc(MOST), *in = malloc(MOST);

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	/* A rank without a partner sends to itself with nonblocking calls. */
	peer = (rank ^ 1) < size ? rank ^ 1 : rank;
	for (size_t len = 0; peer != rank && len <= MOST; len = len ? len * 2 : 1) {
		exchange(rank, peer, len, out, in);
		if (len > 2)
			exchange(rank, peer, len - 1, out, in);
	}
	flood(rank, peer, out, in);
	MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("every size up to %d bytes, %d wrong\n", MOST, wrong);
	free(out);
	free(in);
	MPI_Finalize();
	return wrong ? 1 : 0;
}
