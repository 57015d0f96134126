// SPDX-License-Identifier: GPL-2.0-only
/*
 * Who waits for a change in the number of zeroed hugetlb folios.
 *
 * Changes happen under hugetlb_lock and, when a large process exits, by the ten
 * thousand a second. So a change only notes that there was one and, if anybody
 * cares, starts a work item, which runs at most once per
 * HUGETLB_ZERO_SPACING_MS and tells each of those who wait not more often than
 * they want to hear.
 *
 * None is lost, because the two ends are closed:
 *
 * - A reader of a file arms it before it takes the value. Whatever changes after
 *   that finds it armed and leads to a notification, now or when the interval is
 *   over. Once notified the file is disarmed: everybody who polls it has been
 *   woken and has to read again, so there is nobody left to tell. Between the
 *   moment at which the files appear and the one at which the pool knows them it
 *   stays armed, see hugetlb_zero_register().
 * - A watch is a level: poll looks at the counters themselves, after it has
 *   queued itself. A watch that may not be told yet is looked at again when it
 *   may.
 */
#include <linux/jiffies.h>
#include <linux/minmax.h>
#include <linux/sysfs.h>
#include "hugetlb_zero_internal.h"

/* Least time between two runs of a pool's work item. */
#define HUGETLB_ZERO_SPACING_MS	10

static bool hugetlb_zero_below_low(struct hugetlb_zero_pool *pool)
{
	return pool->nr_zeroed < pool->low;
}

/* Start the work item, not before @when. */
static void hugetlb_zero_kick(struct hugetlb_zero_pool *pool, u64 when)
{
	u64 now = get_jiffies_64();

	mod_delayed_work(system_dfl_wq, &pool->work,
			 time_after64(when, now) ? when - now : 0);
}

/* A folio has changed its state, or come, or gone. */
void hugetlb_zero_changed(struct hugetlb_zero_pool *pool)
{
	bool below = hugetlb_zero_below_low(pool);

	lockdep_assert_held(&hugetlb_lock);
	if (pool->armed & BIT(HUGETLB_ZERO_FILE_ZEROABLE))
		pool->pending |= BIT(HUGETLB_ZERO_FILE_ZEROABLE);
	if (pool->armed & BIT(HUGETLB_ZERO_FILE_ZEROED) &&
	    (!pool->low || (below && !pool->below)))
		pool->pending |= BIT(HUGETLB_ZERO_FILE_ZEROED);
	pool->below = below;

	if (pool->changed || (!pool->pending && list_empty(&pool->watches)))
		return;
	pool->changed = true;
	hugetlb_zero_kick(pool, pool->next_run);
}

/* The value of @file is about to be read: who reads it may poll for the next. */
void hugetlb_zero_arm(struct hugetlb_zero_pool *pool,
		      enum hugetlb_zero_file file)
{
	lockdep_assert_held(&hugetlb_lock);
	pool->armed |= BIT(file);
	hugetlb_zero_track(pool);
}

void hugetlb_zero_set_low(struct hugetlb_zero_pool *pool, unsigned long low)
{
	spin_lock_irq(&hugetlb_lock);
	WRITE_ONCE(pool->low, low);
	hugetlb_zero_changed(pool);
	spin_unlock_irq(&hugetlb_lock);
}

static bool hugetlb_zero_ready(struct hugetlb_zero_watch *watch)
{
	struct hugetlb_zero_pool *pool = watch->pool;

	if (pool->nr_zeroed < watch->min_zeroed &&
	    (!watch->zeroable || hugetlb_zero_zeroable(pool)))
		return true;
	return pool->h->free_huge_pages_node[pool->nid] < watch->min_free;
}

bool hugetlb_zero_watch_ready(struct hugetlb_zero_watch *watch)
{
	lockdep_assert_held(&hugetlb_lock);
	return watch->pool && hugetlb_zero_ready(watch);
}

