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
 * See Documentation/ABI/testing/sysfs-devices-node-hugepages-zero.
 */
#define pr_fmt(fmt) "HugeTLB zero: " fmt

#include <linux/kobject.h>
#include <linux/kstrtox.h>
#include <linux/restart_block.h>
#include <linux/sched.h>
#include <linux/sysfs.h>
#include <linux/thread_info.h>
#include "hugetlb_zero.h"
#include "hugetlb_zero_internal.h"

/*
 * While a file is in use its kobject stays, and so does what is found here. The
 * directories of other pools may come and go meanwhile.
 */
static struct hugetlb_zero_pool *hugetlb_zero_of(struct kobject *kobj)
{
	struct hstate *h;
	int nid;

	for_each_hstate(h)
		for (nid = 0; nid < nr_node_ids; nid++)
			if (READ_ONCE(hugetlb_zero_pool(h, nid)->kobj) == kobj)
				return hugetlb_zero_pool(h, nid);
	return NULL;
}

/* A number of pages, in decimal. */
static int hugetlb_zero_parse(const char *buf, unsigned long *nr)
{
	return kstrtoul(buf, 10, nr) ? -EINVAL : 0;
}

static ssize_t zeroable_hugepages_show(struct kobject *kobj,
				       struct kobj_attribute *attr, char *buf)
{
	struct hugetlb_zero_pool *pool = hugetlb_zero_of(kobj);
	unsigned long nr;

	if (!pool)
		return -ENODEV;
	spin_lock_irq(&hugetlb_lock);
	hugetlb_zero_arm(pool, HUGETLB_ZERO_FILE_ZEROABLE);
	nr = hugetlb_zero_zeroable(pool);
	spin_unlock_irq(&hugetlb_lock);
	return sysfs_emit(buf, "%lu\n", nr);
}

static ssize_t hugetlb_zero_write(struct hugetlb_zero_pool *pool,
				  unsigned long nr, size_t len);

/* Holds nothing, not even the file: the pool is there for ever. */
static long hugetlb_zero_write_restart(struct restart_block *restart)
{
	restart->fn = do_no_restart_syscall;
	return hugetlb_zero_write(restart->hugetlb_zero.pool,
				  restart->hugetlb_zero.nr,
				  restart->hugetlb_zero.len);
}

/*
 * Zero @nr folios for a write of @len bytes. Task work, the freezer, a tracer or
 * a stop may want the task in user space meanwhile: the write goes on afterwards
 * with what is left of @nr, and who wrote does not notice. A signal handler ends
 * it with EINTR, as it ends nanosleep().
 */
static ssize_t hugetlb_zero_write(struct hugetlb_zero_pool *pool,
				  unsigned long nr, size_t len)
{
	struct restart_block *restart = &current->restart_block;
	unsigned long zeroed;
	int err = hugetlb_zero_run(pool, nr, &zeroed);

	if (err != -EINTR)
		return err ? err : len;
	/* A worker of io_uring is in no system call that could be restarted. */
	if (current->flags & PF_USER_WORKER)
		return -EINTR;
	restart->hugetlb_zero.pool = pool;
	restart->hugetlb_zero.nr = nr - zeroed;
	restart->hugetlb_zero.len = len;
	/* Without it nobody looks at the error, see restart_syscall(). */
	set_tsk_thread_flag(current, TIF_SIGPENDING);
	return set_restart_fn(restart, hugetlb_zero_write_restart);
}

static ssize_t zeroable_hugepages_store(struct kobject *kobj,
					struct kobj_attribute *attr,
					const char *buf, size_t len)
{
	struct hugetlb_zero_pool *pool = hugetlb_zero_of(kobj);
	struct kernfs_node *self;
	unsigned long nr;
	ssize_t ret;
	int err;

	if (!pool)
		return -ENODEV;
	if (sysfs_streq(buf, "max")) {
		nr = ULONG_MAX;
	} else {
		err = hugetlb_zero_parse(buf, &nr);
		if (err)
			return err;
	}
	/*
	 * A writer may be kept from the CPU, and whoever removes the node shall
	 * not wait until it is given one again: the file can go while we zero.
	 * The pool outlives it, see hugetlb_zero_init().
	 */
	self = sysfs_break_active_protection(kobj, &attr->attr);
	if (!self)
		return -ENODEV;
	ret = hugetlb_zero_write(pool, nr, len);
	sysfs_unbreak_active_protection(self);
	return ret;
}

