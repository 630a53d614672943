/*
 * Device memory (fi_mr(3), FI_HMEM), and operations that devices start. Uses the driver that PERCALE_CUDA_LIBRARY names, or the
 * machine's driver.
 */
#include "registration.h"

#include <dlfcn.h>

typedef uint64_t address_t;

/* The driver functions that these checks call. */
static struct {
	int (*init)(unsigned);
	int (*get)(int *, int);
	int (*retain)(void **, int);
	int (*push)(void *);
	int (*alloc)(address_t *, size_t);
	int (*free)(address_t);
	int (*alloc_managed)(address_t *, size_t, unsigned);
	int (*alloc_host)(void **, size_t, unsigned);
	int (*free_host)(void *);
	int (*to_host)(void *, address_t, size_t);
	int (*to_device)(address_t, const void *, size_t);
	int (*make_stream)(void **, unsigned);
	int (*finish)(void *);
	int (*write_value)(void *, address_t, uint64_t, unsigned);
} cuda;
static void *stream;
static struct world w;

static const struct settings hmem = { .name = "devices", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL,
				      .caps = FI_HMEM };
static const struct settings xpu = { .name = "devices", .av_type = FI_AV_TABLE, .threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL,
				     .caps = FI_HMEM | FI_TRIGGER | FI_XPU_TRIGGER };

static bool load(void)
{
	const char *name = getenv("PERCALE_CUDA_LIBRARY");
	void *library = dlopen(name ? name : "libcuda.so.1", RTLD_NOW), *context;
	int device;

	if (!library)
		return false;
#define TAKE(member, symbol) MUST((cuda.member = dlsym(library, symbol)) != NULL, "no %s", symbol)
	TAKE(init, "cuInit");
	TAKE(get, "cuDeviceGet");
	TAKE(retain, "cuDevicePrimaryCtxRetain");
	TAKE(push, "cuCtxPushCurrent_v2");
	TAKE(alloc, "cuMemAlloc_v2");
	TAKE(free, "cuMemFree_v2");
	TAKE(alloc_managed, "cuMemAllocManaged");
	TAKE(alloc_host, "cuMemHostAlloc");
	TAKE(free_host, "cuMemFreeHost");
	TAKE(to_host, "cuMemcpyDtoH_v2");
	TAKE(to_device, "cuMemcpyHtoD_v2");
	TAKE(make_stream, "cuStreamCreate");
	TAKE(finish, "cuStreamSynchronize");
	TAKE(write_value, "cuStreamWriteValue64_v2");
	if (cuda.init(0) || cuda.get(&device, 0))
		return false;
	MUST(!cuda.retain(&context, device) && !cuda.push(context) && !cuda.make_stream(&stream, 1), "the device");
	return true;
}

static address_t device_memory(size_t len, unsigned seed)
{
	char *bytes = malloc(len);
	address_t memory;

	MUST(!cuda.alloc(&memory, len), "a device's memory");
	fill(bytes, len, seed);
	MUST(!cuda.to_device(memory, bytes, len), "a copy");
	free(bytes);
	return memory;
}

static bool holds(address_t memory, size_t len, unsigned seed)
{
	char *bytes = malloc(len);
	bool same;

	MUST(!cuda.to_host(bytes, memory, len), "a copy");
	same = is_filled(bytes, len, seed);
	free(bytes);
	return same;
}

static void *at(address_t memory) { return (void *)(uintptr_t)memory; }

static int try_register(void *memory, size_t len, enum fi_hmem_iface iface, int device, uint64_t flags, uint64_t key, struct fid_mr **mr)
{
	struct iovec iov = { memory, len };
	struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .requested_key = key, .iface = iface,
				   .access = BOTH_WAYS | FI_SEND | FI_RECV | FI_READ | FI_WRITE };

	attr.device.cuda = device;
	return fi_mr_regattr(w.domain, &attr, flags, mr);
}

