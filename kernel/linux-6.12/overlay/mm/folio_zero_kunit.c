// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of how folios are cut into ranges and zeroed.
 */
#include <kunit/test.h>
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/string.h>
#include "folio_zero.h"
#include "internal.h"

#define PATTERN		0xa5

/* One split of a folio, for one touched page. */
static void check_split(struct kunit *test, unsigned int nr_pages,
			unsigned int touched)
{
	struct folio_zero_part parts[FOLIO_ZERO_PARTS];
	unsigned int near, sum = 0;
	int i, j, n;

	n = folio_zero_split(nr_pages, touched, parts);
	KUNIT_ASSERT_GE(test, n, 1);
	KUNIT_ASSERT_LE(test, n, FOLIO_ZERO_PARTS);

	for (i = 0; i < n; i++) {
		unsigned int end = parts[i].first + parts[i].nr_pages;

		KUNIT_ASSERT_GT(test, parts[i].nr_pages, 0U);
		KUNIT_ASSERT_LE(test, end, nr_pages);
		sum += parts[i].nr_pages;
		for (j = 0; j < i; j++)
			KUNIT_ASSERT_TRUE(test, end <= parts[j].first ||
					  parts[j].first + parts[j].nr_pages <= parts[i].first);
	}
	/* Disjoint, within bounds, and as many as there are: complete. */
	KUNIT_ASSERT_EQ(test, sum, nr_pages);

	/* The touched page comes last, with two neighbours where there are. */
	near = min(touched, FOLIO_ZERO_NEAR) + 1 +
	       min(nr_pages - 1 - touched, FOLIO_ZERO_NEAR);
	KUNIT_ASSERT_EQ(test, parts[n - 1].nr_pages, near);
	KUNIT_ASSERT_EQ(test, parts[n - 1].first,
			touched - min(touched, FOLIO_ZERO_NEAR));

	/* Right before left: the left side borders on what comes next. */
	if (n == 3)
		KUNIT_ASSERT_GT(test, parts[0].first, parts[1].first);
}

/* Every page of every size up to 130 pages, odd ones included. */
static void split_small(struct kunit *test)
{
	unsigned int nr_pages, touched;

	for (nr_pages = 1; nr_pages <= 130; nr_pages++)
		for (touched = 0; touched < nr_pages; touched++)
			check_split(test, nr_pages, touched);
}

/* Every page of a 2 MiB folio, of its neighbours, and of the largest split. */
static void split_large(struct kunit *test)
{
	static const unsigned int sizes[] = { 511, 512, 513, 1000, 1024 };
	unsigned int i, touched;

	for (i = 0; i < ARRAY_SIZE(sizes); i++)
		for (touched = 0; touched < sizes[i]; touched++)
			check_split(test, sizes[i], touched);
}

/* 512 ranges became three at most, and two at the ends of a folio. */
static void split_counts(struct kunit *test)
{
	struct folio_zero_part parts[FOLIO_ZERO_PARTS];

	KUNIT_EXPECT_EQ(test, folio_zero_split(512, 0, parts), 2);
	KUNIT_EXPECT_EQ(test, folio_zero_split(512, 2, parts), 2);
	KUNIT_EXPECT_EQ(test, folio_zero_split(512, 3, parts), 3);
	KUNIT_EXPECT_EQ(test, folio_zero_split(512, 256, parts), 3);
	KUNIT_EXPECT_EQ(test, folio_zero_split(512, 508, parts), 3);
	KUNIT_EXPECT_EQ(test, folio_zero_split(512, 509, parts), 2);
	KUNIT_EXPECT_EQ(test, folio_zero_split(512, 511, parts), 2);
	KUNIT_EXPECT_EQ(test, folio_zero_split(5, 2, parts), 1);
	KUNIT_EXPECT_EQ(test, folio_zero_split(1, 0, parts), 1);
}

