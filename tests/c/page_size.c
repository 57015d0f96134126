/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What a program finds of one huge page, a line each; for pages of every size, and never of more than
 * two at a time.
 *
 *	page_size SHIFT shared|private|shared-row|private-row|memfd
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>

static unsigned long page;
#define PAGE	page
#include "found.h"

/* In the flags of mmap and of memfd_create alike. */
static unsigned size_flag;

/* The first and the last megabyte: all of a large page takes seconds on an emulated machine. */
#define END	(1UL << 20)

static void fill_ends(unsigned char *memory, int byte)
{
	fill(memory, END, byte);
	fill(memory + PAGE - END, END, byte);
}

static bool are_ends_zero(const unsigned char *memory)
{
	return is_zero(memory, END) && is_zero(memory + PAGE - END, END);
}

static void anonymous(int kind)
{
	unsigned char *memory = map(NULL, 1, RW, kind | size_flag);

	say("zero", is_zero(memory, PAGE));
	say("aligned", (unsigned long)memory % PAGE == 0);
	fill_ends(memory, 0x5a);
	say("written", memory[0] + memory[PAGE - 1]);
	say_errno("unmap half a page", munmap(memory, PAGE / 2));
	say_errno("protect half a page", mprotect(memory, PAGE / 2, PROT_READ));
	make_steps();
	pid_t pid = child();
	if (!pid) {
		await(0);
		say("the child's first and last byte", memory[0] + memory[PAGE - 1]);
		memory[1] = 7;
		_exit(0);
	}
	memory[0] = 1;
	tell(0);
	say("the child ends", child_end(pid));
	say("the parent's first bytes", memory[0] + memory[1]);
	drop_steps();
	say_errno("MADV_DONTNEED", madvise(memory, PAGE, MADV_DONTNEED));
	say("zero after that", are_ends_zero(memory));
	say_errno("unmap", munmap(memory, PAGE));

	memory = mmap(NULL, PAGE / 2 + 1, PROT_READ, kind | HUGE | size_flag, -1, 0);
	say("an odd length is rounded up", memory != MAP_FAILED && !memory[PAGE - 1]);
	say("it may only be read", touch(memory, true));
	munmap(memory, PAGE);
}

/* Two pages, which may be lent as two blocks, are one mapping to the program. */
static void row(int kind)
{
	unsigned char *memory = map(NULL, 2, RW, kind | size_flag);
	unsigned char *range = mmap(NULL, 4 * PAGE, PROT_NONE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	unsigned char *place = (unsigned char *)(((unsigned long)range + PAGE - 1) & ~(PAGE - 1));

	memory[0] = 1;
	memory[2 * PAGE - 1] = 2;
	unsigned char *moved = mremap(memory, 2 * PAGE, 2 * PAGE,
				      MREMAP_MAYMOVE | MREMAP_FIXED, place);
	say("moved", moved == place);
	if (moved != place)
		return;
	say("the content came along", moved[0] + moved[2 * PAGE - 1]);
	say("the old place is empty", touch(memory, false));
	say_errno("protect both", mprotect(moved, 2 * PAGE, PROT_READ));
	say_errno("advise both", madvise(moved, 2 * PAGE, MADV_DONTDUMP));
	say("both may only be read", touch(moved, true) + touch(moved + PAGE, true));
	say("moved back, and cut",
	    mremap(moved, 2 * PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, memory) == memory);
	say("the first page's content", memory[0]);
	say("the second page", touch(moved + PAGE, false));
	munmap(memory, PAGE);
}

static void memfd(void)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_HUGETLB | size_flag);
	struct stat status;

	if (fd < 0)
		die("memfd_create");
	say_errno("a page", ftruncate(fd, PAGE));
	say_errno("fstat", fstat(fd, &status));
	say("its size in pages", status.st_size / PAGE);
	say("its block is a page", (unsigned long)status.st_blksize == PAGE);
	unsigned char *memory = mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		die("mmap of a memfd");
	say("zero", is_zero(memory, PAGE));
	fill_ends(memory, 0x42);
	pid_t pid = child();
	if (!pid) {
		memory[1] = memory[0] + memory[PAGE - 1];
		_exit(0);
	}
	child_end(pid);
	say("a child's write is seen", memory[1]);
	say_errno("punch a hole", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE));
	say("zero after that", are_ends_zero(memory));
	munmap(memory, PAGE);
	close(fd);

	fd = memfd_create("test", MFD_HUGETLB | size_flag);
	say_errno("fallocate of an empty one", fallocate(fd, 0, 0, PAGE));
	say("its size in pages", fstat(fd, &status) ? -1 : (long)(status.st_size / PAGE));
	close(fd);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	unsigned shift = atoi(argv[1]);

	page = 1UL << shift;
	/* Copying 1 GiB took more than 20 s on an emulated machine whose host was compiling. */
	if (shift >= 30)
		timeout_ms = 300000;
	size_flag = shift << 26;
	subject = argv[2];
	if (!strcmp(subject, "shared"))
		anonymous(MAP_SHARED);
	else if (!strcmp(subject, "private"))
		anonymous(MAP_PRIVATE);
	else if (!strcmp(subject, "shared-row"))
		row(MAP_SHARED);
	else if (!strcmp(subject, "private-row"))
		row(MAP_PRIVATE);
	else
		memfd();
	return 0;
}
