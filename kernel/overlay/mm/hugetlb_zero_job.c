// SPDX-License-Identifier: GPL-2.0-only
/*
 * Zeroing free hugetlb folios, one job per folio and task, and taking a folio
 * away from whoever zeroes it. See hugetlb_zero.c for the rules.
 */
#include <linux/bitops.h>
#include <linux/highmem.h>
#include <linux/jiffies.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/task_work.h>
#include "hugetlb_zero_internal.h"
#include "internal.h"

#define CREATE_TRACE_POINTS
#include <trace/events/hugetlb_zero.h>

static void hugetlb_zero_job_init(struct hugetlb_zero_job *job,
				  struct folio *folio, unsigned long done)
{
	job->folio = folio;
	job->done = done;
	job->last = jiffies;
	atomic_set(&job->state, HUGETLB_ZERO_JOB_IDLE);
}

/*
 * Start on the dirty folio that has been free for longest, or go on with one
 * that a signal or task work has cut short: those are last in the list.
 */
bool hugetlb_zero_job_start(struct hugetlb_zero_pool *pool,
			    struct hugetlb_zero_job *job)
{
	struct list_head *entry = hugetlb_zero_freelist(pool);

	lockdep_assert_held(&hugetlb_lock);
	while (entry->prev != pool->last_zeroing) {
		struct folio *folio;

		entry = entry->prev;
		folio = list_entry(entry, struct folio, lru);
		if (folio_test_hugetlb_zero_skip(folio))
			continue;

		hugetlb_zero_del(pool, folio);
		list_del(entry);
		folio_set_hugetlb_zeroing(folio);
		hugetlb_zero_add(pool, folio);
		hugetlb_zero_job_init(job, folio, hugetlb_zero_done(folio));
		hugetlb_zero_set_done(folio, 0);
		list_add(&job->node, &pool->jobs);
		hugetlb_zero_changed(pool);
		return true;
	}
	return false;
}

/*
 * Go on where a zeroer left off that has not been given a CPU for a while. It is
 * between two units: in the middle of one it does run. When it runs again it
 * finds its job taken, and looks for another.
 */
bool hugetlb_zero_job_adopt(struct hugetlb_zero_pool *pool,
			    struct hugetlb_zero_job *job)
{
	struct hugetlb_zero_job *other;

	lockdep_assert_held(&hugetlb_lock);
	list_for_each_entry(other, &pool->jobs, node) {
		/* It may advance past the jiffies that we see. */
		if (time_before(jiffies, READ_ONCE(other->last) +
						 HUGETLB_ZERO_STARVED))
			continue;
		if (atomic_cmpxchg(&other->state, HUGETLB_ZERO_JOB_IDLE,
				   HUGETLB_ZERO_JOB_TAKEN) !=
		    HUGETLB_ZERO_JOB_IDLE)
			continue;
		hugetlb_zero_job_init(job, other->folio,
				      READ_ONCE(other->done));
		list_replace_init(&other->node, &job->node);
		return true;
	}
	return false;
}

/*
 * Past the caches where the architecture can: nobody touches the folio soon, and
 * who runs beside needs the caches. There is no user address yet; where it would
 * matter HUGETLB_ZEROED can't be configured. The stores are ordered before any
 * that follow, on return.
 */
static void hugetlb_zero_clear(struct folio *folio, unsigned long first,
			       unsigned long nr)
{
	struct page *page = folio_page(folio, first);

	trace_hugetlb_zero_unit(folio_pfn(folio) + first, nr);
#ifdef clear_pages_streaming
	clear_pages_streaming(page_address(page), nr);
#else
	clear_user_highpages(page, 0, nr);
#endif
}

/* Clear the next unit. False if the folio is no longer ours, or never to be. */
bool hugetlb_zero_job_unit(struct hugetlb_zero_job *job, unsigned long nr)
{
	bool ours = true;

	preempt_disable();
	/*
	 * Full barriers: no store to the folio before it is announced, nor
	 * after it is said to be over.
	 */
	if (atomic_cmpxchg(&job->state, HUGETLB_ZERO_JOB_IDLE,
			   HUGETLB_ZERO_JOB_WRITING) != HUGETLB_ZERO_JOB_IDLE) {
		ours = false;
		goto out;
	}
	if (folio_test_hwpoison(job->folio)) {
		ours = false;
	} else {
		hugetlb_zero_clear(job->folio, job->done, nr);
		WRITE_ONCE(job->done, job->done + nr);
	}
	WRITE_ONCE(job->last, jiffies);
	if (atomic_cmpxchg(&job->state, HUGETLB_ZERO_JOB_WRITING,
			   HUGETLB_ZERO_JOB_IDLE) != HUGETLB_ZERO_JOB_WRITING) {
		/* Taken meanwhile: the taker waits for this. */
		clear_bit_unlock(HPG_zeroing,
				 (unsigned long *)&job->folio->private);
		ours = false;
	}
out:
	preempt_enable();
	return ours;
}

