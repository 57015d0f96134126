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
 * The claim "zeroed" exists on the free list only. It ends when the folio is
 * taken, under hugetlb_lock, and its taker is told; it comes back only by
 * zeroing or by hugetlb_zero_unused(), from a taker that never let anybody
 * write. Nothing else, and no unknown state, makes a folio zeroed.
 *
 * Who takes a folio that is being zeroed does not wait for the zeroer, which
 * may be throttled, stopped or of low priority. The zeroer writes in units of
 * HUGETLB_ZERO_UNIT with preemption disabled, each announced in
 * hugetlb_zero_job.state; the taker marks the job as taken, and at most the
 * unit that is on its way at that moment is still written. So a taker
 *
 *   - calls hugetlb_zero_dequeue() or hugetlb_zero_remove() under hugetlb_lock,
 *   - calls hugetlb_zero_settle() after it has dropped it, before it touches
 *     the folio or its struct pages: at most one unit's time.
 *
 * The lock must be dropped first: an interrupt on the zeroer's CPU may want it
 * in the middle of a unit.
 *
 * Locking: hugetlb_lock protects everything but the content of folios.
 * Zeroers hold it once per folio, see hugetlb_zero_run().
 */
#define pr_fmt(fmt) "HugeTLB zero: " fmt

#include <linux/bitops.h>
#include <linux/highmem.h>
#include <linux/init.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include "hugetlb_zero.h"
#include "internal.h"

/* hugetlb_zero_job.state */
#define JOB_IDLE	0
#define JOB_WRITING	1
#define JOB_TAKEN	2

/**
 * struct hugetlb_zero_job - one folio that one task is zeroing
 * @node: in hugetlb_zero_pool.jobs; empty once the folio has been taken
 * @folio: the folio. The zeroer may look at it while the state is JOB_WRITING
 *	or while it holds hugetlb_lock and @node is not empty.
 * @done: so many base pages are zero, from the first on
 * @state: JOB_WRITING is the zeroer's to set and clear, JOB_TAKEN the taker's
 *	to set, under hugetlb_lock
 *
 * Lives on the stack of the zeroer, which does not leave it before it has held
 * hugetlb_lock once more.
 */
struct hugetlb_zero_job {
	struct list_head	node;
	struct folio		*folio;
	unsigned long		done;
	atomic_t		state;
};

static struct hugetlb_zero_pool *pools[HUGE_MAX_HSTATE] __ro_after_init;

struct hugetlb_zero_pool *hugetlb_zero_pool(struct hstate *h, int nid)
{
	return &pools[hstate_index(h)][nid];
}

/* Folios that a zeroer could start on now. */
unsigned long hugetlb_zero_zeroable(struct hugetlb_zero_pool *pool)
{
	lockdep_assert_held(&hugetlb_lock);
	return pool->h->free_huge_pages_node[pool->nid] - pool->nr_zeroed -
	       pool->nr_zeroing - pool->nr_skipped;
}

/*
 * The three clusters of a free list
 */

enum cluster {
	ZEROED,
	ZEROING,
	DIRTY,
	NR_CLUSTERS,
};

static struct list_head *freelist(struct hugetlb_zero_pool *pool)
{
	return &pool->h->hugepage_freelists[pool->nid];
}

static enum cluster folio_cluster(struct folio *folio)
{
	if (folio_test_hugetlb_zeroed(folio))
		return ZEROED;
	return folio_test_hugetlb_zeroing(folio) ? ZEROING : DIRTY;
}

/* First entry of a cluster; its end if it is empty. */
static struct list_head *cluster_begin(struct hugetlb_zero_pool *pool,
				       enum cluster cluster)
{
	switch (cluster) {
	case ZEROED:
		return freelist(pool)->next;
	case ZEROING:
		return pool->last_zeroed->next;
	default:
		return pool->last_zeroing->next;
	}
}

/* First entry behind a cluster. */
static struct list_head *cluster_end(struct hugetlb_zero_pool *pool,
				     enum cluster cluster)
{
	switch (cluster) {
	case ZEROED:
		return pool->last_zeroed->next;
	case ZEROING:
		return pool->last_zeroing->next;
	default:
		return freelist(pool);
	}
}

