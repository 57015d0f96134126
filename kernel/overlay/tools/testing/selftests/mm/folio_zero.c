// SPDX-License-Identifier: GPL-2.0-only
/*
 * Nobody gets memory with content: every way to a huge page, after the pages
 * have been made dirty, touched at several places, every byte looked at.
 *
 *	folio_zero [thp] [mthp] [SIZE...] [stress[=SECONDS]]
 *
 * SIZE is one of hugetlb's: 64K, 2M, 32M, 1G, ... Without arguments everything
 * is tested, of hugetlb 2M and 1G; what the machine lacks is skipped.
 * The pools are expected to be filled by whoever calls.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../kselftest.h"

#ifndef MADV_HUGEPAGE
#define MADV_HUGEPAGE	14
#endif
#define PATTERN		0xa5
#define HUGE_SHIFT	26
#define THP_SYSFS	"/sys/kernel/mm/transparent_hugepage/"

static const size_t kib = 1024, mib = 1024 * 1024, gib = 1024 * 1024 * 1024;
static size_t page;

/* Where a region is touched first. */
enum touch { FIRST, MIDDLE, LAST, RANDOM, TOUCHES };
static const char *const touch_name[] = { "first", "middle", "last", "random" };

static size_t touch_offset(enum touch touch, size_t size, unsigned int *seed)
{
	switch (touch) {
	case FIRST:
		return 0;
	case MIDDLE:
		return size / 2;
	case LAST:
		return size - 1;
	default:
		return ((size_t)rand_r(seed) * page + rand_r(seed) % page) % size;
	}
}

/* A way to get @size bytes of fresh memory. */
struct backing {
	const char *name;
	void *(*map)(size_t size, int *fd);
};

static void *map_anon(size_t size, int flags)
{
	void *mem = mmap(NULL, size, PROT_READ | PROT_WRITE,
			 MAP_ANONYMOUS | flags, -1, 0);

	return mem == MAP_FAILED ? NULL : mem;
}

static int huge_flags(size_t size)
{
	return MAP_HUGETLB | (__builtin_ctzl(size) << HUGE_SHIFT);
}

/* Aligned to its size, so that one huge page can take all of it. */
static void *map_thp(size_t size, int *fd)
{
	char *mem = map_anon(2 * size, MAP_PRIVATE | MAP_NORESERVE), *start;

	*fd = -1;
	if (!mem)
		return NULL;
	start = (char *)(((uintptr_t)mem + size - 1) & ~(size - 1));
	if (start > mem)
		munmap(mem, start - mem);
	munmap(start + size, mem + size - start);
	madvise(start, size, MADV_HUGEPAGE);
	return start;
}

static void *map_private(size_t size, int *fd)
{
	*fd = -1;
	return map_anon(size, MAP_PRIVATE | huge_flags(size));
}

static void *map_shared(size_t size, int *fd)
{
	*fd = -1;
	return map_anon(size, MAP_SHARED | huge_flags(size));
}

static void *map_file(size_t size, int fd)
{
	void *mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return mem == MAP_FAILED ? NULL : mem;
}

static int huge_memfd(size_t size)
{
	return memfd_create("folio_zero", MFD_HUGETLB |
			    (__builtin_ctzl(size) << HUGE_SHIFT));
}

static void *map_memfd(size_t size, int *fd)
{
	*fd = huge_memfd(size);
	if (*fd < 0 || ftruncate(*fd, size))
		return NULL;
	return map_file(size, *fd);
}

/* hugetlbfs_fallocate(): memfds of hugetlb are files of hugetlbfs. */
static void *map_fallocated(size_t size, int *fd)
{
	*fd = huge_memfd(size);
	if (*fd < 0 || fallocate(*fd, 0, 0, size))
		return NULL;
	return map_file(size, *fd);
}

static const struct backing thp = { "THP", map_thp };
static const struct backing hugetlb[] = {
	{ "hugetlb private", map_private },
	{ "hugetlb shared", map_shared },
	{ "hugetlb memfd", map_memfd },
	{ "hugetlb fallocate", map_fallocated },
};

static void unmap(void *mem, size_t size, int fd)
{
	if (mem)
		munmap(mem, size);
	if (fd >= 0)
		close(fd);
}

/* Offset of the first byte that is not zero, or @size. */
static size_t first_dirty(const void *mem, size_t size)
{
	const uint64_t *word = mem;
	size_t i, j, n = size / sizeof(*word);

	/* By blocks without a branch inside: four times faster under emulation. */
	for (i = 0; i < n; i += 64) {
		uint64_t any = 0;

		for (j = i; j < i + 64; j++)
			any |= word[j];
		if (any)
			break;
	}
	for (; i < n; i++)
		if (word[i])
			return i * sizeof(*word);
	return size;
}

