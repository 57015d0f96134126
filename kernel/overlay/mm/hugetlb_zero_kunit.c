// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of zeroed hugetlb folios: the clusters of a free list, the order in
 * which folios are chosen, and how one is taken from its zeroer.
 */
#include <kunit/test.h>
#include <linux/gfp.h>
#include <linux/prandom.h>
#include "hugetlb_zero.h"
#include "hugetlb_zero_internal.h"

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
	INIT_LIST_HEAD(&fakes->h->hugepage_freelists[0]);
	hugetlb_zero_pool_init(fakes->pool, fakes->h, 0);
	fakes->pool->present = true;
	for (i = 0; i < NR_FAKES; i++) {
		fakes->folios[i] = kunit_kzalloc(test, sizeof(struct folio),
						 GFP_KERNEL);
		KUNIT_ASSERT_NOT_NULL(test, fakes->folios[i]);
	}
	return fakes;
}

static void fake_add(struct fakes *fakes, struct folio *folio,
		     enum hugetlb_zero_cluster cluster)
{
	folio_clear_hugetlb_zeroed(folio);
	folio_clear_hugetlb_zeroing(folio);
	if (cluster == HUGETLB_ZERO_ZEROED)
		folio_set_hugetlb_zeroed(folio);
	else if (cluster == HUGETLB_ZERO_ZEROING)
		folio_set_hugetlb_zeroing(folio);
	hugetlb_zero_add(fakes->pool, folio);
}

static void fake_del(struct fakes *fakes, struct folio *folio)
{
	hugetlb_zero_del(fakes->pool, folio);
	list_del(&folio->lru);
}

/* The list is zeroed, zeroing, dirty; the ends and numbers are right. */
static void check_clusters(struct kunit *test, struct fakes *fakes,
			   const unsigned int expected[NR_HUGETLB_ZERO_CLUSTERS])
{
	struct hugetlb_zero_pool *pool = fakes->pool;
	struct list_head *ends[NR_HUGETLB_ZERO_CLUSTERS];
	unsigned int nr[NR_HUGETLB_ZERO_CLUSTERS] = { };
	enum hugetlb_zero_cluster cluster = HUGETLB_ZERO_ZEROED;
	struct folio *folio;

	ends[HUGETLB_ZERO_ZEROED] = hugetlb_zero_freelist(pool);
	ends[HUGETLB_ZERO_ZEROING] = hugetlb_zero_freelist(pool);
	list_for_each_entry(folio, hugetlb_zero_freelist(pool), lru) {
		KUNIT_ASSERT_GE(test, hugetlb_zero_cluster(folio), cluster);
		cluster = hugetlb_zero_cluster(folio);
		nr[cluster]++;
		if (cluster == HUGETLB_ZERO_ZEROED)
			ends[HUGETLB_ZERO_ZEROED] = &folio->lru;
		if (cluster != HUGETLB_ZERO_DIRTY)
			ends[HUGETLB_ZERO_ZEROING] = &folio->lru;
	}
	KUNIT_ASSERT_EQ(test, nr[HUGETLB_ZERO_ZEROED], expected[HUGETLB_ZERO_ZEROED]);
	KUNIT_ASSERT_EQ(test, nr[HUGETLB_ZERO_ZEROING], expected[HUGETLB_ZERO_ZEROING]);
	KUNIT_ASSERT_EQ(test, nr[HUGETLB_ZERO_DIRTY], expected[HUGETLB_ZERO_DIRTY]);
	KUNIT_ASSERT_EQ(test, pool->nr_zeroed, expected[HUGETLB_ZERO_ZEROED]);
	KUNIT_ASSERT_EQ(test, pool->nr_zeroing, expected[HUGETLB_ZERO_ZEROING]);
	KUNIT_ASSERT_PTR_EQ(test, pool->last_zeroed, ends[HUGETLB_ZERO_ZEROED]);
	KUNIT_ASSERT_PTR_EQ(test, pool->last_zeroing, ends[HUGETLB_ZERO_ZEROING]);
}

