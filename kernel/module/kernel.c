// SPDX-License-Identifier: GPL-2.0-only
/*
 * Symbols that the kernel does not export, and checks that the running kernel is the
 * one that the module was built for.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/sizes.h>
#include "mark.h"

/* The kernel's own, which protects its pools and ours. */
spinlock_t *prezero_hugetlb_lock;
struct hstate *prezero_hstates;
int *prezero_max_hstate;
struct node **prezero_node_devices;

/*
 * The address of a symbol, be it text or data. register_kprobe() resolves the name
 * before it looks whether it may put a probe there, and leaves the address behind
 * when it refuses. No unexported function is called through a pointer. With IBT the
 * address of a function is behind its ENDBR, which a direct call may skip.
 */
void *prezero_find(const char *name)
{
	struct kprobe kp = {
		.symbol_name = name,
		.flags = KPROBE_FLAG_DISABLED,
	};

	if (!register_kprobe(&kp))
		unregister_kprobe(&kp);
	return kp.addr;
}

static void *prezero_need(const char *name)
{
	void *addr = prezero_find(name);

	if (!addr)
		pr_err("this kernel has no %s\n", name);
	return addr;
}

int prezero_find_symbols(void)
{
	prezero_hugetlb_lock = prezero_need("hugetlb_lock");
	prezero_hstates = prezero_need("hstates");
	prezero_max_hstate = prezero_need("hugetlb_max_hstate");
	prezero_node_devices = prezero_need("node_devices");
	if (!prezero_hugetlb_lock || !prezero_hstates || !prezero_max_hstate ||
	    !prezero_node_devices)
		return -ENOENT;
	return prezero_dequeue_init();
}

/* Lists are lists, and the numbers of the nodes add up. */
static bool prezero_check_lists(struct hstate *h)
{
	unsigned long free = 0, nr = 0;
	struct list_head *list;
	int nid;

	lockdep_assert_held(&hugetlb_lock);
	for_each_node_state(nid, N_MEMORY) {
		list = &h->hugepage_freelists[nid];
		if (list->next->prev != list || list->prev->next != list)
			return false;
		free += h->free_huge_pages_node[nid];
		nr += h->nr_huge_pages_node[nid];
	}
	return free == h->free_huge_pages && nr == h->nr_huge_pages &&
	       free <= nr;
}

/*
 * The name is the last member of struct hstate. If it is right for each size, then
 * so are the offsets of the other members and the size of the struct.
 */
static bool prezero_check_hstate(struct hstate *h)
{
	char name[HSTATE_NAME_LEN];
	bool same;

	if (!h->order || h->order > ilog2(PREZERO_DONE))
		return false;
	snprintf(name, sizeof(name), "hugepages-%lukB",
		 huge_page_size(h) / SZ_1K);
	if (strncmp(name, h->name, sizeof(name)))
		return false;
	spin_lock_irq(&hugetlb_lock);
	same = prezero_check_lists(h);
	spin_unlock_irq(&hugetlb_lock);
	return same;
}

int prezero_check_layout(void)
{
	struct hstate *h;

	BUILD_BUG_ON((int)__NR_HPAGEFLAGS > (int)PREZERO_WAITED);
	BUILD_BUG_ON(BITS_PER_LONG != 64);
	if (hugetlb_max_hstate < 1 || hugetlb_max_hstate > HUGE_MAX_HSTATE) {
		pr_err("this kernel has no huge pages\n");
		return -ENODEV;
	}
	for_each_hstate(h)
		if (!prezero_check_hstate(h)) {
			pr_err("struct hstate is not as the headers say that this module was built with\n");
			return -ENOEXEC;
		}
	return 0;
}
