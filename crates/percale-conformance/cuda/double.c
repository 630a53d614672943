/* A CUDA driver without a device: the functions that percale calls, over ordinary memory.
 *
 * "Device" memory is a memfd that is mapped twice. The program's mapping can be neither read nor written (PROT_NONE). Therefore CPU accesses
 * to it crash, and system calls on it fail with EFAULT. The driver uses a separate mapping. Copies wait in their streams until an event is
 * queried or a stream is synchronized. A query performs one copy and returns "not ready", so a caller that does not wait gets old bytes. There
 * are two devices, each with its own memory.
 *
 * As with the real driver, a synchronous copy to a device may return while its last bytes, at most 64 KiB, are still in flight: they have been
 * read from host memory but not yet written to device memory. They are written when the legacy default stream of their context is synchronized,
 * or by the next call or copy that this stream orders after them. A stream created with CU_STREAM_NON_BLOCKING does not wait for them. A copy to
 * memory with CU_POINTER_ATTRIBUTE_SYNC_MEMOPS is complete when it returns. Setting the attribute does not complete earlier copies.
 *
 * With DOUBLE_POOLS=1, all memory of a device belongs to a pool (cuMemAllocAsync): the attribute can be set and has no effect. With
 * DOUBLE_POOLS=mapped it is mapped memory (cuMemMap): setting the attribute fails. Neither kind can be exported to other processes.
 *
 * doubleCapture(1) begins the capture of a graph on a blocking stream, doubleCapture(2) begins one on another thread's non-blocking stream in the global
 * mode. doubleCapture(0) ends the capture, and returns the number of calls that have invalidated it.
 *
 * Handles for other processes identify the memfd by process and descriptor. Unlike the handles of a real driver, they are valid only while that process lives.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_READY = 600,
       ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_IMPLICIT = 906 };
enum { DEVICES = 2, RANGES = 4096, OPENED = 256, STAGED = 64 << 10 };
enum kind { NONE, DEVICE, MANAGED, HOST, REGISTERED, OPENED_IPC };

struct range {
    enum kind kind;
    uintptr_t at; /* in the program's mapping */
    size_t len;
    char *ours; /* in the driver's mapping */
    int fd, device;
    uint64_t id;
    int is_synchronous; /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS has been set */
};

/* The last bytes of a synchronous copy that has returned. */
struct late {
    struct late *next;
    uintptr_t to;
    size_t len;
    char bytes[];
};

struct operation {
    struct operation *next;
    uintptr_t to, from;
    size_t len;
    int is_value;
    uint64_t value;
};

struct stream { struct operation *first, **last; uint64_t given, done; struct context *blocks; /* NULL: does not wait for the legacy stream */ };
struct event { struct stream *stream; uint64_t behind; };
struct context { int device; struct late *first, **last; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range ranges[RANGES];
static struct context contexts[DEVICES] = {{0, NULL, &contexts[0].first}, {1, NULL, &contexts[1].first}};
static uint64_t next_id = 1;
static int initialized;
static CUresult failed; /* the result of copies that were performed later */
static __thread struct context *stack[16];
static __thread int depth;
static int captures; /* how a graph is being captured, see above */
static uint64_t count_invalidated;
static __thread int mode; /* the thread's capture mode: 0 is CU_STREAM_CAPTURE_MODE_GLOBAL, 2 is _RELAXED */

/* Functions for tests. */
static uint64_t count_copies, count_allocated_host, count_opened, count_exported, count_set, count_drained;
uint64_t doubleCopies(void) { return __atomic_load_n(&count_copies, __ATOMIC_RELAXED); }
uint64_t doublePinned(void) { return __atomic_load_n(&count_allocated_host, __ATOMIC_RELAXED); }
uint64_t doubleOpened(void) { return __atomic_load_n(&count_opened, __ATOMIC_RELAXED); }
uint64_t doubleExported(void) { return __atomic_load_n(&count_exported, __ATOMIC_RELAXED); }
uint64_t doubleSet(void) { return __atomic_load_n(&count_set, __ATOMIC_RELAXED); }
uint64_t doubleDrained(void) { return __atomic_load_n(&count_drained, __ATOMIC_RELAXED); }
uint64_t doubleCapture(int how) {
    pthread_mutex_lock(&lock);
    uint64_t invalidated = count_invalidated;
    captures = how;
    count_invalidated = 0;
    pthread_mutex_unlock(&lock);
    return invalidated;
}

static int has_pools(void) { const char *pools = getenv("DOUBLE_POOLS"); return pools && !strcmp(pools, "1"); }
static int has_mapped(void) { const char *pools = getenv("DOUBLE_POOLS"); return pools && !strcmp(pools, "mapped"); }

static struct range *find(uintptr_t at) {
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].kind != NONE && at >= ranges[i].at && at - ranges[i].at < ranges[i].len) return &ranges[i];
    return NULL;
}

