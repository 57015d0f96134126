// SPDX-License-Identifier: GPL-2.0-only
/*
 * lock_hold [PAGES [ROUNDS]] - how long hugetlb_lock is held, and how fast
 * hugetlb_zero_run() zeroes
 *
 * The series' own C files and the object arch/x86/lib/clear_streaming.o of a kernel
 * build, unchanged, over PAGES pages of 2 MiB of this program, with a ticket lock in
 * the place of hugetlb_lock: see twin.h and hugetlb.h. Threads zero all free pages
 * while the main thread frees all pages one by one, as a process does that exits,
 * and takes them again. It reads what it is told to be zero, and fails if a byte is
 * not.
 *
 * Prints medians, and of holds the 99th percentile, in nanoseconds. A thread that
 * loses its CPU while it holds the lock spoils that percentile: a kernel disables
 * preemption there. Compiled without CONFIG_HUGETLB_ZEROED it measures what mass exit
 * costs without the series.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include "../shims.h"
#include "hugetlb.h"

#define MAX_PAGES	512
#define MAX_ZEROERS	4
#define MAX_ROUNDS	64
#define SAMPLES		(1 << 16)
#define SHIFT		21

struct samples {
	unsigned int nr;
	unsigned int cycles[SAMPLES];
};

static struct folio folios[MAX_PAGES], *taken[MAX_PAGES];
static struct samples holds[MAX_ZEROERS + 1], waits[MAX_ZEROERS + 1];
static __thread int self;
static __thread bool recording;
static __thread unsigned long long since;
static unsigned int next_ticket, served;
static char *memory;
static int pages, rounds;
static unsigned long nr_zeroed, nr_waited, nr_wrong;
static double ns_per_cycle;
volatile bool bench_stop;

void *bench_address(struct folio *folio)
{
	return memory + ((size_t)(folio - folios) << SHIFT);
}

static void add(struct samples *samples, unsigned long long cycles)
{
	if (recording && samples->nr < SAMPLES)
		samples->cycles[samples->nr++] = cycles;
}

/* As qspinlock does, it is given in the order of arrival. */
void bench_lock(void)
{
	unsigned int ticket, spins = 0;
	unsigned long long start = cycles();

	ticket = __atomic_fetch_add(&next_ticket, 1, __ATOMIC_RELAXED);
	while (__atomic_load_n(&served, __ATOMIC_ACQUIRE) != ticket) {
		/* There are fewer CPUs than threads. */
		if (++spins % 1024 == 0)
			sched_yield();
		__builtin_ia32_pause();
	}
	since = cycles();
	add(&waits[self], since - start);
}

void bench_unlock(void)
{
	unsigned long long held = cycles() - since;

	__atomic_store_n(&served, served + 1, __ATOMIC_RELEASE);
	add(&holds[self], held);
}

static int by_number(const void *a, const void *b)
{
	unsigned int x = *(const unsigned int *)a, y = *(const unsigned int *)b;

	return x < y ? -1 : x > y;
}

/* In nanoseconds, of the samples of threads @first to @last. */
static double part(struct samples *of, int first, int last, double share)
{
	static unsigned int all[(MAX_ZEROERS + 1) * SAMPLES];
	unsigned int nr = 0;

	for (int i = first; i <= last; i++) {
		memcpy(&all[nr], of[i].cycles, of[i].nr * sizeof(*all));
		nr += of[i].nr;
	}
	if (!nr)
		return 0;
	qsort(all, nr, sizeof(*all), by_number);
	return all[(unsigned int)((nr - 1) * share)] * ns_per_cycle;
}

/* A page as its user gets it: what it is told to be zero is, and soon it is not. */
static void use(struct folio *folio, const struct hugetlb_zero_req *req)
{
	char *page = bench_address(folio);

	nr_zeroed += req->hit;
	nr_waited += req->waited;
	if (req->zeroed)
		nr_wrong += page[0] || memcmp(page, page + 1, req->zeroed * PAGE_SIZE - 1);
	memset(page, 0xa5, 1UL << SHIFT);
}

/* All free pages are taken at once, the last of them from their zeroers, and used. */
static int take_all(void)
{
	static struct hugetlb_zero_req reqs[MAX_PAGES];
	int nr;

	for (nr = 0; nr < pages; nr++) {
		reqs[nr] = (struct hugetlb_zero_req){ .want = true };
		spin_lock_irq(&hugetlb_lock);
		taken[nr] = dequeue_hugetlb_folio_node_exact(&hstates[0], 1, &reqs[nr]);
		spin_unlock_irq(&hugetlb_lock);
		if (!taken[nr])
			break;
		hugetlb_zero_settle(taken[nr]);
	}
	for (int i = 0; i < nr; i++)
		use(taken[i], &reqs[i]);
	return nr;
}

static void free_all(int nr)
{
	while (nr) {
		spin_lock_irq(&hugetlb_lock);
		enqueue_hugetlb_folio(&hstates[0], taken[--nr]);
		spin_unlock_irq(&hugetlb_lock);
	}
}

static void forget(struct samples *samples)
{
	for (int i = 0; i <= MAX_ZEROERS; i++)
		samples[i].nr = 0;
}

