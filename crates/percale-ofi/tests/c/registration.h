/* What the checks of registration share: one end that has regions, and one that comes to them. */
#ifndef REGISTRATION_H
#define REGISTRATION_H

#include "every.h"

enum { BYTES = 4096 };
#define BOTH_WAYS (FI_REMOTE_READ | FI_REMOTE_WRITE)

/* a comes to b's regions; both are the same where an endpoint talks to itself. */
struct world {
	struct two two;
	struct side *a, *b;
	/* The domain of b. */
	struct fid_domain *domain;
	/* Its mode. */
	int mode;
};

/* With these registration modes taken; the rest as in `how`, if that is given. */
void open_world(struct world *w, int taken, const struct settings *how);
void close_world(struct world *w);

/* Each is 0 if the access was made, or else how it failed: the completion's code, or what posting answered. */
int try_write(struct world *w, uint64_t address, uint64_t key, size_t len, unsigned seed);
int try_read(struct world *w, uint64_t address, uint64_t key, size_t len);
int try_add(struct world *w, uint64_t address, uint64_t key, uint64_t operand);
/* All three are refused, and leave this memory of b's as it was filled. */
void refused(struct world *w, uint64_t address, uint64_t key, const char *memory, unsigned seed);
/* All three are made. */
void served(struct world *w, uint64_t address, uint64_t key, char *memory);

/* How peers name the first byte of this memory. */
uint64_t base_of(const struct world *w, const void *memory);
struct fid_mr *registered(struct world *w, void *memory, size_t len, uint64_t access, uint64_t key, uint64_t flags);
/* Memory of a page or two, filled; freed by munmap. */
char *pages(size_t len, unsigned seed);

#endif
