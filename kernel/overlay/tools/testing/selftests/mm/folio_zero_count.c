// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counts by how many ranges a fault clears its huge page, with the tracepoint
 * folio_zero:folio_zero_range. Nothing is timed: the counts are the same on any
 * machine, emulated ones included.
 *
 *	folio_zero_count [thp] [mthp] [2M] [1G]
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/perf_event.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../kselftest.h"

#define EVENT		"/events/folio_zero/folio_zero_range/id"
#define THP_SYSFS	"/sys/kernel/mm/transparent_hugepage/"
#define HUGE_SHIFT	26

/* What a cooperative kernel clears at most before it gives way. */
#define UNIT		(32UL << 20)

static size_t page;

static bool read_text(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY);
	ssize_t length = fd < 0 ? -1 : read(fd, text, size - 1);

	if (fd >= 0)
		close(fd);
	if (length < 0)
		return false;
	text[length] = 0;
	return true;
}

/* Does the scheduler preempt by itself? The chosen model is in parentheses. */
static bool preemptible(void)
{
	char text[128];

	if (!read_text("/sys/kernel/debug/sched/preempt", text, sizeof(text)))
		ksft_exit_skip("no /sys/kernel/debug/sched/preempt\n");
	return strstr(text, "(full)");
}

/* Counts events of this thread, in the kernel, that match @filter. */
static int counter(const char *filter)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_TRACEPOINT,
		.size = sizeof(attr),
		.disabled = 1,
	};
	char text[32];
	int fd;

	if (!read_text("/sys/kernel/tracing" EVENT, text, sizeof(text)))
		ksft_exit_skip("this kernel has no folio_zero:folio_zero_range\n");
	attr.config = strtoul(text, NULL, 10);
	fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
	if (fd < 0)
		ksft_exit_fail_perror("perf_event_open");
	if (filter && ioctl(fd, PERF_EVENT_IOC_SET_FILTER, filter))
		ksft_exit_fail_perror("PERF_EVENT_IOC_SET_FILTER");
	return fd;
}

/* All ranges, and those longer than a cooperative kernel may make them. */
static int all_ranges, long_ranges;

struct counts {
	uint64_t all;
	uint64_t too_long;
};

static void start(void)
{
	ioctl(all_ranges, PERF_EVENT_IOC_RESET, 0);
	ioctl(long_ranges, PERF_EVENT_IOC_RESET, 0);
	ioctl(all_ranges, PERF_EVENT_IOC_ENABLE, 0);
	ioctl(long_ranges, PERF_EVENT_IOC_ENABLE, 0);
}

static struct counts stop(void)
{
	struct counts counts;

	ioctl(all_ranges, PERF_EVENT_IOC_DISABLE, 0);
	ioctl(long_ranges, PERF_EVENT_IOC_DISABLE, 0);
	if (read(all_ranges, &counts.all, sizeof(counts.all)) != sizeof(counts.all) ||
	    read(long_ranges, &counts.too_long, sizeof(counts.too_long)) !=
	    sizeof(counts.too_long))
		ksft_exit_fail_perror("read of a counter");
	return counts;
}

/* Right, left and near: what is empty makes no range. */
static uint64_t parts(size_t size, size_t offset)
{
	size_t near = offset / page, last = size / page - 1;

	return 1 + (near > 2) + (near + 2 < last);
}

static void *map_aligned(size_t size, size_t align)
{
	char *mem = mmap(NULL, size + align, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (mem == MAP_FAILED)
		ksft_exit_fail_perror("mmap");
	return (char *)(((uintptr_t)mem + align - 1) & ~(align - 1));
}

static const struct { const char *name; unsigned int num, den; } touches[] = {
	{ "first", 0, 1 }, { "third", 1, 512 }, { "middle", 1, 2 }, { "last", 511, 512 },
};

static void test_thp(size_t size)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(touches); i++) {
		size_t offset = size / touches[i].den * touches[i].num;
		char *mem = map_aligned(size, size);
		struct counts counts;
		uint64_t want = parts(size, offset);

		madvise(mem, size, MADV_HUGEPAGE);
		start();
		((volatile char *)mem)[offset] = 1;
		counts = stop();
		ksft_print_msg("%zu pages, page %zu touched: %llu ranges\n",
			       size / page, offset / page,
			       (unsigned long long)counts.all);
		ksft_test_result(counts.all == want && counts.all <= 3,
				 "THP %zu KiB, touched %s: %llu ranges\n",
				 size / 1024, touches[i].name,
				 (unsigned long long)want);
		munmap(mem, size);
	}
}

static void test_mthp(size_t pmd)
{
	size_t size;

	for (size = 4 * page; size < pmd; size *= 2) {
		char path[128];
		int fd;
		unsigned int i;

		snprintf(path, sizeof(path), THP_SYSFS "hugepages-%zukB/enabled",
			 size / 1024);
		fd = open(path, O_WRONLY);
		if (fd < 0 || write(fd, "always", 6) != 6) {
			for (i = 0; i < ARRAY_SIZE(touches); i++)
				ksft_test_result_skip("THP %zu KiB\n", size / 1024);
			continue;
		}
		test_thp(size);
		if (write(fd, "never", 5) != 5)
			ksft_exit_fail_perror(path);
		close(fd);
	}
}