static ssize_t zeroed_hugepages_show(struct kobject *kobj,
				     struct kobj_attribute *attr, char *buf)
{
	struct hugetlb_zero_pool *pool = hugetlb_zero_of(kobj);
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
	struct hugetlb_zero_pool *pool = hugetlb_zero_of(kobj);

	if (!pool)
		return -ENODEV;
	return sysfs_emit(buf, "%lu\n", READ_ONCE(pool->low));
}

static ssize_t zeroed_low_store(struct kobject *kobj,
				struct kobj_attribute *attr,
				const char *buf, size_t len)
{
	struct hugetlb_zero_pool *pool = hugetlb_zero_of(kobj);
	unsigned long low;
	int err;

	if (!pool)
		return -ENODEV;
	err = hugetlb_zero_parse(buf, &low);
	if (err)
		return err;
	hugetlb_zero_set_low(pool, low);
	return len;
}

static ssize_t zeroed_hits_show(struct kobject *kobj,
				struct kobj_attribute *attr, char *buf)
{
	struct hugetlb_zero_pool *pool = hugetlb_zero_of(kobj);

	if (!pool)
		return -ENODEV;
	return sysfs_emit(buf, "%lu\n",
			  (unsigned long)atomic_long_read(&pool->hits));
}

static ssize_t zeroed_misses_show(struct kobject *kobj,
				  struct kobj_attribute *attr, char *buf)
{
	struct hugetlb_zero_pool *pool = hugetlb_zero_of(kobj);

	if (!pool)
		return -ENODEV;
	return sysfs_emit(buf, "%lu\n",
			  (unsigned long)atomic_long_read(&pool->misses));
}

static struct kobj_attribute zeroable_hugepages_attr =
	__ATTR_RW(zeroable_hugepages);
static struct kobj_attribute zeroed_hugepages_attr =
	__ATTR_RO(zeroed_hugepages);
static struct kobj_attribute zeroed_low_attr = __ATTR_RW(zeroed_low);
static struct kobj_attribute zeroed_hits_attr = __ATTR_RO(zeroed_hits);
static struct kobj_attribute zeroed_misses_attr = __ATTR_RO(zeroed_misses);

static struct attribute *hugetlb_zero_attrs[] = {
	&zeroable_hugepages_attr.attr,
	&zeroed_hugepages_attr.attr,
	&zeroed_low_attr.attr,
	&zeroed_hits_attr.attr,
	&zeroed_misses_attr.attr,
	NULL,
};

static const struct attribute_group hugetlb_zero_attr_group = {
	.attrs = hugetlb_zero_attrs,
};

/* What can be told from now on; a change since a file could be read is, too. */
static void hugetlb_zero_set_files(struct hugetlb_zero_pool *pool,
				   struct kernfs_node *zeroable,
				   struct kernfs_node *zeroed)
{
	spin_lock_irq(&hugetlb_lock);
	pool->files[HUGETLB_ZERO_FILE_ZEROABLE] = zeroable;
	pool->files[HUGETLB_ZERO_FILE_ZEROED] = zeroed;
	if (pool->pending)
		hugetlb_zero_changed(pool);
	spin_unlock_irq(&hugetlb_lock);
}

/* The directory of a pool has been made. Without its files it works as before. */
void hugetlb_zero_register(struct hstate *h, int nid, struct kobject *kobj)
{
	struct hugetlb_zero_pool *pool = hugetlb_zero_pool(h, nid);

	hugetlb_zero_pool_appear(pool);
	WRITE_ONCE(pool->kobj, kobj);
	if (sysfs_create_group(kobj, &hugetlb_zero_attr_group)) {
		WRITE_ONCE(pool->kobj, NULL);
		pr_err("unable to add files of %s for node %d\n", h->name, nid);
	} else {
		hugetlb_zero_set_files(pool,
				       sysfs_get_dirent(kobj->sd,
							"zeroable_hugepages"),
				       sysfs_get_dirent(kobj->sd,
							"zeroed_hugepages"));
	}
}

/* The directory is about to go. Returns when nobody reads the files any more. */
void hugetlb_zero_unregister(struct hstate *h, int nid)
{
	struct hugetlb_zero_pool *pool = hugetlb_zero_pool(h, nid);
	struct kernfs_node *files[NR_HUGETLB_ZERO_FILES];
	int file;

	/* Zeroers stop. */
	hugetlb_zero_pool_vanish(pool);
	if (pool->kobj)
		sysfs_remove_group(pool->kobj, &hugetlb_zero_attr_group);
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
