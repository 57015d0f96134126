/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * KUnit tests of hugetlb_zero.c, included at its end: the clusters of a free list,
 * the order in which folios are chosen, and how one is taken from its zeroer.
 */
#include <kunit/test.h>
#include <linux/gfp.h>
#include <linux/prandom.h>

#define NR_FAKES	40
/* Four units, with pages of 4 KiB. */
#define FAKE_ORDER	6

struct fakes {
	struct hstate *h;
	struct hugetlb_zero_pool *pool;
	struct folio *folios[NR_FAKES];
};

static struct fakes *make_fakes(struct kunit *test)
{
	struct fakes *fakes = kunit_kzalloc(test, sizeof(*fakes), GFP_KERNEL);
	int i;

	KUNIT_ASSERT_NOT_NULL(test, fakes);
	fakes->h = kunit_kzalloc(test, sizeof(*fakes->h), GFP_KERNEL);
	fakes->pool = kunit_kzalloc(test, sizeof(*fakes->pool), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, fakes->h);
	KUNIT_ASSERT_NOT_NULL(test, fakes->pool);
	fakes->h->order = FAKE_ORDER;
	fakes->pool->h = fakes->h;
	fakes->pool->present = true;
	INIT_LIST_HEAD(freelist(fakes->pool));
	fakes->pool->last_zeroed = freelist(fakes->pool);
	fakes->pool->last_zeroing = freelist(fakes->pool);
	INIT_LIST_HEAD(&fakes->pool->jobs);
	hugetlb_zero_notify_init(fakes->pool);
	for (i = 0; i < NR_FAKES; i++) {
		fakes->folios[i] = kunit_kzalloc(test, sizeof(struct folio),
						 GFP_KERNEL);
		KUNIT_ASSERT_NOT_NULL(test, fakes->folios[i]);
	}
	return fakes;
}

static void fake_add(struct fakes *fakes, struct folio *folio,
		     enum cluster cluster)
{
	folio_clear_hugetlb_zeroed(folio);
	folio_clear_hugetlb_zeroing(folio);
	if (cluster == ZEROED)
		folio_set_hugetlb_zeroed(folio);
	else if (cluster == ZEROING)
		folio_set_hugetlb_zeroing(folio);
	cluster_add(fakes->pool, folio);
}

static void fake_del(struct fakes *fakes, struct folio *folio)
{
	cluster_del(fakes->pool, folio);
	list_del(&folio->lru);
}

/* The list is zeroed, zeroing, dirty; the ends and numbers are right. */
static void check_clusters(struct kunit *test, struct fakes *fakes,
			   const unsigned int expected[NR_CLUSTERS])
{
	struct hugetlb_zero_pool *pool = fakes->pool;
	struct list_head *ends[NR_CLUSTERS];
	unsigned int nr[NR_CLUSTERS] = { };
	enum cluster cluster = ZEROED;
	struct folio *folio;

	ends[ZEROED] = freelist(pool);
	ends[ZEROING] = freelist(pool);
	list_for_each_entry(folio, freelist(pool), lru) {
		KUNIT_ASSERT_GE(test, folio_cluster(folio), cluster);
		cluster = folio_cluster(folio);
		nr[cluster]++;
		if (cluster == ZEROED)
			ends[ZEROED] = &folio->lru;
		if (cluster != DIRTY)
			ends[ZEROING] = &folio->lru;
	}
	KUNIT_ASSERT_EQ(test, nr[ZEROED], expected[ZEROED]);
	KUNIT_ASSERT_EQ(test, nr[ZEROING], expected[ZEROING]);
	KUNIT_ASSERT_EQ(test, nr[DIRTY], expected[DIRTY]);
	KUNIT_ASSERT_EQ(test, pool->nr_zeroed, expected[ZEROED]);
	KUNIT_ASSERT_EQ(test, pool->nr_zeroing, expected[ZEROING]);
	KUNIT_ASSERT_PTR_EQ(test, pool->last_zeroed, ends[ZEROED]);
	KUNIT_ASSERT_PTR_EQ(test, pool->last_zeroing, ends[ZEROING]);
}