static struct range *add(enum kind kind, uintptr_t at, size_t len, char *ours, int fd, int device) {
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].kind == NONE) {
            ranges[i] = (struct range){kind, at, len, ours, fd, device, next_id++, 0};
            return &ranges[i];
        }
    return NULL;
}

/* Returns the address of bytes in the driver's mapping, or NULL if they are not all in one range. If `host` is set, unknown memory is treated as
 * memory of the program. */
static char *see(uintptr_t at, size_t len, int host) {
    struct range *range = find(at);
    if (!range) return host ? (char *)at : NULL;
    if (len > range->len - (at - range->at)) return NULL;
    return range->ours + (at - range->at);
}

static struct context *current(void) { return depth ? stack[depth - 1] : NULL; }

/* Writes the bytes of synchronous copies in a context that are still in flight. The caller holds the lock. */
static void arrive(struct context *context) {
    while (context->first) {
        struct late *late = context->first;
        char *to = see(late->to, late->len, 0);
        if (to) memcpy(to, late->bytes, late->len);
        context->first = late->next;
        free(late);
    }
    context->last = &context->first;
}

/* Returns the result of a waiting call while a graph is being captured. The caller holds the lock. */
static CUresult refuse(int is_legacy) {
    CUresult code = captures == 1 && is_legacy ? CAPTURE_IMPLICIT : captures == 2 && mode != 2 ? CAPTURE_UNSUPPORTED : OK;
    if (code != OK) count_invalidated++;
    return code;
}

CUresult cuInit(unsigned flags) { initialized = 1; return flags ? INVALID_VALUE : OK; }
CUresult cuDriverGetVersion(int *version) { *version = 12040; return OK; }
CUresult cuGetErrorString(CUresult code, const char **text) {
    *text = code == OUT_OF_MEMORY ? "out of memory" : code == INVALID_VALUE ? "invalid argument"
          : code == INVALID_CONTEXT ? "invalid device context" : "an error of the double";
    return OK;
}
CUresult cuDeviceGetCount(int *count) { if (!initialized) return NOT_INITIALIZED; *count = DEVICES; return OK; }
CUresult cuDeviceGet(int *device, int ordinal) {
    if (ordinal < 0 || ordinal >= DEVICES) return INVALID_VALUE;
    *device = 100 + ordinal; /* differs from every ordinal, so that confusing the two is detected */
    return OK;
}
CUresult cuDeviceGetName(char *name, int len, int device) { snprintf(name, len, "double %d", device - 100); return OK; }
CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    /* CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING */
    *value = attribute == 41 && !getenv("DOUBLE_WITHOUT_UNIFIED_ADDRESSING");
    return OK;
}
CUresult cuDevicePrimaryCtxRetain(struct context **context, int device) {
    if (device < 100 || device >= 100 + DEVICES) return INVALID_VALUE;
    *context = &contexts[device - 100];
    return OK;
}
CUresult cuCtxPushCurrent_v2(struct context *context) {
    if (depth == 16) return INVALID_CONTEXT;
    stack[depth++] = context;
    return OK;
}
CUresult cuCtxPopCurrent_v2(struct context **context) {
    if (!depth) return INVALID_CONTEXT;
    *context = stack[--depth];
    return OK;
}

CUresult cuPointerGetAttributes(unsigned count, const unsigned *asked, void **data, CUdeviceptr at) {
    if (!initialized) return NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    struct range *range = find(at);
    for (unsigned i = 0; i < count; i++) {
        int device = range && range->kind != HOST && range->kind != REGISTERED;
        switch (asked[i]) {
        case 2: *(unsigned *)data[i] = !range ? 0 : device ? 2 : 1; break;
        case 7: *(uint64_t *)data[i] = range ? range->id : 0; break;
        case 8: *(char *)data[i] = range && range->kind == MANAGED; break;
        case 9: *(int *)data[i] = range ? range->device : -2; break;
        /* A driver before 11.3 has no CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, and rejects the query. */
        case 17:
            if (!has_pools()) { pthread_mutex_unlock(&lock); return INVALID_VALUE; }
            *(void **)data[i] = device && range->kind == DEVICE ? (void *)contexts : NULL;
            break;
        default: pthread_mutex_unlock(&lock); return INVALID_VALUE;
        }
    }
    pthread_mutex_unlock(&lock);
    return OK;
}
CUresult cuPointerSetAttribute(const void *value, unsigned attribute, CUdeviceptr at) {
    if (!current()) return INVALID_CONTEXT;
    if (attribute != 6) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct range *range = find(at);
    CUresult code = !range || range->kind == HOST || range->kind == REGISTERED ? INVALID_VALUE : has_mapped() ? NOT_SUPPORTED : OK;
    if (code == OK) range->is_synchronous = *(const unsigned *)value && !has_pools();
    pthread_mutex_unlock(&lock);
    __atomic_fetch_add(&count_set, 1, __ATOMIC_RELAXED);
    return code;
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr *first, size_t *len, CUdeviceptr at) {
    pthread_mutex_lock(&lock);
    struct range *range = find(at);
    if (range) { *first = range->at; *len = range->len; }
    pthread_mutex_unlock(&lock);
    return range ? OK : INVALID_VALUE;
}

