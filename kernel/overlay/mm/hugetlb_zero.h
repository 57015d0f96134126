/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * hugetlb pages that are zero before they are asked for: the hooks of hugetlb.c,
 * which are empty without CONFIG_HUGETLB_ZEROED. See
 * Documentation/mm/hugetlb_zero.rst.
 */
#ifndef _MM_HUGETLB_ZERO_H
#define _MM_HUGETLB_ZERO_H

#include <linux/hugetlb.h>
#include <linux/list.h>

struct kobject;

/**
 * struct hugetlb_zero_req - what an allocation wants, and what it gets
 * @want: in: zero memory. Who overwrites all of the folio leaves it false, and
 *	leaves the zeroed folios to others.
 * @zeroed: out: so many base pages, from the first on, are known to be zero
 * @hit: the folio was a zeroed one; for hugetlb_zero_count()
 * @waited: it was taken from its zeroer; likewise
 */
struct hugetlb_zero_req {
	bool		want;
	unsigned long	zeroed;
	bool		hit;
	bool		waited;
};

#ifdef CONFIG_HUGETLB_ZEROED

/*
 * Whether the free list of a node is more than a list of dirty folios: some are
 * zeroed, being zeroed or skipped, or a task waits for a change. Where it is not,
 * as on machines where no task zeroes pages, the hooks below do no more than the
 * list operation that they replace. hugetlb_zero_track() sets it, and
 * hugetlb_zero_untrack() resets it. Protected by hugetlb_lock.
 */
static inline bool hugetlb_zero_tracked(struct hstate *h, int nid)
{
	return unlikely(h->zero_tracked[nid]);
}

/* So much of a dirty folio is zero: what a zeroer had done before a signal came. */
static inline unsigned long hugetlb_zero_begun(struct folio *folio)
{
	return folio->index;
}

void hugetlb_zero_init(void);

/* Out of a tracked list. The folio stays linked: the caller moves it. */
void hugetlb_zero_dequeue(struct hstate *h, struct folio *folio,
			  struct hugetlb_zero_req *req);

void __hugetlb_zero_enqueue(struct hstate *h, int nid, struct folio *folio);
void __hugetlb_zero_remove(struct hstate *h, struct folio *folio);

/* The folio, frozen and on no or another list, becomes free. */
static inline void hugetlb_zero_enqueue(struct hstate *h, int nid,
					struct folio *folio)
{
	/* Users have left theirs there, see hugetlb_zero_begun(). */
	folio->index = 0;
	if (hugetlb_zero_tracked(h, nid) ||
	    unlikely(folio_test_hugetlb_zeroed(folio) ||
		     folio_test_hwpoison(folio)))
		__hugetlb_zero_enqueue(h, nid, folio);
	else
		list_move(&folio->lru, &h->hugepage_freelists[nid]);
}

/*
 * The folio leaves the pool, or was never free. HPG_zeroed stays for demotion,
 * which hands it on, and for add_hugetlb_folio(), which takes the folio back.
 */
static inline void hugetlb_zero_remove(struct hstate *h, struct folio *folio)
{
	if (hugetlb_zero_tracked(h, folio_nid(folio)))
		__hugetlb_zero_remove(h, folio);
}

/*
 * After one of the two ways out, without hugetlb_lock: until a zeroer has let go
 * of the folio, or of each of a list.
 */
void hugetlb_zero_settle(struct folio *folio);
void hugetlb_zero_settle_list(struct list_head *folios);

/* The same for who is told what is zero. */
void hugetlb_zero_taken(struct folio *folio, struct hugetlb_zero_req *req);

/* The folio comes straight from the page allocator, to a user or to the pool. */
void hugetlb_zero_fresh(struct folio *folio, struct hugetlb_zero_req *req);
void hugetlb_zero_grown(struct folio *folio);

/* The folio is handed out: nothing refuses it any more. */
void hugetlb_zero_count(struct hstate *h, struct folio *folio,
			const struct hugetlb_zero_req *req);