static int huge_memfd(size_t size)
{
	return memfd_create("folio_zero_count",
			    MFD_HUGETLB | (__builtin_ctzl(size) << HUGE_SHIFT));
}

static size_t free_pages(size_t size)
{
	char path[128], text[32];

	snprintf(path, sizeof(path),
		 "/sys/kernel/mm/hugepages/hugepages-%zukB/free_hugepages",
		 size / 1024);
	return read_text(path, text, sizeof(text)) ? strtoul(text, NULL, 10) : 0;
}

static bool have_page(size_t size)
{
	return free_pages(size) > 0;
}

static char *map_huge(size_t bytes, size_t size)
{
	char *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE |
			 MAP_ANONYMOUS | MAP_HUGETLB |
			 (__builtin_ctzl(size) << HUGE_SHIFT), -1, 0);

	if (mem == MAP_FAILED)
		ksft_exit_fail_perror("mmap of hugetlb");
	return mem;
}

/*
 * Use every free page: a pool that knows which of its pages are zero, as
 * those that init_on_alloc cleared, has nothing left to clear at a fault.
 */
static void soil(size_t size)
{
	size_t i, bytes = free_pages(size) * size;
	char *mem;

	if (!bytes)
		return;
	mem = map_huge(bytes, size);
	for (i = 0; i < bytes; i += size)
		mem[i] = 1;
	munmap(mem, bytes);
}

/* How many ranges a gigantic page is, whoever asks for it. */
static uint64_t gigantic(size_t size)
{
	return preemptible() ? 1 : size / UNIT;
}

static void test_hugetlb_fault(size_t size, bool is_gigantic)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(touches); i++) {
		size_t offset = size / touches[i].den * touches[i].num;
		uint64_t want = is_gigantic ? gigantic(size) : parts(size, offset);
		struct counts counts;
		char *mem;

		if (!have_page(size)) {
			ksft_test_result_skip("hugetlb fault: no page\n");
			continue;
		}
		mem = map_huge(size, size);
		start();
		((volatile char *)mem)[offset] = 1;
		counts = stop();
		ksft_print_msg("%zu pages, page %zu touched: %llu ranges, %llu over 32 MiB\n",
			       size / page, offset / page,
			       (unsigned long long)counts.all,
			       (unsigned long long)counts.too_long);
		ksft_test_result(counts.all == want &&
				 (preemptible() || !counts.too_long),
				 "hugetlb fault %zu KiB, touched %s: %llu ranges\n",
				 size / 1024, touches[i].name,
				 (unsigned long long)want);
		munmap(mem, size);
	}
}

static void test_fallocate(size_t size, bool is_gigantic)
{
	uint64_t want = is_gigantic ? gigantic(size) : parts(size, 0);
	struct counts counts;
	int fd;

	if (!have_page(size)) {
		ksft_test_result_skip("hugetlb fallocate: no page\n");
		return;
	}
	fd = huge_memfd(size);
	start();
	if (fd < 0 || fallocate(fd, 0, 0, size))
		ksft_exit_fail_perror("fallocate of hugetlb");
	counts = stop();
	ksft_test_result(counts.all == want && (preemptible() || !counts.too_long),
			 "hugetlb fallocate %zu KiB: %llu ranges\n", size / 1024,
			 (unsigned long long)want);
	close(fd);
}

int main(int argc, char **argv)
{
	bool all = argc == 1, do_thp = all, do_mthp = all, do_2m = all, do_1g = all;
	unsigned int plan = 0;
	char text[32], filter[64];
	size_t pmd, size;
	int i;

	for (i = 1; i < argc; i++) {
		do_thp |= !strcmp(argv[i], "thp");
		do_mthp |= !strcmp(argv[i], "mthp");
		do_2m |= !strcmp(argv[i], "2M");
		do_1g |= !strcmp(argv[i], "1G");
	}
	page = sysconf(_SC_PAGESIZE);
	if (!read_text(THP_SYSFS "hpage_pmd_size", text, sizeof(text)))
		ksft_exit_skip("no transparent huge pages\n");
	pmd = strtoul(text, NULL, 10);

	ksft_print_header();
	all_ranges = counter(NULL);
	snprintf(filter, sizeof(filter), "nr_pages > %lu", UNIT / page);
	long_ranges = counter(filter);
	for (size = 4 * page; do_mthp && size < pmd; size *= 2)
		plan += ARRAY_SIZE(touches);
	plan += do_thp * ARRAY_SIZE(touches);
	plan += (do_2m + do_1g) * (ARRAY_SIZE(touches) + 1);
	ksft_set_plan(plan);

	if (do_thp)
		test_thp(pmd);
	if (do_mthp)
		test_mthp(pmd);
	if (do_2m) {
		soil(2UL << 20);
		test_hugetlb_fault(2UL << 20, false);
		test_fallocate(2UL << 20, false);
	}
	if (do_1g) {
		soil(1UL << 30);
		test_hugetlb_fault(1UL << 30, true);
		test_fallocate(1UL << 30, true);
	}
	ksft_finished();
}
