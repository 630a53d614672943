/* Opens endpoints with all required objects, binds and enables them, and closes everything in the right order. */
#include "every.h"

static const uint64_t kind_flags[KINDS] = {
	[SENT] = FI_SEND, [RECEIVED] = FI_RECV, [READ] = FI_READ,
	[WRITTEN] = FI_WRITE, [REMOTELY_READ] = FI_REMOTE_READ, [REMOTELY_WRITTEN] = FI_REMOTE_WRITE,
};

struct fi_info *hints_for(const struct settings *how)
{
	struct fi_info *hints = fi_allocinfo();

	MUST(hints, "out of memory");
	hints->fabric_attr->prov_name = strdup(options.provider);
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_SOURCE | FI_MULTI_RECV |
		FI_LOCAL_COMM | FI_REMOTE_COMM | FI_READ | FI_WRITE | FI_SEND | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE;
	if (how->counters)
		hints->caps |= FI_RMA_EVENT;
	hints->caps |= how->caps;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->av_type = how->av_type;
	hints->domain_attr->threading = how->threading;
	hints->domain_attr->data_progress = how->progress;
	hints->domain_attr->control_progress = how->progress;
	hints->domain_attr->mr_mode = how->mr_mode;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->tx_attr->op_flags = how->op_flags;
	hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
	/* A receive has no completion level: it completes when it has its message. */
	hints->rx_attr->op_flags = how->op_flags & FI_COMPLETION;
	if (how->domain_key) {
		hints->domain_attr->auth_key = (uint8_t *)strdup(how->domain_key);
		hints->domain_attr->auth_key_size = strlen(how->domain_key);
	}
	if (how->ep_key) {
		hints->ep_attr->auth_key = (uint8_t *)strdup(how->ep_key);
		hints->ep_attr->auth_key_size = strlen(how->ep_key);
	}
	return hints;
}

void open_room(struct room *room, const struct settings *how)
{
	struct fi_info *hints = hints_for(how);
	const char *service = NULL;

	memset(room, 0, sizeof(*room));
	NEEDS(fi_getinfo(how->api ? how->api : API, how->node, service, how->node ? FI_SOURCE : 0, hints, &room->info));
	fi_freeinfo(hints);
	CHECK(!strcmp(room->info->fabric_attr->prov_name, options.provider), "%s", room->info->fabric_attr->prov_name);
	CHECK(how->api || (room->info->domain_attr->mr_mode & ~how->mr_mode) == 0, "%#x", room->info->domain_attr->mr_mode);
	CHECK(room->info->domain_attr->threading == how->threading, "%d", room->info->domain_attr->threading);
	CHECK(room->info->domain_attr->av_type == how->av_type, "%d", room->info->domain_attr->av_type);
	CHECK(room->info->domain_attr->data_progress == how->progress, "%d", room->info->domain_attr->data_progress);
	CHECK(room->info->tx_attr->op_flags == how->op_flags, "%#llx", (unsigned long long)room->info->tx_attr->op_flags);
	room->info->domain_attr->mr_mode |= how->taken;
	NEEDS(fi_fabric(room->info->fabric_attr, &room->fabric, NULL));
	NEEDS(fi_domain(room->fabric, room->info, &room->domain, NULL));
}

void close_room(struct room *room)
{
	ANSWERS(0, fi_close(&room->domain->fid));
	ANSWERS(0, fi_close(&room->fabric->fid));
	fi_freeinfo(room->info);
}

static struct fid_cq *open_queue(struct side *side)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = side->how->wait, .size = 1024 };
	struct fid_cq *cq;

	NEEDS(fi_cq_open(side->room->domain, &attr, &cq, side));
	return cq;
}

/* Allocates memory for the groups. If the provider requires descriptors (FI_MR_LOCAL), the memory is registered. */
static char *allocate(struct side *side, int which, void **desc)
{
	char *memory = calloc(1, ROOM);
	const uint64_t all = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
	static uint64_t key = 1000;

	MUST(memory, "out of memory");
	if (side->room->info->domain_attr->mr_mode & FI_MR_LOCAL) {
		NEEDS(fi_mr_reg(side->room->domain, memory, ROOM, all, 0, key++, 0, &side->local[which], NULL));
		*desc = fi_mr_desc(side->local[which]);
	}
	return memory;
}

