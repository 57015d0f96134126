// SPDX-License-Identifier: GPL-2.0-only
/*
 * Keeps every CPU clearing huge pages, gigantic ones where there are any, for
 * some seconds. What is tested is the kernel log afterwards: no RCU stall and no
 * soft lockup, with both detectors set to their minimum by whoever calls
 * (rcupdate.rcu_cpu_stall_timeout=3, watchdog_thresh=1), and that everybody got
 * a turn.
 *
 *	folio_zero_stall SECONDS
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../kselftest.h"

#define MAX_CPUS	64
#define HUGE_SHIFT	26

struct worker {
	pthread_t thread;
	int cpu;
	unsigned long gigantic;
	unsigned long huge;
};

static time_t until;

static bool fault(size_t size)
{
	char *mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE |
			 MAP_ANONYMOUS | MAP_HUGETLB |
			 (__builtin_ctzl(size) << HUGE_SHIFT), -1, 0);
	bool zero;

	if (mem == MAP_FAILED)
		return false;
	zero = !mem[0] && !mem[size / 2] && !mem[size - 1];
	memset(mem, 1, 4096);
	munmap(mem, size);
	if (!zero)
		ksft_exit_fail_msg("a fresh page was not zero\n");
	return true;
}

static void *work(void *arg)
{
	struct worker *worker = arg;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(worker->cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		ksft_exit_fail_perror("sched_setaffinity");
	while (time(NULL) < until) {
		if (fault(1UL << 30))
			worker->gigantic++;
		else if (fault(2UL << 20))
			worker->huge++;
		else
			usleep(1000);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	static struct worker workers[MAX_CPUS];
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned long gigantic = 0;
	bool all = true;
	int i;

	if (argc != 2 || cpus > MAX_CPUS)
		ksft_exit_fail_msg("usage: folio_zero_stall SECONDS, on up to 64 CPUs\n");
	ksft_print_header();
	ksft_set_plan(2);
	until = time(NULL) + atoi(argv[1]);
	for (i = 0; i < cpus; i++) {
		workers[i].cpu = i;
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			ksft_exit_fail_perror("pthread_create");
	}
	for (i = 0; i < cpus; i++) {
		pthread_join(workers[i].thread, NULL);
		ksft_print_msg("CPU %d: %lu gigantic pages, %lu huge pages\n", i,
			       workers[i].gigantic, workers[i].huge);
		gigantic += workers[i].gigantic;
		all &= workers[i].gigantic + workers[i].huge > 0;
	}
	ksft_test_result(gigantic > 0, "gigantic pages were cleared\n");
	ksft_test_result(all, "every CPU cleared pages\n");
	ksft_finished();
}
