// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/hugepagectl: ask how many hugetlb pages are zero, zero more of them, be
 * told when they run low. The interface is described where it is defined, in
 * include/uapi/linux/hugepagectl.h.
 */
#include <linux/array_size.h>
#include <linux/build_bug.h>
#include <linux/compat.h>
#include <linux/fs.h>
#include <linux/jiffies.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/nospec.h>
#include <linux/poll.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <uapi/linux/hugepagectl.h>
#include "hugetlb_zero_internal.h"

static_assert(sizeof(struct hugepagectl_query) == HUGEPAGECTL_QUERY_SIZE_VER1);
static_assert(sizeof(struct hugepagectl_zero) == HUGEPAGECTL_ZERO_SIZE_VER0);
static_assert(sizeof(struct hugepagectl_watch) == HUGEPAGECTL_WATCH_SIZE_VER1);

static struct hugetlb_zero_pool *hugepagectl_find_pool(s32 node, u32 page_shift)
{
	struct hugetlb_zero_pool *pool;
	struct hstate *h;

	if (node < 0 || node >= nr_node_ids)
		return NULL;
	node = array_index_nospec(node, nr_node_ids);
	for_each_hstate(h) {
		if (huge_page_shift(h) != page_shift)
			continue;
		pool = hugetlb_zero_pool(h, node);
		return READ_ONCE(pool->present) ? pool : NULL;
	}
	return NULL;
}

static long hugepagectl_do_query(struct file *file, void *arg)
{
	struct hugepagectl_query *query = arg;
	struct hugetlb_zero_pool *pool;
	struct sysinfo node = { };
	struct hstate *h;

	if (query->flags)
		return -EINVAL;
	pool = hugepagectl_find_pool(query->node, query->page_shift);
	if (!pool)
		return -ENODEV;

	h = pool->h;
	spin_lock_irq(&hugetlb_lock);
	query->total = h->nr_huge_pages_node[pool->nid];
	query->free = h->free_huge_pages_node[pool->nid];
	query->reserved = h->resv_huge_pages;
	query->zeroed = pool->nr_zeroed;
	query->zeroable = hugetlb_zero_zeroable(pool);
	query->zeroing = pool->nr_zeroing;
	spin_unlock_irq(&hugetlb_lock);
	/* Not after the misses, which they are part of. */
	query->waits = atomic_long_read(&pool->waits);
	query->misses = atomic_long_read(&pool->misses);
	query->hits = atomic_long_read(&pool->hits);

#ifdef CONFIG_NUMA
	si_meminfo_node(&node, pool->nid);
#else
	si_meminfo(&node);
#endif
	query->node_total = node.totalram;
	query->node_free = node.freeram;
	return 0;
}

static long hugepagectl_do_zero(struct file *file, void *arg)
{
	struct hugepagectl_zero *zero = arg;
	struct hugetlb_zero_pool *pool;
	unsigned long zeroed;
	int err;

	if (zero->flags)
		return -EINVAL;
	pool = hugepagectl_find_pool(zero->node, zero->page_shift);
	if (!pool)
		return -ENODEV;

	err = hugetlb_zero_run(pool, zero->pages, &zeroed);
	zero->zeroed = zeroed;
	if (zeroed)
		return 0;
	if (err != -EINTR)
		return err;
	/* Nothing to tell: once more from the start, if no handler runs. */
	set_tsk_thread_flag(current, TIF_SIGPENDING);
	return -ERESTARTNOHAND;
}

static long hugepagectl_do_watch(struct file *file, void *arg)
{
	struct hugetlb_zero_watch *watch = file->private_data;
	struct hugepagectl_watch *uwatch = arg;
	u32 interval = uwatch->min_interval_ms ?: HUGETLB_ZERO_INTERVAL_MS;
	struct hugetlb_zero_pool *pool;
	long err = 0;

	if (uwatch->flags & ~HUGEPAGECTL_WATCH_ZEROABLE || uwatch->reserved ||
	    interval > HUGEPAGECTL_WATCH_INTERVAL_MAX)
		return -EINVAL;
	pool = hugepagectl_find_pool(uwatch->node, uwatch->page_shift);
	if (!pool)
		return -ENODEV;

	spin_lock_irq(&hugetlb_lock);
	if (!pool->present) {
		err = -ENODEV;
		goto out;
	}
	hugetlb_zero_watch_del(watch);
	if (!uwatch->min_zeroed && !uwatch->min_free)
		goto out;
	watch->min_zeroed = uwatch->min_zeroed;
	watch->zeroable = uwatch->flags & HUGEPAGECTL_WATCH_ZEROABLE;
	watch->min_free = uwatch->min_free;
	watch->interval = msecs_to_jiffies(interval);
	hugetlb_zero_watch_add(watch, pool);
out:
	spin_unlock_irq(&hugetlb_lock);
	return err;
}

