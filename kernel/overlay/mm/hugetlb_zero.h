/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * hugetlb pages that are zero before they are asked for: what the files of
 * mm/ share. See Documentation/mm/hugetlb_zero.rst.
 */
#ifndef _MM_HUGETLB_ZERO_H
#define _MM_HUGETLB_ZERO_H

#include <linux/hugetlb_zero.h>
#include <linux/list.h>

struct kobject;
struct zero_freed;

#ifdef CONFIG_HUGETLB_ZEROED

#include <linux/minmax.h>
#include <linux/sizes.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

/* The files of a pool that can be polled, see hugetlb_zero_arm(). */
enum hugetlb_zero_file {
	HZ_FILE_ZEROABLE,
	HZ_FILE_ZEROED,
	NR_HZ_FILES,
};

/**
 * struct hugetlb_zero_pool - the free folios of one hstate on one node
 * @h: the hstate
 * @nid: the node
 * @present: the node is online; pages can be zeroed and asked about
 * @last_zeroed: end of the first cluster of the free list, or the list head
 * @last_zeroing: end of the second, or @last_zeroed
 * @nr_zeroed: free folios known to be zero
 * @nr_zeroing: free folios somebody is zeroing
 * @nr_skipped: free folios nobody may zero, as they have a memory error
 * @hits: allocations that wanted zero and got zero
 * @misses: allocations that wanted zero and had to clear all or the rest
 * @waits: those of @misses that took the folio from whoever was zeroing it
 * @jobs: one struct hugetlb_zero_job per folio being zeroed
 * @freed: what @freed_by is to zero as it has freed it, or NULL
 * @freed_by: the task
 * @low: wake pollers of zeroed_hugepages when @nr_zeroed falls below; 0: when
 *	it changes
 * @below: @nr_zeroed is below @low
 * @armed: bit per enum hugetlb_zero_file: read since its last notification
 * @pending: bit per file: something changed since it was armed
 * @next: per file: not before this time in jiffies
 * @changed: something changed since @work ran
 * @next_run: @work does not run before this time in jiffies
 * @watches: struct hugetlb_zero_watch of open files of the device
 * @work: tells pollers
 * @kobj: directory with the files
 * @files: to notify
 *
 * All protected by hugetlb_lock, @kobj and @files by the order of
 * registration and removal of the node.
 *
 * The free list of the hstate keeps three clusters in this order: zeroed,
 * zeroing, dirty. Each end is known, so that a folio of any kind is found and
 * moved in constant time, and code that walks the list sees every free folio.
 */
struct hugetlb_zero_pool {
	struct hstate		*h;
	int			nid;
	bool			present;

	struct list_head	*last_zeroed;
	struct list_head	*last_zeroing;
	unsigned long		nr_zeroed;
	unsigned long		nr_zeroing;
	unsigned long		nr_skipped;
	unsigned long		hits;
	unsigned long		misses;
	unsigned long		waits;
	struct list_head	jobs;
	struct zero_freed	*freed;
	struct task_struct	*freed_by;

	unsigned long		low;
	bool			below;
	unsigned long		armed;
	unsigned long		pending;
	unsigned long		next[NR_HZ_FILES];
	bool			changed;
	unsigned long		next_run;
	struct list_head	watches;
	struct delayed_work	work;

	struct kobject		*kobj;
	struct kernfs_node	*files[NR_HZ_FILES];
};

/**
 * struct hugetlb_zero_watch - who wants to know when zeroed folios run low
 * @node: in hugetlb_zero_pool.watches, or empty
 * @pool: what is watched, or NULL
 * @min_zeroed: ready as long as there are fewer
 * @zeroable: and as long as there is one to zero
 * @gone: the node has gone away
 * @pending: something changed since the last wakeup
 * @interval: least time between two wakeups, in jiffies
 * @next: no wakeup before this time in jiffies
 * @wait: who polls
 *
 * All protected by hugetlb_lock.
 */
struct hugetlb_zero_watch {
	struct list_head	node;
	struct hugetlb_zero_pool *pool;
	u64			min_zeroed;
	bool			zeroable;
	bool			gone;
	bool			pending;
	unsigned long		interval;
	unsigned long		next;
	wait_queue_head_t	wait;
};

/*
 * How many base pages are cleared with preemption disabled, without looking at
 * signals, which also is what a taker may have to wait for: 64 KiB, 2 us at
 * 28 GB/s (Zen 4), 64 us on a remote node that takes 1 GB/s. Larger units are
 * not faster until they exceed the last-level cache, and then last too long.
 */
#define HUGETLB_ZERO_UNIT	max_t(unsigned long, SZ_64K / PAGE_SIZE, 1)

/* Least time between two notifications of a file or a watch by default. */
#define HUGETLB_ZERO_INTERVAL_MS	100

/* hugetlb_zero.c: the folios */
struct hugetlb_zero_pool *hugetlb_zero_pool(struct hstate *h, int nid);
unsigned long hugetlb_zero_zeroable(struct hugetlb_zero_pool *pool);
void hugetlb_zero_unit(struct folio *folio, unsigned long first,
		       unsigned long nr);
