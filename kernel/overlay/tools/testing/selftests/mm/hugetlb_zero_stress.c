// SPDX-License-Identifier: GPL-2.0-only
/*
 * hugetlb_zero_stress -d [-q] [OPERATIONS [SEED]] - zeroed hugetlb pages under
 * everything at once
 *
 * -d: damage this machine: it marks memory as broken, takes it offline, and
 * empties the pools meanwhile. Nothing is done without it.
 * -q: quick operations, for an emulated machine, which spends most of its time
 * filling and flushing TLBs, and for a kernel that reads each zeroed page itself
 * before it hands it out. Four of five take one page into a file and out of it. The
 * others take one page in most cases, copy one less often, and look at the last
 * word of each 64 KiB: zeroers write a page in such units, from its front. Each
 * process stays on one CPU in a round.
 *
 * Processes of several kinds work on the pools of all nodes, in rounds: zeroers,
 * some of which are killed, and users who map, touch, fork, fallocate, copy by
 * userfaultfd, migrate, poison and unpoison, while one process makes the pools
 * larger and smaller, demotes pages and takes memory offline and online. Whoever
 * is given zero memory reads every byte of it and then fills it with a pattern
 * that is never zero: a byte of a pattern seen later by somebody else is a leak.
 * Between two rounds all are stopped and the counters have to add up.
 *
 * OPERATIONS counts what users and the one who resizes do. Zeroers, who are
 * many times as fast, are counted apart. A page is taken from its zeroer, and
 * memory goes offline, by chance, and the less often the slower the machine: as
 * long as either has not come about there are more rounds, up to five times as
 * many.
 *
 * The seed decides what each process does; how they interleave it can't.
 */
#define _GNU_SOURCE
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/time.h>
#include "hugetlb_zero_util.h"

#define NODES		2
#define USERS		3
#define ZEROERS		3
#define MOST		6	/* pages a user takes at once */
#define POOL		48	/* pages of a node, at rest */
#define ROUNDS		20
#define MOST_ROUNDS	100	/* for what comes about by chance */

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ	22
#define MADV_POPULATE_WRITE	23
#endif
#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE	101
#endif

/* Shared by all processes. */
struct shared {
	atomic_ulong operations;	/* of users and of the manager */
	atomic_ulong zero_pages;	/* that were checked */
	atomic_ulong leaks;
	atomic_ulong kinds[32];
	atomic_ulong failed[32];	/* as they may: no page, no memory */
	atomic_ulong bus_errors;
	/*
	 * Held for reading by who uses pages, for writing by who poisons a free
	 * one. A page that is poisoned on its way into use, which memory_failure()
	 * ignores, loses a reference too many when it is unpoisoned. Zeroers take
	 * no notice: they are what a poisoned page is to meet.
	 */
	pthread_rwlock_t in_use;
	/*
	 * Held for reading while a page is soft-offlined and unpoisoned, for writing
	 * while memory is offline. unpoison_memory() looks whether the page is online
	 * and then waits for a mutex, whose holder may wait for the end of
	 * offline_pages(). The page goes back to the buddy's lists all the same, and
	 * is there a second time when the memory comes online: list corruption,
	 * seconds later, on any kernel.
	 */
	pthread_rwlock_t online;
	atomic_int stop;
};

static struct shared *shared;
static struct pool pools[NODES];
static int nodes;
static bool gib;			/* node 0 has pages of 1 GiB to demote */
static bool quick;
static bool can_unpoison;		/* or each soft offline costs a huge page */

/* Soft offlines where they cost one: a node has a few hundred. */
#define MAX_LOST	20

enum kind {
	FAULT_PRIVATE, FAULT_SHARED, FORK, FALLOCATE, PUNCH, UFFD_COPY, MIGRATE,
	POISON, SOFT_OFFLINE, GROW, SHRINK, DEMOTE, OFFLINE, ZERO, KILL, LIMIT,
	DRAIN,
};

static const char *const names[] = {
	"private fault", "shared fault", "fork and write", "fallocate",
	"punch a hole", "uffd copy", "migrate", "poison and unpoison",
	"soft offline", "grow", "shrink", "demote", "offline and online",
	"zero", "kill a zeroer", "limit by cgroup", "take all",
};

