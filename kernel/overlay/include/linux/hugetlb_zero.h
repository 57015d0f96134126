/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the rest of the kernel needs to know about hugetlb pages that are zero
 * before they are asked for. See Documentation/mm/hugetlb_zero.rst.
 *
 * A caller that wants zero memory asks for it and is told how much it got:
 *
 *	folio = alloc_hugetlb_folio_zeroed(vma, addr, &zeroed);
 *	hugetlb_zero_user(folio, addr, zeroed);
 *
 * A caller that overwrites the whole folio keeps using alloc_hugetlb_folio()
 * and is given a dirty one as long as there is one.
 */
#ifndef _LINUX_HUGETLB_ZERO_H
#define _LINUX_HUGETLB_ZERO_H

#include <linux/hugetlb.h>
#include <linux/mm.h>

/*
 * Like alloc_hugetlb_folio() and alloc_hugetlb_folio_reserve(), for callers
 * that want zero memory. *@zeroed: how many base pages, from the first on, are
 * known to be zero; none without CONFIG_HUGETLB_ZEROED.
 */
struct folio *alloc_hugetlb_folio_zeroed(struct vm_area_struct *vma,
					 unsigned long addr,
					 unsigned long *zeroed);
struct folio *alloc_hugetlb_folio_reserve_zeroed(struct hstate *h,
						 int preferred_nid,
						 nodemask_t *nmask,
						 gfp_t gfp_mask,
						 unsigned long *zeroed);

#ifdef CONFIG_HUGETLB_ZEROED

/* Clear what is not known to be zero. @addr as for folio_zero_user(). */
void hugetlb_zero_user(struct folio *folio, unsigned long addr,
		       unsigned long zeroed);

/*
 * Before the last folio_put() of a folio that nobody has been able to write to
 * since it was allocated: so many of its base pages are zero.
 */
void hugetlb_zero_return(struct folio *folio, unsigned long zeroed);

/* A memory error was found in @folio (hugetlb_lock held), or forgotten. */
void hugetlb_zero_poison(struct folio *folio);
void hugetlb_zero_unpoison(struct folio *folio);

#else /* !CONFIG_HUGETLB_ZEROED */

#ifdef CONFIG_HUGETLB_PAGE
static inline void hugetlb_zero_user(struct folio *folio, unsigned long addr,
				     unsigned long zeroed)
{
	folio_zero_user(folio, addr);
}
#endif

static inline void hugetlb_zero_return(struct folio *folio,
				       unsigned long zeroed) { }
static inline void hugetlb_zero_poison(struct folio *folio) { }
static inline void hugetlb_zero_unpoison(struct folio *folio) { }

#endif /* CONFIG_HUGETLB_ZEROED */
#endif /* _LINUX_HUGETLB_ZERO_H */
