// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * pool soil|counts|used - the pool of 2 MiB pages of all nodes
 *
 * soil fills every free page with 0xa5 and frees it: who is given one that was not cleared sees that.
 * counts prints hits and misses since the provider began, used the pages that somebody has.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "hugepagectl.h"

#define SHIFT		21
#define MAX_NODES	64

static struct hugepagectl_query all(void)
{
	struct hugepagectl_query sum = { 0 };
	int fd = open("/dev/hugepagectl", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		err(1, "/dev/hugepagectl");
	for (int node = 0; node < MAX_NODES; node++) {
		struct hugepagectl_query q = { .size = sizeof(q), .node = node, .page_shift = SHIFT };

		if (ioctl(fd, HUGEPAGECTL_QUERY, &q)) {
			if (errno == ENODEV)
				continue;
			err(1, "QUERY of node %d", node);
		}
		sum.total += q.total;
		sum.free += q.free;
		sum.hits += q.hits;
		sum.misses += q.misses;
	}
	close(fd);
	return sum;
}

static void soil(void)
{
	size_t len = all().free << SHIFT;
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 21 << MAP_HUGE_SHIFT, -1, 0);

	if (p == MAP_FAILED)
		err(1, "%zu bytes of huge pages", len);
	memset(p, 0xa5, len);
}

int main(int argc, char **argv)
{
	const char *what = argc == 2 ? argv[1] : "";
	struct hugepagectl_query q = all();

	if (!strcmp(what, "soil"))
		soil();
	else if (!strcmp(what, "counts"))
		printf("%llu %llu\n", q.hits, q.misses);
	else if (!strcmp(what, "used"))
		printf("%llu\n", q.total - q.free);
	else
		errx(2, "pool soil|counts|used");
	return 0;
}
