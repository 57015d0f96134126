/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Calls that the kernel refuses, or answers otherwise than the caller's bytes suggest, and what is left
 * of private memory after them: a line each, the same untouched and under the preload shim.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <time.h>

#define PAGE	(2UL << 20)
#include "found.h"

#define SMALL	4096UL

/* A child that reads two bytes, and unmaps, punches or writes nothing. */
static void fork_says(const char *what, unsigned char *first, unsigned char *second)
{
	pid_t pid = fork();

	if (!pid)
		_exit(first[0] * 16 + second[0]);
	say(what, pid < 0 ? -errno : child_end(pid));
}

static void part_advice(void)
{
	static const struct { const char *name; int advice; } all[] = {
		{ "MADV_DOFORK", MADV_DOFORK }, { "MADV_DONTFORK", MADV_DONTFORK },
		{ "MADV_DONTNEED", MADV_DONTNEED }, { "MADV_REMOVE", MADV_REMOVE },
		{ "MADV_DONTDUMP", MADV_DONTDUMP }, { "MADV_FREE", MADV_FREE },
	};

	subject = "advice for parts of a page";
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		unsigned char *memory = map(NULL, 2, RW, MAP_PRIVATE);

		memory[0] = 3;
		memory[PAGE] = 5;
		say_errno(all[i].name, madvise(memory, SMALL, all[i].advice));
		say_errno("in the midst", madvise(memory + 7 * SMALL, 2 * SMALL, all[i].advice));
		say_errno("past the end of a page", madvise(memory, PAGE + SMALL, all[i].advice));
		say_errno("no address", madvise(memory + 1, SMALL, all[i].advice));
		say("content", memory[0] * 16 + memory[PAGE]);
		fork_says("a child has", memory, memory + PAGE);
		munmap(memory, 2 * PAGE);
	}
	unsigned char *memory = map(NULL, 1, RW, MAP_PRIVATE);
	memory[0] = 1;
	madvise(memory, PAGE, MADV_DONTDUMP);
	pid_t pid = child();
	if (!pid) {
		/* No change, so that nothing has to be split. */
		say_errno("MADV_DONTDUMP is a child's, too", madvise(memory, SMALL, MADV_DONTDUMP));
		_exit(0);
	}
	child_end(pid);
	munmap(memory, PAGE);

	memory = map(NULL, 3, RW, MAP_PRIVATE);
	memory[0] = 1, memory[PAGE] = 2, memory[2 * PAGE] = 3;
	munmap(memory + PAGE, PAGE);
	say_errno("over a hole", madvise(memory, 3 * PAGE, MADV_DONTNEED));
	say("both sides are zero", memory[0] + memory[2 * PAGE]);
	munmap(memory, 3 * PAGE);
}

/* Whether nothing is mapped there: the kernel is asked, who would touch it would die. */
static int is_gone(const unsigned char *memory)
{
	unsigned char resident;

	return mincore((void *)memory, 1, &resident) && errno == ENOMEM;
}

