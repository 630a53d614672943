/* Waiting for completions and counters: in a call, on a descriptor, and until a signal. */
#include "every.h"

#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static struct settings how = { .name = "waits", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL };

/* Also called from a thread that reads no completions. */
static void send_short(struct two *two)
{
	ssize_t code;

	fill(two->a.out, 40, 6);
	while ((code = fi_tinject(two->a.ep, two->a.out, 40, two->a.peer, 9)) == -FI_EAGAIN)
		usleep(1000);
	ANSWERS(0, code);
}

static void receive_it(struct two *two)
{
	NEEDS(fi_trecv(two->b.ep, two->b.in, 100, two->b.in_desc, FI_ADDR_UNSPEC, 9, 0, context(3)));
}

/*
 * The two endpoints connect first, because connecting needs progress at both ends, and a wait at one end makes no
 * progress at the other.
 */
static void introduce(struct two *two)
{
	receive_it(two);
	send_short(two);
	take(&two->b, context(3));
}

static void check_entry(struct two *two, ssize_t got, const struct fi_cq_tagged_entry *entry)
{
	ANSWERS(1, got);
	CHECK(entry->op_context == context(3) && entry->len == 40 && is_filled(two->b.in, 40, 6), "another message");
}

static void *send_later(void *argument)
{
	usleep(30000);
	send_short(argument);
	return NULL;
}

static void sread(struct two *two)
{
	struct fi_cq_tagged_entry entry;
	fi_addr_t source = 0;
	pthread_t sender;
	double start = now();

	asserts("CMP-016");
	ANSWERS(-FI_EAGAIN, fi_cq_sread(two->b.rxcq, &entry, 1, NULL, 40));
	CHECK(now() - start >= 0.035 && now() - start < WAIT_LIMIT, "%f s", now() - start);
	ANSWERS(-FI_EAGAIN, fi_cq_sreadfrom(two->b.rxcq, &entry, 1, &source, NULL, 0));
	/* The message arrives before the wait. */
	receive_it(two);
	send_short(two);
	check_entry(two, fi_cq_sread(two->b.rxcq, &entry, 1, NULL, WAIT_LIMIT * 1000), &entry);
	/* The message arrives after the wait began, with and without a timeout. */
	for (int limited = 0; limited < 2; limited++) {
		receive_it(two);
		NEEDS(pthread_create(&sender, NULL, send_later, two));
		check_entry(two, fi_cq_sreadfrom(two->b.rxcq, &entry, 1, &source, NULL, limited ? WAIT_LIMIT * 1000 : -1), &entry);
		CHECK(source == two->b.peer, "%#llx", (unsigned long long)source);
		NEEDS(pthread_join(sender, NULL));
	}
}

/* An error also ends a wait. */
static void sread_error(struct two *two)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = { 0 };

	NEEDS(fi_trecv(two->b.ep, two->b.in, 10, two->b.in_desc, FI_ADDR_UNSPEC, 9, 0, context(4)));
	send_short(two);
	ANSWERS(-FI_EAVAIL, fi_cq_sread(two->b.rxcq, &entry, 1, NULL, WAIT_LIMIT * 1000));
	ANSWERS(1, fi_cq_readerr(two->b.rxcq, &error, 0));
	CHECK(error.err == FI_ETRUNC && error.olen == 30, "error %d", error.err);
}

static void *wait_for_nothing(void *argument)
{
	struct two *two = argument;
	struct fi_cq_tagged_entry entry;

	return (void *)(intptr_t)fi_cq_sread(two->b.rxcq, &entry, 1, NULL, -1);
}

static void signalled(struct two *two)
{
	pthread_t waiter;
	void *answer;
	double until = now() + WAIT_LIMIT;

	NEEDS(pthread_create(&waiter, NULL, wait_for_nothing, two));
	/* The test cannot detect whether the thread is waiting already, so it repeats the signal. */
	do {
		MUST(now() < until, "no thread was woken by a signal");
		usleep(10000);
		ANSWERS(0, fi_cq_signal(two->b.rxcq));
	} while (pthread_tryjoin_np(waiter, &answer) != 0);
	ANSWERS(-FI_EAGAIN, (intptr_t)answer);
	/* An extra signal ends at most one later wait. */
	struct fi_cq_tagged_entry entry;
	fi_cq_sread(two->b.rxcq, &entry, 1, NULL, 0);
}

