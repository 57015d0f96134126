// SPDX-License-Identifier: GPL-2.0-only
/*
 * hugetlb pages that are zero before they are asked for.
 *
 * Theory of operation
 * -------------------
 * A folio on the free list of a hugetlb pool is dirty, being zeroed or zeroed.
 * A zeroer (a task that writes to zeroable_hugepages or calls
 * HUGEPAGECTL_ZERO) turns dirty folios into zeroed ones, in its own context.
 * The folio stays free meanwhile: it is counted as free, and who needs it may
 * take it at any time.
 *
 *	              start                 finish
 *	    dirty ------------> zeroing -------------> zeroed
 *	      ^ ^                 | |                    |
 *	      | +-- signal, node -+ | taken              | taken
 *	      |     gone, poison    v                    v
 *	 enqueue                off the list         off the list
 *
 * How much of a dirty folio a zeroer had done when a signal came stays with the
 * folio, in hugetlb_zero_done(), and counts for who takes it or zeroes it next.
 *
 * The claim "zeroed" exists on the free list only. It ends when the folio is
 * taken, under hugetlb_lock, and its taker is told; it comes back only by
 * zeroing, with a folio that its taker never let anybody write to
 * (hugetlb_zero_return()), or with one that the page allocator has cleared
 * (hugetlb_zero_grown()). Nothing else, and no unknown state, makes a folio
 * zeroed.
 *
 * Who takes a folio that is being zeroed does not wait for the zeroer, which
 * may be throttled, stopped or of low priority. The zeroer writes in units of
 * HUGETLB_ZERO_UNIT with preemption disabled, each announced in
 * hugetlb_zero_job.state; the taker marks the job as taken, and at most the
 * unit that is on its way at that moment is still written. So a taker
 *
 *   - calls hugetlb_zero_dequeue() or hugetlb_zero_remove() under hugetlb_lock,
 *   - calls hugetlb_zero_taken() or hugetlb_zero_settle() after it has dropped
 *     it, before it touches the folio or its struct pages: at most one unit's
 *     time.
 *
 * The lock must be dropped first: an interrupt on the zeroer's CPU may want it
 * in the middle of a unit.
 *
 * Another zeroer may take it in the same way, and go on where the first one
 * left off, if that one has not been given a CPU for HUGETLB_ZERO_STARVED and
 * is between two units.
 *
 * A node whose free folios are all dirty, and where no task waits for a change,
 * is not tracked: allocating and freeing a folio costs a test of one byte there,
 * see hugetlb_zero_tracked(). The first job, watch or reader of a file changes
 * that, and needs no walk of the list: all its folios are what they were, dirty.
 *
 * Locking: hugetlb_lock protects everything but the content of folios.
 * Zeroers hold it once per folio, see hugetlb_zero_run().
 */
#include <linux/bitops.h>
#include <linux/highmem.h>
#include <linux/init.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include "hugetlb_zero.h"
#include "hugetlb_zero_internal.h"

static struct hugetlb_zero_pool *
hugetlb_zero_pools[HUGE_MAX_HSTATE] __ro_after_init;

struct hugetlb_zero_pool *hugetlb_zero_pool(struct hstate *h, int nid)
{
	return &hugetlb_zero_pools[hstate_index(h)][nid];
}

struct folio *hugetlb_zero_first(struct hstate *h, int nid, bool want)
{
	lockdep_assert_held(&hugetlb_lock);
	return hugetlb_zero_pool_first(hugetlb_zero_pool(h, nid), want);
}

struct folio *hugetlb_zero_next(struct hstate *h, struct folio *folio, bool want)
{
	return hugetlb_zero_pool_next(hugetlb_zero_pool(h, folio_nid(folio)),
				      folio, want);
}

/*
 * Into and out of a free list that is tracked, or has to be from now on. A list
 * that is not has no cluster but the dirty one, so that a folio which comes or
 * goes there leaves the ends of the clusters and all numbers as they are.
 */

/* Back to a plain list, when its last folio that was not dirty has left. */
static void hugetlb_zero_untrack(struct hugetlb_zero_pool *pool)
{
	if (!pool->nr_zeroed && !pool->nr_zeroing && !pool->nr_skipped &&
	    !hugetlb_zero_awaited(pool))
		pool->h->zero_tracked[pool->nid] = false;
}

void __hugetlb_zero_enqueue(struct hstate *h, int nid, struct folio *folio)
{
	struct hugetlb_zero_pool *pool = hugetlb_zero_pool(h, nid);

	lockdep_assert_held(&hugetlb_lock);
	list_del(&folio->lru);
	if (folio_test_hwpoison(folio)) {
		folio_clear_hugetlb_zeroed(folio);
		hugetlb_zero_skip(pool, folio);
	}
	hugetlb_zero_add(pool, folio);
	hugetlb_zero_changed(pool);
	hugetlb_zero_untrack(pool);
}

