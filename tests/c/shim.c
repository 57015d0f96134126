/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What a program may expect of huge pages, one line per expectation and what was found.
 *
 * It is run untouched and under the preload shim, and must print the same both times: so nothing
 * here asks where memory comes from, and no line has an address or a time.
 *
 *	shim [--shm]	with --shm also System V segments
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>

#define PAGE	(2UL << 20)
#include "found.h"

#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB	(21 << 26)
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB	(21U << 26)
#endif

extern char **environ;

/* ---- what both kinds of anonymous memory promise ---- */

static void anonymous(int kind)
{
	unsigned char *memory = map(NULL, 3, RW, kind);

	say("zero", is_zero(memory, 3 * PAGE));
	say("aligned", (unsigned long)memory % PAGE == 0);
	fill(memory, 3 * PAGE, 0x5a);
	say("written", memory[0] + memory[3 * PAGE - 1]);
	errno = EXDEV;
	say_errno("unmap the middle", munmap(memory + PAGE, PAGE));
	say("errno is left alone", errno == EXDEV);
	say("left and right stay", memory[0] + memory[2 * PAGE]);
	say("the middle is gone", touch(memory + PAGE, false));
	say_errno("unmap half a page", munmap(memory, PAGE / 2));
	munmap(memory, PAGE);
	munmap(memory + 2 * PAGE, PAGE);

	memory = mmap(NULL, PAGE + 1, RW, kind | HUGE | MAP_HUGE_2MB, -1, 0);
	say("an odd length is rounded up", memory != MAP_FAILED && !memory[2 * PAGE - 1]);
	munmap(memory, 2 * PAGE);

	memory = map(NULL, 2, PROT_READ, kind);
	say("read only: read", touch(memory, false));
	say("read only: write", touch(memory, true));
	say_errno("mprotect", mprotect(memory, PAGE, RW));
	memory[0] = 7;
	say_errno("mprotect to none", mprotect(memory, PAGE, PROT_NONE));
	say("none: read", touch(memory, false));
	say_errno("mprotect back", mprotect(memory, PAGE, RW));
	say("its content stayed", memory[0]);
	munmap(memory, 2 * PAGE);

	/* mremap: moves and cuts, does not grow. */
	memory = map(NULL, 2, RW, kind);
	unsigned char *place = map(NULL, 4, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE);
	fill(memory, 2 * PAGE, 9);
	unsigned char *moved = mremap(memory, 2 * PAGE, 2 * PAGE,
				      MREMAP_MAYMOVE | MREMAP_FIXED, place);
	say("moved", moved == place);
	say("the content came along", moved[0] + moved[2 * PAGE - 1]);
	say("the old place is empty", touch(memory, false));
	say_errno("grow", (long)mremap(moved, 2 * PAGE, 3 * PAGE, 0));
	say_errno("cut", (long)mremap(moved, 2 * PAGE, PAGE, 0) == -1 ? -1 : 0);
	say("what is left", moved[PAGE - 1]);
	munmap(place, 4 * PAGE);

	/* Places. */
	unsigned char *range = mmap(NULL, 8 * PAGE, PROT_NONE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	unsigned char *at = (unsigned char *)(((unsigned long)range + PAGE - 1) & ~(PAGE - 1));
	say("MAP_FIXED", map(at + PAGE, 2, RW, kind | MAP_FIXED) == at + PAGE);
	say("... is zero", is_zero(at + PAGE, 2 * PAGE));
	fill(at + PAGE, 2 * PAGE, 1);
	say("MAP_FIXED over it", map(at + 2 * PAGE, 2, RW, kind | MAP_FIXED) == at + 2 * PAGE);
	say("... is zero", is_zero(at + 2 * PAGE, 2 * PAGE));
	say("... and what it did not replace stays", at[PAGE] + at[2 * PAGE - 1]);
	say_errno("MAP_FIXED_NOREPLACE over it",
		  (long)mmap(at + PAGE, PAGE, RW, kind | HUGE | MAP_FIXED_NOREPLACE, -1, 0));
	say("... leaves it", at[PAGE]);
	say_errno("MAP_FIXED at half a page",
		  (long)mmap(at + PAGE / 2, PAGE, RW, kind | HUGE | MAP_FIXED, -1, 0));
	munmap(range, 8 * PAGE);
	say("a hint is taken", map(at, 1, RW, kind) == at);
	munmap(at, PAGE);
	say_errno("no length", (long)mmap(NULL, 0, RW, kind | HUGE, -1, 0));
	say_errno("no such page size",
		  (long)mmap(NULL, PAGE, RW, kind | HUGE | (13 << 26), -1, 0));

	memory = map(NULL, 2, RW, kind | MAP_POPULATE);
	say("populated is zero", is_zero(memory, 2 * PAGE));
	munmap(memory, 2 * PAGE);
}

/* ---- shared ---- */

static void shared(void)
{
	subject = "shared";
	anonymous(MAP_SHARED);

	unsigned char *memory = map(NULL, 2, RW, MAP_SHARED);
	make_steps();
	memory[0] = 1;
	pid_t pid = child();
	if (!pid) {
		await(0);
		say("the child sees the parent's write", memory[0]);
		memory[PAGE] = 3;
		tell(1);
		await(0);
		_exit(0);
	}
	memory[0] = 2;
	tell(0);
	await(1);
	say("the parent sees the child's write", memory[PAGE]);
	say_errno("MADV_DONTNEED", madvise(memory, PAGE, MADV_DONTNEED));
	say("... keeps shared content", memory[0]);
	say_errno("MADV_REMOVE", madvise(memory, PAGE, MADV_REMOVE));
	say("... gives zeros", is_zero(memory, PAGE));
	tell(0);
	child_end(pid);
	drop_steps();
	munmap(memory, 2 * PAGE);

	/* The parent unmaps, the child goes on. */
	memory = map(NULL, 1, RW, MAP_SHARED);
	memory[0] = 4;
	make_steps();
	pid = child();
	if (!pid) {
		await(0);
		say("content outlives the parent's mapping", memory[0]);
		_exit(0);
	}
	munmap(memory, PAGE);
	tell(0);
	child_end(pid);
	drop_steps();
}

/* ---- private ---- */

static void private_fork(void)
{
	unsigned char *memory = map(NULL, 4, RW, MAP_PRIVATE);

	fill(memory, PAGE, 1);
	fill(memory + PAGE, PAGE, 2);
	mprotect(memory + PAGE, PAGE, PROT_READ);
	fill(memory + 2 * PAGE, PAGE, 3);
	mprotect(memory + 2 * PAGE, PAGE, PROT_NONE);
	make_steps();
	pid_t pid = child();
	if (!pid) {
		await(0);
		say("the child has the content at the fork", memory[0] + memory[PAGE - 1]);
		say("... where it may only read", memory[PAGE]);
		mprotect(memory + 2 * PAGE, PAGE, RW);
		say("... where it could not even read", memory[2 * PAGE] + memory[3 * PAGE - 1]);
		say("... and zeros where nothing was", is_zero(memory + 3 * PAGE, PAGE));
		say("its rights are the parent's", touch(memory + PAGE, true));
		fill(memory, PAGE, 11);
		memory[3 * PAGE] = 12;
		tell(1);
		await(0);
		say_errno("MADV_DONTNEED in the child", madvise(memory, PAGE, MADV_DONTNEED));
		say("... gives zeros", is_zero(memory, PAGE));
		memory[0] = 13;
		/* And a child of the child. */
		pid = child();
		if (!pid)
			_exit(memory[0] + memory[3 * PAGE]);
		say("a grandchild has the child's content", child_end(pid));
		say_errno("munmap in the child", munmap(memory, PAGE));
		_exit(0);
	}
	fill(memory, PAGE, 21);
	memory[3 * PAGE] = 22;
	tell(0);
	await(1);
	say("the parent does not see the child's writes", memory[0] + memory[3 * PAGE]);
	say("... nor loses its rights", touch(memory + PAGE, true));
	tell(0);
	child_end(pid);
	drop_steps();
	say("the content is still the parent's", memory[0] + memory[PAGE]);
	munmap(memory, 4 * PAGE);
}

static void *scribble(void *memory)
{
	volatile unsigned char *at = memory;

	while (!at[PAGE])
		at[0]++;
	return NULL;
}

static void private_fork_with_threads(void)
{
	unsigned char *memory = map(NULL, 2, RW, MAP_PRIVATE);
	pthread_t thread;

	memory[100] = 5;
	if (pthread_create(&thread, NULL, scribble, memory))
		die("pthread_create");
	for (int i = 0; i < 5; i++) {
		pid_t pid = child();

		if (!pid) {
			unsigned char first = memory[0];

			usleep(1000);
			_exit(first == memory[0] && memory[100] == 5);
		}
		say("a thread's writes do not reach the child", child_end(pid));
	}
	memory[PAGE] = 1;
	pthread_join(thread, NULL);
	munmap(memory, 2 * PAGE);
}

static void private_memory(void)
{
	subject = "private";
	anonymous(MAP_PRIVATE);
	private_fork();
	private_fork_with_threads();

	unsigned char *memory = map(NULL, 3, RW, MAP_PRIVATE);
	fill(memory, 3 * PAGE, 6);
	say_errno("MADV_DONTNEED", madvise(memory + PAGE, PAGE, MADV_DONTNEED));
	say("... gives zeros", is_zero(memory + PAGE, PAGE));
	say("... there alone", memory[PAGE - 1] + memory[2 * PAGE]);
	fill(memory, 3 * PAGE, 6);
	mprotect(memory, PAGE, PROT_READ);
	say_errno("MADV_DONTNEED of what is read only", madvise(memory, 2 * PAGE, MADV_DONTNEED));
	say("... gives zeros", is_zero(memory, 2 * PAGE));
	say("... and leaves the rights", touch(memory, true));
	say_errno("MADV_DONTNEED from half a page", madvise(memory + PAGE / 2, PAGE, MADV_DONTNEED));
	say_errno("MADV_DONTNEED to half a page",
		  madvise(memory + 2 * PAGE, PAGE / 2, MADV_DONTNEED));
	say("... cuts the end", memory[2 * PAGE]);
	say_errno("MADV_REMOVE", madvise(memory + 2 * PAGE, PAGE, MADV_REMOVE));
	say_errno("MADV_FREE", madvise(memory + 2 * PAGE, PAGE, MADV_FREE));
	say_errno("mremap of nothing", (long)mremap(memory + PAGE, 0, PAGE, MREMAP_MAYMOVE));
	say_errno("MADV_DONTFORK", madvise(memory + 2 * PAGE, PAGE, MADV_DONTFORK));
	say("... the child does not have it", touch(memory + 2 * PAGE, false));
	say_errno("MADV_DOFORK", madvise(memory + 2 * PAGE, PAGE, MADV_DOFORK));
	say("... the child has it", touch(memory + 2 * PAGE, false));
	munmap(memory, 3 * PAGE);

	/* Programs started by other ways than fork. */
	memory = map(NULL, 1, RW, MAP_PRIVATE);
	memory[0] = 8;
	say("system", system("exit 7") >> 8);
	char *words[] = { "sh", "-c", "exit 9", NULL };
	pid_t pid;
	say("posix_spawn", posix_spawnp(&pid, "sh", NULL, NULL, words, environ) ? -1 : child_end(pid));
	pid = vfork();
	if (!pid) {
		memory[0]++;
		_exit(0);
	}
	child_end(pid);
	say("a vfork shares", memory[0]);
	/* A child that the C library does not know of: it may lack the memory, but never share it. */
	pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (!pid) {
		memory[0] = 99;
		_exit(0);
	}
	child_end(pid);
	say("after a bare clone the content is the parent's own", memory[0]);
	/* A fork inside of the C library. */
	make_steps();
	pid = child();
	if (!pid) {
		memory[0]++;
		if (daemon(1, 1))
			die("daemon");
		say("daemon() keeps the content", memory[0]);
		tell(0);
		_exit(0);
	}
	child_end(pid);
	await(0);
	drop_steps();
	munmap(memory, PAGE);
}

/* ---- memfd ---- */

static int make_memfd(unsigned flags)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_HUGETLB | flags);

	if (fd < 0)
		die("memfd_create");
	return fd;
}

