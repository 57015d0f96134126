/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the tests of zeroed hugetlb pages share: one pool of 2 MiB pages (or of
 * another size), its counters, and how often the kernel has cleared a folio.
 */
#ifndef _HUGETLB_ZERO_UTIL_H
#define _HUGETLB_ZERO_UTIL_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <linux/types.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "../../../../include/uapi/linux/hugepagectl.h"
#include "../kselftest.h"

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif
#ifndef MFD_HUGETLB
#define MFD_HUGETLB 4U
#endif
#ifndef MPOL_BIND
#define MPOL_BIND 2
#endif

#define TREE		"/sys/devices/system/node"
#define TRACING		"/sys/kernel/tracing/"

struct pool {
	int node;
	int shift;
	int ctl;	/* /dev/hugepagectl */
};

static inline void die(const char *what)
{
	ksft_exit_fail_msg("%s: %s\n", what, strerror(errno));
}

/* Whole file as a string; NULL if it can't be read. */
static inline const char *read_text(const char *path)
{
	static char text[8192];
	int fd = open(path, O_RDONLY);
	ssize_t n;

	if (fd < 0)
		return NULL;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n < 0)
		return NULL;
	text[n] = '\0';
	return text;
}

/* 0 or -errno */
static inline int write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	int err = 0;

	if (fd < 0)
		return -errno;
	if (write(fd, text, strlen(text)) < 0)
		err = -errno;
	close(fd);
	return err;
}

static inline void pool_path(const struct pool *pool, const char *file,
			     char path[256])
{
	snprintf(path, 256, TREE "/node%d/hugepages/hugepages-%lukB/%s",
		 pool->node, 1UL << (pool->shift - 10), file);
}

static inline long pool_get(const struct pool *pool, const char *file)
{
	char path[256];
	const char *text;

	pool_path(pool, file, path);
	text = read_text(path);
	return text ? atol(text) : -1;
}

static inline int pool_set(const struct pool *pool, const char *file,
			   const char *value)
{
	char path[256];

	pool_path(pool, file, path);
	return write_text(path, value);
}

static inline int pool_set_nr(const struct pool *pool, const char *file,
			      long value)
{
	char text[32];

	snprintf(text, sizeof(text), "%ld", value);
	return pool_set(pool, file, text);
}

static inline bool pool_open(struct pool *pool, int node, int shift)
{
	pool->node = node;
	pool->shift = shift;
	pool->ctl = open("/dev/hugepagectl", O_RDONLY);
	return pool->ctl >= 0 && pool_get(pool, "zeroable_hugepages") >= 0;
}

/* All pages free again, and dirty as far as anybody knows. */
static inline void pool_refill(const struct pool *pool, long pages)
{
	if (pool_set_nr(pool, "nr_hugepages", 0) ||
	    pool_set_nr(pool, "nr_hugepages", pages) ||
	    pool_get(pool, "nr_hugepages") != pages)
		die("cannot fill the pool");
}

static inline struct hugepagectl_query pool_query(const struct pool *pool)
{
	struct hugepagectl_query query = {
		.size = sizeof(query), .node = pool->node,
		.page_shift = pool->shift,
	};

	if (ioctl(pool->ctl, HUGEPAGECTL_QUERY, &query))
		die("HUGEPAGECTL_QUERY");
	return query;
}

/* Pages zeroed, or -errno. */
static inline long pool_zero(const struct pool *pool, __u64 pages)
{
	struct hugepagectl_zero zero = {
		.size = sizeof(zero), .node = pool->node,
		.page_shift = pool->shift, .pages = pages,
	};

	if (ioctl(pool->ctl, HUGEPAGECTL_ZERO, &zero))
		return -errno;
	return zero.zeroed;
}

static inline size_t pool_page(const struct pool *pool)
{
	return (size_t)1 << pool->shift;
}

/* This task's memory comes from the pool's node only. */
static inline void pool_bind(const struct pool *pool)
{
	unsigned long mask = 1UL << pool->node;

	if (syscall(SYS_set_mempolicy, MPOL_BIND, &mask, sizeof(mask) * 8))
		die("set_mempolicy");
}

/* Huge pages of the pool's size, not touched yet; NULL if there are too few. */
static inline char *pool_map(const struct pool *pool, long pages, int flags)
{
	char *p = mmap(NULL, pages << pool->shift, PROT_READ | PROT_WRITE,
		       flags | MAP_ANONYMOUS | MAP_HUGETLB |
		       pool->shift << MAP_HUGE_SHIFT, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static inline bool all_bytes(const char *p, size_t len, char c)
{
	return *p == c && !memcmp(p, p + 1, len - 1);
}

/*
 * Folios of 2 MiB or more that the kernel has cleared for this thread, all or
 * the first part; -1: can't tell. See folio_zero:folio_zero_range: the range
 * that begins with the first page of a folio occurs once.
 */
static int clears_counter = -1;

static inline long clears(void)
{
	__u64 count;

	if (read(clears_counter, &count, sizeof(count)) != sizeof(count))
		return -1;
	return count;
}

static inline void count_clears(void)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_TRACEPOINT,
		.size = sizeof(attr),
	};
	const char *id;

	if (access(TRACING "events", R_OK))
		mount("tracefs", TRACING, "tracefs", 0, NULL);
	id = read_text(TRACING "events/folio_zero/folio_zero_range/id");
	if (id) {
		attr.config = strtoul(id, NULL, 10);
		clears_counter = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
	}
	if (clears_counter >= 0 &&
	    ioctl(clears_counter, PERF_EVENT_IOC_SET_FILTER, "!(pfn & 511)")) {
		close(clears_counter);
		clears_counter = -1;
	}
	if (clears() < 0)
		ksft_print_msg("no folio_zero:folio_zero_range: clears are not counted\n");
}

static inline double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

#endif /* _HUGETLB_ZERO_UTIL_H */
