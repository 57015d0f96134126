/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What mm/hugetlb_zero*.c and the two functions of mm/hugetlb.c below need of a
 * kernel, for a program of user space: see hot_path.c. Each header that they
 * include is an empty file there, and this one is included first.
 *
 * Lists, flags and structs are laid out and compiled as on x86-64 with
 * CONFIG_MEMORY_FAILURE. A work item runs when a test flushes it. Lock and memory
 * are the program's: with BENCH_THREADS it has both, with BENCH_KUNIT memory only,
 * and without either it has neither.
 */
#ifndef BENCH_TWIN_H
#define BENCH_TWIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef unsigned int gfp_t;

#define PAGE_SIZE		4096UL
#define SZ_64K			65536UL
#define HZ			250
#define MAX_NUMNODES		64
#define HUGE_MAX_HSTATE		2
#define U64_MAX			UINT64_MAX
#define GFP_KERNEL		0
#define __GFP_NOFAIL		0
#define EINTR			4
#define ENODEV			19

#define BIT(nr)			(1UL << (nr))
#define __init			__attribute__((cold))
#define __ro_after_init
#define likely(x)		__builtin_expect(!!(x), 1)
#define unlikely(x)		__builtin_expect(!!(x), 0)
#define IS_ENABLED(option)	0
#define READ_ONCE(x)		(*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v)	(*(volatile typeof(x) *)&(x) = (v))
#define min(a, b)		((a) < (b) ? (a) : (b))
#define max(a, b)		((a) > (b) ? (a) : (b))
#define min_t(type, a, b)	min((type)(a), (type)(b))
#define max_t(type, a, b)	max((type)(a), (type)(b))
#define WARN_ON_ONCE(x)		unlikely(x)
#define WARN_ONCE(x, ...)	unlikely(x)
#define lockdep_assert_held(lock)	do { } while (0)
#define lockdep_assert_not_held(lock)	do { } while (0)
#ifdef BENCH_THREADS
void bench_lock(void);
void bench_unlock(void);
#define spin_lock_irq(lock)	bench_lock()
#define spin_unlock_irq(lock)	bench_unlock()
#else
#define spin_lock_irq(lock)	do { } while (0)
#define spin_unlock_irq(lock)	do { } while (0)
#endif
#define container_of(ptr, type, member) \
	((type *)((char *)(ptr) - offsetof(type, member)))

/* Lists */
struct list_head {
	struct list_head *next, *prev;
};

#define list_entry(ptr, type, member)	container_of(ptr, type, member)
#define list_next_entry(pos, member) \
	list_entry((pos)->member.next, typeof(*(pos)), member)
#define list_first_entry(head, type, member) \
	list_entry((head)->next, type, member)
#define list_first_entry_or_null(head, type, member) ({			\
	struct list_head *head__ = (head);				\
	struct list_head *pos__ = READ_ONCE(head__->next);		\
	pos__ != head__ ? list_entry(pos__, type, member) : NULL; })
#define list_entry_is_head(pos, head, member)	(&(pos)->member == (head))
#define list_for_each_entry(pos, head, member)				\
	for (pos = list_entry((head)->next, typeof(*pos), member);	\
	     &pos->member != (head); pos = list_next_entry(pos, member))
#define list_for_each_entry_safe(pos, n, head, member)			\
	for (pos = list_entry((head)->next, typeof(*pos), member),	\
	     n = list_next_entry(pos, member); &pos->member != (head);	\
	     pos = n, n = list_next_entry(n, member))

static inline void INIT_LIST_HEAD(struct list_head *list)
{
	list->next = list;
	list->prev = list;
}

static inline void __list_add(struct list_head *entry, struct list_head *prev,
			      struct list_head *next)
{
	next->prev = entry;
	entry->next = next;
	entry->prev = prev;
	WRITE_ONCE(prev->next, entry);
}

static inline void list_add(struct list_head *entry, struct list_head *head)
{
	__list_add(entry, head, head->next);
}

static inline void list_add_tail(struct list_head *entry, struct list_head *head)
{
	__list_add(entry, head->prev, head);
}

static inline void __list_del(struct list_head *prev, struct list_head *next)
{
	next->prev = prev;
	WRITE_ONCE(prev->next, next);
}