static unsigned long long rng;

/* xorshift64: the same sequence for a seed everywhere */
static unsigned long rnd(unsigned long n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (rng >> 11) % n;
}

static sigjmp_buf next_operation;

/* Somebody has poisoned what this process was using: leave it and go on. */
static void bus_error(int signal, siginfo_t *info, void *context)
{
	if (info->si_code != BUS_MCEERR_AR && info->si_code != BUS_MCEERR_AO) {
		shared->bus_errors++;
		_exit(1);
	}
	siglongjmp(next_operation, 1);
}

static void done(enum kind kind, bool ok)
{
	shared->kinds[kind]++;
	if (kind != ZERO && kind != KILL)
		shared->operations++;
	if (!ok)
		shared->failed[kind]++;
}

#define EVERY_BYTE	(~0UL / 0xff)	/* times a byte: a word of it */

#define STRIDE		(64 << 10)	/* from one word to the next, with -q */
#define FIRST		(STRIDE - sizeof(long))

static bool is_all(const char *p, size_t len, unsigned char c)
{
	if (!quick)
		return all_bytes(p, len, c);
	for (size_t i = FIRST; i < len; i += STRIDE)
		if (*(unsigned long *)(p + i) != c * EVERY_BYTE)
			return false;
	return true;
}

static void fill(char *p, size_t len, unsigned char c)
{
	if (!quick)
		memset(p, c, len);
	else
		for (size_t i = FIRST; i < len; i += STRIDE)
			*(unsigned long *)(p + i) = c * EVERY_BYTE;
}

static bool is_same(const char *p, const char *other, size_t len)
{
	if (!quick)
		return !memcmp(p, other, len);
	for (size_t i = FIRST; i < len; i += STRIDE)
		if (*(unsigned long *)(p + i) != *(unsigned long *)(other + i))
			return false;
	return true;
}

static long some_pages(void)
{
	return quick ? 1 + !rnd(4) : 1 + rnd(MOST);
}

/* Every byte of a page, then a pattern that says who wrote it. */
static void check_and_soil(char *p, size_t len, const char *what)
{
	if (!is_all(p, len, 0)) {
		size_t i = 0;

		while (!p[i])
			i++;
		shared->leaks++;
		ksft_print_msg("%s: byte %zu is %#x\n", what, i, p[i] & 0xff);
	}
	shared->zero_pages++;
	fill(p, len, 1 + rnd(255));
}

static const struct pool *any_pool(void)
{
	return &pools[rnd(nodes)];
}

static void bind_to(int node)
{
	unsigned long mask = node < 0 ? (1UL << nodes) - 1 : 1UL << node;

	syscall(SYS_set_mempolicy, MPOL_BIND, &mask, sizeof(mask) * 8);
}

