// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * touch PAGES - so many huge pages of a private mapping, and as many of a shared one
 *
 * Looks at every byte, writes every page, has a child write to both mappings, and prints what it
 * found. For any C library.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE	(2ul << 20)
#ifndef MAP_HUGETLB
#define MAP_HUGETLB	0x40000
#endif

static unsigned long *map(long pages, int how)
{
	void *p = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, how | MAP_ANONYMOUS | MAP_HUGETLB,
		       -1, 0);

	if (p == MAP_FAILED) {
		perror("huge pages");
		exit(1);
	}
	return p;
}

static unsigned long sum(const unsigned long *p, long pages)
{
	unsigned long sum = 0;

	for (unsigned long i = 0; i < pages * PAGE / sizeof(*p); i++)
		sum += p[i];
	return sum;
}

static void write_each(unsigned long *p, long pages, unsigned long value)
{
	for (long i = 0; i < pages; i++)
		p[i * (PAGE / sizeof(*p))] = value;
}

int main(int argc, char **argv)
{
	long pages = argc > 1 ? atol(argv[1]) : 8;
	unsigned long *own = map(pages, MAP_PRIVATE), *shared = map(pages, MAP_SHARED);
	int status;

	printf("%ld private pages: %lu\n", pages, sum(own, pages));
	printf("%ld shared pages: %lu\n", pages, sum(shared, pages));
	write_each(own, pages, 1);
	write_each(shared, pages, 1);
	fflush(stdout);
	if (fork() == 0) {
		write_each(own, 1, 5);
		write_each(shared, pages, 2);
		_exit(sum(own, pages) == (unsigned long)pages + 4 ? 0 : 1);
	}
	wait(&status);
	printf("a child: %d, then %lu and %lu\n", status, sum(own, pages), sum(shared, pages));
	return 0;
}
