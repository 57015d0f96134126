/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * prezero.ko: what its files share. DESIGN.md says why it is right.
 */
#ifndef _PREZERO_H
#define _PREZERO_H

#include <linux/hugetlb.h>
#include <linux/percpu.h>
#include "compat.h"
#include "kernel.h"
#include "hugetlb_zero_internal.h"

/**
 * struct prezero_pool - the free folios of one hstate on one node
 * @zero: what the series has as well
 * @newest: the dirty folio that was last put in front of the free list, or NULL
 *
 * All protected by hugetlb_lock.
 *
 * A free list keeps zeroed folios in front of dirty ones. The kernel adds a folio
 * in front, after the hook has run. The next function that uses the list moves that
 * folio behind the zeroed ones, see prezero_settle().
 */
struct prezero_pool {
	struct hugetlb_zero_pool	zero;
	struct folio			*newest;
};

static inline struct prezero_pool *to_prezero(struct hugetlb_zero_pool *pool)
{
	return container_of(pool, struct prezero_pool, zero);
}

/**
 * enum prezero_counter - what the module has counted since it was loaded
 * @PREZERO_ZEROED: folios zeroed in advance
 * @PREZERO_TAKEN: folios taken from a zeroer for a task that needed one
 * @PREZERO_RESUMED: folios that a zeroer continued where another had stopped
 * @PREZERO_FREED: folios freed while marked: allocated, but never used
 * @PREZERO_OUTLIVED: stale marks found at free; their second witness was gone
 * @PREZERO_UNSEEN: folios that left a free list without passing a hook
 * @PREZERO_SWEPT: stale marks that the sweep found
 * @PREZERO_DIRTY: marked folios that were dirty (verify=1): a bug
 * @PREZERO_RANGED: folios cleared by ranges at their first use (ranges=1)
 */
enum prezero_counter {
	PREZERO_ZEROED,
	PREZERO_TAKEN,
	PREZERO_RESUMED,
	PREZERO_FREED,
	PREZERO_OUTLIVED,
	PREZERO_UNSEEN,
	PREZERO_SWEPT,
	PREZERO_DIRTY,
	PREZERO_RANGED,
	NR_PREZERO_COUNTERS,
};

extern atomic_long_t prezero_counters[NR_PREZERO_COUNTERS];

static inline void prezero_count(enum prezero_counter counter)
{
	atomic_long_inc(&prezero_counters[counter]);
}

/* Tasks inside prezero_zero_user(), which may sleep and holds no module reference. */
DECLARE_PER_CPU(long, prezero_inside);

extern bool prezero_verify;
extern bool prezero_ranges;

/* kernel.c: symbols that the kernel does not export */
int prezero_find_symbols(void);
int prezero_check_layout(void);

/* hooks.c */
int prezero_hook(void);
void prezero_arm(void);
void prezero_unhook(void);

/* dequeue.c: replaces the kernel's function that takes a folio off a free list */
int prezero_dequeue_init(void);
struct folio *prezero_dequeue(struct hstate *h, gfp_t gfp_mask, int nid,
			      nodemask_t *nmask);
void prezero_remember(unsigned long caller);

/* list.c: the order of a free list and its counters */
void prezero_settle(struct prezero_pool *pool);
void prezero_dirty_first(struct prezero_pool *pool);
struct folio *prezero_first_dirty(struct prezero_pool *pool);
void prezero_put(struct prezero_pool *pool, struct folio *folio,
		 unsigned long done);
void prezero_arrive(struct prezero_pool *pool, struct folio *folio);
void prezero_depart(struct prezero_pool *pool, struct folio *folio);

/* zeroer.c */
bool prezero_is_leaving(struct folio *folio);
bool prezero_take_back(struct prezero_pool *pool);
void prezero_give_way(unsigned long start_pfn, unsigned long nr_pages);

/* zero_user.c: replaces folio_zero_user() */
void prezero_skip_zero_user(struct folio *folio, unsigned long addr_hint);
void prezero_zero_user(struct folio *folio, unsigned long addr_hint);

/* nodes.c: pools, and nodes that come and go */
int prezero_pools_init(void);
void prezero_pools_exit(void);
int prezero_nodes_init(void);
void prezero_nodes_exit(void);
struct prezero_pool *prezero_pool_of(struct hstate *h, struct folio *folio);
struct prezero_pool *prezero_folio_pool(struct folio *folio);

/* files.c */
int prezero_files_add(struct hugetlb_zero_pool *pool, struct kobject *kobj);
void prezero_files_del(struct hugetlb_zero_pool *pool);

/* device.c */
int prezero_device_init(void);
void prezero_device_exit(void);

#ifdef CONFIG_X86_64
/* streaming.c */
void prezero_clear_streaming(void *addr, unsigned int npages);
#define clear_pages_streaming prezero_clear_streaming
#endif

#endif /* _PREZERO_H */