/* Folios come, go and change their state at random. */
static void clusters_test(struct kunit *test)
{
	struct fakes *fakes = make_fakes(test);
	unsigned int expected[NR_CLUSTERS] = { };
	int where[NR_FAKES];
	struct rnd_state rnd;
	int i, n;

	prandom_seed_state(&rnd, 5);
	for (n = 0; n < NR_FAKES; n++)
		where[n] = -1;
	for (i = 0; i < 20000; i++) {
		n = prandom_u32_state(&rnd) % NR_FAKES;
		if (where[n] >= 0) {
			fake_del(fakes, fakes->folios[n]);
			expected[where[n]]--;
		}
		/* Now and then all of one kind are gone. */
		where[n] = (int)(prandom_u32_state(&rnd) % (NR_CLUSTERS + 1)) - 1;
		if (where[n] == i / 500 % NR_CLUSTERS)
			where[n] = -1;
		if (where[n] >= 0) {
			fake_add(fakes, fakes->folios[n], where[n]);
			expected[where[n]]++;
		}
		check_clusters(test, fakes, expected);
	}
}

/* Every free folio once, in the order of what is wanted. */
static void walk_test(struct kunit *test)
{
	static const enum cluster *const orders[] = { want_zero, want_any };
	int mask, i, o;

	for (mask = 0; mask < 1 << NR_CLUSTERS; mask++) {
		struct fakes *fakes = make_fakes(test);
		int nr = 0;

		for (i = 0; i < NR_FAKES; i++) {
			if (!(mask & BIT(i % NR_CLUSTERS)))
				continue;
			fake_add(fakes, fakes->folios[i], i % NR_CLUSTERS);
			nr++;
		}
		for (o = 0; o < ARRAY_SIZE(orders); o++) {
			struct folio *folio = first_from(fakes->pool, orders[o], 0);
			int seen = 0, at = 0;

			for (; folio; folio = next_from(fakes->pool, folio,
							orders[o])) {
				while (orders[o][at] != folio_cluster(folio)) {
					at++;
					KUNIT_ASSERT_LT(test, at, NR_CLUSTERS);
				}
				seen++;
			}
			KUNIT_ASSERT_EQ(test, seen, nr);
		}
	}
}

/* A folio with memory, free and dirty, full of a pattern. */
static struct folio *make_dirty(struct kunit *test, struct fakes *fakes)
{
	struct folio *folio = folio_alloc(GFP_KERNEL, FAKE_ORDER);

	KUNIT_ASSERT_NOT_NULL(test, folio);
	memset(folio_address(folio), 0xa5, folio_size(folio));
	folio->private = NULL;
	fake_add(fakes, folio, DIRTY);
	return folio;
}

/* So many of its pages are zero, the others as they were. */
static bool zero_up_to(struct folio *folio, unsigned long nr)
{
	void *addr = folio_address(folio);
	size_t zero = nr * PAGE_SIZE;

	return (!zero || !memchr_inv(addr, 0, zero)) &&
	       (zero == folio_size(folio) ||
		!memchr_inv(addr + zero, 0xa5, folio_size(folio) - zero));
}

static void start_test_job(struct kunit *test, struct fakes *fakes,
			   struct hugetlb_zero_job *job)
{
	bool started;

	spin_lock_irq(&hugetlb_lock);
	started = job_start(fakes->pool, job);
	spin_unlock_irq(&hugetlb_lock);
	KUNIT_ASSERT_TRUE(test, started);
	KUNIT_EXPECT_EQ(test, fakes->pool->nr_zeroing, 1);
}

static bool finish_test_job(struct fakes *fakes, struct hugetlb_zero_job *job)
{
	bool zeroed;

	spin_lock_irq(&hugetlb_lock);
	zeroed = job_finish(fakes->pool, job);
	spin_unlock_irq(&hugetlb_lock);
	return zeroed;
}

static void zero_test(struct kunit *test)
{
	struct fakes *fakes = make_fakes(test);
	struct folio *folio = make_dirty(test, fakes);
	struct hugetlb_zero_job job;

	start_test_job(test, fakes, &job);
	KUNIT_EXPECT_EQ(test, job_clear(fakes->pool, &job, false), 0);
	KUNIT_EXPECT_TRUE(test, finish_test_job(fakes, &job));
	KUNIT_EXPECT_TRUE(test, zero_up_to(folio, folio_nr_pages(folio)));
	KUNIT_EXPECT_EQ(test, fakes->pool->nr_zeroed, 1);
	KUNIT_EXPECT_EQ(test, fakes->pool->nr_zeroing, 0);
	spin_lock_irq(&hugetlb_lock);
	KUNIT_EXPECT_FALSE(test, job_start(fakes->pool, &job));
	spin_unlock_irq(&hugetlb_lock);
	fake_del(fakes, folio);
	folio->private = NULL;
	folio_put(folio);
}

