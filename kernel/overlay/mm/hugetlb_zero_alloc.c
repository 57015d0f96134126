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

/* A folio straight from the page allocator goes to a user. */
void hugetlb_zero_fresh(struct hstate *h, struct folio *folio,
			struct hugetlb_zero_req *req)
{
	lockdep_assert_held(&hugetlb_lock);
	req->zeroed = want_init_on_alloc(0) ? folio_nr_pages(folio) : 0;
	if (req->want)
		hugetlb_zero_pool(h, folio_nid(folio))->misses++;
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
