/* fi_getinfo(3): the results, the rejections, and calls with a result as hints. */
#include "every.h"

#include <arpa/inet.h>
#include <netinet/in.h>

static struct fi_info *only_here(void)
{
	struct fi_info *hints = fi_allocinfo();

	MUST(hints, "out of memory");
	hints->fabric_attr->prov_name = strdup(options.provider);
	return hints;
}

static int ask(struct fi_info *hints, struct fi_info **info)
{
	*info = NULL;
	return fi_getinfo(API, NULL, NULL, 0, hints, info);
}

/*
 * Other providers may be loaded, but no provider is layered on percale. The results have all attributes that an
 * application reads.
 */
static void offered(void)
{
	struct fi_info *all, *hints = only_here();
	int found = 0;

	NEEDS(fi_getinfo(API, NULL, NULL, 0, NULL, &all));
	for (struct fi_info *info = all; info; info = info->next) {
		const char *name = info->fabric_attr->prov_name;
		if (!strstr(name, options.provider))
			continue;
		found++;
		CHECK(!strcmp(name, options.provider), "a stray entry: %s", name);
		CHECK(info->caps & FI_MSG, "caps %#llx", (unsigned long long)info->caps);
		CHECK(info->tx_attr->iov_limit >= 1 && info->rx_attr->iov_limit >= 1 && info->tx_attr->inject_size > 0, "limits");
		CHECK(info->domain_attr->name && info->fabric_attr->name && info->domain_attr->name[0], "names");
		CHECK(info->ep_attr->max_msg_size >= 1u << 20, "%zu", info->ep_attr->max_msg_size);
		CHECK(info->domain_attr->cq_data_size >= 8 && info->domain_attr->mr_key_size >= 1, "sizes");
		CHECK(info->fabric_attr->api_version == API, "%#x", info->fabric_attr->api_version);
		CHECK(fi_tostr(info, FI_TYPE_INFO)[0], "no text");
	}
	CHECK(found > 0, "NULL hints find nothing");
	fi_freeinfo(all);
	NEEDS(ask(hints, &all));
	for (struct fi_info *info = all; info; info = info->next)
		CHECK(!strcmp(info->fabric_attr->prov_name, options.provider), "a stray entry: %s", info->fabric_attr->prov_name);
	fi_freeinfo(all);
	fi_freeinfo(hints);
}

/* Each result, passed as hints, returns the same result. */
static void round_trips(void)
{
	struct fi_info *all, *hints = only_here();

	NEEDS(ask(hints, &all));
	for (struct fi_info *info = all; info; info = info->next) {
		struct fi_info *again, *copy = fi_dupinfo(info);
		MUST(copy, "out of memory");
		if (ask(copy, &again) != 0) {
			CHECK(false, "a returned info is not found again: %s", info->domain_attr->name);
		} else {
			CHECK(again->caps == info->caps, "%#llx, not %#llx", (unsigned long long)again->caps, (unsigned long long)info->caps);
			CHECK(again->ep_attr->type == info->ep_attr->type, "%d", again->ep_attr->type);
			CHECK(!strcmp(again->domain_attr->name, info->domain_attr->name), "%s", again->domain_attr->name);
			CHECK(!strcmp(again->fabric_attr->name, info->fabric_attr->name), "%s", again->fabric_attr->name);
			fi_freeinfo(again);
		}
		fi_freeinfo(copy);
	}
	fi_freeinfo(all);
	fi_freeinfo(hints);
}

/* The hints of MPI libraries. */
static void wanted(void)
{
	static const int av_types[] = { FI_AV_UNSPEC, FI_AV_MAP, FI_AV_TABLE };
	static const int threadings[] = { FI_THREAD_UNSPEC, FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION, FI_THREAD_ENDPOINT };
	static const int modes[] = { 0, FI_MR_BASIC, FI_MR_SCALABLE, FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY,
				     FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT, FI_MR_LOCAL };
	static const int progresses[] = { FI_PROGRESS_UNSPEC, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL };

	for (size_t n = 0; n < COUNT(av_types) * COUNT(threadings) * COUNT(modes) * COUNT(progresses); n++) {
		struct fi_info *hints = only_here(), *info;
		struct fi_domain_attr *attr = hints->domain_attr;

		hints->caps = FI_TAGGED | FI_MSG;
		attr->av_type = (enum fi_av_type)av_types[n % 3];
		attr->threading = (enum fi_threading)threadings[n / 3 % 6];
		attr->mr_mode = modes[n / 18 % 6];
		attr->data_progress = attr->control_progress = (enum fi_progress)progresses[n / 108];
		if (ask(hints, &info)) {
			CHECK(false, "av_type %d threading %d mr_mode %#x progress %d is not offered", attr->av_type, attr->threading,
			      attr->mr_mode, attr->data_progress);
		} else {
			CHECK(!attr->av_type || info->domain_attr->av_type == attr->av_type, "%d", info->domain_attr->av_type);
			CHECK(!attr->threading || info->domain_attr->threading == attr->threading, "%d", info->domain_attr->threading);
			CHECK(!attr->data_progress || info->domain_attr->data_progress == attr->data_progress, "%d",
			      info->domain_attr->data_progress);
			CHECK(!(info->domain_attr->mr_mode & ~attr->mr_mode), "%#x", info->domain_attr->mr_mode);
			CHECK((info->caps & hints->caps) == hints->caps, "%#llx", (unsigned long long)info->caps);
			fi_freeinfo(info);
		}
		fi_freeinfo(hints);
	}
}

