/*
 * One of two processes that exchange messages and access each other's memory through libfabric, while the system
 * rejects one of its calls. It communicates with its test by lines: it writes "address HEX" and reads the peer's
 * address, writes "half" and reads a line, and finally writes "works" or "error TEXT". DENY is "NUMBER WHICH ERROR
 * WHEN", SPACE is "BYTES WHEN" (see percale_conformance::denial), or they are not set.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#define SIZE (1 << 20)
#define KEY 7

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static struct fid_mr *mr;
static fi_addr_t peer;
static unsigned char *memory, *out, *in;
static const size_t lengths[] = { 8, 3000, 700000 };

static _Noreturn void failed(const char *what, const char *why)
{
	printf("error %s: %s\n", what, why);
	fflush(stdout);
	/* The system closes all open objects, as for a program that returns from main. */
	_exit(0);
}

#define MUST(call)                                                                                                                                   \
	do {                                                                                                                                         \
		long result_ = (call);                                                                                                               \
		if (result_)                                                                                                                         \
			failed(#call, fi_strerror((int)-result_));                                                                                   \
	} while (0)

/*
 * Selects the calls of this number that are rejected: all, those on descriptors above 2, those that map a descriptor, or those
 * on shared words.
 */
static void deny(const char *when)
{
	const char *told = getenv("DENY");
	char moment[16];
	unsigned number, which, error;
	struct sock_filter f[8];
	unsigned short n = 0;

	if (!told || sscanf(told, "%u %u %u %15s", &number, &which, &error, moment) != 4 || strcmp(moment, when))
		return;
	f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0);
	f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, which ? 3 : 1);
	if (which) {
		static const unsigned argument[] = { 0, 0, 4, 1 };
		f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 16 + 8 * argument[which]);
		if (which == 1)
			f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 2, 0, 1);
		else if (which == 2)
			f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xffffffff, 1, 0);
		else
			f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 1, 1, 0);
	}
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error);
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { n, f };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)) {
		printf("no filter of system calls: %s\n", strerror(errno));
		exit(3);
	}
}