/* Nobody has reserved these: a fault may end in SIGBUS, as on any kernel. */
static bool populate(char *p, size_t len, int write)
{
	return !madvise(p, len, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
}

static char *map_some(const struct pool *pool, long pages, int flags)
{
	bind_to(pool->node);
	return pool_map(pool, pages, flags);
}

static void fault(int flags, enum kind kind)
{
	const struct pool *pool = any_pool();
	long pages = some_pages();
	size_t len = pages * pool_page(pool);
	char *p = map_some(pool, pages, flags);

	if (p) {
		/* Page by page, in any order, by reading or by writing. */
		for (long i = 0; i < pages; i++) {
			char *page = p + i * pool_page(pool);

			if (populate(page, pool_page(pool), rnd(2)))
				check_and_soil(page, pool_page(pool), names[kind]);
		}
		munmap(p, len);
	}
	done(kind, p);
}

/* The child writes to what it shares with its parent, and dies at any time. */
static void fork_and_write(void)
{
	const struct pool *pool = any_pool();
	char *p = map_some(pool, 1, MAP_PRIVATE);
	bool ok = p && populate(p, pool_page(pool), 1);

	if (ok) {
		pid_t child;
		int status;
		char mine;

		check_and_soil(p, pool_page(pool), names[FORK]);
		mine = p[FIRST];
		child = fork();
		if (child == 0) {
			signal(SIGBUS, SIG_DFL);
			if (populate(p, pool_page(pool), 1)) {
				if (!is_all(p, pool_page(pool), mine))
					shared->leaks++;
				fill(p, pool_page(pool), ~mine ? ~mine : 1);
			}
			_exit(0);
		}
		if (child > 0) {
			if (rnd(2))
				kill(child, SIGKILL);
			waitpid(child, &status, 0);
		}
		if (!is_all(p, pool_page(pool), mine))
			shared->leaks++;
	}
	if (p)
		munmap(p, pool_page(pool));
	done(FORK, ok);
}

static void file(void)
{
	const struct pool *pool = any_pool();
	long pages = some_pages();
	size_t page = pool_page(pool);
	int fd = memfd_create("stress", MFD_HUGETLB |
			      pool->shift << MAP_HUGE_SHIFT);
	char *p = MAP_FAILED;
	bool ok = false;

	bind_to(pool->node);
	if (fd >= 0 && !ftruncate(fd, pages * page)) {
		ok = !fallocate(fd, 0, 0, pages * page);
		p = mmap(NULL, pages * page, PROT_READ | PROT_WRITE, MAP_SHARED |
			 MAP_NORESERVE, fd, 0);
	}
	if (p != MAP_FAILED) {
		if (ok)
			for (long i = 0; i < pages; i++)
				check_and_soil(p + i * page, page, names[FALLOCATE]);
		if (ok && rnd(2)) {
			long i = rnd(pages);
			bool again;

			again = !fallocate(fd, FALLOC_FL_PUNCH_HOLE |
					   FALLOC_FL_KEEP_SIZE, i * page, page) &&
				populate(p + i * page, page, 1);
			if (again)
				check_and_soil(p + i * page, page, names[PUNCH]);
			done(PUNCH, again);
		}
		munmap(p, pages * page);
	}
	if (fd >= 0)
		close(fd);
	done(FALLOCATE, ok);
}

/*
 * A page comes into a file, one word of it is read and written, and it leaves the
 * file again. The file and its mapping stay.
 */
static void file_page(void)
{
	static struct {
		int fd;
		char *p;
		bool busy;	/* a memory error can end this function anywhere */
	} files[NODES];
	const struct pool *pool = any_pool();
	size_t page = pool_page(pool), at;
	typeof(files[0]) *file = &files[pool - pools];
	bool ok;

	if (!file->p) {
		file->fd = memfd_create("stress", MFD_HUGETLB |
					pool->shift << MAP_HUGE_SHIFT);
		if (file->fd < 0 || ftruncate(file->fd, MOST * page))
			die("memfd_create");
		file->p = mmap(NULL, MOST * page, PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_NORESERVE, file->fd, 0);
		if (file->p == MAP_FAILED)
			die("mmap");
	}
	if (file->busy)
		fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			  0, MOST * page);
	file->busy = true;
	bind_to(pool->node);
	at = rnd(MOST) * page;
	ok = !fallocate(file->fd, 0, at, page);
	if (ok) {
		size_t word = rnd(page / STRIDE) * STRIDE + FIRST;
		unsigned long *p = (void *)(file->p + at + word);

		if (*p) {
			shared->leaks++;
			ksft_print_msg("%s: word %zu is %#lx\n",
				       names[FALLOCATE], word, *p);
		}
		*p = EVERY_BYTE * (1 + rnd(255));
		shared->zero_pages++;
		done(PUNCH, !fallocate(file->fd, FALLOC_FL_PUNCH_HOLE |
				       FALLOC_FL_KEEP_SIZE, at, page));
	}
	file->busy = false;
	done(FALLOCATE, ok);
}

