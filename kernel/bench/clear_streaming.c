// SPDX-License-Identifier: GPL-2.0-only
/*
 * clear_streaming [MIB [ROUNDS]] - how fast the kernel's own code clears
 *
 * Linked with the object arch/x86/lib/clear_streaming.o of a kernel build,
 * unchanged but for what is visible: `cargo xtask kernel bench`. Prints,
 * for units of 4 KiB to 2 MiB, what each method clears per second, fences included,
 * over memory that no cache holds; what the fault path uses, which is the string
 * method over a whole page of 2 MiB or over 32 MiB; and what the code chooses when
 * it measures, as often as there are rounds. The rounds are interleaved, time is
 * that of the thread, and medians are taken: on a busy machine ratios are what to
 * look at.
 *
 * Guard pages around the memory and a check of every byte say that nothing else is
 * written and nothing left out.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include "shims.h"

#define PAGE	4096UL
#define UNITS	5
#define MOST	64

static char *memory;
static size_t size;

/* Bytes per second of the whole memory, @unit bytes a call. */
static double run(void (*clear)(void *, unsigned int), size_t unit)
{
	double start = seconds(CLOCK_THREAD_CPUTIME_ID);

	for (size_t at = 0; at < size; at += unit)
		clear(memory + at, unit / PAGE);
	return size / (seconds(CLOCK_THREAD_CPUTIME_ID) - start);
}

static void clear_string(void *addr, unsigned int npages)
{
	clear_streaming_methods[0].clear(addr, npages * PAGE);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(double *values, int n)
{
	qsort(values, n, sizeof(*values), compare);
	return values[n / 2];
}

static void check(void)
{
	memset(memory, 0xa5, size);
	for (int i = 0; i < METHODS; i++) {
		if (i == 2 && !has_clzero())
			continue;
		memset(memory, 0xa5, size);
		clear_streaming_chosen = &clear_streaming_methods[i];
		run(clear_pages_streaming, 65536);
		if (memory[0] || memcmp(memory, memory + 1, size - 1)) {
			printf("%s leaves bytes behind\n", clear_streaming_methods[i].name);
			exit(1);
		}
	}
}

/* What is chosen when it measures. */
static const char *choose(void)
{
	clear_streaming_chosen = NULL;
	clear_streaming_turn = 0;
	for (size_t at = 0; !clear_streaming_chosen; at = (at + 65536) % size)
		clear_pages_streaming(memory + at, 65536 / PAGE);
	return clear_streaming_chosen->name;
}

int main(int argc, char **argv)
{
	static const size_t units[UNITS] = { 4096, 16384, 65536, 262144, 2097152 };
	static double rates[UNITS][METHODS][MOST], fault2m[MOST], fault32m[MOST];
	int rounds = argc > 2 ? atoi(argv[2]) : 9, chosen[METHODS] = { };
	int methods = has_clzero() ? METHODS : METHODS - 1, best = 0, choice = 0;
	double medians[UNITS][METHODS], m2, m32, start;
	unsigned long long ticks;
	char *region;

	size = (argc > 1 ? strtoul(argv[1], NULL, 0) : 256) << 20;
	if (rounds < 1 || rounds > MOST || !size || size % (32 << 20)) {
		fprintf(stderr, "usage: clear_streaming [MIB [ROUNDS]], MIB a multiple of 32\n");
		return 2;
	}
	boot();
	/* Huge pages of its own, and nothing mapped around them. */
	region = mmap(NULL, size + (4 << 20), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memory = (char *)(((unsigned long)region + (2 << 20)) & ~((2UL << 20) - 1));
	if (region == MAP_FAILED || mprotect(memory, size, PROT_READ | PROT_WRITE)) {
		perror("mmap");
		return 1;
	}
	madvise(memory, size, MADV_HUGEPAGE);
	start = seconds(CLOCK_MONOTONIC);
	ticks = cycles();
	check();
	tsc_khz = (cycles() - ticks) / (seconds(CLOCK_MONOTONIC) - start) / 1000;

	for (int round = 0; round < rounds; round++) {
		for (int u = 0; u < UNITS; u++)
			for (int m = 0; m < methods; m++) {
				clear_streaming_chosen = &clear_streaming_methods[m];
				rates[u][m][round] = run(clear_pages_streaming, units[u]);
			}
		fault2m[round] = run(clear_string, 2 << 20);
		fault32m[round] = run(clear_string, 32 << 20);
		choose();
		chosen[clear_streaming_chosen - clear_streaming_methods]++;
	}
	m2 = median(fault2m, rounds);
	m32 = median(fault32m, rounds);
	printf("%s, %zu MiB, median of %d rounds, GB/s\n\n", cpu_name(), size >> 20, rounds);
	printf("| unit | string | movnti | clzero |\n|---|---|---|---|\n");
	for (int u = 0; u < UNITS; u++) {
		printf("| %zu KiB |", units[u] >> 10);
		for (int m = 0; m < METHODS; m++) {
			medians[u][m] = m < methods ? median(rates[u][m], rounds) : 0;
			if (m < methods)
				printf(" %.1f |", medians[u][m] / 1e9);
			else
				printf(" - |");
		}
		printf("\n");
	}
	for (int m = 0; m < methods; m++) {
		if (medians[2][m] > medians[2][best])
			best = m;
		if (chosen[m] > chosen[choice])
			choice = m;
	}
	printf("\nfaults: %.1f with 2 MiB, %.1f with 32 MiB at once\n", m2 / 1e9, m32 / 1e9);
	printf("chosen: string %d, movnti %d, clzero %d times of %d\n", chosen[0], chosen[1],
	       chosen[2], rounds);
	printf("choice / best: %.2f\n", medians[2][choice] / medians[2][best]);
	printf("choice / faults: %.2f of 2 MiB, %.2f of 32 MiB\n", medians[2][choice] / m2,
	       medians[2][choice] / m32);
	return medians[2][choice] < 0.95 * medians[2][best];
}
