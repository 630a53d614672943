/* Forked children that use inherited objects. */
#define _GNU_SOURCE
#include "walk.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Each call must return, with any result. */
static void use_inherited(struct world *w)
{
	static char memory[100];
	struct fi_cq_tagged_entry entry;
	struct fi_eq_entry event;
	char name[NAME];
	uint32_t which;

	for (int at = 0; at < w->count; at++) {
		struct fid *fid = w->objects[at].fid;
		size_t length = sizeof(name);
		int descriptor;
		fi_control(fid, FI_GETWAIT, &descriptor);
		fi_trywait(w->fabric, &fid, 1);
		switch (fid->fclass) {
		case FI_CLASS_CQ:
			fi_cq_read((struct fid_cq *)fid, &entry, 1);
			fi_cq_sread((struct fid_cq *)fid, &entry, 1, NULL, 1);
			fi_cq_signal((struct fid_cq *)fid);
			break;
		case FI_CLASS_EQ:
			fi_eq_read((struct fid_eq *)fid, &which, &event, sizeof(event), FI_PEEK);
			fi_eq_sread((struct fid_eq *)fid, &which, &event, sizeof(event), 1, FI_PEEK);
			fi_eq_write((struct fid_eq *)fid, 1000, memory, 4, 0);
			break;
		case FI_CLASS_CNTR:
			fi_cntr_read((struct fid_cntr *)fid);
			fi_cntr_wait((struct fid_cntr *)fid, UINT64_MAX, 1);
			break;
		case FI_CLASS_AV: {
			fi_addr_t address;
			fi_av_insertsvc((struct fid_av *)fid, "127.0.0.1", "4000", &address, 0, NULL);
			fi_av_lookup((struct fid_av *)fid, 0, name, &length);
			break;
		}
		case FI_CLASS_DOMAIN: {
			struct fid_mr *mr;
			fi_mr_reg((struct fid_domain *)fid, memory, sizeof(memory), FI_REMOTE_READ, 0, 4711, 0, &mr, NULL);
			break;
		}
		case FI_CLASS_EP:
		case FI_CLASS_TX_CTX:
		case FI_CLASS_RX_CTX: {
			struct fid_ep *ep = (struct fid_ep *)fid;
			fi_getname(fid, name, &length);
			fi_cancel(fid, NULL);
			if (w->info->mode & FI_LOCAL_MR || w->desc)
				break;
			fi_recv(ep, memory, sizeof(memory), NULL, FI_ADDR_UNSPEC, NULL);
			fi_send(ep, memory, 8, NULL, 0, NULL);
			fi_inject(ep, memory, 8, 0);
			fi_read(ep, memory, 8, NULL, 0, 0, 100, NULL);
			break;
		}
		}
	}
	for (int pass = 0; pass < 3; pass++)
		for (int at = w->count - 1; at >= 0; at--)
			if (!w->objects[at].closed && fi_close(w->objects[at].fid) == 0)
				w->objects[at].closed = true;
}

static void in_a_child(const struct scenario *scenario)
{
	static struct world w;
	pid_t child;
	int status;

	if (!scenario->open(&w))
		return;
	child = fork();
	MUST(child >= 0, "no process");
	if (child == 0) {
		alarm(20);
		use_inherited(&w);
		_exit(0);
	}
	MUST(waitpid(child, &status, 0) == child, "no child");
	MUST(status == 0, "a child that uses what it inherited (%s) ends with %s %d", scenario->name,
	     WIFSIGNALED(status) ? "signal" : "code", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	close_world(&w, NULL);
}

void forked(void)
{
	for (size_t at = 0; at < scenario_count; at++)
		in_a_child(&scenarios[at]);
}
