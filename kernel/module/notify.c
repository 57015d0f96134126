// SPDX-License-Identifier: GPL-2.0-only
/* Who waits for a change: as in the series. */
#include "prezero.h"
#include "shared/hugetlb_zero_notify.c"

/* The module's hooks see each folio that comes or goes, watched or not. */
void hugetlb_zero_track(struct hugetlb_zero_pool *pool) { }