static unsigned char *map_file(int fd, size_t pages, int kind)
{
	unsigned char *memory = mmap(NULL, pages * PAGE, RW, kind, fd, 0);

	if (memory == MAP_FAILED)
		die("mmap of a memfd");
	return memory;
}

static long size_of(int fd)
{
	struct stat status;

	return fstat(fd, &status) ? -1 : (long)(status.st_size / PAGE);
}

static void pass(int socket, int fd)
{
	char byte = 0, space[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1,
				  .msg_control = space, .msg_controllen = sizeof(space) };
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);

	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	rights->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(rights), &fd, sizeof(int));
	if (sendmsg(socket, &message, 0) != 1)
		die("sendmsg");
}

static int receive(int socket)
{
	char byte, space[CMSG_SPACE(sizeof(int))];
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1,
				  .msg_control = space, .msg_controllen = sizeof(space) };
	int fd;

	if (recvmsg(socket, &message, 0) != 1)
		die("recvmsg");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	return fd;
}

static void memfds(void)
{
	subject = "memfd";
	int fd = make_memfd(MFD_ALLOW_SEALING | MFD_HUGE_2MB);

	say("no size", size_of(fd));
	say_errno("ftruncate", ftruncate(fd, 3 * PAGE));
	say("its size", size_of(fd));
	say("closed on exec", fcntl(fd, F_GETFD));
	say("read and write", (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR);
	unsigned char *memory = map_file(fd, 3, MAP_SHARED), *again = map_file(fd, 3, MAP_SHARED);
	say("zero", is_zero(memory, 3 * PAGE));
	fill(memory, 3 * PAGE, 0x42);
	say("two mappings are one memory", again[0] + again[3 * PAGE - 1]);
	munmap(again, 3 * PAGE);
	say_errno("punch a hole", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE, PAGE));
	say("... gives zeros", is_zero(memory + PAGE, PAGE));
	say("... there alone", memory[PAGE - 1] + memory[2 * PAGE]);
	say_errno("fallocate", fallocate(fd, 0, 0, 3 * PAGE));
	say("... keeps content", memory[0]);
	say_errno("write", write(fd, "x", 1));
	char byte = 0;
	say("read", pread(fd, &byte, 1, 0) == 1 ? byte : -1);

	/* Seals, as QEMU sets them. */
	say("no seals", fcntl(fd, F_GET_SEALS));
	say_errno("seal", fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK));
	say("seals", fcntl(fd, F_GET_SEALS));
	say_errno("grow what is sealed", ftruncate(fd, 4 * PAGE));
	say_errno("shrink what is sealed", ftruncate(fd, PAGE));
	say_errno("keep its size", ftruncate(fd, 3 * PAGE));
	say_errno("allocate beyond", fallocate(fd, 0, 0, 4 * PAGE));
	say_errno("seal the seals", fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL));
	say_errno("seal after that", fcntl(fd, F_ADD_SEALS, F_SEAL_GROW));
	say("seals", fcntl(fd, F_GET_SEALS));
	int copy = dup(fd);
	say("a duplicate has them", fcntl(copy, F_GET_SEALS));
	close(copy);

	/* Passed to another process, as to a vhost-user backend. */
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		die("socketpair");
	pid_t pid = child();
	if (!pid) {
		close(fd);
		munmap(memory, 3 * PAGE);
		int got = receive(pair[1]);
		unsigned char *theirs = map_file(got, 3, MAP_SHARED);

		theirs[1] = theirs[0] + 1;
		_exit(size_of(got));
	}
	pass(pair[0], fd);
	say("passed on", child_end(pid));
	say("the other's write is seen", memory[1]);
	close(pair[0]);
	close(pair[1]);
	close(fd);
	memory[2] = 5;
	say("mapped, without a descriptor", memory[2]);
	munmap(memory, 3 * PAGE);

	/* By path. */
	fd = make_memfd(0);
	say_errno("ftruncate", ftruncate(fd, PAGE));
	char path[64];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	copy = open(path, O_RDWR);
	memory = map_file(fd, 1, MAP_SHARED);
	again = map_file(copy, 1, MAP_SHARED);
	memory[0] = 6;
	say("opened again it is the same", again[0]);
	say("no seals were asked for", fcntl(fd, F_GET_SEALS));
	say_errno("none can be set", fcntl(fd, F_ADD_SEALS, F_SEAL_GROW));
	munmap(again, PAGE);
	say_errno("grow", ftruncate(fd, 2 * PAGE));
	say_errno("shrink", ftruncate(fd, PAGE));
	say("content stays", memory[0]);
	say_errno("empty", ftruncate(fd, 0));
	say_errno("and new", ftruncate(fd, PAGE));
	say("is zero", is_zero(memory, PAGE));
	munmap(memory, PAGE);
	close(copy);
	close(fd);

	/* Private mappings copy. */
	fd = make_memfd(0);
	ftruncate(fd, 2 * PAGE);
	memory = map_file(fd, 2, MAP_PRIVATE);
	memory[0] = 1;
	again = map_file(fd, 2, MAP_SHARED);
	say("a private write is not in the file", again[0]);
	again[PAGE] = 2;
	say("a write to the file is seen until then", memory[PAGE]);
	munmap(memory, 2 * PAGE);
	munmap(again, 2 * PAGE);
	close(fd);

	/* A second holder before it has a size. */
	fd = make_memfd(0);
	copy = dup(fd);
	ftruncate(fd, PAGE);
	say("a duplicate from before has the size", size_of(copy));
	close(copy);
	close(fd);
	fd = make_memfd(0);
	make_steps();
	pid = child();
	if (!pid) {
		await(0);
		_exit(size_of(fd));
	}
	ftruncate(fd, 2 * PAGE);
	tell(0);
	say("a child from before has the size", child_end(pid));
	drop_steps();
	close(fd);

	fd = make_memfd(0);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		die("socketpair");
	make_steps();
	pid = child();
	if (!pid) {
		close(fd);
		int got = receive(pair[1]);

		await(0);
		unsigned char *theirs = map_file(got, 1, MAP_SHARED);
		theirs[0]++;
		_exit(size_of(got));
	}
	/* Made after the fork, passed on while empty, and sized by whom it was made. */
	close(fd);
	fd = make_memfd(0);
	pass(pair[0], fd);
	say_errno("size what was passed on empty", ftruncate(fd, PAGE));
	memory = map_file(fd, 1, MAP_SHARED);
	memory[0] = 7;
	tell(0);
	say("whoever got it has the size", child_end(pid));
	say("and it is one memory", memory[0]);
	munmap(memory, PAGE);
	drop_steps();
	close(pair[0]);
	close(pair[1]);
	close(fd);

	/* Sized by fallocate. */
	fd = make_memfd(0);
	say_errno("fallocate of an empty one", fallocate(fd, 0, 0, 2 * PAGE));
	say("its size", size_of(fd));
	close(fd);
	fd = make_memfd(0);
	say("posix_fallocate", posix_fallocate(fd, 0, PAGE));
	say("its size", size_of(fd));
	close(fd);
	fd = make_memfd(0);
	say_errno("half a page", ftruncate(fd, PAGE / 2));
	say_errno("a whole one", ftruncate(fd, PAGE));
	say("its size", size_of(fd));
	close(fd);
}

