// SPDX-License-Identifier: GPL-2.0-only
/*
 * Zeroing free folios in the context of the caller.
 *
 * While a folio is zeroed, it is off the free list and has one reference, so it can't
 * be allocated. It stays counted as free, so reservations and mmap() see no
 * difference. An allocation that finds no other free folio takes it back under
 * hugetlb_lock, see prezero_take_back().
 *
 * The zeroer writes units of HUGETLB_ZERO_UNIT, announced in job->state, with
 * interrupts disabled: the taker waits for the unit while it holds hugetlb_lock, and
 * an interrupt handler on the zeroer's CPU might spin on that lock. A job lives on the
 * stack of its zeroer, which takes hugetlb_lock once more before it returns.
 */
#include <linux/jiffies.h>
#include <linux/sched/signal.h>
#include <linux/task_work.h>
#include "mark.h"

/* Memory that is about to go offline. Protected by hugetlb_lock. */
static unsigned long prezero_leaving_start, prezero_leaving_end;

bool prezero_is_leaving(struct folio *folio)
{
	unsigned long pfn = folio_pfn(folio);

	return pfn < prezero_leaving_end &&
	       pfn + folio_nr_pages(folio) > prezero_leaving_start;
}

static void prezero_job_init(struct hugetlb_zero_job *job, struct folio *folio,
			     unsigned long done)
{
	job->folio = folio;
	job->done = done;
	job->last = jiffies;
	atomic_set(&job->state, HUGETLB_ZERO_JOB_IDLE);
}

static bool prezero_job_start(struct prezero_pool *pool,
			      struct hugetlb_zero_job *job)
{
	struct folio *folio = prezero_first_dirty(pool);
	unsigned long done;

	if (!folio)
		return false;
	done = prezero_unmark(folio);
	if (done)
		prezero_count(PREZERO_RESUMED);
	list_move(&folio->lru, &pool->zero.h->hugepage_activelist);
	folio_ref_unfreeze(folio, 1);
	clear_bit(HPG_freed, prezero_bits(folio));
	prezero_job_init(job, folio, done);
	list_add_tail(&job->node, &pool->zero.jobs);
	pool->zero.nr_zeroing++;
	hugetlb_zero_changed(&pool->zero);
	return true;
}

/*
 * Continue for a zeroer that has not run for a while and is between two units. When
 * it runs again, it finds its job taken.
 */
static bool prezero_job_adopt(struct prezero_pool *pool,
			      struct hugetlb_zero_job *job)
{
	struct hugetlb_zero_job *other;

	list_for_each_entry(other, &pool->zero.jobs, node) {
		if (time_before(jiffies, READ_ONCE(other->last) +
						 HUGETLB_ZERO_STARVED))
			continue;
		if (atomic_cmpxchg(&other->state, HUGETLB_ZERO_JOB_IDLE,
				   HUGETLB_ZERO_JOB_TAKEN) !=
		    HUGETLB_ZERO_JOB_IDLE)
			continue;
		prezero_job_init(job, other->folio, READ_ONCE(other->done));
		list_replace_init(&other->node, &job->node);
		prezero_count(PREZERO_RESUMED);
		return true;
	}
	return false;
}

/* Past the caches where that is faster; on return the stores are ordered. */
static void prezero_clear(struct folio *folio, unsigned long first,
			  unsigned long nr)
{
	void *addr = page_address(folio_page(folio, first));

#ifdef clear_pages_streaming
	clear_pages_streaming(addr, nr);
#else
	clear_pages(addr, nr);
#endif
}

/* Clear the next unit. False if the folio was taken or has a memory error. */
static bool prezero_job_unit(struct hugetlb_zero_job *job, unsigned long nr)
{
	unsigned long flags;
	bool ours = false;

	local_irq_save(flags);
	/* A full barrier: no store to the folio before it is announced. */
	if (atomic_cmpxchg(&job->state, HUGETLB_ZERO_JOB_IDLE,
			   HUGETLB_ZERO_JOB_WRITING) == HUGETLB_ZERO_JOB_IDLE) {
		if (!folio_test_hwpoison(job->folio)) {
			prezero_clear(job->folio, job->done, nr);
			WRITE_ONCE(job->done, job->done + nr);
			ours = true;
		}
		WRITE_ONCE(job->last, jiffies);
		/* Nor after it is said to be over. */
		atomic_set_release(&job->state, HUGETLB_ZERO_JOB_IDLE);
	}
	local_irq_restore(flags);
	return ours;
}

/*
 * A signal or task work is pending, which is handled on the return to user space.
 * Since 6.18 task work also throttles a cgroup. It must not run here, where the caller
 * holds the file: the call ends instead.
 */
static bool prezero_must_return(void)
{
	return signal_pending(current) || task_work_pending(current);
}

/* Each call clears a unit at least, so a caller that repeats it makes progress. */
static int prezero_job_clear(struct prezero_pool *pool,
			     struct hugetlb_zero_job *job)
{
	unsigned long nr = pages_per_huge_page(pool->zero.h);

	while (job->done < nr) {
		bool ours;

		if (!READ_ONCE(pool->zero.present))
			return -ENODEV;
		ours = prezero_job_unit(job, min_t(unsigned long,
						   nr - job->done,
						   HUGETLB_ZERO_UNIT));
		if (prezero_must_return())
			return -EINTR;
		if (!ours)
			return 0;
		cond_resched();
	}
	return 0;
}