static void uffd_copy(void)
{
	const struct pool *pool = any_pool();
	size_t len = pool_page(pool);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_copy copy = { .len = len };
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	char *p = map_some(pool, 1, rnd(2) ? MAP_PRIVATE : MAP_SHARED);
	static char *kept;
	char *from = kept ?: mmap(NULL, len, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char pattern = 1 + rnd(255);
	/* The page is allocated and freed without a use, and the call fails. */
	bool absent = quick && rnd(4);
	bool ok = false;

	if (quick && from != MAP_FAILED)
		kept = from;
	if (uffd >= 0 && p && from != MAP_FAILED) {
		if (!absent)
			fill(from, len, pattern);
		/* Half of it not there: the slow way through a temporary page. */
		if (!absent && !rnd(quick ? 20 : 2))
			madvise(from, len / 2, MADV_DONTNEED);
		copy.dst = (unsigned long)p;
		reg.range.start = copy.dst;
		reg.range.len = len;
		copy.src = (unsigned long)(absent ? NULL : from);
		ok = !ioctl(uffd, UFFDIO_API, &api) &&
		     !ioctl(uffd, UFFDIO_REGISTER, &reg) &&
		     !ioctl(uffd, UFFDIO_COPY, &copy);
		if (ok && (absent || !is_same(p, from, len)))
			shared->leaks++;
	}
	if (p)
		munmap(p, len);
	if (from != MAP_FAILED && !kept)
		munmap(from, len);
	if (uffd >= 0)
		close(uffd);
	done(UFFD_COPY, ok);
}

static void migrate(void)
{
	const struct pool *pool = any_pool();
	int to = (pool->node + 1) % nodes, status = -1;
	char *p = map_some(pool, 1, MAP_PRIVATE);
	bool ok = p && populate(p, pool_page(pool), 1);

	if (ok) {
		void *page = p;
		char mine;

		check_and_soil(p, pool_page(pool), names[MIGRATE]);
		mine = p[FIRST];
		ok = !syscall(SYS_move_pages, 0, 1, &page, &to, &status, 2) &&
		     status == to;
		if (!is_all(p, pool_page(pool), mine))
			shared->leaks++;
	}
	if (p)
		munmap(p, pool_page(pool));
	done(MIGRATE, ok);
}

/*
 * The last page is given back and taken again, while there is no other: zeroers
 * are at it. Where they are faster than this process, none is at a page when the
 * pool runs out by itself.
 */
static void take_from_zeroers(const struct pool *pool, char *page)
{
	for (int i = 0; i < 8; i++) {
		madvise(page, pool_page(pool), MADV_DONTNEED);
		usleep(rnd(16000));
		if (!populate(page, pool_page(pool), 1))
			break;
		check_and_soil(page, pool_page(pool), names[DRAIN]);
	}
}

/* Everything that is free, before anything of it is looked at. */
static long take_everything(const struct pool *pool)
{
	long pages = pool_query(pool).free, got = 0;
	char *p = map_some(pool, pages, MAP_PRIVATE | MAP_NORESERVE);

	while (p && got < pages &&
	       populate(p + got * pool_page(pool), pool_page(pool), 1))
		got++;
	for (long i = 0; i < got; i++)
		check_and_soil(p + i * pool_page(pool), pool_page(pool), names[DRAIN]);
	if (quick && got)
		take_from_zeroers(pool, p + (got - 1) * pool_page(pool));
	if (p)
		munmap(p, pages * pool_page(pool));
	return got;
}

/*
 * Once more when all of it has just been soiled, so that zeroers are at it: to
 * the pages that they are zeroing right now.
 */
static void drain(void)
{
	const struct pool *pool = any_pool();
	long got = take_everything(pool);

	got += take_everything(pool);
	done(DRAIN, got);
}

static unsigned long pfn_of(const char *p)
{
	int fd = open("/proc/self/pagemap", O_RDONLY);
	__u64 entry = 0;

	if (fd >= 0) {
		if (pread(fd, &entry, 8, (unsigned long)p / 4096 * 8) != 8)
			entry = 0;
		close(fd);
	}
	return entry & ((1ULL << 55) - 1);
}

static bool tell_hwpoison(const char *file, unsigned long pfn)
{
	char path[128], text[32];

	snprintf(path, sizeof(path), "/sys/kernel/debug/hwpoison/%s", file);
	snprintf(text, sizeof(text), "%#lx", pfn);
	return !write_text(path, text);
}

/* A page that is free: dirty, zeroed or being zeroed. */
static void poison(void)
{
	const struct pool *pool = any_pool();
	char *p = map_some(pool, 1, MAP_PRIVATE), *reserve = NULL;
	unsigned long pfn = 0, free;

	if (p && populate(p, pool_page(pool), 1))
		pfn = pfn_of(p);
	if (p)
		munmap(p, pool_page(pool));
	if (pfn) {
		free = pool_query(pool).free;
		/* Promised to somebody it can't be dissolved and stays where it is. */
		if (rnd(2))
			reserve = pool_map(pool, free, MAP_PRIVATE);
		tell_hwpoison("corrupt-pfn", pfn);
		if (rnd(2))
			pool_zero(pool, 1 + rnd(8));
		tell_hwpoison("unpoison-pfn", pfn);
		if (reserve)
			munmap(reserve, free * pool_page(pool));
	}
	done(POISON, pfn);
}

static void soft_offline(void)
{
	const struct pool *pool = any_pool();
	char *p;
	bool ok;

	if (!can_unpoison && shared->kinds[SOFT_OFFLINE] >= MAX_LOST)
		return fault(MAP_PRIVATE, FAULT_PRIVATE);
	p = map_some(pool, 1, MAP_PRIVATE);
	ok = p && populate(p, pool_page(pool), 1);

	if (ok) {
		unsigned long pfn;
		char mine;

		check_and_soil(p, pool_page(pool), names[SOFT_OFFLINE]);
		mine = p[FIRST];
		pthread_rwlock_rdlock(&shared->online);
		pfn = pfn_of(p);
		ok = !madvise(p, 4096, MADV_SOFT_OFFLINE);
		tell_hwpoison("unpoison-pfn", pfn);
		pthread_rwlock_unlock(&shared->online);
		if (!is_all(p, pool_page(pool), mine))
			shared->leaks++;
	}
	if (p)
		munmap(p, pool_page(pool));
	done(SOFT_OFFLINE, ok);
}

static void zero_some(void)
{
	const struct pool *pool = any_pool();
	long pages = rnd(12), n;

	/* Its processor time is for others if there is nothing to do. */
	if (quick && !pool_query(pool).zeroable)
		usleep(rnd(20000));
	if (rnd(2))
		n = pool_zero(pool, pages);
	else
		n = pool_set_nr(pool, "zeroable_hugepages", pages);
	done(ZERO, n >= 0);
}

/* At any instruction of it. */
static void kill_zeroer(void)
{
	const struct pool *pool = any_pool();
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		for (;;)
			pool_zero(pool, HUGEPAGECTL_ALL);
	}
	if (pid > 0) {
		usleep(rnd(3000));
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
	}
	done(KILL, pid > 0);
}

