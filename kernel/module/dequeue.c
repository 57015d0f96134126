// SPDX-License-Identifier: GPL-2.0-only
/*
 * The replacement of dequeue_hugetlb_folio_nodemask(), by which each allocation takes a
 * folio off a free list. It puts a zeroed or a dirty folio in front, calls the
 * kernel's function, and takes a folio back from a zeroer if none was free.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/hash.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/static_call.h>
#include "mark.h"

static struct folio *prezero_no_dequeue(struct hstate *h, gfp_t gfp_mask,
					int nid, nodemask_t *nmask)
{
	return NULL;
}

/* A direct call: IBT and kCFI check indirect ones only. */
DEFINE_STATIC_CALL(prezero_kernel_dequeue, prezero_no_dequeue);

/*
 * Callers that overwrite the whole folio, by their names in all kernels. A symbol may
 * have a suffix, such as .isra.0.
 */
static const char *const prezero_overwriters[] = {
	"hugetlb_wp",
	"copy_hugetlb_page_range",
	"hugetlb_mfill_atomic_pte",
	"hugetlb_mcopy_atomic_pte",
	"alloc_hugetlb_folio_nodemask",
	"alloc_huge_page_nodemask",
};

/* Return addresses that have been seen: there are about ten. */
struct prezero_caller {
	unsigned long	address;
	bool		overwrites;
};

static struct prezero_caller prezero_callers[32];
static DEFINE_RAW_SPINLOCK(prezero_callers_lock);

static bool prezero_find_overwriter(unsigned long address)
{
	char name[64];
	int i;

	snprintf(name, sizeof(name), "%ps", (void *)address);
	for (i = 0; i < ARRAY_SIZE(prezero_overwriters); i++)
		if (strstarts(name, prezero_overwriters[i]))
			return true;
	return false;
}

static bool prezero_overwrites(unsigned long address)
{
	struct prezero_caller *caller;
	unsigned long flags, known;
	bool overwrites;

	for (caller = prezero_callers;
	     caller < prezero_callers + ARRAY_SIZE(prezero_callers); caller++) {
		/* Pairs with the release below: @overwrites is there. */
		known = smp_load_acquire(&caller->address);
		if (known == address)
			return caller->overwrites;
		if (!known)
			break;
	}

	overwrites = prezero_find_overwriter(address);
	raw_spin_lock_irqsave(&prezero_callers_lock, flags);
	if (caller < prezero_callers + ARRAY_SIZE(prezero_callers) &&
	    !caller->address) {
		caller->overwrites = overwrites;
		/* Pairs with the acquire above. */
		smp_store_release(&caller->address, address);
	}
	raw_spin_unlock_irqrestore(&prezero_callers_lock, flags);
	return overwrites;
}

/*
 * Tasks inside alloc_hugetlb_folio() that will overwrite the folio. Of two tasks with
 * the same slot, one may get a zeroed folio, which wastes it and is harmless.
 */
static struct task_struct *prezero_copying[64];

static struct task_struct **prezero_slot(void)
{
	return &prezero_copying[hash_ptr(current, ilog2(ARRAY_SIZE(prezero_copying)))];
}

/* alloc_hugetlb_folio() is entered from @caller. */
void prezero_remember(unsigned long caller)
{
	struct task_struct **slot = prezero_slot();

	if (prezero_overwrites(caller))
		WRITE_ONCE(*slot, current);
	else if (READ_ONCE(*slot) == current)
		WRITE_ONCE(*slot, NULL);
}

static bool prezero_allowed(int nid, nodemask_t *nmask)
{
	return !nmask || node_isset(nid, *nmask);
}

static void prezero_order(struct hstate *h, nodemask_t *nmask, bool zeroed)
{
	struct prezero_pool *pool;
	int nid;

	for_each_node_state(nid, N_MEMORY) {
		if (!prezero_allowed(nid, nmask))
			continue;
		pool = to_prezero(hugetlb_zero_pool(h, nid));
		if (zeroed)
			prezero_settle(pool);
		else
			prezero_dirty_first(pool);
	}
}

/* No folio is free: take back one on each allowed node. */
static struct folio *prezero_retry(struct hstate *h, gfp_t gfp_mask, int nid,
				   nodemask_t *nmask)
{
	struct prezero_pool *pool;
	struct folio *folio;
	int node;

	for_each_node_state(node, N_MEMORY) {
		pool = to_prezero(hugetlb_zero_pool(h, node));
		if (!prezero_allowed(node, nmask) || !prezero_take_back(pool))
			continue;
		folio = static_call(prezero_kernel_dequeue)(h, gfp_mask, nid,
							    nmask);
		if (folio)
			return folio;
	}
	return NULL;
}

/* Called with hugetlb_lock, as what it stands in for. */
struct folio *prezero_dequeue(struct hstate *h, gfp_t gfp_mask, int nid,
			      nodemask_t *nmask)
{
	bool zeroed = !prezero_overwrites(_RET_IP_) &&
		      READ_ONCE(*prezero_slot()) != current;
	struct prezero_pool *pool;
	struct folio *folio;
	bool waited = false;

	lockdep_assert_held(&hugetlb_lock);
	prezero_order(h, nmask, zeroed);
	folio = static_call(prezero_kernel_dequeue)(h, gfp_mask, nid, nmask);
	if (!folio) {
		folio = prezero_retry(h, gfp_mask, nid, nmask);
		waited = true;
	}
	if (!folio)
		return NULL;

	/* This dequeue was the one that prezero_remember() was for. */
	if (READ_ONCE(*prezero_slot()) == current)
		WRITE_ONCE(*prezero_slot(), NULL);
	pool = to_prezero(hugetlb_zero_pool(h, folio_nid(folio)));
	prezero_depart(pool, folio);
	if (!zeroed)
		prezero_unmark(folio);
	else if (waited)
		set_bit(PREZERO_WAITED, prezero_bits(folio));
	return folio;
}

int prezero_dequeue_init(void)
{
	void *dequeue = prezero_find("dequeue_hugetlb_folio_nodemask") ?:
			prezero_find("dequeue_huge_page_nodemask");

	if (!dequeue) {
		pr_err("this kernel has no dequeue_hugetlb_folio_nodemask()\n");
		return -ENOENT;
	}
	static_call_update(prezero_kernel_dequeue, dequeue);
	return 0;
}