/* Limits the address space to this number of bytes beyond the current size. */
static void limit_space(const char *when)
{
	const char *told = getenv("SPACE");
	char moment[16];
	unsigned long beyond, pages;
	struct rlimit limit;
	FILE *statm;

	if (!told || sscanf(told, "%lu %15s", &beyond, moment) != 2 || strcmp(moment, when))
		return;
	statm = fopen("/proc/self/statm", "r");
	if (!statm || fscanf(statm, "%lu", &pages) != 1 || getrlimit(RLIMIT_AS, &limit)) {
		printf("no size of this process\n");
		exit(3);
	}
	fclose(statm);
	limit.rlim_cur = pages * (unsigned long)sysconf(_SC_PAGESIZE) + beyond;
	if (setrlimit(RLIMIT_AS, &limit)) {
		printf("no limit: %s\n", strerror(errno));
		exit(3);
	}
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Waits for this number of completions. */
static void finish(const char *what, int count)
{
	double end = now() + 60;

	while (count) {
		struct fi_cq_tagged_entry entry;
		ssize_t read = fi_cq_read(cq, &entry, 1);
		if (read == 1) {
			count--;
		} else if (read == -FI_EAVAIL) {
			struct fi_cq_err_entry error = { 0 };
			char text[512];
			fi_cq_readerr(cq, &error, 0);
			fi_cq_strerror(cq, error.prov_errno, error.err_data, text, sizeof(text));
			failed(what, error.err_data_size ? (char *)error.err_data : text);
		} else if (read != -FI_EAGAIN) {
			failed(what, fi_strerror((int)-read));
		} else if (now() > end) {
			failed(what, "no completion within 60 seconds");
		}
	}
}

#define POST(call)                                                                                                                                   \
	do {                                                                                                                                         \
		ssize_t posted_;                                                                                                                     \
		while ((posted_ = (call)) == -FI_EAGAIN)                                                                                             \
			fi_cq_read(cq, NULL, 0);                                                                                                     \
		if (posted_)                                                                                                                         \
			failed(#call, fi_strerror((int)-posted_));                                                                                   \
	} while (0)

static void fill(unsigned char *at, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		at[i] = (unsigned char)((i * 31 + seed * 7 + len) >> (i & 3));
}

static bool is_filled(const unsigned char *at, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		if (at[i] != (unsigned char)((i * 31 + seed * 7 + len) >> (i & 3)))
			return false;
	return true;
}

static void exchange(unsigned round)
{
	uint64_t one = 1, before = 0;

	for (unsigned i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		size_t len = lengths[i];
		fill(out, len, round);
		memset(in, 0, len);
		POST(fi_trecv(ep, in, len, NULL, peer, 10 * round + i, 0, NULL));
		POST(fi_tsend(ep, out, len, NULL, peer, 10 * round + i, NULL));
		finish("a message", 2);
		if (!is_filled(in, len, round))
			abort();
	}
	for (unsigned i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		size_t len = lengths[i];
		fill(out, len, round + 50);
		memset(in, 0, len);
		POST(fi_write(ep, out, len, NULL, peer, 8, KEY, NULL));
		finish("a write", 1);
		POST(fi_read(ep, in, len, NULL, peer, 8, KEY, NULL));
		finish("a read", 1);
		if (!is_filled(in, len, round + 50))
			abort();
	}
	POST(fi_fetch_atomic(ep, &one, 1, NULL, &before, NULL, peer, 0, KEY, FI_UINT64, FI_SUM, NULL));
	finish("an addition", 1);
	if (before != round)
		abort();
	POST(fi_trecv(ep, in, 1, NULL, peer, 1000 + round, 0, NULL));
	POST(fi_tsend(ep, out, 1, NULL, peer, 1000 + round, NULL));
	finish("the end of a round", 2);
}

static void open_all(void)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE };

	hints->fabric_attr->prov_name = strdup("percale");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV;
	MUST(fi_getinfo(FI_VERSION(1, 15), "127.0.0.1", "0", FI_SOURCE, hints, &info));
	fi_freeinfo(hints);
	/* The provider is loaded here. If the limit were set before, libfabric could not load it. */
	limit_space("start");
	MUST(fi_fabric(info->fabric_attr, &fabric, NULL));
	MUST(fi_domain(fabric, info, &domain, NULL));
	MUST(fi_av_open(domain, &av_attr, &av, NULL));
	MUST(fi_cq_open(domain, &cq_attr, &cq, NULL));
	MUST(fi_endpoint(domain, info, &ep, NULL));
	MUST(fi_ep_bind(ep, &av->fid, 0));
	MUST(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	MUST(fi_mr_reg(domain, memory, SIZE, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
	MUST(fi_enable(ep));
}

int main(void)
{
	char line[512];
	unsigned char name[128], other[128];
	size_t len = sizeof(name);

	memory = calloc(1, SIZE);
	out = malloc(SIZE);
	in = malloc(SIZE);
	setvbuf(stdout, NULL, _IOLBF, 0);
	deny("start");
	open_all();
	MUST(fi_getname(&ep->fid, name, &len));
	printf("address ");
	for (size_t i = 0; i < len; i++)
		printf("%02x", name[i]);
	printf("\n");
	if (!fgets(line, sizeof(line), stdin))
		return 3;
	for (size_t i = 0; i < len && i < sizeof(other); i++)
		sscanf(line + 2 * i, "%2hhx", &other[i]);
	if (fi_av_insert(av, other, 1, &peer, 0, NULL) != 1)
		failed("fi_av_insert", "not inserted");
	exchange(0);
	/* Longer than any message may be, so the posting call rejects it. */
	ssize_t posted = fi_tsend(ep, out, (size_t)1 << 63, NULL, peer, 5, NULL);
	if (posted != -FI_EMSGSIZE && posted != -FI_EINVAL)
		abort();
	printf("half\n");
	if (!fgets(line, sizeof(line), stdin))
		return 3;
	deny("middle");
	limit_space("middle");
	for (unsigned round = 1; round < 4; round++)
		exchange(round);
	printf("works\n");
	/* The peer may still be reading. */
	for (double end = now() + 0.3; now() < end;)
		fi_cq_read(cq, NULL, 0);
	MUST(fi_close(&ep->fid));
	MUST(fi_close(&mr->fid));
	MUST(fi_close(&cq->fid));
	MUST(fi_close(&av->fid));
	MUST(fi_close(&domain->fid));
	MUST(fi_close(&fabric->fid));
	return 0;
}
