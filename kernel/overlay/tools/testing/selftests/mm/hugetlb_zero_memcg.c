// SPDX-License-Identifier: GPL-2.0-only
/*
 * A task at the limit of its memory cgroup is refused huge pages, fault by fault.
 * It must not use up the zeroed ones meanwhile: where the page is taken before it
 * is charged, it has to come back as zero as it was.
 *
 * Needs root, cgroup v2 at /sys/fs/cgroup, and its option
 * memory_hugetlb_accounting, which is switched on for the time of the test.
 */
#define _GNU_SOURCE
#include "hugetlb_zero_util.h"

#define PAGES	16
#define FAULTS	100

#define ROOT	"/sys/fs/cgroup"
#define GROUP	ROOT "/hugetlb_zero_memcg"

static struct pool pool;

static bool mount_option(const char *option)
{
	return !mount(NULL, ROOT, NULL, MS_REMOUNT, option);
}

static void on_bus(int signal)
{
	_exit(2);
}

/* A child in the group touches one page. Returns whether it was refused. */
static bool refused(void)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		char *p;

		if (write_text(GROUP "/cgroup.procs", "0"))
			_exit(1);
		signal(SIGBUS, on_bus);
		p = pool_map(&pool, 1, MAP_PRIVATE);
		if (!p)
			_exit(1);
		*(volatile char *)p = 1;
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		die("fork");
	if (!WIFEXITED(status) || WEXITSTATUS(status) == 1)
		ksft_exit_fail_msg("the child ended with %#x\n", status);
	return WEXITSTATUS(status) == 2;
}

int main(void)
{
	struct hugepagectl_query before, after;
	int i, nr_refused = 0;
	long pages;

	ksft_print_header();
	if (geteuid() || !pool_open(&pool, 0, 21))
		ksft_exit_skip("needs root and a kernel with HUGETLB_ZEROED\n");
	if (!mount_option("memory_hugetlb_accounting"))
		ksft_exit_skip("needs cgroup v2 with memory_hugetlb_accounting\n");
	write_text(ROOT "/cgroup.subtree_control", "+memory");
	if (mkdir(GROUP, 0755) && errno != EEXIST)
		die("mkdir " GROUP);
	/* Enough for the child itself, and for no huge page. */
	if (write_text(GROUP "/memory.max", "1572864"))
		ksft_exit_skip("needs the memory controller\n");
	ksft_set_plan(3);
	pool_bind(&pool);

	pages = pool_get(&pool, "nr_hugepages");
	pool_refill(&pool, PAGES);
	pool_zero(&pool, HUGEPAGECTL_ALL);
	before = pool_query(&pool);
	ksft_test_result(before.zeroed == PAGES, "the pool is zero\n");

	for (i = 0; i < FAULTS; i++)
		nr_refused += refused();
	after = pool_query(&pool);
	ksft_print_msg("%d of %d faults refused; zeroed %llu, before %llu\n",
		       nr_refused, FAULTS, after.zeroed, before.zeroed);
	ksft_test_result(nr_refused == FAULTS,
			 "a group at its limit is refused every page\n");
	ksft_test_result(after.free == before.free &&
			 after.zeroed == before.zeroed,
			 "and every zeroed page is still one\n");

	rmdir(GROUP);
	mount_option("");
	pool_refill(&pool, pages);
	ksft_finished();
}