/* Common to both ways out. Returns how much is zero; leaves HPG_zeroed alone. */
unsigned long hugetlb_zero_take(struct hugetlb_zero_pool *pool,
				struct folio *folio)
{
	unsigned long zeroed = hugetlb_zero_done(folio);

	lockdep_assert_held(&hugetlb_lock);
	hugetlb_zero_del(pool, folio);
	if (folio_test_hugetlb_zero_skip(folio))
		hugetlb_zero_unskip(pool, folio);
	if (folio_test_hugetlb_zeroed(folio))
		zeroed = pages_per_huge_page(pool->h);
	else if (folio_test_hugetlb_zeroing(folio))
		zeroed = hugetlb_zero_job_take(pool, folio);
	hugetlb_zero_set_done(folio, 0);
	hugetlb_zero_changed(pool);
	hugetlb_zero_untrack(pool);
	return zeroed;
}

/* The folio is to be handed to a user, see hugetlb_zero_count(). */
void hugetlb_zero_dequeue(struct hstate *h, struct folio *folio,
			  struct hugetlb_zero_req *req)
{
	struct hugetlb_zero_pool *pool = hugetlb_zero_pool(h, folio_nid(folio));

	req->hit = folio_test_hugetlb_zeroed(folio);
	req->waited = folio_test_hugetlb_zeroing(folio);
	req->zeroed = hugetlb_zero_take(pool, folio);
	folio_clear_hugetlb_zeroed(folio);
}

void __hugetlb_zero_remove(struct hstate *h, struct folio *folio)
{
	if (folio_test_hugetlb_freed(folio))
		hugetlb_zero_take(hugetlb_zero_pool(h, folio_nid(folio)), folio);
}

/*
 * Wait until nobody writes to a folio that was taken. At most for the rest of
 * one unit, on a CPU that can't be preempted, so there is no point in sleeping.
 */
void hugetlb_zero_settle(struct folio *folio)
{
	lockdep_assert_not_held(&hugetlb_lock);
	smp_cond_load_acquire((unsigned long *)&folio->private,
			      !(VAL & BIT(HPG_zeroing)));
}

void hugetlb_zero_settle_list(struct list_head *folios)
{
	struct folio *folio;

	list_for_each_entry(folio, folios, lru)
		hugetlb_zero_settle(folio);
}

static bool hugetlb_zero_verified(struct folio *folio)
{
	unsigned long nr = folio_nr_pages(folio), i;

	for (i = 0; i < nr; i++) {
		void *addr = kmap_local_folio(folio, i * PAGE_SIZE);
		bool zero = !memchr_inv(addr, 0, PAGE_SIZE);

		kunmap_local(addr);
		if (WARN_ONCE(!zero, "pfn %#lx claimed to be zero, is not\n",
			      folio_pfn(folio) + i))
			return false;
		cond_resched();
	}
	return true;
}

/* hugetlb_zero_settle(), and a second look where the kernel is built for it. */
void hugetlb_zero_taken(struct folio *folio, struct hugetlb_zero_req *req)
{
	hugetlb_zero_settle(folio);
	if (IS_ENABLED(CONFIG_HUGETLB_ZEROED_VERIFY) &&
	    req->zeroed == folio_nr_pages(folio) &&
	    !hugetlb_zero_verified(folio))
		req->zeroed = 0;
}

void hugetlb_zero_pool_init(struct hugetlb_zero_pool *pool, struct hstate *h,
			    int nid)
{
	pool->h = h;
	pool->nid = nid;
	/* With NUMA the node's directory says when. */
	pool->present = !IS_ENABLED(CONFIG_NUMA);
	pool->last_zeroed = hugetlb_zero_freelist(pool);
	pool->last_zeroing = hugetlb_zero_freelist(pool);
	INIT_LIST_HEAD(&pool->jobs);
	hugetlb_zero_notify_init(pool);
}

/* Before the first folio is enqueued; for further hstates once more. */
void __init hugetlb_zero_init(void)
{
	struct hugetlb_zero_pool *pool;
	struct hstate *h;
	int nid;

	for_each_hstate(h) {
		if (hugetlb_zero_pools[hstate_index(h)])
			continue;
		pool = kcalloc(nr_node_ids, sizeof(*pool),
			       GFP_KERNEL | __GFP_NOFAIL);
		hugetlb_zero_pools[hstate_index(h)] = pool;
		for (nid = 0; nid < nr_node_ids; nid++)
			hugetlb_zero_pool_init(&pool[nid], h, nid);
	}
}
