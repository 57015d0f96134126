// SPDX-License-Identifier: GPL-2.0-only
/*
 * /sys/devices/system/node/nodeN/hugepages/hugepages-SIZEkB/:
 *
 *	zeroable_hugepages	rw, poll
 *	zeroed_hugepages	r, poll
 *	zeroed_low		rw
 *	zeroed_hits		r
 *	zeroed_misses		r
 *
 * as in the series, see Documentation/ABI/testing/sysfs-devices-node-hugepages-zero
 * there. They differ in how a write goes on that is interrupted: the series has a
 * restart block for that, which can't lead into a module.
 */
#include <linux/hash.h>
#include <linux/kobject.h>
#include <linux/kstrtox.h>
#include <linux/sched/signal.h>
#include <linux/sysfs.h>
#include "prezero.h"

static struct hugetlb_zero_pool *prezero_of(struct kobject *kobj)
{
	struct hstate *h;
	int nid;

	for_each_hstate(h)
		for (nid = 0; nid < nr_node_ids; nid++)
			if (READ_ONCE(hugetlb_zero_pool(h, nid)->kobj) == kobj)
				return hugetlb_zero_pool(h, nid);
	return NULL;
}

static ssize_t zeroable_hugepages_show(struct kobject *kobj,
				       struct kobj_attribute *attr, char *buf)
{
	struct hugetlb_zero_pool *pool = prezero_of(kobj);
	unsigned long nr;

	if (!pool)
		return -ENODEV;
	spin_lock_irq(&hugetlb_lock);
	hugetlb_zero_arm(pool, HUGETLB_ZERO_FILE_ZEROABLE);
	nr = hugetlb_zero_zeroable(pool);
	spin_unlock_irq(&hugetlb_lock);
	return sysfs_emit(buf, "%lu\n", nr);
}

/**
 * struct prezero_rest - the remainder of an interrupted write
 * @pool: the pool whose file was written, or NULL
 * @task: the writer; @started tells it from a later task at the same address
 * @started: start time of the writer
 * @asked: number of folios that it wrote
 * @left: number of folios that remain to be zeroed
 *
 * The system call is restarted with the number that the task wrote, and continues
 * with the remainder. After a signal handler, which makes it fail with EINTR, the
 * task's next write of the same number to the same file continues as well. A slot
 * that two tasks hash to keeps the later remainder.
 */
struct prezero_rest {
	struct hugetlb_zero_pool	*pool;
	struct task_struct		*task;
	u64				started;
	unsigned long			asked;
	unsigned long			left;
};

/* Protected by hugetlb_lock. */
static struct prezero_rest prezero_rests[64];

static struct prezero_rest *prezero_rest_of(void)
{
	return &prezero_rests[hash_ptr(current, ilog2(ARRAY_SIZE(prezero_rests)))];
}

/* The number of folios to zero for a write of @asked. */
static unsigned long prezero_resume(struct hugetlb_zero_pool *pool,
				    unsigned long asked)
{
	struct prezero_rest *rest = prezero_rest_of();
	unsigned long left = asked;

	spin_lock_irq(&hugetlb_lock);
	if (rest->pool == pool && rest->task == current &&
	    rest->started == current->start_boottime && rest->asked == asked)
		left = rest->left;
	if (rest->task == current)
		rest->pool = NULL;
	spin_unlock_irq(&hugetlb_lock);
	return left;
}

static void prezero_interrupt(struct hugetlb_zero_pool *pool,
			      unsigned long asked, unsigned long left)
{
	struct prezero_rest *rest = prezero_rest_of();

	spin_lock_irq(&hugetlb_lock);
	rest->pool = pool;
	rest->task = current;
	rest->started = current->start_boottime;
	rest->asked = asked;
	rest->left = left;
	spin_unlock_irq(&hugetlb_lock);
}

static ssize_t zeroable_hugepages_store(struct kobject *kobj,
					struct kobj_attribute *attr,
					const char *buf, size_t len)
{
	struct hugetlb_zero_pool *pool = prezero_of(kobj);
	unsigned long nr = ULONG_MAX, left, zeroed;
	int err;

	if (!pool)
		return -ENODEV;
	if (!sysfs_streq(buf, "max") && kstrtoul(buf, 10, &nr))
		return -EINVAL;
	left = prezero_resume(pool, nr);
	err = hugetlb_zero_run(pool, left, &zeroed);
	if (err != -EINTR)
		return err ? err : len;
	/* A worker of io_uring is in no system call that could be restarted. */
	if (current->flags & PF_USER_WORKER)
		return err;
	/* All of a "max" is left whatever was done. */
	if (nr != ULONG_MAX)
		prezero_interrupt(pool, nr, left - zeroed);
	/* The return to user space restarts a call only with this flag. */
	set_tsk_thread_flag(current, TIF_SIGPENDING);
	return -ERESTARTNOHAND;
}