/*
 * One page (or folio) per region, @count regions at once: fill them with a
 * pattern, free them, get them again. The second time must be zero everywhere.
 */
static bool dirty_then_check(const struct backing *backing, size_t size,
			     unsigned int count, enum touch touch,
			     unsigned int *seed)
{
	bool fine = true;
	void **mem = calloc(count, sizeof(*mem));
	int *fd = calloc(count, sizeof(*fd));
	unsigned int i;

	for (i = 0; i < count; i++) {
		mem[i] = backing->map(size, &fd[i]);
		if (!mem[i])
			ksft_exit_fail_msg("%s: no memory: %s\n", backing->name,
					   strerror(errno));
		memset(mem[i], PATTERN, size);
	}
	for (i = 0; i < count; i++)
		unmap(mem[i], size, fd[i]);

	for (i = 0; i < count; i++) {
		size_t offset = touch_offset(touch, size, seed), dirty;

		mem[i] = backing->map(size, &fd[i]);
		if (!mem[i])
			ksft_exit_fail_msg("%s: no memory: %s\n", backing->name,
					   strerror(errno));
		((volatile char *)mem[i])[offset] = 0;
		dirty = first_dirty(mem[i], size);
		if (dirty < size) {
			ksft_print_msg("%s: byte %zu of region %u is %#x, touched at %zu\n",
				       backing->name, dirty, i,
				       ((unsigned char *)mem[i])[dirty], offset);
			fine = false;
		}
		memset(mem[i], PATTERN, size);
	}
	for (i = 0; i < count; i++)
		unmap(mem[i], size, fd[i]);
	free(mem);
	free(fd);
	return fine;
}

static long read_number(const char *path)
{
	FILE *file = fopen(path, "r");
	long number = -1;

	if (file) {
		if (fscanf(file, "%ld", &number) != 1)
			number = -1;
		fclose(file);
	}
	return number;
}

static bool write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	bool fine = fd >= 0 && write(fd, text, strlen(text)) >= 0;

	if (fd >= 0)
		close(fd);
	return fine;
}

static long free_huge(size_t size)
{
	char path[128];

	snprintf(path, sizeof(path),
		 "/sys/kernel/mm/hugepages/hugepages-%zukB/free_hugepages",
		 size / kib);
	return read_number(path);
}

static void test_thp(size_t size)
{
	unsigned int seed = 1, count = 32 * mib / size;
	enum touch touch;

	for (touch = 0; touch < TOUCHES; touch++)
		ksft_test_result(dirty_then_check(&thp, size, count, touch, &seed),
				 "THP %zu KiB, touched %s\n", size / kib,
				 touch_name[touch]);
}

/* Enables one size of multi-size THP; false if the kernel doesn't have it. */
static bool set_mthp(size_t size, const char *value)
{
	char path[128];

	snprintf(path, sizeof(path), THP_SYSFS "hugepages-%zukB/enabled",
		 size / kib);
	return write_text(path, value);
}

static void test_mthp(void)
{
	size_t size, pmd = read_number(THP_SYSFS "hpage_pmd_size");
	enum touch touch;

	for (size = 4 * page; size < pmd; size *= 2) {
		if (set_mthp(size, "always")) {
			test_thp(size);
			set_mthp(size, "never");
			continue;
		}
		for (touch = 0; touch < TOUCHES; touch++)
			ksft_test_result_skip("THP %zu KiB, touched %s\n",
					      size / kib, touch_name[touch]);
	}
}

static void test_hugetlb(size_t size)
{
	long count = free_huge(size);
	unsigned int seed = 1, i;
	enum touch touch;

	for (i = 0; i < ARRAY_SIZE(hugetlb); i++) {
		for (touch = 0; touch < TOUCHES; touch++) {
			if (count <= 0) {
				ksft_test_result_skip("%s %zu KiB, touched %s: no page\n",
						      hugetlb[i].name, size / kib,
						      touch_name[touch]);
				continue;
			}
			ksft_test_result(dirty_then_check(&hugetlb[i], size, count,
							  touch, &seed),
					 "%s %zu KiB, touched %s\n",
					 hugetlb[i].name, size / kib,
					 touch_name[touch]);
		}
	}
}

/* ---- while others fault, fork and unmap ---- */

struct worker {
	pthread_t thread;
	unsigned int seed;
	const struct backing *backing;
	time_t until;
	unsigned long rounds;
	unsigned long no_memory;
	bool fine;
};

