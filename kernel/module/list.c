// SPDX-License-Identifier: GPL-2.0-only
/*
 * The free list of a pool: zeroed folios, then dirty ones.
 *
 * Every way onto it is enqueue_hugetlb_folio(), every way off it is
 * dequeue_hugetlb_folio_nodemask() or remove_hugetlb_folio(), all under
 * hugetlb_lock and all hooked; the rest is this module's. So the order and the
 * counters are exact, and each step takes constant time. A kernel that inlined one
 * of those functions would make a counter wrong, which PREZERO_UNSEEN shows. The
 * list stays valid even then: no pointer to a folio outside of it is followed.
 */
#include "mark.h"

unsigned long hugetlb_zero_zeroable(struct hugetlb_zero_pool *pool)
{
	unsigned long free = pool->h->free_huge_pages_node[pool->nid];
	unsigned long others = pool->nr_zeroed + pool->nr_zeroing +
			       pool->nr_skipped;

	lockdep_assert_held(&hugetlb_lock);
	return free > others ? free - others : 0;
}

struct list_head *hugetlb_zero_freelist(struct hugetlb_zero_pool *pool)
{
	return &pool->h->hugepage_freelists[pool->nid];
}

static bool prezero_counted(struct folio *folio)
{
	return test_bit(PREZERO_COUNTED, prezero_bits(folio));
}

static void prezero_uncount(struct prezero_pool *pool, struct folio *folio)
{
	if (test_and_clear_bit(PREZERO_COUNTED, prezero_bits(folio)))
		pool->zero.nr_zeroed--;
	if (test_and_clear_bit(PREZERO_SKIPPED, prezero_bits(folio)))
		pool->zero.nr_skipped--;
}

/* A folio with a memory error is neither allocated nor zeroed. */
static void prezero_skip(struct prezero_pool *pool, struct folio *folio)
{
	prezero_unmark(folio);
	prezero_uncount(pool, folio);
	set_bit(PREZERO_SKIPPED, prezero_bits(folio));
	pool->zero.nr_skipped++;
}

/*
 * Restore the order: move the dirty folio that was added last behind the zeroed ones,
 * if it is still in front. A zeroed folio in front may have got a memory error.
 */
void prezero_settle(struct prezero_pool *pool)
{
	struct list_head *list = hugetlb_zero_freelist(&pool->zero);
	struct folio *newest = pool->newest, *first;

	lockdep_assert_held(&hugetlb_lock);
	pool->newest = NULL;
	if (!pool->zero.nr_zeroed || list_empty(list))
		return;
	first = list_first_entry(list, struct folio, lru);
	if (prezero_counted(first) && folio_test_hwpoison(first))
		prezero_skip(pool, first);
	else if (first != newest)
		return;
	list_move_tail(&first->lru, list);
}

/* For an allocation that overwrites: put a dirty folio in front, if there is one. */
void prezero_dirty_first(struct prezero_pool *pool)
{
	struct list_head *list = hugetlb_zero_freelist(&pool->zero);
	struct folio *last;

	prezero_settle(pool);
	if (!pool->zero.nr_zeroed || list_empty(list))
		return;
	last = list_last_entry(list, struct folio, lru);
	if (prezero_counted(last))
		return;
	list_move(&last->lru, list);
	pool->newest = last;
}

/* A folio to zero, from the end of the list, or NULL. */
struct folio *prezero_first_dirty(struct prezero_pool *pool)
{
	struct folio *folio;

	prezero_settle(pool);
	list_for_each_entry_reverse(folio, hugetlb_zero_freelist(&pool->zero),
				    lru) {
		if (prezero_counted(folio))
			return NULL;
		if (folio_test_hwpoison(folio)) {
			prezero_skip(pool, folio);
			continue;
		}
		/* debugfs can withdraw an error. */
		prezero_uncount(pool, folio);
		if (!prezero_is_leaving(folio))
			return folio;
	}
	return NULL;
}

/*
 * Return a frozen folio from its zeroer, with @done base pages zero. It was counted
 * as free all the time.
 */
void prezero_put(struct prezero_pool *pool, struct folio *folio,
		 unsigned long done)
{
	struct list_head *list = hugetlb_zero_freelist(&pool->zero);

	prezero_settle(pool);
	list_move_tail(&folio->lru, list);
	if (folio_test_hwpoison(folio)) {
		prezero_skip(pool, folio);
	} else if (done) {
		prezero_mark(folio, done);
		if (done == folio_nr_pages(folio)) {
			set_bit(PREZERO_COUNTED, prezero_bits(folio));
			pool->zero.nr_zeroed++;
			list_move(&folio->lru, list);
		}
	}
	set_bit(HPG_freed, prezero_bits(folio));
	hugetlb_zero_changed(&pool->zero);
}

/* The kernel is about to add a folio, in front. */
void prezero_arrive(struct prezero_pool *pool, struct folio *folio)
{
	prezero_settle(pool);
	if (prezero_counted(folio))
		prezero_count(PREZERO_UNSEEN);
	prezero_unmark(folio);
	prezero_uncount(pool, folio);
	clear_bit(PREZERO_WAITED, prezero_bits(folio));
	if (folio_test_hwpoison(folio))
		prezero_skip(pool, folio);
	pool->newest = folio;
	hugetlb_zero_changed(&pool->zero);
}

/* A folio is leaving, or has left. */
void prezero_depart(struct prezero_pool *pool, struct folio *folio)
{
	lockdep_assert_held(&hugetlb_lock);
	if (pool->newest == folio)
		pool->newest = NULL;
	prezero_uncount(pool, folio);
	hugetlb_zero_changed(&pool->zero);
}