void open_side(struct side *side, struct room *room, const struct settings *how)
{
	struct fi_av_attr av = { .type = how->av_type, .count = 16 };
	uint64_t tx = FI_TRANSMIT | (how->tx_selective ? FI_SELECTIVE_COMPLETION : 0);
	uint64_t rx = FI_RECV | (how->rx_selective ? FI_SELECTIVE_COMPLETION : 0);

	memset(side, 0, sizeof(*side));
	side->room = room;
	side->how = how;
	side->peer = FI_ADDR_UNSPEC;
	NEEDS(fi_av_open(room->domain, &av, &side->av, NULL));
	NEEDS(fi_endpoint(room->domain, room->info, &side->ep, side));
	side->txcq = open_queue(side);
	side->rxcq = how->two_queues ? open_queue(side) : side->txcq;
	if (how->two_queues || tx != (FI_TRANSMIT | (rx & ~FI_RECV))) {
		NEEDS(fi_ep_bind(side->ep, &side->txcq->fid, tx));
		NEEDS(fi_ep_bind(side->ep, &side->rxcq->fid, rx));
	} else {
		NEEDS(fi_ep_bind(side->ep, &side->txcq->fid, tx | rx));
	}
	for (int kind = 0; how->counters && kind < KINDS; kind++) {
		NEEDS(fi_cntr_open(room->domain, NULL, &side->counters[kind], NULL));
		NEEDS(fi_ep_bind(side->ep, &side->counters[kind]->fid, kind_flags[kind]));
	}
	NEEDS(fi_ep_bind(side->ep, &side->av->fid, 0));
	if (how->caps & FI_COLLECTIVE) {
		struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD };
		NEEDS(fi_eq_open(room->fabric, &attr, &side->eq, side));
		NEEDS(fi_ep_bind(side->ep, &side->eq->fid, 0));
	}
	NEEDS(fi_enable(side->ep));
	side->out = allocate(side, 0, &side->out_desc);
	side->in = allocate(side, 1, &side->in_desc);
}

void close_side(struct side *side)
{
	for (size_t at = 0; at < COUNT(side->local); at++)
		if (side->local[at])
			ANSWERS(0, fi_close(&side->local[at]->fid));
	ANSWERS(0, fi_close(&side->ep->fid));
	if (side->eq)
		ANSWERS(0, fi_close(&side->eq->fid));
	for (int kind = 0; kind < KINDS; kind++)
		if (side->counters[kind])
			ANSWERS(0, fi_close(&side->counters[kind]->fid));
	if (side->rxcq != side->txcq)
		ANSWERS(0, fi_close(&side->rxcq->fid));
	ANSWERS(0, fi_close(&side->txcq->fid));
	ANSWERS(0, fi_close(&side->av->fid));
	free(side->out);
	free(side->in);
}

size_t name_of(struct side *side, void *address, size_t room)
{
	size_t len = room;

	NEEDS(fi_getname(&side->ep->fid, address, &len));
	MUST(len <= room, "%zu", len);
	return len;
}

void insert_peer(struct side *side, const void *address)
{
	ANSWERS(1, fi_av_insert(side->av, address, 1, &side->peer, 0, NULL));
}

void open_two(struct two *two, const struct settings *how)
{
	char name[64];

	open_room(&two->room, how);
	open_side(&two->a, &two->room, how);
	open_side(&two->b, &two->room, how);
	name_of(&two->b, name, sizeof(name));
	insert_peer(&two->a, name);
	name_of(&two->a, name, sizeof(name));
	insert_peer(&two->b, name);
	two->a.mate = &two->b;
	two->b.mate = &two->a;
	two->pair = (struct pair){ &two->a, &two->b, -1 };
}

void close_two(struct two *two)
{
	close_side(&two->a);
	close_side(&two->b);
	close_room(&two->room);
}
