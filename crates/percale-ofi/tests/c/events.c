/* Event queues (fi_eq(3)): events that the program writes, and waits for them. */
#include "every.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

struct mine {
	struct fi_eq_entry entry;
	char more[40];
};

static struct fid_eq *open_queue(struct room *room, enum fi_wait_obj wait, uint64_t flags)
{
	struct fi_eq_attr attr = { .size = 64, .wait_obj = wait, .flags = flags };
	struct fid_eq *eq;

	NEEDS(fi_eq_open(room->fabric, &attr, &eq, room));
	CHECK(eq->fid.fclass == FI_CLASS_EQ && eq->fid.context == room, "class %zu", eq->fid.fclass);
	return eq;
}

static struct mine numbered(int number)
{
	struct mine m = { .entry = { .data = (uint64_t)number } };

	snprintf(m.more, sizeof(m.more), "event %d", number);
	return m;
}

static void writing(struct room *room)
{
	struct fid_eq *eq = open_queue(room, FI_WAIT_NONE, FI_WRITE);
	struct mine got, m;
	uint32_t event = 99;

	ANSWERS(-FI_EAGAIN, fi_eq_read(eq, &event, &got, sizeof(got), 0));
	for (int n = 0; n < 20; n++) {
		m = numbered(n);
		ANSWERS(sizeof(m), fi_eq_write(eq, (uint32_t)(1000 + n), &m, sizeof(m), 0));
	}
	/* FI_PEEK reads the event without removing it. */
	ANSWERS(sizeof(m), fi_eq_read(eq, &event, &got, sizeof(got), FI_PEEK));
	CHECK(event == 1000 && got.entry.data == 0, "event %u", event);
	/* A buffer that is too small does not remove it either. */
	ANSWERS(-FI_ETOOSMALL, fi_eq_read(eq, &event, &got, sizeof(got) - 1, 0));
	/* Without a buffer only the type of the event is returned. */
	ANSWERS(0, fi_eq_read(eq, &event, NULL, 0, FI_PEEK));
	CHECK(event == 1000, "event %u", event);
	ANSWERS(0, fi_eq_read(eq, &event, NULL, 0, 0));
	CHECK(event == 1000, "event %u", event);
	for (int n = 1; n < 20; n++) {
		m = numbered(n);
		memset(&got, 0, sizeof(got));
		ANSWERS(sizeof(m), fi_eq_read(eq, &event, &got, sizeof(got), 0));
		CHECK(event == (uint32_t)(1000 + n) && !memcmp(&got, &m, sizeof(m)), "event %u is %s", event, got.more);
	}
	ANSWERS(-FI_EAGAIN, fi_eq_read(eq, &event, &got, sizeof(got), 0));
	ANSWERS(-FI_EAGAIN, fi_eq_read(eq, &event, &got, sizeof(got), FI_PEEK));
	/* Closing a queue drops its remaining events. */
	ANSWERS(sizeof(m), fi_eq_write(eq, FI_NOTIFY, &m, sizeof(m), 0));
	ANSWERS(0, fi_close(&eq->fid));
	/* Only a queue that was opened with FI_WRITE can be written. */
	eq = open_queue(room, FI_WAIT_NONE, 0);
	CHECK(fi_eq_write(eq, FI_NOTIFY, &m, sizeof(m), 0) < 0, "a queue without FI_WRITE is written to");
	ANSWERS(0, fi_close(&eq->fid));
}

static void errors(struct room *room)
{
	struct fid_eq *eq = open_queue(room, FI_WAIT_NONE, 0);
	struct fi_eq_err_entry entry = { 0 };
	char text[64] = "";
	const char *words;

	ANSWERS(-FI_EAGAIN, fi_eq_readerr(eq, &entry, 0));
	words = fi_eq_strerror(eq, 1, NULL, text, sizeof(text));
	CHECK(words && words[0] && text[0], "no text");
	ANSWERS(0, fi_close(&eq->fid));
}

static void *write_later(void *argument)
{
	struct mine m = numbered(5);

	usleep(30000);
	CHECK(fi_eq_write(argument, 77, &m, sizeof(m), 0) == sizeof(m), "not written");
	return NULL;
}

static void waiting(struct room *room, enum fi_wait_obj wait)
{
	struct fid_eq *eq = open_queue(room, wait, FI_WRITE);
	struct mine got;
	uint32_t event = 0;
	double start = now();
	pthread_t writer;

	ANSWERS(-FI_EAGAIN, fi_eq_sread(eq, &event, &got, sizeof(got), 40, 0));
	CHECK(now() - start >= 0.035, "%f s", now() - start);
	NEEDS(pthread_create(&writer, NULL, write_later, eq));
	ANSWERS(sizeof(got), fi_eq_sread(eq, &event, &got, sizeof(got), WAIT_LIMIT * 1000, 0));
	CHECK(event == 77 && got.entry.data == 5, "event %u", event);
	NEEDS(pthread_join(writer, NULL));
	/* Without a timeout. */
	NEEDS(pthread_create(&writer, NULL, write_later, eq));
	ANSWERS(sizeof(got), fi_eq_sread(eq, &event, &got, sizeof(got), -1, 0));
	NEEDS(pthread_join(writer, NULL));
	ANSWERS(0, fi_close(&eq->fid));
}

static void descriptor(struct room *room)
{
	struct fid_eq *eq = open_queue(room, FI_WAIT_FD, FI_WRITE);
	struct fid *fids[] = { &eq->fid };
	struct mine m = numbered(1);
	struct pollfd one = { .events = POLLIN };
	enum fi_wait_obj kind = FI_WAIT_NONE;
	uint32_t event;

	ANSWERS(0, fi_control(&eq->fid, FI_GETWAIT, &one.fd));
	ANSWERS(0, fi_control(&eq->fid, FI_GETWAITOBJ, &kind));
	CHECK(kind == FI_WAIT_FD, "%d", kind);
	ANSWERS(0, fi_trywait(room->fabric, fids, 1));
	ANSWERS(0, poll(&one, 1, 20));
	ANSWERS(sizeof(m), fi_eq_write(eq, 3, &m, sizeof(m), 0));
	ANSWERS(1, poll(&one, 1, WAIT_LIMIT * 1000));
	ANSWERS(-FI_EAGAIN, fi_trywait(room->fabric, fids, 1));
	ANSWERS(sizeof(m), fi_eq_read(eq, &event, &m, sizeof(m), 0));
	ANSWERS(0, fi_trywait(room->fabric, fids, 1));
	ANSWERS(0, poll(&one, 1, 20));
	ANSWERS(0, fi_close(&eq->fid));
}

void event_groups(void)
{
	static const struct settings how = { .name = "events", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL };
	struct room room;

	open_room(&room, &how);
	begin("eq: write, read, peek");
	writing(&room);
	end();
	begin("eq: errors");
	errors(&room);
	end();
	begin("eq: waiting");
	waiting(&room, FI_WAIT_UNSPEC);
	waiting(&room, FI_WAIT_FD);
	end();
	begin("eq: descriptor");
	descriptor(&room);
	end();
	close_room(&room);
}
