/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * hugetlb pages that are zero before they are asked for: what the files
 * mm/hugetlb_zero*.c and mm/hugepagectl.c share.
 */
#ifndef _MM_HUGETLB_ZERO_INTERNAL_H
#define _MM_HUGETLB_ZERO_INTERNAL_H

#include <linux/atomic.h>
#include <linux/hugetlb.h>
#include <linux/list.h>
#include <linux/minmax.h>
#include <linux/sizes.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

struct kernfs_node;
struct kobject;

/* The three clusters of a free list, in this order. */
enum hugetlb_zero_cluster {
	HUGETLB_ZERO_ZEROED,
	HUGETLB_ZERO_ZEROING,
	HUGETLB_ZERO_DIRTY,
	NR_HUGETLB_ZERO_CLUSTERS,
};

/* The files of a pool that can be polled, see hugetlb_zero_arm(). */
enum hugetlb_zero_file {
	HUGETLB_ZERO_FILE_ZEROABLE,
	HUGETLB_ZERO_FILE_ZEROED,
	NR_HUGETLB_ZERO_FILES,
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
 * @low: wake pollers of zeroed_hugepages when @nr_zeroed falls below; 0: when
 *	it changes
 * @below: @nr_zeroed is below @low
 * @armed: bit per enum hugetlb_zero_file: read since its last notification
 * @pending: bit per file: something changed since it was armed
 * @changed: something changed since @work ran
 * @next: per file: not before this time in jiffies
 * @next_run: @work does not run before this time in jiffies
 * @watches: struct hugetlb_zero_watch of open files of the device
 * @work: tells pollers
 * @kobj: directory with the files
 * @files: to notify
 *
 * All protected by hugetlb_lock, with these exceptions: @hits, @misses and @waits
 * are atomic; @present and @low are written under it and may be read without;
 * @kobj is written by whoever adds or removes the node, one at a time, and
 * compared by who has another directory of a pool open. Those are marked with
 * READ_ONCE() and WRITE_ONCE().
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
	atomic_long_t		hits;
	atomic_long_t		misses;
	atomic_long_t		waits;
	struct list_head	jobs;

	unsigned long		low;
	bool			below;
	unsigned long		armed;
	unsigned long		pending;
	bool			changed;
	u64			next[NR_HUGETLB_ZERO_FILES];
	u64			next_run;
	struct list_head	watches;
	struct delayed_work	work;

	struct kobject		*kobj;
	struct kernfs_node	*files[NR_HUGETLB_ZERO_FILES];
};

/**
 * struct hugetlb_zero_job - one folio that one task is zeroing
 * @node: in hugetlb_zero_pool.jobs; empty once the folio has been taken
 * @folio: the folio. The zeroer may look at it while the state is JOB_WRITING
 *	or while it holds hugetlb_lock and @node is not empty.
 * @done: so many base pages are zero, from the first on
 * @last: when the last unit was over, in jiffies
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
	unsigned long		last;
	atomic_t		state;
};

/*
 * How many base pages of a free, dirty folio are zero, from the first on. A free
 * folio is in no mapping and has no use for its index. Protected by
 * hugetlb_lock.
 */
static inline unsigned long hugetlb_zero_done(struct folio *folio)
{
	return folio->index;
}

static inline void hugetlb_zero_set_done(struct folio *folio,
					 unsigned long done)
{
	folio->index = done;
}

/* hugetlb_zero_job.state */
#define HUGETLB_ZERO_JOB_IDLE		0
#define HUGETLB_ZERO_JOB_WRITING	1
#define HUGETLB_ZERO_JOB_TAKEN		2

/**
 * struct hugetlb_zero_watch - who wants to know when zeroed folios run low
 * @node: in hugetlb_zero_pool.watches, or empty
 * @pool: what is watched, or NULL
 * @min_zeroed: ready as long as there are fewer
 * @zeroable: and as long as there is one to zero
 * @min_free: also as long as fewer are free
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
	u64			min_free;
	bool			gone;
	bool			pending;
	unsigned long		interval;
	u64			next;
	wait_queue_head_t	wait;
};

/*
 * How many base pages are cleared with preemption disabled, without looking at
 * signals, which also is what a taker may have to wait for: 64 KiB, 1 to 2 us at
 * 40 to 80 GB/s (Zen 4), 64 us on a remote node that takes 1 GB/s. Stores that
 * bypass the caches are as fast in units of 64 KiB as in larger ones.
 */
#define HUGETLB_ZERO_UNIT	max_t(unsigned long, SZ_64K / PAGE_SIZE, 1)

/*
 * A job that has not advanced for so long belongs to a zeroer that is not given
 * a CPU, and may be continued by another one: 10 ms.
 */
#define HUGETLB_ZERO_STARVED	max_t(unsigned long, HZ / 100, 1)

/* Least time between two notifications of a file or a watch by default. */
#define HUGETLB_ZERO_INTERVAL_MS	100

/* A reader of a file, or a watch, waits for a change: see hugetlb_zero_track(). */
static inline bool hugetlb_zero_awaited(struct hugetlb_zero_pool *pool)
{
	return pool->armed || !list_empty(&pool->watches);
}

/* hugetlb_zero_list.c: the free list and its clusters */
void hugetlb_zero_track(struct hugetlb_zero_pool *pool);
unsigned long hugetlb_zero_zeroable(struct hugetlb_zero_pool *pool);
struct list_head *hugetlb_zero_freelist(struct hugetlb_zero_pool *pool);
enum hugetlb_zero_cluster hugetlb_zero_cluster(struct folio *folio);
void hugetlb_zero_add(struct hugetlb_zero_pool *pool, struct folio *folio);
void hugetlb_zero_del(struct hugetlb_zero_pool *pool, struct folio *folio);
void hugetlb_zero_skip(struct hugetlb_zero_pool *pool, struct folio *folio);
void hugetlb_zero_unskip(struct hugetlb_zero_pool *pool, struct folio *folio);
struct folio *hugetlb_zero_pool_first(struct hugetlb_zero_pool *pool,
				      bool want);
struct folio *hugetlb_zero_pool_next(struct hugetlb_zero_pool *pool,
				     struct folio *folio, bool want);

/* hugetlb_zero_job.c: zeroing */
bool hugetlb_zero_job_start(struct hugetlb_zero_pool *pool,
			    struct hugetlb_zero_job *job);
bool hugetlb_zero_job_adopt(struct hugetlb_zero_pool *pool,
			    struct hugetlb_zero_job *job);
bool hugetlb_zero_job_unit(struct hugetlb_zero_job *job, unsigned long nr);
int hugetlb_zero_job_clear(struct hugetlb_zero_pool *pool,
			   struct hugetlb_zero_job *job);
bool hugetlb_zero_job_finish(struct hugetlb_zero_pool *pool,
			     struct hugetlb_zero_job *job);
unsigned long hugetlb_zero_job_take(struct hugetlb_zero_pool *pool,
				    struct folio *folio);

int hugetlb_zero_run(struct hugetlb_zero_pool *pool, u64 nr,
		     unsigned long *zeroed);

/* hugetlb_zero.c: into and out of the free list */
struct hugetlb_zero_pool *hugetlb_zero_pool(struct hstate *h, int nid);
void hugetlb_zero_pool_init(struct hugetlb_zero_pool *pool, struct hstate *h,
			    int nid);
unsigned long hugetlb_zero_take(struct hugetlb_zero_pool *pool,
				struct folio *folio);

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

#endif /* _MM_HUGETLB_ZERO_INTERNAL_H */