/* Accesses to a region in device memory. */
static void regions(void)
{
	address_t memory = device_memory(BYTES, 1);
	uint64_t word;
	struct fid_mr *mr;

	asserts("HMEM-003");
	ANSWERS(0, try_register(at(memory), BYTES, FI_HMEM_CUDA, 0, 0, 801, &mr));
	uint64_t base = base_of(&w, at(memory)), key = fi_mr_key(mr);
	ANSWERS(0, try_write(&w, base + 64, key, 500, 77));
	CHECK(holds(memory + 64, 500, 77), "the write is not there");
	ANSWERS(0, try_read(&w, base + 64, key, 500));
	CHECK(is_filled(w.a->in, 500, 77), "the read returned other bytes");
	cuda.to_device(memory + 8, "\1\0\0\0\0\0\0\0", 8);
	ANSWERS(0, try_add(&w, base + 8, key, 41));
	cuda.to_host(&word, memory + 8, 8);
	CHECK(word == 42, "%llu", (unsigned long long)word);
	/* From and to device memory, with and without a descriptor. */
	address_t from = device_memory(BYTES, 3), into = device_memory(BYTES, 4);
	struct fid_mr *local;
	asserts("HMEM-014");
	ANSWERS(0, try_register(at(from), BYTES, FI_HMEM_CUDA, 0, FI_HMEM_DEVICE_ONLY, 802, &local));
	POSTED(w.a, fi_write(w.a->ep, at(from), BYTES, fi_mr_desc(local), w.a->peer, base, key, context(3)));
	ANSWERS(0, take(w.a, context(3)).err);
	CHECK(holds(memory, BYTES, 3), "the write is not there");
	POSTED(w.a, fi_read(w.a->ep, at(into), BYTES, NULL, w.a->peer, base, key, context(4)));
	ANSWERS(0, take(w.a, context(4)).err);
	CHECK(holds(into, BYTES, 3), "the read returned other bytes");
	POSTED(w.a, fi_inject_write(w.a->ep, at(into), 100, w.a->peer, base + 1000, key));
	cuda.to_device(into, "changed", 8);
	ANSWERS(0, try_read(&w, base + 1000, key, 100));
	CHECK(is_filled(w.a->in, 100, 3), "the injected bytes did not arrive");
	ANSWERS(0, fi_close(&local->fid));
	ANSWERS(0, fi_close(&mr->fid));
	CHECK(try_write(&w, base, key, 8, 1) != 0, "the region was closed");
	CHECK(!cuda.free(memory) && !cuda.free(from) && !cuda.free(into), "freed");
}

/* Messages from and to device memory, with every call. */
static void messages(void)
{
	static const size_t lengths[] = { 1, 64, 1000, 60000, 1 << 20 };
	const char *disabled = getenv("FI_HMEM_DISABLE_P2P");

	asserts("HMEM-003 HMEM-017");
	/* The same results without access of devices to each other's memory. */
	if (disabled && !strcmp(disabled, "1"))
		asserts("HMEM-016");
	for (size_t n = 0; n < COUNT(lengths); n++) {
		size_t len = lengths[n];
		address_t from = device_memory(len, (unsigned)n + 5), into = device_memory(len, 1);
		for (int call = SEND; call < SEND_CALLS; call++) {
			for (int tagged = 0; tagged < 2; tagged++) {
				struct message m = { .tagged = tagged, .tag = 9, .buf = at(into), .len = len, .context = context(1) };
				struct message sent = m;

				if (injects(call) && len > w.two.room.info->tx_attr->inject_size)
					continue;
				sent.buf = at(from), sent.context = context(2), sent.flags = FI_COMPLETION, sent.data = 4;
				m.flags = FI_COMPLETION;
				cuda.to_device(into, "unrelated data", len < 20 ? len : 20);
				POSTED(w.b, post_receive(w.b, call % RECEIVE_CALLS, &m));
				POSTED(w.a, post_send(w.a, call, &sent));
				if (!injects(call))
					ANSWERS(0, take(w.a, sent.context).err);
				CHECK(take(w.b, m.context).len == len, "%s", send_name(call));
				CHECK(holds(into, len, (unsigned)n + 5), "%s: %zu bytes", send_name(call), len);
			}
		}
		CHECK(!cuda.free(from) && !cuda.free(into), "freed");
	}
}

