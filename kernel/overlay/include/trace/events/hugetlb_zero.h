/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM hugetlb_zero

#if !defined(_TRACE_HUGETLB_ZERO_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_HUGETLB_ZERO_H

#include <linux/tracepoint.h>

/* One unit of a free folio, by whoever zeroes it: never by a fault. */
TRACE_EVENT(hugetlb_zero_unit,

	TP_PROTO(unsigned long pfn, unsigned long nr_pages),

	TP_ARGS(pfn, nr_pages),

	TP_STRUCT__entry(
		__field(unsigned long, pfn)
		__field(unsigned long, nr_pages)
	),

	TP_fast_assign(
		__entry->pfn = pfn;
		__entry->nr_pages = nr_pages;
	),

	TP_printk("pfn=0x%lx nr_pages=%lu", __entry->pfn, __entry->nr_pages)
);

#endif /* _TRACE_HUGETLB_ZERO_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
