// SPDX-License-Identifier: GPL-2.0-only
/*
 * kunit - the series' KUnit tests as a program of user space
 *
 * mm/hugetlb_zero_kunit.c and the files that it tests, unchanged: see twin.h. An
 * assertion that fails ends the program; an expectation is counted. Prints TAP.
 */
#include <stdio.h>
#include "mm/hugetlb_zero.h"

struct hstate hstates[HUGE_MAX_HSTATE];
struct task_struct bench_task;

struct kunit {
	int failed;
};

struct kunit_case {
	void (*run)(struct kunit *test);
	const char *name;
};

struct kunit_suite {
	const char *name;
	struct kunit_case *test_cases;
};

static void check(struct kunit *test, bool holds, bool asserted, const char *what, int line)
{
	if (holds)
		return;
	printf("# line %d: %s\n", line, what);
	test->failed++;
	if (asserted)
		exit(1);
}

#define HOLDS(test, asserted, what)	check(test, what, asserted, #what, __LINE__)
#define KUNIT_ASSERT_NOT_NULL(test, a)	HOLDS(test, true, (a) != NULL)
#define KUNIT_ASSERT_TRUE(test, a)	HOLDS(test, true, a)
#define KUNIT_ASSERT_EQ(test, a, b)	HOLDS(test, true, (a) == (b))
#define KUNIT_ASSERT_PTR_EQ(test, a, b)	HOLDS(test, true, (a) == (b))
#define KUNIT_ASSERT_GE(test, a, b)	HOLDS(test, true, (a) >= (b))
#define KUNIT_ASSERT_LT(test, a, b)	HOLDS(test, true, (a) < (b))
#define KUNIT_EXPECT_TRUE(test, a)	HOLDS(test, false, a)
#define KUNIT_EXPECT_FALSE(test, a)	HOLDS(test, false, !(a))
#define KUNIT_EXPECT_EQ(test, a, b)	HOLDS(test, false, (a) == (b))
#define KUNIT_EXPECT_PTR_EQ(test, a, b)	HOLDS(test, false, (a) == (b))
#define KUNIT_CASE(name)		{ name, #name }

/* What a test allocates stays until the program ends. */
#define kunit_kzalloc(test, size, gfp)	calloc(1, size)

struct rnd_state {
	u32 state;
};

static void prandom_seed_state(struct rnd_state *rnd, u64 seed)
{
	rnd->state = seed;
}

static u32 prandom_u32_state(struct rnd_state *rnd)
{
	rnd->state ^= rnd->state << 13;
	rnd->state ^= rnd->state >> 17;
	rnd->state ^= rnd->state << 5;
	return rnd->state;
}

/* A folio's memory lies behind it. */
#define folio_size(folio)	(folio_nr_pages(folio) * PAGE_SIZE)
#define folio_address(folio)	bench_address(folio)
#define folio_put(folio)	free(folio)

void *bench_address(struct folio *folio)
{
	return folio + 1;
}

static struct folio *folio_alloc(gfp_t gfp, unsigned int order)
{
	return calloc(1, sizeof(struct folio) + (PAGE_SIZE << order));
}

const void *memchr_inv(const void *addr, int c, size_t size)
{
	for (const unsigned char *p = addr; size--; p++)
		if (*p != (unsigned char)c)
			return p;
	return NULL;
}

static void flush_delayed_work(struct delayed_work *work)
{
	if (work->work.scheduled) {
		work->work.scheduled = 0;
		work->work.run(&work->work);
	}
}

static void cancel_delayed_work_sync(struct delayed_work *work)
{
	work->work.scheduled = 0;
}

static int run(struct kunit_suite *suite)
{
	int failed = 0, nr = 0;

	for (struct kunit_case *one = suite->test_cases; one->run; one++) {
		struct kunit test = { };

		one->run(&test);
		printf("%sok %d %s\n", test.failed ? "not " : "", ++nr, one->name);
		failed += !!test.failed;
	}
	printf("1..%d\n", nr);
	return failed;
}

#define kunit_test_suite(suite)	int main(void) { return run(&suite); }

#include "mm/hugetlb_zero_kunit.c"
