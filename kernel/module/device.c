// SPDX-License-Identifier: GPL-2.0-only
/* /dev/hugepagectl: as in the series. */
#include <linux/mmzone.h>
#include <linux/module.h>
#include "prezero.h"

/* si_meminfo_node(), which is not exported. */
static void prezero_meminfo(struct sysinfo *info, int nid)
{
	struct zone *zone = NODE_DATA(nid)->node_zones, *end = zone + MAX_NR_ZONES;

	for (; zone < end; zone++) {
		info->totalram += zone_managed_pages(zone);
		info->freeram += zone_page_state(zone, NR_FREE_PAGES);
	}
}

#define si_meminfo_node prezero_meminfo
#undef device_initcall
#define device_initcall(init)
#include "shared/hugepagectl.c"

int prezero_device_init(void)
{
	return hugepagectl_init();
}

void prezero_device_exit(void)
{
	misc_deregister(&hugepagectl_device);
}