/*
 * Add at the beginning of the cluster that the folio's flags say, so that what
 * was freed last, and is warm in the caches, is taken first.
 */
static void cluster_add(struct hugetlb_zero_pool *pool, struct folio *folio)
{
	struct list_head *entry = &folio->lru;

	switch (folio_cluster(folio)) {
	case ZEROED:
		list_add(entry, freelist(pool));
		if (pool->last_zeroing == freelist(pool))
			pool->last_zeroing = entry;
		if (pool->last_zeroed == freelist(pool))
			pool->last_zeroed = entry;
		pool->nr_zeroed++;
		break;
	case ZEROING:
		list_add(entry, pool->last_zeroed);
		if (pool->last_zeroing == pool->last_zeroed)
			pool->last_zeroing = entry;
		pool->nr_zeroing++;
		break;
	default:
		list_add(entry, pool->last_zeroing);
		break;
	}
}

/* Forget the folio's place. It stays linked: the caller moves or deletes it. */
static void cluster_del(struct hugetlb_zero_pool *pool, struct folio *folio)
{
	struct list_head *entry = &folio->lru;

	switch (folio_cluster(folio)) {
	case ZEROED:
		pool->nr_zeroed--;
		break;
	case ZEROING:
		pool->nr_zeroing--;
		break;
	default:
		break;
	}
	if (pool->last_zeroing == entry)
		pool->last_zeroing = entry->prev;
	if (pool->last_zeroed == entry)
		pool->last_zeroed = entry->prev;
}

/* A dirty folio that nobody may zero, or that may be zeroed again. */
static void skip(struct hugetlb_zero_pool *pool, struct folio *folio)
{
	folio_set_hugetlb_zero_skip(folio);
	pool->nr_skipped++;
}

static void unskip(struct hugetlb_zero_pool *pool, struct folio *folio)
{
	folio_clear_hugetlb_zero_skip(folio);
	pool->nr_skipped--;
}

/*
 * Dirty folios before zeroed ones for who overwrites, the other way round for
 * who wants zero; those being zeroed only if nothing else is free.
 */
static const enum cluster want_zero[] = { ZEROED, DIRTY, ZEROING };
static const enum cluster want_any[] = { DIRTY, ZEROED, ZEROING };

static struct folio *first_from(struct hugetlb_zero_pool *pool,
				const enum cluster *order, int from)
{
	for (; from < NR_CLUSTERS; from++) {
		struct list_head *entry = cluster_begin(pool, order[from]);

		if (entry != cluster_end(pool, order[from]))
			return list_entry(entry, struct folio, lru);
	}
	return NULL;
}

struct folio *hugetlb_zero_first(struct hstate *h, int nid, gfp_t gfp)
{
	lockdep_assert_held(&hugetlb_lock);
	return first_from(hugetlb_zero_pool(h, nid),
			  gfp & __GFP_ZERO ? want_zero : want_any, 0);
}

static struct folio *next_from(struct hugetlb_zero_pool *pool,
			       struct folio *folio, const enum cluster *order)
{
	enum cluster cluster = folio_cluster(folio);
	struct list_head *next = folio->lru.next;
	int i;

	if (next != cluster_end(pool, cluster))
		return list_entry(next, struct folio, lru);
	for (i = 0; order[i] != cluster; i++)
		;
	return first_from(pool, order, i + 1);
}

struct folio *hugetlb_zero_next(struct hstate *h, struct folio *folio,
				gfp_t gfp)
{
	return next_from(hugetlb_zero_pool(h, folio_nid(folio)), folio,
			 gfp & __GFP_ZERO ? want_zero : want_any);
}

/*
 * Zeroing
 */

/* Start on the dirty folio that has been free for longest. */
static bool job_start(struct hugetlb_zero_pool *pool,
		      struct hugetlb_zero_job *job)
{
	struct list_head *entry = freelist(pool);

