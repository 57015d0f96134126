// SPDX-License-Identifier: GPL-2.0-only
/*
 * A task at the limit of its memory cgroup is refused huge pages, fault by fault.
 * It must not use up the zeroed ones meanwhile: where the page is taken before it
 * is charged, it has to come back as zero as it was.
 *
 * Linux 7.3 ends a refused fault with SIGBUS. Linux 6.12 returns to the
 * instruction, which faults again, until a signal ends the task: there the child
 * reads the events of its group every 10 ms, and exits once the group has been
 * refused memory since the touch.
 *
 * Needs root, cgroup v2 at /sys/fs/cgroup, and its option
 * memory_hugetlb_accounting, which is switched on for the time of the test.
 */
#define _GNU_SOURCE
#include <sys/time.h>
#include "hugetlb_zero_util.h"

#define PAGES	16
#define FAULTS	100

#define ROOT	"/sys/fs/cgroup"
#define GROUP	ROOT "/hugetlb_zero_memcg"

static struct pool pool;

/* A remount sets all options, those of the mount and those of what is mounted. */
static unsigned long mount_flags;

static unsigned long flags_of(const char *options)
{
	return (strstr(options, "nosuid") ? MS_NOSUID : 0) |
	       (strstr(options, "nodev") ? MS_NODEV : 0) |
	       (strstr(options, "noexec") ? MS_NOEXEC : 0);
}

static void undo_options(const char *path, const char *options)
{
	mount(NULL, path, NULL, MS_REMOUNT | mount_flags, options);
}

/* The options that cgroup v2 has at ROOT. */
static bool read_options(char options[256])
{
	FILE *mounts = fopen("/proc/self/mountinfo", "r");
	char line[1024], path[256], flags[256];
	bool found = false;

	while (mounts && !found && fgets(line, sizeof(line), mounts))
		found = sscanf(line, "%*s %*s %*s %*s %255s %255s", path,
			       flags) == 2 &&
			!strcmp(path, ROOT) && strstr(line, " - cgroup2 ") &&
			sscanf(strstr(line, " - "), " - %*s %*s %255s",
			       options) == 1;
	if (mounts)
		fclose(mounts);
	if (found)
		mount_flags = flags_of(flags);
	return found;
}

/* Huge pages are charged to memory cgroups, until the test ends. */
static bool account(void)
{
	static const char option[] = "memory_hugetlb_accounting";
	char before[256], options[512];

	need_mount("cgroup2", ROOT, ROOT "/cgroup.controllers");
	if (!read_options(before))
		return false;
	if (strstr(before, option))
		return true;
	snprintf(options, sizeof(options), "%s,%s", before, option);
	if (mount(NULL, ROOT, NULL, MS_REMOUNT | mount_flags, options))
		return false;
	undo_at_end(undo_options, ROOT, before);
	return true;
}

static void remove_group(const char *path, const char *text)
{
	rmdir(path);
}

static void on_bus(int signal)
{
	_exit(2);
}

/* How often the group has been at its limit. */
static long refusals(void)
{
	const char *text = read_text(GROUP "/memory.events");
	const char *max = text ? strstr(text, "\nmax ") : NULL;

	return max ? atol(max + 5) : -1;
}

static long refusals_before;

static void on_tick(int signal)
{
	if (refusals() > refusals_before)
		_exit(2);
}

/* A child in the group touches one page. Returns whether it was refused. */
static bool refused(void)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		struct itimerval tick = {
			.it_interval.tv_usec = 10000, .it_value.tv_usec = 10000,
		};
		char *p;

		if (write_text(GROUP "/cgroup.procs", "0"))
			_exit(1);
		signal(SIGBUS, on_bus);
		signal(SIGALRM, on_tick);
		p = pool_map(&pool, 1, MAP_PRIVATE);
		if (!p)
			_exit(1);
		refusals_before = refusals();
		setitimer(ITIMER_REAL, &tick, NULL);
		*(volatile char *)p = 1;
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		die("fork");
	if (!WIFEXITED(status) || WEXITSTATUS(status) == 1)
		ksft_exit_fail_msg("the child ended with %#x\n", status);
	return WEXITSTATUS(status) == 2;
}

int main(void)
{
	struct hugepagectl_query before, after;
	int i, nr_refused = 0;

	ksft_print_header();
	if (geteuid() || !pool_open(&pool, 0, 21))
		ksft_exit_skip("needs root and a kernel with HUGETLB_ZEROED\n");
	if (!account())
		ksft_exit_skip("needs cgroup v2 with memory_hugetlb_accounting\n");
	cgroup_controller("memory");
	if (mkdir(GROUP, 0755) && errno != EEXIST)
		die("mkdir " GROUP);
	undo_at_end(remove_group, GROUP, "");
	/* Enough for the child itself, and for no huge page. */
	if (write_text(GROUP "/memory.max", "1572864"))
		ksft_exit_skip("needs the memory controller\n");
	ksft_set_plan(4);
	pool_bind(&pool);

	pool_refill(&pool, PAGES);
	pool_zero(&pool, HUGEPAGECTL_ALL);
	before = pool_query(&pool);
	ksft_test_result(before.zeroed == PAGES, "the pool is zero\n");

	for (i = 0; i < FAULTS; i++)
		nr_refused += refused();
	after = pool_query(&pool);
	ksft_print_msg("%d of %d faults refused; zeroed %llu, before %llu\n",
		       nr_refused, FAULTS, after.zeroed, before.zeroed);
	ksft_test_result(nr_refused == FAULTS,
			 "a group at its limit is refused every page\n");
	ksft_test_result(after.free == before.free &&
			 after.zeroed == before.zeroed,
			 "and every zeroed page is still one\n");
	ksft_test_result(after.hits == before.hits &&
			 after.misses == before.misses,
			 "and nobody has hit or missed one (%llu, %llu)\n",
			 after.hits - before.hits, after.misses - before.misses);
	ksft_finished();
}
