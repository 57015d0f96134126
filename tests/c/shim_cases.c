/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Processes in unusual states: another user, no descriptors, no /proc, little address space, a
 * filter of system calls, a small signal stack, threads that fork. One case a run, a line per
 * finding, the same untouched and under the preload shim.
 *
 *	shim_cases CASE
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define PAGE	(2UL << 20)
#include "found.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL	8U
#define MFD_EXEC	16U
#endif

static unsigned char *shared, *private;
static int file;

/* Memory of each kind: shared and a memfd, which are lent, and private. */
static void take(void)
{
	shared = map(NULL, 2, RW, MAP_SHARED);
	private = map(NULL, 2, RW, MAP_PRIVATE);
	file = memfd_create("case", MFD_HUGETLB);
	if (file < 0 || ftruncate(file, 2 * PAGE))
		die("memfd");
	shared[0] = private[0] = 5;
	private[PAGE] = 6;
}

static void fork_finds(const char *what)
{
	pid_t pid = fork();

	if (!pid) {
		shared[1]++;
		_exit(shared[0] + private[0] + private[PAGE]);
	}
	say(what, pid < 0 ? -errno : child_end(pid));
	say("the child's shared write", shared[1]);
}

/* What a program does with memory that it has. */
static void use(void)
{
	fork_finds("a child finds");
	say_errno("MADV_DONTFORK", madvise(private + PAGE, PAGE, MADV_DONTFORK));
	say_errno("MADV_DOFORK", madvise(private + PAGE, PAGE, MADV_DOFORK));
	fork_finds("a child finds it again");
	say_errno("MADV_DONTNEED", madvise(private, PAGE, MADV_DONTNEED));
	say("gives zeros", is_zero(private, PAGE));
	say_errno("a hole", madvise(shared, PAGE, MADV_REMOVE));
	say("gives zeros", is_zero(shared, PAGE));
	unsigned char *memory = mmap(NULL, 2 * PAGE, RW, MAP_SHARED, file, 0);
	say("the memfd is mapped", memory != MAP_FAILED && !memory[PAGE]);
	say_errno("a longer memfd", ftruncate(file, 3 * PAGE));
	say("its seals", fcntl(file, F_GET_SEALS));
	unsigned char *more = mmap(NULL, PAGE, RW, MAP_SHARED | HUGE, -1, 0);
	say("more memory", more != MAP_FAILED && is_zero(more, PAGE));
	say_errno("munmap", munmap(private + PAGE, PAGE));
	say_errno("munmap", munmap(shared, 2 * PAGE));
}

static void user(void)
{
	if (setgroups(0, NULL) || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
		die("setresuid");
	use();
	say("system", system("exit 3") >> 8);
}

static void root(void)
{
	char dir[] = "/tmp/prezero-case-XXXXXX";

	if (!mkdtemp(dir) || chroot(dir) || chdir("/"))
		die("chroot");
	use();
}

static void descriptors(void)
{
	struct rlimit none = { 0, 0 };

	setrlimit(RLIMIT_NOFILE, &none);
	use();
}

static void address_space(void)
{
	unsigned long pages;
	FILE *statm = fopen("/proc/self/statm", "r");

	if (!statm || fscanf(statm, "%lu", &pages) != 1)
		die("statm");
	fclose(statm);
	struct rlimit limit = { pages * 4096 + 4 * PAGE, RLIM_INFINITY };
	setrlimit(RLIMIT_AS, &limit);
	use();
}

/* A filter that allows what this program calls, and kills for any other call. */
static void filter(void)
{
	static const int allowed[] = {
		SYS_read, SYS_write, SYS_mmap, SYS_munmap, SYS_mremap, SYS_madvise, SYS_mprotect,
		SYS_exit_group, SYS_exit, SYS_brk, SYS_clone, SYS_wait4, SYS_set_robust_list,
		SYS_rt_sigprocmask, SYS_gettid, SYS_rt_sigreturn, SYS_rt_sigaction, SYS_getpid,
		SYS_futex, SYS_ftruncate, SYS_fcntl, SYS_rseq, SYS_clone3,
	};
	const int count = sizeof(allowed) / sizeof(allowed[0]);
	struct sock_filter code[64];
	int at = 0;

	code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
						  offsetof(struct seccomp_data, nr));
	for (int i = 0; i < count; i++)
		code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i],
							  count - i, 0);
	code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { at, code };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		die("no_new_privs");
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		die("seccomp");
}