/* A fault that its hugetlb cgroup or its CPU quota does not allow. */
static void limited(int id)
{
	const struct pool *pool = any_pool();
	char path[128], text[64];
	int status;
	pid_t pid;

	snprintf(path, sizeof(path), CGROUP "stress%d", id);
	if (mkdir(path, 0755) && errno != EEXIST) {
		done(LIMIT, false);
		return;
	}
	snprintf(path, sizeof(path), CGROUP "stress%d/hugetlb.2MB.max", id);
	snprintf(text, sizeof(text), "%lu", rnd(3) * pool_page(pool));
	write_text(path, text);
	snprintf(path, sizeof(path), CGROUP "stress%d/cpu.max", id);
	write_text(path, rnd(2) ? "10000 100000" : "max");
	snprintf(path, sizeof(path), CGROUP "stress%d/cgroup.procs", id);
	pid = fork();
	if (pid == 0) {
		signal(SIGBUS, SIG_DFL);
		write_text(path, "0");
		zero_some();
		fault(MAP_PRIVATE, FAULT_PRIVATE);
		_exit(0);
	}
	if (pid > 0)
		waitpid(pid, &status, 0);
	done(LIMIT, pid > 0);
}

static void user(int id)
{
	unsigned long what = rnd(40);

	if (quick && rnd(5))
		return file_page();
	/* What takes long, or is done alone, seldom. */
	if (quick && ((what < 2 && rnd(40)) || (what > 35 && rnd(10))))
		what = 2 + rnd(34);
	/* A fork or a copy takes as long as several pages. */
	if (quick && ((what > 15 && what < 20) || (what > 31 && what < 36)) && rnd(4))
		what = rnd(2) ? 2 : 10;
	switch (what) {
	case 0 ... 1:
		return drain();
	case 2 ... 9:
		return fault(MAP_PRIVATE, FAULT_PRIVATE);
	case 10 ... 15:
		return fault(MAP_SHARED, FAULT_SHARED);
	case 16 ... 19:
		return fork_and_write();
	case 20 ... 26:
		return file();
	case 27 ... 31:
		return uffd_copy();
	case 32 ... 35:
		return migrate();
	case 36:
		pthread_rwlock_unlock(&shared->in_use);
		pthread_rwlock_wrlock(&shared->in_use);
		return poison();
	case 37:
		return soft_offline();
	default:
		return limited(id);
	}
}

