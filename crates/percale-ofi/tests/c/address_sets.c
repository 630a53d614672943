/* Address sets (fi_av_set(3)). */
#include "every.h"

/* Valid and invalid address sets. */
void address_sets(void)
{
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE, .count = 8 };
	struct fi_av_set_attr range = { .start_addr = 1, .end_addr = 7, .stride = 2 };
	struct fi_av_set_attr all = { .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL, .flags = FI_UNIVERSE | FI_ALLREDUCE_SET };
	struct fid_av_set *odd, *every, *other;
	struct fid_av *av, *map;
	struct room room;
	fi_addr_t address, peers[8];
	struct settings how = { .name = "address sets", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL, .caps = FI_COLLECTIVE };

	open_room(&room, &how);
	NEEDS(fi_av_open(room.domain, &av_attr, &av, NULL));
	for (int n = 0; n < 8; n++) {
		struct { unsigned short family, port; unsigned char ip[4], zero[8]; } name = { 2, (unsigned short)(n + 1), { 127, 0, 0, 1 }, { 0 } };
		ANSWERS(1, fi_av_insert(av, &name, 1, &peers[n], 0, NULL));
	}
	NEEDS(fi_av_set(av, &range, &odd, NULL));
	NEEDS(fi_av_set(av, &all, &every, NULL));
	range.count = 3;
	ANSWERS(-FI_EINVAL, fi_av_set(av, &range, &other, NULL));
	range.count = 4;
	ANSWERS(0, fi_av_set(av, &range, &other, NULL));
	ANSWERS(0, fi_close(&other->fid));
	range = (struct fi_av_set_attr){ .start_addr = 3, .end_addr = 1, .stride = 1 };
	ANSWERS(-FI_EINVAL, fi_av_set(av, &range, &other, NULL));
	all.flags = 1ULL << 39;
	ANSWERS(-FI_EINVAL, fi_av_set(av, &all, &other, NULL));
	all.flags = FI_ALLTOALL_SET;
	all.comm_key_size = 8;
	ANSWERS(-FI_ENOSYS, fi_av_set(av, &all, &other, NULL));
	all.comm_key_size = 0;
	all.flags = FI_ALLTOALL_SET | FI_ALLGATHER_SET | FI_REDUCE_SCATTER_SET | FI_SCATTER_SET | FI_GATHER_SET;
	NEEDS(fi_av_set(av, &all, &other, NULL));
	ANSWERS(0, fi_close(&other->fid));
	/* The odd addresses are in the set already, the even ones are not. */
	for (int n = 0; n < 8; n++) {
		ANSWERS(n % 2 ? -FI_EINVAL : 0, fi_av_set_insert(odd, peers[n]));
		ANSWERS(-FI_EINVAL, fi_av_set_insert(every, peers[n]));
	}
	ANSWERS(-FI_EINVAL, fi_av_set_insert(odd, 99));
	ANSWERS(0, fi_av_set_remove(odd, 4));
	ANSWERS(-FI_EINVAL, fi_av_set_remove(odd, 4));
	ANSWERS(0, fi_av_set_diff(every, odd));
	ANSWERS(0, fi_av_set_remove(every, 4));
	ANSWERS(-FI_EINVAL, fi_av_set_remove(every, 0));
	ANSWERS(0, fi_av_set_union(every, odd));
	ANSWERS(0, fi_av_set_intersect(every, odd));
	ANSWERS(-FI_EINVAL, fi_av_set_insert(every, 7));
	ANSWERS(0, fi_av_set_insert(every, 4));
	ANSWERS(0, fi_av_set_addr(every, &address));
	CHECK(address != FI_ADDR_NOTAVAIL, "no address");
	/* The vector cannot be closed before its sets. */
	ANSWERS(-FI_EBUSY, fi_close(&av->fid));
	ANSWERS(0, fi_close(&odd->fid));
	ANSWERS(0, fi_close(&every->fid));
	ANSWERS(0, fi_close(&av->fid));
	/* The addresses of a map are not a range. */
	av_attr.type = FI_AV_MAP;
	NEEDS(fi_av_open(room.domain, &av_attr, &map, NULL));
	all.flags = FI_UNIVERSE;
	ANSWERS(-FI_EINVAL, fi_av_set(map, &all, &other, NULL));
	ANSWERS(0, fi_close(&map->fid));
	close_room(&room);
}
