/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What a program finds in large shared memory that it maps without MAP_HUGETLB, as Python's mmap does.
 * Lent or not, the lines are the same.
 *
 *	plain MIB
 */
#define _GNU_SOURCE
#define PAGE	(2UL << 20)
#include "found.h"

enum { POPULATE_WRITE = 23 };

int main(int argc, char **argv)
{
	size_t bytes = strtoul(argv[argc - 1], NULL, 10) << 20;
	int kinds[] = { MAP_SHARED, MAP_PRIVATE };

	for (int i = 0; i < 2; i++) {
		subject = i ? "private" : "shared";
		unsigned char *memory = mmap(NULL, bytes, RW, kinds[i] | MAP_ANONYMOUS, -1, 0);

		if (memory == MAP_FAILED)
			die("mmap");
		say_errno("wants huge pages", madvise(memory, bytes, MADV_HUGEPAGE));
		say_errno("populate", madvise(memory, bytes, POPULATE_WRITE));
		say("it is zero", is_zero(memory, bytes));
		fill(memory, bytes, 7);
		pid_t pid = fork();
		if (!pid) {
			memory[bytes - 1] = 8;
			_exit(memory[0]);
		}
		say("the child's byte", child_end(pid));
		say("the parent's byte", memory[bytes - 1]);
		say_errno("protect", mprotect(memory, PAGE, PROT_READ));
		say_errno("unmap a part", munmap(memory + PAGE, PAGE));
		say_errno("unmap the rest", munmap(memory, bytes));
	}
	subject = "odd";
	unsigned char *memory = mmap(NULL, bytes + 4096, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	say("its last byte", memory[bytes + 4095]);
	say_errno("unmap", munmap(memory, bytes + 4096));
	return 0;
}
