// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * module_ways - each way off and onto the free list of a stock kernel with prezero.ko,
 * with exact counts
 *
 * Run as root, with verify=1, on a machine that nobody else takes huge pages of:
 * it sets the pools of node 0, and puts them back. What the selftest hugetlb_zero
 * of the series counts (faults, fallocate, copy on write, UFFDIO_COPY, migration by
 * move_pages(), demotion) is not counted here again.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tap.h"

#define PAGES		32
#define MIB2		(2UL << 20)
#define GIB		(1UL << 30)

#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE 101
#endif

#define NODE		"/sys/devices/system/node/node0/hugepages/"
#define OTHER_NODE	"/sys/devices/system/node/node1/hugepages/hugepages-2048kB/"
#define RESERVED	"/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages"
#define STATS		"/sys/module/prezero/parameters/stats"

/* The directory of the pool that is looked at. */
static const char *pool = "hugepages-2048kB";

static long read_number(const char *path)
{
	char text[32] = "";
	int fd = open(path, O_RDONLY);

	if (fd < 0)
		return -1;
	if (read(fd, text, sizeof(text) - 1) < 0)
		text[0] = 0;
	close(fd);
	return atol(text);
}

static bool write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return ok;
}

static const char *file(const char *name)
{
	static char path[256];

	snprintf(path, sizeof(path), NODE "%s/%s", pool, name);
	return path;
}

static long get(const char *name)
{
	return read_number(file(name));
}

static bool set(const char *name, long number)
{
	char text[32];

	snprintf(text, sizeof(text), "%ld", number);
	return write_text(file(name), text);
}

/* What the module has counted. */
static long stat_of(const char *name)
{
	char text[512] = " ", key[32], *at;
	int fd = open(STATS, O_RDONLY);

	if (fd < 0)
		bail_out(STATS);
	if (read(fd, text + 1, sizeof(text) - 2) < 0)
		bail_out(STATS);
	close(fd);
	snprintf(key, sizeof(key), " %s ", name);
	at = strstr(text, key);
	return at ? atol(at + strlen(key)) : -1;
}

/* An empty pool of @pages dirty pages, @zeroed of which are zeroed then. */
static void refill(long pages, long zeroed)
{
	set("nr_hugepages", 0);
	/* A closed io_uring unpins its pages a little later. */
	for (int i = 0; i < 200 && get("nr_hugepages"); i++)
		usleep(10000);
	set("nr_hugepages", pages);
	if (get("free_hugepages") != pages)
		bail_out("too few huge pages");
	set("zeroable_hugepages", zeroed);
	if (get("zeroed_hugepages") != zeroed)
		bail_out("cannot zero pages");
}

static bool is_zero(const unsigned long *at, size_t len)
{
	for (size_t i = 0; i < len / sizeof(*at); i++)
		if (at[i])
			return false;
	return true;
}

static long last_hits, last_misses;

static void begin_count(void)
{
	last_hits = get("zeroed_hits");
	last_misses = get("zeroed_misses");
}

/* Hits and misses since begin_count(). */
static bool counted(long hits, long misses)
{
	long new_hits = get("zeroed_hits") - last_hits;
	long new_misses = get("zeroed_misses") - last_misses;
	bool same = new_hits == hits && new_misses == misses;

	if (!same)
		printf("# hits %ld misses %ld, expected %ld and %ld\n",
		       new_hits, new_misses, hits, misses);
	return same;
}

static bool numbers(long zeroed, long zeroable)
{
	long z = get("zeroed_hugepages"), d = get("zeroable_hugepages");

	if (z != zeroed || d != zeroable)
		printf("# zeroed %ld zeroable %ld, expected %ld and %ld\n", z, d,
		       zeroed, zeroable);
	return z == zeroed && d == zeroable;
}

static void *map(size_t len, int flags)
{
	void *at = mmap(NULL, len, PROT_READ | PROT_WRITE,
			MAP_ANONYMOUS | MAP_HUGETLB | flags, -1, 0);

	return at == MAP_FAILED ? NULL : at;
}

static void test_populate(void)
{
	void *at;

	refill(PAGES, 20);
	begin_count();
	at = map(24 * MIB2, MAP_SHARED | MAP_POPULATE);
	result(at && counted(20, 4) && is_zero(at, 24 * MIB2) &&
	       numbers(0, PAGES - 24), "populate takes zeroed pages first");
	memset(at, 0xa5, 24 * MIB2);
	munmap(at, 24 * MIB2);
	result(numbers(0, PAGES), "pages that were used are dirty");
}

