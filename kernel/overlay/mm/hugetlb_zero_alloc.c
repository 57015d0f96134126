// SPDX-License-Identifier: GPL-2.0-only
/*
 * Who wants zero hugetlb memory: what is left to clear, and how a folio comes
 * back that nobody has written to.
 */
#include <linux/highmem.h>
#include <linux/hugetlb_zero.h>
#include "hugetlb_zero.h"
#include "hugetlb_zero_internal.h"
#include "internal.h"

/*
 * Whether a folio that comes from the page allocator is zero: cleared when it was
 * allocated, or when it was freed, as was then all that is free there.
 */
static bool hugetlb_zero_allocator_clears(void)
{
	return want_init_on_alloc(0) || want_init_on_free();
}

/* A folio straight from the page allocator goes to a user. */
void hugetlb_zero_fresh(struct folio *folio, struct hugetlb_zero_req *req)
{
	req->hit = false;
	req->waited = false;
	req->zeroed = hugetlb_zero_allocator_clears() ?
			      folio_nr_pages(folio) : 0;
}

/* A folio straight from the page allocator is about to be added to the pool. */
void hugetlb_zero_grown(struct folio *folio)
{
	if (hugetlb_zero_allocator_clears())
		folio_set_hugetlb_zeroed(folio);
}

/*
 * Without hugetlb_lock, which an allocation would have to take once more: what it
 * counts is known when the charge to a memory cgroup was not refused.
 */
void hugetlb_zero_count(struct hstate *h, struct folio *folio,
			const struct hugetlb_zero_req *req)
{
	struct hugetlb_zero_pool *pool = hugetlb_zero_pool(h, folio_nid(folio));

	if (!req->want)
		return;
	if (req->hit) {
		atomic_long_inc(&pool->hits);
		return;
	}
	atomic_long_inc(&pool->misses);
	if (req->waited)
		atomic_long_inc(&pool->waits);
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

void hugetlb_zero_return(struct folio *folio, unsigned long zeroed)
{
	if (zeroed == folio_nr_pages(folio))
		folio_set_hugetlb_zeroed(folio);
}