static ssize_t zeroed_hugepages_show(struct kobject *kobj,
				     struct kobj_attribute *attr, char *buf)
{
	struct hugetlb_zero_pool *pool = prezero_of(kobj);
	unsigned long nr;

	if (!pool)
		return -ENODEV;
	spin_lock_irq(&hugetlb_lock);
	hugetlb_zero_arm(pool, HUGETLB_ZERO_FILE_ZEROED);
	nr = pool->nr_zeroed;
	spin_unlock_irq(&hugetlb_lock);
	return sysfs_emit(buf, "%lu\n", nr);
}

static ssize_t zeroed_low_show(struct kobject *kobj,
			       struct kobj_attribute *attr, char *buf)
{
	struct hugetlb_zero_pool *pool = prezero_of(kobj);

	if (!pool)
		return -ENODEV;
	return sysfs_emit(buf, "%lu\n", READ_ONCE(pool->low));
}

static ssize_t zeroed_low_store(struct kobject *kobj,
				struct kobj_attribute *attr,
				const char *buf, size_t len)
{
	struct hugetlb_zero_pool *pool = prezero_of(kobj);
	unsigned long low;

	if (!pool)
		return -ENODEV;
	if (kstrtoul(buf, 10, &low))
		return -EINVAL;
	hugetlb_zero_set_low(pool, low);
	return len;
}

static ssize_t zeroed_hits_show(struct kobject *kobj,
				struct kobj_attribute *attr, char *buf)
{
	struct hugetlb_zero_pool *pool = prezero_of(kobj);

	if (!pool)
		return -ENODEV;
	return sysfs_emit(buf, "%ld\n", atomic_long_read(&pool->hits));
}

static ssize_t zeroed_misses_show(struct kobject *kobj,
				  struct kobj_attribute *attr, char *buf)
{
	struct hugetlb_zero_pool *pool = prezero_of(kobj);

	if (!pool)
		return -ENODEV;
	return sysfs_emit(buf, "%ld\n", atomic_long_read(&pool->misses));
}

static struct kobj_attribute zeroable_hugepages_attr =
	__ATTR_RW(zeroable_hugepages);
static struct kobj_attribute zeroed_hugepages_attr =
	__ATTR_RO(zeroed_hugepages);
static struct kobj_attribute zeroed_low_attr = __ATTR_RW(zeroed_low);
static struct kobj_attribute zeroed_hits_attr = __ATTR_RO(zeroed_hits);
static struct kobj_attribute zeroed_misses_attr = __ATTR_RO(zeroed_misses);

static struct attribute *prezero_attrs[] = {
	&zeroable_hugepages_attr.attr,
	&zeroed_hugepages_attr.attr,
	&zeroed_low_attr.attr,
	&zeroed_hits_attr.attr,
	&zeroed_misses_attr.attr,
	NULL,
};

static const struct attribute_group prezero_attr_group = {
	.attrs = prezero_attrs,
};

int prezero_files_add(struct hugetlb_zero_pool *pool, struct kobject *kobj)
{
	struct kernfs_node *zeroable, *zeroed;
	int err;

	hugetlb_zero_pool_appear(pool);
	WRITE_ONCE(pool->kobj, kobj);
	err = sysfs_create_group(kobj, &prezero_attr_group);
	if (err) {
		hugetlb_zero_pool_vanish(pool);
		WRITE_ONCE(pool->kobj, NULL);
		return err;
	}
	zeroable = sysfs_get_dirent(kobj->sd, "zeroable_hugepages");
	zeroed = sysfs_get_dirent(kobj->sd, "zeroed_hugepages");

	/* A file could be read before: report changes since then as well. */
	spin_lock_irq(&hugetlb_lock);
	pool->files[HUGETLB_ZERO_FILE_ZEROABLE] = zeroable;
	pool->files[HUGETLB_ZERO_FILE_ZEROED] = zeroed;
	if (pool->pending)
		hugetlb_zero_changed(pool);
	spin_unlock_irq(&hugetlb_lock);
	return 0;
}

/* Waits for readers and writers of the files; zeroers stop within a unit. */
void prezero_files_del(struct hugetlb_zero_pool *pool)
{
	struct kernfs_node *files[NR_HUGETLB_ZERO_FILES];
	int file;

	hugetlb_zero_pool_vanish(pool);
	sysfs_remove_group(pool->kobj, &prezero_attr_group);
	WRITE_ONCE(pool->kobj, NULL);

	/* Readers may have armed it again meanwhile, from now on none can. */
	spin_lock_irq(&hugetlb_lock);
	pool->armed = 0;
	pool->pending = 0;
	for (file = 0; file < NR_HUGETLB_ZERO_FILES; file++) {
		files[file] = pool->files[file];
		pool->files[file] = NULL;
	}
	spin_unlock_irq(&hugetlb_lock);
	cancel_delayed_work_sync(&pool->work);
	for (file = 0; file < NR_HUGETLB_ZERO_FILES; file++)
		sysfs_put(files[file]);
}