static void zeroer(int id)
{
	if (rnd(quick ? 200 : 10))
		zero_some();
	else
		kill_zeroer();
}

/* Blocks of memory of the second node, which can be taken away. */
static unsigned long blocks[256];
static int nr_blocks;

static void find_blocks(void)
{
	DIR *dir = opendir(TREE "/node1");
	struct dirent *entry;

	while (dir && (entry = readdir(dir)) && nr_blocks < 256)
		if (sscanf(entry->d_name, "memory%lu", &blocks[nr_blocks]) == 1)
			nr_blocks++;
	if (dir)
		closedir(dir);
}

static void nothing(int signal)
{
}

/*
 * Taking memory offline goes on until all pages have been migrated, or a signal
 * comes.
 */
static void offline_online(void)
{
	struct sigaction action = { .sa_handler = nothing };
	struct itimerval limit = { .it_value.tv_sec = 2 };
	struct itimerval never = { };
	char path[128];
	bool ok;

	if (!nr_blocks)
		return;
	snprintf(path, sizeof(path), TREE "/node1/memory%lu/state",
		 blocks[rnd(nr_blocks)]);
	sigaction(SIGALRM, &action, NULL);
	pthread_rwlock_wrlock(&shared->online);
	setitimer(ITIMER_REAL, &limit, NULL);
	ok = !write_text(path, "offline");
	setitimer(ITIMER_REAL, &never, NULL);
	write_text(path, "online_movable");
	pthread_rwlock_unlock(&shared->online);
	done(OFFLINE, ok);
}

static void manager(int id)
{
	static unsigned long next;
	const struct pool *pool;
	unsigned long what;
	long nr;

	/* A pool that grows flushes the TLB of each CPU: one of 24 operations. */
	if (quick && shared->operations < next) {
		usleep(3000);
		return;
	}
	next = shared->operations + 16 + rnd(16);
	pool = any_pool();
	nr = pool_get(pool, "nr_hugepages");
	what = rnd(20);
	if (quick && what > 17 && rnd(20))
		what = rnd(18);
	switch (what) {
	case 0 ... 8:
		pool_set_nr(pool, "nr_hugepages", nr + 1 + rnd(quick ? 2 : 8));
		return done(GROW, pool_get(pool, "nr_hugepages") > nr);
	case 9 ... 17:
		nr -= 1 + rnd(quick ? 2 : 8);
		pool_set_nr(pool, "nr_hugepages", nr < POOL / 2 ? POOL / 2 : nr);
		return done(SHRINK, true);
	case 18:
		if (gib) {
			struct pool large = { .node = 0, .shift = 30,
					      .ctl = pools[0].ctl };
			bool ok;

			pool_zero(&large, rnd(2));
			ok = !pool_set(&large, "demote", "1");
			/* So that there is one the next time, if it can be. */
			pool_set_nr(&pools[0], "nr_hugepages", POOL);
			pool_set_nr(&large, "nr_hugepages", 1);
			return done(DEMOTE, ok);
		}
		return;
	default:
		return offline_online();
	}
}

