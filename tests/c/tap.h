/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Results as TAP, one line each, and a clock: for programs that are tests. */
#ifndef TAP_H
#define TAP_H

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int tap_results, tap_failures;

/* One result; what is in brackets at the end of its name may differ from run to run. */
static inline void __attribute__((format(printf, 2, 3)))
result(bool ok, const char *format, ...)
{
	va_list args;

	tap_failures += !ok;
	printf("%sok %d ", ok ? "" : "not ", ++tap_results);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

static inline void skip(const char *name, const char *why)
{
	printf("ok %d %s # SKIP %s\n", ++tap_results, name, why);
}

/* Nothing can be tested: says so with errno's text, and ends the program. */
static inline void __attribute__((noreturn)) bail_out(const char *what)
{
	printf("Bail out! %s: %s\n", what, strerror(errno));
	exit(1);
}

/* The plan, after all results. Returns what main returns. */
static inline int done(void)
{
	printf("1..%d\n", tap_results);
	if (tap_failures)
		printf("# %d of %d failed\n", tap_failures, tap_results);
	return tap_failures ? 1 : 0;
}

static inline double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

#endif
