// SPDX-License-Identifier: GPL-2.0-only
/*
 * A task that zeroes hugetlb pages is stopped and continued, throttled, and
 * interrupted by a timer, and its own task work closes the file that it writes to.
 * A write goes on afterwards with what is left of its number. What was done of a
 * page is not done again.
 *
 * With slab_debug=FZPU on the kernel's command line a file that is used after it
 * was freed is an oops.
 */
#define _GNU_SOURCE
#include <linux/io_uring.h>
#include <sys/time.h>
#include "hugetlb_zero_util.h"

#define PAGES	64
#define ROUNDS	10

static struct pool pool;

static void nothing(int signal)
{
}

/* A signal every @us microseconds, whose handler does nothing; 0: no more. */
static void pester(long us)
{
	struct sigaction action = { .sa_handler = nothing, .sa_flags = SA_RESTART };
	struct itimerval timer = {
		.it_interval.tv_usec = us, .it_value.tv_usec = us,
	};

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
}

/* A child that writes @text to zeroable_hugepages; 0 if all of it was written. */
static pid_t start_writer(const char *text)
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	if (pid == 0)
		_exit(-pool_set(&pool, "zeroable_hugepages", text));
	return pid;
}

static void test_stop(void)
{
	struct hugepagectl_query q;
	int status = -1, stops = 0;
	bool ok = true;

	for (int i = 0; i < ROUNDS && ok; i++) {
		pid_t writer;

		pool_refill(&pool, PAGES);
		writer = start_writer("24");
		while (!waitpid(writer, &status, WNOHANG)) {
			kill(writer, SIGSTOP);
			usleep(100);
			kill(writer, SIGCONT);
			usleep(500 + 100 * i);
			stops++;
		}
		q = pool_query(&pool);
		ok = !status && q.zeroed == 24;
	}
	ksft_print_msg("stopped %d times; status %#x, zeroed %llu\n", stops,
		       status, q.zeroed);
	ksft_test_result(ok, "a writer that is stopped zeroes what it was to\n");
}

/* A ring of which this task submits and never waits. */
struct ring {
	int fd;
	struct io_uring_sqe *sqe;
	unsigned int *tail;
	unsigned int *array;
};

static bool ring_open(struct ring *ring)
{
	struct io_uring_params params = { };
	size_t size;
	char *sq;

	ring->fd = syscall(SYS_io_uring_setup, 2, &params);
	if (ring->fd < 0)
		return false;
	size = params.sq_off.array + params.sq_entries * sizeof(*ring->array);
	sq = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
		  ring->fd, IORING_OFF_SQ_RING);
	ring->sqe = mmap(NULL, params.sq_entries * sizeof(*ring->sqe),
			 PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
			 ring->fd, IORING_OFF_SQES);
	if (sq == MAP_FAILED || ring->sqe == MAP_FAILED)
		die("mmap of a ring");
	ring->tail = (unsigned int *)(sq + params.sq_off.tail);
	ring->array = (unsigned int *)(sq + params.sq_off.array);
	return true;
}

/* When @ready can be read, task work of this task closes @fd. */
static void ring_close_when(struct ring *ring, int ready, int fd)
{
	memset(ring->sqe, 0, 2 * sizeof(*ring->sqe));
	ring->sqe[0].opcode = IORING_OP_POLL_ADD;
	ring->sqe[0].fd = ready;
	ring->sqe[0].poll32_events = POLLIN;
	ring->sqe[0].flags = IOSQE_IO_LINK;
	ring->sqe[1].opcode = IORING_OP_CLOSE;
	ring->sqe[1].fd = fd;
	ring->array[0] = 0;
	ring->array[1] = 1;
	__atomic_store_n(ring->tail, *ring->tail + 2, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring->fd, 2, 0, 0, NULL, 0) != 2)
		die("io_uring_enter");
}

/*
 * A write holds its file by the reference of the task's own table: see fdget(). A
 * module's file has no restart block: the write is restarted, and finds it closed.
 */
