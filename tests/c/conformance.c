// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * conformance TREE - does this provider of zeroed huge pages keep the rules?
 *
 * Reads and writes the files of TREE (/sys/devices/system/node, or the tree of a
 * userspace provider) and calls hugepagectl, and checks what hugepagectl.h and
 * the description of the files promise: values, errors, growth of the structs,
 * poll, partial counts, signals. Prints TAP. Run it as root, with nobody else
 * using huge pages, and with many zeroable pages (64 or more on one node): tests
 * that find too few are skipped. Zeroes pages, changes nothing else for good.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "hugepagectl.h"
#include "tap.h"

static const char *tree;
static char domain_dir[PATH_MAX];	/* TREE/nodeN/hugepages/hugepages-SIZEkB */
static int node;
static unsigned int shift;
static int ctl;				/* the device */

static void sleep_ms(int ms)
{
	poll(NULL, 0, ms);
}

/*
 * Access
 */

static int open_file(const char *name, int flags)
{
	char path[PATH_MAX + 32];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", domain_dir, name);
	fd = open(path, flags | O_CLOEXEC);
	if (fd < 0)
		bail_out(path);
	return fd;
}

/* A decimal number and a newline, nothing else; -1: it is not. */
static long read_fd(int fd)
{
	char text[64], *end;
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
	long value;

	if (n < 2)
		return -1;
	text[n] = '\0';
	value = strtol(text, &end, 10);
	return text[0] >= '0' && text[0] <= '9' && !strcmp(end, "\n") ? value : -1;
}

static long read_file(const char *name)
{
	int fd = open_file(name, O_RDONLY);
	long value = read_fd(fd);

	close(fd);
	return value;
}

/* Bytes written, or -errno. */
static long write_file(const char *name, const char *text)
{
	int fd = open_file(name, O_WRONLY);
	long n = write(fd, text, strlen(text));

	if (n < 0)
		n = -errno;
	close(fd);
	return n;
}

/* 0 or -errno */
static long call(unsigned long request, void *arg)
{
	return ioctl(ctl, request, arg) ? -errno : 0;
}

static struct hugepagectl_query query_arg(void)
{
	return (struct hugepagectl_query){
		.size = sizeof(struct hugepagectl_query), .node = node,
		.page_shift = shift,
	};
}

static struct hugepagectl_zero zero_arg(__u64 pages)
{
	return (struct hugepagectl_zero){
		.size = sizeof(struct hugepagectl_zero), .node = node,
		.page_shift = shift, .pages = pages,
	};
}

static struct hugepagectl_watch watch_arg(__u64 min_zeroed)
{
	return (struct hugepagectl_watch){
		.size = sizeof(struct hugepagectl_watch), .node = node,
		.page_shift = shift, .min_zeroed = min_zeroed,
		.min_interval_ms = 10,
	};
}

static struct hugepagectl_query query(void)
{
	struct hugepagectl_query q = query_arg();

	if (call(HUGEPAGECTL_QUERY, &q))
		bail_out("HUGEPAGECTL_QUERY");
	return q;
}

/* Pages zeroed, or -errno. */
static long zero(__u64 pages)
{
	struct hugepagectl_zero z = zero_arg(pages);
	long err = call(HUGEPAGECTL_ZERO, &z);

	return err ?: (long)z.zeroed;
}

static short poll_fd(int fd, short events, int timeout_ms)
{
	struct pollfd pollfd = { .fd = fd, .events = events };

	if (poll(&pollfd, 1, timeout_ms) < 0)
		bail_out("poll");
	return pollfd.revents;
}

/*
 * The domain with the most zeroable pages
 */

static void consider(const char *dir, int n, unsigned long kib)
{
	static long most = -1;
	char path[PATH_MAX + 32], text[64] = "";
	int fd;

	snprintf(path, sizeof(path), "%s/zeroable_hugepages", dir);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	if (read(fd, text, sizeof(text) - 1) > 0 && atol(text) > most) {
		most = atol(text);
		snprintf(domain_dir, sizeof(domain_dir), "%s", dir);
		node = n;
		shift = 10 + __builtin_ctzl(kib);
	}
	close(fd);
}