/* By _IOC_NR. The size in the number is the caller's, see hugepagectl_copy_in(). */
static const struct hugepagectl_call {
	long (*call)(struct file *file, void *arg);
	size_t size;
	size_t size_ver0;
	bool writes;
} hugepagectl_calls[] = {
	[_IOC_NR(HUGEPAGECTL_QUERY)] = {
		hugepagectl_do_query, sizeof(struct hugepagectl_query),
		HUGEPAGECTL_QUERY_SIZE_VER0, false,
	},
	[_IOC_NR(HUGEPAGECTL_ZERO)] = {
		hugepagectl_do_zero, sizeof(struct hugepagectl_zero),
		HUGEPAGECTL_ZERO_SIZE_VER0, true,
	},
	[_IOC_NR(HUGEPAGECTL_WATCH)] = {
		hugepagectl_do_watch, sizeof(struct hugepagectl_watch),
		HUGEPAGECTL_WATCH_SIZE_VER0, false,
	},
};

union hugepagectl_arg {
	u32 size;
	struct hugepagectl_query query;
	struct hugepagectl_zero zero;
	struct hugepagectl_watch watch;
};

/*
 * FUSE transfers as many bytes as the number says, so a struct must not claim
 * to be larger than that here either.
 */
static int hugepagectl_copy_in(union hugepagectl_arg *arg, unsigned int cmd,
			       const struct hugepagectl_call *call,
			       void __user *uarg)
{
	u32 size;
	int err;

	if (_IOC_SIZE(cmd) < call->size_ver0)
		return -EINVAL;
	if (get_user(size, (u32 __user *)uarg))
		return -EFAULT;
	if (size < call->size_ver0 || size > _IOC_SIZE(cmd))
		return -EINVAL;
	err = copy_struct_from_user(arg, call->size, uarg, size);
	if (err)
		return err;
	/* Not what was copied: it may have been changed since it was checked. */
	arg->size = min_t(size_t, size, call->size);
	return 0;
}

static long hugepagectl_ioctl(struct file *file, unsigned int cmd,
			      unsigned long uarg)
{
	union hugepagectl_arg arg = { };
	unsigned int nr = _IOC_NR(cmd);
	long err;

	if (_IOC_TYPE(cmd) != HUGEPAGECTL_IOC_TYPE ||
	    _IOC_DIR(cmd) != (_IOC_READ | _IOC_WRITE) ||
	    nr >= ARRAY_SIZE(hugepagectl_calls))
		return -ENOTTY;
	nr = array_index_nospec(nr, ARRAY_SIZE(hugepagectl_calls));
	if (hugepagectl_calls[nr].writes && !(file->f_mode & FMODE_WRITE))
		return -EPERM;

	err = hugepagectl_copy_in(&arg, cmd, &hugepagectl_calls[nr],
				  (void __user *)uarg);
	if (err)
		return err;
	err = hugepagectl_calls[nr].call(file, &arg);
	if (err)
		return err;
	if (copy_to_user((void __user *)uarg, &arg, arg.size))
		return -EFAULT;
	return 0;
}

static __poll_t hugepagectl_poll(struct file *file, poll_table *wait)
{
	struct hugetlb_zero_watch *watch = file->private_data;
	__poll_t mask = 0;

	poll_wait(file, &watch->wait, wait);
	spin_lock_irq(&hugetlb_lock);
	if (watch->gone)
		mask = EPOLLERR | EPOLLHUP;
	else if (hugetlb_zero_watch_ready(watch))
		mask = EPOLLIN | EPOLLRDNORM;
	spin_unlock_irq(&hugetlb_lock);
	return mask;
}

static int hugepagectl_open(struct inode *inode, struct file *file)
{
	struct hugetlb_zero_watch *watch;

	watch = kzalloc(sizeof(*watch), GFP_KERNEL_ACCOUNT);
	if (!watch)
		return -ENOMEM;
	INIT_LIST_HEAD(&watch->node);
	init_waitqueue_head(&watch->wait);
	file->private_data = watch;
	return nonseekable_open(inode, file);
}

static int hugepagectl_release(struct inode *inode, struct file *file)
{
	struct hugetlb_zero_watch *watch = file->private_data;

	spin_lock_irq(&hugetlb_lock);
	hugetlb_zero_watch_del(watch);
	spin_unlock_irq(&hugetlb_lock);
	kfree(watch);
	return 0;
}

static const struct file_operations hugepagectl_fops = {
	.owner		= THIS_MODULE,
	.open		= hugepagectl_open,
	.release	= hugepagectl_release,
	.unlocked_ioctl	= hugepagectl_ioctl,
	.compat_ioctl	= compat_ptr_ioctl,
	.poll		= hugepagectl_poll,
};

/* Who may read it may ask and watch, who may write it may zero. */
static struct miscdevice hugepagectl_device = {
	.minor	= MISC_DYNAMIC_MINOR,
	.name	= "hugepagectl",
	.fops	= &hugepagectl_fops,
	.mode	= 0640,
};

static int __init hugepagectl_init(void)
{
	if (!hugepages_supported())
		return 0;
	return misc_register(&hugepagectl_device);
}
device_initcall(hugepagectl_init);
