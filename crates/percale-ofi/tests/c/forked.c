/* Objects that a forked child inherited: every call returns, and none has an effect. */
#include "every.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* The objects that a child uses. The parent has opened them. */
struct inherited {
	struct two two;
	struct fid_cq *cq;
	struct fid_cntr *cntr;
	struct fid_eq *eq;
	struct fid_wait *set;
	struct fid_poll *polls;
	struct fid_mr *mr;
	char memory[64];
};

static void open_all(struct inherited *all, enum fi_threading threading, enum fi_wait_obj wait)
{
	struct settings how = { .name = "forked", .av_type = FI_AV_TABLE, .threading = threading,
				.progress = FI_PROGRESS_MANUAL, .wait = wait, .caps = FI_RMA_EVENT };
	struct fi_wait_attr set = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD };
	struct fi_cntr_attr cntr = { .wait_obj = FI_WAIT_FD };
	struct fi_eq_attr eq = { .wait_obj = FI_WAIT_FD, .flags = FI_WRITE };
	struct fi_poll_attr polls = { 0 };

	memset(all, 0, sizeof(*all));
	open_two(&all->two, &how);
	NEEDS(fi_wait_open(all->two.room.fabric, &set, &all->set));
	NEEDS(fi_cq_open(all->two.room.domain, &cq, &all->cq, NULL));
	NEEDS(fi_cntr_open(all->two.room.domain, &cntr, &all->cntr, NULL));
	NEEDS(fi_eq_open(all->two.room.fabric, &eq, &all->eq, NULL));
	NEEDS(fi_poll_open(all->two.room.domain, &polls, &all->polls));
	NEEDS(fi_poll_add(all->polls, &all->cq->fid, 0));
	NEEDS(fi_mr_reg(all->two.room.domain, all->memory, sizeof(all->memory), FI_REMOTE_WRITE, 0, 77, 0, &all->mr, NULL));
}

static void close_all(struct inherited *all)
{
	ANSWERS(0, fi_close(&all->mr->fid));
	ANSWERS(0, fi_poll_del(all->polls, &all->cq->fid, 0));
	ANSWERS(0, fi_close(&all->polls->fid));
	ANSWERS(0, fi_close(&all->cq->fid));
	ANSWERS(0, fi_close(&all->cntr->fid));
	ANSWERS(0, fi_close(&all->eq->fid));
	ANSWERS(0, fi_close(&all->set->fid));
	close_two(&all->two);
}

#define REFUSES(call)                                                                                                  \
	do {                                                                                                               \
		if ((long long)(call) >= 0)                                                                                    \
			_exit(__LINE__ % 200 + 1);                                                                                 \
	} while (0)

static void child(struct inherited *all)
{
	struct fid *objects[] = { &all->cq->fid, &all->cntr->fid, &all->eq->fid, &all->set->fid, &all->two.a.rxcq->fid };
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = { 0 };
	struct fi_eq_err_entry event_error = { 0 };
	struct fi_eq_entry event;
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_TAGGED };
	struct fid_cq *cq;
	struct fid_ep *ep = all->two.a.ep;
	fi_addr_t peer = all->two.a.peer, address;
	void *found[4];
	uint32_t code;
	char name[64];
	size_t len = sizeof(name);
	int fd;

	alarm(WAIT_LIMIT);
	REFUSES(fi_cq_read(all->cq, &entry, 1));
	REFUSES(fi_cq_sread(all->cq, &entry, 1, NULL, -1));
	REFUSES(fi_cq_sread(all->two.a.rxcq, &entry, 1, NULL, 50));
	REFUSES(fi_cq_read(all->two.a.rxcq, &entry, 1));
	REFUSES(fi_cq_read(all->two.a.rxcq, NULL, 0));
	REFUSES(fi_cq_readerr(all->cq, &error, 0));
	fi_cq_signal(all->cq);
	REFUSES(fi_eq_read(all->eq, &code, &event, sizeof(event), 0));
	REFUSES(fi_eq_sread(all->eq, &code, &event, sizeof(event), -1, 0));
	REFUSES(fi_eq_readerr(all->eq, &event_error, 0));
	REFUSES(fi_eq_write(all->eq, FI_NOTIFY, &event, sizeof(event), 0));
	REFUSES(fi_cntr_wait(all->cntr, 1, -1));
	fi_cntr_read(all->cntr);
	fi_cntr_readerr(all->cntr);
	REFUSES(fi_wait(all->set, -1));
	fi_poll(all->polls, found, 4);
	for (size_t at = 0; at < COUNT(objects); at++) {
		REFUSES(fi_trywait(all->two.room.fabric, &objects[at], 1));
		REFUSES(fi_control(objects[at], FI_GETWAIT, &fd));
	}
	REFUSES(fi_send(ep, all->memory, 8, NULL, peer, context(1)));
	REFUSES(fi_inject(ep, all->memory, 8, peer));
	REFUSES(fi_recv(ep, all->memory, 8, NULL, FI_ADDR_UNSPEC, context(1)));
	REFUSES(fi_write(ep, all->memory, 8, NULL, peer, 0, 77, context(1)));
	REFUSES(fi_cancel(&ep->fid, context(1)));
	fi_getname(&ep->fid, name, &len);
	fi_av_lookup(all->two.a.av, peer, name, &len);
	fi_av_insert(all->two.a.av, name, 1, &address, 0, NULL);
	fi_cq_open(all->two.room.domain, &attr, &cq, NULL);
	fi_mr_key(all->mr);
	/* Closing an inherited object in the child does not end the parent's object. */
	fi_close(&all->mr->fid);
	fi_close(&ep->fid);
	fi_close(&all->cntr->fid);
	fi_close(&all->eq->fid);
	_exit(0);
}

static void inherited(enum fi_threading threading, enum fi_wait_obj wait)
{
	static struct inherited all;
	struct message in = { .len = 50, .context = context(5) }, out = { .len = 50, .context = context(6) };
	int status = 0;
	pid_t pid;

	open_all(&all, threading, wait);
	in.buf = all.two.b.in;
	out.buf = all.two.a.out;
	fflush(stdout);
	pid = fork();
	MUST(pid >= 0, "no child");
	if (pid == 0)
		child(&all);
	MUST(waitpid(pid, &status, 0) == pid, "no child");
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child ended with signal %d, or by line %d (modulo 200)",
	      WIFSIGNALED(status) ? WTERMSIG(status) : 0, WIFEXITED(status) ? WEXITSTATUS(status) - 1 : 0);
	/* The parent's objects continue to work. */
	ANSWERS(0, post_receive(&all.two.b, RECV, &in));
	fill(all.two.a.out, 50, 1);
	ANSWERS(0, post_send(&all.two.a, SEND, &out));
	check_sent(&all.two.a, SEND, &out);
	check_received(&all.two.b, &in, &out, false, 1);
	close_all(&all);
}

void forked_groups(void)
{
	begin("forked children");
	inherited(FI_THREAD_SAFE, FI_WAIT_FD);
	inherited(FI_THREAD_SAFE, FI_WAIT_NONE);
	inherited(FI_THREAD_DOMAIN, FI_WAIT_NONE);
	inherited(FI_THREAD_COMPLETION, FI_WAIT_FD);
	end();
}