/* ---- System V ---- */

static void segments(void)
{
	subject = "segment";
	int id = shmget(IPC_PRIVATE, 2 * PAGE, SHM_HUGETLB | IPC_CREAT | 0600);

	if (id < 0)
		die("shmget");
	unsigned char *memory = shmat(id, NULL, 0), *again = shmat(id, NULL, SHM_RDONLY);
	if (memory == (void *)-1 || again == (void *)-1)
		die("shmat");
	say("zero", is_zero(memory, 2 * PAGE));
	memory[0] = 3;
	say("attached twice it is one memory", again[0]);
	struct shmid_ds status;
	say_errno("IPC_STAT", shmctl(id, IPC_STAT, &status));
	say("its size", status.shm_segsz / PAGE);
	say("attachments", status.shm_nattch);
	say("made by", status.shm_cpid == getpid());
	say("last used by", status.shm_lpid == getpid());
	say("its key", status.shm_perm.__key);
	say("its mode", status.shm_perm.mode);
	say("its owners", status.shm_perm.uid == geteuid() && status.shm_perm.cgid == getegid());
	say("its times", (status.shm_atime > 0) * 4 + (status.shm_dtime > 0) * 2 + (status.shm_ctime > 0));
	say("read only", touch(again, true));
	status.shm_perm.mode = 0640;
	say_errno("IPC_SET", shmctl(id, IPC_SET, &status));
	say_errno("IPC_STAT", shmctl(id, IPC_STAT, &status));
	say("its mode", status.shm_perm.mode);
	say_errno("IPC_STAT to nowhere", shmctl(id, IPC_STAT, (void *)16));
	say_errno("IPC_SET from nowhere", shmctl(id, IPC_SET, NULL));
	say_errno("no such command", shmctl(id, 99, &status));
	say_errno("SHM_LOCK", shmctl(id, SHM_LOCK, NULL));
	say_errno("SHM_UNLOCK", shmctl(id, SHM_UNLOCK, NULL));
	say_errno("attach within a page", (long)shmat(id, (char *)(1UL << 44) + 4096, 0));
	say_errno("attach at no address", (long)shmat(id, (char *)(1UL << 44) + 3, 0));
	say_errno("rounded to a base page", (long)shmat(id, (char *)(1UL << 44) + 4097, SHM_RND));
	say_errno("attach over it", (long)shmat(id, memory, 0));
	say_errno("SHM_REMAP without a place", (long)shmat(id, NULL, SHM_REMAP));
	say("SHM_REMAP over it", shmat(id, memory, SHM_REMAP) == memory && memory[0] == 3);
	unsigned char *code = shmat(id, NULL, SHM_EXEC);
	say("SHM_EXEC", code != (void *)-1 && code[0] == 3);
	say_errno("detach it", shmdt(code));
	say_errno("detach from within", shmdt(memory + PAGE));
	say_errno("IPC_RMID", shmctl(id, IPC_RMID, NULL));
	say_errno("IPC_STAT", shmctl(id, IPC_STAT, &status));
	say("its mode", status.shm_perm.mode);
	say("attachments", status.shm_nattch);
	say_errno("removed again", shmctl(id, IPC_RMID, NULL));
	code = shmat(id, NULL, 0);
	say("attached though removed", code != (void *)-1 && code[0] == 3);
	say_errno("detach its first page by munmap", munmap(code, PAGE));
	say_errno("detach the rest", shmdt(code));
	say_errno("detach what is gone", shmdt(code));
	make_steps();
	pid_t pid = child();
	if (!pid) {
		await(0);
		memory[1] = memory[0] + 1;
		_exit(shmdt(memory));
	}
	memory[0] = 5;
	tell(0);
	say("a child detaches", child_end(pid));
	say("its write is seen", memory[1]);
	drop_steps();
	say_errno("detach", shmdt(memory));
	say_errno("detach again", shmdt(memory));
	say_errno("detach the other", shmdt(again));
	say_errno("attach what is gone", (long)shmat(id, NULL, 0));

	id = shmget(IPC_PRIVATE, PAGE + 5, SHM_HUGETLB | IPC_CREAT | 0400);
	say_errno("IPC_STAT", shmctl(id, IPC_STAT, &status));
	say("a size as it was asked for", status.shm_segsz);
	say("its mode", status.shm_perm.mode);
	say("not used yet", status.shm_lpid + status.shm_atime + status.shm_dtime);
	memory = shmat(id, NULL, 0);
	say("mapped in whole pages", memory != (void *)-1 && !memory[2 * PAGE - 1]);
	say_errno("munmap", munmap(memory, 2 * PAGE));
	say_errno("IPC_STAT", shmctl(id, IPC_STAT, &status));
	say("attachments", status.shm_nattch);
	say_errno("IPC_RMID", shmctl(id, IPC_RMID, NULL));
	say_errno("attach what is gone", (long)shmat(id, NULL, 0));
	say_errno("remove what is gone", shmctl(id, IPC_RMID, NULL));
}