	lockdep_assert_held(&hugetlb_lock);
	while (entry->prev != pool->last_zeroing) {
		struct folio *folio;

		entry = entry->prev;
		folio = list_entry(entry, struct folio, lru);
		if (folio_test_hugetlb_zero_skip(folio))
			continue;

		cluster_del(pool, folio);
		list_del(entry);
		folio_set_hugetlb_zeroing(folio);
		cluster_add(pool, folio);
		job->folio = folio;
		job->done = 0;
		atomic_set(&job->state, JOB_IDLE);
		list_add(&job->node, &pool->jobs);
		hugetlb_zero_changed(pool);
		return true;
	}
	return false;
}

/*
 * Clear at most one HUGETLB_ZERO_UNIT. There is no user address yet; where it
 * would matter HUGETLB_ZEROED can't be configured.
 */
void hugetlb_zero_unit(struct folio *folio, unsigned long first,
		       unsigned long nr)
{
	struct page *page = folio_page(folio, first);

	if (folio_order(folio) > MAX_PAGE_ORDER &&
	    clear_pages_streaming(page_address(page), nr))
		return;
	clear_user_highpages(page, 0, nr);
}

/* Clear the next unit. False if the folio is no longer ours, or never to be. */
static bool job_clear_unit(struct hugetlb_zero_job *job, unsigned long nr)
{
	bool ours = true;

	preempt_disable();
	/*
	 * Full barriers: no store to the folio before it is announced, nor
	 * after it is said to be over.
	 */
	if (atomic_cmpxchg(&job->state, JOB_IDLE, JOB_WRITING) != JOB_IDLE) {
		ours = false;
		goto out;
	}
	if (folio_test_hwpoison(job->folio))
		ours = false;
	else
		hugetlb_zero_unit(job->folio, job->done, nr);
	if (ours)
		WRITE_ONCE(job->done, job->done + nr);
	if (atomic_cmpxchg(&job->state, JOB_WRITING, JOB_IDLE) != JOB_WRITING) {
		/* Taken meanwhile: the taker waits for this. */
		clear_bit_unlock(HPG_zeroing,
				 (unsigned long *)&job->folio->private);
		ours = false;
	}
out:
	preempt_enable();
	return ours;
}

/* Returns 0, or why the zeroer has to stop. */
static int job_clear(struct hugetlb_zero_pool *pool,
		     struct hugetlb_zero_job *job, bool stoppable)
{
	unsigned long nr = pages_per_huge_page(pool->h);

	while (job->done < nr) {
		if (stoppable && signal_pending(current))
			return -EINTR;
		if (!READ_ONCE(pool->present))
			return -ENODEV;
		if (!job_clear_unit(job, min_t(unsigned long, nr - job->done,
					       HUGETLB_ZERO_UNIT)))
			return 0;
		cond_resched();
	}
	return 0;
}

/* Returns whether there is one more zeroed folio. */
static bool job_finish(struct hugetlb_zero_pool *pool,
		       struct hugetlb_zero_job *job)
{
	struct folio *folio = job->folio;
	bool zeroed = false;

	lockdep_assert_held(&hugetlb_lock);
	if (list_empty(&job->node))
		return false;

	list_del(&job->node);
	cluster_del(pool, folio);
	list_del(&folio->lru);
	folio_clear_hugetlb_zeroing(folio);
	if (folio_test_hwpoison(folio)) {
		skip(pool, folio);
	} else if (job->done == pages_per_huge_page(pool->h)) {
		folio_set_hugetlb_zeroed(folio);
		zeroed = true;
	}
	cluster_add(pool, folio);
	hugetlb_zero_changed(pool);
	return zeroed;
}

/**
 * hugetlb_zero_run - zero free folios in the context of the caller
 * @pool: of which pool
 * @nr: at most so many
 * @stoppable: stop when a signal is pending
 * @zeroed: how many it were
 *
 * Any number of callers may do this at once, each works on a folio of its own.
 *
 * Return: 0 if @nr were zeroed or there are no dirty ones left, -EINTR if a
 * signal stopped it, -ENODEV if the node has gone away; @zeroed counts in any
 * case.
 */