int hugetlb_zero_run(struct hugetlb_zero_pool *pool, u64 nr, bool stoppable,
		     unsigned long *zeroed);

/* hugetlb_zero_notify.c: who waits for a change */
void hugetlb_zero_notify_init(struct hugetlb_zero_pool *pool);
void hugetlb_zero_changed(struct hugetlb_zero_pool *pool);
void hugetlb_zero_arm(struct hugetlb_zero_pool *pool,
		      enum hugetlb_zero_file file);
void hugetlb_zero_set_low(struct hugetlb_zero_pool *pool, unsigned long low);
void hugetlb_zero_watch_add(struct hugetlb_zero_watch *watch,
			    struct hugetlb_zero_pool *pool);
void hugetlb_zero_watch_del(struct hugetlb_zero_watch *watch);
bool hugetlb_zero_watch_ready(struct hugetlb_zero_watch *watch);
void hugetlb_zero_pool_appear(struct hugetlb_zero_pool *pool);
void hugetlb_zero_pool_vanish(struct hugetlb_zero_pool *pool);

/* Hooks of hugetlb.c */
void hugetlb_zero_init(void);
void hugetlb_zero_enqueue(struct hstate *h, int nid, struct folio *folio);
void hugetlb_zero_dequeue(struct hstate *h, struct folio *folio, gfp_t gfp);
void hugetlb_zero_remove(struct hstate *h, struct folio *folio);
void hugetlb_zero_fresh(struct hstate *h, struct folio *folio, gfp_t gfp);
void hugetlb_zero_settle(struct folio *folio);
void hugetlb_zero_settle_list(struct list_head *folios);
unsigned long hugetlb_zero_known(struct folio *folio);
void hugetlb_zero_untouched(struct folio *folio);
bool hugetlb_zero_test_clear(struct folio *folio);
void hugetlb_zero_inherit(struct page *head, bool zeroed);
void hugetlb_zero_grown(struct folio *folio);
void hugetlb_zero_freed(struct hstate *h, int nid);
void hugetlb_zero_register(struct hstate *h, int nid, struct kobject *kobj);
void hugetlb_zero_unregister(struct hstate *h, int nid);

struct folio *hugetlb_zero_first(struct hstate *h, int nid, gfp_t gfp);
struct folio *hugetlb_zero_next(struct hstate *h, struct folio *folio,
				gfp_t gfp);

/*
 * Walk the free folios of a node: with __GFP_ZERO in @gfp zeroed ones first,
 * without it dirty ones first, and in any case those being zeroed last.
 */
#define hugetlb_for_each_free_folio(folio, h, nid, gfp)			\
	for (folio = hugetlb_zero_first(h, nid, gfp); folio;		\
	     folio = hugetlb_zero_next(h, folio, gfp))

#define hugetlb_for_each_free_folio_safe(folio, n, h, nid, gfp)		\
	for (folio = hugetlb_zero_first(h, nid, gfp),			\
	     n = folio ? hugetlb_zero_next(h, folio, gfp) : NULL;	\
	     folio;							\
	     folio = n, n = n ? hugetlb_zero_next(h, n, gfp) : NULL)

#else /* !CONFIG_HUGETLB_ZEROED */

static inline void hugetlb_zero_init(void) { }

static inline void hugetlb_zero_enqueue(struct hstate *h, int nid,
					struct folio *folio)
{
	list_move(&folio->lru, &h->hugepage_freelists[nid]);
}

static inline void hugetlb_zero_dequeue(struct hstate *h, struct folio *folio,
					gfp_t gfp) { }
static inline void hugetlb_zero_remove(struct hstate *h,
				       struct folio *folio) { }
static inline void hugetlb_zero_fresh(struct hstate *h, struct folio *folio,
				      gfp_t gfp) { }
static inline void hugetlb_zero_settle(struct folio *folio) { }
static inline void hugetlb_zero_settle_list(struct list_head *folios) { }
static inline void hugetlb_zero_untouched(struct folio *folio) { }

static inline bool hugetlb_zero_test_clear(struct folio *folio)
{
	return false;
}

static inline void hugetlb_zero_inherit(struct page *head, bool zeroed) { }
static inline void hugetlb_zero_grown(struct folio *folio) { }
static inline void hugetlb_zero_freed(struct hstate *h, int nid) { }
static inline void hugetlb_zero_register(struct hstate *h, int nid,
					 struct kobject *kobj) { }
static inline void hugetlb_zero_unregister(struct hstate *h, int nid) { }

static inline struct folio *hugetlb_zero_first(struct hstate *h, int nid,
					       gfp_t gfp)
{
	return list_first_entry(&h->hugepage_freelists[nid], struct folio, lru);
}

#define hugetlb_for_each_free_folio(folio, h, nid, gfp)			\
	list_for_each_entry(folio, &(h)->hugepage_freelists[nid], lru)

#define hugetlb_for_each_free_folio_safe(folio, n, h, nid, gfp)		\
	list_for_each_entry_safe(folio, n, &(h)->hugepage_freelists[nid], lru)

#endif /* CONFIG_HUGETLB_ZEROED */
#endif /* _MM_HUGETLB_ZERO_H */
