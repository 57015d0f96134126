// SPDX-License-Identifier: GPL-2.0-only
/*
 * Clearing past the caches, for pages that nobody is going to touch soon.
 *
 * String stores allocate a cache line for everything they write until the CPU
 * decides otherwise. That is right for a page that is touched next, and wrong
 * for one that is cleared in advance: it throws out what others work with, and
 * is slower besides on most CPUs.
 *
 * Which instruction wins differs by CPU. MOVNTI doubles the rate on Broadwell
 * and Ice Lake and loses on Skylake; CLZERO exists on AMD alone. So the first who
 * clears pages this way measures, on the pages that it has to clear anyway and
 * in its own time: each candidate takes its turn for a unit, until each has been
 * timed often enough for its median to be known. clear_streaming= on the command
 * line chooses without measuring.
 */
#define pr_fmt(fmt) "clear_streaming: " fmt

#include <linux/array_size.h>
#include <linux/atomic.h>
#include <linux/cache.h>
#include <linux/cpufeature.h>
#include <linux/init.h>
#include <linux/kmsan-checks.h>
#include <linux/mm.h>
#include <linux/printk.h>
#include <linux/sizes.h>
#include <linux/sort.h>
#include <linux/string.h>
#include <asm/barrier.h>
#include <asm/msr.h>
#include <asm/tsc.h>

/* What is timed at once, and how often for each candidate: 6 MiB in all. */
#define CLEAR_STREAMING_UNIT	SZ_64K
#define CLEAR_STREAMING_SAMPLES	32

/* CLZERO always takes 64 bytes. */
#define CLEAR_STREAMING_LINE	64

struct clear_streaming_method {
	const char *name;
	void (*clear)(void *addr, unsigned long len);
	/* Its stores are weakly ordered, unlike any other store on x86. */
	bool weak;
};

static void clear_streaming_string(void *addr, unsigned long len)
{
	clear_pages(addr, len / PAGE_SIZE);
}

static void clear_streaming_movnti(void *addr, unsigned long len)
{
	unsigned long *line = addr, *end = addr + len;

	for (; line < end; line += CLEAR_STREAMING_LINE / sizeof(*line))
		asm volatile("movnti %[zero], 0*8(%[line])\n\t"
			     "movnti %[zero], 1*8(%[line])\n\t"
			     "movnti %[zero], 2*8(%[line])\n\t"
			     "movnti %[zero], 3*8(%[line])\n\t"
			     "movnti %[zero], 4*8(%[line])\n\t"
			     "movnti %[zero], 5*8(%[line])\n\t"
			     "movnti %[zero], 6*8(%[line])\n\t"
			     "movnti %[zero], 7*8(%[line])"
			     : : [line] "r" (line), [zero] "r" (0UL) : "memory");
}

static void clear_streaming_clzero(void *addr, unsigned long len)
{
	void *line = addr, *end = addr + len;

	for (; line < end; line += CLEAR_STREAMING_LINE)
		/* clzero; the oldest binutils that we support don't know it */
		asm volatile(".byte 0x0f, 0x01, 0xfc" : : "a" (line) : "memory");
}

enum {
	CLEAR_STREAMING_STRING,
	CLEAR_STREAMING_MOVNTI,
	CLEAR_STREAMING_CLZERO,		/* the last: not every CPU has it */
	NR_CLEAR_STREAMING,
};

static const struct clear_streaming_method
clear_streaming_methods[NR_CLEAR_STREAMING] = {
	[CLEAR_STREAMING_STRING] = { "string", clear_streaming_string, false },
	[CLEAR_STREAMING_MOVNTI] = { "movnti", clear_streaming_movnti, true },
	[CLEAR_STREAMING_CLZERO] = { "clzero", clear_streaming_clzero, true },
};

/* NULL until it has been chosen. */
static const struct clear_streaming_method *clear_streaming_chosen __read_mostly;

static void clear_streaming_by(const struct clear_streaming_method *method,
			       void *addr, unsigned long len)
{
	method->clear(addr, len);
	if (method->weak)
		wmb(); /* before anybody learns that it is zero */
}

