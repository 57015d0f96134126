// SPDX-License-Identifier: GPL-2.0-only
/*
 * Zeroing without being asked. Needs hugetlb_zero_on_free=1 and
 * hugetlb_zero_at_growth=1 on the kernel's command line.
 */
#define _GNU_SOURCE
#include "hugetlb_zero_util.h"

#define PAGES	16

static struct pool pool;

static bool all_zeroed(void)
{
	struct hugepagectl_query q = pool_query(&pool);

	ksft_print_msg("total %llu free %llu zeroed %llu zeroable %llu\n", q.total,
		       q.free, q.zeroed, q.zeroable);
	return q.zeroed == PAGES && q.zeroable == 0;
}

int main(void)
{
	const char *line = read_text("/proc/cmdline") ?: "";
	struct hugepagectl_query before;
	char *p;
	int status;
	pid_t child;
	bool zero;

	ksft_print_header();
	if (!strstr(line, "hugetlb_zero_on_free=1") ||
	    !strstr(line, "hugetlb_zero_at_growth=1"))
		ksft_exit_skip("needs hugetlb_zero_on_free=1 hugetlb_zero_at_growth=1\n");
	if (geteuid() || !pool_open(&pool, 0, 21))
		ksft_exit_skip("needs root and a kernel with HUGETLB_ZEROED\n");
	ksft_set_plan(5);
	pool_bind(&pool);

	pool_refill(&pool, PAGES);
	ksft_test_result(all_zeroed(), "a pool that grows is zeroed\n");

	before = pool_query(&pool);
	p = pool_map(&pool, PAGES, MAP_PRIVATE);
	zero = all_bytes(p, PAGES * pool_page(&pool), 0);
	ksft_test_result(zero && pool_query(&pool).hits - before.hits == PAGES,
			 "its pages are zero\n");
	memset(p, 0x5a, PAGES * pool_page(&pool));
	munmap(p, PAGES * pool_page(&pool));
	ksft_test_result(all_zeroed(), "pages that are unmapped are zeroed\n");

	child = fork();
	if (child == 0) {
		p = pool_map(&pool, PAGES, MAP_PRIVATE);
		memset(p, 0xa5, PAGES * pool_page(&pool));
		/* Killed, it still has to zero what it leaves. */
		raise(SIGKILL);
	}
	waitpid(child, &status, 0);
	ksft_test_result(all_zeroed(), "pages of a killed process are zeroed\n");

	p = pool_map(&pool, PAGES, MAP_PRIVATE);
	ksft_test_result(all_bytes(p, PAGES * pool_page(&pool), 0),
			 "and are zero\n");
	munmap(p, PAGES * pool_page(&pool));
	pool_refill(&pool, 0);
	ksft_finished();
}
