// SPDX-License-Identifier: GPL-2.0-only
/*
 * Zeroed hugetlb pages, one way out of the pool after the other: who wants zero
 * is given zero without the kernel clearing anything, who overwrites is given
 * dirty pages first, and what leaves or enters the pool in another way takes its
 * state along or loses it.
 */
#define _GNU_SOURCE
#include <linux/udmabuf.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include "hugetlb_zero_util.h"

#define PAGES	8

static struct pool pool;

/* @zeroed pages of PAGES are zeroed, the others are dirty, all are free. */
static void prepare(long zeroed)
{
	pool_refill(&pool, PAGES);
	if (pool_zero(&pool, zeroed) != zeroed)
		die("cannot zero");
}

static long zeroed(void)
{
	return pool_query(&pool).zeroed;
}

/* As many pages were cleared by the kernel since @before. */
static bool cleared(long before, long pages)
{
	return before < 0 || clears() - before == pages;
}

/* Touch, check and soil @pages pages of @p. */
static bool is_zero_then_soil(char *p, long pages)
{
	size_t len = pages * pool_page(&pool);
	bool zero = all_bytes(p, len, 0);

	memset(p, 0x5a, len);
	return zero;
}

/* Zeroing and faulting are two ways to clear, and each keeps to its own. */
static void test_ways(void)
{
	long cleared_before, units_before, per_page = pool_page(&pool) >> 16;
	char *p;
	bool ok;

	pool_refill(&pool, PAGES);
	if (clears() < 0 || units() < 0) {
		ksft_test_result_skip("no tracepoints\n");
		ksft_test_result_skip("no tracepoints\n");
		return;
	}
	cleared_before = clears();
	units_before = units();
	ok = pool_zero(&pool, 2) == 2 && clears() == cleared_before;
	ksft_test_result(ok && units() - units_before == 2 * per_page,
			 "zeroing is by units of 64 KiB, past the caches (%ld)\n",
			 units() - units_before);
	units_before = units();
	p = pool_map(&pool, PAGES, MAP_PRIVATE);
	ok = is_zero_then_soil(p, PAGES) &&
	     clears() - cleared_before == PAGES - 2;
	ksft_test_result(ok && units() == units_before,
			 "faulting is not (%ld)\n", units() - units_before);
	munmap(p, PAGES * pool_page(&pool));
}

static void test_fault(int flags, const char *name)
{
	struct hugepagectl_query before, after;
	long count;
	char *p;
	bool ok;

	prepare(4);
	before = pool_query(&pool);
	count = clears();
	p = pool_map(&pool, 4, flags);
	if (!p)
		die("mmap");
	ok = is_zero_then_soil(p, 4) && cleared(count, 0);
	after = pool_query(&pool);
	ok &= after.hits - before.hits == 4 && after.misses == before.misses &&
	      after.zeroed == 0;
	ksft_test_result(ok, "%s fault on zeroed pages clears none\n", name);

	munmap(p, 4 * pool_page(&pool));
	ksft_test_result(zeroed() == 0 &&
			 pool_get(&pool, "zeroable_hugepages") == PAGES,
			 "%s pages that were used are dirty\n", name);

	count = clears();
	p = pool_map(&pool, 4, flags);
	ok = is_zero_then_soil(p, 4) && cleared(count, 4);
	ok &= pool_query(&pool).misses - before.misses == 4;
	ksft_test_result(ok, "%s fault on dirty pages clears each\n", name);
	munmap(p, 4 * pool_page(&pool));
}

static int make_memfd(long pages)
{
	int fd = memfd_create("hugetlb_zero", MFD_HUGETLB | MFD_ALLOW_SEALING |
			      pool.shift << MAP_HUGE_SHIFT);

	if (fd < 0 || ftruncate(fd, pages * pool_page(&pool)))
		die("memfd_create");
	return fd;
}

/* Everything in @fd is zero. */
static bool file_is_zero(int fd, long pages)
{
	size_t len = pages * pool_page(&pool);
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	bool zero;

	if (p == MAP_FAILED)
		die("mmap of memfd");
	zero = is_zero_then_soil(p, pages);
	munmap(p, len);
	return zero;
}

