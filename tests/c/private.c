/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What a program finds of its private memory after a fork, a line each. What that is depends on
 * `prezero run --private` and on whether the memory is lent: tests/e2e/shim.rs says which lines it
 * expects of which.
 *
 * In the end a child lives on while its parent has unmapped everything; the program ends when its
 * standard input does.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>

#define PAGE	(2UL << 20)
#include "found.h"

extern char **environ;

/* Whether there is memory, without a signal if not: the kernel reads it. */
static long has(void *at)
{
	int ends[2];

	if (pipe(ends))
		die("pipe");
	long written = write(ends[1], at, 1);
	close(ends[0]);
	close(ends[1]);
	return written == 1;
}

/* Address space for all that there is and half a huge page more. */
static void limit_memory(void)
{
	unsigned long pages;
	FILE *file = fopen("/proc/self/statm", "r");

	if (!file || fscanf(file, "%lu", &pages) != 1)
		die("/proc/self/statm");
	fclose(file);
	struct rlimit limit = { pages * 4096 + PAGE / 2, RLIM_INFINITY };
	if (setrlimit(RLIMIT_AS, &limit))
		die("setrlimit");
}

static void forks(unsigned char *memory, unsigned char *shared)
{
	pid_t pid = child();

	if (!pid) {
		subject = "child";
		say("has its parent's private memory", has(memory));
		say("... all of it", has(memory + PAGE));
		say("shares shared memory", shared[0]);
		shared[0] = 2;
		/* What the child maps itself is its own, and its children's by the same rule. */
		unsigned char *own = map(NULL, 1, RW, MAP_PRIVATE);
		say("maps zeros of its own", is_zero(own, PAGE));
		own[0] = 3;
		pid = child();
		if (!pid)
			_exit(has(own) + 2 * has(memory));
		say("a grandchild has its own, and its parent's", child_end(pid));
		say("its own stays", own[0]);
		/* As allocators do in children with what they had before. */
		say_errno("unmaps its parent's", munmap(memory, 2 * PAGE));
		say("... and nothing else", own[0]);
		_exit(0);
	}
	say("a child ends", child_end(pid));
	say("the content is its own", memory[0] + memory[2 * PAGE - 1]);
	say("the child's shared write is seen", shared[0]);
	memory[0]++;
	say("it goes on writing", memory[0]);
}

static void other_ways(unsigned char *memory)
{
	char *words[] = { "sh", "-c", "exit 9", NULL };
	pid_t pid;

	say("system", system("exit 7") >> 8);
	say("posix_spawn", posix_spawnp(&pid, "sh", NULL, NULL, words, environ) ? -1 : child_end(pid));
	pid = vfork();
	if (!pid) {
		memory[0]++;
		_exit(0);
	}
	child_end(pid);
	say("a vfork shares", memory[0]);

	/* A fork inside of the C library. */
	make_steps();
	pid = child();
	if (!pid) {
		unsigned char *own = map(NULL, 1, RW, MAP_PRIVATE);

		if (daemon(1, 1))
			die("daemon");
		say("daemon() has what was mapped before it", has(own));
		tell(0);
		_exit(0);
	}
	child_end(pid);
	await(0);
	drop_steps();
}

int main(void)
{
	subject = "parent";
	unsigned char *memory = map(NULL, 2, RW, MAP_PRIVATE);
	unsigned char *shared = map(NULL, 1, RW, MAP_SHARED);

	fill(memory, 2 * PAGE, 1);
	shared[0] = 1;
	forks(memory, shared);
	other_ways(memory);
	say_errno("MADV_DONTFORK", madvise(memory + PAGE, PAGE, MADV_DONTFORK));
	pid_t pid = child();
	if (!pid)
		_exit(has(memory) + 2 * has(memory + PAGE));
	say("a child has the first page, and the second", child_end(pid));
	say_errno("MADV_DOFORK", madvise(memory + PAGE, PAGE, MADV_DOFORK));
	pid = child();
	if (!pid)
		_exit(has(memory) + 2 * has(memory + PAGE));
	say("a child has the first page, and the second", child_end(pid));

	/* A child that outlives the parent's memory. */
	make_steps();
	pid = child();
	if (!pid) {
		munmap(shared, PAGE);
		tell(1);
		await(0);
		_exit(has(memory));
	}
	await(1);
	munmap(memory, 2 * PAGE);
	munmap(shared, PAGE);
	char byte;
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	tell(0);
	say("a child that lived on has the memory", child_end(pid));
	drop_steps();

	memory = map(NULL, 1, RW, MAP_PRIVATE);
	memory[0] = 1;
	limit_memory();
	pid = fork();
	if (!pid)
		_exit(has(memory));
	say_errno("fork without room for a copy", pid);
	say("its child has the memory", pid < 0 ? -1 : child_end(pid));
	return 0;
}