/* The kinds of memory in registrations. */
static void kinds(void)
{
	address_t memory = device_memory(BYTES, 1), managed;
	char *host = malloc(BYTES);
	void *pinned;
	struct fid_mr *mr;

	MUST(!cuda.alloc_managed(&managed, BYTES, 1) && !cuda.alloc_host(&pinned, BYTES, 3), "memory");
	fill(pinned, BYTES, 1);
	fill(at(managed), BYTES, 1);
	asserts("HMEM-014 HMEM-015");
	ANSWERS(-FI_EINVAL, try_register(host, BYTES, FI_HMEM_CUDA, 0, FI_HMEM_DEVICE_ONLY, 811, &mr));
	ANSWERS(-FI_EINVAL, try_register(at(memory), BYTES, FI_HMEM_CUDA, 0, FI_HMEM_HOST_ALLOC, 811, &mr));
	asserts("HMEM-007");
	ANSWERS(-FI_ENODEV, try_register(at(memory), BYTES, FI_HMEM_CUDA, 99, 0, 811, &mr));
	ANSWERS(-FI_ENODEV, try_register(at(memory), BYTES, FI_HMEM_CUDA, -1, 0, 811, &mr));
	asserts("HMEM-005 HMEM-006");
	ANSWERS(-FI_ENOSYS, try_register(at(memory), BYTES, FI_HMEM_ROCR, 0, 0, 811, &mr));
	ANSWERS(-FI_ENOSYS, try_register(at(memory), BYTES, FI_HMEM_ZE, 0, 0, 811, &mr));
	ANSWERS(-FI_ENOSYS, try_register(at(memory), BYTES, 99, 0, 0, 811, &mr));
	refused(&w, 0, 811, NULL, 1);
	/* Pinned host memory belongs to no device, so any device number is accepted. */
	for (int device = 0; device < 100; device += 99) {
		ANSWERS(0, try_register(pinned, BYTES, FI_HMEM_CUDA, device, FI_HMEM_HOST_ALLOC, 812, &mr));
		served(&w, base_of(&w, pinned), fi_mr_key(mr), pinned);
		ANSWERS(0, fi_close(&mr->fid));
	}
	asserts("HMEM-004");
	ANSWERS(0, try_register(pinned, BYTES, FI_HMEM_CUDA, 0, 0, 813, &mr));
	served(&w, base_of(&w, pinned), fi_mr_key(mr), pinned);
	ANSWERS(0, fi_close(&mr->fid));
	ANSWERS(0, try_register(at(managed), BYTES, FI_HMEM_CUDA, 0, 0, 814, &mr));
	served(&w, base_of(&w, at(managed)), fi_mr_key(mr), at(managed));
	ANSWERS(0, fi_close(&mr->fid));
	/* Host memory is treated as host memory for any device in the registration. */
	fill(host, BYTES, 1);
	asserts("HMEM-002 HMEM-008");
	ANSWERS(0, try_register(host, BYTES, FI_HMEM_SYSTEM, 12345, 0, 815, &mr));
	served(&w, base_of(&w, host), fi_mr_key(mr), host);
	ANSWERS(0, fi_close(&mr->fid));
	CHECK(!cuda.free(memory) && !cuda.free(managed) && !cuda.free_host(pinned), "freed");
	free(host);
}

/*
 * Memory in fi_mr_reg and fi_mr_regv counts as host memory, even if it is device memory that no processor can access.
 * If memory must be present (FI_MR_ALLOCATED) the call is rejected; otherwise accesses of peers fail. This test does not access
 * the memory.
 */
static void unnamed(void)
{
	address_t memory = device_memory(BYTES, 1);
	struct iovec iov = { at(memory), BYTES };
	struct fid_mr *mr = NULL;

	asserts("MR-081");
	for (int vector = 0; vector < 2; vector++) {
		uint64_t key = 825 + (uint64_t)vector;
		int code = vector ? fi_mr_regv(w.domain, &iov, 1, BOTH_WAYS, 0, key, 0, &mr, NULL)
				  : fi_mr_reg(w.domain, at(memory), BYTES, BOTH_WAYS, 0, key, 0, &mr, NULL);

		if (w.mode & FI_MR_ALLOCATED) {
			ANSWERS(-FI_EFAULT, code);
			continue;
		}
		ANSWERS(0, code);
		refused(&w, base_of(&w, at(memory)), fi_mr_key(mr), NULL, 1);
		CHECK(holds(memory, BYTES, 1), "the memory was changed");
		ANSWERS(0, fi_close(&mr->fid));
	}
	/* With the right interface it is registered and can be accessed. */
	ANSWERS(0, try_register(at(memory), BYTES, FI_HMEM_CUDA, 0, 0, 827, &mr));
	ANSWERS(0, try_write(&w, base_of(&w, at(memory)), fi_mr_key(mr), 500, 7));
	CHECK(holds(memory, 500, 7), "the write is not there");
	ANSWERS(0, fi_close(&mr->fid));
	CHECK(!cuda.free(memory), "freed");
}

/*
 * Without FI_MR_HMEM, device memory needs no descriptor, also with FI_MR_LOCAL. With both modes it needs one. With FI_MR_HMEM alone
 * it is used with one.
 */
