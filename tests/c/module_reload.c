// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * module_reload MODULE [SECONDS] - prezero.ko comes and goes
 *
 * MODULE is the path of prezero.ko, which is loaded, or not, when this begins and
 * loaded when it ends. First at rest: pages are marked, the module is unloaded,
 * they are used, and it is loaded again. Then, for SECONDS, while workers map, read,
 * soil and unmap pages and zeroers zero them. Nobody may be given a byte that is not
 * zero. Run as root; it sets the pool of node 0 and puts it back.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tap.h"

#define PAGES		64
#define WORKERS		3
#define SIZE		(2UL << 20)
#define POOL		"/sys/devices/system/node/node0/hugepages/hugepages-2048kB/"

struct shared {
	atomic_ulong pages;
	atomic_ulong foreign;
	atomic_int stop;
};

static struct shared *shared;
static const char *module;

static long number(const char *path)
{
	char text[32] = "";
	int fd = open(path, O_RDONLY);

	if (fd < 0)
		return -1;
	if (read(fd, text, sizeof(text) - 1) < 0)
		text[0] = 0;
	close(fd);
	return atol(text);
}

static bool put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	bool ok = fd >= 0 && write(fd, text, strlen(text)) > 0;

	if (fd >= 0)
		close(fd);
	return ok;
}

static bool load(void)
{
	int fd = open(module, O_RDONLY | O_CLOEXEC);
	bool ok;

	if (fd < 0)
		bail_out(module);
	/* Without verify=1, which would clear what this is to see. */
	ok = !syscall(SYS_finit_module, fd, "", 0);
	close(fd);
	return ok;
}

static bool unload(void)
{
	return !syscall(SYS_delete_module, "prezero", O_NONBLOCK);
}

/* Take @n pages, look at each byte, soil them and give them back. */
static void use(size_t n)
{
	unsigned long *at = mmap(NULL, n * SIZE, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	if (at == MAP_FAILED)
		return;
	for (size_t i = 0; i < n * SIZE / sizeof(*at); i++)
		if (at[i]) {
			shared->foreign++;
			break;
		}
	memset(at, 0x5a, n * SIZE);
	munmap(at, n * SIZE);
	shared->pages += n;
}

static pid_t start(void (*work)(void))
{
	pid_t pid = fork();

	if (pid)
		return pid;
	while (!shared->stop)
		work();
	_exit(0);
}

static void use_some(void)
{
	use(1 + rand() % (PAGES / WORKERS / 2));
}

static void zero_some(void)
{
	if (!put(POOL "zeroable_hugepages", "8"))
		usleep(1000);
}

static void test_rest(void)
{
	put(POOL "zeroable_hugepages", "max");
	result(number(POOL "zeroed_hugepages") == PAGES, "all pages are zeroed");
	result(unload(), "the module is unloaded while pages are zeroed");
	result(access(POOL "zeroed_hugepages", F_OK) != 0, "its files are gone");
	use(PAGES);
	result(load() && number(POOL "zeroed_hugepages") == 0,
	       "loaded again it believes no earlier mark");
	use(PAGES);
	result(shared->foreign == 0, "no byte of an earlier use is seen");
}

static void test_load(int seconds_long)
{
	double end = seconds() + seconds_long;
	int reloads = 0, refused = 0;
	pid_t pids[WORKERS + 1];

	for (int i = 0; i < WORKERS; i++)
		pids[i] = start(use_some);
	pids[WORKERS] = start(zero_some);
	while (seconds() < end) {
		if (!unload()) {
			refused++;
			usleep(10000);
			continue;
		}
		usleep(rand() % 200000);
		if (!load())
			break;
		reloads++;
		usleep(rand() % 500000);
	}
	shared->stop = 1;
	for (int i = 0; i <= WORKERS; i++)
		waitpid(pids[i], NULL, 0);
	result(reloads > 0 && seconds() >= end,
	       "it comes and goes under load (%d times, refused %d)", reloads, refused);
	result(shared->foreign == 0, "nobody sees a foreign byte (%lu pages)",
	       (unsigned long)shared->pages);
}

int main(int argc, char **argv)
{
	long before = number(POOL "nr_hugepages");
	char text[32];

	if (argc < 2) {
		fprintf(stderr, "usage: module_reload MODULE [SECONDS]\n");
		return 2;
	}
	module = argv[1];
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		bail_out("mmap");
	unload();
	snprintf(text, sizeof(text), "%d", PAGES);
	put(POOL "nr_hugepages", "0");
	put(POOL "nr_hugepages", text);
	if (number(POOL "free_hugepages") != PAGES)
		bail_out("too few huge pages");
	if (!load())
		bail_out("cannot load the module");
	test_rest();
	test_load(argc > 2 ? atoi(argv[2]) : 20);
	snprintf(text, sizeof(text), "%ld", before);
	put(POOL "nr_hugepages", text);
	return done();
}