/* Sleeping in poll(2): permitted when fi_trywait returns 0, and then no completion is missed. */
static void descriptor(struct two *two)
{
	struct fid *fids[] = { &two->b.rxcq->fid };
	struct pollfd one = { .events = POLLIN };
	struct fi_cq_tagged_entry entry;
	enum fi_wait_obj kind = FI_WAIT_NONE;
	ssize_t got;

	ANSWERS(0, fi_control(fids[0], FI_GETWAIT, &one.fd));
	ANSWERS(0, fi_control(fids[0], FI_GETWAITOBJ, &kind));
	CHECK(kind == FI_WAIT_FD, "%d", kind);
	asserts("CMP-015");
	for (int round = 0; round < 50; round++) {
		pthread_t sender;
		double until = now() + WAIT_LIMIT;

		receive_it(two);
		if (round & 1)
			send_short(two);
		else
			NEEDS(pthread_create(&sender, NULL, send_later, two));
		while ((got = fi_cq_read(two->b.rxcq, &entry, 1)) == -FI_EAGAIN) {
			int may_sleep = fi_trywait(two->room.fabric, fids, 1);
			MUST(now() < until, "the message did not arrive");
			if (may_sleep == -FI_EAGAIN)
				continue;
			ANSWERS(0, may_sleep);
			MUST(poll(&one, 1, WAIT_LIMIT * 1000) == 1, "the descriptor was not readable although a message arrived");
		}
		check_entry(two, got, &entry);
		if (!(round & 1))
			NEEDS(pthread_join(sender, NULL));
		if (options.few && round == 5)
			break;
	}
	/* Nothing arrives: the sleep lasts for its whole timeout. */
	for (int round = 0; round < 100 && fi_trywait(two->room.fabric, fids, 1) == -FI_EAGAIN; round++)
		ANSWERS(-FI_EAGAIN, fi_cq_read(two->b.rxcq, &entry, 1));
	ANSWERS(0, poll(&one, 1, 50));
}

/* Counters that the program changes, and waits for them. */
static void *add_later(void *argument)
{
	usleep(30000);
	ANSWERS(0, fi_cntr_add(argument, 5));
	return NULL;
}

static void *fail_later(void *argument)
{
	usleep(30000);
	ANSWERS(0, fi_cntr_adderr(argument, 1));
	return NULL;
}

enum { EACH = 2000 };

static void *add_often(void *argument)
{
	for (int n = 0; n < EACH; n++) {
		ANSWERS(0, fi_cntr_add(argument, 3));
		ANSWERS(0, fi_cntr_adderr(argument, 1));
	}
	return NULL;
}

static void counters(struct two *two, enum fi_wait_obj wait)
{
	struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = wait };
	struct fid_cntr *cntr;
	pthread_t other;
	double start;

	NEEDS(fi_cntr_open(two->room.domain, &attr, &cntr, two));
	CHECK(cntr->fid.fclass == FI_CLASS_CNTR && cntr->fid.context == two, "class %zu", cntr->fid.fclass);
	ANSWERS(0, fi_cntr_read(cntr));
	ANSWERS(0, fi_cntr_readerr(cntr));
	ANSWERS(0, fi_cntr_add(cntr, 3));
	ANSWERS(3, fi_cntr_read(cntr));
	ANSWERS(0, fi_cntr_set(cntr, 10));
	ANSWERS(10, fi_cntr_read(cntr));
	ANSWERS(0, fi_cntr_adderr(cntr, 2));
	ANSWERS(2, fi_cntr_readerr(cntr));
	ANSWERS(0, fi_cntr_seterr(cntr, 0));
	ANSWERS(0, fi_cntr_readerr(cntr));
	asserts("CMP-013");
	ANSWERS(0, fi_cntr_wait(cntr, 10, 0));
	start = now();
	ANSWERS(-FI_ETIMEDOUT, fi_cntr_wait(cntr, 11, 40));
	CHECK(now() - start >= 0.035, "%f s", now() - start);
	ANSWERS(10, fi_cntr_read(cntr));
	NEEDS(pthread_create(&other, NULL, add_later, cntr));
	ANSWERS(0, fi_cntr_wait(cntr, 15, -1));
	NEEDS(pthread_join(other, NULL));
	NEEDS(pthread_create(&other, NULL, fail_later, cntr));
	ANSWERS(-FI_EAVAIL, fi_cntr_wait(cntr, 100, WAIT_LIMIT * 1000));
	NEEDS(pthread_join(other, NULL));
	ANSWERS(1, fi_cntr_readerr(cntr));
	/* Four threads at once. */
	pthread_t adders[4];
	ANSWERS(0, fi_cntr_set(cntr, 0));
	asserts("CMP-012");
	for (size_t at = 0; at < COUNT(adders); at++)
		NEEDS(pthread_create(&adders[at], NULL, add_often, cntr));
	for (size_t at = 0; at < COUNT(adders); at++)
		NEEDS(pthread_join(adders[at], NULL));
	ANSWERS(3 * EACH * COUNT(adders), fi_cntr_read(cntr));
	ANSWERS(1 + EACH * COUNT(adders), fi_cntr_readerr(cntr));
	ANSWERS(0, fi_close(&cntr->fid));
}