static void described(void)
{
	address_t from = device_memory(BYTES, 6), into = device_memory(BYTES, 1);
	bool free_to = !(w.mode & FI_MR_HMEM);
	struct fid_mr *mr;

	if (w.mode & FI_MR_LOCAL)
		asserts(free_to ? "HMEM-012" : "HMEM-013");
	/* Host memory needs a descriptor only with FI_MR_LOCAL. In the other mode in_desc is NULL. */
	if (!(w.mode & FI_MR_LOCAL)) {
		asserts("HMEM-010 HMEM-011");
		CHECK(!w.b->in_desc, "a descriptor of host memory");
	}
	if (free_to || (w.mode & FI_MR_LOCAL)) {
		ANSWERS(free_to ? 0 : -FI_EINVAL, POST(w.b, fi_recv(w.b->ep, at(into), BYTES, NULL, FI_ADDR_UNSPEC, context(1))));
		ANSWERS(free_to ? 0 : -FI_EINVAL, POST(w.a, fi_send(w.a->ep, at(from), BYTES, NULL, w.a->peer, context(2))));
	}
	if (!free_to) {
		ANSWERS(0, try_register(at(from), BYTES, FI_HMEM_CUDA, 0, 0, 821, &mr));
		POSTED(w.b, fi_recv(w.b->ep, w.b->in, BYTES, w.b->in_desc, FI_ADDR_UNSPEC, context(1)));
		POSTED(w.a, fi_send(w.a->ep, at(from), BYTES, fi_mr_desc(mr), w.a->peer, context(2)));
		/* The memory is also the source of a write to device memory, and the destination of a read. */
		struct fid_mr *target;
		asserts("HMEM-009");
		ANSWERS(0, try_register(at(into), BYTES, FI_HMEM_CUDA, 0, 0, 822, &target));
		uint64_t base = base_of(&w, at(into)), key = fi_mr_key(target);
		POSTED(w.a, fi_write(w.a->ep, at(from), BYTES, fi_mr_desc(mr), w.a->peer, base, key, context(3)));
		ANSWERS(0, take(w.a, context(3)).err);
		CHECK(holds(into, BYTES, 6), "the write is not there");
		POSTED(w.a, fi_read(w.a->ep, at(from), BYTES, fi_mr_desc(mr), w.a->peer, base, key, context(4)));
		ANSWERS(0, take(w.a, context(4)).err);
		CHECK(holds(from, BYTES, 6), "the read returned other bytes");
		ANSWERS(0, fi_close(&target->fid));
	}
	ANSWERS(0, take(w.a, context(2)).err);
	CHECK(take(w.b, context(1)).len == BYTES, "received");
	CHECK(free_to ? holds(into, BYTES, 6) : is_filled(w.b->in, BYTES, 6), "other bytes");
	if (!free_to)
		ANSWERS(0, fi_close(&mr->fid));
	CHECK(!cuda.free(from) && !cuda.free(into), "freed");
}

/* For all values of FI_MR_..._CACHE_MONITOR_ENABLED, accesses to memory that was allocated again use the new allocation. */
static void again(void)
{
	enum { TIMES = 20, LEN = 70000 };
	address_t places[TIMES];
	int same = 0;
	struct fid_mr *mr;

	asserts("RCACHE-019");
	if (getenv("FI_MR_CUDA_CACHE_MONITOR_ENABLED"))
		asserts("RCACHE-015");
	for (unsigned n = 0; n < TIMES; n++) {
		address_t from = device_memory(LEN, 2 * n), into = device_memory(LEN, 1);

		POSTED(w.b, fi_recv(w.b->ep, at(into), LEN, NULL, FI_ADDR_UNSPEC, context(1)));
		POSTED(w.a, fi_send(w.a->ep, at(from), LEN, NULL, w.a->peer, context(2)));
		ANSWERS(0, take(w.a, context(2)).err);
		CHECK(take(w.b, context(1)).len == LEN && holds(into, LEN, 2 * n), "the sent bytes did not arrive");
		ANSWERS(0, try_register(at(into), LEN, FI_HMEM_CUDA, 0, 0, 830 + n, &mr));
		ANSWERS(0, try_write(&w, base_of(&w, at(into)), fi_mr_key(mr), 500, 2 * n + 1));
		CHECK(holds(into, 500, 2 * n + 1), "the write is not there");
		ANSWERS(0, fi_close(&mr->fid));
		CHECK(!cuda.free(from) && !cuda.free(into), "freed");
		places[n] = into;
		for (unsigned earlier = 0; earlier < n; earlier++)
			same += places[earlier] == into;
	}
	CHECK(same > 0, "no address was reused");
	ANSWERS(-FI_ENOSYS, try_register(w.a->in, 8, FI_HMEM_ROCR, 0, 0, 860, &mr));
	ANSWERS(-FI_ENOSYS, try_register(w.a->in, 8, FI_HMEM_ZE, 0, 0, 861, &mr));
}

