/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Variables of the kernel that it does not export, under their own names: the
 * files that the module shares with the series use them.
 */
#ifndef _PREZERO_KERNEL_H
#define _PREZERO_KERNEL_H

#include <linux/hugetlb.h>
#include <linux/node.h>

extern spinlock_t *prezero_hugetlb_lock;
extern struct hstate *prezero_hstates;
extern int *prezero_max_hstate;
extern struct node **prezero_node_devices;

#define hugetlb_lock		(*prezero_hugetlb_lock)
#define hstates			prezero_hstates
#define hugetlb_max_hstate	(*prezero_max_hstate)
#define node_devices		prezero_node_devices

void *prezero_find(const char *name);

#endif /* _PREZERO_KERNEL_H */
