// SPDX-License-Identifier: GPL-2.0-only
/*
 * The replacement of folio_zero_user(), which Linux 6.1 calls clear_huge_page().
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/highmem.h>
#include <linux/sched.h>
#include <linux/sizes.h>
#include "mark.h"

/* The folio is zero. */
void prezero_skip_zero_user(struct folio *folio, unsigned long addr_hint)
{
}

/*
 * One branch for 64 bytes: memchr_inv() takes two for each 8. KASAN does not check it
 * either, for the same reason.
 */
static __no_sanitize_address bool
prezero_page_is_zero(const unsigned long *word)
{
	const unsigned long *end = word + PAGE_SIZE / sizeof(*word);
	unsigned long any = 0;

	for (; word < end; word += 8)
		any |= word[0] | word[1] | word[2] | word[3] | word[4] |
		       word[5] | word[6] | word[7];
	return !any;
}

static bool prezero_is_zero(struct folio *folio)
{
	long i;

	for (i = 0; i < folio_nr_pages(folio); i++) {
		if (!prezero_page_is_zero(page_address(folio_page(folio, i))))
			return false;
		cond_resched();
	}
	return true;
}

/*
 * Whole where preemption is real, 32 MiB between two chances where it is
 * cooperative: as folio_zero_user() of 7.0.
 */
static void prezero_clear_range(struct folio *folio, unsigned long from,
				unsigned long to)
{
	unsigned long nr, extent = to - from;

	if (!preempt_model_preemptible())
		extent = SZ_32M / PAGE_SIZE;
	for (; from < to; from += nr) {
		nr = min(to - from, extent);
		cond_resched();
		clear_pages(page_address(folio_page(folio, from)), nr);
	}
}

/*
 * Clear from page @first on: right of the touched neighbourhood, left of it, and the
 * neighbourhood last, because it is read next. A gigantic page would evict it from
 * the caches, and is cleared front to back.
 */
static void prezero_clear_folio(struct folio *folio, unsigned long addr_hint,
				unsigned long first)
{
	unsigned long nr = folio_nr_pages(folio), left, right, hint;

	if (nr > MAX_ORDER_NR_PAGES) {
		prezero_clear_range(folio, first, nr);
		return;
	}
	hint = (addr_hint / PAGE_SIZE) & (nr - 1);
	left = max(first, hint > 2 ? hint - 2 : 0);
	right = max(first, min(hint + 3, nr));
	prezero_clear_range(folio, right, nr);
	prezero_clear_range(folio, first, left);
	prezero_clear_range(folio, left, right);
}

static void prezero_report(struct folio *folio)
{
	prezero_count(PREZERO_DIRTY);
	pr_err_ratelimited("BUG: pfn %#lx is marked as zero and is not; cleared\n",
			   folio_pfn(folio));
}

/* Clear the pages of the folio that are not known to be zero. */
void prezero_zero_user(struct folio *folio, unsigned long addr_hint)
{
	struct prezero_pool *pool = prezero_folio_pool(folio);
	unsigned long done = 0;

	this_cpu_inc(prezero_inside);
	if (pool) {
		done = prezero_unmark(folio);
		if (done == folio_nr_pages(folio)) {
			if (!prezero_verify || prezero_is_zero(folio)) {
				atomic_long_inc(&pool->zero.hits);
				goto out;
			}
			prezero_report(folio);
			done = 0;
		}
		atomic_long_inc(&pool->zero.misses);
		if (test_and_clear_bit(PREZERO_WAITED, prezero_bits(folio)))
			atomic_long_inc(&pool->zero.waits);
	}
	prezero_clear_folio(folio, addr_hint, done);
	prezero_count(PREZERO_RANGED);
out:
	this_cpu_dec(prezero_inside);
}