static void refused(void)
{
	/*
	 * More than there is, with nobody else in it: Linux 6.12 unmaps what was there before it
	 * finds that there are not as many pages.
	 */
	const size_t too_much = 1UL << 31;
	unsigned char *room = mmap(NULL, too_much + PAGE, PROT_NONE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	unsigned char *memory = map((void *)(((unsigned long)room + PAGE - 1) & ~(PAGE - 1)), 4, RW,
				    MAP_PRIVATE | MAP_FIXED);

	subject = "refused";
	for (int i = 0; i < 4; i++)
		memory[i * PAGE] = i + 1;
	say_errno("munmap to within a page", munmap(memory, PAGE + SMALL));
	say_errno("munmap from within a page", munmap(memory + SMALL, PAGE - SMALL));
	say_errno("munmap of a few bytes", munmap(memory, 1));
	say("content", memory[0] * 16 + memory[PAGE]);
	say_errno("mmap over a part", (long)mmap(memory, SMALL, RW,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	say_errno("mmap of no file", (long)mmap(memory, PAGE, RW, MAP_PRIVATE | MAP_FIXED, 987, 0));
	say("content", memory[0] * 16 + memory[PAGE]);
	fork_says("a child has", memory, memory + PAGE);
	say_errno("mmap of too much", (long)mmap(memory, too_much, RW,
		  MAP_PRIVATE | HUGE | MAP_FIXED, -1, 0));
	if (is_gone(memory)) {
		say("nothing is left", 1);
		return;
	}
	say("content", memory[2 * PAGE] * 16 + memory[3 * PAGE]);
	say_errno("mremap to a larger size", (long)mremap(memory, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
	say_errno("mremap from within a page",
		  (long)mremap(memory + SMALL, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
			       memory + 2 * PAGE));
	fork_says("a child has", memory, memory + PAGE);
	say_errno("MADV_DONTNEED", madvise(memory, PAGE, MADV_DONTNEED));
	say("is zero, there alone", is_zero(memory, PAGE) * 16 + memory[PAGE]);
	say_errno("mprotect within a page", mprotect(memory + PAGE, SMALL, PROT_READ));
	memory[PAGE + 1] = 1;
	munmap(memory, 4 * PAGE);
}

static void shrinks_alone(void)
{
	unsigned char *memory = map(NULL, 4, RW, MAP_PRIVATE);
	unsigned char *room = mmap(NULL, 8 * PAGE, PROT_NONE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	unsigned char *to = (unsigned char *)(((unsigned long)room + PAGE - 1) & ~(PAGE - 1));

	for (int i = 0; i < 4; i++)
		memory[i * PAGE] = i + 1;
	say_errno("mremap to three", mremap(memory, 4 * PAGE, 3 * PAGE, 0) == MAP_FAILED ? -1 : 0);
	unsigned char *at = mremap(memory, 3 * PAGE, 3 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	say("moved", at == to && at[2 * PAGE] == 3);
	say_errno("MADV_DONTNEED there", madvise(to, PAGE, MADV_DONTNEED));
	say("zeros, there alone", is_zero(to, PAGE) * 16 + to[PAGE]);
	munmap(room, 8 * PAGE);
}

static void shrinks(void)
{
	unsigned char *memory = map(NULL, 4, RW, MAP_PRIVATE);

	subject = "shrinks";
	for (int i = 0; i < 4; i++)
		memory[i * PAGE] = i + 1;
	mprotect(memory + PAGE, PAGE, PROT_NONE);
	say_errno("mremap to three and a half", mremap(memory + 2 * PAGE, 2 * PAGE, PAGE + PAGE / 2, 0)
		  == MAP_FAILED ? -1 : 0);
	say("content", memory[0] * 16 + memory[2 * PAGE]);
	say_errno("mremap to one", mremap(memory + 2 * PAGE, 2 * PAGE, PAGE, 0) == MAP_FAILED ? -1 : 0);
	fork_says("a child has", memory, memory + 2 * PAGE);
	say("a child may not read", touch(memory + PAGE, false));
	say("nor is the rest there", touch(memory + 3 * PAGE, false));
	munmap(memory, 4 * PAGE);
	/* Whatever the fifth register holds is not for this call. */
	memory = map(NULL, 2, RW, MAP_PRIVATE);
	memory[0] = 9;
	void *(*bare)(void *, size_t, size_t, int, ...) = mremap;
	unsigned char *at = bare(memory, 2 * PAGE, PAGE, MREMAP_MAYMOVE, (void *)0x123);
	say("a fifth argument is nobody's", at == memory && at[0] == 9);
	munmap(memory, 2 * PAGE);
}

/* Memory that went away by calls that nobody sees, and other memory that came. */
static void stale(void)
{
	subject = "stale";
	unsigned char *memory = map(NULL, 2, RW, MAP_PRIVATE);
	memory[0] = 1;
	int fd = memfd_create("other", MFD_HUGETLB | MFD_CLOEXEC);
	int second = dup(fd);
	if (ftruncate(fd, 2 * PAGE))
		die("ftruncate");
	syscall(SYS_munmap, memory, 2 * PAGE);
	unsigned char *other = mmap(memory, 2 * PAGE, RW, MAP_SHARED | MAP_FIXED, fd, 0);
	other[0] = 7;
	say_errno("MADV_DONTNEED of another's file", madvise(other, PAGE, MADV_DONTNEED));
	say("leaves its content", other[0]);
	fork_says("a child has", other, other);
	say_errno("munmap", munmap(other, PAGE));
	other = mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0);
	say("the file has its content", other[0]);
	munmap(other, PAGE);
	munmap(memory + PAGE, PAGE);
	close(fd);
	close(second);

	int id = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600);
	memory = map(NULL, 1, RW, MAP_PRIVATE);
	other = shmat(id, memory, SHM_REMAP);
	shmctl(id, IPC_RMID, NULL);
	strcpy((char *)other, "segment content");
	say_errno("MADV_DONTNEED of a segment", madvise(other, PAGE, MADV_DONTNEED));
	say("leaves its content", !strcmp((char *)other, "segment content"));
	shmdt(other);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void take(void) { pthread_mutex_lock(&lock); }
static void give(void) { pthread_mutex_unlock(&lock); }
static volatile int stop, wrong;

static void *allocator(void *given)
{
	unsigned char *memory = given;

	while (!stop) {
		take();
		memory[0] = 1;
		if (madvise(memory, PAGE, MADV_DONTNEED) || memory[0])
			wrong = 1;
		unsigned char *more = mmap(NULL, PAGE, RW, MAP_PRIVATE | HUGE, -1, 0);
		if (more != MAP_FAILED)
			munmap(more, PAGE);
		give();
	}
	return NULL;
}

static void beside_an_allocator(void)
{
	unsigned char *memory = map(NULL, 2, RW, MAP_PRIVATE);
	struct timespec from, to;
	pthread_t thread;
	int forks = 0;

	subject = "beside an allocator";
	memory[PAGE] = 4;
	pthread_atfork(take, give, give);
	pthread_create(&thread, NULL, allocator, memory);
	clock_gettime(CLOCK_MONOTONIC, &from);
	do {
		pid_t pid = fork();
		if (!pid)
			_exit(memory[PAGE]);
		long end = pid < 0 ? -1000 - errno : child_end(pid);
		if (end != 4)
			wrong = end ? (int)end : 2;
		forks++;
		clock_gettime(CLOCK_MONOTONIC, &to);
	} while (forks < 20 && to.tv_sec - from.tv_sec < 30);
	stop = 1;
	pthread_join(thread, NULL);
	say("forks", forks);
	say("wrong", wrong);
	munmap(memory, 2 * PAGE);
}

static void without_descriptors(void)
{
	unsigned char *memory = map(NULL, 2, RW, MAP_PRIVATE);
	struct rlimit limit = { 64, 64 };

	subject = "without descriptors";
	memory[0] = 6;
	memory[PAGE] = 2;
	setrlimit(RLIMIT_NOFILE, &limit);
	while (dup(1) >= 0)
		;
	fork_says("a child has", memory, memory + PAGE);
	say_errno("MADV_DONTNEED", madvise(memory, PAGE, MADV_DONTNEED));
	say("is zero", is_zero(memory, PAGE));
	say_errno("munmap", munmap(memory + PAGE, PAGE));
	fork_says("a child has", memory, memory);
	for (int fd = 3; fd < 64; fd++)
		close(fd);
	munmap(memory, PAGE);
}

/* Free pages that nobody is promised. */
static long unpromised(void)
{
	long total = 0, value;
	char line[200];
	FILE *file = fopen("/proc/meminfo", "r");

	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "HugePages_Free: %ld", &value) == 1)
			total += value;
		if (sscanf(line, "HugePages_Rsvd: %ld", &value) == 1)
			total -= value;
	}
	fclose(file);
	return total;
}

static void promise(void)
{
	unsigned char *memory = map(NULL, 8, RW, MAP_PRIVATE);

	subject = "promise";
	fill(memory, 8 * PAGE, 1);
	long before = unpromised();
	madvise(memory, 8 * PAGE, MADV_DONTNEED);
	long after = unpromised();
	say("pages that others could take now", after > before ? after - before : 0);
	say("zero", is_zero(memory, 8 * PAGE));
	munmap(memory, 8 * PAGE);
}

/* As QEMU does: one to see whether it can be had, and then the one that counts. */
static void probe(void)
{
	subject = "probe";
	int fd = memfd_create("test", MFD_HUGETLB | MFD_CLOEXEC);
	close(fd);
	int second = memfd_create("ram", MFD_HUGETLB | MFD_CLOEXEC | MFD_ALLOW_SEALING);
	say("the same number", fd == second);
	say_errno("ftruncate", ftruncate(second, 2 * PAGE));
	say_errno("seal", fcntl(second, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL));
	unsigned char *memory = mmap(NULL, 2 * PAGE, RW, MAP_SHARED, second, 0);
	say("zero", is_zero(memory, 2 * PAGE));
	munmap(memory, 2 * PAGE);
	close(second);

	/* What a file of a mounted hugetlbfs takes no seals for. */
	fd = memfd_create("sealed", MFD_HUGETLB | MFD_CLOEXEC | MFD_ALLOW_SEALING);
	say_errno("ftruncate", ftruncate(fd, PAGE));
	say_errno("F_SEAL_GROW", fcntl(fd, F_ADD_SEALS, F_SEAL_GROW));
	say_errno("F_SEAL_WRITE", fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
	say("seals", fcntl(fd, F_GET_SEALS));
	say_errno("a writable mapping", (long)mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0));
	say_errno("a hole", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE));
	close(fd);

	fd = memfd_create("code", MFD_HUGETLB | MFD_CLOEXEC);
	say_errno("ftruncate", ftruncate(fd, PAGE));
	memory = mmap(NULL, PAGE, RW | PROT_EXEC, MAP_SHARED, fd, 0);
	say("an executable mapping", memory != MAP_FAILED);
	munmap(memory, PAGE);
	close(fd);
}

/* A function that returns 42. */
static void put_code(unsigned char *memory)
{
#ifdef __x86_64__
	static const unsigned char code[] = { 0xb8, 42, 0, 0, 0, 0xc3 };
#else
	static const unsigned code[] = { 0x52800540, 0xd65f03c0 };
#endif
	memcpy(memory, code, sizeof(code));
	__builtin___clear_cache((char *)memory, (char *)memory + sizeof(code));
}

static long run_code(unsigned char *memory)
{
	pid_t pid = child();

	if (!pid)
		_exit(((int (*)(void))(void *)memory)());
	return child_end(pid);
}

/* What is compiled at run time, as a JVM's code cache and V8's are. */
static void code(void)
{
	static const int kinds[] = { MAP_PRIVATE, MAP_SHARED };

	subject = "code";
	for (int i = 0; i < 2; i++) {
		unsigned char *memory = map(NULL, 2, RW, kinds[i]);

		put_code(memory);
		say("not yet", run_code(memory));
		say_errno("mprotect", mprotect(memory, PAGE, PROT_READ | PROT_EXEC));
		say("runs", run_code(memory));
		munmap(memory, 2 * PAGE);
		memory = map(NULL, 1, RW | PROT_EXEC, kinds[i]);
		put_code(memory);
		say("from the beginning", run_code(memory));
		munmap(memory, PAGE);
	}
	int fd = memfd_create("code", MFD_HUGETLB | MFD_CLOEXEC);
	say_errno("ftruncate", ftruncate(fd, PAGE));
	unsigned char *memory = mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0);
	unsigned char *again = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
	put_code(memory);
	say("by a second mapping", again == MAP_FAILED ? -errno : run_code(again));
	close(fd);
}

/* Sealed against writing after it was used: mapped, under several numbers, with content. */
static void sealed(void)
{
	char path[64];

	subject = "sealed";
	int fd = memfd_create("sealed", MFD_HUGETLB | MFD_CLOEXEC | MFD_ALLOW_SEALING);
	say_errno("ftruncate", ftruncate(fd, 3 * PAGE));
	int copy = dup(fd);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int reading = open(path, O_RDONLY);
	unsigned char *memory = mmap(NULL, 3 * PAGE, RW, MAP_SHARED, fd, 0);
	unsigned char *private = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 2 * PAGE);
	memory[0] = 1;
	memory[3 * PAGE - 1] = 3;
	say_errno("F_SEAL_SHRINK", fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	say_errno("F_SEAL_WRITE, mapped", fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
	say_errno("a seal that there is none of", fcntl(fd, F_ADD_SEALS, 0x4000));
	say_errno("F_SEAL_GROW by who may only read", fcntl(reading, F_ADD_SEALS, F_SEAL_GROW));
	say_errno("F_SEAL_FUTURE_WRITE", fcntl(copy, F_ADD_SEALS, F_SEAL_FUTURE_WRITE));
	say("seals", fcntl(fd, F_GET_SEALS));
	say("by another number", fcntl(reading, F_GET_SEALS));
	say("content", memory[0] + memory[3 * PAGE - 1] + is_zero(memory + PAGE, PAGE));
	say("its private mapping", private[PAGE - 1]);
	memory[PAGE] = 2;
	unsigned char *again = mmap(NULL, 3 * PAGE, PROT_READ, MAP_SHARED, reading, 0);
	say("still written where it was mapped", again == MAP_FAILED ? -1 : again[PAGE]);
	say_errno("mapped anew to be written", (long)mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0));
	munmap(again, 3 * PAGE);
	munmap(memory, 3 * PAGE);
	say_errno("F_SEAL_WRITE", fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
	say_errno("a hole", fallocate(copy, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE));
	memory = mmap(NULL, 3 * PAGE, PROT_READ, MAP_SHARED, reading, 0);
	say("content", memory == MAP_FAILED ? -1 : memory[0] + memory[PAGE] + memory[3 * PAGE - 1]);
	close(fd);
	close(copy);
	close(reading);
}

/* Calls that are looked up in the C library's own handle, as Python's ctypes does it. */
static void handle(void)
{
	void *libc = dlopen("libc.so.6", RTLD_LAZY), *self = dlopen(NULL, RTLD_LAZY);
	void *(*its_mmap)(void *, size_t, int, int, int, off_t) = dlsym(libc, "mmap");
	int (*its_munmap)(void *, size_t) = dlsym(libc, "munmap");
	int (*its_memfd_create)(const char *, unsigned) = dlsym(libc, "memfd_create");
	int (*its_ftruncate)(int, off_t) = dlsym(libc, "ftruncate");
	unsigned char *memory = its_mmap(NULL, 2 * PAGE, RW, MAP_PRIVATE | HUGE, -1, 0);

	subject = "handle";
	say("zero", is_zero(memory, 2 * PAGE));
	say_errno("munmap of a part", its_munmap(memory, PAGE));
	its_munmap(memory + PAGE, PAGE);
	int fd = its_memfd_create("test", MFD_HUGETLB);
	say_errno("ftruncate", its_ftruncate(fd, PAGE));
	close(fd);
	say("by the program's handle", dlsym(self, "mmap") != NULL);
	say("nobody's", dlsym(libc, "no_such_call") == NULL && dlerror() != NULL);
	say("the first and the next differ, or not",
	    !!dlsym(RTLD_DEFAULT, "mmap") + !!dlsym(RTLD_NEXT, "mmap"));
	say("an error is told once", dlerror() == NULL);
}

/* By number: what ZGC does with its heap, and that everything else passes as it came. */
static void by_number(void)
{
	unsigned char *views[3];

	subject = "by number";
	int fd = (int)syscall(SYS_memfd_create, "java_heap", MFD_HUGETLB | MFD_CLOEXEC);
	say_errno("ftruncate", ftruncate(fd, 2 * PAGE));
	for (int i = 0; i < 3; i++)
		views[i] = mmap(NULL, 2 * PAGE, RW, MAP_SHARED, fd, 0);
	say("zero", is_zero(views[0], 2 * PAGE));
	fill(views[1], 2 * PAGE, 3);
	say("the same in each view", views[0][0] + views[2][2 * PAGE - 1]);
	say_errno("a hole", syscall(SYS_fallocate, fd,
	    FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)0, (off_t)PAGE));
	say("zero after it", is_zero(views[2], PAGE));
	say("behind it", views[2][PAGE]);
	for (int i = 0; i < 3; i++)
		munmap(views[i], 2 * PAGE);
	close(fd);

	say_errno("unknown flags", syscall(SYS_memfd_create, "test", 0x40000000));
	say_errno("no name", syscall(SYS_memfd_create, NULL, MFD_HUGETLB));
	/* Six arguments, the last of them on the stack. */
	fd = memfd_create("small", 0);
	if (ftruncate(fd, 8192) || pwrite(fd, "x", 1, 4096) != 1)
		die("a file");
	char *second = (char *)syscall(SYS_mmap, NULL, (size_t)4096, PROT_READ, MAP_SHARED, fd, (off_t)4096);
	say("the sixth argument", *second);
	munmap(second, 4096);
	close(fd);
	say_errno("an error", syscall(SYS_close, -1));
	say_errno("no such number", syscall(100000));
	say("a value", syscall(SYS_getpid) == getpid());
}

/* Detached by munmap and removed: nothing of it is left while the program goes on. */
static void gone(void)
{
	char byte;

	subject = "gone";
	for (int removed_first = 0; removed_first < 2; removed_first++) {
		int id = shmget(IPC_PRIVATE, 2 * PAGE, SHM_HUGETLB | IPC_CREAT | 0600);
		unsigned char *memory = shmat(id, NULL, 0);

		if (memory == (void *)-1)
			die("shmat");
		memory[0] = 1;
		if (removed_first)
			say_errno("IPC_RMID", shmctl(id, IPC_RMID, NULL));
		pid_t pid = child();
		if (!pid)
			_exit(shmdt(memory));
		say("a child detaches", child_end(pid));
		say_errno("munmap", munmap(memory, 2 * PAGE));
		if (!removed_first)
			say_errno("IPC_RMID", shmctl(id, IPC_RMID, NULL));
		say_errno("shmat", (long)shmat(id, NULL, 0));
		say("waits", 1);
		if (read(STDIN_FILENO, &byte, 1) < 0)
			die("read");
	}
}

/* Private memory of a process that makes no children. */
static void alone(void)
{
	unsigned char *memory = map(NULL, 3, RW, MAP_PRIVATE);

	subject = "alone";
	fill(memory, 3 * PAGE, 6);
	say_errno("MADV_DONTNEED", madvise(memory + PAGE, PAGE, MADV_DONTNEED));
	say("zeros, there alone", is_zero(memory + PAGE, PAGE) + memory[PAGE - 1] + memory[2 * PAGE]);
	mprotect(memory, PAGE, PROT_READ);
	say_errno("MADV_DONTNEED of what is read only", madvise(memory, 2 * PAGE, MADV_DONTNEED));
	say("zeros", is_zero(memory, 2 * PAGE));
	say_errno("MADV_REMOVE", madvise(memory + 2 * PAGE, PAGE, MADV_REMOVE));
	say_errno("MADV_DONTFORK", madvise(memory + 2 * PAGE, PAGE, MADV_DONTFORK));
	say_errno("MADV_DOFORK", madvise(memory + 2 * PAGE, PAGE, MADV_DOFORK));
	munmap(memory + PAGE, PAGE);
	memory[2 * PAGE] = 9;
	say_errno("over a hole", madvise(memory, 3 * PAGE, MADV_DONTNEED));
	say("both sides are zero", memory[0] + memory[2 * PAGE]);
	munmap(memory, 3 * PAGE);
	shrinks_alone();

	/* Other memory in the place of lent memory keeps its content. */
	memory = map(NULL, 2, RW, MAP_PRIVATE);
	int fd = memfd_create("other", MFD_HUGETLB | MFD_CLOEXEC), second = dup(fd);
	if (ftruncate(fd, 2 * PAGE))
		die("ftruncate");
	unsigned char *other = mmap(memory, 2 * PAGE, RW, MAP_SHARED | MAP_FIXED, fd, 0);
	other[0] = 7;
	say_errno("MADV_DONTNEED of another's file", madvise(other, PAGE, MADV_DONTNEED));
	say("leaves its content", other[0]);
	munmap(other, 2 * PAGE);
	close(fd);
	close(second);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } parts[] = {
		{ "alone", alone },
		{ "probe", probe }, { "promise", promise }, { "code", code }, { "handle", handle },
		{ "gone", gone }, { "sealed", sealed }, { "by_number", by_number },
	};

	/* What was said before a crash is what one wants to know. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; argc > 1 && i < sizeof(parts) / sizeof(parts[0]); i++) {
		if (!strcmp(argv[1], parts[i].name)) {
			parts[i].run();
			return 0;
		}
	}
	part_advice();
	refused();
	shrinks();
	stale();
	beside_an_allocator();
	without_descriptors();
	return 0;
}
