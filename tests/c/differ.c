/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A seeded program of the calls that the preload shim stands before: whole and partial pages, refused
 * calls, forks in forks, a thread, signals. It prints what each call answered and a sum of what lies in
 * memory, no address and no time: the same untouched and under the shim.
 *
 *	differ SEED [CALLS]
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/time.h>

#define PAGE	(2UL << 20)
#include "found.h"

#define SMALL	4096UL
#define SPAN	12		/* pages of the arena */
#define FILES	3

static unsigned long state;
static unsigned char *arena;
static int files[FILES] = { -1, -1, -1 };
static int depth, step;

static unsigned long any(unsigned long below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % below;
}

static void answer(const char *what, unsigned long at, unsigned long bytes, long result)
{
	char line[200];
	int n = snprintf(line, sizeof(line), "%d.%d %s(%lu.%lu, %lu.%lu) %s\n", depth, step, what,
			 at / PAGE, at % PAGE / SMALL, bytes / PAGE, bytes % PAGE / SMALL,
			 result == -1 ? strerrorname_np(errno) : "ok");

	if (write(STDOUT_FILENO, line, n) != n)
		_exit(3);
}

/* A byte by the kernel, which says EFAULT where a load would end the program. */
static int peek(unsigned char *at)
{
	static int ends[2];
	unsigned char byte;

	if (!ends[0] && pipe2(ends, O_CLOEXEC))
		die("pipe");
	if (write(ends[1], at, 1) != 1)
		return -1;
	if (read(ends[0], &byte, 1) != 1)
		_exit(4);
	return byte;
}

static void sum(const char *what)
{
	static const unsigned long probes[] = { 0, 1, SMALL, PAGE / 2 + 3, PAGE - 1 };
	unsigned long hash = 5381;
	char line[120];

	for (int page = 0; page < SPAN; page++)
		for (size_t i = 0; i < sizeof(probes) / sizeof(probes[0]); i++)
			hash = hash * 33 + (unsigned long)(peek(arena + page * PAGE + probes[i]) + 2);
	int n = snprintf(line, sizeof(line), "%d.%d %s %016lx\n", depth, step, what, hash);
	if (write(STDOUT_FILENO, line, n) != n)
		_exit(3);
}

/* Writes where it may, so that nothing depends on what has been there. */
static void scribble(unsigned char *at, int value)
{
	int zero = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	char text[65536];
	long n, have = 0;

	while (have < (long)sizeof(text) - 1 && (n = read(zero, text + have, sizeof(text) - 1 - have)) > 0)
		have += n;
	close(zero);
	text[have] = 0;
	for (char *line = text; line && *line; line = strchr(line, '\n')) {
		unsigned long from, to;
		char rights[5];

		if (*line == '\n')
			line++;
		if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3 && rights[1] == 'w' &&
		    from <= (unsigned long)at && (unsigned long)at < to) {
			*(volatile unsigned char *)at = value;
			return;
		}
	}
}

static void run(int calls);

static void fork_here(int calls)
{
	if (depth > 2)
		return;
	pid_t pid = fork();
	if (pid < 0) {
		answer("fork", 0, 0, -1);
		return;
	}
	if (!pid) {
		depth++;
		state ^= 0x9e3779b97f4a7c15UL * (step + 1);
		sum("child has");
		run(calls / 3);
		sum("child leaves");
		_exit(0);
	}
	long end = child_end(pid);
	char line[80];
	int n = snprintf(line, sizeof(line), "%d.%d fork ended %ld\n", depth, step, end);
	if (write(STDOUT_FILENO, line, n) != n)
		_exit(3);
}