static void stay_on_cpu(unsigned long n)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(n % cpus, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static pid_t start(void (*what)(int), int id, unsigned long long seed)
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	if (pid == 0) {
		struct sigaction action = {
			.sa_sigaction = bus_error, .sa_flags = SA_SIGINFO,
		};

		sigaction(SIGBUS, &action, NULL);
		rng = seed * 0x9e3779b97f4a7c15ULL + id + 1;
		rnd(2);
		/* Together with other processes in each round. */
		if (quick)
			stay_on_cpu(rnd(64));
		if (sigsetjmp(next_operation, 1))
			pthread_rwlock_unlock(&shared->in_use);
		while (!shared->stop) {
			if (what != zeroer)
				pthread_rwlock_rdlock(&shared->in_use);
			what(id);
			if (what != zeroer)
				pthread_rwlock_unlock(&shared->in_use);
		}
		_exit(0);
	}
	return pid;
}

static void print_query(int round, int node, const struct hugepagectl_query *q)
{
	ksft_print_msg("round %d, node %d: total %llu free %llu zeroed %llu\n",
		       round, node, q->total, q->free, q->zeroed);
	ksft_print_msg("zeroable %llu zeroing %llu hits %llu misses %llu waits %llu\n",
		       q->zeroable, q->zeroing, q->hits, q->misses, q->waits);
}

/* Base pages with a memory error, in the whole machine. */
static unsigned long corrupted(void)
{
	const char *at = strstr(read_text("/proc/meminfo") ?: "",
				"HardwareCorrupted:");

	return at ? strtoul(at + strlen("HardwareCorrupted:"), NULL, 10) / 4 : 0;
}

/*
 * Nobody does anything: everything must add up. Pages that had a memory error
 * while they were in use stay in use, and those that had it while they were free
 * are neither zeroed nor zeroable, on any kernel.
 */
static bool quiet(int round)
{
	unsigned long missing = 0;
	bool ok = true;

	for (int i = 0; i < nodes; i++) {
		const struct pool *pool = &pools[i];
		struct hugepagectl_query q = pool_query(pool);

		missing += q.total - q.zeroed - q.zeroable;
		if (q.zeroing || q.total != POOL || q.free > q.total ||
		    q.zeroed + q.zeroable > q.free ||
		    (long)q.zeroed != pool_get(pool, "zeroed_hugepages") ||
		    (long)q.zeroable != pool_get(pool, "zeroable_hugepages") ||
		    (long)q.free != pool_get(pool, "free_hugepages")) {
			print_query(round, i, &q);
			ok = false;
		}
		/* Every single one: all zeroed pages are, all others become. */
		if (pool_zero(pool, HUGEPAGECTL_ALL) != (long)q.zeroable ||
		    pool_query(pool).zeroable) {
			ksft_print_msg("round %d, node %d: not all can be zeroed\n",
				       round, i);
			ok = false;
		}
	}
	if (missing > corrupted()) {
		ksft_print_msg("round %d: %lu pages are missing, %lu have errors\n",
			       round, missing, corrupted());
		ok = false;
	}
	return ok;
}

/* Take all there is, and look at every byte. */
static void check_everything(void)
{
	for (int i = 0; i < nodes; i++) {
		const struct pool *pool = &pools[i];
		long pages = pool_query(pool).zeroed;
		char *p = map_some(pool, pages, MAP_PRIVATE | MAP_NORESERVE);

		for (long j = 0; p && j < pages; j++) {
			char *page = p + j * pool_page(pool);

			if (populate(page, pool_page(pool), 1))
				check_and_soil(page, pool_page(pool), "quiet");
		}
		if (p)
			munmap(p, pages * pool_page(pool));
	}
	bind_to(-1);
}

static void setup(void)
{
	pthread_rwlockattr_t attr;
	struct pool large;

	need_mount("debugfs", "/sys/kernel/debug",
		   "/sys/kernel/debug/hwpoison");
	can_unpoison = !access("/sys/kernel/debug/hwpoison/unpoison-pfn", W_OK);
	cgroup_controller("cpu");
	cgroup_controller("hugetlb");
	for (nodes = 0; nodes < NODES; nodes++) {
		if (!pool_open(&pools[nodes], nodes, 21))
			break;
		pool_refill(&pools[nodes], POOL);
	}
	find_blocks();
	gib = pool_open(&large, 0, 30) && pool_query(&large).free;
	if (large.ctl >= 0)
		close(large.ctl);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		die("mmap");
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	/* Or there would always be a reader. */
	pthread_rwlockattr_setkind_np(&attr,
				      PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&shared->in_use, &attr);
	pthread_rwlock_init(&shared->online, &attr);
}