/*
 * Whether something waits for the task to return to user space: a signal, or
 * task work. Since 6.18 a task whose cgroup has used up its CPU time is throttled
 * by task work, and not before it gets there. Task work runs where the task holds
 * nothing, so it is never run from here: the call ends.
 */
static bool hugetlb_zero_must_return(void)
{
	return signal_pending(current) || task_work_pending(current);
}

/*
 * Returns 0, or why the zeroer has to stop: -EINTR or -ENODEV. It clears a unit
 * before it looks for a signal, so that each call makes progress.
 */
int hugetlb_zero_job_clear(struct hugetlb_zero_pool *pool,
			   struct hugetlb_zero_job *job)
{
	unsigned long nr = pages_per_huge_page(pool->h);

	while (job->done < nr) {
		bool ours;

		if (!READ_ONCE(pool->present))
			return -ENODEV;
		ours = hugetlb_zero_job_unit(job, min_t(unsigned long,
							nr - job->done,
							HUGETLB_ZERO_UNIT));
		if (hugetlb_zero_must_return())
			return -EINTR;
		if (!ours)
			return 0;
		cond_resched();
	}
	return 0;
}

/* Returns whether there is one more zeroed folio. */
bool hugetlb_zero_job_finish(struct hugetlb_zero_pool *pool,
			     struct hugetlb_zero_job *job)
{
	struct folio *folio = job->folio;
	bool zeroed = false;

	lockdep_assert_held(&hugetlb_lock);
	if (list_empty(&job->node))
		return false;

	list_del(&job->node);
	hugetlb_zero_del(pool, folio);
	list_del(&folio->lru);
	folio_clear_hugetlb_zeroing(folio);
	if (folio_test_hwpoison(folio)) {
		hugetlb_zero_skip(pool, folio);
	} else if (job->done == pages_per_huge_page(pool->h)) {
		folio_set_hugetlb_zeroed(folio);
		zeroed = true;
	} else {
		hugetlb_zero_set_done(folio, job->done);
	}
	hugetlb_zero_add(pool, folio);
	hugetlb_zero_changed(pool);
	return zeroed;
}

/* Take a job's folio away. Returns how much of it is zero. */
unsigned long hugetlb_zero_job_take(struct hugetlb_zero_pool *pool,
				    struct folio *folio)
{
	struct hugetlb_zero_job *job;

	lockdep_assert_held(&hugetlb_lock);
	list_for_each_entry(job, &pool->jobs, node)
		if (job->folio == folio)
			break;
	if (WARN_ON_ONCE(list_entry_is_head(job, &pool->jobs, node))) {
		/* Nobody would clear it, and the taker wait for ever. */
		folio_clear_hugetlb_zeroing(folio);
		return 0;
	}
	list_del_init(&job->node);
	if (!(atomic_fetch_or(HUGETLB_ZERO_JOB_TAKEN, &job->state) &
	      HUGETLB_ZERO_JOB_WRITING))
		folio_clear_hugetlb_zeroing(folio);
	return READ_ONCE(job->done);
}

/**
 * hugetlb_zero_run - zero free folios in the context of the caller
 * @pool: of which pool
 * @nr: at most so many
 * @zeroed: how many it were
 *
 * Any number of callers may do this at once, each works on a folio of its own.
 * When no other is left, one that a starved zeroer holds is finished in its
 * place.
 *
 * @zeroed counts whatever this returns. What was done of one more folio stays
 * done: the next zeroer goes on from there.
 *
 * Return: 0 if @nr were zeroed or there are no dirty ones left, -ENODEV if the
 * node has gone away, -EINTR if the task has to return to user space first.
 */
int hugetlb_zero_run(struct hugetlb_zero_pool *pool, u64 nr,
		     unsigned long *zeroed)
{
	struct hugetlb_zero_job job;
	int err = 0;

	*zeroed = 0;
	spin_lock_irq(&hugetlb_lock);
	if (!pool->present)
		err = -ENODEV;
	while (!err && *zeroed < nr) {
		if (!hugetlb_zero_job_start(pool, &job) &&
		    !hugetlb_zero_job_adopt(pool, &job))
			break;
		spin_unlock_irq(&hugetlb_lock);
		err = hugetlb_zero_job_clear(pool, &job);
		spin_lock_irq(&hugetlb_lock);
		if (hugetlb_zero_job_finish(pool, &job))
			++*zeroed;
	}
	spin_unlock_irq(&hugetlb_lock);
	return *zeroed < nr ? err : 0;
}