static void call(int calls)
{
	static const int advices[] = { MADV_DONTNEED, MADV_DONTNEED, MADV_REMOVE, MADV_DONTFORK,
				       MADV_DOFORK, MADV_FREE, MADV_DONTDUMP, MADV_DODUMP,
				       MADV_WILLNEED, MADV_COLD, MADV_POPULATE_READ,
				       MADV_POPULATE_WRITE, MADV_WIPEONFORK };
	static const int prots[] = { RW, RW, RW, PROT_READ, PROT_NONE };
	bool odd = any(5) == 0;
	unsigned long at = any(SPAN - 2) * PAGE + (odd ? any(512) * SMALL : 0);
	unsigned long bytes = (1 + any(3)) * PAGE;
	int file = any(FILES);

	if (odd && any(2))
		bytes = any(512) * SMALL;
	if (at + bytes > SPAN * PAGE)
		bytes = SPAN * PAGE - at;
	unsigned char *place = arena + at;
	unsigned long which_call = any(18);

	/* Several blocks are several mappings: what is refused in the midst has been done before it. */
	if (odd && which_call >= 6 && which_call <= 9 && at % PAGE + bytes > PAGE)
		bytes = PAGE - at % PAGE;
	switch (which_call) {
	case 0: case 1: case 2:
		answer("mmap private", at, bytes, (long)mmap(place, bytes, prots[any(5)],
		       MAP_PRIVATE | HUGE | MAP_FIXED, -1, 0));
		break;
	case 3:
		answer("mmap shared", at, bytes, (long)mmap(place, bytes, prots[any(5)],
		       MAP_SHARED | HUGE | MAP_FIXED, -1, 0));
		break;
	case 4:
		answer("mmap small", at, bytes, (long)mmap(place, bytes, RW,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
		break;
	case 5:
		answer("munmap", at, bytes, munmap(place, bytes));
		break;
	case 6: case 7: case 8: {
		int which = any(sizeof(advices) / sizeof(advices[0]));
		char name[32];

		snprintf(name, sizeof(name), "madvise %d", advices[which]);
		answer(name, at, bytes, madvise(place, bytes, advices[which]));
		break;
	}
	case 9:
		answer("mprotect", at, bytes, mprotect(place, bytes, prots[any(5)]));
		break;
	case 10: {
		/*
		 * Of a whole mapping, or refused: where a part of private huge pages moves, Linux 6.18 forgets
		 * what it has promised to the rest, and nobody gets those pages until the machine restarts.
		 */
		unsigned long to = any(SPAN - 3) * PAGE;
		bool refused = at % PAGE;

		if (!refused)
			bytes = (1 + any(3)) * PAGE;
		if (at + bytes > SPAN * PAGE || (to < at + bytes && at < to + bytes))
			break;
		if (refused || mmap(place, bytes, RW, MAP_PRIVATE | HUGE | MAP_FIXED, -1, 0) == place)
			answer("mremap to", at, bytes, (long)mremap(place, bytes, bytes,
			       MREMAP_MAYMOVE | MREMAP_FIXED, arena + to));
		break;
	}
	case 11:
		answer("mremap smaller", at, bytes, (long)mremap(place, bytes, PAGE, 0));
		break;
	case 12:
		if (files[file] >= 0)
			close(files[file]);
		files[file] = memfd_create("f", MFD_HUGETLB | MFD_CLOEXEC | MFD_ALLOW_SEALING);
		answer("memfd_create", file, 0, files[file]);
		break;
	case 13:
		answer("ftruncate", file, bytes, ftruncate(files[file], bytes));
		break;
	case 14:
		answer("mmap file", at, bytes, (long)mmap(place, bytes, prots[any(5)],
		       (any(3) ? MAP_SHARED : MAP_PRIVATE) | MAP_FIXED, files[file], 0));
		break;
	case 15:
		if (any(2))
			answer("punch", file, bytes, fallocate(files[file],
			       FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes));
		else if (!depth)	/* a child's seals of a lent memfd are its own */
			answer("seal", file, 0, fcntl(files[file], F_ADD_SEALS, F_SEAL_GROW));
		break;
	default:
		if (any(3) == 0)
			fork_here(calls);
		for (int i = 0; i < 4; i++)
			scribble(arena + any(SPAN) * PAGE + any(2) * (PAGE / 2 + 3), 1 + any(250));
	}
}

static void run(int calls)
{
	for (step = 0; step < calls; step++) {
		call(calls);
		if (step % 8 == 7)
			sum("sum");
	}
}

static void on_alarm(int signal)
{
	(void)signal;
}

static volatile int stop;

/* At a place of its own: a hole that the others leave is theirs. */
static void *beside(void *place)
{
	while (!stop) {
		unsigned char *memory = mmap(place, PAGE, RW, MAP_PRIVATE | HUGE | MAP_FIXED, -1, 0);

		if (memory != MAP_FAILED) {
			if (memory[0])
				_exit(5);
			memory[0] = 1;
			madvise(memory, PAGE, MADV_DONTNEED);
			if (memory[0])
				_exit(6);
		}
		usleep(500);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned long seed = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
	int calls = argc > 2 ? atoi(argv[2]) : 60;
	struct itimerval timer = { { 0, 1500 }, { 0, 1500 } };
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	pthread_t thread;

	subject = "differ";
	state = (seed + 1) * 0x9e3779b97f4a7c15UL;
	/* Where the kernel puts nothing by itself: what is unmapped here stays a hole. */
	arena = mmap((void *)(1UL << 44), (SPAN + 1) * PAGE, PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	if (arena == MAP_FAILED)
		die("the arena");
	sigaction(SIGALRM, &action, NULL);
	if (seed % 4 == 1)
		setitimer(ITIMER_REAL, &timer, NULL);
	bool with_thread = seed % 4 == 2;
	if (with_thread)
		pthread_create(&thread, NULL, beside, arena + SPAN * PAGE);
	run(calls);
	stop = 1;
	if (with_thread)
		pthread_join(thread, NULL);
	return 0;
}