static size_t pages(size_t len) { return (len + 4095) & ~(size_t)4095; }

CUresult cuMemAlloc_v2(CUdeviceptr *made, size_t len) {
    if (!current()) return INVALID_CONTEXT;
    if (!len || len > (size_t)1 << 40) return len ? OUT_OF_MEMORY : INVALID_VALUE;
    int fd = memfd_create("double", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, pages(len))) return OUT_OF_MEMORY;
    char *at = mmap(NULL, pages(len), PROT_NONE, MAP_SHARED, fd, 0);
    char *ours = mmap(NULL, pages(len), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED || ours == MAP_FAILED) return OUT_OF_MEMORY;
    memset(ours, 0xDD, len);
    pthread_mutex_lock(&lock);
    struct range *range = add(DEVICE, (uintptr_t)at, len, ours, fd, current()->device);
    pthread_mutex_unlock(&lock);
    if (!range) return OUT_OF_MEMORY;
    *made = (uintptr_t)at;
    return OK;
}
CUresult cuMemAllocManaged(CUdeviceptr *made, size_t len, unsigned flags) {
    (void)flags;
    if (!current()) return INVALID_CONTEXT;
    char *at = mmap(NULL, pages(len), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    add(MANAGED, (uintptr_t)at, len, at, -1, current()->device);
    pthread_mutex_unlock(&lock);
    *made = (uintptr_t)at;
    return OK;
}
static CUresult release(uintptr_t at, int kinds) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < DEVICES; i++) arrive(&contexts[i]);
    struct range *range = find(at), was = {0};
    int right = range && range->at == at && (kinds >> range->kind & 1);
    if (right) { was = *range; range->kind = NONE; }
    pthread_mutex_unlock(&lock);
    if (!right) return INVALID_VALUE;
    if (was.kind == REGISTERED) return OK;
    if (was.kind != HOST || was.ours) munmap((void *)was.at, pages(was.len));
    if (was.kind == DEVICE || was.kind == OPENED_IPC) { munmap(was.ours, pages(was.len)); close(was.fd); }
    return OK;
}
CUresult cuMemFree_v2(CUdeviceptr at) { return release(at, 1 << DEVICE | 1 << MANAGED); }
CUresult cuMemHostAlloc(void **made, size_t len, unsigned flags) {
    (void)flags;
    if (!current()) return INVALID_CONTEXT;
    char *at = mmap(NULL, pages(len), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    add(HOST, (uintptr_t)at, len, at, -1, 0);
    pthread_mutex_unlock(&lock);
    __atomic_fetch_add(&count_allocated_host, 1, __ATOMIC_RELAXED);
    *made = at;
    return OK;
}
CUresult cuMemFreeHost(void *at) { return release((uintptr_t)at, 1 << HOST); }
CUresult cuMemHostRegister_v2(void *at, size_t len, unsigned flags) {
    (void)flags;
    if (!current()) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    CUresult code = find((uintptr_t)at) ? ALREADY_REGISTERED : OK;
    if (code == OK) add(REGISTERED, (uintptr_t)at, len, at, -1, 0);
    pthread_mutex_unlock(&lock);
    return code;
}
CUresult cuMemHostUnregister(void *at) { return release((uintptr_t)at, 1 << REGISTERED) == OK ? OK : NOT_REGISTERED; }
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *at, unsigned flags) {
    (void)flags;
    *device = (uintptr_t)at;
    return OK;
}

