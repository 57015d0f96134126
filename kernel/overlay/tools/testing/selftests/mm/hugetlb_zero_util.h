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
#define CGROUP		"/sys/fs/cgroup/"

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

/*
 * What a test changes is put back when it ends: the machine is somebody's, and
 * tests that come after need their pages. Last changed, first put back; then the
 * pools that have been opened, small pages first, of which the large ones may
 * have to be made again.
 */
static struct {
	void (*undo)(const char *path, const char *text);
	char path[256];
	char text[256];
} changes[16];
static int nr_changes;
static struct {
	struct pool pool;
	long pages;
} pools_before[16];
static int nr_pools_before;
static pid_t owner;

static inline void restore(void)
{
	/* Children leave it alone. */
	if (getpid() != owner)
		return;
	while (nr_changes) {
		nr_changes--;
		changes[nr_changes].undo(changes[nr_changes].path,
					 changes[nr_changes].text);
	}
	for (int shift = 0; shift < 64; shift++)
		for (int i = 0; i < nr_pools_before; i++)
			if (pools_before[i].pool.shift == shift)
				pool_set_nr(&pools_before[i].pool, "nr_hugepages",
					    pools_before[i].pages);
}

static inline void stopped(int signal)
{
	restore();
	_exit(128 + signal);
}

static inline void restore_at_end(void)
{
	if (owner)
		return;
	owner = getpid();
	atexit(restore);
	signal(SIGINT, stopped);
	signal(SIGTERM, stopped);
}

static inline void undo_at_end(void (*undo)(const char *, const char *),
			       const char *path, const char *text)
{
	restore_at_end();
	if (nr_changes == 16)
		ksft_exit_fail_msg("too many changes\n");
	changes[nr_changes].undo = undo;
	snprintf(changes[nr_changes].path, 256, "%s", path);
	snprintf(changes[nr_changes].text, 256, "%s", text);
	nr_changes++;
}

static inline void undo_write(const char *path, const char *text)
{
	write_text(path, text);
}

/* write_text(), and what the file said before is written back at the end. */
static inline int change_text(const char *path, const char *text)
{
	const char *before = read_text(path);

	if (before)
		undo_at_end(undo_write, path, before);
	return write_text(path, text);
}

static inline void undo_mount(const char *path, const char *type)
{
	umount(path);
}

/* Mount a file system of the kernel's where nobody has yet. */
static inline void need_mount(const char *type, const char *path,
			      const char *file)
{
	if (access(file, F_OK) && !mount(type, path, type, 0, NULL))
		undo_at_end(undo_mount, path, type);
}

/* Whether @text has the word @name: "cpu" is not in "cpuset". */
static inline bool has_word(const char *text, const char *name)
{
	size_t len = strlen(name);

	for (const char *at = text; (at = strstr(at, name)); at += len)
		if ((at == text || at[-1] == ' ') &&
		    (at[len] == ' ' || at[len] == '\n' || !at[len]))
			return true;
	return false;
}

/* Whether groups below the root of cgroup v2 have the controller @name. */
static inline bool cgroup_controller(const char *name)
{
	static const char control[] = CGROUP "cgroup.subtree_control";
	char word[32];
	const char *text;

	need_mount("cgroup2", "/sys/fs/cgroup", control);
	snprintf(word, sizeof(word), "+%s", name);
	text = read_text(control);
	if (!text)
		return false;
	if (has_word(text, name))
		return true;
	if (write_text(control, word))
		return false;
	word[0] = '-';
	undo_at_end(undo_write, control, word);
	return true;
}

static inline void pool_remember(const struct pool *pool)
{
	for (int i = 0; i < nr_pools_before; i++)
		if (pools_before[i].pool.node == pool->node &&
		    pools_before[i].pool.shift == pool->shift)
			return;
	restore_at_end();
	if (nr_pools_before == 16)
		ksft_exit_fail_msg("too many pools\n");
	pools_before[nr_pools_before].pool = *pool;
	pools_before[nr_pools_before].pages = pool_get(pool, "nr_hugepages");
	nr_pools_before++;
}

