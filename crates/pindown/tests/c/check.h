/* Shared by the parts of the program: checks that are printed, and a device that pins by counting. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pindown.h"

/* Prints what was found, and ends the program if it is not well. */
void check_that(int well, const char *what, const char *file, int line);

#define CHECK(what) check_that(!!(what), #what, __FILE__, __LINE__)

/* A call that must be refused with this code, and with a reason in words that has `word` in it. */
void refused_with(int code, int expected, const char *word, const char *what, const char *file, int line);

#define REFUSED(call, code, word) refused_with((call), -(code), (word), #call, __FILE__, __LINE__)

/* What could not be tried here, and why. */
void skip(const char *what, const char *why);

/* A device: it counts, and refuses on request. */
struct device {
	pthread_mutex_t lock;
	uint64_t pins;
	uint64_t unpins;
	/* Pins at the same time at most; then -ENOMEM. */
	uint64_t room;
	/* What the next pins return, unless 0. */
	int fails;
	/* The last one pinned. */
	void *address;
	size_t length;
	uint32_t access;
	/* The latest pins: those that a forked child inherits are not lost to valgrind. */
	void *latest[4];
};

#define DEVICE_INIT { PTHREAD_MUTEX_INITIALIZER, 0, 0, UINT64_MAX, 0, NULL, 0, 0, { NULL } }

int device_pin(void *context, void *address, size_t length, uint32_t access, struct pindown_pinned *pinned);
void device_unpin(void *context, void *pin);

/* Pinned now. */
uint64_t device_pinned(struct device *device);

/* A cache over the device with this monitor, opened. */
struct pindown_cache *open_with(struct device *device, const char *monitor);

/* Its counts. */
struct pindown_stats stats_of(struct pindown_cache *cache);

/* One look-up that must succeed, ended at once. */
struct pindown_use use_once(struct pindown_lane *lane, const void *address, size_t length, uint32_t access);

/* Bytes of a page. */
size_t page(void);

/* Addresses for monitors that do not look at them. */
#define PLACE(n) ((void *)(uintptr_t)(0x7f0000000000 + (uintptr_t)(n) * 0x10000))

void opening(void);
void uses(void);
void limits(void);
void own_registrations(void);
void waiting(void);
void imported(void);
void sealed(void);
void userfaultfd(void);
void callbacks(void);
void threads(void);
void forks(void);

#endif
