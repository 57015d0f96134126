// SPDX-License-Identifier: GPL-2.0-only
/*
 * Clearing past the caches, for gigantic pages.
 *
 * String stores allocate a cache line for everything they write until the CPU
 * decides otherwise.  That is right for a page which is touched next, and waste
 * for a gigantic one, of which a last-level cache holds a thirtieth.
 *
 * Which instruction wins differs by CPU: MOVNTI doubles the rate on Broadwell
 * and Ice Lake and loses on Skylake; CLZERO exists on AMD alone.  So this is off
 * unless the operator asks for it, with clear_gigantic= on the command line.
 */
#define pr_fmt(fmt) "clear_gigantic: " fmt

#include <linux/cache.h>
#include <linux/cpufeature.h>
#include <linux/init.h>
#include <linux/kmsan-checks.h>
#include <linux/mm.h>
#include <linux/printk.h>
#include <linux/string.h>
#include <asm/barrier.h>

enum clear_gigantic {
	CLEAR_STRING,
	CLEAR_MOVNTI,
	CLEAR_CLZERO,
};

static enum clear_gigantic clear_gigantic __ro_after_init = CLEAR_STRING;

/* CLZERO always takes 64 bytes. */
#define LINE	64

static void clear_movnti(void *addr, unsigned long len)
{
	unsigned long *line = addr, *end = addr + len;

	for (; line < end; line += LINE / sizeof(*line))
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

static void clear_clzero(void *addr, unsigned long len)
{
	void *line = addr, *end = addr + len;

	for (; line < end; line += LINE)
		/* clzero; the oldest binutils that we support don't know it */
		asm volatile(".byte 0x0f, 0x01, 0xfc" : : "a" (line) : "memory");
}

/**
 * clear_pages_streaming() - Clear pages without leaving them in the cache.
 * @addr: Kernel address of the first page.
 * @npages: Number of pages.
 *
 * Return: Whether the pages are cleared.  When they are, the stores have left
 * the write-combining buffers: publishing the pages needs no other ordering than
 * after clear_pages().
 */
bool clear_pages_streaming(void *addr, unsigned int npages)
{
	unsigned long len = (unsigned long)npages * PAGE_SIZE;

	switch (clear_gigantic) {
	case CLEAR_MOVNTI:
		clear_movnti(addr, len);
		break;
	case CLEAR_CLZERO:
		clear_clzero(addr, len);
		break;
	default:
		return false;
	}
	/* Both are weakly ordered, unlike any other store on x86. */
	wmb();
	kmsan_unpoison_memory(addr, len);
	return true;
}

static int __init clear_gigantic_setup(char *arg)
{
	if (!arg)
		return -EINVAL;
	if (!strcmp(arg, "string")) {
		clear_gigantic = CLEAR_STRING;
	} else if (!strcmp(arg, "movnti")) {
		clear_gigantic = CLEAR_MOVNTI;
	} else if (!strcmp(arg, "clzero")) {
		if (!boot_cpu_has(X86_FEATURE_CLZERO)) {
			pr_warn("this CPU has no clzero, using string stores\n");
			return 0;
		}
		clear_gigantic = CLEAR_CLZERO;
	} else {
		pr_warn("'%s' is none of string, movnti, clzero\n", arg);
		return -EINVAL;
	}
	pr_info("%s\n", arg);
	return 0;
}
early_param("clear_gigantic", clear_gigantic_setup);