static void find_domain(void)
{
	DIR *nodes = opendir(tree);
	struct dirent *entry;

	if (!nodes)
		bail_out(tree);
	while ((entry = readdir(nodes))) {
		char dir[PATH_MAX - 300];
		struct dirent *size;
		unsigned long kib;
		DIR *sizes;
		int n;

		if (sscanf(entry->d_name, "node%d", &n) != 1)
			continue;
		snprintf(dir, sizeof(dir), "%.3000s/%s/hugepages", tree,
			 entry->d_name);
		sizes = opendir(dir);
		if (!sizes)
			continue;
		while ((size = readdir(sizes))) {
			char path[PATH_MAX];

			if (sscanf(size->d_name, "hugepages-%lukB", &kib) != 1)
				continue;
			snprintf(path, sizeof(path), "%s/%s", dir, size->d_name);
			consider(path, n, kib);
		}
		closedir(sizes);
	}
	closedir(nodes);
	if (!domain_dir[0]) {
		errno = ENOENT;
		bail_out("nodeN/hugepages/hugepages-SIZEkB/zeroable_hugepages");
	}
}

static int open_device(int flags)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%.4000s/hugepagectl", tree);
	if (access(path, F_OK))
		snprintf(path, sizeof(path), "/dev/hugepagectl");
	return open(path, flags | O_CLOEXEC);
}

/*
 * Values and texts
 */

static void test_values(void)
{
	struct hugepagectl_query q = query();

	result(read_file("zeroable_hugepages") == (long)q.zeroable,
	       "zeroable_hugepages is a number and a newline, and QUERY agrees");
	result(read_file("zeroed_hugepages") == (long)q.zeroed,
	       "zeroed_hugepages is a number and a newline, and QUERY agrees");
	result(read_file("zeroed_low") >= 0,
	       "zeroed_low is a number and a newline");
	result(q.zeroed + q.zeroable + q.zeroing <= q.free && q.free <= q.total,
	       "zeroed + zeroable + zeroing <= free <= total");
	result(q.node_free <= q.node_total &&
	       q.total << (shift - 12) <= q.node_total * (sysconf(_SC_PAGESIZE) >> 12),
	       "the node has the pages of its pool, and no more free ones than pages");
	result(q.size == sizeof(q), "QUERY reports the size it knows");
}

static void test_texts(void)
{
	static const char *const bad[] = {
		"x", "max1", "maximum", "-1", "1x", "0x10", "1 2", " ", "1.5",
		"18446744073709551616",
	};
	struct hugepagectl_query before = query(), after;
	long low = read_file("zeroed_low");
	char text[32];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		result(write_file("zeroable_hugepages", bad[i]) == -EINVAL,
		       "\"%s\" to zeroable_hugepages: EINVAL", bad[i]);
		result(write_file("zeroed_low", bad[i]) == -EINVAL,
		       "\"%s\" to zeroed_low: EINVAL", bad[i]);
	}
	result(write_file("zeroed_low", "max") == -EINVAL,
	       "\"max\" to zeroed_low: EINVAL");
	result(write_file("zeroable_hugepages", "0") == 1 &&
	       write_file("zeroable_hugepages", "0\n") == 2,
	       "\"0\" to zeroable_hugepages is fine, with and without newline");
	after = query();
	result(after.zeroed == before.zeroed && after.zeroable == before.zeroable,
	       "none of that has zeroed anything");

	result(write_file("zeroed_low", "7\n") == 2 && read_file("zeroed_low") == 7,
	       "zeroed_low keeps what was written");
	snprintf(text, sizeof(text), "%ld", low);
	write_file("zeroed_low", text);
	result(read_file("zeroed_low") == low, "and is put back");
}

static void test_absent(void)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%.4000s/node9999/hugepages", tree);
	result(open(path, O_RDONLY) < 0 && errno == ENOENT,
	       "an absent node has no files");
	snprintf(path, sizeof(path),
		 "%.4000s/node%d/hugepages/hugepages-12kB/zeroable_hugepages",
		 tree, node);
	result(open(path, O_RDONLY) < 0 && errno == ENOENT,
	       "an absent page size has no files");
}

/*
 * Structs that grow
 */

