// SPDX-License-Identifier: GPL-2.0-only
/*
 * The free list of a hugetlb pool in three clusters: zeroed folios, folios that
 * somebody is zeroing, dirty folios. See hugetlb_zero.c for what they mean.
 */
#include "hugetlb_zero_internal.h"

/* Folios that a zeroer could start on now. */
unsigned long hugetlb_zero_zeroable(struct hugetlb_zero_pool *pool)
{
	lockdep_assert_held(&hugetlb_lock);
	return pool->h->free_huge_pages_node[pool->nid] - pool->nr_zeroed -
	       pool->nr_zeroing - pool->nr_skipped;
}

struct list_head *hugetlb_zero_freelist(struct hugetlb_zero_pool *pool)
{
	return &pool->h->hugepage_freelists[pool->nid];
}

enum hugetlb_zero_cluster hugetlb_zero_cluster(struct folio *folio)
{
	if (folio_test_hugetlb_zeroed(folio))
		return HUGETLB_ZERO_ZEROED;
	if (folio_test_hugetlb_zeroing(folio))
		return HUGETLB_ZERO_ZEROING;
	return HUGETLB_ZERO_DIRTY;
}

/* First entry of a cluster; its end if it is empty. */
static struct list_head *hugetlb_zero_begin(struct hugetlb_zero_pool *pool,
					    enum hugetlb_zero_cluster cluster)
{
	switch (cluster) {
	case HUGETLB_ZERO_ZEROED:
		return hugetlb_zero_freelist(pool)->next;
	case HUGETLB_ZERO_ZEROING:
		return pool->last_zeroed->next;
	default:
		return pool->last_zeroing->next;
	}
}

/* First entry behind a cluster. */
static struct list_head *hugetlb_zero_end(struct hugetlb_zero_pool *pool,
					  enum hugetlb_zero_cluster cluster)
{
	switch (cluster) {
	case HUGETLB_ZERO_ZEROED:
		return pool->last_zeroed->next;
	case HUGETLB_ZERO_ZEROING:
		return pool->last_zeroing->next;
	default:
		return hugetlb_zero_freelist(pool);
	}
}

/* From now on each folio that comes or goes is looked at. */
void hugetlb_zero_track(struct hugetlb_zero_pool *pool)
{
	lockdep_assert_held(&hugetlb_lock);
	pool->h->zero_tracked[pool->nid] = true;
}

/*
 * Add at the beginning of the cluster that the folio's flags say, so that what
 * was freed last, and is warm in the caches, is taken first. A dirty folio that
 * somebody has begun to zero goes to the end, where the next zeroer begins.
 */
void hugetlb_zero_add(struct hugetlb_zero_pool *pool, struct folio *folio)
{
	struct list_head *freelist = hugetlb_zero_freelist(pool);
	struct list_head *entry = &folio->lru;

	switch (hugetlb_zero_cluster(folio)) {
	case HUGETLB_ZERO_ZEROED:
		hugetlb_zero_track(pool);
		list_add(entry, freelist);
		if (pool->last_zeroing == freelist)
			pool->last_zeroing = entry;
		if (pool->last_zeroed == freelist)
			pool->last_zeroed = entry;
		pool->nr_zeroed++;
		break;
	case HUGETLB_ZERO_ZEROING:
		hugetlb_zero_track(pool);
		list_add(entry, pool->last_zeroed);
		if (pool->last_zeroing == pool->last_zeroed)
			pool->last_zeroing = entry;
		pool->nr_zeroing++;
		break;
	default:
		if (hugetlb_zero_done(folio))
			list_add_tail(entry, freelist);
		else
			list_add(entry, pool->last_zeroing);
		break;
	}
}

/* Forget the folio's place. It stays linked: the caller moves or deletes it. */
void hugetlb_zero_del(struct hugetlb_zero_pool *pool, struct folio *folio)
{
	struct list_head *entry = &folio->lru;

	switch (hugetlb_zero_cluster(folio)) {
	case HUGETLB_ZERO_ZEROED:
		pool->nr_zeroed--;
		break;
	case HUGETLB_ZERO_ZEROING:
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
void hugetlb_zero_skip(struct hugetlb_zero_pool *pool, struct folio *folio)
{
	hugetlb_zero_track(pool);
	folio_set_hugetlb_zero_skip(folio);
	hugetlb_zero_set_done(folio, 0);
	pool->nr_skipped++;
}

void hugetlb_zero_unskip(struct hugetlb_zero_pool *pool, struct folio *folio)
{
	folio_clear_hugetlb_zero_skip(folio);
	pool->nr_skipped--;
}

/*
 * Zeroed folios before dirty ones for who wants zero, the other way round for
 * who overwrites; those being zeroed only if nothing else is free.
 */
static const enum hugetlb_zero_cluster
hugetlb_zero_orders[2][NR_HUGETLB_ZERO_CLUSTERS] = {
	[true] = {
		HUGETLB_ZERO_ZEROED, HUGETLB_ZERO_DIRTY, HUGETLB_ZERO_ZEROING,
	},
	[false] = {
		HUGETLB_ZERO_DIRTY, HUGETLB_ZERO_ZEROED, HUGETLB_ZERO_ZEROING,
	},
};

/* The first folio of the first cluster that has one, from @from in the order. */
static struct folio *hugetlb_zero_first_from(struct hugetlb_zero_pool *pool,
					     bool want, int from)
{
	for (; from < NR_HUGETLB_ZERO_CLUSTERS; from++) {
		enum hugetlb_zero_cluster cluster =
			hugetlb_zero_orders[want][from];
		struct list_head *entry = hugetlb_zero_begin(pool, cluster);

		if (entry != hugetlb_zero_end(pool, cluster))
			return list_entry(entry, struct folio, lru);
	}
	return NULL;
}

struct folio *hugetlb_zero_pool_first(struct hugetlb_zero_pool *pool, bool want)
{
	return hugetlb_zero_first_from(pool, want, 0);
}

struct folio *hugetlb_zero_pool_next(struct hugetlb_zero_pool *pool,
				     struct folio *folio, bool want)
{
	enum hugetlb_zero_cluster cluster = hugetlb_zero_cluster(folio);
	struct list_head *next = folio->lru.next;
	int i;

	if (next != hugetlb_zero_end(pool, cluster))
		return list_entry(next, struct folio, lru);
	for (i = 0; hugetlb_zero_orders[want][i] != cluster; i++)
		;
	return hugetlb_zero_first_from(pool, want, i + 1);
}
