// SPDX-License-Identifier: GPL-2.0-only
/*
 * prezero.ko: huge pages of the kernel's own pool, zeroed before they are asked
 * for. See DESIGN.md.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/memory_hotplug.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/random.h>
#include <linux/rcupdate.h>
#include "mark.h"

bool prezero_verify;
module_param_named(verify, prezero_verify, bool, 0644);
MODULE_PARM_DESC(verify, "read each zeroed page again before it is handed out (slow)");

bool prezero_ranges;
module_param_named(ranges, prezero_ranges, bool, 0444);
MODULE_PARM_DESC(ranges, "clear other huge pages by ranges, as Linux 7.0 does");

atomic_long_t prezero_counters[NR_PREZERO_COUNTERS];
unsigned long prezero_magic;
DEFINE_PER_CPU(long, prezero_inside);

static const char *const prezero_counter_names[NR_PREZERO_COUNTERS] = {
	[PREZERO_ZEROED]	= "zeroed",
	[PREZERO_TAKEN]		= "taken",
	[PREZERO_RESUMED]	= "resumed",
	[PREZERO_FREED]		= "freed",
	[PREZERO_OUTLIVED]	= "outlived",
	[PREZERO_UNSEEN]	= "unseen",
	[PREZERO_SWEPT]		= "swept",
	[PREZERO_DIRTY]		= "dirty",
	[PREZERO_RANGED]	= "ranged",
};

/* There are pools. Protected by kernel_param_lock(), which readers hold. */
static bool prezero_ready;

static void prezero_set_ready(bool ready)
{
	kernel_param_lock(THIS_MODULE);
	prezero_ready = ready;
	kernel_param_unlock(THIS_MODULE);
}

static int prezero_stats_get(char *buf, const struct kernel_param *param)
{
	long hits = 0, misses = 0, waits = 0;
	struct hugetlb_zero_pool *pool;
	struct hstate *h;
	int nid, i, at;

	/* The file is there before prezero_init() and after prezero_exit(). */
	if (!prezero_ready)
		return 0;
	for_each_hstate(h)
		for (nid = 0; nid < nr_node_ids; nid++) {
			pool = hugetlb_zero_pool(h, nid);
			waits += atomic_long_read(&pool->waits);
			misses += atomic_long_read(&pool->misses);
			hits += atomic_long_read(&pool->hits);
		}
	at = sysfs_emit(buf, "hits %ld misses %ld waits %ld", hits, misses,
			waits);
	for (i = 0; i < NR_PREZERO_COUNTERS; i++)
		at += sysfs_emit_at(buf, at, " %s %ld",
				    prezero_counter_names[i],
				    atomic_long_read(&prezero_counters[i]));
	at += sysfs_emit_at(buf, at, "\n");
	return at;
}

static const struct kernel_param_ops prezero_stats_ops = {
	.get = prezero_stats_get,
};

module_param_cb(stats, &prezero_stats_ops, NULL, 0444);
MODULE_PARM_DESC(stats, "what was counted since the module was loaded");

static void prezero_sweep_folio(struct folio *folio)
{
	lockdep_assert_held(&hugetlb_lock);
	/* Where it is stable whether a folio is hugetlb's. */
	if (!folio_test_large(folio) || !folio_test_hugetlb(folio))
		return;
	if (test_and_clear_bit(PREZERO_MARK, prezero_bits(folio)))
		prezero_count(PREZERO_SWEPT);
	clear_bit(PREZERO_COUNTED, prezero_bits(folio));
	clear_bit(PREZERO_SKIPPED, prezero_bits(folio));
	clear_bit(PREZERO_WAITED, prezero_bits(folio));
}

static void prezero_sweep_range(unsigned long pfn, unsigned long end,
				unsigned long step)
{
	struct page *page;

	for (pfn = ALIGN_DOWN(pfn, step); pfn < end; pfn += step) {
		if (!(pfn & (step * 1024 - 1)))
			cond_resched();
		page = pfn_to_online_page(pfn);
		if (!page || !PageHead(page))
			continue;
		spin_lock_irq(&hugetlb_lock);
		prezero_sweep_folio((struct folio *)page);
		spin_unlock_irq(&hugetlb_lock);
	}
}

/* The largest size below @above, or of all sizes. The command line decides their index. */
static struct hstate *prezero_next_size(struct hstate *above)
{
	struct hstate *h, *next = NULL;

	for_each_hstate(h)
		if ((!above || h->order < above->order) &&
		    (!next || h->order > next->order))
			next = h;
	return next;
}

/*
 * Remove all marks, wherever the folio is: on a list, in use, isolated. Demotion and
 * HVO copy struct pages under resize_lock, so all sizes' locks are held. Demotion
 * takes the lock of the larger size first, and so does this.
 */
static void prezero_sweep(void)
{
	unsigned long step = ULONG_MAX;
	struct hstate *h;
	int nid;

	for (h = prezero_next_size(NULL); h; h = prezero_next_size(h)) {
		step = min(step, pages_per_huge_page(h));
		mutex_lock(&h->resize_lock);
	}
	for_each_node_state(nid, N_MEMORY)
		prezero_sweep_range(node_start_pfn(nid), node_end_pfn(nid),
				    step);
	for_each_hstate(h)
		mutex_unlock(&h->resize_lock);
}

/*
 * Wait until no task has an address of this module's text on its stack.
 * unregister_ftrace_function() has waited for tasks in a handler and in
 * prezero_dequeue(), which does not sleep. A task in prezero_zero_user() may sleep,
 * which RCU tasks takes for a quiescent state, so such tasks are counted. After the
 * last count they run, without sleeping, until they have returned.
 */
static void prezero_leave(void)
{
	long inside;
	int cpu;

	for (;;) {
		inside = 0;
		for_each_possible_cpu(cpu)
			inside += READ_ONCE(*per_cpu_ptr(&prezero_inside, cpu));
		if (!inside)
			break;
		msleep(20);
	}
	if (IS_ENABLED(CONFIG_TASKS_RCU))
		synchronize_rcu_tasks();
	synchronize_rcu();
}

static int __init prezero_init(void)
{
	int err;

	err = prezero_find_symbols();
	if (err)
		return err;
	err = prezero_check_layout();
	if (err)
		return err;
	if (PREZERO_KERNEL_RANGES && prezero_ranges) {
		pr_info("this kernel clears by ranges itself\n");
		prezero_ranges = false;
	}
	/* Above every page offset, and different at each load. */
	prezero_magic = (0x5aUL << 56 | get_random_u32() << 24) & ~PREZERO_DONE;

	err = prezero_pools_init();
	if (err)
		return err;
	err = prezero_hook();
	if (err)
		goto err_leave;
	/* The hooks remove marks by now and nothing sets one. */
	prezero_sweep();
	prezero_arm();
	err = prezero_nodes_init();
	if (err)
		goto err_hooks;
	err = prezero_device_init();
	if (err)
		goto err_nodes;
	prezero_set_ready(true);
	pr_info("loaded\n");
	return 0;

err_nodes:
	prezero_nodes_exit();
err_hooks:
	prezero_unhook();
err_leave:
	prezero_leave();
	prezero_pools_exit();
	return err;
}

static void __exit prezero_exit(void)
{
	prezero_device_exit();
	prezero_nodes_exit();
	prezero_unhook();
	prezero_leave();
	prezero_sweep();
	prezero_set_ready(false);
	prezero_pools_exit();
}

module_init(prezero_init);
module_exit(prezero_exit);
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
MODULE_DESCRIPTION("Huge pages of the kernel's pool, zeroed before they are asked for");