/* ---- many at a time ---- */

static void *map_and_unmap(void *kind)
{
	for (int i = 0; i < 40; i++) {
		unsigned char *memory = map(NULL, 1, RW, (int)(long)kind);

		if (memory[0])
			return (void *)1;
		memory[0] = 1;
		if (i % 8 == 0 && touch(memory, false) != 1)
			return (void *)2;
		munmap(memory, PAGE);
	}
	return NULL;
}

static volatile sig_atomic_t alarms;

/* The next alarm comes after the last one's end: a slow machine has nothing but alarms else. */
static void wind(int microseconds)
{
	struct itimerval once = { { 0, 0 }, { 0, microseconds } };

	setitimer(ITIMER_REAL, &once, NULL);
}

static void on_alarm(int signal)
{
	/* Not allowed to, and done by programs all the same. */
	void *memory = mmap(NULL, PAGE, RW, MAP_PRIVATE | HUGE, -1, 0);

	(void)signal;
	if (memory != MAP_FAILED)
		munmap(memory, PAGE);
	alarms++;
	wind(2000);
}

static int forks_left;

static void *unmap_all_the_time(void *unused)
{
	while (__atomic_load_n(&forks_left, __ATOMIC_SEQ_CST)) {
		unsigned char *memory = map(NULL, 1, RW, MAP_PRIVATE);

		memory[PAGE - 1] = 3;
		munmap(memory, PAGE);
	}
	return unused;
}

