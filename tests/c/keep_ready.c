// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * keep_ready TREE - keep some pages of every node ready, with hugepagectl
 *
 * For every node and page size this keeps at least KEEP pages zeroed, or a half
 * of the pool if that is less. It sleeps until a domain is short, and zeroes what
 * is missing with as many threads as are worth it: as long as one more thread
 * raises the rate by a tenth it adds one, if not it takes one away. When
 * programs find no zeroed page (misses grow) it keeps more, when they find
 * enough for a while less. Ends on SIGINT or SIGTERM.
 *
 * TREE is where the node directories are: /sys/devices/system/node, or the
 * tree of a userspace provider. The device is TREE/hugepagectl, or else
 * /dev/hugepagectl.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>
#include "hugepagectl.h"

#define KEEP		16
#define MAX_THREADS	16
#define MAX_DOMAINS	256
/* A thread zeroes so much at a time before it looks at the clock: 32 MiB. */
#define BATCH_SHIFT	25
/* Every so many seconds the wish is adapted to what programs found. */
#define ADAPT_S		5

struct domain {
	int fd;			/* hugepagectl, watching this domain */
	int node;
	unsigned int shift;
	__u64 keep;		/* this many are to be zeroed */
	__u64 least;		/* never fewer than these */
	__u64 misses;		/* at the last adaption */
	int threads;		/* to zero with */
	int step;		/* +1 or -1: where to look for a better number */
	double rate;		/* pages per second with the number before */
	atomic_long missing;	/* pages, while zeroing */
	atomic_long zeroed;
};

static struct domain domains[MAX_DOMAINS];
static int nr_domains;
static atomic_bool stop;

static void ask_to_stop(int signal)
{
	(void)signal;
	stop = true;
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static bool query(const struct domain *domain, struct hugepagectl_query *query)
{
	*query = (struct hugepagectl_query){
		.size = sizeof(*query), .node = domain->node,
		.page_shift = domain->shift,
	};
	return !ioctl(domain->fd, HUGEPAGECTL_QUERY, query);
}

static bool watch(const struct domain *domain)
{
	struct hugepagectl_watch watch = {
		.size = sizeof(watch), .node = domain->node,
		.page_shift = domain->shift,
		/* No use in being woken when there is nothing to zero. */
		.flags = HUGEPAGECTL_WATCH_ZEROABLE,
		.min_zeroed = domain->keep, .min_interval_ms = 20,
	};

	return !ioctl(domain->fd, HUGEPAGECTL_WATCH, &watch);
}

static void *zeroer(void *arg)
{
	struct domain *domain = arg;
	long batch = domain->shift < BATCH_SHIFT ?
		     1L << (BATCH_SHIFT - domain->shift) : 1;

	while (!stop) {
		struct hugepagectl_zero zero = {
			.size = sizeof(zero), .node = domain->node,
			.page_shift = domain->shift,
		};
		long left = atomic_fetch_sub(&domain->missing, batch);

		if (left <= 0)
			break;
		zero.pages = left < batch ? left : batch;
		if (ioctl(domain->fd, HUGEPAGECTL_ZERO, &zero)) {
			if (errno != EINTR && errno != ENODEV)
				warn("node %d: cannot zero", domain->node);
			break;
		}
		domain->zeroed += zero.zeroed;
		if (zero.zeroed < zero.pages)
			break;	/* all others are in use or being zeroed */
	}
	return NULL;
}

/* Zero @missing pages with domain->threads threads; pages per second. */
static double refill(struct domain *domain, long missing)
{
	pthread_t threads[MAX_THREADS];
	double start = seconds();
	int n;

	domain->missing = missing;
	domain->zeroed = 0;
	for (n = 0; n < domain->threads; n++)
		if (pthread_create(&threads[n], NULL, zeroer, domain))
			break;
	if (n == 0)
		zeroer(domain);
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	return domain->zeroed / (seconds() - start);
}

/* Go on in the direction that made it faster, turn round if it did not. */
static void tune(struct domain *domain, double rate, int cpus)
{
	int most = cpus < MAX_THREADS ? cpus : MAX_THREADS;

	if (rate < domain->rate * 1.1)
		domain->step = -domain->step;
	domain->rate = rate;
	domain->threads += domain->step;
	if (domain->threads < 1)
		domain->threads = 1;
	if (domain->threads > most)
		domain->threads = most;
}

/* A domain is short of zeroed pages. */
static void attend(struct domain *domain, int cpus)
{
	struct hugepagectl_query now;
	double rate;
	long missing;

	if (!query(domain, &now) || now.zeroed >= domain->keep)
		return;
	missing = domain->keep - now.zeroed;
	rate = refill(domain, missing);
	printf("node %d, %u KiB: %ld of %ld pages by %d threads, %.0f MiB/s\n",
	       domain->node, 1U << (domain->shift - 10), (long)domain->zeroed,
	       missing, domain->threads,
	       rate * (1UL << domain->shift) / (1 << 20));
	fflush(stdout);
	/* Too little to tell one number of threads from another otherwise. */
	if (domain->zeroed >= 2 * domain->threads)
		tune(domain, rate, cpus);
}

/* Programs missed some: keep a half more. They did not: an eighth less. */
static void adapt(struct domain *domain)
{
	struct hugepagectl_query now;
	__u64 keep = domain->keep;

	if (!query(domain, &now))
		return;
	if (now.misses > domain->misses)
		keep += keep / 2 + 1;
	else
		keep -= keep / 8;
	domain->misses = now.misses;
	if (keep < domain->least)
		keep = domain->least;
	if (keep > now.total)
		keep = now.total;
	if (keep == domain->keep)
		return;
	domain->keep = keep;
	if (!watch(domain))
		warn("node %d: cannot watch", domain->node);
}

static int open_device(const char *tree)
{
	char path[PATH_MAX];
	int fd = -1;

	if (snprintf(path, sizeof(path), "%s/hugepagectl", tree) < PATH_MAX)
		fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		fd = open("/dev/hugepagectl", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		err(1, "%s/hugepagectl, /dev/hugepagectl", tree);
	return fd;
}

static void add_domain(const char *tree, int node, unsigned long kib, int epoll)
{
	struct domain *domain = &domains[nr_domains];
	struct epoll_event event = {
		.events = EPOLLIN, .data.ptr = domain,
	};
	struct hugepagectl_query now;

	if (nr_domains == MAX_DOMAINS)
		errx(1, "more than %d nodes and page sizes", MAX_DOMAINS);
	domain->fd = open_device(tree);
	domain->node = node;
	domain->shift = 10 + __builtin_ctzl(kib);
	domain->threads = 1;
	domain->step = 1;
	if (!query(domain, &now))
		err(1, "node %d, %lu KiB: HUGEPAGECTL_QUERY", node, kib);
	domain->least = now.total / 2 < KEEP ? now.total / 2 : KEEP;
	domain->keep = domain->least;
	domain->misses = now.misses;
	if (!watch(domain))
		err(1, "node %d, %lu KiB: HUGEPAGECTL_WATCH", node, kib);
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, domain->fd, &event))
		err(1, "epoll_ctl");
	nr_domains++;
}