/* How often a page was waited for that was then taken from its zeroer. */
static unsigned long long waits(void)
{
	unsigned long long sum = 0;

	for (int i = 0; i < nodes; i++)
		sum += pool_query(&pools[i]).waits;
	return sum;
}

static bool went_offline(void)
{
	return shared->kinds[OFFLINE] > shared->failed[OFFLINE];
}

static bool wants_more(int round)
{
	if (round < ROUNDS)
		return true;
	return round < MOST_ROUNDS && (!waits() || (nr_blocks && !went_offline()));
}

int main(int argc, char **argv)
{
	unsigned long operations = 2000;
	unsigned long long seed = 1;
	pid_t pids[USERS + ZEROERS + 1];
	double begin = seconds();
	bool adds_up = true;
	int survivors = 0, crashes = 0;
	int round;

	setvbuf(stdout, NULL, _IOLBF, 0);
	ksft_print_header();
	if (argc < 2 || strcmp(argv[1], "-d"))
		ksft_exit_skip("damages the machine: only with -d\n");
	quick = argc > 2 && !strcmp(argv[2], "-q");
	if (argc > 2 + quick)
		operations = strtoul(argv[2 + quick], NULL, 0);
	if (argc > 3 + quick)
		seed = strtoull(argv[3 + quick], NULL, 0);
	if (geteuid() || access("/dev/hugepagectl", R_OK))
		ksft_exit_skip("needs root and a kernel with HUGETLB_ZEROED\n");
	setup();
	ksft_set_plan(6);
	ksft_print_msg("%lu operations, seed %llu, %d nodes\n", operations, seed,
		       nodes);

	for (round = 0; wants_more(round); round++) {
		int n = 0, status;

		shared->stop = 0;
		for (int i = 0; i < USERS; i++, n++)
			pids[n] = start(user, n, seed + round);
		for (int i = 0; i < ZEROERS; i++, n++)
			pids[n] = start(zeroer, n, seed + round);
		pids[n] = start(manager, n, seed + round);
		n++;
		while (shared->operations < operations * (round + 1) / ROUNDS)
			usleep(20000);
		shared->stop = 1;
		for (int i = 0; i < n; i++) {
			waitpid(pids[i], &status, 0);
			if (WIFEXITED(status) && !WEXITSTATUS(status))
				survivors++;
			else
				crashes++;
		}
		for (int i = 0; i < nodes; i++)
			pool_set_nr(&pools[i], "nr_hugepages", POOL);
		adds_up &= quiet(round);
		check_everything();
		if (quick)
			ksft_print_msg("round %d: %lu operations, %.0f s\n", round,
				       shared->operations, seconds() - begin);
		for (int i = 0; i < nodes; i++)
			pool_refill(&pools[i], POOL);
	}

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		ksft_print_msg("%8lu %s, %lu of them in vain\n",
			       shared->kinds[i], names[i], shared->failed[i]);
	for (int i = 0; i < nodes; i++) {
		struct hugepagectl_query q = pool_query(&pools[i]);

		print_query(round, i, &q);
	}
	ksft_print_msg("%lu pages checked, %.0f s\n", shared->zero_pages,
		       seconds() - begin);
	ksft_test_result(shared->operations >= operations, "%lu operations\n",
			 shared->operations);
	ksft_test_result(!shared->leaks, "no byte of anybody else was seen (%lu)\n",
			 shared->leaks);
	ksft_test_result(adds_up, "the counters add up at every quiet point\n");
	ksft_test_result(!crashes && !shared->bus_errors,
			 "nobody was killed who should not be (%d of %d)\n",
			 crashes, crashes + survivors);
	ksft_test_result(waits(), "pages were taken from their zeroers (%llu)\n",
			 waits());
	if (nr_blocks)
		ksft_test_result(went_offline(),
				 "memory went offline (%lu of %lu)\n",
				 shared->kinds[OFFLINE] - shared->failed[OFFLINE],
				 shared->kinds[OFFLINE]);
	else
		ksft_test_result_skip("no memory to take offline\n");
	ksft_finished();
}
