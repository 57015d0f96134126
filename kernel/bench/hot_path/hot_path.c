// SPDX-License-Identifier: GPL-2.0-only
/*
 * hot_path - count the instructions that hugetlb_lock is held for
 *
 * The series' own C files, unchanged, and the two functions of mm/hugetlb.c that
 * move a folio out of its free list and back, compiled for user space: see twin.h
 * and hugetlb.h. A single-stepping processor counts what each hold of the lock
 * executes, in each state that a free list can be in. Compiled without
 * CONFIG_HUGETLB_ZEROED it counts what the kernel executes without the series.
 *
 * Prints one line for each count: its name, then the number.
 */
#include <signal.h>
#include <stdio.h>
#include "hugetlb.h"

#define FOLIOS	128
#define ZEROERS	64

static struct folio folios[FOLIOS];
static volatile unsigned long steps;

static void on_step(int signal)
{
	steps++;
}

static inline void trap(bool on)
{
	if (on)
		asm volatile("pushfq; orl $0x100, (%%rsp); popfq" ::: "memory", "cc");
	else
		asm volatile("pushfq; andl $~0x100, (%%rsp); popfq" ::: "memory", "cc");
}

/* The instructions that @code executes. */
#define COUNT(code) ({							\
	unsigned long empty__;						\
									\
	steps = 0;							\
	trap(true);							\
	trap(false);							\
	empty__ = steps;						\
	steps = 0;							\
	trap(true);							\
	code;								\
	trap(false);							\
	steps - empty__; })

static struct folio *take(void)
{
	struct hugetlb_zero_req req = { .want = true };

	return dequeue_hugetlb_folio_node_exact(&hstates[0], 1, &req);
}

/* One folio goes to a user that wants zero memory and comes back. */
static __attribute__((noinline)) unsigned long round_trip(void)
{
	struct hugetlb_zero_req req = { .want = true };
	struct folio *folio;

	return COUNT({
		folio = dequeue_hugetlb_folio_node_exact(&hstates[0], 1, &req);
		enqueue_hugetlb_folio(&hstates[0], folio);
	});
}

/* A folio of a process that exits comes back. */
static __attribute__((noinline)) unsigned long freed(void)
{
	struct folio *folio = take();

	return COUNT(enqueue_hugetlb_folio(&hstates[0], folio));
}

#ifdef CONFIG_HUGETLB_ZEROED
/* @nr zeroers work on a folio each: what they and others execute under the lock. */
static void count_with_zeroers(struct hugetlb_zero_pool *pool, int nr)
{
	struct hugetlb_zero_job jobs[ZEROERS], late;
	struct folio *taken[FOLIOS];
	int i, nr_taken = 0;

	for (i = 0; i < nr; i++)
		if (!hugetlb_zero_job_start(pool, &jobs[i]))
			exit(1);
	printf("freed-zeroers-%d %lu\n", nr, freed());

	/* A zeroer has done its folio, and starts on the next. */
	jobs[0].done = pages_per_huge_page(pool->h);
	printf("zeroer-%d %lu\n", nr, COUNT({
		hugetlb_zero_job_finish(pool, &jobs[0]);
		hugetlb_zero_job_start(pool, &jobs[0]);
	}));

	/* Only folios in work are left. */
	while (pool->nr_zeroed || hugetlb_zero_zeroable(pool))
		taken[nr_taken++] = take();
	/* One more zeroer finds none of them starved. */
	printf("late-zeroer-%d %lu\n", nr, COUNT({
		hugetlb_zero_job_start(pool, &late);
		hugetlb_zero_job_adopt(pool, &late);
	}));
	/* A user takes one of them. */
	printf("taken-zeroers-%d %lu\n", nr, COUNT(taken[nr_taken] = take()));
	nr_taken++;

	for (i = 0; i < nr; i++)
		hugetlb_zero_job_finish(pool, &jobs[i]);
	while (nr_taken)
		enqueue_hugetlb_folio(pool->h, taken[--nr_taken]);
}
#endif

int main(void)
{
	signal(SIGTRAP, on_step);
	fill(folios, FOLIOS);
	printf("never-zeroed %lu\n", round_trip());
	printf("freed %lu\n", freed());
#ifdef CONFIG_HUGETLB_ZEROED
	struct hugetlb_zero_pool *pool = hugetlb_zero_pool(&hstates[0], 1);
	unsigned long zeroed;

	if (hugetlb_zero_run(pool, 2, &zeroed) || zeroed != 2)
		return 1;
	/* Both are handed out, one by one, and come back dirty. */
	printf("zeroed %lu\n", round_trip());
	printf("last-zeroed %lu\n", round_trip());
	printf("used-up %lu\n", round_trip());
	hugetlb_zero_arm(pool, HUGETLB_ZERO_FILE_ZEROED);
	printf("awaited %lu\n", round_trip());
	/* The first change starts the work item, which is pending from then on. */
	printf("freed-awaited %lu\n", freed());
	pool->armed = 0;
	count_with_zeroers(pool, 1);
	count_with_zeroers(pool, 8);
	count_with_zeroers(pool, ZEROERS);
#endif
	return 0;
}