/* Frees all memory that was allocated on any device, and pinned host memory. The contexts can be used again immediately. */
CUresult cuDevicePrimaryCtxReset_v2(int device) {
    if (device < 100 || device >= 100 + DEVICES) return INVALID_VALUE;
    for (int i = 0; i < RANGES; i++) {
        if (ranges[i].kind == NONE) continue;
        release(ranges[i].at, 1 << DEVICE | 1 << MANAGED | 1 << HOST | 1 << REGISTERED | 1 << OPENED_IPC);
    }
    return OK;
}

/* Performs the first operation of a stream. The caller holds the lock. */
static void one(struct stream *stream) {
    if (stream->blocks) arrive(stream->blocks);
    struct operation *first = stream->first;
    stream->first = first->next;
    if (!stream->first) stream->last = &stream->first;
    stream->done++;
    if (first->is_value) {
        char *to = see(first->to, 8, 0);
        if (to) __atomic_store_n((uint64_t *)to, first->value, __ATOMIC_RELEASE);
        else failed = INVALID_VALUE;
    } else {
        char *to = see(first->to, first->len, 1), *from = see(first->from, first->len, 1);
        if (to && from) memmove(to, from, first->len);
        else failed = INVALID_VALUE;
        __atomic_fetch_add(&count_copies, 1, __ATOMIC_RELAXED);
    }
    free(first);
}
static CUresult give(struct stream *stream, struct operation operation, int to_device, int from_device) {
    if (!current()) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    CUresult code = OK;
    if (to_device && !see(operation.to, operation.len, 0)) code = INVALID_VALUE;
    if (from_device && !see(operation.from, operation.len, 0)) code = INVALID_VALUE;
    if (code == OK) {
        struct operation *new = malloc(sizeof *new);
        *new = operation;
        new->next = NULL;
        *stream->last = new;
        stream->last = &new->next;
        stream->given++;
    }
    pthread_mutex_unlock(&lock);
    return code;
}
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t len, struct stream *stream) {
    return give(stream, (struct operation){.to = (uintptr_t)to, .from = from, .len = len}, 0, 1);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t len, struct stream *stream) {
    return give(stream, (struct operation){.to = to, .from = (uintptr_t)from, .len = len}, 1, 0);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t len, struct stream *stream) {
    return give(stream, (struct operation){.to = to, .from = from, .len = len}, 1, 1);
}
CUresult cuStreamWriteValue64_v2(struct stream *stream, CUdeviceptr to, uint64_t value, unsigned flags) {
    (void)flags;
    return give(stream, (struct operation){.to = to, .len = 8, .is_value = 1, .value = value}, 1, 0);
}
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t len) {
    struct context *context = current();
    if (!context) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    CUresult code = refuse(1);
    char *ours = see(from, len, 0);
    if (code == OK && !ours) code = INVALID_VALUE;
    if (code == OK) {
        arrive(context);
        memcpy(to, ours, len);
    }
    pthread_mutex_unlock(&lock);
    return code;
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t len) {
    struct context *context = current();
    if (!context) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    CUresult code = refuse(1);
    struct range *range = find(to);
    char *ours = see(to, len, 0);
    if (code == OK && (!range || !ours)) code = INVALID_VALUE;
    if (code == OK) {
        arrive(context);
        int is_late = (range->kind == DEVICE || range->kind == OPENED_IPC) && !range->is_synchronous;
        size_t end = is_late ? len < STAGED ? len : STAGED : 0, now = len - end;
        memcpy(ours, from, now);
        if (end) {
            struct late *late = malloc(sizeof *late + end);
            *late = (struct late){NULL, to + now, end};
            memcpy(late->bytes, (const char *)from + now, end);
            *context->last = late;
            context->last = &late->next;
        }
    }
    pthread_mutex_unlock(&lock);
    return code;
}
/* Returns whether a stream is CU_STREAM_LEGACY, or the handle 0. */
static int is_legacy(struct stream *stream) { return (uintptr_t)stream <= 1; }

