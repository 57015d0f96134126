// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * replug NODE CYCLES - a node comes and goes while its huge pages are zeroed
 *
 * Runs as root in a machine whose host applies HOST-ADD and HOST-REMOVE on this
 * program's output, and whose kernel brings new memory online by itself. In each
 * cycle the node comes, who polls must be woken, by the file and by the device;
 * then it goes, while a controller reads and sets the threshold, two tasks zero,
 * one resizes the pool, and a writer holds a page that is not given a CPU. It must
 * go nevertheless, and every one of them return. Prints TAP.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "hugepagectl.h"

#define PAGES	30
#define GROUP	"/sys/fs/cgroup/starved"
/* Under emulation with all checkers on, a node takes a minute to go. */
#define WAIT_TIMEOUT	180

static int node, number, failures;

static void result(bool ok, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	failures += !ok;
	printf("%sok %d ", ok ? "" : "not ", ++number);
	vprintf(format, args);
	printf("\n");
	fflush(stdout);
	va_end(args);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void give_up(const char *what)
{
	printf("Bail out! %s: %s\n", what, strerror(errno));
	exit(1);
}

static const char *file(const char *name)
{
	static char path[256];

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/hugepages/"
		 "hugepages-2048kB/%s", node, name);
	return path;
}

/* The number in a file; -1 if there is none. */
static long get(const char *name)
{
	char text[32] = "";
	int fd = open(file(name), O_RDONLY);
	ssize_t n = -1;

	if (fd >= 0) {
		n = read(fd, text, sizeof(text) - 1);
		close(fd);
	}
	return n > 0 ? atol(text) : -1;
}

/* 0 or -errno */
static int put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY), err = 0;

	if (fd < 0)
		return -errno;
	if (write(fd, text, strlen(text)) < 0)
		err = -errno;
	close(fd);
	return err;
}

static int put_number(const char *name, long value)
{
	char text[32];

	snprintf(text, sizeof(text), "%ld", value);
	return put(file(name), text);
}

static void wait_for(bool there, const char *what)
{
	double start = seconds();

	while ((access(file("nr_hugepages"), F_OK) == 0) != there) {
		if (seconds() - start > WAIT_TIMEOUT) {
			errno = ETIMEDOUT;
			give_up(what);
		}
		usleep(50000);
	}
}

static void fill(long pages)
{
	double start = seconds();

	/* The memory comes online block by block. */
	do {
		put_number("nr_hugepages", pages);
		if (get("nr_hugepages") == pages)
			return;
		usleep(100000);
	} while (seconds() - start < WAIT_TIMEOUT);
	errno = ENOMEM;
	give_up("cannot fill the pool");
}

/* A child that resizes the pool in a moment. */
static pid_t resize_later(long pages)
{
	pid_t pid = fork();

	if (pid == 0) {
		usleep(300000);
		put_number("nr_hugepages", pages);
		_exit(0);
	}
	return pid;
}

/* Polls @fd while the pool gets @pages; whether it was woken. */
static bool woken(int fd, short events, long pages)
{
	struct pollfd poller = { .fd = fd, .events = events };
	pid_t pid = resize_later(pages);
	int n = poll(&poller, 1, 10000);

	waitpid(pid, NULL, 0);
	return n == 1 && poller.revents & events;
}

static bool file_is_woken(void)
{
	struct pollfd stale;
	char text[32];
	bool ok;
	int fd = open(file("zeroable_hugepages"), O_RDONLY);

	if (fd < 0)
		give_up("zeroable_hugepages");
	stale.fd = fd;
	stale.events = POLLPRI;
	do {
		if (pread(fd, text, sizeof(text), 0) < 0)
			give_up("zeroable_hugepages");
	} while (poll(&stale, 1, 300) > 0);
	ok = woken(fd, POLLPRI, PAGES + 3);
	close(fd);
	return ok;
}

static long zero(__u64 pages)
{
	struct hugepagectl_zero args = {
		.size = sizeof(args), .node = node, .page_shift = 21,
		.pages = pages,
	};
	int fd = open("/dev/hugepagectl", O_RDWR);
	int err = ioctl(fd, HUGEPAGECTL_ZERO, &args) ? -errno : 0;

	close(fd);
	return err ? err : (long)args.zeroed;
}