#ifdef CONFIG_HUGETLB_ZEROED
static void *zeroer(void *number)
{
	unsigned long zeroed;

	self = (long)number;
	recording = true;
	while (!bench_stop) {
		hugetlb_zero_run(hugetlb_zero_pool(&hstates[0], 1), pages, &zeroed);
		if (!zeroed)
			sched_yield();
	}
	return NULL;
}

static int by_time(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* GB/s of hugetlb_zero_run() and of its method alone, in turn. */
static void rates(void)
{
	struct hugetlb_zero_pool *pool = hugetlb_zero_pool(&hstates[0], 1);
	double run[MAX_ROUNDS], alone[MAX_ROUNDS], start;
	unsigned long zeroed;
	double bytes;

	for (int round = 0; round < rounds; round++) {
		free_all(take_all());
		start = seconds(CLOCK_THREAD_CPUTIME_ID);
		if (hugetlb_zero_run(pool, pages, &zeroed) || zeroed != pages)
			exit(1);
		run[round] = seconds(CLOCK_THREAD_CPUTIME_ID) - start;
		start = seconds(CLOCK_THREAD_CPUTIME_ID);
		for (size_t at = 0; at < (size_t)pages << SHIFT; at += SZ_64K)
			clear_pages_streaming(memory + at, SZ_64K / PAGE_SIZE);
		alone[round] = seconds(CLOCK_THREAD_CPUTIME_ID) - start;
	}
	qsort(run, rounds, sizeof(*run), by_time);
	qsort(alone, rounds, sizeof(*alone), by_time);
	bytes = (size_t)pages << SHIFT;
	printf("hugetlb_zero_run() %.1f GB/s, its method %s alone %.1f GB/s\n",
	       bytes / run[rounds / 2] / 1e9, clear_streaming_chosen->name,
	       bytes / alone[rounds / 2] / 1e9);
}
#endif

/* The process that exits frees its pages, @rounds times, beside @zeroers. */
static void mass_exit(int zeroers)
{
	double last;
	pthread_t threads[MAX_ZEROERS];

	forget(holds);
	forget(waits);
	bench_stop = false;
#ifdef CONFIG_HUGETLB_ZEROED
	for (long i = 0; i < zeroers; i++)
		pthread_create(&threads[i], NULL, zeroer, (void *)(i + 1));
#endif
	for (int round = 0; round < rounds; round++) {
		int nr = take_all();

		recording = true;
		free_all(nr);
		recording = false;
		/* The zeroers come to work, and are not done. */
		last = seconds(CLOCK_MONOTONIC);
		while (zeroers && seconds(CLOCK_MONOTONIC) < last + 0.0002 * (round % 16))
			sched_yield();
	}
	bench_stop = true;
	for (int i = 0; i < zeroers; i++)
		pthread_join(threads[i], NULL);
	printf("| %d | %.0f | %.0f | %.0f | %.0f | %.0f |\n", zeroers, part(holds, 0, 0, 0.5),
	       part(holds, 0, 0, 0.99), part(waits, 0, 0, 0.5), part(holds, 1, zeroers, 0.5),
	       part(holds, 1, zeroers, 0.99));
}

int main(int argc, char **argv)
{
	double start = seconds(CLOCK_MONOTONIC), then;
	unsigned long long ticks = cycles();

	pages = argc > 1 ? atoi(argv[1]) : 128;
	rounds = argc > 2 ? atoi(argv[2]) : 9;
	if (pages < 8 || pages > MAX_PAGES || rounds < 1 || rounds > MAX_ROUNDS) {
		fprintf(stderr, "usage: lock_hold [PAGES [ROUNDS]], 8 to %d, 1 to %d\n", MAX_PAGES,
			MAX_ROUNDS);
		return 2;
	}
	boot();
	memory = mmap(NULL, (size_t)(pages + 1) << SHIFT, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	memory = (char *)(((unsigned long)memory + (1UL << SHIFT) - 1) & ~((1UL << SHIFT) - 1));
	madvise(memory, (size_t)pages << SHIFT, MADV_HUGEPAGE);
	memset(memory, 0xa5, (size_t)pages << SHIFT);
	then = seconds(CLOCK_MONOTONIC);
	ns_per_cycle = (then - start) * 1e9 / (cycles() - ticks);
	fill(folios, pages);
	printf("%s, %d pages, %d rounds\n", cpu_name(), pages, rounds);
#ifdef CONFIG_HUGETLB_ZEROED
	rates();
	printf("\n| zeroers | hold of a free, ns | 99 %% | wait of a free | hold of a zeroer | 99 %% |\n");
	printf("|---|---|---|---|---|---|\n");
	for (int zeroers = 0; zeroers <= MAX_ZEROERS; zeroers = zeroers ? 2 * zeroers : 1)
		mass_exit(zeroers);
	printf("\n%lu pages were taken zeroed, %lu from their zeroers, %lu not as zero as told\n",
	       nr_zeroed, nr_waited, nr_wrong);
#else
	printf("without the series:\n");
	mass_exit(0);
#endif
	return nr_wrong != 0;
}