/* The poison that the kernel writes here is two more instructions. */
static inline void list_del(struct list_head *entry)
{
	__list_del(entry->prev, entry->next);
	entry->next = (void *)0x100;
	entry->prev = (void *)0x122;
}

static inline void list_del_init(struct list_head *entry)
{
	__list_del(entry->prev, entry->next);
	INIT_LIST_HEAD(entry);
}

static inline void list_move(struct list_head *entry, struct list_head *head)
{
	__list_del(entry->prev, entry->next);
	list_add(entry, head);
}

static inline void list_replace_init(struct list_head *old,
				     struct list_head *entry)
{
	entry->next = old->next;
	entry->next->prev = entry;
	entry->prev = old->prev;
	entry->prev->next = entry;
	INIT_LIST_HEAD(old);
}

static inline int list_empty(const struct list_head *head)
{
	return READ_ONCE(head->next) == head;
}

static inline int list_is_last(const struct list_head *entry,
			       const struct list_head *head)
{
	return entry->next == head;
}

/* Atomic bits and counters */
typedef struct {
	int counter;
} atomic_t;
typedef struct {
	long counter;
} atomic_long_t;

#define atomic_read(v)		READ_ONCE((v)->counter)
#define atomic_set(v, i)	WRITE_ONCE((v)->counter, i)
#define atomic_fetch_or(i, v)	__atomic_fetch_or(&(v)->counter, i, __ATOMIC_SEQ_CST)
#define atomic_cmpxchg(v, old, new) \
	__sync_val_compare_and_swap(&(v)->counter, old, new)
#define smp_cond_load_acquire(ptr, cond) ({				\
	typeof(*(ptr)) VAL;						\
	while (VAL = __atomic_load_n(ptr, __ATOMIC_ACQUIRE), !(cond))	\
		;							\
	VAL; })

static inline void set_bit(long nr, unsigned long *addr)
{
	asm volatile("lock orq %1, %0" : "+m" (*addr) : "er" (BIT(nr)) : "memory");
}

static inline void clear_bit(long nr, unsigned long *addr)
{
	asm volatile("lock andq %1, %0" : "+m" (*addr) : "er" (~BIT(nr)) : "memory");
}

#define clear_bit_unlock(nr, addr)	clear_bit(nr, addr)

/* Folios */
struct page {
	unsigned long flags;
};

struct folio {
	struct page page;
	struct list_head lru;
	void *mapping;
	unsigned long index;
	void *private;
	int mapcount;
	int refcount;
	unsigned long rest;
};

#define PG_hwpoison		22
#define NODES_PGSHIFT		58

static inline int folio_nid(const struct folio *folio)
{
	return folio->page.flags >> NODES_PGSHIFT;
}

static inline bool folio_test_hwpoison(const struct folio *folio)
{
	return READ_ONCE(folio->page.flags) & BIT(PG_hwpoison);
}

static inline void folio_ref_unfreeze(struct folio *folio, int count)
{
	__atomic_store_n(&folio->refcount, count, __ATOMIC_RELEASE);
}

/* The pageblock's bits lie in the memory section: mainline's cost, counted in both. */
extern unsigned long bench_pageblock_bits;
static inline bool is_migrate_isolate_page(struct page *page)
{
	return READ_ONCE(bench_pageblock_bits) == 3;
}

#ifdef BENCH_KUNIT
#define pages_per_huge_page(h)		(1UL << (h)->order)
#define folio_nr_pages(folio)		64UL
const void *memchr_inv(const void *addr, int c, size_t size);
#else
#define pages_per_huge_page(h)		512UL
#define folio_nr_pages(folio)		512UL
#define memchr_inv(addr, c, size)	((void)(addr), NULL)
#endif
#define folio_pfn(folio)		0UL
#define kmap_local_folio(folio, offset)	((void *)(folio))
#define kunmap_local(addr)		do { } while (0)
#define cond_resched()			do { } while (0)

/* hugetlb: mm/hugetlb.c, include/linux/hugetlb.h */
enum hugetlb_page_flags {
	HPG_restore_reserve,
	HPG_migratable,
	HPG_temporary,
	HPG_freed,
	HPG_vmemmap_optimized,
	HPG_raw_hwp_unreliable,
	HPG_cma,
	HPG_zeroed,
	HPG_zeroing,
	HPG_zero_skip,
};