/* The child sees the parent's pattern, and fresh memory of its own as zero. */
static bool fork_and_check(struct worker *worker, unsigned char *mem, size_t size)
{
	int status;
	pid_t pid = fork();

	if (pid < 0)
		return true;
	if (!pid) {
		int fd;
		unsigned char *own;

		if (mem[size / 3] != PATTERN || mem[size - 1] != PATTERN)
			_exit(1);
		own = worker->backing->map(size, &fd);
		/* The pool may be empty now: then there is nothing to see. */
		if (own && madvise(own, size, 23 /* MADV_POPULATE_WRITE */) == 0 &&
		    first_dirty(own, size) < size)
			_exit(2);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid)
		return false;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void *work(void *arg)
{
	struct worker *worker = arg;
	const size_t size = 2 * mib;

	worker->fine = true;
	while (time(NULL) < worker->until && worker->fine) {
		size_t offset = touch_offset(RANDOM, size, &worker->seed);
		unsigned char *mem;
		int fd;

		mem = worker->backing->map(size, &fd);
		if (!mem || madvise(mem + offset / page * page, page,
				    23 /* MADV_POPULATE_WRITE */)) {
			/* Others have all pages: give up one's own and go on. */
			unmap(mem, size, fd);
			worker->no_memory++;
			usleep(1000);
			continue;
		}
		if (first_dirty(mem, size) < size)
			worker->fine = false;
		memset(mem, PATTERN, size);
		if (worker->rounds++ % 8 == 0 && !fork_and_check(worker, mem, size))
			worker->fine = false;
		unmap(mem, size, fd);
	}
	return NULL;
}

static void test_stress(unsigned int seconds)
{
	const unsigned int threads = 4;
	struct worker workers[8] = {};
	const struct backing *const backings[] = {
		&thp, &hugetlb[0], &hugetlb[1], &hugetlb[2],
	};
	unsigned long rounds = 0;
	bool fine = true;
	unsigned int i;

	for (i = 0; i < threads; i++) {
		workers[i].seed = i + 1;
		workers[i].backing = free_huge(2 * mib) > 0 ? backings[i] : &thp;
		workers[i].until = time(NULL) + seconds;
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			ksft_exit_fail_perror("pthread_create");
	}
	for (i = 0; i < threads; i++) {
		pthread_join(workers[i].thread, NULL);
		ksft_print_msg("%s: %lu rounds, %lu without memory\n",
			       workers[i].backing->name, workers[i].rounds,
			       workers[i].no_memory);
		rounds += workers[i].rounds;
		fine &= workers[i].fine;
	}
	ksft_test_result(fine && rounds >= threads,
			 "zero while others fault, fork and unmap\n");
}

/* 64K, 2M, 1G: bytes; 0 if it is none of these. */
static size_t parse_size(const char *text)
{
	char *unit;
	size_t size = strtoul(text, &unit, 10);

	if (!strcmp(unit, "K"))
		return size * kib;
	if (!strcmp(unit, "M"))
		return size * mib;
	return strcmp(unit, "G") ? 0 : size * gib;
}

int main(int argc, char **argv)
{
	bool all = argc == 1, do_thp = all, do_mthp = all;
	unsigned int stress = all ? 10 : 0, plan = 0, nr_sizes = 0;
	size_t pmd, size, sizes[8];
	unsigned int n;
	int i;

	page = sysconf(_SC_PAGESIZE);
	pmd = read_number(THP_SYSFS "hpage_pmd_size");
	for (i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "thp"))
			do_thp = true;
		else if (!strcmp(argv[i], "mthp"))
			do_mthp = true;
		else if (!strncmp(argv[i], "stress", 6))
			stress = argv[i][6] == '=' ? atoi(argv[i] + 7) : 10;
		else if (nr_sizes < ARRAY_SIZE(sizes) && parse_size(argv[i]))
			sizes[nr_sizes++] = parse_size(argv[i]);
		else
			ksft_exit_fail_msg("unknown argument %s\n", argv[i]);
	}
	if (all) {
		sizes[nr_sizes++] = 2 * mib;
		sizes[nr_sizes++] = gib;
	}

	ksft_print_header();
	for (size = 4 * page; do_mthp && size < pmd; size *= 2)
		plan += TOUCHES;
	plan += do_thp * TOUCHES + !!stress;
	plan += nr_sizes * TOUCHES * ARRAY_SIZE(hugetlb);
	ksft_set_plan(plan);

	if (do_thp)
		test_thp(pmd);
	if (do_mthp)
		test_mthp();
	for (n = 0; n < nr_sizes; n++)
		test_hugetlb(sizes[n]);
	if (stress)
		test_stress(stress);
	ksft_finished();
}