static void hugetlb_zero_notify_work(struct work_struct *work)
{
	struct hugetlb_zero_pool *pool =
		container_of(to_delayed_work(work), struct hugetlb_zero_pool,
			     work);
	struct kernfs_node *tell[NR_HUGETLB_ZERO_FILES] = { };
	struct hugetlb_zero_watch *watch;
	/* When to look again at what can't be told yet. */
	u64 now = get_jiffies_64(), again = U64_MAX;
	bool changed;
	int file;

	spin_lock_irq(&hugetlb_lock);
	changed = pool->changed;
	pool->changed = false;
	pool->next_run = now + msecs_to_jiffies(HUGETLB_ZERO_SPACING_MS);

	for (file = 0; file < NR_HUGETLB_ZERO_FILES; file++) {
		if (!(pool->pending & BIT(file)) || !pool->files[file])
			continue;
		if (time_before64(now, pool->next[file])) {
			again = min(again, pool->next[file]);
			continue;
		}
		pool->pending &= ~BIT(file);
		pool->armed &= ~BIT(file);
		pool->next[file] =
			now + msecs_to_jiffies(HUGETLB_ZERO_INTERVAL_MS);
		tell[file] = pool->files[file];
		kernfs_get(tell[file]);
	}

	list_for_each_entry(watch, &pool->watches, node) {
		watch->pending |= changed;
		if (!watch->pending)
			continue;
		if (!hugetlb_zero_ready(watch)) {
			watch->pending = false;
		} else if (time_before64(now, watch->next)) {
			again = min(again, watch->next);
		} else {
			watch->pending = false;
			watch->next = now + watch->interval;
			wake_up_interruptible(&watch->wait);
		}
	}

	/* A change may still pull it forward. */
	if (again != U64_MAX)
		hugetlb_zero_kick(pool, max(again, pool->next_run));
	spin_unlock_irq(&hugetlb_lock);

	for (file = 0; file < NR_HUGETLB_ZERO_FILES; file++) {
		if (!tell[file])
			continue;
		sysfs_notify_dirent(tell[file]);
		kernfs_put(tell[file]);
	}
}

void hugetlb_zero_watch_add(struct hugetlb_zero_watch *watch,
			    struct hugetlb_zero_pool *pool)
{
	lockdep_assert_held(&hugetlb_lock);
	watch->pool = pool;
	watch->next = get_jiffies_64();
	watch->pending = false;
	list_add(&watch->node, &pool->watches);
	hugetlb_zero_track(pool);
	/* Who polls already has to look at the new condition. */
	wake_up_interruptible(&watch->wait);
}

void hugetlb_zero_watch_del(struct hugetlb_zero_watch *watch)
{
	lockdep_assert_held(&hugetlb_lock);
	list_del_init(&watch->node);
	watch->pool = NULL;
	watch->gone = false;
}

/* Nobody waits, nothing has changed, and nobody has been told. */
static void hugetlb_zero_notify_reset(struct hugetlb_zero_pool *pool)
{
	int file;

	WRITE_ONCE(pool->low, 0);
	pool->below = false;
	pool->armed = 0;
	pool->pending = 0;
	pool->changed = false;
	pool->next_run = get_jiffies_64();
	for (file = 0; file < NR_HUGETLB_ZERO_FILES; file++)
		pool->next[file] = get_jiffies_64();
}

void hugetlb_zero_notify_init(struct hugetlb_zero_pool *pool)
{
	INIT_LIST_HEAD(&pool->watches);
	INIT_DELAYED_WORK(&pool->work, hugetlb_zero_notify_work);
	hugetlb_zero_notify_reset(pool);
}

/*
 * A node that comes starts anew: when it went, the work item was cancelled, and
 * what it was to do is not done.
 */
void hugetlb_zero_pool_appear(struct hugetlb_zero_pool *pool)
{
	spin_lock_irq(&hugetlb_lock);
	hugetlb_zero_notify_reset(pool);
	WRITE_ONCE(pool->present, true);
	spin_unlock_irq(&hugetlb_lock);
}

/* Stops zeroers within a unit, tells watchers, and nobody else from now on. */
void hugetlb_zero_pool_vanish(struct hugetlb_zero_pool *pool)
{
	struct hugetlb_zero_watch *watch, *next;

	spin_lock_irq(&hugetlb_lock);
	WRITE_ONCE(pool->present, false);
	pool->armed = 0;
	pool->pending = 0;
	WRITE_ONCE(pool->low, 0);
	list_for_each_entry_safe(watch, next, &pool->watches, node) {
		hugetlb_zero_watch_del(watch);
		watch->gone = true;
		wake_up_interruptible(&watch->wait);
	}
	spin_unlock_irq(&hugetlb_lock);
}