/* Sends that start when a stream writes a variable. */
static void triggers(void)
{
	struct fi_trigger_var vars[2] = { 0 };
	struct fi_triggered_context contexts[2];
	struct fi_trigger_xpu needs = { .count = 2, .iface = FI_HMEM_CUDA, .var = vars };
	size_t len = sizeof(needs);
	address_t from = device_memory(16, 1);
	struct iovec iov = { at(from), 8 };
	struct fi_msg msg = { .msg_iov = &iov, .iov_count = 1, .addr = w.a->peer };

	ANSWERS(0, fi_getopt(&w.a->ep->fid, FI_OPT_ENDPOINT, FI_OPT_XPU_TRIGGER, &needs, &len));
	CHECK(needs.count == 1 && vars[0].datatype == FI_UINT64 && vars[0].count == 1, "of 64 bits");
	needs.device.cuda = 99;
	ANSWERS(-FI_EOPNOTSUPP, fi_getopt(&w.a->ep->fid, FI_OPT_ENDPOINT, FI_OPT_XPU_TRIGGER, &needs, &len));
	/* A thread instead of a device would write the variable: the operation is rejected. */
	asserts("XPU-004");
	contexts[0] = (struct fi_triggered_context){ .event_type = FI_TRIGGER_XPU, .trigger.xpu = { .count = 1, .iface = FI_HMEM_SYSTEM, .var = vars } };
	msg.context = &contexts[0];
	ANSWERS(-FI_EINVAL, fi_sendmsg(w.a->ep, &msg, FI_TRIGGER | FI_COMPLETION));
	for (int n = 0; n < 2; n++) {
		contexts[n] = (struct fi_triggered_context){ .event_type = FI_TRIGGER_XPU,
							     .trigger.xpu = { .count = 1, .iface = FI_HMEM_CUDA, .var = &vars[n] } };
		msg.context = &contexts[n];
		ANSWERS(0, fi_sendmsg(w.a->ep, &msg, FI_TRIGGER | FI_COMPLETION));
		CHECK(vars[n].datatype == FI_UINT64 && vars[n].count == 1 && vars[n].addr, "a variable of 64 bits");
		iov.iov_base = at(from + 8);
	}
	ANSWERS(0, fi_cancel(&w.a->ep->fid, &contexts[0]));
	CHECK(take(w.a, &contexts[0]).err == FI_ECANCELED, "cancelled");
	POSTED(w.b, fi_recv(w.b->ep, w.b->in, 8, NULL, FI_ADDR_UNSPEC, context(1)));
	for (int turn = 0; turn < 50; turn++)
		progress(w.a);
	/* The memory is read when the send begins. */
	asserts("XPU-020");
	cuda.to_device(from + 8, "by then!", 8);
	CHECK(!cuda.write_value(stream, (address_t)(uintptr_t)vars[1].addr, vars[1].value.val64, 0) && !cuda.finish(stream), "a write");
	ANSWERS(0, take(w.a, &contexts[1]).err);
	CHECK(take(w.b, context(1)).len == 8 && !memcmp(w.b->in, "by then!", 8), "other bytes");
	CHECK(!cuda.free(from), "freed");
}

void device_groups(void)
{
	static const struct {
		const char *name;
		const struct settings *how;
		int taken;
		void (*run)(void);
	} all[] = {
		{ "regions of a device's memory", &hmem, 0, regions },
		{ "regions of a device's memory, FI_MR_HMEM", &hmem, FI_MR_HMEM, described },
		{ "messages of a device's memory", &hmem, 0, messages },
		{ "kinds of memory and their registration", &hmem, 0, kinds },
		{ "device memory registered as host memory", &hmem, 0, unnamed },
		{ "device memory registered as host memory, FI_MR_ALLOCATED", &hmem, FI_MR_ALLOCATED, unnamed },
		{ "FI_MR_LOCAL: described, or not", &hmem, FI_MR_LOCAL, described },
		{ "FI_MR_LOCAL and FI_MR_HMEM: described", &hmem, FI_MR_LOCAL | FI_MR_HMEM, described },
		{ "memory at a reused address", &hmem, 0, again },
		{ "sends that a stream starts", &xpu, 0, triggers },
	};

	for (size_t number = 0; number < COUNT(all); number++) {
		static int loaded = -1;
		if (loaded < 0)
			loaded = load();
		if (!loaded) {
			skip(all[number].name, "no device, and no double of its driver");
			continue;
		}
		begin(all[number].name);
		open_world(&w, all[number].taken, all[number].how);
		all[number].run();
		close_world(&w);
		end();
	}
}
