/* Unusual but legal arguments for completion queues, event queues, counters, wait sets and poll sets. */
#include "walk.h"

size_t entry_size(enum fi_cq_format format)
{
	switch (format) {
	case FI_CQ_FORMAT_MSG:
		return sizeof(struct fi_cq_msg_entry);
	case FI_CQ_FORMAT_DATA:
		return sizeof(struct fi_cq_data_entry);
	case FI_CQ_FORMAT_TAGGED:
		return sizeof(struct fi_cq_tagged_entry);
	default:
		return sizeof(struct fi_cq_entry);
	}
}

/*
 * The text for an error number that the provider did not return, with buffers of size 0, a small size, and a sufficient size.
 */
#define STRERROR(call, object)                                     \
	do {                                                       \
		static const int numbers[] = { 0, -5, 3, 1000000 }; \
		for (size_t n = 0; n < COUNT(numbers); n++) {      \
			char *little = malloc(1), *more = malloc(200); \
			(call)(object, numbers[n], NULL, NULL, 0); \
			(call)(object, numbers[n], NULL, little, 1); \
			(call)(object, numbers[n], NULL, more, 200); \
			free(little), free(more);                  \
		}                                                  \
	} while (0)

/* Reads the wait object, if there is one. */
static void wait_object(struct fid *fid)
{
	int *descriptor = malloc(sizeof(*descriptor));
	uint64_t *kind = exactly(sizeof(*kind), "", 1);

	if (fi_control(fid, FI_GETWAIT, descriptor) == 0)
		CHECK(*descriptor >= 0, "no descriptor");
#ifdef FI_GETWAITOBJ
	fi_control(fid, FI_GETWAITOBJ, kind);
#endif
	free(descriptor);
	free(kind);
}

void odd_queue(struct fid_cq *cq, enum fi_cq_format format)
{
	struct fi_cq_err_entry *error = exactly(error_entry_size(), NULL, 0);
	/* Nothing may be written beyond this allocation. */
	char *nothing = malloc(1);
	fi_addr_t *sources = malloc(sizeof(*sources));
	char *entry = malloc(entry_size(format));

	if (setting.api >= FI_VERSION(1, 5))
		error->err_data = NULL, error->err_data_size = 0;
	fi_cq_read(cq, NULL, 0);
	fi_cq_readfrom(cq, NULL, 0, NULL);
	fi_cq_readfrom(cq, nothing + 1, 0, sources + 1);
	fi_cq_sread(cq, nothing + 1, 0, NULL, 0);
	fi_cq_sread(cq, nothing + 1, 0, NULL, 1);
	fi_cq_sreadfrom(cq, nothing + 1, 0, sources + 1, NULL, 1);
	if (fi_cq_readerr(cq, error, 0) == -FI_EAGAIN)
		fi_cq_readerr(cq, error, 0);
	/* A signal ends a wait without a timeout. */
	fi_cq_signal(cq);
	fi_cq_sread(cq, entry, 1, NULL, -1);
	fi_cq_signal(cq);
	fi_cq_sreadfrom(cq, entry, 1, sources, NULL, -1);
	fi_cq_signal(cq);
	fi_cq_signal(cq);
	fi_cq_sread(cq, entry, 1, NULL, 3);
	fi_cq_sread(cq, entry, 1, NULL, 0);
	STRERROR(cq->ops->strerror, cq);
	wait_object(&cq->fid);
	/* This entry is for devices. libfabric 2.x calls it without a check for null. */
	if (has_entry(cq->ops, 7)) {
		int (*export)(struct fid_cq *, uint64_t, void *) = entry_of(cq->ops, 7);
		CHECK(export(cq, 0, NULL) != 0, "an export without a destination succeeded");
	}
	free(error), free(nothing), free(sources), free(entry);
}

void read_event(struct fid_eq *eq)
{
	struct fi_eq_err_entry *error = exactly(sizeof(*error), NULL, 0);
	struct fi_eq_cm_entry *entry;
	size_t room = sizeof(struct fi_eq_entry);
	uint64_t flags = below(4) ? 0 : FI_PEEK;
	uint32_t event = UINT32_MAX;
	char data[3], *bytes;
	ssize_t got;

	if (sometimes())
		room += below(40);
	bytes = malloc(room);
	got = below(3) ? fi_eq_read(eq, &event, bytes, room, flags) : fi_eq_sread(eq, &event, bytes, room, (int)below(2), flags);
	CHECK(got <= (ssize_t)room, "%zd bytes of %zu", got, room);
	entry = (void *)bytes;
	if (got >= (ssize_t)sizeof(*entry) && event == FI_CONNREQ && !(flags & FI_PEEK)) {
		/* The reader of a request answers it, if the listener is still open. */
		if (listening && entry->fid == &listening->fid)
			fi_reject(listening, entry->info->handle, NULL, 0);
		fi_freeinfo(entry->info);
	}
	if (got == -FI_EAVAIL) {
		/* Before 1.5 these fields are only written. Since 1.5 they describe the caller's buffer. */
		if (setting.api >= FI_VERSION(1, 5)) {
			error->err_data = sometimes() ? NULL : data;
			error->err_data_size = error->err_data ? below(4) : 0;
		}
		got = fi_eq_readerr(eq, error, 0);
		if (got > 0 && error->err_data_size > 0) {
			/* The data must be readable. */
			volatile char last = ((char *)error->err_data)[error->err_data_size - 1];
			(void)last;
		}
		if (got > 0)
			fi_eq_strerror(eq, error->prov_errno, error->err_data, data, sizeof(data));
	}
	free(bytes);
	free(error);
}