/* One measures at a time, whose are these. */
static atomic_t clear_streaming_busy = ATOMIC_INIT(0);
static unsigned int clear_streaming_turn;
static u64 clear_streaming_cycles[NR_CLEAR_STREAMING][CLEAR_STREAMING_SAMPLES];

static int clear_streaming_compare(const void *a, const void *b)
{
	u64 x = *(const u64 *)a, y = *(const u64 *)b;

	return x < y ? -1 : x > y;
}

static void clear_streaming_choose(unsigned int nr)
{
	u64 medians[NR_CLEAR_STREAMING] = { };
	unsigned int i, best = 0;

	for (i = 0; i < nr; i++) {
		sort(clear_streaming_cycles[i], CLEAR_STREAMING_SAMPLES,
		     sizeof(u64), clear_streaming_compare, NULL);
		medians[i] = clear_streaming_cycles[i][CLEAR_STREAMING_SAMPLES / 2];
		if (medians[i] < medians[best])
			best = i;
	}
	/*
	 * In cycles, as they were compared: how long one takes is not known on
	 * every machine. Not on the console from here: preemption is disabled.
	 */
	printk_deferred(KERN_INFO
			pr_fmt("%s (cycles for %u KiB: string %llu, movnti %llu, clzero %llu)\n"),
			clear_streaming_methods[best].name,
			CLEAR_STREAMING_UNIT / SZ_1K, medians[0], medians[1],
			medians[2]);
	WRITE_ONCE(clear_streaming_chosen, &clear_streaming_methods[best]);
}

/* Clear, and take the time if there is something to learn from it. */
static void clear_streaming_measure(void *addr, unsigned long len)
{
	unsigned int nr = boot_cpu_has(X86_FEATURE_CLZERO) ?
				  NR_CLEAR_STREAMING : CLEAR_STREAMING_CLZERO;
	unsigned int i, turn;
	u64 start;

	if (len != CLEAR_STREAMING_UNIT ||
	    atomic_cmpxchg_acquire(&clear_streaming_busy, 0, 1)) {
		clear_streaming_string(addr, len);
		return;
	}
	turn = clear_streaming_turn++;
	i = turn % nr;
	start = rdtsc_ordered();
	clear_streaming_by(&clear_streaming_methods[i], addr, len);
	/* Who was here when it was chosen comes once more: stay within. */
	if (turn < nr * CLEAR_STREAMING_SAMPLES)
		clear_streaming_cycles[i][turn / nr] = rdtsc_ordered() - start;
	if (turn == nr * CLEAR_STREAMING_SAMPLES - 1)
		clear_streaming_choose(nr);
	atomic_set_release(&clear_streaming_busy, 0);
}

/**
 * clear_pages_streaming() - Clear pages without leaving them in the caches.
 * @addr: Kernel address of the first page.
 * @npages: Number of pages.
 *
 * For pages that are not touched soon. When it returns, the stores are ordered
 * before all that follow, as those of clear_pages() are.
 *
 * Context: Preemption is disabled, or what is measured at first is wrong.
 */
void clear_pages_streaming(void *addr, unsigned int npages)
{
	const struct clear_streaming_method *method =
		READ_ONCE(clear_streaming_chosen);
	unsigned long len = (unsigned long)npages * PAGE_SIZE;

	if (likely(method))
		clear_streaming_by(method, addr, len);
	else
		clear_streaming_measure(addr, len);
	kmsan_unpoison_memory(addr, len);
}

static int __init clear_streaming_setup(char *arg)
{
	unsigned int i;

	if (!arg)
		return -EINVAL;
	if (!strcmp(arg, "auto"))
		return 0;
	for (i = 0; i < NR_CLEAR_STREAMING; i++)
		if (!strcmp(arg, clear_streaming_methods[i].name))
			break;
	if (i == NR_CLEAR_STREAMING) {
		pr_warn("'%s' is none of auto, string, movnti, clzero\n", arg);
		return -EINVAL;
	}
	if (i == CLEAR_STREAMING_CLZERO && !boot_cpu_has(X86_FEATURE_CLZERO)) {
		pr_warn("this CPU has no clzero, measuring the others\n");
		return 0;
	}
	clear_streaming_chosen = &clear_streaming_methods[i];
	pr_info("%s\n", arg);
	return 0;
}
early_param("clear_streaming", clear_streaming_setup);