/* Any of the structs, with room for what a later version may add. */
union later {
	__u32 size;
	struct hugepagectl_query query;
	struct hugepagectl_zero zero;
	struct hugepagectl_watch watch;
	unsigned char bytes[4096];
};

static long call_sized(unsigned int nr, size_t size, union later *arg)
{
	return call(_IOC(_IOC_READ | _IOC_WRITE, HUGEPAGECTL_IOC_TYPE, nr, size),
		    arg);
}

static void test_sizes(const char *name, unsigned int nr, size_t ver0,
		       const void *valid)
{
	union later arg;
	size_t grown = ver0 + 40;

#define FRESH(s) do {					\
		memset(&arg, 0, sizeof(arg));		\
		memcpy(&arg, valid, ver0);		\
		arg.size = (s);				\
	} while (0)

	FRESH(ver0);
	result(!call_sized(nr, ver0, &arg) && arg.size == ver0,
	       "%s: the first version of the struct", name);
	FRESH(grown);
	result(!call_sized(nr, grown, &arg) && arg.size >= ver0 &&
	       arg.size <= grown,
	       "%s: a larger struct with a zero tail is accepted", name);
	FRESH(sizeof(arg));
	result(!call_sized(nr, sizeof(arg), &arg),
	       "%s: a much larger one, too", name);
	FRESH(grown);
	arg.bytes[grown - 1] = 1;
	result(call_sized(nr, grown, &arg) == -E2BIG,
	       "%s: a tail that is not zero: E2BIG", name);
	FRESH(ver0);
	arg.bytes[ver0] = 1;
	result(!call_sized(nr, grown, &arg),
	       "%s: what lies behind size is not looked at", name);
	FRESH(ver0 - 1);
	result(call_sized(nr, ver0, &arg) == -EINVAL,
	       "%s: size less than the first version: EINVAL", name);
	FRESH(0);
	result(call_sized(nr, ver0, &arg) == -EINVAL, "%s: size 0: EINVAL", name);
	FRESH(ver0 + 8);
	result(call_sized(nr, ver0, &arg) == -EINVAL,
	       "%s: size larger than the number says: EINVAL", name);
	FRESH(ver0);
	result(call_sized(nr, ver0 - 4, &arg) == -EINVAL,
	       "%s: a number with too small a size: EINVAL", name);
#undef FRESH
}

static void test_arguments(void)
{
	struct hugepagectl_query q = query_arg();
	struct hugepagectl_zero z = zero_arg(0);
	struct hugepagectl_watch w = watch_arg(0);
	static const __s32 nodes[] = { -1, INT_MIN, INT_MAX, 9999 };
	static const __u32 shifts[] = { 0, 12, 63, 64, 200, UINT_MAX };
	long err;

	test_sizes("QUERY", _IOC_NR(HUGEPAGECTL_QUERY),
		   HUGEPAGECTL_QUERY_SIZE_VER0, &q);
	test_sizes("ZERO", _IOC_NR(HUGEPAGECTL_ZERO),
		   HUGEPAGECTL_ZERO_SIZE_VER0, &z);
	test_sizes("WATCH", _IOC_NR(HUGEPAGECTL_WATCH),
		   HUGEPAGECTL_WATCH_SIZE_VER0, &w);

	for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
		q = query_arg(), z = zero_arg(1), w = watch_arg(1);
		q.node = z.node = w.node = nodes[i];
		result(call(HUGEPAGECTL_QUERY, &q) == -ENODEV &&
		       call(HUGEPAGECTL_ZERO, &z) == -ENODEV &&
		       call(HUGEPAGECTL_WATCH, &w) == -ENODEV,
		       "node %d: ENODEV", nodes[i]);
	}
	for (size_t i = 0; i < sizeof(shifts) / sizeof(shifts[0]); i++) {
		q = query_arg(), z = zero_arg(1), w = watch_arg(1);
		q.page_shift = z.page_shift = w.page_shift = shifts[i];
		result(call(HUGEPAGECTL_QUERY, &q) == -ENODEV &&
		       call(HUGEPAGECTL_ZERO, &z) == -ENODEV &&
		       call(HUGEPAGECTL_WATCH, &w) == -ENODEV,
		       "page_shift %u: ENODEV", shifts[i]);
	}
	q = query_arg(), z = zero_arg(1), w = watch_arg(1);
	q.flags = z.flags = w.flags = 1U << 31;
	result(call(HUGEPAGECTL_QUERY, &q) == -EINVAL &&
	       call(HUGEPAGECTL_ZERO, &z) == -EINVAL &&
	       call(HUGEPAGECTL_WATCH, &w) == -EINVAL,
	       "an unknown flag: EINVAL");
	w = watch_arg(1);
	w.reserved = 1;
	result(call(HUGEPAGECTL_WATCH, &w) == -EINVAL,
	       "WATCH: reserved is not 0: EINVAL");
	w = watch_arg(1);
	w.min_interval_ms = HUGEPAGECTL_WATCH_INTERVAL_MAX + 1;
	result(call(HUGEPAGECTL_WATCH, &w) == -EINVAL,
	       "WATCH: an interval of more than an hour: EINVAL");

	/* FUSE reports what the kernel finds: EFAULT by itself. */
	result(call(HUGEPAGECTL_QUERY, NULL) == -EFAULT, "no struct: EFAULT");
	err = call(_IOWR(HUGEPAGECTL_IOC_TYPE, 0x7f, struct hugepagectl_query),
		   &q);
	result(err == -ENOTTY, "an unknown number: ENOTTY (%s)", strerror(-err));
	err = call(_IOWR('?', 0, struct hugepagectl_query), &q);
	result(err == -ENOTTY, "an unknown type: ENOTTY (%s)", strerror(-err));
	err = call(_IO(HUGEPAGECTL_IOC_TYPE, 0), NULL);
	result(err == -ENOTTY, "the right number without the struct: ENOTTY (%s)",
	       strerror(-err));
}