int hugetlb_zero_run(struct hugetlb_zero_pool *pool, u64 nr, bool stoppable,
		     unsigned long *zeroed)
{
	struct hugetlb_zero_job job;
	int err = 0;

	*zeroed = 0;
	spin_lock_irq(&hugetlb_lock);
	while (!err && *zeroed < nr && job_start(pool, &job)) {
		spin_unlock_irq(&hugetlb_lock);
		err = job_clear(pool, &job, stoppable);
		spin_lock_irq(&hugetlb_lock);
		if (job_finish(pool, &job))
			++*zeroed;
	}
	spin_unlock_irq(&hugetlb_lock);
	return err;
}

/*
 * Into and out of the free list
 */

/* The folio, frozen and on no or another list, becomes free. */
void hugetlb_zero_enqueue(struct hstate *h, int nid, struct folio *folio)
{
	struct hugetlb_zero_pool *pool = hugetlb_zero_pool(h, nid);

	lockdep_assert_held(&hugetlb_lock);
	list_del(&folio->lru);
	if (folio_test_hwpoison(folio)) {
		folio_clear_hugetlb_zeroed(folio);
		skip(pool, folio);
	}
	cluster_add(pool, folio);
	hugetlb_zero_changed(pool);
}

/* Take a job's folio away. Returns how much of it is zero. */
static unsigned long job_take(struct hugetlb_zero_pool *pool,
			      struct folio *folio)
{
	struct hugetlb_zero_job *job;

	list_for_each_entry(job, &pool->jobs, node)
		if (job->folio == folio)
			break;
	if (WARN_ON_ONCE(list_entry_is_head(job, &pool->jobs, node)))
		return 0;
	list_del_init(&job->node);
	if (!(atomic_fetch_or(JOB_TAKEN, &job->state) & JOB_WRITING))
		folio_clear_hugetlb_zeroing(folio);
	return READ_ONCE(job->done);
}

/* Common to both ways out. Returns how much is zero; leaves HPG_zeroed alone. */
static unsigned long take(struct hugetlb_zero_pool *pool, struct folio *folio)
{
	unsigned long known = 0;

	lockdep_assert_held(&hugetlb_lock);
	cluster_del(pool, folio);
	if (folio_test_hugetlb_zero_skip(folio))
		unskip(pool, folio);
	if (folio_test_hugetlb_zeroed(folio))
		known = pages_per_huge_page(pool->h);
	else if (folio_test_hugetlb_zeroing(folio))
		known = job_take(pool, folio);
	hugetlb_zero_changed(pool);
	return known;
}

/*
 * The folio is handed to a user. What is known about it is left in its index,
 * which nobody uses before it is mapped or in the page cache.
 */
void hugetlb_zero_dequeue(struct hstate *h, struct folio *folio, gfp_t gfp)
{
	struct hugetlb_zero_pool *pool = hugetlb_zero_pool(h, folio_nid(folio));
	bool zeroing = folio_test_hugetlb_zeroing(folio);

	folio->index = take(pool, folio);
	folio_clear_hugetlb_zeroed(folio);
	if (!(gfp & __GFP_ZERO))
		return;
	if (folio->index == pages_per_huge_page(h) && !zeroing) {
		pool->hits++;
	} else {
		pool->misses++;
		pool->waits += zeroing;
	}
}

/*
 * The folio leaves the pool, or was never free. HPG_zeroed stays for demotion,
 * which hands it on, and for add_hugetlb_folio(), which takes the folio back.
 */
void hugetlb_zero_remove(struct hstate *h, struct folio *folio)
{
	if (folio_test_hugetlb_freed(folio))
		take(hugetlb_zero_pool(h, folio_nid(folio)), folio);
}