static void counter_descriptor(struct two *two)
{
	struct fi_cntr_attr attr = { .wait_obj = FI_WAIT_FD };
	struct pollfd one = { .events = POLLIN };
	struct fid_cntr *cntr;
	struct fid *fids[1];
	int code;

	NEEDS(fi_cntr_open(two->room.domain, &attr, &cntr, NULL));
	fids[0] = &cntr->fid;
	ANSWERS(0, fi_control(fids[0], FI_GETWAIT, &one.fd));
	while ((code = fi_trywait(two->room.fabric, fids, 1)) == -FI_EAGAIN)
		ANSWERS(0, fi_cntr_read(cntr));
	ANSWERS(0, code);
	ANSWERS(0, poll(&one, 1, 20));
	ANSWERS(0, fi_cntr_add(cntr, 1));
	ANSWERS(1, poll(&one, 1, WAIT_LIMIT * 1000));
	ANSWERS(0, fi_close(&cntr->fid));
}

/* A read of no entries removes none. */
static void read_nothing(struct two *two)
{
	struct fi_cq_tagged_entry entry;
	char untouched[sizeof(entry)];

	receive_it(two);
	send_short(two);
	memset(&entry, '.', sizeof(entry));
	memset(untouched, '.', sizeof(untouched));
	for (double until = now() + 0.1; now() < until;) {
		ANSWERS(-FI_EAGAIN, fi_cq_sread(two->b.rxcq, &entry, 0, NULL, 10));
		ANSWERS(-FI_EAGAIN, fi_cq_sread(two->b.rxcq, NULL, 0, NULL, -1));
		ANSWERS(-FI_EAGAIN, fi_cq_read(two->b.rxcq, NULL, 0));
		fi_cq_read(two->a.txcq, NULL, 0);
	}
	CHECK(!memcmp(&entry, untouched, sizeof(entry)), "an entry was written");
	check_entry(two, fi_cq_sread(two->b.rxcq, &entry, 1, NULL, WAIT_LIMIT * 1000), &entry);
}

