/*
 * Two connected processes. One of them is killed by SIGKILL. The other one has a receive from it and a long send to it in progress,
 * and must get errors for both. It prints the time until the errors, and does not wait beyond the limit.
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LONG = 8 << 20, LIMIT_MS = 20000 };

static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_av *av;

static void needs(int good, const char *what)
{
	if (!good) {
		printf("%s failed: 1 wrong\n", what);
		exit(1);
	}
}

static double now_ms(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void open_all(void)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .size = 64 };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct fid_fabric *fabric;
	struct fid_domain *domain;

	hints->caps = FI_TAGGED | FI_DIRECTED_RECV;
	hints->ep_attr->type = FI_EP_RDM;
	hints->fabric_attr->prov_name = strdup("percale");
	needs(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info) == 0, "fi_getinfo");
	needs(fi_fabric(info->fabric_attr, &fabric, NULL) == 0, "fi_fabric");
	needs(fi_domain(fabric, info, &domain, NULL) == 0, "fi_domain");
	needs(fi_endpoint(domain, info, &ep, NULL) == 0, "fi_endpoint");
	needs(fi_cq_open(domain, &cq_attr, &cq, NULL) == 0, "fi_cq_open");
	needs(fi_av_open(domain, &av_attr, &av, NULL) == 0, "fi_av_open");
	needs(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV) == 0, "fi_ep_bind");
	needs(fi_ep_bind(ep, &av->fid, 0) == 0, "fi_ep_bind");
	needs(fi_enable(ep) == 0, "fi_enable");
	fi_freeinfo(info);
	fi_freeinfo(hints);
}

/* Sends this rank's address to the other rank, and receives its address. */
static void meet(int to, int from)
{
	char name[128] = { 0 };
	size_t len = sizeof name;
	fi_addr_t peer;

	needs(fi_getname(&ep->fid, name, &len) == 0, "fi_getname");
	needs(write(to, name, sizeof name) == sizeof name, "writing to the other");
	needs(read(from, name, sizeof name) == sizeof name, "reading from the other");
	needs(fi_av_insert(av, name, 1, &peer, 0, NULL) == 1 && peer == 0, "fi_av_insert");
}

/* Returns the result of one operation: 0 or an error. */
static int next_end(double until)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = { 0 };

	while (now_ms() < until) {
		const ssize_t read = fi_cq_read(cq, &entry, 1);

		if (read == 1)
			return 0;
		if (read == -FI_EAVAIL && fi_cq_readerr(cq, &error, 0) == 1)
			return error.err;
	}
	printf("an operation hangs: 1 wrong\n");
	exit(3);
}

static void post(ssize_t (*operation)(void *), void *buffer)
{
	while (operation(buffer) == -FI_EAGAIN)
		fi_cq_read(cq, NULL, 0);
}

static ssize_t send_short(void *buffer)
{
	return fi_tsend(ep, buffer, 8, NULL, 0, 1, NULL);
}

static ssize_t send_long(void *buffer)
{
	return fi_tsend(ep, buffer, LONG, NULL, 0, 2, NULL);
}

static ssize_t receive(void *buffer)
{
	return fi_trecv(ep, buffer, 8, NULL, 0, 1, 0, NULL);
}

int main(void)
{
	char *out = calloc(1, LONG), in[8], doomed_in[8];
	const double until = now_ms() + LIMIT_MS;
	int there[2], back[2], wrong = 0;
	double start, took[2];
	pid_t doomed;

	needs(out != NULL && pipe(there) == 0 && pipe(back) == 0, "pipe");
	fflush(stdout);
	doomed = fork();
	needs(doomed >= 0, "fork");
	open_all();
	if (doomed == 0)
		meet(back[1], there[0]);
	else
		meet(there[1], back[0]);
	/* The processes are connected after a message in each direction. */
	post(receive, doomed == 0 ? doomed_in : in);
	post(send_short, out);
	for (int ends = 0; ends < 2; ends++)
		needs(next_end(until) == 0, "the first exchange");
	if (doomed == 0) {
		needs(read(there[0], doomed_in, 1) == 1, "reading from the other");
		raise(SIGKILL);
	}
	post(receive, in);
	post(send_long, out);
	start = now_ms();
	needs(write(there[1], "x", 1) == 1, "writing to the other");
	for (int ends = 0; ends < 2; ends++) {
		const int error = next_end(until);

		took[ends] = now_ms() - start;
		wrong += error == 0;
	}
	printf("errors after %.0f and %.0f ms, %d wrong\n", took[0], took[1], wrong);
	return wrong != 0;
}