void odd_events(struct fid_eq *eq)
{
	struct fi_eq_err_entry *error = exactly(sizeof(*error), NULL, 0);
	struct fi_eq_entry wanted = { .data = 5 }, *entry = exactly(sizeof(wanted), &wanted, sizeof(wanted));
	char *nothing = malloc(1), *text = malloc(100);
	uint32_t event;
	ssize_t got;

	if (setting.api >= FI_VERSION(1, 5))
		error->err_data = NULL, error->err_data_size = 0;
	fi_eq_read(eq, &event, NULL, 0, FI_PEEK);
	CHECK(fi_eq_read(eq, &event, text, 100, 1ULL << 63) < 0, "an unknown flag was accepted");
	fi_eq_readerr(eq, error, 0);
	CHECK(fi_eq_write(eq, 1000, NULL, 0, 0) == 0, "an empty event cannot be written");
	CHECK(fi_eq_write(eq, 1001, "abc", 3, 0) == 3, "not written");
	CHECK(fi_eq_write(eq, FI_NOTIFY, entry, sizeof(*entry), 0) == sizeof(*entry), "not written");
	CHECK(fi_eq_write(eq, FI_NOTIFY, entry, sizeof(*entry), 1ULL << 63) < 0, "an unknown flag was accepted");
	/* Reads available events with a buffer that is too small, without a buffer, and with a sufficient one. */
	for (int n = 0; n < 4; n++) {
		fi_eq_read(eq, &event, nothing + 1, 0, FI_PEEK);
		got = fi_eq_sread(eq, &event, nothing, 1, 0, FI_PEEK);
		CHECK(got <= 1, "%zd bytes were read into a buffer of one byte", got);
		read_event(eq);
	}
	CHECK(fi_eq_write(eq, 1002, "d", 1, 0) == 1, "not written");
	fi_eq_sread(eq, &event, text, 100, -1, FI_PEEK);
	fi_eq_sread(eq, &event, text, 100, 1, FI_PEEK);
	STRERROR(eq->ops->strerror, eq);
	wait_object(&eq->fid);
	free(error), free(entry), free(nothing), free(text);
}

void odd_counter(struct fid_cntr *cntr)
{
	uint64_t before = fi_cntr_read(cntr);

	fi_cntr_readerr(cntr);
	NEEDS(fi_cntr_add(cntr, 0));
	NEEDS(fi_cntr_add(cntr, 3));
	NEEDS(fi_cntr_add(cntr, UINT64_MAX - 2));
	NEEDS(fi_cntr_wait(cntr, 0, -1));
	fi_cntr_wait(cntr, 0, 0);
	fi_cntr_wait(cntr, UINT64_MAX, 0);
	fi_cntr_wait(cntr, UINT64_MAX, 1);
	NEEDS(fi_cntr_seterr(cntr, 7));
	NEEDS(fi_cntr_adderr(cntr, UINT64_MAX));
	fi_cntr_readerr(cntr);
	NEEDS(fi_cntr_seterr(cntr, 0));
	NEEDS(fi_cntr_set(cntr, before));
	wait_object(&cntr->fid);
	if (has_entry(cntr->ops, 7)) {
		int (*export)(struct fid_cntr *, uint64_t, void *) = entry_of(cntr->ops, 7);
		CHECK(export(cntr, 0, NULL) != 0, "an export without a destination succeeded");
	}
}

void odd_waiting(struct world *w, struct fid *fid)
{
	struct fid **one = exactly(sizeof(fid), &fid, sizeof(fid));
	struct fi_poll_attr flagged = { .flags = 1 };
	struct fi_wait_attr odd = { .wait_obj = FI_WAIT_MUTEX_COND };
	struct fid_poll *poll;
	struct fid_wait *wait;

	fi_trywait(w->fabric, one, 1);
	fi_trywait(w->fabric, NULL, 0);
	free(one);
	if (fid->fclass == FI_CLASS_WAIT) {
		fi_wait((struct fid_wait *)fid, 0);
		fi_wait((struct fid_wait *)fid, 1);
		wait_object(fid);
	} else if (fid->fclass == FI_CLASS_POLL) {
		struct fid_poll *set = (struct fid_poll *)fid;
		void **found = malloc(1);
		fi_poll(set, NULL, 0);
		fi_poll(set, (void **)((char *)found + 1), 0);
		CHECK(fi_poll_add(set, &w->fabric->fid, 0) != 0, "a fabric is polled");
		CHECK(fi_poll_del(set, &w->fabric->fid, 0) != 0, "a fabric was polled");
		CHECK(fi_poll_add(set, fid, 1) != 0, "an unknown flag was accepted");
		free(found);
	} else if (fid->fclass == FI_CLASS_DOMAIN) {
		CHECK(fi_poll_open((struct fid_domain *)fid, &flagged, &poll) != 0, "an unknown flag was accepted");
		NEEDS(fi_poll_open((struct fid_domain *)fid, NULL, &poll));
		NEEDS(fi_close(&poll->fid));
	} else if (fid->fclass == FI_CLASS_FABRIC) {
		CHECK(fi_wait_open(w->fabric, &odd, &wait) != 0, "opened");
		NEEDS(fi_wait_open(w->fabric, NULL, &wait));
		NEEDS(fi_close(&wait->fid));
	}
}
