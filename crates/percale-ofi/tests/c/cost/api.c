/*
 * Tagged messages of 8 bytes in both directions between two endpoints through libfabric. The calling thread drives both
 * endpoints. benches/api.rs loads this library and compares it with the same program that uses percale's raw calls.
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEN 8
#define TAG 8

struct side {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	fi_addr_t peer;
	char in[LEN], out[LEN];
	struct fi_context2 received, sent;
};

static struct side sides[2];

#define NEEDS(call)                                                                        \
	do {                                                                               \
		int answer = (int)(call);                                                  \
		if (answer) {                                                              \
			fprintf(stderr, "%s: %s\n", #call, fi_strerror(-answer));          \
			return -1;                                                         \
		}                                                                          \
	} while (0)

static int open_side(struct side *side)
{
	struct fi_av_attr av = { .type = FI_AV_TABLE };
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE };
	struct fi_info *hints = fi_allocinfo();

	if (!hints)
		return -1;
	hints->fabric_attr->prov_name = strdup("percale");
	hints->caps = FI_TAGGED;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->data_progress = hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	NEEDS(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &side->info));
	fi_freeinfo(hints);
	NEEDS(fi_fabric(side->info->fabric_attr, &side->fabric, NULL));
	NEEDS(fi_domain(side->fabric, side->info, &side->domain, NULL));
	NEEDS(fi_av_open(side->domain, &av, &side->av, NULL));
	NEEDS(fi_cq_open(side->domain, &cq, &side->cq, NULL));
	NEEDS(fi_endpoint(side->domain, side->info, &side->ep, NULL));
	NEEDS(fi_ep_bind(side->ep, &side->av->fid, 0));
	/* All receives report completions, and sends only on request. */
	NEEDS(fi_ep_bind(side->ep, &side->cq->fid, FI_RECV));
	NEEDS(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION));
	NEEDS(fi_enable(side->ep));
	return 0;
}

/* Opens both endpoints and inserts their addresses. */
int face_open(void);
int face_open(void)
{
	char name[64];

	for (int at = 0; at < 2; at++)
		if (open_side(&sides[at]))
			return -1;
	for (int at = 0; at < 2; at++) {
		size_t len = sizeof(name);

		NEEDS(fi_getname(&sides[1 - at].ep->fid, name, &len));
		if (fi_av_insert(sides[at].av, name, 1, &sides[at].peer, 0, NULL) != 1)
			return -1;
	}
	return 0;
}

static inline int one(struct side *from, struct side *to)
{
	struct fi_cq_tagged_entry entry;
	ssize_t got;

	NEEDS(fi_trecv(to->ep, to->in, LEN, NULL, FI_ADDR_UNSPEC, TAG, 0, &to->received));
	while ((got = fi_tsend(from->ep, from->out, LEN, NULL, from->peer, TAG, &from->sent)) == -FI_EAGAIN)
		fi_cq_read(from->cq, &entry, 1);
	NEEDS(got);
	while ((got = fi_cq_read(to->cq, &entry, 1)) == -FI_EAGAIN)
		fi_cq_read(from->cq, &entry, 1); /* Both endpoints must be driven while they connect. */
	return got == 1 && entry.op_context == &to->received ? 0 : -1;
}

/* Sends this number of messages in each direction. */
int face_rounds(uint64_t count);
int face_rounds(uint64_t count)
{
	for (uint64_t at = 0; at < count; at++)
		if (one(&sides[0], &sides[1]) || one(&sides[1], &sides[0]))
			return -1;
	return 0;
}

int face_close(void);
int face_close(void)
{
	for (int at = 0; at < 2; at++) {
		struct side *side = &sides[at];

		NEEDS(fi_close(&side->ep->fid));
		NEEDS(fi_close(&side->cq->fid));
		NEEDS(fi_close(&side->av->fid));
		NEEDS(fi_close(&side->domain->fid));
		NEEDS(fi_close(&side->fabric->fid));
		fi_freeinfo(side->info);
	}
	return 0;
}
