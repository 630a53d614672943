/* Shared by the parts of the program: functions that print checks, and a device that counts pins. */
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

/* Prints a check, and ends the program if it failed. */
void check_that(int well, const char *what, const char *file, int line);

#define CHECK(what) check_that(!!(what), #what, __FILE__, __LINE__)

/* Checks that a call failed with this code, and that the reason contains `word`. */
void refused_with(int code, int expected, const char *word, const char *what, const char *file, int line);

#define REFUSED(call, code, word) refused_with((call), -(code), (word), #call, __FILE__, __LINE__)

/* Prints that a test was skipped because this capability is missing, with the reason. */
void skip(const char *capability, const char *why);

/* A device that counts, and fails on request. */
struct device {
	pthread_mutex_t lock;
	uint64_t pins;
	uint64_t unpins;
	/* The maximum number of pins at a time; beyond it, pinning fails with -ENOMEM. */
	uint64_t room;
	/* The result of the next pins, unless 0. */
	int fails;
	/* The last pinned range. */
	void *address;
	size_t length;
	uint32_t access;
	/* The latest pins, kept so that valgrind does not report those that a forked child inherits as lost. */
	void *latest[4];
};

#define DEVICE_INIT { PTHREAD_MUTEX_INITIALIZER, 0, 0, UINT64_MAX, 0, NULL, 0, 0, { NULL } }

int device_pin(void *context, void *address, size_t length, uint32_t access, struct pindown_pinned *pinned);
void device_unpin(void *context, void *pin);

/* Returns the number of current pins. */
uint64_t device_pinned(struct device *device);

/* Opens a cache over the device with this monitor. */
struct pindown_cache *open_with(struct device *device, const char *monitor);

/* Returns the counts of the cache. */
struct pindown_stats stats_of(struct pindown_cache *cache);

/* Makes one look-up, which must succeed, and ends it at once. */
struct pindown_use use_once(struct pindown_lane *lane, const void *address, size_t length, uint32_t access);

/* Returns the page size in bytes. */
size_t page(void);

/* Addresses for monitors that do not access them. */
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