/* Folios come, go and change their state at random. */
static void clusters_test(struct kunit *test)
{
	struct fakes *fakes = make_fakes(test);
	unsigned int expected[NR_HUGETLB_ZERO_CLUSTERS] = { };
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
		where[n] = (int)(prandom_u32_state(&rnd) % (NR_HUGETLB_ZERO_CLUSTERS + 1)) - 1;
		if (where[n] == i / 500 % NR_HUGETLB_ZERO_CLUSTERS)
			where[n] = -1;
		if (where[n] >= 0) {
			fake_add(fakes, fakes->folios[n], where[n]);
			expected[where[n]]++;
		}
		check_clusters(test, fakes, expected);
	}
}

/* In which order clusters are looked through. */
static const enum hugetlb_zero_cluster test_orders[2][NR_HUGETLB_ZERO_CLUSTERS] = {
	[false] = {
		HUGETLB_ZERO_DIRTY, HUGETLB_ZERO_ZEROED, HUGETLB_ZERO_ZEROING,
	},
	[true] = {
		HUGETLB_ZERO_ZEROED, HUGETLB_ZERO_DIRTY, HUGETLB_ZERO_ZEROING,
	},
};

/* Every free folio once, in the order of what is wanted. */
static void walk_test(struct kunit *test)
{
	int mask, i, want;

	for (mask = 0; mask < 1 << NR_HUGETLB_ZERO_CLUSTERS; mask++) {
		struct fakes *fakes = make_fakes(test);
		int nr = 0;

		for (i = 0; i < NR_FAKES; i++) {
			if (!(mask & BIT(i % NR_HUGETLB_ZERO_CLUSTERS)))
				continue;
			fake_add(fakes, fakes->folios[i],
				 i % NR_HUGETLB_ZERO_CLUSTERS);
			nr++;
		}
		for (want = 0; want < 2; want++) {
			struct folio *folio =
				hugetlb_zero_pool_first(fakes->pool, want);
			int seen = 0, at = 0;

			while (folio) {
				while (test_orders[want][at] !=
				       hugetlb_zero_cluster(folio)) {
					at++;
					KUNIT_ASSERT_LT(test, at,
							NR_HUGETLB_ZERO_CLUSTERS);
				}
				seen++;
				folio = hugetlb_zero_pool_next(fakes->pool,
							       folio, want);
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
	hugetlb_zero_set_done(folio, 0);
	fake_add(fakes, folio, HUGETLB_ZERO_DIRTY);
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
	started = hugetlb_zero_job_start(fakes->pool, job);
	spin_unlock_irq(&hugetlb_lock);
	KUNIT_ASSERT_TRUE(test, started);
	KUNIT_EXPECT_EQ(test, fakes->pool->nr_zeroing, 1);
}

static bool finish_test_job(struct fakes *fakes, struct hugetlb_zero_job *job)
{
	bool zeroed;

	spin_lock_irq(&hugetlb_lock);
	zeroed = hugetlb_zero_job_finish(fakes->pool, job);
	spin_unlock_irq(&hugetlb_lock);
	return zeroed;
}

static void zero_test(struct kunit *test)
{
	struct fakes *fakes = make_fakes(test);
	struct folio *folio = make_dirty(test, fakes);
	struct hugetlb_zero_job job;

	start_test_job(test, fakes, &job);
	KUNIT_EXPECT_EQ(test, hugetlb_zero_job_clear(fakes->pool, &job), 0);
	KUNIT_EXPECT_TRUE(test, finish_test_job(fakes, &job));
	KUNIT_EXPECT_TRUE(test, zero_up_to(folio, folio_nr_pages(folio)));
	KUNIT_EXPECT_EQ(test, fakes->pool->nr_zeroed, 1);
	KUNIT_EXPECT_EQ(test, fakes->pool->nr_zeroing, 0);
	spin_lock_irq(&hugetlb_lock);
	KUNIT_EXPECT_FALSE(test, hugetlb_zero_job_start(fakes->pool, &job));
	spin_unlock_irq(&hugetlb_lock);
	fake_del(fakes, folio);
	folio->private = NULL;
	folio_put(folio);
}

/* A zeroer whose node goes leaves its folio dirty. */
static void stop_test(struct kunit *test)
{
	struct fakes *fakes = make_fakes(test);
	struct folio *folio = make_dirty(test, fakes);
	struct hugetlb_zero_job job;

	start_test_job(test, fakes, &job);
	KUNIT_EXPECT_TRUE(test, hugetlb_zero_job_unit(&job, 1));
	fakes->pool->present = false;
	KUNIT_EXPECT_EQ(test, hugetlb_zero_job_clear(fakes->pool, &job), -ENODEV);
	KUNIT_EXPECT_FALSE(test, finish_test_job(fakes, &job));
	KUNIT_EXPECT_EQ(test, hugetlb_zero_cluster(folio), HUGETLB_ZERO_DIRTY);
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
	KUNIT_EXPECT_TRUE(test, hugetlb_zero_job_unit(&job, 3));
	spin_lock_irq(&hugetlb_lock);
	known = hugetlb_zero_take(fakes->pool, folio);
	list_del(&folio->lru);
	spin_unlock_irq(&hugetlb_lock);
	KUNIT_EXPECT_EQ(test, known, 3);
	KUNIT_EXPECT_FALSE(test, folio_test_hugetlb_zeroing(folio));
	KUNIT_EXPECT_FALSE(test, hugetlb_zero_job_unit(&job, 3));
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
	KUNIT_EXPECT_TRUE(test, hugetlb_zero_job_unit(&job, 2));
	atomic_set(&job.state, HUGETLB_ZERO_JOB_WRITING);
	spin_lock_irq(&hugetlb_lock);
	known = hugetlb_zero_take(fakes->pool, folio);
	list_del(&folio->lru);
	spin_unlock_irq(&hugetlb_lock);
	KUNIT_EXPECT_EQ(test, known, 2);
	KUNIT_EXPECT_TRUE(test, folio_test_hugetlb_zeroing(folio));
	KUNIT_EXPECT_EQ(test, atomic_read(&job.state),
			HUGETLB_ZERO_JOB_WRITING | HUGETLB_ZERO_JOB_TAKEN);
	KUNIT_EXPECT_FALSE(test, hugetlb_zero_job_unit(&job, 2));
	KUNIT_EXPECT_TRUE(test, zero_up_to(folio, 2));
	KUNIT_EXPECT_FALSE(test, finish_test_job(fakes, &job));
	folio->private = NULL;
	folio_put(folio);
}

static bool adopt_test_job(struct fakes *fakes, struct hugetlb_zero_job *job)
{
	bool adopted;

	spin_lock_irq(&hugetlb_lock);
	adopted = hugetlb_zero_job_adopt(fakes->pool, job);
	spin_unlock_irq(&hugetlb_lock);
	return adopted;
}

/* A zeroer goes on where another one left off that is not given a CPU. */
static void adopt_test(struct kunit *test)
{
	struct fakes *fakes = make_fakes(test);
	struct folio *folio = make_dirty(test, fakes);
	struct hugetlb_zero_job starved, job;
	unsigned long nr = folio_nr_pages(folio);

	start_test_job(test, fakes, &starved);
	KUNIT_EXPECT_TRUE(test, hugetlb_zero_job_unit(&starved, 3));
	/* It advances while we look. */
	starved.last = jiffies + HZ;
	KUNIT_EXPECT_FALSE(test, adopt_test_job(fakes, &job));
	/* It does run. */
	starved.last = jiffies - 2 * HUGETLB_ZERO_STARVED;
	atomic_set(&starved.state, HUGETLB_ZERO_JOB_WRITING);
	KUNIT_EXPECT_FALSE(test, adopt_test_job(fakes, &job));
	atomic_set(&starved.state, HUGETLB_ZERO_JOB_IDLE);

	KUNIT_ASSERT_TRUE(test, adopt_test_job(fakes, &job));
	KUNIT_EXPECT_EQ(test, job.done, 3);
	KUNIT_EXPECT_EQ(test, fakes->pool->nr_zeroing, 1);
	/* The first one finds out, and leaves the folio alone. */
	KUNIT_EXPECT_FALSE(test, hugetlb_zero_job_unit(&starved, nr - 3));
	KUNIT_EXPECT_TRUE(test, zero_up_to(folio, 3));
	KUNIT_EXPECT_FALSE(test, finish_test_job(fakes, &starved));
	KUNIT_EXPECT_TRUE(test, folio_test_hugetlb_zeroing(folio));

	KUNIT_EXPECT_EQ(test, hugetlb_zero_job_clear(fakes->pool, &job), 0);
	KUNIT_EXPECT_TRUE(test, finish_test_job(fakes, &job));
	KUNIT_EXPECT_TRUE(test, zero_up_to(folio, nr));
	KUNIT_EXPECT_EQ(test, fakes->pool->nr_zeroed, 1);
	KUNIT_EXPECT_EQ(test, fakes->pool->nr_zeroing, 0);
	fake_del(fakes, folio);
	folio->private = NULL;
	folio_put(folio);
}

/* A list is tracked from its first folio that is not dirty to its last. */
static void track_test(struct kunit *test)
{
	struct fakes *fakes = make_fakes(test);
	struct hugetlb_zero_pool *pool = fakes->pool;
	struct folio *folio = make_dirty(test, fakes);
	struct hugetlb_zero_job job;

	KUNIT_EXPECT_FALSE(test, fakes->h->zero_tracked[0]);
	start_test_job(test, fakes, &job);
	KUNIT_EXPECT_TRUE(test, fakes->h->zero_tracked[0]);
	KUNIT_EXPECT_EQ(test, hugetlb_zero_job_clear(pool, &job), 0);
	KUNIT_EXPECT_TRUE(test, finish_test_job(fakes, &job));
	spin_lock_irq(&hugetlb_lock);
	hugetlb_zero_take(pool, folio);
	list_del(&folio->lru);
	spin_unlock_irq(&hugetlb_lock);
	KUNIT_EXPECT_FALSE(test, fakes->h->zero_tracked[0]);

	/* A reader waits for a change: it is tracked until the change is told. */
	spin_lock_irq(&hugetlb_lock);
	hugetlb_zero_arm(pool, HUGETLB_ZERO_FILE_ZEROED);
	KUNIT_EXPECT_TRUE(test, fakes->h->zero_tracked[0]);
	pool->armed = 0;
	folio_clear_hugetlb_zeroed(folio);
	hugetlb_zero_add(pool, folio);
	hugetlb_zero_take(pool, folio);
	list_del(&folio->lru);
	spin_unlock_irq(&hugetlb_lock);
	KUNIT_EXPECT_FALSE(test, fakes->h->zero_tracked[0]);
	cancel_delayed_work_sync(&pool->work);
	folio->private = NULL;
	folio_put(folio);
}

/* What was done of a folio before a signal came is not done again. */
static void resume_test(struct kunit *test)
{
	struct fakes *fakes = make_fakes(test);
	struct folio *folio = make_dirty(test, fakes);
	struct folio *other = make_dirty(test, fakes);
	struct hugetlb_zero_job job;
	unsigned long known;

	start_test_job(test, fakes, &job);
	KUNIT_ASSERT_PTR_EQ(test, job.folio, folio);
	KUNIT_EXPECT_TRUE(test, hugetlb_zero_job_unit(&job, 3));
	KUNIT_EXPECT_FALSE(test, finish_test_job(fakes, &job));
	KUNIT_EXPECT_EQ(test, hugetlb_zero_cluster(folio), HUGETLB_ZERO_DIRTY);
	/* Users are given the other one, which was never begun. */
	KUNIT_EXPECT_PTR_EQ(test, hugetlb_zero_pool_first(fakes->pool, true),
			    other);

	start_test_job(test, fakes, &job);
	KUNIT_EXPECT_PTR_EQ(test, job.folio, folio);
	KUNIT_EXPECT_EQ(test, job.done, 3);
	KUNIT_EXPECT_TRUE(test, hugetlb_zero_job_unit(&job, 2));
	KUNIT_EXPECT_FALSE(test, finish_test_job(fakes, &job));

	/* Who takes it is told, and nobody knows any more when it is free again. */
	spin_lock_irq(&hugetlb_lock);
	known = hugetlb_zero_take(fakes->pool, folio);
	list_del(&folio->lru);
	spin_unlock_irq(&hugetlb_lock);
	KUNIT_EXPECT_EQ(test, known, 5);
	KUNIT_EXPECT_TRUE(test, zero_up_to(folio, 5));
	fake_add(fakes, folio, HUGETLB_ZERO_DIRTY);
	KUNIT_EXPECT_EQ(test, hugetlb_zero_done(folio), 0);

	fake_del(fakes, folio);
	fake_del(fakes, other);
	folio->private = NULL;
	other->private = NULL;
	folio_put(folio);
	folio_put(other);
}

/* A node that went in the middle of telling tells again when it comes back. */
static void reappear_test(struct kunit *test)
{
	struct fakes *fakes = make_fakes(test);
	struct hugetlb_zero_pool *pool = fakes->pool;

	/* A change that has not been told yet, as its work was cancelled. */
	spin_lock_irq(&hugetlb_lock);
	hugetlb_zero_arm(pool, HUGETLB_ZERO_FILE_ZEROABLE);
	hugetlb_zero_changed(pool);
	spin_unlock_irq(&hugetlb_lock);
	hugetlb_zero_pool_vanish(pool);
	cancel_delayed_work_sync(&pool->work);

	hugetlb_zero_pool_appear(pool);
	spin_lock_irq(&hugetlb_lock);
	hugetlb_zero_arm(pool, HUGETLB_ZERO_FILE_ZEROABLE);
	hugetlb_zero_changed(pool);
	spin_unlock_irq(&hugetlb_lock);
	flush_delayed_work(&pool->work);
	KUNIT_EXPECT_FALSE(test, pool->changed);
	cancel_delayed_work_sync(&pool->work);
}

/* A change before the pool knows its files is told when it does. */
static void early_change_test(struct kunit *test)
{
	struct fakes *fakes = make_fakes(test);
	struct hugetlb_zero_pool *pool = fakes->pool;

	spin_lock_irq(&hugetlb_lock);
	hugetlb_zero_arm(pool, HUGETLB_ZERO_FILE_ZEROABLE);
	hugetlb_zero_changed(pool);
	spin_unlock_irq(&hugetlb_lock);
	flush_delayed_work(&pool->work);
	KUNIT_EXPECT_FALSE(test, pool->changed);
	KUNIT_EXPECT_EQ(test, pool->pending, BIT(HUGETLB_ZERO_FILE_ZEROABLE));
	KUNIT_EXPECT_EQ(test, pool->armed, BIT(HUGETLB_ZERO_FILE_ZEROABLE));
	cancel_delayed_work_sync(&pool->work);
}

static struct kunit_case hugetlb_zero_cases[] = {
	KUNIT_CASE(clusters_test),
	KUNIT_CASE(walk_test),
	KUNIT_CASE(zero_test),
	KUNIT_CASE(stop_test),
	KUNIT_CASE(take_idle_test),
	KUNIT_CASE(take_writing_test),
	KUNIT_CASE(adopt_test),
	KUNIT_CASE(track_test),
	KUNIT_CASE(resume_test),
	KUNIT_CASE(reappear_test),
	KUNIT_CASE(early_change_test),
	{}
};

static struct kunit_suite hugetlb_zero_suite = {
	.name = "hugetlb_zero",
	.test_cases = hugetlb_zero_cases,
};

kunit_test_suite(hugetlb_zero_suite);
