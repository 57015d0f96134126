/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * On which nodes a program's pages lie under each memory policy, a line each; on a machine of two
 * nodes. Lent or not, the lines are the same.
 *
 *	nodes near		only what its cpuset gives a thread of node 0
 *	nodes filtered		the same where calls about memory policies are forbidden
 *	nodes filter COMMAND	runs the command where they are, as in a container
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define PAGE	(2UL << 20)
#include "found.h"

enum { DEFAULT, PREFERRED, BIND, INTERLEAVE, LOCAL };
enum { STRICT = 1, MOVE = 2 };

static void policy(int mode, unsigned long nodes)
{
	if (syscall(SYS_set_mempolicy, mode, nodes ? &nodes : NULL, nodes ? 64 : 0))
		die("set_mempolicy");
}

/* By its name, as programs call libnuma's. */
static long bind_range(void *at, size_t bytes, int mode, unsigned long nodes, unsigned flags)
{
	long (*call)(void *, unsigned long, int, const unsigned long *, unsigned long, unsigned) =
		dlsym(RTLD_DEFAULT, "mbind");

	if (call)
		return call(at, bytes, mode, &nodes, 64, flags);
	return syscall(SYS_mbind, at, bytes, mode, &nodes, 64, flags);
}

/* Touches both pages and says where they are: 10 is the first on node 1 and the second on node 0. */
static void where(const char *what, unsigned char *memory)
{
	int found = 0;

	for (int i = 0; i < 2; i++) {
		void *page = memory + i * PAGE;
		int node = -1;

		if (*(volatile unsigned char *)page)
			die("not zero");
		*(volatile unsigned char *)page = 1;
		if (syscall(SYS_move_pages, 0, 1UL, &page, NULL, &node, 0))
			die("move_pages");
		found = 10 * found + node;
	}
	say(what, found);
}

static void under(const char *what, int kind, int mode, unsigned long nodes)
{
	policy(mode, nodes);
	unsigned char *memory = map(NULL, 2, RW, kind);
	where(what, memory);
	policy(DEFAULT, 0);
	munmap(memory, 2 * PAGE);
}

/* Touches the pages and says how many are on node 1. A policy that spreads pages begins anywhere. */
static void how_many(const char *what, unsigned char *memory, int pages)
{
	int found = 0;

	for (int i = 0; i < pages; i++) {
		void *page = memory + i * PAGE;
		int node = -1;

		if (*(volatile unsigned char *)page)
			die("not zero");
		*(volatile unsigned char *)page = 1;
		if (syscall(SYS_move_pages, 0, 1UL, &page, NULL, &node, 0))
			die("move_pages");
		found += node;
	}
	say(what, found);
}

static void spread(int kind)
{
	policy(INTERLEAVE, 3);
	unsigned char *memory = map(NULL, 16, RW, kind);
	how_many("the thread's policy", memory, 16);
	policy(DEFAULT, 0);
	munmap(memory, 16 * PAGE);
}