/*
 * What an unprivileged process may do with a descriptor it was given to read, and
 * that it cannot get one to write by itself, or it is of no use.
 */
static void test_privilege(void)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		struct hugepagectl_query q = query_arg();
		struct hugepagectl_zero z = zero_arg(1);
		struct hugepagectl_watch w = watch_arg(1);
		char again[64];
		long err;

		ctl = open_device(O_RDONLY);
		if (ctl < 0 || setgid(65534) || setuid(65534))
			_exit(77);
		err = call(HUGEPAGECTL_QUERY, &q);
		/* FUSE without allow_other keeps everybody else out: EACCES. */
		if (err != 0 && err != -EACCES)
			_exit(1);
		err = call(HUGEPAGECTL_ZERO, &z);
		if (err != -EPERM && err != -EACCES)
			_exit(2);
		/* Who may read may also be told; a daemon may have it otherwise. */
		err = call(HUGEPAGECTL_WATCH, &w);
		if (err != 0 && err != -EPERM && err != -EACCES)
			_exit(3);
		z.size = 1;
		err = call(HUGEPAGECTL_ZERO, &z);
		if (err != -EPERM && err != -EACCES)
			_exit(4);
		/* The file itself, whatever directory it is in. */
		snprintf(again, sizeof(again), "/proc/self/fd/%d", ctl);
		ctl = open(again, O_RDWR | O_CLOEXEC);
		if (ctl < 0)
			_exit(errno != EPERM && errno != EACCES ? 5 : 0);
		z = zero_arg(1);
		err = call(HUGEPAGECTL_ZERO, &z);
		_exit(err != -EPERM && err != -EACCES ? 6 : 0);
	}
	waitpid(child, &status, 0);
	result(status == 0,
	       "without privilege QUERY works, ZERO: EPERM (%#x)",
	       status);
}

/*
 * Zeroing a few
 */

static void test_zero_some(void)
{
	struct hugepagectl_query before = query(), after;

	if (before.zeroable < 8) {
		skip("zeroing a few", "fewer than 8 zeroable pages");
		return;
	}
	result(zero(0) == 0 && query().zeroed == before.zeroed,
	       "ZERO of 0 pages does nothing");
	result(zero(1) == 1, "ZERO of 1 page reports 1");
	after = query();
	result(after.zeroed == before.zeroed + 1 &&
	       after.zeroable == before.zeroable - 1 &&
	       after.free == before.free && after.total == before.total,
	       "one page has become zeroed and is still free");
	result(write_file("zeroable_hugepages", "2\n") == 2 &&
	       query().zeroed == before.zeroed + 3,
	       "\"2\" to zeroable_hugepages zeroes two");
	result(query().zeroing == 0, "nobody is zeroing now");
	result(query().hits == before.hits && query().misses == before.misses,
	       "zeroing is neither a hit nor a miss");
}

