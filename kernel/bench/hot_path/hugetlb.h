/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The functions of mm/hugetlb.c that move a folio out of its free list and back,
 * and the pool that they work on, for programs that are compiled with twin.h.
 */
#ifndef BENCH_HUGETLB_H
#define BENCH_HUGETLB_H

#include "mm/hugetlb_zero.h"
#ifdef CONFIG_HUGETLB_ZEROED
#include "mm/hugetlb_zero_internal.h"
#endif

struct hstate hstates[HUGE_MAX_HSTATE];
struct task_struct bench_task;
unsigned long bench_pageblock_bits;

/*
 * From mm/hugetlb.c, as the series leaves them. A list_move() in the place of
 * hugetlb_zero_enqueue(), and nothing but the plain loop, is what was there before.
 */
static __attribute__((noinline)) void
enqueue_hugetlb_folio(struct hstate *h, struct folio *folio)
{
	int nid = folio_nid(folio);

	h->free_huge_pages++;
	h->free_huge_pages_node[nid]++;
	folio_set_hugetlb_freed(folio);
	hugetlb_zero_enqueue(h, nid, folio);
}

static bool hugetlb_folio_can_dequeue(struct folio *folio, bool pin)
{
	if (pin && !folio_is_longterm_pinnable(folio))
		return false;

	if (folio_test_hwpoison(folio))
		return false;

	return !is_migrate_isolate_page(&folio->page);
}

static struct folio *__dequeue_hugetlb_folio(struct hstate *h, int nid,
					     struct folio *folio)
{
	list_move(&folio->lru, &h->hugepage_activelist);
	folio_ref_unfreeze(folio, 1);
	folio_clear_hugetlb_freed(folio);
	h->free_huge_pages--;
	h->free_huge_pages_node[nid]--;
	return folio;
}

/* Some free folios are zeroed or being zeroed: by what @req wants. */
static __attribute__((noinline)) struct folio *
dequeue_hugetlb_folio_tracked(struct hstate *h, int nid, bool pin,
			      struct hugetlb_zero_req *req)
{
	struct folio *folio;

	hugetlb_for_each_free_folio(folio, h, nid, req->want) {
		if (!hugetlb_folio_can_dequeue(folio, pin))
			continue;
		hugetlb_zero_dequeue(h, folio, req);
		return __dequeue_hugetlb_folio(h, nid, folio);
	}

	return NULL;
}

static __attribute__((noinline)) struct folio *
dequeue_hugetlb_folio_node_exact(struct hstate *h, int nid,
				 struct hugetlb_zero_req *req)
{
	struct folio *folio;
	bool pin = !!(current->flags & PF_MEMALLOC_PIN);

	if (hugetlb_zero_tracked(h, nid))
		return dequeue_hugetlb_folio_tracked(h, nid, pin, req);

	list_for_each_entry(folio, &h->hugepage_freelists[nid], lru) {
		if (!hugetlb_folio_can_dequeue(folio, pin))
			continue;
		req->zeroed = hugetlb_zero_begun(folio);
		return __dequeue_hugetlb_folio(h, nid, folio);
	}

	return NULL;
}

/* All of @folios, of node 1, are free and dirty. */
static inline void fill(struct folio *folios, int nr)
{
	struct hstate *h = &hstates[0];

	INIT_LIST_HEAD(&h->hugepage_activelist);
	for (int nid = 0; nid < nr_node_ids; nid++)
		INIT_LIST_HEAD(&h->hugepage_freelists[nid]);
	hugetlb_zero_init();
	for (int i = 0; i < nr; i++) {
		folios[i].page.flags = 1UL << NODES_PGSHIFT;
		INIT_LIST_HEAD(&folios[i].lru);
		enqueue_hugetlb_folio(h, &folios[i]);
	}
#ifdef CONFIG_HUGETLB_ZEROED
	hugetlb_zero_pool(h, 1)->present = true;
#endif
}

#endif /* BENCH_HUGETLB_H */