static void test_shm(void)
{
	int id = shmget(IPC_PRIVATE, 8 * MIB2, IPC_CREAT | SHM_HUGETLB | 0600);
	void *at = id < 0 ? (void *)-1 : shmat(id, NULL, 0);

	if (at == (void *)-1) {
		skip("a System V segment", "none to be had");
		return;
	}
	shmctl(id, IPC_RMID, NULL);
	refill(PAGES, 8);
	begin_count();
	result(is_zero(at, 8 * MIB2) && counted(8, 0) && numbers(0, PAGES - 8),
	       "a System V segment takes zeroed pages");
	memset(at, 0xa5, 8 * MIB2);
	shmdt(at);
}

/* A page that was taken and never used: what becomes of its mark. */
static void test_punch(void)
{
	int fd = memfd_create("ways", MFD_HUGETLB);

	refill(PAGES, PAGES);
	begin_count();
	if (fd < 0 || ftruncate(fd, 8 * MIB2) || fallocate(fd, 0, 0, 8 * MIB2)) {
		skip("fallocate and punch", "no memfd of huge pages");
		return;
	}
	result(counted(8, 0) && numbers(PAGES - 8, 0), "fallocate takes zeroed pages");
	fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 8 * MIB2);
	result(numbers(PAGES - 8, 8), "pages that were punched out are dirty");
	close(fd);
}

/* A child writes to what it shares with its parent: copies. */
static void test_fork(void)
{
	unsigned char *at;
	int status;
	pid_t child;

	refill(PAGES, 20);
	at = map(4 * MIB2, MAP_PRIVATE);
	if (!at)
		bail_out("mmap");
	for (int i = 0; i < 4; i++)
		at[i * MIB2] = 1;
	begin_count();
	child = fork();
	if (child == 0) {
		/* More than is reserved. */
		for (int i = 0; i < 4; i++)
			at[i * MIB2] = 2;
		_exit(0);
	}
	waitpid(child, &status, 0);
	result(!status && counted(0, 0) && get("zeroed_hugepages") == 16,
	       "a child that writes takes dirty pages");
	munmap(at, 4 * MIB2);
}

/* Fork copies a page that is pinned for I/O, for the child. */
static void test_pinned_fork(void)
{
	struct io_uring_params params = { 0 };
	int ring = syscall(SYS_io_uring_setup, 1, &params);
	struct iovec buffer = { .iov_len = 4096 };
	unsigned char *at;
	pid_t child;
	int status;

	refill(PAGES, 20);
	at = map(MIB2, MAP_PRIVATE);
	if (!at)
		bail_out("mmap");
	at[0] = 1;
	buffer.iov_base = at;
	if (ring < 0 || syscall(SYS_io_uring_register, ring,
				IORING_REGISTER_BUFFERS, &buffer, 1)) {
		skip("a fork of pinned pages", "no io_uring");
		munmap(at, MIB2);
		return;
	}
	begin_count();
	child = fork();
	if (child == 0)
		_exit(at[0] != 1 || get("free_hugepages") != PAGES - 2 ||
		      get("zeroed_hugepages") != 19);
	waitpid(child, &status, 0);
	result(!status && counted(0, 0) && numbers(19, PAGES - 20),
	       "a fork copies pinned pages to dirty ones");
	close(ring);
	munmap(at, MIB2);
}

static void test_mbind(void)
{
	unsigned long to = 2;
	int node = -1;
	long others;
	char *at;

	write_text(OTHER_NODE "nr_hugepages", "4");
	write_text(OTHER_NODE "zeroable_hugepages", "2");
	others = read_number(OTHER_NODE "free_hugepages");
	if (read_number(OTHER_NODE "zeroed_hugepages") != 2 || others < 3) {
		skip("mbind", "no second node with huge pages");
		return;
	}
	refill(PAGES, 20);
	at = map(MIB2, MAP_PRIVATE);
	if (!at)
		bail_out("mmap");
	memset(at, 0x33, MIB2);
	begin_count();
	if (syscall(SYS_mbind, at, MIB2, MPOL_BIND, &to, 8,
		    MPOL_MF_MOVE | MPOL_MF_STRICT))
		printf("# mbind: %s\n", strerror(errno));
	syscall(SYS_get_mempolicy, &node, NULL, 0, at, MPOL_F_NODE | MPOL_F_ADDR);
	printf("# on node %d, which has %ld free and %ld zeroed\n", node,
	       read_number(OTHER_NODE "free_hugepages"),
	       read_number(OTHER_NODE "zeroed_hugepages"));
	result(node == 1 && at[MIB2 - 1] == 0x33 && counted(0, 0) &&
	       numbers(19, PAGES - 19) &&
	       read_number(OTHER_NODE "zeroed_hugepages") == 2 &&
	       read_number(OTHER_NODE "free_hugepages") == others - 1,
	       "mbind() moves a page to a dirty one of the other node");
	munmap(at, MIB2);
	write_text(OTHER_NODE "nr_hugepages", "0");
}