#define HPAGEFLAG(flname)						\
static inline bool folio_test_hugetlb_##flname(struct folio *folio)	\
{	return READ_ONCE(*(unsigned long *)&folio->private) & BIT(HPG_##flname); } \
static inline void folio_set_hugetlb_##flname(struct folio *folio)	\
{	set_bit(HPG_##flname, (unsigned long *)&folio->private); }	\
static inline void folio_clear_hugetlb_##flname(struct folio *folio)	\
{	clear_bit(HPG_##flname, (unsigned long *)&folio->private); }

HPAGEFLAG(freed)
HPAGEFLAG(zeroed)
HPAGEFLAG(zeroing)
HPAGEFLAG(zero_skip)

struct hstate {
	unsigned int order;
	unsigned long max_huge_pages;
	unsigned long nr_huge_pages;
	unsigned long free_huge_pages;
	unsigned long resv_huge_pages;
	struct list_head hugepage_activelist;
	struct list_head hugepage_freelists[MAX_NUMNODES];
	unsigned int nr_huge_pages_node[MAX_NUMNODES];
	unsigned int free_huge_pages_node[MAX_NUMNODES];
#ifdef CONFIG_HUGETLB_ZEROED
	bool zero_tracked[MAX_NUMNODES];
#endif
};

extern struct hstate hstates[HUGE_MAX_HSTATE];
#define nr_node_ids			2
#define hstate_index(h)			((h) - hstates)
#define for_each_hstate(h)		for ((h) = hstates; (h) == hstates; (h)++)
#define kcalloc(n, size, gfp)		calloc(n, size)

/* Who waits: no work item runs, but it is started. */
struct kernfs_node;
struct work_struct {
	int scheduled;
	void (*run)(struct work_struct *work);
};
struct delayed_work {
	struct work_struct work;
};
typedef struct {
	int woken;
} wait_queue_head_t;

#define system_dfl_wq			NULL
#define INIT_DELAYED_WORK(w, f)		((w)->work.scheduled = 0, (w)->work.run = (f))
#define mod_delayed_work(wq, w, delay)	((void)(delay), (w)->work.scheduled++)
#define to_delayed_work(w)		container_of(w, struct delayed_work, work)
#define wake_up_interruptible(wq)	((wq)->woken++)
#define sysfs_notify_dirent(kn)		((void)(kn))
#define kernfs_get(kn)			((void)(kn))
#define kernfs_put(kn)			((void)(kn))
#define get_jiffies_64()		((u64)0)
#define jiffies				0UL
#define msecs_to_jiffies(ms)		((ms) / 4)
#define time_after64(a, b)		((int64_t)((b) - (a)) < 0)
#define time_before64(a, b)		time_after64(b, a)
#define time_before(a, b)		((long)((a) - (b)) < 0)

/* Of the task that zeroes. */
struct task_struct {
	unsigned int flags;
};
extern struct task_struct bench_task;
#define current				(&bench_task)
#define PF_MEMALLOC_PIN			0x10000000
#define folio_is_longterm_pinnable(folio)	true
#ifdef BENCH_THREADS
extern volatile bool bench_stop;
#define signal_pending(task)		bench_stop
#else
#define signal_pending(task)		0
#endif
#define task_work_pending(task)		0
#define preempt_disable()		do { } while (0)
#define preempt_enable()		do { } while (0)
#define trace_hugetlb_zero_unit(pfn, nr)	do { } while (0)
#ifdef BENCH_THREADS
/* A page is named by its address. */
void *bench_address(struct folio *folio);
void clear_pages_streaming(void *addr, unsigned int npages);
#define clear_pages_streaming clear_pages_streaming
#define folio_page(folio, n)		(bench_address(folio) + (n) * PAGE_SIZE)
#define page_address(page)		(page)
#elif defined(BENCH_KUNIT)
void *bench_address(struct folio *folio);
#define folio_page(folio, n)		(bench_address(folio) + (n) * PAGE_SIZE)
#define clear_user_highpages(page, addr, nr)	memset(page, 0, (nr) * PAGE_SIZE)
#else
#define folio_page(folio, n)		(&(folio)->page)
#define clear_user_highpages(page, addr, nr)	((void)(page), (void)(nr))
#endif

#endif /* BENCH_TWIN_H */
