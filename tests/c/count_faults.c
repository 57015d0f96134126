// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * count_faults [MODULE] - count the instructions of faults of huge pages
 *
 * The time stamp counter has to count instructions: run this on a machine with one CPU, in QEMU
 * with -icount shift=0. MODULE is the path of prezero.ko. The program counts without the module,
 * with it while no page is zeroed, and with it while one page is zeroed, and leaves it loaded.
 * Without MODULE it counts the kernel as it is. Run as root, with a pool of 2 MiB pages on node 0
 * and, to count 1 GiB pages, a pool of these.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <x86intrin.h>
#include "tap.h"

#define NODE		"/sys/devices/system/node/node0/hugepages/"
#define HUGE_SHIFT	26	/* of a page's shift in flags of mmap() and memfd_create() */
#define MAX_SHARE	5	/* per cent of a fault that the module may add to it */

enum state { WITHOUT, DIRTY, ZEROED, STATES };
enum step { ZERO, FAULT, UNMAP, POPULATE, FALLOCATE, PUNCH, STEPS };

static const char *const step_names[STEPS] = {
	"zero it in advance (`write()`)",
	"fault", "`munmap()`",
	"`mmap()` with `MAP_POPULATE`",
	"`fallocate()`", "`fallocate()` that punches the hole",
};

struct size {
	const char *name, *dir;
	int shift, rounds;
	/* The least of all rounds, without an interrupt or another task. 0: not counted. */
	unsigned long counts[STATES][STEPS];
};

static struct size sizes[] = {
	{ "2 MiB", NODE "hugepages-2048kB/", 21, 31, { { 0 } } },
	{ "1 GiB", NODE "hugepages-1048576kB/", 30, 3, { { 0 } } },
};

static long number(const struct size *size, const char *name)
{
	char path[128], text[32] = "";
	int fd;

	snprintf(path, sizeof(path), "%s%s", size->dir, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (read(fd, text, sizeof(text) - 1) < 0)
		text[0] = 0;
	close(fd);
	return atol(text);
}

/* Zeroes one page, or none if all are zero; returns the instructions of the write. */
static unsigned long zero_one(const struct size *size)
{
	char path[128];
	unsigned long begin;
	int fd;

	snprintf(path, sizeof(path), "%szeroable_hugepages", size->dir);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		bail_out(path);
	begin = __rdtsc();
	if (write(fd, "1", 1) < 0)
		bail_out(path);
	begin = __rdtsc() - begin;
	close(fd);
	return begin;
}

static char *map(const struct size *size, int flags)
{
	char *page = mmap(NULL, 1UL << size->shift, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | flags |
			  size->shift << HUGE_SHIFT, -1, 0);

	if (page == MAP_FAILED)
		bail_out("mmap");
	return page;
}

static void count_round(const struct size *size, bool zeroed, unsigned long counts[STEPS])
{
	size_t bytes = 1UL << size->shift;
	unsigned long begin;
	char *page;
	int fd;

	counts[ZERO] = zeroed ? zero_one(size) : 0;
	page = map(size, 0);
	begin = __rdtsc();
	*(volatile char *)page = 1;
	counts[FAULT] = __rdtsc() - begin;
	begin = __rdtsc();
	munmap(page, bytes);
	counts[UNMAP] = __rdtsc() - begin;

	if (zeroed)
		zero_one(size);
	begin = __rdtsc();
	page = map(size, MAP_POPULATE);
	counts[POPULATE] = __rdtsc() - begin;
	munmap(page, bytes);

	if (zeroed)
		zero_one(size);
	fd = memfd_create("count_faults", MFD_CLOEXEC | MFD_HUGETLB | size->shift << HUGE_SHIFT);
	if (fd < 0 || ftruncate(fd, bytes))
		bail_out("memfd_create");
	begin = __rdtsc();
	if (fallocate(fd, 0, 0, bytes))
		bail_out("fallocate");
	counts[FALLOCATE] = __rdtsc() - begin;
	begin = __rdtsc();
	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes))
		bail_out("fallocate");
	counts[PUNCH] = __rdtsc() - begin;
	close(fd);
}