static void filtered(void)
{
	filter();
	use();
}

/* A filter before the first huge page, and a file that is mapped. */
static void filtered_early(void)
{
	int fd = open("/etc/passwd", O_RDONLY);

	filter();
	say("a file", mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED);
	shared = map(NULL, 1, RW, MAP_SHARED);
	say("zero", is_zero(shared, PAGE));
	pid_t pid = child();
	if (!pid)
		_exit(4);
	say("a child", child_end(pid));
}

static void in_handler(int signal)
{
	unsigned char *memory = mmap(NULL, PAGE, RW, MAP_SHARED | HUGE, -1, 0);

	(void)signal;
	if (memory != MAP_FAILED)
		memory[0] = 1;
	munmap(memory, PAGE);
	madvise(private, PAGE, MADV_DONTNEED);
}

static void signal_stack(void)
{
	size_t least = getauxval(AT_MINSIGSTKSZ);

	/* The linker resolves what it calls, which needs more than such a stack has. */
	in_handler(0);
	for (size_t bytes = least + 2048; bytes <= 4 * least; bytes += least) {
		unsigned char *room = mmap(NULL, bytes + 4096, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		stack_t stack = { .ss_sp = room + 4096, .ss_size = bytes };
		struct sigaction action = { .sa_handler = in_handler, .sa_flags = SA_ONSTACK };

		mprotect(room, 4096, PROT_NONE);
		if (sigaltstack(&stack, NULL))
			die("sigaltstack");
		sigaction(SIGUSR1, &action, NULL);
		private[0] = 3;
		raise(SIGUSR1);
		say("after a handler", private[0]);
	}
	use();
}

static volatile int stop;

static void *fork_all_the_time(void *unused)
{
	while (!stop) {
		pid_t pid = fork();

		if (!pid)
			_exit(0);
		child_end(pid);
	}
	return unused;
}

/* Calls about memory and seals, while another thread forks. */
static void forks(void)
{
	int sealed = 0, seals = 0, grown = 0, advised = 0;
	pthread_t thread;

	pthread_create(&thread, NULL, fork_all_the_time, NULL);
	for (int i = 0; i < 60; i++) {
		int fd = memfd_create("sealed", MFD_HUGETLB | MFD_ALLOW_SEALING);

		if (ftruncate(fd, PAGE))
			die("ftruncate");
		sealed += !fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
		unsigned char *memory = mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0);
		seals += fcntl(fd, F_GET_SEALS) == (F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
		grown += !ftruncate(fd, 2 * PAGE);
		munmap(memory, PAGE);
		close(fd);
		memory = map(NULL, 1, RW, MAP_PRIVATE);
		memory[0] = 1;
		advised += !madvise(memory, PAGE, MADV_DONTFORK) && touch(memory, false) != 1;
		advised += !madvise(memory, PAGE, MADV_DOFORK) && touch(memory, false) == 1;
		munmap(memory, PAGE);
	}
	stop = 1;
	pthread_join(thread, NULL);
	say("sealed", sealed);
	say("its seals", seals);
	say("grown", grown);
	say("advice for children", advised);
	use();
}

static void by_process_madvise(void)
{
	struct iovec range = { private, PAGE };
	int process = (int)syscall(SYS_pidfd_open, getpid(), 0);

	say_errno("process_madvise", process_madvise(process, &range, 1, MADV_DONTNEED, 0));
	say("content", private[0]);
	private[0] = 7;
	say_errno("by number", syscall(SYS_madvise, private, PAGE, MADV_DONTNEED));
	say("content", private[0]);
	use();
}

static void describe(int fd)
{
	struct stat status;

	fstat(fd, &status);
	say("flags", fcntl(fd, F_GETFL));
	say("closed on exec", fcntl(fd, F_GETFD));
	say("offset", lseek(fd, 0, SEEK_CUR));
	say("who gets its signals", fcntl(fd, F_GETOWN));
	say("owner", status.st_uid);
	say("seals", fcntl(fd, F_GET_SEALS));
	say("size", status.st_size / (long)PAGE);
}

/* What a program sets of a memfd before its size. */
static void memfds(void)
{
	static const unsigned flags[] = {
		0, MFD_CLOEXEC, MFD_ALLOW_SEALING, MFD_EXEC, MFD_NOEXEC_SEAL,
		MFD_NOEXEC_SEAL | MFD_ALLOW_SEALING,
	};

	for (int i = 0; i < 6; i++) {
		int fd = memfd_create("flags", MFD_HUGETLB | flags[i]);

		if (fd < 0) {
			say("flags that this kernel lacks", i);
			continue;
		}
		say_errno("ftruncate", ftruncate(fd, PAGE));
		describe(fd);
		close(fd);
	}
	for (int i = 0; i < 6; i++) {
		int fd = memfd_create("state", MFD_HUGETLB | MFD_ALLOW_SEALING * (i == 5)), again = -1;
		char path[64];

		switch (i) {
		case 0: fcntl(fd, F_SETFL, O_NONBLOCK); break;
		case 1: lseek(fd, 4096, SEEK_SET); break;
		case 2: fcntl(fd, F_SETOWN, getpid()); break;
		case 3: fchown(fd, 65534, 65534); break;
		case 4:
			snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
			again = open(path, O_RDWR);
			break;
		case 5: fcntl(fd, F_ADD_SEALS, F_SEAL_GROW); break;
		}
		say_errno("ftruncate", ftruncate(fd, PAGE));
		fcntl(fd, F_SETOWN, fcntl(fd, F_GETOWN) ? 1 : 0);
		fcntl(fd, F_SETOWN, 0);
		describe(fd);
		if (again >= 0)
			describe(again);
		close(again);
		close(fd);
	}
	/* A fork, and a second number above a full table, between making and sizing. */
	int fd = memfd_create("forked", MFD_HUGETLB);
	int ends[2];
	if (pipe(ends))
		die("pipe");
	pid_t pid = child();
	if (!pid) {
		char byte;
		struct stat status;

		read(ends[0], &byte, 1);
		fstat(fd, &status);
		_exit((int)(status.st_size / (long)PAGE));
	}
	ftruncate(fd, 2 * PAGE);
	write(ends[1], "x", 1);
	say("a child's size", child_end(pid));
	int many[100];
	for (int i = 0; i < 100; i++)
		many[i] = dup(1);
	fd = memfd_create("second", MFD_HUGETLB);
	int second = dup(fd);
	ftruncate(fd, PAGE);
	describe(second);
	for (int i = 0; i < 100; i++)
		close(many[i]);
	use();
}

static void locked(void)
{
	struct rlimit limit = { 8 << 20, 8 << 20 };

	setrlimit(RLIMIT_MEMLOCK, &limit);
	munmap(shared, 2 * PAGE);
	munmap(private, 2 * PAGE);
	close(file);
	setresuid(65534, 65534, 65534);
	say_errno("mlockall", mlockall(MCL_CURRENT));
}

static void meminfo(void)
{
	int fd = open("/proc/meminfo", O_RDONLY);
	struct stat status;

	fstat(fd, &status);
	say("its size", status.st_size);
	say("its device is a disk's", status.st_dev > 1000);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } cases[] = {
		{ "user", user }, { "root", root }, { "descriptors", descriptors },
		{ "address_space", address_space }, { "filtered", filtered },
		{ "signal_stack", signal_stack }, { "forks", forks },
		{ "process_madvise", by_process_madvise }, { "memfds", memfds },
		{ "locked", locked }, { "meminfo", meminfo },
	};

	subject = argc > 1 ? argv[1] : "";
	if (!strcmp(subject, "filtered_early")) {
		filtered_early();
		return 0;
	}
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (!strcmp(subject, cases[i].name)) {
			take();
			cases[i].run();
			return 0;
		}
	}
	return 2;
}