/*
 * Poll
 */

static void test_poll_files(void)
{
	int zeroable, zeroed;
	short got;

	if (query().zeroable < 8) {
		skip("poll of the files", "fewer than 8 zeroable pages");
		return;
	}
	write_file("zeroed_low", "0");
	zeroable = open_file("zeroable_hugepages", O_RDONLY);
	zeroed = open_file("zeroed_hugepages", O_RDONLY);
	sleep_ms(300);	/* what was before is told by now */
	read_fd(zeroable);
	read_fd(zeroed);
	result(poll_fd(zeroable, POLLPRI, 300) == 0,
	       "a file that was read and has not changed does not wake");
	zero(1);
	got = poll_fd(zeroable, POLLPRI, 2000);
	result((got & (POLLPRI | POLLERR)) == (POLLPRI | POLLERR),
	       "zeroable_hugepages wakes with POLLPRI | POLLERR (%#x)", got);
	got = poll_fd(zeroed, POLLPRI, 2000);
	result((got & (POLLPRI | POLLERR)) == (POLLPRI | POLLERR),
	       "zeroed_hugepages wakes with POLLPRI | POLLERR (%#x)", got);
	result(poll_fd(zeroable, POLLPRI, 0) != 0,
	       "and goes on to do so until it is read");
	sleep_ms(300);
	read_fd(zeroable);
	result(poll_fd(zeroable, POLLPRI, 300) == 0, "and is quiet then");
	close(zeroable);
	close(zeroed);
}

static void test_low(void)
{
	struct hugepagectl_query q = query();
	char text[32];
	int zeroed;

	if (q.zeroable < 8 || q.zeroed < 2) {
		skip("zeroed_low", "fewer than 8 zeroable or 2 zeroed pages");
		return;
	}
	zeroed = open_file("zeroed_hugepages", O_RDONLY);
	write_file("zeroed_low", "1");
	sleep_ms(300);
	read_fd(zeroed);
	zero(1);
	result(poll_fd(zeroed, POLLPRI, 400) == 0,
	       "above zeroed_low a change does not wake");
	snprintf(text, sizeof(text), "%llu", q.zeroed + 100);
	write_file("zeroed_low", text);
	result(poll_fd(zeroed, POLLPRI, 2000) & POLLPRI,
	       "being below zeroed_low wakes");
	write_file("zeroed_low", "0");
	close(zeroed);
}

struct counter {
	int fd;
	int quit;
	int wakeups;
	long last;
};

static void *count_wakeups(void *arg)
{
	struct counter *counter = arg;
	struct pollfd fds[2] = {
		{ .fd = counter->fd, .events = POLLPRI },
		{ .fd = counter->quit, .events = POLLIN },
	};

	for (;;) {
		counter->last = read_fd(counter->fd);
		if (poll(fds, 2, -1) < 0)
			bail_out("poll");
		if (fds[1].revents)
			return NULL;
		counter->wakeups++;
	}
}

/* Many changes wake a few times, and the last one is not forgotten. */
static void test_rate(void)
{
	struct counter counter = { };
	pthread_t thread;
	int fds[2], most;
	double took;

	if (query().zeroable < 24) {
		skip("rate of wakeups", "fewer than 24 zeroable pages");
		return;
	}
	counter.fd = open_file("zeroable_hugepages", O_RDONLY);
	if (pipe(fds))
		bail_out("pipe");
	counter.quit = fds[0];
	pthread_create(&thread, NULL, count_wakeups, &counter);
	sleep_ms(300);
	counter.wakeups = 0;
	took = seconds();
	for (int i = 0; i < 16; i++)
		zero(1);
	took = seconds() - took;
	sleep_ms(500);
	most = took * 10 + 3;
	result(counter.wakeups >= 1 && counter.wakeups <= most,
	       "16 changes in %.0f ms wake %d times, at most %d", took * 1e3,
	       counter.wakeups, most);
	result(counter.last == (long)query().zeroable,
	       "the last value read is the right one (%ld)", counter.last);
	close(fds[1]);
	pthread_join(thread, NULL);
	close(counter.fd);
	close(fds[0]);
}