/* TREE/nodeN/hugepages/hugepages-SIZEkB */
static void find_domains(const char *tree, int epoll)
{
	DIR *nodes = opendir(tree);
	struct dirent *entry;

	if (!nodes)
		err(1, "%s", tree);
	while ((entry = readdir(nodes))) {
		char path[PATH_MAX];
		struct dirent *size;
		unsigned long kib;
		DIR *sizes;
		int node;

		if (sscanf(entry->d_name, "node%d", &node) != 1 ||
		    snprintf(path, sizeof(path), "%s/%s/hugepages", tree,
			     entry->d_name) >= PATH_MAX)
			continue;
		sizes = opendir(path);
		if (!sizes)
			continue;
		while ((size = readdir(sizes)))
			if (sscanf(size->d_name, "hugepages-%lukB", &kib) == 1)
				add_domain(tree, node, kib, epoll);
		closedir(sizes);
	}
	closedir(nodes);
	if (!nr_domains)
		errx(1, "%s: no node with huge pages", tree);
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = ask_to_stop };
	int cpus = sysconf(_SC_NPROCESSORS_ONLN);
	struct epoll_event events[16];
	double adapted;
	int epoll;

	if (argc != 2)
		errx(2, "usage: %s TREE", argv[0]);

	/* No SA_RESTART: a call that zeroes ends, too. */
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll < 0)
		err(1, "epoll");
	find_domains(argv[1], epoll);

	adapted = seconds();
	while (!stop) {
		/* A signal just before this is heard when the time is over. */
		int n = epoll_wait(epoll, events, 16, ADAPT_S * 1000);

		if (n < 0 && errno != EINTR)
			err(1, "epoll_wait");
		for (int i = 0; i < n; i++) {
			if (events[i].events & (EPOLLERR | EPOLLHUP))
				/* The node has gone: nothing left to watch. */
				epoll_ctl(epoll, EPOLL_CTL_DEL,
					  ((struct domain *)
					   events[i].data.ptr)->fd, NULL);
			else
				attend(events[i].data.ptr, cpus);
		}
		if (seconds() - adapted < ADAPT_S)
			continue;
		adapted = seconds();
		for (int i = 0; i < nr_domains; i++)
			adapt(&domains[i]);
	}
	return 0;
}
