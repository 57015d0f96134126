// SPDX-License-Identifier: GPL-2.0-only
/*
 * Zeroing hugetlb pages without being asked: when they are freed
 * (hugetlb_zero_on_free=1) and when they come into the pool
 * (hugetlb_zero_at_growth=1). Both are off by default. In both the pages are
 * free first and zeroed after: nobody is refused a page for it.
 */
#include <linux/cpumask.h>
#include <linux/init.h>
#include <linux/kstrtox.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/task_work.h>
#include <linux/topology.h>
#include <linux/workqueue.h>
#include "hugetlb_zero.h"
#include "hugetlb_zero_internal.h"

static bool hugetlb_zero_on_free __ro_after_init;
static bool hugetlb_zero_at_growth __ro_after_init;

/**
 * struct hugetlb_zero_debt - what a task has freed and is to zero
 * @head: runs on the task's way back to user space, or out
 * @pool: where
 * @task: who
 * @nr: how many folios; protected by hugetlb_lock
 */
struct hugetlb_zero_debt {
	struct callback_head		head;
	struct hugetlb_zero_pool	*pool;
	struct task_struct		*task;
	unsigned long			nr;
};

/*
 * A task that lives stops for a signal, SIGKILL above all. One that exits has
 * no signal left to react to, and somebody waits for its end: a second at most.
 * What others take away while it is zeroed is not made up for.
 */
static void hugetlb_zero_debt_work(struct callback_head *head)
{
	struct hugetlb_zero_debt *debt =
		container_of(head, struct hugetlb_zero_debt, head);
	struct hugetlb_zero_pool *pool = debt->pool;
	unsigned int how = current->flags & PF_EXITING ?
				   HUGETLB_ZERO_BRIEF : HUGETLB_ZERO_STOPPABLE;
	unsigned long zeroed;

	spin_lock_irq(&hugetlb_lock);
	if (pool->debt == debt)
		pool->debt = NULL;
	spin_unlock_irq(&hugetlb_lock);
	hugetlb_zero_run(pool, debt->nr, how | HUGETLB_ZERO_BEGUN, &zeroed);
	kfree(debt);
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
	struct hugetlb_zero_debt *debt;
	unsigned long flags;

	if (!hugetlb_zero_on_free || !in_task() || current->flags & PF_KTHREAD)
		return;

	pool = hugetlb_zero_pool(h, nid);
	spin_lock_irqsave(&hugetlb_lock, flags);
	debt = pool->debt;
	if (debt && debt->task == current) {
		debt->nr++;
		spin_unlock_irqrestore(&hugetlb_lock, flags);
		return;
	}
	spin_unlock_irqrestore(&hugetlb_lock, flags);

	debt = kmalloc(sizeof(*debt), GFP_NOWAIT | __GFP_NOWARN);
	if (!debt)
		return;
	init_task_work(&debt->head, hugetlb_zero_debt_work);
	debt->pool = pool;
	debt->task = current;
	debt->nr = 1;
	if (task_work_add(current, &debt->head, TWA_RESUME)) {
		kfree(debt);
		return;
	}
	spin_lock_irqsave(&hugetlb_lock, flags);
	pool->debt = debt;
	spin_unlock_irqrestore(&hugetlb_lock, flags);
}

/*
 * A folio is about to be added to the pool. @zeroed: the page allocator has
 * cleared it (init_on_alloc), nobody needs to do so a second time.
 */
void hugetlb_zero_grown(struct hstate *h, struct folio *folio, bool zeroed)
{
	unsigned long flags;

	if (zeroed) {
		folio_set_hugetlb_zeroed(folio);
	} else if (hugetlb_zero_at_growth) {
		spin_lock_irqsave(&hugetlb_lock, flags);
		hugetlb_zero_pool(h, folio_nid(folio))->grown++;
		spin_unlock_irqrestore(&hugetlb_lock, flags);
	}
}

static unsigned long hugetlb_zero_take_grown(struct hugetlb_zero_pool *pool)
{
	unsigned long nr;

	spin_lock_irq(&hugetlb_lock);
	nr = pool->grown;
	pool->grown = 0;
	spin_unlock_irq(&hugetlb_lock);
	return nr;
}

/*
 * Whoever has made the pool larger has let go of its lock and added the folios.
 * With hugetlb_zero_at_growth it zeroes as many, until a signal comes.
 */
void hugetlb_zero_growth(struct hstate *h)
{
	unsigned long nr, zeroed;
	int nid;

	if (!hugetlb_zero_at_growth)
		return;
	for_each_online_node(nid) {
		nr = hugetlb_zero_take_grown(hugetlb_zero_pool(h, nid));
		hugetlb_zero_run(hugetlb_zero_pool(h, nid), nr,
				 HUGETLB_ZERO_STOPPABLE | HUGETLB_ZERO_BEGUN,
				 &zeroed);
	}
}

/**
 * struct hugetlb_zero_boot - what one kernel worker zeroes of a pool from boot
 * @work: runs unbound, on the CPUs of the node
 * @pool: the pool
 * @nr: how many folios
 */
struct hugetlb_zero_boot {
	struct work_struct		work;
	struct hugetlb_zero_pool	*pool;
	unsigned long			nr;
};

static void hugetlb_zero_boot_work(struct work_struct *work)
{
	struct hugetlb_zero_boot *boot =
		container_of(work, struct hugetlb_zero_boot, work);
	unsigned long zeroed;

	hugetlb_zero_run(boot->pool, boot->nr, HUGETLB_ZERO_BEGUN, &zeroed);
	kfree(boot);
}

/* A quarter of the node's CPUs: more of them only wait for its memory. */
static void __init hugetlb_zero_boot_pool(struct hugetlb_zero_pool *pool)
{
	unsigned long left = hugetlb_zero_take_grown(pool), share;
	unsigned int workers;

	workers = cpumask_weight(cpumask_of_node(pool->nid)) / 4;
	share = DIV_ROUND_UP(left, max(workers, 1U));
	while (left) {
		struct hugetlb_zero_boot *boot =
			kmalloc(sizeof(*boot), GFP_KERNEL);

		if (!boot)
			return;
		INIT_WORK(&boot->work, hugetlb_zero_boot_work);
		boot->pool = pool;
		boot->nr = min(share, left);
		left -= boot->nr;
		queue_work_node(pool->nid, system_dfl_wq, &boot->work);
	}
}

/* What the command line has put into the pools, beside the rest of the boot. */
static int __init hugetlb_zero_boot_init(void)
{
	struct hstate *h;
	int nid;

	if (!hugetlb_zero_at_growth)
		return 0;
	for_each_hstate(h)
		for_each_online_node(nid)
			hugetlb_zero_boot_pool(hugetlb_zero_pool(h, nid));
	return 0;
}
late_initcall(hugetlb_zero_boot_init);

static int __init hugetlb_zero_on_free_setup(char *str)
{
	return !kstrtobool(str, &hugetlb_zero_on_free);
}
__setup("hugetlb_zero_on_free=", hugetlb_zero_on_free_setup);

static int __init hugetlb_zero_at_growth_setup(char *str)
{
	return !kstrtobool(str, &hugetlb_zero_at_growth);
}
__setup("hugetlb_zero_at_growth=", hugetlb_zero_at_growth_setup);
