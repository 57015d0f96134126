/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * hugepagectl: ask how many huge pages are zero, zero more of them, be told
 * when they run low.
 *
 * The same numbers and structs are served by /dev/hugepagectl of a kernel
 * with CONFIG_HUGETLB_ZEROED and by the file "hugepagectl" in the tree of a
 * userspace provider (FUSE). A program opens the file, O_RDONLY to ask and
 * watch, O_RDWR to zero, and calls ioctl(2):
 *
 *	struct hugepagectl_query q = {
 *		.size = sizeof(q), .node = 0, .page_shift = 21,
 *	};
 *	if (ioctl(fd, HUGEPAGECTL_QUERY, &q) == 0)
 *		printf("%llu\n", q.zeroed);
 *
 * One (node, page size) pair is called a domain below.
 *
 * Versions
 * --------
 * A struct only ever grows at its end. @size says how large it was when the
 * caller was compiled, and the ioctl number carries the same size, so that it
 * grows too: FUSE transfers exactly that many bytes. A provider looks at type
 * and nr of the number and accepts any size in it. With s = @size, n = the
 * size in the number, k = the size the provider knows:
 *
 *	s < the *_SIZE_VER0 below, or s > n	EINVAL
 *	s > k, a byte after k is not zero	E2BIG
 *	s > k, all bytes after k are zero	accepted, as if s == k
 *	s < k					accepted, fields after s read as 0
 *
 * On success the provider sets @size to min(s, k): a newer program sees from
 * it which of its fields an older provider has filled. Refill @size before
 * the struct is used again.
 *
 * Errors of every call
 * --------------------
 *	EINVAL	size (above), a flag this provider does not know, or a field
 *		out of its range
 *	E2BIG	above
 *	EFAULT	the struct can't be read or written
 *	ENODEV	no such node, or no pages of that size can exist on it
 *	EPERM	ZERO: the file is not open for writing. A userspace provider
 *		may also refuse ZERO and WATCH to users that it is not
 *		configured to trust. Checked before the struct is looked at.
 *	ENOTTY	not an ioctl of this interface
 *
 * A failed call writes nothing and, but for an EFAULT after the work is done,
 * changes nothing.
 */
#ifndef _UAPI_LINUX_HUGEPAGECTL_H
#define _UAPI_LINUX_HUGEPAGECTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

/**
 * struct hugepagectl_query - the state of one domain
 * @size: in: sizeof(struct hugepagectl_query); out: bytes filled
 * @node: in: NUMA node
 * @page_shift: in: log2 of the page size in bytes (21: 2 MiB, 30: 1 GiB)
 * @flags: in: 0
 * @total: pages of the pool on this node, in use or not
 * @free: pages nobody uses: dirty, being zeroed and zeroed ones
 * @reserved: free pages already promised to mappings that have not touched
 *	them yet. Reservations belong to no node: this is the number for all
 *	nodes together.
 * @zeroed: free pages known to be zero
 * @zeroable: free pages that could be zeroed now
 * @zeroing: free pages that somebody is zeroing at this moment
 * @hits: pages handed out from @zeroed to allocations that wanted a zero page
 * @misses: pages handed out to allocations that wanted a zero page and had to
 *	clear it themselves
 * @waits: those of @misses that took the last page from whoever was zeroing
 *	it: they waited for one clearing unit and cleared the rest
 * @node_total: base pages of the node, in use or not, huge ones included
 * @node_free: base pages of the node that nobody uses and that are in no pool:
 *	what the pool can grow by at most
 *
 * @hits, @misses and @waits count from the start of the provider and never
 * decrease; an allocation that a cgroup refuses counts as neither. They,
 * @node_total and @node_free are read right after the others, which are all of
 * one instant: zeroed + zeroable + zeroing <= free <= total. A page with a
 * memory error is in @free (as the kernel counts it) and in none of the three.
 */
struct hugepagectl_query {
	__u32		size;
	__s32		node;
	__u32		page_shift;
	__u32		flags;
	__aligned_u64	total;
	__aligned_u64	free;
	__aligned_u64	reserved;
	__aligned_u64	zeroed;
	__aligned_u64	zeroable;
	__aligned_u64	zeroing;
	__aligned_u64	hits;
	__aligned_u64	misses;
	__aligned_u64	waits;
	__aligned_u64	node_total;
	__aligned_u64	node_free;
};

#define HUGEPAGECTL_QUERY_SIZE_VER0	88	/* up to @waits */
#define HUGEPAGECTL_QUERY_SIZE_VER1	104

/* As many as there are: for hugepagectl_zero.pages. */
#define HUGEPAGECTL_ALL			(~0ULL)

