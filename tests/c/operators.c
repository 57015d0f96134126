// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * operators TREE - do watch_and_zero and keep_ready do what they are for?
 *
 * Runs both, which have to lie beside this program, and looks at the domain with
 * the most zeroable pages: keep_ready has to make some ready and leave the rest,
 * watch_and_zero all, and both have to end soon when they are told to, even
 * while they are zeroing. Prints TAP. Run it as root with 64 or more zeroable
 * pages on one node; zeroes pages, changes nothing else.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "tap.h"

static char domain[PATH_MAX];

static long count(const char *dir, const char *name)
{
	char path[PATH_MAX + 32], text[32] = "";
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDONLY);
	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		bail_out(path);
	close(fd);
	return atol(text);
}

static void find_domain(const char *tree)
{
	char pattern[PATH_MAX];
	glob_t found;
	long most = -1;

	snprintf(pattern, sizeof(pattern), "%.4000s/node*/hugepages/hugepages-*kB",
		 tree);
	if (glob(pattern, 0, NULL, &found)) {
		printf("Bail out! no %s\n", pattern);
		exit(1);
	}
	for (size_t i = 0; i < found.gl_pathc; i++) {
		long zeroable = count(found.gl_pathv[i], "zeroable_hugepages");

		if (zeroable > most) {
			most = zeroable;
			snprintf(domain, sizeof(domain), "%s", found.gl_pathv[i]);
		}
	}
	globfree(&found);
}

static pid_t start(const char *name, char *tree)
{
	char self[PATH_MAX], path[PATH_MAX + 64];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	pid_t pid;

	self[n < 0 ? 0 : n] = '\0';
	snprintf(path, sizeof(path), "%s/%s", dirname(self), name);
	pid = fork();
	if (pid == 0) {
		dup2(2, 1);	/* stdout is for TAP */
		execl(path, path, tree, NULL);
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		_exit(127);
	}
	return pid;
}

/* Seconds until @pid has ended well after SIGTERM, or -1. */
static double stop(pid_t pid)
{
	double start = seconds();
	int status;

	kill(pid, SIGTERM);
	waitpid(pid, &status, 0);
	return WIFEXITED(status) && !WEXITSTATUS(status) ? seconds() - start : -1;
}

/* Until so many pages are zeroed, or for ten seconds. */
static bool wait_zeroed(long pages)
{
	double end = seconds() + 10;

	while (count(domain, "zeroed_hugepages") < pages) {
		if (seconds() > end)
			return false;
		usleep(10000);
	}
	return true;
}

int main(int argc, char **argv)
{
	long zeroed, zeroable;
	double took;
	bool ready;
	pid_t pid;

	if (argc != 2) {
		fprintf(stderr, "usage: %s TREE\n", argv[0]);
		return 2;
	}
	find_domain(argv[1]);
	zeroed = count(domain, "zeroed_hugepages");
	zeroable = count(domain, "zeroable_hugepages");
	printf("TAP version 13\n# %s: %ld zeroed, %ld zeroable\n", domain, zeroed,
	       zeroable);
	if (zeroed || zeroable < 64) {
		printf("1..0 # SKIP needs 64 zeroable pages and none zeroed\n");
		return 0;
	}

	pid = start("keep_ready", argv[1]);
	ready = wait_zeroed(16);
	result(ready, "keep_ready makes 16 pages ready (%ld)",
	       count(domain, "zeroed_hugepages"));
	sleep(1);
	result(count(domain, "zeroable_hugepages") > 0, "and leaves the rest (%ld)",
	       count(domain, "zeroable_hugepages"));
	took = stop(pid);
	result(took >= 0 && took < 6, "and ends when it is told to (%g)", took);

	/* Told at once, while its eight threads are at work. */
	pid = start("watch_and_zero", argv[1]);
	wait_zeroed(count(domain, "zeroed_hugepages") + 1);
	took = stop(pid);
	result(took >= 0 && took < 2,
	       "watch_and_zero ends when it is told to (%g)", took);

	pid = start("watch_and_zero", argv[1]);
	ready = wait_zeroed(zeroable);
	result(ready, "watch_and_zero zeroes everything (%ld)",
	       count(domain, "zeroed_hugepages"));
	result(count(domain, "zeroable_hugepages") == 0, "nothing is left (%ld)",
	       count(domain, "zeroable_hugepages"));
	sleep(1);	/* or it is told before it can listen */
	took = stop(pid);
	result(took >= 0 && took < 2, "and ends when it sleeps (%g)", took);

	return done();
}
