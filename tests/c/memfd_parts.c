/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The kernel's memfd_test.c, which is included unchanged, on huge pages and a part at a time.
 *
 *	memfd_parts PART [shared]
 */
#include <sys/mman.h>
#include <linux/memfd.h>

extern int hugetlbfs_test;

/* What the kernel's own is named: by the C library's function, for who stands before that. */
int sys_memfd_create(const char *name, unsigned int flags)
{
	return memfd_create(name, flags | (hugetlbfs_test ? MFD_HUGETLB : 0));
}

#define main whole
#include "memfd_test.c"
#undef main

#define PART(name)	{ #name, (void (*)(char *, char *))test_##name }

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(char *, char *); } parts[] = {
		PART(create), PART(basic), PART(exec_seal), PART(exec_no_seal), PART(noexec_seal),
		PART(seal_write), PART(seal_future_write), PART(seal_shrink), PART(seal_grow),
		PART(seal_resize), PART(share_dup), PART(share_mmap), PART(share_open),
		PART(share_fork),
	};
	pid_t idle = 0;

	hugetlbfs_test = 1;
	memfd_str = MEMFD_HUGE_STR;
	mfd_def_size = default_huge_page_size() * 2;
	for (size_t i = 0; argc > 1 && i < sizeof(parts) / sizeof(parts[0]); i++) {
		if (strcmp(argv[1], parts[i].name))
			continue;
		if (argc > 2)
			idle = spawn_idle_thread(CLONE_FILES | CLONE_FS | CLONE_VM);
		parts[i].run("SHARE", "");
		if (idle)
			join_idle_thread(idle);
		return 0;
	}
	return 2;
}
