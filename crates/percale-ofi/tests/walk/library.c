/*
 * libfabric, through the symbol versions that programs of an API version are linked with: a program for API 1.4 uses the
 * functions of FABRIC_1.0, which convert its structures. The functions here have the names that libfabric's inline functions
 * call.
 */
#define _GNU_SOURCE
#include "walk.h"

#include <dlfcn.h>

static void *library;

/* The symbol version that programs of an API version are linked with, or NULL for the default version. */
static const char *symbols_of(uint32_t api)
{
	if (api < FI_VERSION(1, 5))
		return "FABRIC_1.0";
	if (api < FI_VERSION(1, 7))
		return "FABRIC_1.1";
	if (api < FI_VERSION(1, 9))
		return "FABRIC_1.2";
	if (api < FI_VERSION(1, 20))
		return "FABRIC_1.3";
	if (api < FI_VERSION(2, 0))
		return "FABRIC_1.7";
	return NULL;
}

static void *function(const char *name)
{
	const char *version = symbols_of(setting.api);
	void *found = version ? dlvsym(library, name, version) : NULL;

	/* A symbol that did not change has only its first version. */
	if (!found)
		found = dlsym(library, name);
	MUST(found, "libfabric has no %s", name);
	return found;
}

void load_library(const char *directory)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s%slibfabric.so.1", directory ? directory : "", directory ? "/" : "");
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	MUST(library, "%s", dlerror());
}

#define FORWARD(type, name, parameters, arguments)          \
	type name parameters                                \
	{                                                   \
		type(*real) parameters = function(#name);   \
		return real arguments;                      \
	}

FORWARD(uint32_t, fi_version, (void), ())
FORWARD(struct fi_info *, fi_dupinfo, (const struct fi_info *info), (info))
FORWARD(const char *, fi_strerror, (int code), (code))
FORWARD(int, fi_getinfo, (uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints, struct fi_info **info),
	(version, node, service, flags, hints, info))
FORWARD(int, fi_fabric, (struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context), (attr, fabric, context))
FORWARD(int, fi_getparams, (struct fi_param **params, int *count), (params, count))
FORWARD(char *, fi_tostr, (const void *data, enum fi_type type), (data, type))
FORWARD(char *, fi_tostr_r, (char *buf, size_t len, const void *data, enum fi_type type), (buf, len, data, type))

void fi_freeinfo(struct fi_info *info)
{
	void (*real)(struct fi_info *) = function("fi_freeinfo");

	real(info);
}

void fi_freeparams(struct fi_param *params)
{
	void (*real)(struct fi_param *) = function("fi_freeparams");

	real(params);
}

uint32_t newest_api(void)
{
	return fi_version();
}

struct fi_info *hints_of(enum fi_ep_type type, uint64_t caps)
{
	struct fi_info *hints = fi_allocinfo();

	MUST(hints, "out of memory");
	hints->fabric_attr->prov_name = strdup("percale");
	hints->caps = caps;
	hints->mode = FI_CONTEXT;
	hints->ep_attr->type = type;
	hints->domain_attr->threading = setting.level;
	hints->domain_attr->data_progress = hints->domain_attr->control_progress =
		below(4) ? FI_PROGRESS_MANUAL : FI_PROGRESS_AUTO;
	return hints;
}

struct fi_info *answer(const char *node, const char *service, uint64_t flags, const struct fi_info *hints)
{
	struct fi_info *info = NULL;
	int code = fi_getinfo(setting.api, node, service, flags, hints, &info);

	MUST(code == 0 || code == -FI_ENODATA, "%d (%s)", code, code_text(code));
	return info;
}

/* Functions that belong to no object, and attributes as text. */
void library_calls(void)
{
	struct fi_info *hints = hints_of(FI_EP_UNSPEC, 0), *info = NULL, *copy;
	struct fi_param *params = NULL;
	char text[64];
	int count = 0;

	if (fi_getparams(&params, &count) == 0)
		fi_freeparams(params);
	/* Invalid and unusual arguments. */
	(void)fi_getinfo(setting.api, "no such host name", "0", 0, hints, &info);
	fi_freeinfo(info);
	info = NULL;
	(void)fi_getinfo(setting.api, NULL, NULL, FI_SOURCE, hints, &info);
	fi_freeinfo(info);
	info = NULL;
	(void)fi_getinfo(setting.api, NULL, NULL, FI_PROV_ATTR_ONLY, NULL, &info);
	fi_freeinfo(info);
	info = answer("127.0.0.1", "0", FI_SOURCE | FI_NUMERICHOST, hints);
	for (struct fi_info *one = info; one; one = one->next) {
		copy = fi_dupinfo(one);
		MUST(copy, "out of memory");
		fi_freeinfo(copy);
		if (setting.api >= FI_VERSION(1, 9))
			fi_tostr_r(text, sizeof(text), one, FI_TYPE_INFO);
	}
	/* A result is valid as hints. */
	if (info) {
		struct fi_info *again = NULL;
		NEEDS(fi_getinfo(setting.api, NULL, NULL, 0, info, &again));
		fi_freeinfo(again);
	}
	fi_freeinfo(info);
	fi_freeinfo(hints);
}

size_t error_entry_size(void)
{
	const size_t before_data_size = offsetof(struct fi_cq_err_entry, err_data) + sizeof(void *);
	const size_t before_source = before_data_size + sizeof(size_t);

	if (setting.api < FI_VERSION(1, 5))
		return before_data_size;
	return setting.api < FI_VERSION(1, 20) ? before_source : before_source + sizeof(fi_addr_t);
}

size_t region_attr_size(void)
{
	const size_t before_keys = offsetof(struct fi_mr_attr, auth_key_size), before_devices = offsetof(struct fi_mr_attr, iface);

	if (setting.api < FI_VERSION(1, 5))
		return before_keys;
	if (setting.api < FI_VERSION(1, 9))
		return before_devices;
	/* The fields up to the device. 2.0 has four additional words. */
	return before_devices + 16 + (setting.api < FI_VERSION(2, 0) ? 0 : 32);
}

size_t queue_attr_size(void)
{
	return 40 + (setting.api < FI_VERSION(2, 6) ? 0 : 8);
}

size_t counter_attr_size(void)
{
	return 24 + (setting.api < FI_VERSION(2, 6) ? 0 : 8);
}

void *exactly(size_t size, const void *bytes, size_t given)
{
	char *memory = malloc(size);

	MUST(memory, "out of memory");
	if (bytes) {
		memset(memory, 0, size);
		memcpy(memory, bytes, given < size ? given : size);
	}
	return memory;
}