static void *watch_more(void *arg)
{
	struct hugepagectl_watch w = watch_arg(query().zeroed + 1000);

	sleep_ms(200);
	call(HUGEPAGECTL_WATCH, &w);
	return arg;
}

static void test_watch(void)
{
	struct hugepagectl_watch w = watch_arg(0);
	struct hugepagectl_query q;
	struct epoll_event event = { .events = EPOLLIN };
	pthread_t thread;
	int epoll;

	if (query().zeroable < 4) {
		skip("watching", "fewer than 4 zeroable pages");
		return;
	}
	call(HUGEPAGECTL_WATCH, &w);
	result(poll_fd(ctl, POLLIN, 0) == 0,
	       "a file that watches nothing is not readable");
	q = query();
	w = watch_arg(q.zeroed + 1);
	result(!call(HUGEPAGECTL_WATCH, &w) &&
	       poll_fd(ctl, POLLIN | POLLRDNORM, 0) == (POLLIN | POLLRDNORM),
	       "below the threshold it is POLLIN | POLLRDNORM");
	result(poll_fd(ctl, POLLIN, 0) == POLLIN, "which is a level");
	zero(1);
	result(poll_fd(ctl, POLLIN, 0) == 0, "at the threshold it is not");

	w = watch_arg(q.zeroed + 1000);
	call(HUGEPAGECTL_WATCH, &w);
	result(poll_fd(ctl, POLLIN, 0) == POLLIN,
	       "a second WATCH replaces the first");
	w = watch_arg(0);
	call(HUGEPAGECTL_WATCH, &w);
	result(poll_fd(ctl, POLLIN, 0) == 0, "both thresholds 0 end watching");

	w = watch_arg(0);
	w.min_free = query().free + 1;
	call(HUGEPAGECTL_WATCH, &w);
	result(poll_fd(ctl, POLLIN, 0) == POLLIN,
	       "below the threshold of free pages it is readable");
	w = watch_arg(0);
	w.min_free = query().free;
	call(HUGEPAGECTL_WATCH, &w);
	result(poll_fd(ctl, POLLIN, 0) == 0, "at it, it is not");
	w = watch_arg(0);
	call(HUGEPAGECTL_WATCH, &w);

	epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, ctl, &event))
		bail_out("epoll");
	pthread_create(&thread, NULL, watch_more, NULL);
	result(epoll_wait(epoll, &event, 1, 3000) == 1,
	       "who sleeps is woken when the condition becomes true");
	pthread_join(thread, NULL);
	close(epoll);
	w = watch_arg(0);
	call(HUGEPAGECTL_WATCH, &w);
}

/*
 * Signals
 */

static void nothing(int signal)
{
	(void)signal;
}

/* A signal every 100 us or so, which ends calls and does nothing else. */
static void pester(bool on)
{
	struct sigaction action = {
		.sa_handler = nothing, .sa_flags = SA_RESTART,
	};
	struct itimerval timer = {
		.it_interval.tv_usec = on ? 100 : 0,
		.it_value.tv_usec = on ? 100 : 0,
	};

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
}