/* A folio straight from the page allocator goes to a user. */
void hugetlb_zero_fresh(struct hstate *h, struct folio *folio, gfp_t gfp)
{
	lockdep_assert_held(&hugetlb_lock);
	folio->index = 0;
	if (gfp & __GFP_ZERO)
		hugetlb_zero_pool(h, folio_nid(folio))->misses++;
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

/* Is every byte zero? Complains if not: that is a leak of memory content. */
static bool verified(struct folio *folio)
{
	unsigned long i, nr = folio_nr_pages(folio);

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

/* After hugetlb_zero_settle(): base pages of a dequeued folio that are zero. */
unsigned long hugetlb_zero_known(struct folio *folio)
{
	unsigned long known = folio->index;

	if (IS_ENABLED(CONFIG_HUGETLB_ZEROED_VERIFY) &&
	    known == folio_nr_pages(folio) && !verified(folio))
		return 0;
	return known;
}

void hugetlb_zero_user(struct folio *folio, unsigned long addr,
		       unsigned long zeroed)
{
	unsigned long nr = folio_nr_pages(folio);

	if (!zeroed) {
		folio_zero_user(folio, addr);
		return;
	}
	/* The rest of what a zeroer had begun, or nothing. */
	if (zeroed < nr)
		folio_clear_user_pages(folio, zeroed, nr - zeroed,
				       ALIGN_DOWN(addr, folio_size(folio)));
}

void hugetlb_zero_unused(struct folio *folio)
{
	folio_set_hugetlb_zeroed(folio);
}

/*
 * Before the last folio_put() of a folio that was dequeued, settled and not used
 * at all: it is as zero as it was.
 */
void hugetlb_zero_untouched(struct folio *folio)
{
	if (folio->index == folio_nr_pages(folio))
		folio_set_hugetlb_zeroed(folio);
}

bool hugetlb_zero_test_clear(struct folio *folio)
{
	bool zeroed = folio_test_hugetlb_zeroed(folio);

	folio_clear_hugetlb_zeroed(folio);
	return zeroed;
}

/* A folio that is about to be enqueued is as zero as what it came from. */
void hugetlb_zero_inherit(struct page *head, bool zeroed)
{
	struct folio *folio = page_folio(head);

	if (zeroed)
		folio_set_hugetlb_zeroed(folio);
	else
		folio_clear_hugetlb_zeroed(folio);
}

/*
 * Memory errors: a folio that has one is neither zeroed nor zeroable.
 */

void hugetlb_zero_poison(struct folio *folio)
{
	struct hugetlb_zero_pool *pool;

	lockdep_assert_held(&hugetlb_lock);
	if (!folio_test_hugetlb_freed(folio) ||
	    folio_test_hugetlb_zero_skip(folio))
		return;

	/* A job that works on it notices, and job_finish() sees to the rest. */
	if (folio_test_hugetlb_zeroing(folio))
		return;

	pool = hugetlb_zero_pool(folio_hstate(folio), folio_nid(folio));
	cluster_del(pool, folio);
	list_del(&folio->lru);
	folio_clear_hugetlb_zeroed(folio);
	skip(pool, folio);
	cluster_add(pool, folio);
	hugetlb_zero_changed(pool);
}

/* Whatever it contains now, nobody has cleared it since the error: dirty. */
void hugetlb_zero_unpoison(struct folio *folio)
{
	spin_lock_irq(&hugetlb_lock);
	if (folio_test_hugetlb(folio) && folio_test_hugetlb_freed(folio) &&
	    folio_test_hugetlb_zero_skip(folio)) {
		struct hugetlb_zero_pool *pool =
			hugetlb_zero_pool(folio_hstate(folio),
					  folio_nid(folio));

		unskip(pool, folio);
		hugetlb_zero_changed(pool);
	}
	spin_unlock_irq(&hugetlb_lock);
}

/* Before the first folio is enqueued; for further hstates once more. */
void __init hugetlb_zero_init(void)
{
	struct hugetlb_zero_pool *pool;
	struct hstate *h;
	int nid;

	for_each_hstate(h) {
		if (pools[hstate_index(h)])
			continue;
		pool = kcalloc(nr_node_ids, sizeof(*pool),
			       GFP_KERNEL | __GFP_NOFAIL);
		pools[hstate_index(h)] = pool;
		for (nid = 0; nid < nr_node_ids; nid++, pool++) {
			pool->h = h;
			pool->nid = nid;
			/* With NUMA the node's directory says when. */
			pool->present = !IS_ENABLED(CONFIG_NUMA);
			pool->last_zeroed = freelist(pool);
			pool->last_zeroing = freelist(pool);
			INIT_LIST_HEAD(&pool->jobs);
			hugetlb_zero_notify_init(pool);
		}
	}
}

#ifdef CONFIG_HUGETLB_ZEROED_KUNIT_TEST
#include "hugetlb_zero_kunit.h"
#endif