/* Threads that sleep on a counter's descriptor or on a wait set are woken up at every threading level. */
static void sleeping_at_counters(enum fi_threading threading, bool region, bool set)
{
	struct settings this = how;
	struct two two;
	struct fi_wait_attr wait = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_cntr_attr attr = { .wait_obj = set ? FI_WAIT_SET : FI_WAIT_FD };
	struct fid_cntr *cntr;
	struct fid_wait *all = NULL;
	struct fid_ep *ep;
	struct fid_mr *mr = NULL;
	struct fid *fids[1];
	struct pollfd one = { .events = POLLIN };
	struct sockaddr_storage name;
	fi_addr_t to;
	size_t len = sizeof(name);
	static char memory[64];
	uint64_t seen = 0;
	double until = now() + WAIT_LIMIT;

	this.threading = threading;
	this.wait = FI_WAIT_NONE;
	this.caps = FI_RMA_EVENT;
	open_two(&two, &this);
	if (set) {
		NEEDS(fi_wait_open(two.room.fabric, &wait, &all));
		attr.wait_set = all;
	}
	NEEDS(fi_cntr_open(two.room.domain, &attr, &cntr, NULL));
	fids[0] = &cntr->fid;
	NEEDS(fi_endpoint(two.room.domain, two.room.info, &ep, NULL));
	NEEDS(fi_ep_bind(ep, &two.b.av->fid, 0));
	NEEDS(fi_ep_bind(ep, &two.b.rxcq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
	if (region) {
		NEEDS(fi_mr_reg(two.room.domain, memory, sizeof(memory), FI_REMOTE_WRITE, 0, 333, FI_RMA_EVENT, &mr, NULL));
		NEEDS(fi_mr_bind(mr, &cntr->fid, FI_REMOTE_WRITE));
		NEEDS(fi_mr_enable(mr));
	} else {
		NEEDS(fi_ep_bind(ep, &cntr->fid, FI_RECV));
	}
	NEEDS(fi_enable(ep));
	NEEDS(fi_getname(&ep->fid, &name, &len));
	MUST(fi_av_insert(two.a.av, &name, 1, &to, 0, NULL) == 1, "an address");
	if (!set)
		ANSWERS(0, fi_control(fids[0], FI_GETWAIT, &one.fd));
	for (int n = 1; n <= 20; n++) {
		int code = 0;

		if (!region)
			NEEDS(fi_recv(ep, two.b.in, 8, two.b.in_desc, FI_ADDR_UNSPEC, context(1)));
		if (region)
			NEEDS(fi_inject_write(two.a.ep, "11111111", 8, to, 0, 333));
		else
			NEEDS(fi_inject(two.a.ep, "11111111", 8, to));
		/*
		 * Only the sender makes progress in addition, one message at a time: the counter must drive the receiving
		 * endpoint.
		 */
		while (seen < (uint64_t)n) {
			MUST(now() < until, "counted %llu of %d", (unsigned long long)seen, n);
			fi_cq_read(two.a.txcq, NULL, 0);
			if (set)
				code = fi_wait(all, 20);
			else if ((code = fi_trywait(two.room.fabric, fids, 1)) == 0)
				code = poll(&one, 1, 20);
			if (set ? code == 0 : code != 0)
				seen = fi_cntr_read(cntr);
		}
	}
	ANSWERS(0, fi_close(&ep->fid));
	ANSWERS(0, fi_close(&cntr->fid));
	if (mr)
		ANSWERS(0, fi_close(&mr->fid));
	if (all)
		ANSWERS(0, fi_close(&all->fid));
	close_two(&two);
}

/* Without descriptors a wait fails, and does not exceed its timeout. */
static void no_descriptors(void)
{
	struct two two;
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD };
	struct fi_cq_tagged_entry entry;
	struct fid_eq *eq;
	struct rlimit limit, none;
	struct fi_eq_entry event;
	struct fid *fids[1];
	uint32_t code;
	double start;
	int fd;

	how.wait = FI_WAIT_FD;
	open_two(&two, &how);
	introduce(&two);
	NEEDS(fi_eq_open(two.room.fabric, &attr, &eq, NULL));
	fids[0] = &eq->fid;
	MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0, "no limit");
	none = limit;
	none.rlim_cur = 3;
	MUST(setrlimit(RLIMIT_NOFILE, &none) == 0, "no limit");
	start = now();
	ANSWERS(-FI_EMFILE, fi_eq_sread(eq, &code, &event, sizeof(event), 100, 0));
	ANSWERS(-FI_EMFILE, fi_eq_sread(eq, &code, &event, sizeof(event), -1, 0));
	ANSWERS(-FI_EMFILE, fi_trywait(two.room.fabric, fids, 1));
	ANSWERS(-FI_EMFILE, fi_control(fids[0], FI_GETWAIT, &fd));
	fids[0] = &two.b.rxcq->fid;
	ANSWERS(-FI_EMFILE, fi_trywait(two.room.fabric, fids, 1));
	ANSWERS(-FI_EMFILE, fi_control(fids[0], FI_GETWAIT, &fd));
	code = (uint32_t)-fi_cq_sread(two.b.rxcq, &entry, 1, NULL, 100);
	CHECK(code == FI_EMFILE || code == FI_EAGAIN, "%u", code);
	CHECK(now() - start < WAIT_LIMIT, "%f s", now() - start);
	MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0, "no limit");
	ANSWERS(-FI_EAGAIN, fi_eq_sread(eq, &code, &event, sizeof(event), 10, 0));
	ANSWERS(0, fi_close(&eq->fid));
	close_two(&two);
	how.wait = FI_WAIT_NONE;
}

void wait_groups(void)
{
	static const struct {
		const char *name;
		enum fi_wait_obj wait;
	} all[] = {
		{ "cq: waiting, unspecified object", FI_WAIT_UNSPEC },
		{ "cq: waiting, descriptor", FI_WAIT_FD },
		{ "cq: waiting, yielding", FI_WAIT_YIELD },
	};
	struct two two;

	for (size_t at = 0; at < COUNT(all); at++) {
		begin(all[at].name);
		how.wait = all[at].wait;
		open_two(&two, &how);
		introduce(&two);
		sread(&two);
		sread_error(&two);
		signalled(&two);
		if (how.wait == FI_WAIT_FD)
			descriptor(&two);
		read_nothing(&two);
		quiet(&two.pair);
		close_two(&two);
		end();
	}
	how.wait = FI_WAIT_NONE;
	open_two(&two, &how);
	begin("cntr: changed by the program, and waiting");
	counters(&two, FI_WAIT_NONE);
	counters(&two, FI_WAIT_UNSPEC);
	counters(&two, FI_WAIT_FD);
	end();
	begin("cntr: descriptor");
	counter_descriptor(&two);
	end();
	read_nothing(&two);
	close_two(&two);
	for (int region = 0; region < 2; region++) {
		for (int set = 0; set < 2; set++) {
			static const char *const names[] = { "cntr: sleeping, descriptor", "cntr: sleeping, wait set",
							     "cntr: sleeping, descriptor, of a region", "cntr: sleeping, wait set, of a region" };

			begin(names[2 * region + set]);
			sleeping_at_counters(FI_THREAD_SAFE, region, set);
			sleeping_at_counters(FI_THREAD_DOMAIN, region, set);
			sleeping_at_counters(FI_THREAD_COMPLETION, region, set);
			end();
		}
	}
	begin("waiting without descriptors");
	no_descriptors();
	end();
}
