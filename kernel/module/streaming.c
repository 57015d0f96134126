// SPDX-License-Identifier: GPL-2.0-only
/* Clearing past the caches: as in the series, without its boot parameter. */
#include "prezero.h"

/* Not exported. A line in the lifetime of the module may be printed at once. */
#undef printk_deferred
#define printk_deferred printk
#undef early_param
#define early_param(...) \
	static int (*prezero_unused)(char *) __maybe_unused = \
		clear_streaming_setup

/* It has its own. */
#undef pr_fmt
#include "shared/clear_streaming.c"