static void prezero_job_end(struct prezero_pool *pool,
			    struct hugetlb_zero_job *job)
{
	list_del_init(&job->node);
	pool->zero.nr_zeroing--;
}

/*
 * Another task has a reference, for example memory_failure(). The folio can't go to
 * the free list: it counts as used from now on, and the last reference frees it.
 */
static void prezero_job_leave(struct prezero_pool *pool)
{
	struct hstate *h = pool->zero.h;

	h->free_huge_pages--;
	h->free_huge_pages_node[pool->zero.nid]--;
	hugetlb_zero_changed(&pool->zero);
}

static void prezero_folio_put(struct folio *folio)
{
#ifdef PREZERO_NR_HUGETLB
	/* free_huge_folio() subtracts this. */
	lruvec_stat_mod_folio(folio, NR_HUGETLB, folio_nr_pages(folio));
#endif
	folio_put(folio);
}

/* Returns whether there is one more zeroed folio. */
static bool prezero_job_finish(struct prezero_pool *pool,
			       struct hugetlb_zero_job *job)
{
	struct folio *folio = job->folio;
	bool zeroed = false, shared = false;

	spin_lock_irq(&hugetlb_lock);
	if (list_empty(&job->node)) {
		spin_unlock_irq(&hugetlb_lock);
		return false;
	}
	prezero_job_end(pool, job);
	if (folio_ref_freeze(folio, 1)) {
		zeroed = job->done == folio_nr_pages(folio) &&
			 !folio_test_hwpoison(folio);
		prezero_put(pool, folio, job->done);
	} else {
		shared = true;
		prezero_job_leave(pool);
	}
	spin_unlock_irq(&hugetlb_lock);
	if (shared)
		prezero_folio_put(folio);
	if (zeroed)
		prezero_count(PREZERO_ZEROED);
	return zeroed;
}

/* Take the folio from a job and put it on the free list, with its progress. */
static bool prezero_job_take(struct prezero_pool *pool,
			     struct hugetlb_zero_job *job)
{
	/* At most for the rest of a unit. */
	while (atomic_cmpxchg(&job->state, HUGETLB_ZERO_JOB_IDLE,
			      HUGETLB_ZERO_JOB_TAKEN) != HUGETLB_ZERO_JOB_IDLE)
		cpu_relax();
	if (!folio_ref_freeze(job->folio, 1)) {
		/* See prezero_job_leave(): its zeroer handles that. */
		atomic_set(&job->state, HUGETLB_ZERO_JOB_IDLE);
		return false;
	}
	prezero_job_end(pool, job);
	prezero_put(pool, job->folio, job->done);
	prezero_count(PREZERO_TAKEN);
	return true;
}

/* Take back the folio of the oldest job that can be taken. */
bool prezero_take_back(struct prezero_pool *pool)
{
	struct hugetlb_zero_job *job, *next;

	lockdep_assert_held(&hugetlb_lock);
	list_for_each_entry_safe(job, next, &pool->zero.jobs, node)
		if (prezero_job_take(pool, job))
			return true;
	return false;
}

/* Take zeroers off memory that goes offline, until called for 0 pages. */
void prezero_give_way(unsigned long start_pfn, unsigned long nr_pages)
{
	struct hugetlb_zero_job *job, *next;
	struct prezero_pool *pool;
	struct hstate *h;
	int nid;

	spin_lock_irq(&hugetlb_lock);
	prezero_leaving_start = start_pfn;
	prezero_leaving_end = start_pfn + nr_pages;
	for_each_hstate(h)
		for (nid = 0; nid < nr_node_ids; nid++) {
			pool = to_prezero(hugetlb_zero_pool(h, nid));
			list_for_each_entry_safe(job, next, &pool->zero.jobs,
						 node)
				if (prezero_is_leaving(job->folio))
					prezero_job_take(pool, job);
		}
	spin_unlock_irq(&hugetlb_lock);
}

/**
 * hugetlb_zero_run - zero free folios in the context of the caller
 * @zero: the pool
 * @nr: the largest number of folios to zero
 * @zeroed: set to the number of folios that were zeroed
 *
 * Concurrent callers work on different folios. When no dirty one is left, a caller
 * finishes the folio of a starved zeroer.
 *
 * Return: 0 if @nr folios were zeroed or no dirty one is left, -ENODEV if the node is
 * gone, -EINTR if the task has to return to user space first. @zeroed is valid in each
 * case, and progress on one more folio is kept.
 */
int hugetlb_zero_run(struct hugetlb_zero_pool *zero, u64 nr,
		     unsigned long *zeroed)
{
	struct prezero_pool *pool = to_prezero(zero);
	struct hugetlb_zero_job job;
	int err = 0;

	*zeroed = 0;
	while (!err && *zeroed < nr) {
		bool begun;

		if (!READ_ONCE(zero->present))
			return -ENODEV;
		spin_lock_irq(&hugetlb_lock);
		begun = prezero_job_start(pool, &job) ||
			prezero_job_adopt(pool, &job);
		spin_unlock_irq(&hugetlb_lock);
		if (!begun)
			return 0;
		err = prezero_job_clear(pool, &job);
		if (prezero_job_finish(pool, &job))
			++*zeroed;
	}
	return *zeroed < nr ? err : 0;
}