static inline bool pool_open(struct pool *pool, int node, int shift)
{
	pool->node = node;
	pool->shift = shift;
	pool->ctl = open("/dev/hugepagectl", O_RDWR);
	if (pool->ctl < 0 || pool_get(pool, "zeroable_hugepages") < 0)
		return false;
	pool_remember(pool);
	return true;
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

/*
 * Pages zeroed, or -errno. A call may end before it has zeroed all that there
 * are; only one that zeroes none says that there are none.
 */
static inline long pool_zero(const struct pool *pool, __u64 pages)
{
	struct hugepagectl_zero zero;
	__u64 done = 0;

	do {
		zero = (struct hugepagectl_zero) {
			.size = sizeof(zero), .node = pool->node,
			.page_shift = pool->shift, .pages = pages - done,
		};
		if (ioctl(pool->ctl, HUGEPAGECTL_ZERO, &zero))
			return done ? (long)done : -errno;
		done += zero.zeroed;
	} while (zero.zeroed && done < pages);
	return done;
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

/* How often this thread comes by a tracepoint; -1: can't tell. */
static inline long count(int counter)
{
	__u64 count;

	if (read(counter, &count, sizeof(count)) != sizeof(count))
		return -1;
	return count;
}

static inline int open_counter(const char *event, const char *filter)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_TRACEPOINT,
		.size = sizeof(attr),
	};
	int counter = -1;
	char path[256];
	const char *id;

	need_mount("tracefs", TRACING, TRACING "events");
	snprintf(path, sizeof(path), TRACING "events/%s/id", event);
	id = read_text(path);
	if (id) {
		attr.config = strtoul(id, NULL, 10);
		counter = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
	}
	if (counter >= 0 && filter &&
	    ioctl(counter, PERF_EVENT_IOC_SET_FILTER, filter)) {
		close(counter);
		counter = -1;
	}
	if (count(counter) < 0)
		ksft_print_msg("no %s: not counted\n", event);
	return counter;
}

/*
 * Folios of 2 MiB or more that the kernel has cleared for this thread, all or
 * the first part: the range that begins with the first page of a folio occurs
 * once. And units that this thread has zeroed in advance, past the caches.
 */
static int clears_counter = -1;
static int units_counter = -1;

static inline long clears(void)
{
	return count(clears_counter);
}

static inline long units(void)
{
	return count(units_counter);
}

static inline void count_clears(void)
{
	char filter[64];

	snprintf(filter, sizeof(filter), "!(pfn & %d)",
		 (2 << 20) / getpagesize() - 1);
	clears_counter = open_counter("folio_zero/folio_zero_range", filter);
	units_counter = open_counter("hugetlb_zero/hugetlb_zero_unit", NULL);
}

/* Use @pages pages of the pool, once. */
static inline void pool_soil(const struct pool *pool, long pages)
{
	unsigned long mask = 1UL << pool->node;
	char *p = pool_map(pool, pages, MAP_PRIVATE | MAP_NORESERVE);

	if (!p || syscall(SYS_mbind, p, pages << pool->shift, MPOL_BIND, &mask,
			  sizeof(mask) * 8, 0))
		die("cannot map the pool");
	for (long i = 0; i < pages; i++)
		p[i << pool->shift] = 1;
	munmap(p, pages << pool->shift);
}

/* All pages free again, and dirty, also where the page allocator clears them. */
static inline void pool_refill(const struct pool *pool, long pages)
{
	if (pool_set_nr(pool, "nr_hugepages", 0) ||
	    pool_set_nr(pool, "nr_hugepages", pages) ||
	    pool_get(pool, "nr_hugepages") != pages)
		die("cannot fill the pool");
	if (pool_query(pool).zeroed)
		pool_soil(pool, pages);
}

static inline double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

#endif /* _HUGETLB_ZERO_UTIL_H */
