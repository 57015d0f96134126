// SPDX-License-Identifier: GPL-2.0-only
/* Who waits for a change: as in the series. */
#include "prezero.h"
#include "shared/hugetlb_zero_notify.c"