/**
 * struct hugepagectl_zero - zero free pages of one domain now
 * @size: in: sizeof(struct hugepagectl_zero); out: bytes understood
 * @node: in: NUMA node
 * @page_shift: in: log2 of the page size in bytes
 * @flags: in: 0
 * @pages: in: zero at most so many; HUGEPAGECTL_ALL: until none is zeroable
 * @zeroed: out: pages this call has zeroed
 *
 * The work is done by the calling thread: on its CPUs, charged to its cgroup,
 * throttled with it. Callers in parallel share the pages of a domain, no page
 * is zeroed twice. The call returns 0 when @pages are done or when nothing is
 * left that is not zero or being zeroed by another caller; @zeroed may then be
 * less than @pages, or 0.
 *
 * A signal ends the call within one clearing unit, and so does other work that
 * the kernel has for the thread on its way back to user space, as throttling by
 * a cgroup. The call then returns 0 with the pages that it has zeroed in
 * @zeroed, if there are any: only 0 pages say that nothing is left. If there
 * are none, it fails with EINTR when a signal handler has run, whatever
 * SA_RESTART says, and goes on by itself otherwise.
 *
 * What was zeroed stays zeroed. A page cut short is not counted and stays
 * zeroable. The kernel keeps what was done of it, and the next caller goes on
 * from there: an interruption costs time, and no progress.
 */
struct hugepagectl_zero {
	__u32		size;
	__s32		node;
	__u32		page_shift;
	__u32		flags;
	__aligned_u64	pages;
	__aligned_u64	zeroed;
};

#define HUGEPAGECTL_ZERO_SIZE_VER0	32

/*
 * hugepagectl_watch.flags: be readable only while there also is a page to
 * zero, so that a caller which refills the domain sleeps when it can't.
 */
#define HUGEPAGECTL_WATCH_ZEROABLE	(1U << 0)

/* The largest hugepagectl_watch.min_interval_ms: one hour. */
#define HUGEPAGECTL_WATCH_INTERVAL_MAX	3600000

/**
 * struct hugepagectl_watch - wake this open file when pages run low
 * @size: in: sizeof(struct hugepagectl_watch); out: bytes understood
 * @node: in: NUMA node
 * @page_shift: in: log2 of the page size in bytes
 * @flags: in: 0 or HUGEPAGECTL_WATCH_ZEROABLE
 * @min_zeroed: in: the threshold in pages
 * @min_interval_ms: in: no two wakeups of this file closer than this, in
 *	milliseconds; 0: the provider's default (100); at most
 *	HUGEPAGECTL_WATCH_INTERVAL_MAX
 * @reserved: in: 0
 * @min_free: in: another threshold in pages, on those that are free
 *
 * From now on this open file description polls POLLIN | POLLRDNORM as long as
 * fewer than @min_zeroed pages of the domain are zeroed (and, with
 * HUGEPAGECTL_WATCH_ZEROABLE, at least one is zeroable), or fewer than
 * @min_free are free, so that the pool should grow. The condition is a
 * level: poll(2) and level-triggered epoll report it as it is at the time of
 * the call. Who sleeps is woken when the condition becomes true, and not more
 * often than the interval allows; a change inside the interval is reported at
 * its end, if it still holds, so none is lost.
 *
 * An open file watches one domain. A second WATCH replaces the first, one with
 * both thresholds 0 ends watching; open the file once more per further domain.
 * A file that watches nothing is never readable. If the node goes away the
 * file polls POLLERR | POLLHUP until the next WATCH.
 */
struct hugepagectl_watch {
	__u32		size;
	__s32		node;
	__u32		page_shift;
	__u32		flags;
	__aligned_u64	min_zeroed;
	__u32		min_interval_ms;
	__u32		reserved;
	__aligned_u64	min_free;
};

#define HUGEPAGECTL_WATCH_SIZE_VER0	32	/* up to @reserved */
#define HUGEPAGECTL_WATCH_SIZE_VER1	40

#define HUGEPAGECTL_IOC_TYPE	0xBD

#define HUGEPAGECTL_QUERY	_IOWR(HUGEPAGECTL_IOC_TYPE, 0x00, struct hugepagectl_query)
#define HUGEPAGECTL_ZERO	_IOWR(HUGEPAGECTL_IOC_TYPE, 0x01, struct hugepagectl_zero)
#define HUGEPAGECTL_WATCH	_IOWR(HUGEPAGECTL_IOC_TYPE, 0x02, struct hugepagectl_watch)

#endif /* _UAPI_LINUX_HUGEPAGECTL_H */
