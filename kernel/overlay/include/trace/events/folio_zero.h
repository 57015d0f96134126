/* SPDX-License-Identifier: GPL-2.0-only */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM folio_zero

#if !defined(_TRACE_FOLIO_ZERO_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_FOLIO_ZERO_H

#include <linux/tracepoint.h>

TRACE_EVENT(folio_zero_range,

	TP_PROTO(unsigned long pfn, unsigned int nr_pages),

	TP_ARGS(pfn, nr_pages),

	TP_STRUCT__entry(
		__field(unsigned long,	pfn)
		__field(unsigned int,	nr_pages)
	),

	TP_fast_assign(
		__entry->pfn = pfn;
		__entry->nr_pages = nr_pages;
	),

	TP_printk("pfn=0x%lx nr_pages=%u", __entry->pfn, __entry->nr_pages)
);

#endif /* _TRACE_FOLIO_ZERO_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
