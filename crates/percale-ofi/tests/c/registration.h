/* The common part of the registration checks: one end that has regions, and one end that accesses them. */
#ifndef REGISTRATION_H
#define REGISTRATION_H

#include "every.h"

enum { BYTES = 4096 };
#define BOTH_WAYS (FI_REMOTE_READ | FI_REMOTE_WRITE)

/* a accesses b's regions. Both are equal if an endpoint sends to itself. */
struct world {
	struct two two;
	struct side *a, *b;
	/* The domain of b. */
	struct fid_domain *domain;
	/* The registration mode of the domain. */
	int mode;
};

/* Opens the ends with these registration modes and with the other settings of `how`, if that is not NULL. */
void open_world(struct world *w, int taken, const struct settings *how);
void close_world(struct world *w);

/* Each returns 0 if the access succeeded; otherwise the code of the completion or of the posting call. */
int try_write(struct world *w, uint64_t address, uint64_t key, size_t len, unsigned seed);
int try_read(struct world *w, uint64_t address, uint64_t key, size_t len);
int try_add(struct world *w, uint64_t address, uint64_t key, uint64_t operand);
/* Checks that all three are rejected and leave this memory of b (if not NULL) unchanged. */
void refused(struct world *w, uint64_t address, uint64_t key, const char *memory, unsigned seed);
/* Checks that all three succeed. */
void served(struct world *w, uint64_t address, uint64_t key, char *memory);

/* The address of the first byte of this memory for peers. */
uint64_t base_of(const struct world *w, const void *memory);
struct fid_mr *registered(struct world *w, void *memory, size_t len, uint64_t access, uint64_t key, uint64_t flags);
/* Maps filled pages, which munmap releases. */
char *pages(size_t len, unsigned seed);

#endif