/* A zeroer that was stopped leaves its folio dirty. */
static void stop_test(struct kunit *test)
{
	struct fakes *fakes = make_fakes(test);
	struct folio *folio = make_dirty(test, fakes);
	struct hugetlb_zero_job job;

	start_test_job(test, fakes, &job);
	KUNIT_EXPECT_TRUE(test, job_clear_unit(&job, 1));
	fakes->pool->present = false;
	KUNIT_EXPECT_EQ(test, job_clear(fakes->pool, &job, false), -ENODEV);
	KUNIT_EXPECT_FALSE(test, finish_test_job(fakes, &job));
	KUNIT_EXPECT_EQ(test, folio_cluster(folio), DIRTY);
	KUNIT_EXPECT_EQ(test, fakes->pool->nr_zeroing, 0);
	fake_del(fakes, folio);
	folio->private = NULL;
	folio_put(folio);
}

/* A folio is taken between two units: nothing is written to it any more. */
static void take_idle_test(struct kunit *test)
{
	struct fakes *fakes = make_fakes(test);
	struct folio *folio = make_dirty(test, fakes);
	struct hugetlb_zero_job job;
	unsigned long known;

	start_test_job(test, fakes, &job);
	KUNIT_EXPECT_TRUE(test, job_clear_unit(&job, 3));
	spin_lock_irq(&hugetlb_lock);
	known = take(fakes->pool, folio);
	list_del(&folio->lru);
	spin_unlock_irq(&hugetlb_lock);
	KUNIT_EXPECT_EQ(test, known, 3);
	KUNIT_EXPECT_FALSE(test, folio_test_hugetlb_zeroing(folio));
	KUNIT_EXPECT_FALSE(test, job_clear_unit(&job, 3));
	KUNIT_EXPECT_TRUE(test, zero_up_to(folio, 3));
	KUNIT_EXPECT_FALSE(test, finish_test_job(fakes, &job));
	KUNIT_EXPECT_EQ(test, fakes->pool->nr_zeroed, 0);
	KUNIT_EXPECT_EQ(test, fakes->pool->nr_zeroing, 0);
	folio->private = NULL;
	folio_put(folio);
}

/* A folio is taken in the middle of a unit: its taker has to wait. */
static void take_writing_test(struct kunit *test)
{
	struct fakes *fakes = make_fakes(test);
	struct folio *folio = make_dirty(test, fakes);
	struct hugetlb_zero_job job;
	unsigned long known;

	start_test_job(test, fakes, &job);
	KUNIT_EXPECT_TRUE(test, job_clear_unit(&job, 2));
	atomic_set(&job.state, JOB_WRITING);
	spin_lock_irq(&hugetlb_lock);
	known = take(fakes->pool, folio);
	list_del(&folio->lru);
	spin_unlock_irq(&hugetlb_lock);
	KUNIT_EXPECT_EQ(test, known, 2);
	KUNIT_EXPECT_TRUE(test, folio_test_hugetlb_zeroing(folio));
	KUNIT_EXPECT_EQ(test, atomic_read(&job.state), JOB_WRITING | JOB_TAKEN);
	KUNIT_EXPECT_FALSE(test, job_clear_unit(&job, 2));
	KUNIT_EXPECT_TRUE(test, zero_up_to(folio, 2));
	KUNIT_EXPECT_FALSE(test, finish_test_job(fakes, &job));
	folio->private = NULL;
	folio_put(folio);
}

static struct kunit_case hugetlb_zero_cases[] = {
	KUNIT_CASE(clusters_test),
	KUNIT_CASE(walk_test),
	KUNIT_CASE(zero_test),
	KUNIT_CASE(stop_test),
	KUNIT_CASE(take_idle_test),
	KUNIT_CASE(take_writing_test),
	{}
};

static struct kunit_suite hugetlb_zero_suite = {
	.name = "hugetlb_zero",
	.test_cases = hugetlb_zero_cases,
};

kunit_test_suite(hugetlb_zero_suite);