/* Unsupported features are not offered. */
static void refused(void)
{
	for (int what = 0; what < 9; what++) {
		struct fi_info *hints = only_here(), *info;

		switch (what) {
		case 0:
			hints->ep_attr->type = FI_EP_DGRAM;
			break;
		case 1:
			hints->caps = FI_MULTICAST;
			break;
		case 2:
			hints->addr_format = FI_SOCKADDR_IB;
			break;
		case 3:
			hints->tx_attr->inject_size = (size_t)1 << 40;
			break;
		case 4:
			hints->ep_attr->protocol = FI_PROTO_PSMX2;
			break;
		case 5:
			hints->domain_attr->name = strdup("no such domain");
			break;
		case 6:
			hints->fabric_attr->name = strdup("no such fabric");
			break;
		case 7:
			hints->tx_attr->iov_limit = 1000;
			break;
		case 8:
			hints->domain_attr->cq_data_size = 16;
			break;
		}
		if (ask(hints, &info) != -FI_ENODATA) {
			CHECK(false, "hint %d is not refused", what);
			fi_freeinfo(info);
		}
		fi_freeinfo(hints);
	}
}

/* The node and the service of the local address and of the peer's address. */
static void addresses(void)
{
	struct fi_info *hints = only_here(), *info;
	struct sockaddr_in wanted = { .sin_family = AF_INET, .sin_port = htons(7471) };
	const struct sockaddr_in *got;

	wanted.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	hints->addr_format = FI_SOCKADDR_IN;
	hints->ep_attr->type = FI_EP_RDM;
	NEEDS(fi_getinfo(API, "127.0.0.1", "7471", 0, hints, &info));
	got = info->dest_addr;
	CHECK(info->dest_addrlen == sizeof(wanted), "%zu", info->dest_addrlen);
	CHECK(got && got->sin_port == wanted.sin_port && got->sin_addr.s_addr == wanted.sin_addr.s_addr, "another destination");
	fi_freeinfo(info);
	NEEDS(fi_getinfo(API, "127.0.0.1", "7471", FI_SOURCE | FI_NUMERICHOST, hints, &info));
	got = info->src_addr;
	CHECK(info->src_addrlen == sizeof(wanted), "%zu", info->src_addrlen);
	CHECK(got && got->sin_port == wanted.sin_port && got->sin_addr.s_addr == wanted.sin_addr.s_addr, "another source");
	fi_freeinfo(info);
	CHECK(fi_getinfo(API, "not-a-number", "7471", FI_NUMERICHOST, hints, &info) < 0, "a name is taken for a number");
	fi_freeinfo(hints);
	NEEDS(fi_getinfo(API, NULL, NULL, FI_PROV_ATTR_ONLY, NULL, &info));
	fi_freeinfo(info);
}

/* `fi_info -e` shows the parameters. */
static void parameters(void)
{
	struct fi_param *params;
	int count, ours = 0;
	char prefix[64];

	snprintf(prefix, sizeof(prefix), "FI_%s_", options.provider);
	for (char *c = prefix; *c; c++)
		*c = (char)(*c >= 'a' && *c <= 'z' ? *c - 32 : *c);
	NEEDS(fi_getparams(&params, &count));
	for (int n = 0; n < count; n++) {
		if (strncmp(params[n].name, prefix, strlen(prefix)) != 0)
			continue;
		ours++;
		CHECK(params[n].help_string && params[n].help_string[0], "%s has no help", params[n].name);
	}
	CHECK(ours > 0, "no parameter begins with %s", prefix);
	fi_freeparams(params);
}

void info_groups(void)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = {
		{ "getinfo: results", offered },
		{ "getinfo: round trips", round_trips },
		{ "getinfo: hints", wanted },
		{ "getinfo: rejected hints", refused },
		{ "getinfo: addresses", addresses },
		{ "getinfo: parameters", parameters },
	};

	for (size_t at = 0; at < COUNT(all); at++) {
		begin(all[at].name);
		all[at].run();
		end();
	}
}
