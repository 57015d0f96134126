/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What calls about ordinary memory cost beside huge pages: CPU time of one call in nanoseconds, the
 * median of a few rounds. Also the cost of each of many memfds.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE	(2UL << 20)
#define RW	(PROT_READ | PROT_WRITE)
#define ANY	(MAP_PRIVATE | MAP_ANONYMOUS)
#define ROUNDS	9

typedef long bind(void *, unsigned long, int, const unsigned long *, unsigned long, unsigned);

/* What libnuma does; under the shim its function is found. */
static long bare(void *at, unsigned long bytes, int mode, const unsigned long *nodes,
		 unsigned long most, unsigned flags)
{
	return syscall(SYS_mbind, at, bytes, mode, nodes, most, flags);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int compare(const void *left, const void *right)
{
	const double *a = left, *b = right;

	return (*a > *b) - (*a < *b);
}

static void report(const char *name, double *rounds)
{
	qsort(rounds, ROUNDS, sizeof(double), compare);
	printf("%s %.0f\n", name, rounds[ROUNDS / 2]);
	fflush(stdout);
}

static void ordinary(const char *when)
{
	enum { CALLS = 500 };
	static char *at[CALLS];
	double maps[ROUNDS], advice[ROUNDS], unmaps[ROUNDS], binds[ROUNDS];
	unsigned long node = 1;
	bind *found = (bind *)dlsym(RTLD_DEFAULT, "mbind");
	bind *mbind = found ? found : bare;
	char name[80];

	for (int round = 0; round < ROUNDS; round++) {
		double start = now();
		for (int i = 0; i < CALLS; i++)
			at[i] = mmap(NULL, 65536, RW, ANY, -1, 0);
		maps[round] = (now() - start) / CALLS;
		start = now();
		for (int i = 0; i < CALLS; i++)
			madvise(at[i], 65536, MADV_DONTNEED);
		advice[round] = (now() - start) / CALLS;
		start = now();
		for (int i = 0; i < CALLS; i++)
			mbind(at[i], 65536, 2, &node, 64, 0);
		binds[round] = (now() - start) / CALLS;
		start = now();
		for (int i = 0; i < CALLS; i++)
			munmap(at[i], 65536);
		unmaps[round] = (now() - start) / CALLS;
	}
	snprintf(name, sizeof(name), "mmap %s", when);
	report(name, maps);
	snprintf(name, sizeof(name), "madvise %s", when);
	report(name, advice);
	snprintf(name, sizeof(name), "mbind %s", when);
	report(name, binds);
	snprintf(name, sizeof(name), "munmap %s", when);
	report(name, unmaps);
}

static void memfds(int count)
{
	int *fds = malloc(sizeof(int) * (unsigned)count);
	double start = now();

	for (int i = 0; i < count; i++) {
		fds[i] = memfd_create("page", MFD_HUGETLB);
		if (fds[i] < 0 || ftruncate(fds[i], PAGE))
			exit(3);
	}
	printf("memfd of %d %.0f\n", count, (now() - start) / count);
	fflush(stdout);
	for (int i = 0; i < count; i++)
		close(fds[i]);
	free(fds);
}

int main(void)
{
	struct rlimit limit = { 10000, 10000 };

	setrlimit(RLIMIT_NOFILE, &limit);
	ordinary("before");
	char *lent = mmap(NULL, 2 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	char *gone = mmap(NULL, 2 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	int id = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | SHM_HUGETLB | 0600);
	char *segment = shmat(id, NULL, 0);
	if (lent == MAP_FAILED || gone == MAP_FAILED || segment == (void *)-1)
		return 2;
	lent[0] = segment[0] = 1;
	shmctl(id, IPC_RMID, NULL);
	munmap(gone, 2 * PAGE);
	/* Ordinary memory where lent memory was, and thousands of mappings. */
	mmap(gone, 2 * PAGE, RW, ANY | MAP_FIXED_NOREPLACE, -1, 0);
	for (int i = 0; i < 3000; i++)
		mmap(NULL, 4096, i % 2 ? PROT_READ : RW, ANY, -1, 0);
	ordinary("beside lent memory");
	memfds(500);
	memfds(2000);
	return 0;
}
