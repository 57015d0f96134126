/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * malloc that takes huge pages by itself, beside mappings of huge pages, in threads and over forks:
 * it says what lies in memory. GLIBC_TUNABLES is the caller's to set.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE	(2UL << 20)
#define BLOCKS	8

static unsigned char *allocated[BLOCKS], *mapped[BLOCKS];

static unsigned long sum(void)
{
	unsigned long hash = 5381;

	for (int i = 0; i < BLOCKS; i++)
		for (unsigned long at = 0; at < PAGE; at += 4096)
			hash = hash * 33 + allocated[i][at] + 7 * (mapped[i] ? mapped[i][at] : 0);
	return hash;
}

static void say(const char *what)
{
	printf("%s: %lx\n", what, sum());
	fflush(stdout);
}

static void map(int i)
{
	mapped[i] = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (mapped[i] == MAP_FAILED)
		exit(3);
	memset(mapped[i], 100 + i, PAGE);
}

static void *churn(void *seed)
{
	unsigned long state = (unsigned long)seed;

	for (int i = 0; i < 200; i++) {
		state = state * 6364136223846793005UL + 1442695040888963407UL;
		size_t bytes = 1 + (state >> 33) % (PAGE + PAGE / 2);
		unsigned char *block = malloc(bytes);

		if (!block)
			exit(4);
		block[0] = block[bytes - 1] = 1;
		free(block);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[3];

	for (int i = 0; i < BLOCKS; i++) {
		allocated[i] = malloc(PAGE + i);
		memset(allocated[i], 1 + i, PAGE + i);
		if (i % 2)
			map(i);
	}
	say("begun");
	for (unsigned long i = 0; i < 3; i++)
		pthread_create(&threads[i], NULL, churn, (void *)(i + 1));
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < BLOCKS; i++)
			allocated[i] = realloc(allocated[i], PAGE * (1 + (round + i) % 3));
		for (int i = round % 2; i < BLOCKS; i += 2) {
			if (mapped[i])
				munmap(mapped[i], PAGE);
			mapped[i] = NULL;
			free(allocated[i]);
			allocated[i] = malloc(PAGE);
			memset(allocated[i], 10 * round + i, PAGE);
		}
		map(round);
		say("changed");
		pid_t child = fork();
		if (!child) {
			say("the child has");
			for (int i = 0; i < BLOCKS; i++)
				memset(allocated[i], 200, PAGE);
			memset(mapped[round], 201, PAGE);
			say("the child leaves");
			_exit(0);
		}
		int status;

		waitpid(child, &status, 0);
		printf("it ends: %d\n", status);
		say("the parent has");
	}
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	say("ended");
	return 0;
}
