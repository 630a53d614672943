/* Collective operations (fi_collective(3)). percale has none: each entry answers so, and nothing of it is posted. */
#include "every.h"

static const struct settings how = { .name = "collectives", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL };

void collective_groups(void)
{
	struct two two;
	uint64_t in[4] = { 1, 2, 3, 4 }, out[4];
	struct fi_ioc ioc = { in, 4 }, result = { out, 4 };
	struct fi_msg_collective msg = { .msg_iov = &ioc, .iov_count = 1, .coll = FI_ALLREDUCE, .datatype = FI_UINT64, .op = FI_SUM };
	struct fi_collective_attr attr = { .op = FI_SUM, .datatype = FI_UINT64 };
	struct fid_mc *group;
	struct fid_ep *ep;

	if (is_there("collectives"))
		return;
	begin("collectives");
	open_two(&two, &how);
	ep = two.a.ep;
	ANSWERS(-FI_ENOSYS, fi_query_collective(two.room.domain, FI_ALLREDUCE, &attr, 0));
	ANSWERS(-FI_ENOSYS, fi_join_collective(ep, FI_ADDR_NOTAVAIL, NULL, 0, &group, NULL));
	ANSWERS(-FI_ENOSYS, fi_barrier(ep, 0, NULL));
	ANSWERS(-FI_ENOSYS, fi_barrier2(ep, 0, FI_COMPLETION, NULL));
	ANSWERS(-FI_ENOSYS, fi_broadcast(ep, in, 4, NULL, 0, 0, FI_UINT64, 0, NULL));
	ANSWERS(-FI_ENOSYS, fi_alltoall(ep, in, 4, NULL, out, NULL, 0, FI_UINT64, 0, NULL));
	ANSWERS(-FI_ENOSYS, fi_allreduce(ep, in, 4, NULL, out, NULL, 0, FI_UINT64, FI_SUM, 0, NULL));
	ANSWERS(-FI_ENOSYS, fi_allgather(ep, in, 4, NULL, out, NULL, 0, FI_UINT64, 0, NULL));
	ANSWERS(-FI_ENOSYS, fi_reduce_scatter(ep, in, 4, NULL, out, NULL, 0, FI_UINT64, FI_SUM, 0, NULL));
	ANSWERS(-FI_ENOSYS, fi_reduce(ep, in, 4, NULL, out, NULL, 0, 0, FI_UINT64, FI_SUM, 0, NULL));
	ANSWERS(-FI_ENOSYS, fi_scatter(ep, in, 4, NULL, out, NULL, 0, 0, FI_UINT64, 0, NULL));
	ANSWERS(-FI_ENOSYS, fi_gather(ep, in, 4, NULL, out, NULL, 0, 0, FI_UINT64, 0, NULL));
	/* There is no inline function for this one. */
	ANSWERS(-FI_ENOSYS, ep->collective->msg(ep, &msg, &result, NULL, 1, 0));
	quiet(&two.pair);
	close_two(&two);
	end();
}
