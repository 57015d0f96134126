// SPDX-License-Identifier: GPL-2.0-only
/*
 * hot_path - count the instructions that hugetlb_lock is held for
 *
 * The series' own C files, unchanged, and the two functions of mm/hugetlb.c that
 * move a folio out of its free list and back, compiled for user space: see twin.h.
 * A single-stepping processor counts what one dequeue and one enqueue execute, in
 * each state that a free list can be in. Compiled without CONFIG_HUGETLB_ZEROED it
 * counts what the kernel executes without the series.
 *
 * Prints one line for each state: its name, then the number.
 */
#include <signal.h>
#include <stdio.h>
#include "mm/hugetlb_zero.h"
#ifdef CONFIG_HUGETLB_ZEROED
#include "mm/hugetlb_zero_internal.h"
#endif

#define FOLIOS	8

struct hstate hstates[HUGE_MAX_HSTATE];
struct task_struct bench_task;
unsigned long bench_pageblock_bits;
static struct folio folios[FOLIOS];
static volatile unsigned long steps;

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

static void on_step(int signal)
{
	steps++;
}

static inline void trap(bool on)
{
	if (on)
		asm volatile("pushfq; orl $0x100, (%%rsp); popfq" ::: "memory", "cc");
	else
		asm volatile("pushfq; andl $~0x100, (%%rsp); popfq" ::: "memory", "cc");
}

/* One folio goes to a user that wants zero memory and comes back. */
static unsigned long count(void)
{
	struct hugetlb_zero_req req = { .want = true };
	struct folio *folio;
	unsigned long empty;

	steps = 0;
	trap(true);
	trap(false);
	empty = steps;
	steps = 0;
	trap(true);
	folio = dequeue_hugetlb_folio_node_exact(&hstates[0], 1, &req);
	enqueue_hugetlb_folio(&hstates[0], folio);
	trap(false);
	return steps - empty;
}

int main(void)
{
	struct hstate *h = &hstates[0];
	int nid, i;

	signal(SIGTRAP, on_step);
	INIT_LIST_HEAD(&h->hugepage_activelist);
	for (nid = 0; nid < nr_node_ids; nid++)
		INIT_LIST_HEAD(&h->hugepage_freelists[nid]);
	hugetlb_zero_init();
	for (i = 0; i < FOLIOS; i++) {
		folios[i].page.flags = 1UL << NODES_PGSHIFT;
		INIT_LIST_HEAD(&folios[i].lru);
		enqueue_hugetlb_folio(h, &folios[i]);
	}
	printf("never-zeroed %lu\n", count());
#ifdef CONFIG_HUGETLB_ZEROED
	struct hugetlb_zero_pool *pool = hugetlb_zero_pool(h, 1);
	unsigned long zeroed;

	pool->present = true;
	if (hugetlb_zero_run(pool, 2, &zeroed) || zeroed != 2)
		return 1;
	/* Both are handed out, one by one, and come back dirty. */
	printf("zeroed %lu\n", count());
	printf("last-zeroed %lu\n", count());
	printf("used-up %lu\n", count());
	hugetlb_zero_arm(pool, HUGETLB_ZERO_FILE_ZEROED);
	printf("awaited %lu\n", count());
#endif
	return 0;
}
