/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * For programs that say what they find, a line each: whether they run untouched or under the preload
 * shim, the lines are to be the same. So none has an address or a time.
 *
 * PAGE is the includer's: the bytes of a huge page.
 */
#ifndef FOUND_H
#define FOUND_H

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define HUGE	(MAP_ANONYMOUS | MAP_HUGETLB)
#define RW	(PROT_READ | PROT_WRITE)

static const char *subject;

/* Lines are written at once: what a child has buffered is nobody's twice. */
static inline void say(const char *what, long found)
{
	char line[256];
	int n = snprintf(line, sizeof(line), "%s: %s: %ld\n", subject, what, found);

	if (write(STDOUT_FILENO, line, n) != n)
		_exit(3);
}

static inline void say_errno(const char *what, long result)
{
	char line[256];
	int n = snprintf(line, sizeof(line), "%s: %s: %s\n", subject, what,
			 result == -1 ? strerrorname_np(errno) : "done");

	if (write(STDOUT_FILENO, line, n) != n)
		_exit(3);
}

static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", subject, what, strerror(errno));
	exit(2);
}

static inline unsigned char *map(void *at, size_t pages, int prot, int flags)
{
	unsigned char *memory = mmap(at, pages * PAGE, prot, flags | HUGE, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	return memory;
}

static inline bool is_zero(const unsigned char *memory, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 8)
		if (*(const volatile unsigned long *)(memory + i))
			return false;
	return true;
}

static inline void fill(unsigned char *memory, size_t bytes, int byte)
{
	memset(memory, byte, bytes);
}

/* How a child ended: its code, or minus the signal. */
static inline long child_end(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid)
		die("waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static inline pid_t child(void)
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	return pid;
}

/* How a child ends that touches a byte. */
static inline long touch(unsigned char *at, bool write_it)
{
	pid_t pid = child();

	if (!pid) {
		signal(SIGSEGV, SIG_DFL);
		signal(SIGBUS, SIG_DFL);
		if (write_it)
			*(volatile unsigned char *)at = 1;
		_exit(*(volatile unsigned char *)at);
	}
	return child_end(pid);
}

/* Two processes in step: each waits for the other's word. */
static int steps[2][2];

static inline void make_steps(void)
{
	if (pipe(steps[0]) || pipe(steps[1]))
		die("pipe");
}

static inline void drop_steps(void)
{
	for (int i = 0; i < 4; i++)
		close(steps[i / 2][i % 2]);
}

static inline void tell(int side)
{
	if (write(steps[side][1], "", 1) != 1)
		die("write");
}

/* In which the other has to tell; more where it has a page of 1 GiB to copy before it does. */
static int timeout_ms = 20000;

/* Who is to tell may be dead: a child has nothing of lent memory where it is dropped. */
static inline void await(int side)
{
	struct pollfd word = { .fd = steps[side][0], .events = POLLIN };
	char byte;
	int told;

	do
		told = poll(&word, 1, timeout_ms);
	while (told < 0 && errno == EINTR);
	if (told != 1)
		die("nobody tells");
	if (read(steps[side][0], &byte, 1) != 1)
		die("read");
}

#endif
