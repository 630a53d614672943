/* Fabrics and domains: opening, closing in the right order only, and bindings. */
#include "every.h"

static const struct settings plain = { .name = "plain", .av_type = FI_AV_MAP, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL,
				       .wait = FI_WAIT_NONE };

/* An object keeps the object in which it was opened open. */
static void closing(void)
{
	struct room room;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_cntr *cntr;
	struct fid_eq *eq;
	struct fid_ep *ep;
	struct fi_av_attr av_attr = { .type = FI_AV_MAP };
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_CONTEXT };
	struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_NONE };

	open_room(&room, &plain);
	CHECK(room.fabric->fid.fclass == FI_CLASS_FABRIC && room.domain->fid.fclass == FI_CLASS_DOMAIN, "classes");
	ANSWERS(-FI_EBUSY, fi_close(&room.fabric->fid));
	NEEDS(fi_eq_open(room.fabric, &eq_attr, &eq, NULL));
	NEEDS(fi_av_open(room.domain, &av_attr, &av, NULL));
	ANSWERS(-FI_EBUSY, fi_close(&room.domain->fid));
	NEEDS(fi_cq_open(room.domain, &cq_attr, &cq, NULL));
	NEEDS(fi_cntr_open(room.domain, NULL, &cntr, NULL));
	NEEDS(fi_endpoint(room.domain, room.info, &ep, NULL));
	NEEDS(fi_ep_bind(ep, &av->fid, 0));
	NEEDS(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	NEEDS(fi_ep_bind(ep, &cntr->fid, FI_SEND));
	NEEDS(fi_ep_bind(ep, &eq->fid, 0));
	NEEDS(fi_enable(ep));
	ANSWERS(-FI_EBUSY, fi_close(&av->fid));
	ANSWERS(-FI_EBUSY, fi_close(&cq->fid));
	ANSWERS(-FI_EBUSY, fi_close(&cntr->fid));
	ANSWERS(-FI_EBUSY, fi_close(&eq->fid));
	ANSWERS(-FI_EBUSY, fi_close(&room.domain->fid));
	ANSWERS(0, fi_close(&ep->fid));
	ANSWERS(0, fi_close(&eq->fid));
	ANSWERS(0, fi_close(&cntr->fid));
	ANSWERS(0, fi_close(&cq->fid));
	ANSWERS(0, fi_close(&av->fid));
	close_room(&room);
}

/* Contexts are returned, several domains can be open, and fi_domain2 accepts flags of 0. */
static void several(void)
{
	struct room room;
	struct fid_domain *second, *third;
	struct fid_fabric *fabric;
	int mark;

	open_room(&room, &plain);
	NEEDS(fi_fabric(room.info->fabric_attr, &fabric, &mark));
	CHECK(fabric->fid.context == &mark, "another context");
	NEEDS(fi_domain(fabric, room.info, &second, &mark));
	CHECK(second->fid.context == &mark, "another context");
	NEEDS(fi_domain2(fabric, room.info, &third, 0, NULL));
	ANSWERS(0, fi_close(&third->fid));
	ANSWERS(0, fi_close(&second->fid));
	ANSWERS(0, fi_close(&fabric->fid));
	close_room(&room);
}

/* An event queue for asynchronous registrations. Without FI_REG_MR the binding has no effect. */
static void binding(void)
{
	struct room room;
	struct fid_eq *eq;
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_NONE };

	open_room(&room, &plain);
	NEEDS(fi_eq_open(room.fabric, &attr, &eq, NULL));
	ANSWERS(0, fi_domain_bind(room.domain, &eq->fid, 0));
	ANSWERS(-FI_EINVAL, fi_domain_bind(room.domain, &room.fabric->fid, 0));
	ANSWERS(0, fi_close(&room.domain->fid));
	ANSWERS(0, fi_close(&eq->fid));
	ANSWERS(0, fi_close(&room.fabric->fid));
	fi_freeinfo(room.info);
}

void fabric_groups(void)
{
	begin("fabric: closing in order");
	closing();
	end();
	begin("fabric: several domains");
	several();
	end();
	begin("domain: binding");
	binding();
	end();
}
