// SPDX-License-Identifier: GPL-2.0-only
/*
 * Zeroing hugetlb pages without being asked: when they are freed
 * (hugetlb_zero_on_free=1) and when they come into the pool
 * (hugetlb_zero_at_growth=1). Both are off by default, and both are on the
 * account of whoever frees or asks for the pages.
 */
#include <linux/init.h>
#include <linux/kstrtox.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/task_work.h>
#include "hugetlb_zero.h"

static bool zero_on_free __ro_after_init;
static bool zero_at_growth __ro_after_init;

/**
 * struct zero_freed - what a task has freed and is to zero
 * @head: runs on the task's way back to user space, or out
 * @pool: where
 * @nr: how many folios; protected by hugetlb_lock
 */
struct zero_freed {
	struct callback_head		head;
	struct hugetlb_zero_pool	*pool;
	unsigned long			nr;
};

static void zero_freed_work(struct callback_head *head)
{
	struct zero_freed *freed = container_of(head, struct zero_freed, head);
	struct hugetlb_zero_pool *pool = freed->pool;
	unsigned long zeroed;

	spin_lock_irq(&hugetlb_lock);
	if (pool->freed == freed)
		pool->freed = NULL;
	spin_unlock_irq(&hugetlb_lock);
	/* Not stoppable: a dying task always has a signal pending. */
	hugetlb_zero_run(pool, freed->nr, false, &zeroed);
	kfree(freed);
}

/*
 * A folio was freed, in any context. With hugetlb_zero_on_free the task that
 * freed it zeroes as many as it freed, later, when it holds no locks; the folio
 * can be allocated meanwhile. Folios freed by interrupts and kernel threads, or
 * when there is no memory for the note, stay dirty.
 */
void hugetlb_zero_freed(struct hstate *h, int nid)
{
	struct hugetlb_zero_pool *pool;
	struct zero_freed *freed;
	unsigned long flags;

	if (!zero_on_free || !in_task() || current->flags & PF_KTHREAD)
		return;

	pool = hugetlb_zero_pool(h, nid);
	spin_lock_irqsave(&hugetlb_lock, flags);
	freed = pool->freed;
	if (freed && pool->freed_by == current) {
		freed->nr++;
		spin_unlock_irqrestore(&hugetlb_lock, flags);
		return;
	}
	spin_unlock_irqrestore(&hugetlb_lock, flags);

	freed = kmalloc(sizeof(*freed), GFP_NOWAIT | __GFP_NOWARN);
	if (!freed)
		return;
	init_task_work(&freed->head, zero_freed_work);
	freed->pool = pool;
	freed->nr = 1;
	if (task_work_add(current, &freed->head, TWA_RESUME)) {
		kfree(freed);
		return;
	}
	spin_lock_irqsave(&hugetlb_lock, flags);
	pool->freed = freed;
	pool->freed_by = current;
	spin_unlock_irqrestore(&hugetlb_lock, flags);
}

/*
 * A folio fresh from the page allocator, not yet in the pool. With
 * hugetlb_zero_at_growth whoever makes the pool larger zeroes it; at boot these
 * are the threads that prepare the pool, several per node.
 */
void hugetlb_zero_grown(struct folio *folio)
{
	unsigned long nr = folio_nr_pages(folio), i, n;

	if (!zero_at_growth)
		return;
	for (i = 0; i < nr; i += n) {
		if (signal_pending(current))
			return;
		n = min_t(unsigned long, nr - i, HUGETLB_ZERO_UNIT);
		hugetlb_zero_unit(folio, i, n);
		cond_resched();
	}
	folio_set_hugetlb_zeroed(folio);
}

static int __init zero_on_free_setup(char *str)
{
	return !kstrtobool(str, &zero_on_free);
}
__setup("hugetlb_zero_on_free=", zero_on_free_setup);

static int __init zero_at_growth_setup(char *str)
{
	return !kstrtobool(str, &zero_at_growth);
}
__setup("hugetlb_zero_at_growth=", zero_at_growth_setup);