static void test_soft_offline(void)
{
	char *at;
	int err;

	refill(PAGES, 20);
	at = map(MIB2, MAP_SHARED | MAP_POPULATE);
	if (!at)
		bail_out("mmap");
	begin_count();
	err = madvise(at, 4096, MADV_SOFT_OFFLINE) ? errno : 0;
	if (err == EINVAL || err == EPERM || err == EOPNOTSUPP) {
		skip("soft offline", "no memory failure");
	} else {
		/* Its content went to another page, a dirty one. */
		result(!err && counted(0, 0) && get("zeroed_hugepages") == 19 &&
		       is_zero((void *)at, MIB2),
		       "a page that goes offline softly is replaced by a dirty one");
	}
	munmap(at, MIB2);
}

static void test_memory_failure(void)
{
	int status;
	pid_t child;

	refill(PAGES, 20);
	child = fork();
	if (child == 0) {
		char *at = map(MIB2, MAP_SHARED | MAP_POPULATE);

		signal(SIGBUS, SIG_DFL);
		if (!at || madvise(at, 4096, MADV_HWPOISON))
			_exit(1);
		*(volatile char *)at;
		_exit(2);
	}
	waitpid(child, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 1) {
		skip("memory failure", "not here");
		return;
	}
	result(WIFSIGNALED(status) && get("zeroed_hugepages") == 19 &&
	       get("zeroed_hugepages") + get("zeroable_hugepages") <=
	       get("free_hugepages"),
	       "a page with a memory error is neither zeroed nor zeroable");
}

static void test_shrink(void)
{
	refill(PAGES, 10);
	set("nr_hugepages", 16);
	result(numbers(10, 6), "a pool shrinks by dirty pages");
	set("nr_hugepages", 4);
	result(numbers(4, 0), "and then by zeroed ones");
	set("nr_hugepages", PAGES);
	result(numbers(4, PAGES - 4), "pages that are added are dirty");
}

static void test_surplus(void)
{
	static const char overcommit[] = "/proc/sys/vm/nr_overcommit_hugepages";
	void *at;

	refill(8, 8);
	write_text(overcommit, "8");
	begin_count();
	at = map(12 * MIB2, MAP_PRIVATE);
	result(at && numbers(8, 4), "surplus pages of a reservation are dirty");
	result(at && is_zero(at, 12 * MIB2) && counted(8, 4) && numbers(0, 0),
	       "they are used after zeroed ones");
	munmap(at, 12 * MIB2);
	result(numbers(0, 8) && get("surplus_hugepages") == 0,
	       "they leave when they are free");
	write_text(overcommit, "0");
}

static void test_gigantic(void)
{
	void *at;

	pool = "hugepages-1048576kB";
	if (get("free_hugepages") < 1) {
		skip("a page of 1 GiB", "none");
		pool = "hugepages-2048kB";
		return;
	}
	set("zeroable_hugepages", 1);
	begin_count();
	at = map(GIB, MAP_PRIVATE | (30 << MAP_HUGE_SHIFT));
	result(at && is_zero(at, GIB) && counted(1, 0),
	       "a page of 1 GiB is zeroed once");
	memset(at, 0xa5, GIB);
	munmap(at, GIB);
	result(get("zeroed_hugepages") == 0, "and dirty when it was used");

	set("zeroable_hugepages", 1);
	if (write_text(file("demote"), "1")) {
		result(get("zeroed_hugepages") == 0, "it leaves its pool to be demoted");
		pool = "hugepages-2048kB";
		result(get("zeroed_hugepages") + get("zeroable_hugepages") ==
		       get("free_hugepages"), "its parts are in theirs");
		at = map(64 * MIB2, MAP_PRIVATE);
		result(at && is_zero(at, 64 * MIB2), "and zero for who takes them");
		munmap(at, 64 * MIB2);
	}
	pool = "hugepages-2048kB";
}

int main(void)
{
	long before = get("nr_hugepages");
	cpu_set_t cpus;

	/* Faults and surplus pages are local ones: those of the pools of node 0. */
	CPU_ZERO(&cpus);
	CPU_SET(0, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		bail_out("sched_setaffinity");
	test_populate();
	test_shm();
	test_punch();
	test_fork();
	test_pinned_fork();
	test_mbind();
	test_shrink();
	test_surplus();
	test_soft_offline();
	test_gigantic();
	result(read_number(RESERVED) == 0, "no page is left reserved");
	test_memory_failure();
	printf("# pages that are reserved after a memory error: %ld\n",
	       read_number(RESERVED));
	result(!write_text("/proc/sys/kernel/ftrace_enabled", "0") ||
	       read_number("/proc/sys/kernel/ftrace_enabled") != 0 ||
	       (write_text("/proc/sys/kernel/ftrace_enabled", "1"),
		stat_of("dirty") == 0),
	       "the hooks cannot be switched off");
	result(stat_of("unseen") == 0, "no page has left a list unseen");
	result(stat_of("dirty") == 0, "no mark was on a dirty page");
	set("nr_hugepages", before);
	return done();
}