CUresult cuStreamSynchronize(struct stream *stream) {
    if (is_legacy(stream) && !current()) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    CUresult code = is_legacy(stream) ? refuse(1) : OK;
    if (code == OK && is_legacy(stream)) {
        arrive(current());
        count_drained++;
    } else if (code == OK) {
        while (stream->first) one(stream);
        code = failed;
        failed = OK;
    }
    pthread_mutex_unlock(&lock);
    return code;
}
CUresult cuStreamIsCapturing(struct stream *stream, int *status) {
    pthread_mutex_lock(&lock);
    CUresult code = is_legacy(stream) && captures == 1 ? CAPTURE_IMPLICIT : OK;
    *status = 0;
    pthread_mutex_unlock(&lock);
    return code;
}
CUresult cuThreadExchangeStreamCaptureMode(int *given) {
    int before = mode;
    mode = *given;
    *given = before;
    return OK;
}
CUresult cuStreamDestroy_v2(struct stream *stream) {
    CUresult code = cuStreamSynchronize(stream);
    free(stream);
    return code;
}
CUresult cuStreamCreate(struct stream **made, unsigned flags) {
    if (!current()) return INVALID_CONTEXT;
    struct stream *stream = calloc(1, sizeof *stream);
    stream->blocks = flags & 1 ? NULL : current();
    stream->last = &stream->first;
    *made = stream;
    return OK;
}
CUresult cuEventCreate(struct event **made, unsigned flags) {
    (void)flags;
    *made = calloc(1, sizeof **made);
    return OK;
}
CUresult cuEventRecord(struct event *event, struct stream *stream) {
    pthread_mutex_lock(&lock);
    int refused = getenv("DOUBLE_RECORDS_ONE_COPY_ONLY") && stream->given - stream->done > 1;
    if (!refused) {
        event->stream = stream;
        event->behind = stream->given;
    }
    pthread_mutex_unlock(&lock);
    return refused ? OUT_OF_MEMORY : OK;
}
CUresult cuEventQuery(struct event *event) {
    pthread_mutex_lock(&lock);
    int waits = event->stream && event->stream->done < event->behind;
    if (waits) one(event->stream);
    CUresult code = waits ? NOT_READY : failed;
    if (!waits) failed = OK;
    pthread_mutex_unlock(&lock);
    return code;
}
CUresult cuEventSynchronize(struct event *event) {
    CUresult code;
    while ((code = cuEventQuery(event)) == NOT_READY) {}
    return code;
}

/* The only supported program: it stores 64 bits. */
CUresult cuModuleLoadData(void **module, const void *image) {
    if (!current() || !strstr(image, ".entry store64(")) return INVALID_VALUE;
    *module = contexts;
    return OK;
}
CUresult cuModuleGetFunction(void **function, void *module, const char *name) {
    if (module != contexts || strcmp(name, "store64")) return INVALID_VALUE;
    *function = &contexts[1];
    return OK;
}
CUresult cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                        struct stream *stream, void **parameters, void **extra) {
    if (function != &contexts[1] || x * y * z * bx * by * bz != 1 || shared || extra) return INVALID_VALUE;
    return give(stream, (struct operation){.to = *(uint64_t *)parameters[0], .len = 8, .is_value = 1, .value = *(uint64_t *)parameters[1]}, 1, 0);
}

struct name { uint32_t magic; int pid, fd, device; uint64_t id, len; };
struct handle { char bytes[64]; };

CUresult cuIpcGetMemHandle(struct handle *handle, CUdeviceptr at) {
    if (!current()) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    struct range *range = find(at);
    int right = range && range->kind == DEVICE && !has_pools() && !has_mapped();
    struct name name = {0x0dd, getpid(), right ? range->fd : -1, right ? range->device : 0, right ? range->id : 0, right ? range->len : 0};
    pthread_mutex_unlock(&lock);
    if (!right) return INVALID_VALUE;
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &name, sizeof name);
    __atomic_fetch_add(&count_exported, 1, __ATOMIC_RELAXED);
    return OK;
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *opened, struct handle handle, unsigned flags) {
    (void)flags;
    struct name name;
    memcpy(&name, &handle, sizeof name);
    if (!current()) return INVALID_CONTEXT;
    if (name.magic != 0x0dd || name.pid == getpid()) return INVALID_CONTEXT; /* like the driver: a process cannot open its own handle */
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", name.pid, name.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return INVALID_HANDLE;
    char *at = mmap(NULL, pages(name.len), PROT_NONE, MAP_SHARED, fd, 0);
    char *ours = mmap(NULL, pages(name.len), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED || ours == MAP_FAILED) return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    add(OPENED_IPC, (uintptr_t)at, name.len, ours, fd, name.device);
    pthread_mutex_unlock(&lock);
    __atomic_fetch_add(&count_opened, 1, __ATOMIC_RELAXED);
    *opened = (uintptr_t)at;
    return OK;
}
CUresult cuIpcCloseMemHandle(CUdeviceptr at) { return release(at, 1 << OPENED_IPC); }
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr at, size_t len, int type, uint64_t flags) {
    if (type != 1 || flags) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct range *range = find(at);
    int fd = range && range->kind == DEVICE && len <= range->len - (at - range->at) ? fcntl(range->fd, F_DUPFD_CLOEXEC, 0) : -1;
    pthread_mutex_unlock(&lock);
    if (fd < 0) return INVALID_VALUE;
    *(int *)handle = fd;
    return OK;
}