static void count(struct size *size, enum state state)
{
	unsigned long *least = size->counts[state], counts[STEPS];

	for (int i = 0; i < size->rounds; i++) {
		count_round(size, state == ZEROED, counts);
		for (int step = 0; step < STEPS; step++)
			if (i == 0 || counts[step] < least[step])
				least[step] = counts[step];
	}
}

static void count_all(enum state state)
{
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		if (number(&sizes[i], "free_hugepages") > 0)
			count(&sizes[i], state);
}

static void load(const char *module)
{
	int fd = open(module, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || syscall(SYS_finit_module, fd, "", 0))
		bail_out(module);
	close(fd);
}

/*
 * Has page tables made where mmap() puts the next mappings, as a program has them that has memory
 * already. Otherwise a fault makes them and munmap() frees them.
 */
static void make_page_tables(void)
{
	if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1,
		 0) == MAP_FAILED)
		bail_out("mmap");
}

/* A loop of 1000 times two instructions, which a clock of real time does not count exactly. */
static bool counts_instructions(void)
{
	unsigned long least = -1UL;

	for (int i = 0; i < 10; i++) {
		unsigned long begin = __rdtsc(), took;

		asm volatile("mov $1000, %%ecx\n1: dec %%ecx\njnz 1b" ::: "ecx", "cc");
		took = __rdtsc() - begin;
		if (took < least)
			least = took;
	}
	return least >= 2000 && least < 2020;
}

static void print_cell(unsigned long count)
{
	if (count)
		printf(" %lu |", count);
	else
		printf(" |");
}

static void print_table(void)
{
	printf("# | page | operation | without | no page zeroed | page zeroed |\n");
	printf("# |---|---|---|---|---|\n");
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		for (int step = 0; step < STEPS; step++) {
			if (!sizes[i].counts[DIRTY][FAULT])
				continue;
			printf("# | %s | %s |", sizes[i].name, step_names[step]);
			for (int state = 0; state < STATES; state++)
				print_cell(sizes[i].counts[state][step]);
			printf("\n");
		}
}

/* What the module adds to a fault and the free of its page, as a share of the fault. */
static void judge(const struct size *size)
{
	const unsigned long *without = size->counts[WITHOUT], *dirty = size->counts[DIRTY];
	long on_fault = dirty[FAULT] - without[FAULT];
	long added = on_fault + (long)(dirty[UNMAP] - without[UNMAP]);
	/* The fault of a zeroed page runs the same hooks and clears nothing. */
	long path = (long)size->counts[ZEROED][FAULT] - on_fault;

	printf("# %s: clearing excluded, a fault without the module is %ld instructions\n",
	       size->name, path);
	printf("# %s: of that the module adds %.1f %%\n", size->name, 100.0 * added / path);
	result(100 * added <= MAX_SHARE * (long)without[FAULT],
	       "the module adds at most %d %% to a fault of %s (%ld instructions, %.2f %%)",
	       MAX_SHARE, size->name, added, 100.0 * added / without[FAULT]);
}

int main(int argc, char **argv)
{
	const char *module = argc > 1 ? argv[1] : NULL;

	if (!counts_instructions())
		bail_out("the time stamp counter does not count instructions");
	if (number(&sizes[0], "free_hugepages") <= 0)
		bail_out("no free page of 2 MiB");
	make_page_tables();
	if (module) {
		if (syscall(SYS_delete_module, "prezero", O_NONBLOCK) && errno != ENOENT)
			bail_out("cannot unload the module");
		count_all(WITHOUT);
		load(module);
	}
	count_all(DIRTY);
	if (number(&sizes[0], "zeroed_hugepages") >= 0) {
		count_all(ZEROED);
		result(sizes[0].counts[ZEROED][FAULT] < sizes[0].counts[DIRTY][FAULT] / 4,
		       "a zeroed page is not cleared when it is touched");
	}
	print_table();
	if (module)
		judge(&sizes[0]);
	return done();
}
