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

/* Enough that zeroing takes longer than looking. */
#define MANY	96

/* Pages that are added can be had before they are zero, and adding can be stopped. */
static void test_growth(void)
{
	struct hugepagectl_query q;
	bool early = false;
	double start;
	int status;
	pid_t child;

	pool_refill(&pool, 0);
	child = fork();
	if (child == 0) {
		pool_set_nr(&pool, "nr_hugepages", MANY);
		_exit(0);
	}
	start = seconds();
	do {
		q = pool_query(&pool);
		early |= q.free == MANY && q.zeroed < MANY;
	} while (!early && q.zeroed < MANY && seconds() - start < 30);
	ksft_test_result(early, "pages are free before they are zeroed\n");

	while (pool_query(&pool).zeroed < 2 && seconds() - start < 30)
		;
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	q = pool_query(&pool);
	ksft_test_result(q.total == MANY && q.zeroed < MANY &&
			 q.zeroed + q.zeroable == MANY,
			 "who is killed stops zeroing what it has added (%llu)\n",
			 q.zeroed);
}

/* A task that lives and frees much is killed. */
static void test_kill(void)
{
	struct hugepagectl_query q;
	double start = seconds();
	int status;
	pid_t child;

	pool_refill(&pool, MANY);
	child = fork();
	if (child == 0) {
		char *p = pool_map(&pool, MANY, MAP_PRIVATE);

		memset(p, 0x5a, MANY * pool_page(&pool));
		munmap(p, MANY * pool_page(&pool));
		pause();
	}
	/* All in use, then free and the first of them zero again. */
	while (pool_query(&pool).free && seconds() - start < 30)
		;
	do {
		q = pool_query(&pool);
	} while ((q.free < MANY || !q.zeroed) && seconds() - start < 30);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	q = pool_query(&pool);
	ksft_test_result(q.free == MANY && q.zeroed < MANY &&
			 q.zeroed + q.zeroable == MANY,
			 "who is killed stops zeroing what it has freed (%llu)\n",
			 q.zeroed);
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
	ksft_set_plan(8);
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
	test_growth();
	test_kill();
	ksft_finished();
}