/* The directory of a node's pool comes and goes. */
void hugetlb_zero_register(struct hstate *h, int nid, struct kobject *kobj);
void hugetlb_zero_unregister(struct hstate *h, int nid);

struct folio *hugetlb_zero_first(struct hstate *h, int nid, bool want);
struct folio *hugetlb_zero_next(struct hstate *h, struct folio *folio,
				bool want);

/*
 * Outside the free list the flag says that a folio which is about to be put
 * there again, or its parts, are zero.
 */
static inline bool hugetlb_zero_test_clear(struct folio *folio)
{
	bool zeroed = folio_test_hugetlb_zeroed(folio);

	folio_clear_hugetlb_zeroed(folio);
	return zeroed;
}

static inline void hugetlb_zero_inherit(struct folio *folio, bool zeroed)
{
	if (zeroed)
		folio_set_hugetlb_zeroed(folio);
	else
		folio_clear_hugetlb_zeroed(folio);
}

/*
 * Walk the free folios of a node: zeroed ones first for who wants zero, dirty
 * ones first for who does not, and in any case those being zeroed last.
 */
#define hugetlb_for_each_free_folio(folio, h, nid, want)		\
	for (folio = hugetlb_zero_first(h, nid, want); folio;		\
	     folio = hugetlb_zero_next(h, folio, want))

#define hugetlb_for_each_free_folio_safe(folio, n, h, nid, want)	\
	for (folio = hugetlb_zero_first(h, nid, want),			\
	     n = folio ? hugetlb_zero_next(h, folio, want) : NULL;	\
	     folio;							\
	     folio = n, n = n ? hugetlb_zero_next(h, n, want) : NULL)

#else /* !CONFIG_HUGETLB_ZEROED */

static inline bool hugetlb_zero_tracked(struct hstate *h, int nid)
{
	return false;
}

static inline unsigned long hugetlb_zero_begun(struct folio *folio)
{
	return 0;
}

static inline void hugetlb_zero_init(void) { }

static inline void hugetlb_zero_enqueue(struct hstate *h, int nid,
					struct folio *folio)
{
	list_move(&folio->lru, &h->hugepage_freelists[nid]);
}

static inline void hugetlb_zero_dequeue(struct hstate *h, struct folio *folio,
					struct hugetlb_zero_req *req) { }
static inline void hugetlb_zero_remove(struct hstate *h,
				       struct folio *folio) { }
static inline void hugetlb_zero_settle(struct folio *folio) { }
static inline void hugetlb_zero_settle_list(struct list_head *folios) { }
static inline void hugetlb_zero_taken(struct folio *folio,
				      struct hugetlb_zero_req *req) { }
static inline void hugetlb_zero_fresh(struct folio *folio,
				      struct hugetlb_zero_req *req) { }
static inline void hugetlb_zero_grown(struct folio *folio) { }
static inline void hugetlb_zero_count(struct hstate *h, struct folio *folio,
				      const struct hugetlb_zero_req *req) { }
static inline void hugetlb_zero_register(struct hstate *h, int nid,
					 struct kobject *kobj) { }
static inline void hugetlb_zero_unregister(struct hstate *h, int nid) { }

static inline bool hugetlb_zero_test_clear(struct folio *folio)
{
	return false;
}

static inline void hugetlb_zero_inherit(struct folio *folio, bool zeroed) { }

static inline struct folio *hugetlb_zero_first(struct hstate *h, int nid,
					       bool want)
{
	return list_first_entry(&h->hugepage_freelists[nid], struct folio, lru);
}

#define hugetlb_for_each_free_folio(folio, h, nid, want)		\
	list_for_each_entry(folio, &(h)->hugepage_freelists[nid], lru)

#define hugetlb_for_each_free_folio_safe(folio, n, h, nid, want)	\
	list_for_each_entry_safe(folio, n, &(h)->hugepage_freelists[nid], lru)

#endif /* CONFIG_HUGETLB_ZEROED */
#endif /* _MM_HUGETLB_ZERO_H */
