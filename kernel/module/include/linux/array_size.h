/* SPDX-License-Identifier: GPL-2.0-only */
/* Where a kernel has no such header, ARRAY_SIZE() is in this one. */
#include <linux/kernel.h>