static void test_close(void)
{
	bool module = !access("/sys/module/prezero", F_OK);
	int closed = 0, complete = 0, i;

	for (i = 0; i < ROUNDS; i++) {
		int ready[2], go[2], fd;
		struct ring ring;
		char path[256];
		pid_t child;

		if (!ring_open(&ring)) {
			ksft_test_result_skip("closing: no io_uring\n");
			return;
		}
		pool_refill(&pool, PAGES);
		if (pipe(ready) || pipe(go))
			die("pipe");
		child = fork();
		if (child == 0) {
			char c;

			if (read(go[0], &c, 1) != 1)
				_exit(1);
			usleep(500 + 1500 * i);
			_exit(write(ready[1], &c, 1) != 1);
		}
		pool_path(&pool, "zeroable_hugepages", path);
		fd = open(path, O_WRONLY);
		if (child < 0 || fd < 0)
			die("cannot begin");
		ring_close_when(&ring, ready[0], fd);
		if (write(go[1], "g", 1) != 1)
			die("write to a pipe");
		if (write(fd, "max", 3) == 3)
			complete += pool_query(&pool).zeroed == PAGES;
		else
			complete += module && errno == EBADF;
		closed += fcntl(fd, F_GETFD) < 0;
		waitpid(child, NULL, 0);
		close(ring.fd);
		close(ready[0]);
		close(ready[1]);
		close(go[0]);
		close(go[1]);
	}
	ksft_print_msg("closed under the write in %d of %d rounds\n", closed, i);
	ksft_test_result(complete == ROUNDS,
			 "a write whose file is closed under it zeroes all\n");
}

static void test_throttle(void)
{
	static const char group[] = CGROUP "hugetlb_zero_signals";
	struct hugepagectl_query q;
	char path[128];
	int status;
	pid_t writer;

	if (!cgroup_controller("cpu") || mkdir(group, 0755)) {
		ksft_test_result_skip("throttling: no cgroup v2 with cpu\n");
		return;
	}
	snprintf(path, sizeof(path), "%s/cpu.max", group);
	write_text(path, "2000 50000");
	pool_refill(&pool, PAGES);
	writer = fork();
	if (writer == 0) {
		snprintf(path, sizeof(path), "%s/cgroup.procs", group);
		write_text(path, "0");
		_exit(-pool_set(&pool, "zeroable_hugepages", "48"));
	}
	waitpid(writer, &status, 0);
	q = pool_query(&pool);
	rmdir(group);
	ksft_test_result(!status && q.zeroed == 48,
			 "a throttled writer zeroes what it was to (%#x, %llu)\n",
			 status, q.zeroed);
}

/* A user of a page that was cut short reads zeros. */
static void test_begun(void)
{
	int interrupted = 0;
	bool zero = true;

	pool_refill(&pool, 4);
	for (int i = 0; i < 20; i++) {
		char *p;

		pester(50 + 10 * i);
		while (pool_zero(&pool, 1) > 0)
			;
		pester(0);
		interrupted += pool_query(&pool).zeroable > 0;
		p = pool_map(&pool, 4, MAP_PRIVATE);
		if (!p)
			die("mmap");
		zero &= all_bytes(p, 4 * pool_page(&pool), 0);
		memset(p, 0x5a, 4 * pool_page(&pool));
		munmap(p, 4 * pool_page(&pool));
	}
	ksft_test_result(zero, "pages that were begun are zero for who takes them (%d)\n",
			 interrupted);
}

/* A supervisor, or a profiler, sends a signal every millisecond. */
static void test_timer(void)
{
	double alone, took;
	struct pool gib;
	int calls = 0;
	long n;

	if (!pool_open(&gib, pool.node, 30) || pool_query(&gib).free < 1) {
		ksft_test_result_skip("timer: no page of 1 GiB\n");
		return;
	}
	pool_refill(&gib, 1);
	alone = seconds();
	if (pool_zero(&gib, 1) != 1)
		die("cannot zero a page of 1 GiB");
	alone = seconds() - alone;
	pool_refill(&gib, 1);
	took = seconds();
	pester(1000);
	do {
		n = pool_zero(&gib, 1);
		calls++;
	} while (n == -EINTR && seconds() - took < 10 + 20 * alone);
	pester(0);
	took = seconds() - took;
	ksft_print_msg("a page of 1 GiB: %.3f s alone, %.3f s and %d calls with a timer of 1 ms\n",
		       alone, took, calls);
	ksft_test_result(n == 1, "a zeroer with a timer finishes a page\n");
	close(gib.ctl);
}

int main(void)
{
	ksft_print_header();
	if (geteuid() || !pool_open(&pool, 0, 21))
		ksft_exit_skip("needs root and a kernel with HUGETLB_ZEROED\n");
	ksft_set_plan(5);
	pool_bind(&pool);

	test_stop();
	test_close();
	test_throttle();
	test_begun();
	pool_refill(&pool, 0);
	test_timer();
	ksft_finished();
}