static void test_fallocate(void)
{
	struct hugepagectl_query before, after;
	int fd = make_memfd(4);
	long count;
	bool ok;

	prepare(3);
	before = pool_query(&pool);
	count = clears();
	if (fallocate(fd, 0, 0, 4 * pool_page(&pool)))
		die("fallocate");
	after = pool_query(&pool);
	ok = cleared(count, 1) && after.hits - before.hits == 3 &&
	     after.misses - before.misses == 1 && file_is_zero(fd, 4);
	ksft_test_result(ok, "fallocate takes zeroed pages, clears the rest\n");
	close(fd);
}

/* Run on the first CPU of the pool's node. */
static void go_to_node(void)
{
	char path[128];
	cpu_set_t cpus;

	snprintf(path, sizeof(path), TREE "/node%d/cpulist", pool.node);
	CPU_ZERO(&cpus);
	CPU_SET(atoi(read_text(path) ?: "0"), &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		die("sched_setaffinity");
}

/*
 * udmabuf pins pages of a memfd that nobody has touched yet. They come from the
 * node of the CPU, whatever the memory policy says.
 */
static void test_pinned_memfd(void)
{
	int dev = open("/dev/udmabuf", O_RDWR), fd, buf;
	struct udmabuf_create create = { };
	struct hugepagectl_query before;
	cpu_set_t cpus;
	long count;
	char *p;
	bool ok;

	if (dev < 0) {
		ksft_test_result_skip("pinned memfd: no /dev/udmabuf\n");
		return;
	}
	prepare(2);
	sched_getaffinity(0, sizeof(cpus), &cpus);
	go_to_node();
	before = pool_query(&pool);
	fd = make_memfd(2);
	/* Reserves the pages, which pinning insists on. */
	p = mmap(NULL, 2 * pool_page(&pool), PROT_READ | PROT_WRITE,
		 MAP_SHARED, fd, 0);
	if (p == MAP_FAILED || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
		die("memfd");
	create.memfd = fd;
	create.size = 2 * pool_page(&pool);
	count = clears();
	buf = ioctl(dev, UDMABUF_CREATE, &create);
	if (buf < 0) {
		ksft_test_result_skip("pinned memfd: UDMABUF_CREATE: %s\n",
				      strerror(errno));
	} else {
		ok = cleared(count, 0) && is_zero_then_soil(p, 2);
		ok &= pool_query(&pool).hits - before.hits == 2;
		ksft_test_result(ok, "pinned memfd takes zeroed pages\n");
		close(buf);
	}
	munmap(p, 2 * pool_page(&pool));
	close(fd);
	close(dev);
	sched_setaffinity(0, sizeof(cpus), &cpus);
}

static void test_cow(void)
{
	char *p;
	int status;
	pid_t child;

	prepare(4);
	p = pool_map(&pool, 1, MAP_PRIVATE);
	p[0] = 1;	/* takes one of the four */
	child = fork();
	if (child == 0) {
		/* 3 zeroed, 4 dirty */
		p[0] = 2;
		_exit(!(p[0] == 2 && all_bytes(p + 1, pool_page(&pool) - 1, 0) &&
			zeroed() == 3));
	}
	waitpid(child, &status, 0);
	ksft_test_result(status == 0, "copy on write takes a dirty page\n");
	munmap(p, pool_page(&pool));

	prepare(PAGES);
	p = pool_map(&pool, 1, MAP_PRIVATE);
	memset(p, 3, pool_page(&pool));
	child = fork();
	if (child == 0) {
		p[0] = 2;
		_exit(!(p[0] == 2 && all_bytes(p + 1, pool_page(&pool) - 1, 3) &&
			zeroed() == PAGES - 2));
	}
	waitpid(child, &status, 0);
	ksft_test_result(status == 0, "copy on write takes a zeroed page if need be\n");
	munmap(p, pool_page(&pool));
}

static void test_uffd(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = {
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	struct uffdio_copy copy = { };
	size_t len = pool_page(&pool);
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	char *p, *source;
	bool ok;

	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api)) {
		ksft_test_result_skip("userfaultfd: %s\n", strerror(errno));
		return;
	}
	prepare(4);
	source = mmap(NULL, len, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(source, 0x77, len);
	p = pool_map(&pool, 1, MAP_PRIVATE);
	reg.range.start = (unsigned long)p;
	reg.range.len = len;
	copy.dst = (unsigned long)p;
	copy.src = (unsigned long)source;
	copy.len = len;
	ok = !ioctl(uffd, UFFDIO_REGISTER, &reg) &&
	     !ioctl(uffd, UFFDIO_COPY, &copy) && all_bytes(p, len, 0x77) &&
	     zeroed() == 4;
	ksft_test_result(ok, "UFFDIO_COPY takes a dirty page\n");
	munmap(p, len);
	munmap(source, len);
	close(uffd);
}

static void test_migrate(void)
{
	struct pool other;
	void *page;
	int to = !pool.node, status = -1;
	char *p;
	bool ok;

	if (!pool_open(&other, to, pool.shift)) {
		ksft_test_result_skip("migration: no second node\n");
		return;
	}
	pool_refill(&other, 4);
	prepare(2);
	if (pool_zero(&other, 2) != 2)
		die("cannot zero on the other node");
	p = pool_map(&pool, 1, MAP_PRIVATE);
	memset(p, 0x33, pool_page(&pool));
	page = p;
	ok = !syscall(SYS_move_pages, 0, 1, &page, &to, &status, 2 /* MOVE */) &&
	     status == to && all_bytes(p, pool_page(&pool), 0x33) &&
	     pool_query(&other).zeroed == 2 && pool_query(&other).free == 3;
	ksft_test_result(ok, "migration takes a dirty page of the target (%d)\n",
			 status);
	munmap(p, pool_page(&pool));
	/* A promise can be kept by any node: the tests below mean this one's. */
	pool_set_nr(&other, "nr_hugepages", 0);
	close(other.ctl);
}

static void test_shrink(void)
{
	prepare(3);
	pool_set_nr(&pool, "nr_hugepages", 3);
	ksft_test_result(zeroed() == 3, "a pool shrinks by dirty pages first\n");
	pool_set_nr(&pool, "nr_hugepages", 1);
	ksft_test_result(zeroed() == 1 && pool_query(&pool).free == 1,
			 "a pool shrinks by zeroed pages at last\n");
}

static void test_demote(void)
{
	struct pool gib;
	char path[256];
	long before;

	if (!pool_open(&gib, pool.node, 30) || pool_query(&gib).free < 1 ||
	    pool.shift != 21) {
		ksft_test_result_skip("demotion: no page of 1 GiB\n");
		ksft_test_result_skip("demotion: no page of 1 GiB\n");
		return;
	}
	/* Into the pages of this pool: there may be sizes in between. */
	pool_path(&gib, "demote_size", path);
	if (change_text(path, "2M"))
		die("demote_size");
	pool_refill(&pool, 0);
	before = zeroed();
	if (!pool_query(&gib).zeroed && pool_zero(&gib, 1) != 1)
		die("cannot zero a page of 1 GiB");
	ksft_test_result(pool_query(&gib).zeroed == 1 &&
			 !pool_set(&gib, "demote", "1") &&
			 zeroed() - before == 512,
			 "parts of a demoted page inherit that it is zero\n");
	/* All of it, read back by whoever gets it. */
	{
		char *p = pool_map(&pool, 512, MAP_PRIVATE);
		long count = clears();

		ksft_test_result(p && is_zero_then_soil(p, 512) &&
				 cleared(count, 0), "and are zero\n");
		if (p)
			munmap(p, 512 * pool_page(&pool));
	}
	close(gib.ctl);
}

static unsigned long pfn_of(const char *p)
{
	int fd = open("/proc/self/pagemap", O_RDONLY);
	__u64 entry = 0;

	if (fd < 0 || pread(fd, &entry, 8, (unsigned long)p / getpagesize() * 8) != 8)
		die("pagemap");
	close(fd);
	return entry & ((1ULL << 55) - 1);
}

static int poison(const char *file, unsigned long pfn)
{
	char path[128], text[32];

	snprintf(path, sizeof(path), "/sys/kernel/debug/hwpoison/%s", file);
	snprintf(text, sizeof(text), "%#lx", pfn);
	return write_text(path, text);
}

static void test_poison(void)
{
	struct hugepagectl_query q;
	unsigned long pfn;
	char *p, *reserve;

	need_mount("debugfs", "/sys/kernel/debug",
		   "/sys/kernel/debug/hwpoison");
	if (access("/sys/kernel/debug/hwpoison/corrupt-pfn", W_OK)) {
		ksft_test_result_skip("hwpoison: no injection\n");
		ksft_test_result_skip("hwpoison: no injection\n");
		ksft_test_result_skip("hwpoison: no injection\n");
		return;
	}
	pool_refill(&pool, PAGES);
	p = pool_map(&pool, 1, MAP_PRIVATE);
	p[0] = 1;
	pfn = pfn_of(p);
	munmap(p, pool_page(&pool));
	pool_zero(&pool, HUGEPAGECTL_ALL);

	/* A free page that is promised to somebody can't be dissolved. */
	reserve = pool_map(&pool, PAGES, MAP_PRIVATE);
	poison("corrupt-pfn", pfn);
	q = pool_query(&pool);
	ksft_test_result(q.free == PAGES && q.zeroed == PAGES - 1 &&
			 q.zeroable == 0,
			 "a page with a memory error is neither zeroed nor zeroable\n");
	ksft_test_result(pool_zero(&pool, HUGEPAGECTL_ALL) == 0,
			 "and is not zeroed\n");
	poison("unpoison-pfn", pfn);
	q = pool_query(&pool);
	ksft_test_result(q.zeroed == PAGES - 1 && q.zeroable == 1,
			 "without the error it is zeroable\n");
	munmap(reserve, PAGES * pool_page(&pool));
}

/* Reserved and not used: nothing was written, nothing is lost. */
static void test_unused(void)
{
	char *p;

	prepare(PAGES);
	p = pool_map(&pool, PAGES, MAP_PRIVATE);
	munmap(p, PAGES * pool_page(&pool));
	ksft_test_result(zeroed() == PAGES, "a reservation does not cost the zeroes\n");
}

static void test_surplus(void)
{
	char path[128], *p;
	bool cleared, ok;

	/* Whether the page allocator clears what it gives. */
	pool_set_nr(&pool, "nr_hugepages", 0);
	pool_set_nr(&pool, "nr_hugepages", PAGES);
	cleared = zeroed() == PAGES;
	snprintf(path, sizeof(path), "%s/hugepages-%lukB/nr_overcommit_hugepages",
		 "/sys/kernel/mm/hugepages", 1UL << (pool.shift - 10));
	prepare(PAGES);
	change_text(path, "2");
	p = pool_map(&pool, PAGES + 2, MAP_PRIVATE);
	if (!p) {
		ksft_test_result_skip("surplus: no memory\n");
		ksft_test_result_skip("surplus: no memory\n");
		return;
	}
	ksft_test_result(zeroed() == PAGES + (cleared ? 2 : 0),
			 "surplus pages that are reserved are %s\n",
			 cleared ? "zeroed" : "dirty");
	ok = is_zero_then_soil(p, PAGES + 2);
	munmap(p, (PAGES + 2) * pool_page(&pool));
	ok &= pool_query(&pool).total == PAGES && zeroed() == 0;
	ksft_test_result(ok, "surplus pages are cleared, come and go\n");
}

/* Who may only read the device may ask, and not zero. */
static void test_device(void)
{
	struct pool reader = pool;

	prepare(0);
	reader.ctl = open("/dev/hugepagectl", O_RDONLY);
	ksft_test_result(pool_query(&reader).zeroable == PAGES &&
			 pool_zero(&reader, 1) == -EPERM && zeroed() == 0,
			 "a device that is open to read answers, and zeroes none\n");
	close(reader.ctl);
}

int main(void)
{
	ksft_print_header();
	if (geteuid() || !pool_open(&pool, 0, 21))
		ksft_exit_skip("needs root and a kernel with HUGETLB_ZEROED\n");
	ksft_set_plan(25);
	pool_bind(&pool);
	count_clears();

	test_ways();
	test_fault(MAP_PRIVATE, "private");
	test_fault(MAP_SHARED, "shared");
	test_fallocate();
	test_pinned_memfd();
	test_cow();
	test_uffd();
	test_migrate();
	test_shrink();
	test_demote();
	test_poison();
	test_unused();
	test_surplus();
	test_device();
	ksft_finished();
}