static void *fork_often(void *ended)
{
	for (int i = 0; i < 40; i++) {
		pid_t pid = child();

		if (!pid)
			_exit(4);
		*(long *)ended += child_end(pid) == 4;
	}
	__atomic_sub_fetch(&forks_left, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

/* A munmap that passed by one fork must not come in the middle of the next one's copy. */
static void forks_beside_munmap(void)
{
	pthread_t threads[14];
	long ended[2] = { 0, 0 };

	forks_left = 2;
	for (int i = 0; i < 14; i++)
		if (pthread_create(&threads[i], NULL, i < 2 ? fork_often : unmap_all_the_time,
				   i < 2 ? &ended[i] : NULL))
			die("pthread_create");
	for (int i = 0; i < 14; i++)
		pthread_join(threads[i], NULL);
	say("forks beside threads that unmap", ended[0] + ended[1]);
}

static void *take_and_give_rights(void *memory)
{
	while (__atomic_load_n(&forks_left, __ATOMIC_SEQ_CST))
		if (mprotect(memory, PAGE, PROT_NONE) || mprotect(memory, PAGE, RW))
			die("mprotect");
	return NULL;
}

/* Nor need memory stay readable while a child's copy of it is made. */
static void forks_beside_mprotect(void)
{
	unsigned char *memory = map(NULL, 2, RW, MAP_PRIVATE);
	pthread_t thread;
	long had = 0;

	memory[0] = memory[PAGE] = 6;
	forks_left = 1;
	if (pthread_create(&thread, NULL, take_and_give_rights, memory))
		die("pthread_create");
	for (int i = 0; i < 60; i++) {
		pid_t pid = child();

		if (!pid)
			_exit(!mprotect(memory, PAGE, RW) && memory[0] + memory[PAGE] == 12);
		had += child_end(pid) == 1;
	}
	forks_left = 0;
	pthread_join(thread, NULL);
	munmap(memory, 2 * PAGE);
	say("forks beside a thread that takes and gives rights", had);
}

static void crowds(void)
{
	subject = "crowd";
	pthread_t threads[4];

	signal(SIGALRM, on_alarm);
	wind(2000);
	for (long i = 0; i < 4; i++)
		if (pthread_create(&threads[i], NULL, map_and_unmap,
				   (void *)(long)(i % 2 ? MAP_SHARED : MAP_PRIVATE)))
			die("pthread_create");
	for (int i = 0; i < 4; i++) {
		void *wrong;

		pthread_join(threads[i], &wrong);
		say("a thread maps and forks beside others", (long)wrong);
	}
	signal(SIGALRM, SIG_IGN);
	say("signals came", alarms > 0);
	forks_beside_munmap();
	forks_beside_mprotect();
}

int main(int argc, char **argv)
{
	shared();
	private_memory();
	memfds();
	crowds();
	if (argc > 1 && !strcmp(argv[1], "--shm"))
		segments();
	return 0;
}
