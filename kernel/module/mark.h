/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The mark of a folio that is zero, or whose first pages are.
 *
 * It has two witnesses in the head's struct page and is valid only with both. Only
 * prezero_put() sets them, together, under hugetlb_lock and while the folio has no
 * reference:
 *
 * - PREZERO_MARK in folio->private, where hugetlb keeps its own flags. The page
 *   allocator resets it, and so does add_hugetlb_folio().
 * - folio->index: a magic number that no page offset can be and that is drawn at
 *   each load, and how many base pages are zero, from the first on. Every use
 *   that lasts overwrites it.
 */
#ifndef _PREZERO_MARK_H
#define _PREZERO_MARK_H

#include <linux/bitops.h>
#include <linux/bits.h>
#include "prezero.h"

/*
 * Bits of folio->private.
 * PREZERO_MARK: see above
 * PREZERO_COUNTED: in hugetlb_zero_pool.nr_zeroed
 * PREZERO_SKIPPED: in hugetlb_zero_pool.nr_skipped
 * PREZERO_WAITED: taken from its zeroer for an allocation, not used yet
 */
enum {
	PREZERO_WAITED = 27,
	PREZERO_SKIPPED,
	PREZERO_COUNTED,
	PREZERO_MARK,
};

/* Of folio->index: enough for 16 GiB in pages of 16 KiB. */
#define PREZERO_DONE	GENMASK(20, 0)

extern unsigned long prezero_magic;

static __always_inline unsigned long *prezero_bits(struct folio *folio)
{
	return (unsigned long *)&folio->private;
}

/* The number of base pages that are zero, from the first on. */
static __always_inline unsigned long prezero_marked(struct folio *folio)
{
	unsigned long index = READ_ONCE(folio->index);

	if (!test_bit(PREZERO_MARK, prezero_bits(folio)) ||
	    (index & ~PREZERO_DONE) != prezero_magic)
		return 0;
	return index & PREZERO_DONE;
}

/* The same; removes the mark. */
static __always_inline unsigned long prezero_unmark(struct folio *folio)
{
	unsigned long done = prezero_marked(folio);

	if (test_bit(PREZERO_MARK, prezero_bits(folio)))
		clear_bit(PREZERO_MARK, prezero_bits(folio));
	return done;
}

static inline void prezero_mark(struct folio *folio, unsigned long done)
{
	lockdep_assert_held(&hugetlb_lock);
	WRITE_ONCE(folio->index, prezero_magic | done);
	set_bit(PREZERO_MARK, prezero_bits(folio));
}

#endif /* _PREZERO_MARK_H */