static void units(struct kunit *test)
{
	const unsigned int gigantic = SZ_1G >> PAGE_SHIFT;
	unsigned int coop = clear_pages_unit(false);
	unsigned int full = clear_pages_unit(true);

	KUNIT_EXPECT_GT(test, coop, 0U);
	KUNIT_EXPECT_LE(test, coop, PROCESS_PAGES_NON_PREEMPT_BATCH);
	KUNIT_EXPECT_GE(test, full, coop);
	/* At most 32 MiB without a rescheduling point. */
	KUNIT_EXPECT_LE(test, (unsigned long)coop, SZ_32M >> PAGE_SHIFT);
	if (IS_ENABLED(CONFIG_SPARSEMEM_VMEMMAP))
		KUNIT_EXPECT_GE(test, full, gigantic);
#ifdef clear_pages
	KUNIT_EXPECT_EQ(test, DIV_ROUND_UP(gigantic, coop), 32U);
#else
	KUNIT_EXPECT_EQ(test, coop, 1U);
#endif
}

#ifndef CONFIG_HIGHMEM
static struct folio *dirty_folio(struct kunit *test, unsigned int order)
{
	struct folio *folio = folio_alloc(GFP_KERNEL | __GFP_NOWARN, order);

	if (!folio)
		kunit_skip(test, "no free block of order %u", order);
	memset(folio_address(folio), PATTERN, folio_size(folio));
	return folio;
}

static void expect_bytes(struct kunit *test, struct folio *folio,
			 unsigned int first, unsigned int nr_pages, int byte)
{
	void *start = folio_address(folio) + first * PAGE_SIZE;

	KUNIT_EXPECT_NULL(test, memchr_inv(start, byte, nr_pages * PAGE_SIZE));
}

/* Every order up to the largest, touched at both ends and in between. */
static void zero_folio(struct kunit *test)
{
	const unsigned long base = 0x40000000;
	unsigned int order;

	for (order = 0; order <= MAX_PAGE_ORDER; order++) {
		struct folio *folio = dirty_folio(test, order);
		unsigned long size = folio_size(folio);
		unsigned long hints[] = { 0, size / 2, size / 3, size - 1 };
		unsigned int i;

		for (i = 0; i < ARRAY_SIZE(hints); i++) {
			memset(folio_address(folio), PATTERN, size);
			folio_zero_user(folio, base + hints[i]);
			expect_bytes(test, folio, 0, folio_nr_pages(folio), 0);
		}
		folio_put(folio);
	}
}

/* Part of a folio is zeroed and nothing beside it. */
static void zero_part_of_folio(struct kunit *test)
{
	static const struct folio_zero_part parts[] = {
		{ 0, 1 }, { 1, 1 }, { 3, 7 }, { 17, 46 }, { 62, 2 }, { 0, 64 },
	};
	struct folio *folio = dirty_folio(test, 6);
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(parts); i++) {
		unsigned int first = parts[i].first, nr = parts[i].nr_pages;

		memset(folio_address(folio), PATTERN, folio_size(folio));
		folio_clear_user_pages(folio, first, nr, 0);
		expect_bytes(test, folio, 0, first, PATTERN);
		expect_bytes(test, folio, first, nr, 0);
		expect_bytes(test, folio, first + nr, 64 - first - nr, PATTERN);
	}
	folio_put(folio);
}
#endif

static struct kunit_case folio_zero_cases[] = {
	KUNIT_CASE(split_small),
	KUNIT_CASE(split_large),
	KUNIT_CASE(split_counts),
	KUNIT_CASE(units),
#ifndef CONFIG_HIGHMEM
	KUNIT_CASE(zero_folio),
	KUNIT_CASE(zero_part_of_folio),
#endif
	{}
};

static struct kunit_suite folio_zero_suite = {
	.name = "folio_zero",
	.test_cases = folio_zero_cases,
};

kunit_test_suite(folio_zero_suite);

MODULE_DESCRIPTION("Tests of zeroing folios by ranges");
MODULE_LICENSE("GPL");