static void test_signals(void)
{
	struct hugepagectl_query before = query(), after;
	int partial = 0, interrupted = 0, other = 0;
	long sum = 0;

	if (before.zeroable < 32) {
		skip("signals", "fewer than 32 zeroable pages");
		return;
	}
	/* Restartable for those who can be: zeroing must not be. */
	pester(true);
	for (int i = 0; i < 1000 && sum < (long)before.zeroable / 2; i++) {
		long n = zero(before.zeroable / 2 - sum);

		if (n == -EINTR)
			interrupted++;
		else if (n < 0)
			other++;
		else if (sum + n < (long)before.zeroable / 2)
			partial++;
		if (n > 0)
			sum += n;
		if (n == -EINTR)
			sleep_ms(1);
	}
	pester(false);
	after = query();
	result(!other && partial + interrupted > 0,
	       "a signal ends ZERO: %d partial counts, %d times EINTR", partial,
	       interrupted);
	result((long)(after.zeroed - before.zeroed) == sum && sum > 0,
	       "the partial counts add up to what was zeroed (%ld)", sum);

	interrupted = other = 0;
	pester(true);
	for (int i = 0; i < 100 && !interrupted && query().zeroable > 8; i++) {
		long n = write_file("zeroable_hugepages", "4");

		if (n == -EINTR)
			interrupted++;
		else if (n != 1)
			other++;
	}
	pester(false);
	result(!other && interrupted, "a signal ends write with EINTR");
	result(query().zeroed >= after.zeroed, "what was zeroed stays zeroed");
}

static void test_kill(void)
{
	struct hugepagectl_query before = query(), after;
	double took;
	int status;
	pid_t child;

	if (before.zeroable < 8) {
		skip("killing", "fewer than 8 zeroable pages");
		return;
	}
	child = fork();
	if (child == 0)
		for (;;)
			write_file("zeroable_hugepages", "2");
	sleep_ms(2);
	took = seconds();
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	took = seconds() - took;
	after = query();
	result(took < 2, "a killed writer ends within %.1f ms", took * 1e3);
	result(after.zeroing == 0 && after.free == before.free &&
	       after.zeroed + after.zeroable == before.zeroed + before.zeroable,
	       "and leaves no page behind");
}

/*
 * Together, to the last page
 */

/* A call may end before all is done; one that zeroes none says that it is. */
static void *zero_all(void *arg)
{
	long n, sum = 0;

	while ((n = zero(HUGEPAGECTL_ALL)) > 0)
		sum += n;
	return (void *)(n < 0 ? n : sum);
}

static void test_together(void)
{
	struct hugepagectl_query before = query(), after;
	pthread_t threads[8];
	long sum = 0;

	for (int i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, zero_all, NULL);
	for (int i = 0; i < 8; i++) {
		void *n;

		pthread_join(threads[i], &n);
		sum += (long)n;
	}
	after = query();
	result(sum == (long)before.zeroable &&
	       after.zeroed == before.zeroed + before.zeroable,
	       "eight callers share %llu pages, none is zeroed twice",
	       before.zeroable);
	result(after.zeroable == 0 && after.zeroing == 0,
	       "nothing is left to be zeroed");
	result(zero(HUGEPAGECTL_ALL) == 0 && zero(5) == 0,
	       "ZERO of what there is: none");
	result(write_file("zeroable_hugepages", "max") == 3 &&
	       write_file("zeroable_hugepages", "max\n") == 4 &&
	       write_file("zeroable_hugepages", "1000000") == 7,
	       "writing more than there is: fine");
}

/* The last of all: there is nothing to zero any more. */
static void test_watch_zeroable(void)
{
	struct hugepagectl_watch w = watch_arg(query().zeroed + 1);

	call(HUGEPAGECTL_WATCH, &w);
	result(poll_fd(ctl, POLLIN, 0) == POLLIN,
	       "WATCH without a flag: readable though nothing can be zeroed");
	w = watch_arg(query().zeroed + 1);
	w.flags = HUGEPAGECTL_WATCH_ZEROABLE;
	call(HUGEPAGECTL_WATCH, &w);
	result(poll_fd(ctl, POLLIN, 0) == 0,
	       "HUGEPAGECTL_WATCH_ZEROABLE: not readable as nothing can be zeroed");
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: %s TREE\n", argv[0]);
		return 2;
	}
	tree = argv[1];
	find_domain();
	ctl = open_device(O_RDWR);
	if (ctl < 0)
		bail_out("hugepagectl");
	printf("TAP version 13\n# %s\n", domain_dir);

	test_values();
	test_texts();
	test_absent();
	test_arguments();
	test_privilege();
	test_zero_some();
	test_poll_files();
	test_low();
	test_rate();
	test_watch();
	test_signals();
	test_kill();
	test_together();
	test_watch_zeroable();

	return done();
}