static bool watch_is_woken(void)
{
	struct hugepagectl_watch watch = {
		.size = sizeof(watch), .node = node, .page_shift = 21,
		.min_interval_ms = 1,
	};
	int fd = open("/dev/hugepagectl", O_RDONLY);
	bool ok;

	zero(HUGEPAGECTL_ALL);
	watch.min_zeroed = get("zeroed_hugepages");
	if (ioctl(fd, HUGEPAGECTL_WATCH, &watch))
		give_up("HUGEPAGECTL_WATCH");
	ok = woken(fd, POLLIN, PAGES - 10);
	close(fd);
	return ok;
}

/* Reads what there is and sets the threshold, as fast as it goes. */
static void control(void)
{
	char text[32];
	int fd = open(file("zeroable_hugepages"), O_RDONLY);
	int low = open(file("zeroed_low"), O_WRONLY);

	while (pread(fd, text, sizeof(text), 0) > 0 &&
	       pwrite(low, "1\n", 2, 0) > 0)
		usleep(200);
}

static void zero_on(void)
{
	while (zero(HUGEPAGECTL_ALL) != -ENODEV)
		usleep(500);
}

static void resize(void)
{
	while (!put_number("nr_hugepages", PAGES - 8) &&
	       !put_number("nr_hugepages", PAGES))
		usleep(2000);
}

static void join_starved(int nice_value)
{
	if (put(GROUP "/cgroup.procs", "0"))
		give_up(GROUP);
	setpriority(PRIO_PROCESS, 0, nice_value);
}

/* A thousandth of a CPU, of which the one beside it takes nearly all. */
static void write_starved(void)
{
	int fd;

	join_starved(19);
	fd = open(file("zeroable_hugepages"), O_WRONLY);
	/* Until it is gone from under us. */
	while (write(fd, "max", 3) == 3)
		;
}

static void hog(void)
{
	join_starved(-20);
	for (;;)
		;
}

static pid_t start(void (*what)(void))
{
	pid_t pid = fork();

	if (pid < 0)
		give_up("fork");
	if (pid == 0) {
		what();
		_exit(0);
	}
	return pid;
}

/* Whether it ends by itself, in time. */
static bool ends(pid_t pid)
{
	double begin = seconds();
	int status;

	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (seconds() - begin > 30) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			return false;
		}
		usleep(10000);
	}
	return WIFEXITED(status) && !WEXITSTATUS(status);
}

static void say(const char *to_host)
{
	printf("%s\n", to_host);
	fflush(stdout);
}

static void cycle(int i)
{
	pid_t starved, hogs, others[4];
	double begin;
	bool all = true;

	say("HOST-ADD");
	wait_for(true, "the node does not come");
	fill(PAGES);
	result(file_is_woken(), "cycle %d: who polls the file is woken", i);
	fill(PAGES);
	result(watch_is_woken(), "cycle %d: who watches by the device is woken", i);

	fill(0);
	fill(PAGES);
	starved = start(write_starved);
	usleep(300000);
	put(GROUP "/cpu.max", "1000 1000000");
	hogs = start(hog);
	others[0] = start(control);
	others[1] = start(zero_on);
	others[2] = start(zero_on);
	others[3] = start(resize);
	sleep(2);

	begin = seconds();
	say("HOST-REMOVE");
	wait_for(false, "the node does not go");
	printf("# gone after %.1f s\n", seconds() - begin);
	result(true, "cycle %d: the node goes while a starved writer zeroes", i);
	put(GROUP "/cpu.max", "max 1000000");
	kill(hogs, SIGKILL);
	waitpid(hogs, NULL, 0);
	all &= ends(starved);
	for (int j = 0; j < 4; j++)
		all &= ends(others[j]);
	result(all, "cycle %d: all who worked on it return", i);
}

int main(int argc, char **argv)
{
	int cycles = argc > 2 ? atoi(argv[2]) : 0;

	if (cycles < 1) {
		fprintf(stderr, "usage: replug NODE CYCLES\n");
		return 2;
	}
	node = atoi(argv[1]);
	mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, NULL);
	if (put("/sys/fs/cgroup/cgroup.subtree_control", "+cpu") ||
	    (mkdir(GROUP, 0755) && errno != EEXIST))
		give_up(GROUP);
	printf("TAP version 13\n1..%d\n", 4 * cycles);
	for (int i = 1; i <= cycles; i++)
		cycle(i);
	return failures != 0;
}
