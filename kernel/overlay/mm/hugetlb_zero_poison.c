// SPDX-License-Identifier: GPL-2.0-only
/*
 * Free hugetlb folios with memory errors: neither zeroed nor zeroable.
 */
#include <linux/hugetlb_zero.h>
#include "hugetlb_zero.h"
#include "hugetlb_zero_internal.h"

void hugetlb_zero_poison(struct folio *folio)
{
	struct hugetlb_zero_pool *pool;

	lockdep_assert_held(&hugetlb_lock);
	if (!folio_test_hugetlb_freed(folio) ||
	    folio_test_hugetlb_zero_skip(folio))
		return;

	/*
	 * A job that works on it notices, and hugetlb_zero_job_finish() sees to
	 * the rest.
	 */
	if (folio_test_hugetlb_zeroing(folio))
		return;

	pool = hugetlb_zero_pool(folio_hstate(folio), folio_nid(folio));
	hugetlb_zero_del(pool, folio);
	list_del(&folio->lru);
	folio_clear_hugetlb_zeroed(folio);
	hugetlb_zero_skip(pool, folio);
	hugetlb_zero_add(pool, folio);
	hugetlb_zero_changed(pool);
}

/*
 * Whatever it contains now, nobody has cleared it since the error: dirty. Unless
 * there was the next error before we got the lock.
 */
void hugetlb_zero_unpoison(struct folio *folio)
{
	spin_lock_irq(&hugetlb_lock);
	if (folio_test_hugetlb(folio) && folio_test_hugetlb_freed(folio) &&
	    folio_test_hugetlb_zero_skip(folio) &&
	    !folio_test_hwpoison(folio)) {
		struct hugetlb_zero_pool *pool =
			hugetlb_zero_pool(folio_hstate(folio),
					  folio_nid(folio));

		hugetlb_zero_unskip(pool, folio);
		hugetlb_zero_changed(pool);
	}
	spin_unlock_irq(&hugetlb_lock);
}