static void run_on(int node)
{
	/* The machine's two CPUs are its two nodes'. */
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(node, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("sched_setaffinity");
}

static void threads_policy(int kind)
{
	for (int node = 0; node < 2; node++) {
		run_on(node);
		under("near", kind, DEFAULT, 0);
		under("local", kind, LOCAL, 0);
		under("bound to 0", kind, BIND, 1);
		under("bound to 1", kind, BIND, 2);
		under("bound to both", kind, BIND, 3);
		under("0 preferred", kind, PREFERRED, 1);
		under("1 preferred", kind, PREFERRED, 2);
		under("spread over 1", kind, INTERLEAVE, 2);
	}
	run_on(0);
}

static void ranges_policy(int kind)
{
	unsigned char *memory = map(NULL, 2, RW, kind);
	say_errno("bind to 1", bind_range(memory, 2 * PAGE, BIND, 2, 0));
	where("bound to 1 before the first touch", memory);
	munmap(memory, 2 * PAGE);

	memory = map(NULL, 2, RW, kind);
	say_errno("bind to 1, strictly", bind_range(memory, 2 * PAGE, BIND, 2, STRICT | MOVE));
	where("bound to 1 before the first touch", memory);
	munmap(memory, 2 * PAGE);

	memory = map(NULL, 2, RW, kind);
	say_errno("bind the second to 1", bind_range(memory + PAGE, PAGE, BIND, 2, 0));
	where("the second bound to 1", memory);
	munmap(memory, 2 * PAGE);

	memory = map(NULL, 2, RW, kind);
	say_errno("prefer 1", bind_range(memory, 2 * PAGE, PREFERRED, 2, 0));
	where("1 preferred before the first touch", memory);
	munmap(memory, 2 * PAGE);

	memory = map(NULL, 2, RW, kind);
	say_errno("bind to both", bind_range(memory, 2 * PAGE, BIND, 3, 0));
	where("bound to both", memory);
	say_errno("bind to 1", bind_range(memory, 2 * PAGE, BIND, 2, 0));
	memory[0] = memory[PAGE] = 0;
	where("bound to 1 after the first touch", memory);
	munmap(memory, 2 * PAGE);

	memory = map(NULL, 2, PROT_READ, kind);
	bind_range(memory, 2 * PAGE, BIND, 2, 0);
	say("rights stay", touch(memory, true));
	mprotect(memory, 2 * PAGE, RW);
	memory[0] = 5;
	/* Under the shim a child lacks private memory. */
	if (kind & MAP_SHARED) {
		pid_t pid = child();

		if (!pid) {
			memory[0]++;
			_exit(memory[0]);
		}
		say("the child's byte", child_end(pid));
	}
	say("the parent's byte", memory[0]);
	say_errno("no such node", bind_range(memory, 2 * PAGE, BIND, 1UL << 40, 0));
	say_errno("half a page", bind_range(memory + 1, PAGE, BIND, 1, 0));
	say_errno("nowhere", bind_range(NULL, PAGE, BIND, 1, 0));
	munmap(memory, 2 * PAGE);
}

/* As QEMU does for memory-backend-memfd with host-nodes and policy=bind. */
static void memfd(void)
{
	subject = "memfd";
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_HUGETLB | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, 2 * PAGE))
		die("memfd");
	say_errno("seal", fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK));
	unsigned char *memory = mmap(NULL, 2 * PAGE, RW, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	madvise(memory, 2 * PAGE, MADV_DONTFORK);
	madvise(memory, 2 * PAGE, MADV_DONTDUMP);
	say_errno("bind to 1", bind_range(memory, 2 * PAGE, BIND, 2, STRICT | MOVE));
	where("bound to 1 before the first touch", memory);
	unsigned char *again = mmap(NULL, 2 * PAGE, RW, MAP_SHARED, fd, 0);
	say("the file has what is written", again[0] + again[PAGE]);
	munmap(again, 2 * PAGE);
	say("its seals", fcntl(fd, F_GET_SEALS));
	say("closed on exec", fcntl(fd, F_GETFD));
	say("the child does not have it", touch(memory, false));
	munmap(memory, 2 * PAGE);
	close(fd);

	/* Somebody else has it mapped already: it stays one memory. */
	fd = memfd_create("test", MFD_HUGETLB);
	ftruncate(fd, 2 * PAGE);
	memory = mmap(NULL, 2 * PAGE, RW, MAP_SHARED, fd, 0);
	pid_t pid = child();
	if (!pid) {
		pause();
		_exit(0);
	}
	bind_range(memory, 2 * PAGE, BIND, 2, 0);
	again = mmap(NULL, 2 * PAGE, RW, MAP_SHARED, fd, 0);
	memory[0] = 3;
	say("shared with a child it is one memory", again[0]);
	kill(pid, SIGKILL);
	child_end(pid);
}

#define FORBID(call)	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), \
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1 /* EPERM */)

static void filter(char **command)
{
	struct sock_filter rows[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		FORBID(get_mempolicy), FORBID(set_mempolicy), FORBID(mbind),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(rows) / sizeof(*rows), rows };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		die("seccomp");
	execvp(command[0], command);
	die(command[0]);
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "filter"))
		filter(argv + 2);
	if (argc > 1 && !strcmp(argv[1], "filtered")) {
		subject = "filtered";
		run_on(0);
		where("shared", map(NULL, 2, RW, MAP_SHARED));
		where("private", map(NULL, 2, RW, MAP_PRIVATE));
		return 0;
	}
	if (argc > 1) {
		subject = "cpuset";
		run_on(0);
		under("shared", MAP_SHARED, DEFAULT, 0);
		under("private", MAP_PRIVATE, DEFAULT, 0);
		under("1 preferred", MAP_SHARED, PREFERRED, 2);
		return 0;
	}
	subject = "shared";
	threads_policy(MAP_SHARED);
	ranges_policy(MAP_SHARED);
	subject = "private";
	threads_policy(MAP_PRIVATE);
	ranges_policy(MAP_PRIVATE);
	memfd();
	subject = "spread, shared";
	spread(MAP_SHARED);
	subject = "spread, private";
	spread(MAP_PRIVATE);
	return 0;
}
