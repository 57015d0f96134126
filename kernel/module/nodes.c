// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pools: one for each node and page size, from load to unload. Their directories
 * come and go with the memory of their node.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kernfs.h>
#include <linux/memory.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include "mark.h"

static struct prezero_pool *prezero_pools[HUGE_MAX_HSTATE];

/* Directories are added and removed by one at a time. */
static DEFINE_MUTEX(prezero_nodes_mutex);

struct hugetlb_zero_pool *hugetlb_zero_pool(struct hstate *h, int nid)
{
	return &prezero_pools[h - hstates][nid].zero;
}

/* The arguments come from a hooked function and are checked. */
struct prezero_pool *prezero_pool_of(struct hstate *h, struct folio *folio)
{
	unsigned long i = h - hstates;
	int nid = folio_nid(folio);

	if (WARN_ON_ONCE(h < hstates || i >= hugetlb_max_hstate ||
			 nid >= nr_node_ids))
		return NULL;
	return &prezero_pools[i][nid];
}

/* NULL if it is no hugetlb folio. */
struct prezero_pool *prezero_folio_pool(struct folio *folio)
{
	unsigned int order;
	struct hstate *h;

	if (!folio_test_hugetlb(folio))
		return NULL;
	order = folio_order(folio);
	for_each_hstate(h)
		if (h->order == order)
			return prezero_pool_of(h, folio);
	return NULL;
}

static void prezero_pool_init(struct prezero_pool *pool, struct hstate *h,
			      int nid)
{
	pool->zero.h = h;
	pool->zero.nid = nid;
	INIT_LIST_HEAD(&pool->zero.jobs);
	hugetlb_zero_notify_init(&pool->zero);
}

void prezero_pools_exit(void)
{
	int i;

	for (i = 0; i < HUGE_MAX_HSTATE; i++)
		kvfree(prezero_pools[i]);
}

int prezero_pools_init(void)
{
	struct prezero_pool *pool;
	struct hstate *h;
	int nid;

	for_each_hstate(h) {
		pool = kvcalloc(nr_node_ids, sizeof(*pool), GFP_KERNEL);
		if (!pool) {
			prezero_pools_exit();
			return -ENOMEM;
		}
		prezero_pools[h - hstates] = pool;
		for (nid = 0; nid < nr_node_ids; nid++)
			prezero_pool_init(&pool[nid], h, nid);
	}
	return 0;
}

/* The directory @name in @parent, if it is that of a kobject. */
static struct kobject *prezero_find_kobj(struct kobject *parent,
					 const char *name)
{
	struct kernfs_node *kn = sysfs_get_dirent(parent->sd, name);
	struct kobject *kobj = NULL;

	if (!kn)
		return NULL;
	if (kernfs_type(kn) == KERNFS_DIR)
		kobj = kn->priv;
	sysfs_put(kn);
	if (WARN_ON_ONCE(kobj && (kobj->sd != kn ||
				  strcmp(kobject_name(kobj), name))))
		return NULL;
	return kobj;
}

/*
 * A node that has memory keeps its device and its directories. They go after its last
 * memory has gone offline, of which the notifier is told.
 */
static struct kobject *prezero_directory(struct hstate *h, int nid)
{
	struct kobject *hugepages;

	if (!node_devices[nid])
		return NULL;
	hugepages = prezero_find_kobj(&node_devices[nid]->dev.kobj,
				      "hugepages");
	return hugepages ? prezero_find_kobj(hugepages, h->name) : NULL;
}

static void prezero_pool_update(struct hugetlb_zero_pool *pool, bool memory)
{
	struct kobject *kobj;

	if (memory == !!pool->kobj)
		return;
	if (!memory) {
		prezero_files_del(pool);
		return;
	}
	kobj = prezero_directory(pool->h, pool->nid);
	if (!kobj || prezero_files_add(pool, kobj))
		pr_warn("node %d has no files for %s\n", pool->nid,
			pool->h->name);
}

static void prezero_nodes_update(bool any)
{
	struct hstate *h;
	int nid;

	mutex_lock(&prezero_nodes_mutex);
	for_each_hstate(h)
		for (nid = 0; nid < nr_node_ids; nid++)
			prezero_pool_update(hugetlb_zero_pool(h, nid),
					    any && node_state(nid, N_MEMORY));
	mutex_unlock(&prezero_nodes_mutex);
}

static int prezero_on_memory(struct notifier_block *nb, unsigned long action,
			     void *data)
{
	struct memory_notify *memory = data;

	switch (action) {
	case MEM_GOING_OFFLINE:
		prezero_give_way(memory->start_pfn, memory->nr_pages);
		break;
	case MEM_OFFLINE:
		prezero_nodes_update(true);
		fallthrough;
	case MEM_CANCEL_OFFLINE:
		prezero_give_way(0, 0);
		break;
	case MEM_ONLINE:
		prezero_nodes_update(true);
		break;
	}
	return NOTIFY_OK;
}

static struct notifier_block prezero_memory_nb = {
	.notifier_call = prezero_on_memory,
};

int prezero_nodes_init(void)
{
	int err = register_memory_notifier(&prezero_memory_nb);

	if (!err)
		prezero_nodes_update(true);
	return err;
}

/* Waits for readers and writers of the files; zeroers stop within a unit. */
void prezero_nodes_exit(void)
{
	unregister_memory_notifier(&prezero_memory_nb);
	prezero_nodes_update(false);
}
