/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A program of several threads by seed. In each round all threads start at a barrier, and each makes
 * calls about memory of its own: maps, forks, seals, passes, moves, advises, unmaps, starts programs,
 * takes signals. So each call meets calls of the others at its side, forks above all. What a thread
 * finds depends on the seed alone; it is printed in the end, a thread after the other.
 *
 *	shim_threads SEED
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define PAGE	(2UL << 20)
#include "found.h"

#define MAX_THREADS	4
#define MAX_OBJECTS	3
#define ROUNDS		6

extern char **environ;

struct object {
	unsigned char *memory;
	size_t pages;
	int fd;
	bool shared;
};

struct worker {
	pthread_t thread;
	unsigned long state;
	struct object objects[MAX_OBJECTS];
	char text[16384];
	size_t length;
	int number;
};

static pthread_barrier_t barrier;
static __thread volatile sig_atomic_t signals;

static unsigned long draw(struct worker *worker, unsigned long below)
{
	worker->state = worker->state * 6364136223846793005UL + 1442695040888963407UL;
	return (worker->state >> 33) % below;
}

__attribute__((format(printf, 2, 3)))
static void note(struct worker *worker, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	int n = vsnprintf(worker->text + worker->length, sizeof(worker->text) - worker->length,
			  format, list);
	va_end(list);
	worker->length += (size_t)n < sizeof(worker->text) - worker->length ? (size_t)n : 0;
}

/* A few bytes of each page. */
static unsigned long sum(const struct object *object)
{
	unsigned long hash = 7;

	for (size_t at = 0; at < object->pages * PAGE; at += PAGE / 4)
		hash = hash * 31 + object->memory[at];
	return hash;
}

static void put(struct worker *worker, struct object *object)
{
	for (size_t at = 0; at < object->pages * PAGE; at += PAGE / 4)
		object->memory[at] = (unsigned char)draw(worker, 256);
}

static void drop(struct worker *worker, struct object *object)
{
	if (object->memory)
		note(worker, "munmap %d\n", munmap(object->memory, object->pages * PAGE));
	if (object->fd >= 0)
		close(object->fd);
	*object = (struct object){ .fd = -1 };
}

static void take(struct worker *worker, struct object *object)
{
	static const unsigned flags[] = { 0, MFD_CLOEXEC, MFD_ALLOW_SEALING };
	unsigned long kind = draw(worker, 4);

	drop(worker, object);
	object->pages = 1 + draw(worker, 2);
	object->shared = kind != 1;
	if (kind < 2) {
		object->memory = mmap(NULL, object->pages * PAGE, RW,
				      (kind ? MAP_PRIVATE : MAP_SHARED) | HUGE, -1, 0);
	} else {
		unsigned flag = flags[draw(worker, 3)];
		int again = -1;

		object->fd = memfd_create("thread", MFD_HUGETLB | flag);
		if (draw(worker, 5) == 0)
			again = dup(object->fd);
		note(worker, "ftruncate %d\n", ftruncate(object->fd, (off_t)(object->pages * PAGE)));
		if (flag == MFD_ALLOW_SEALING) {
			int seals = F_SEAL_GROW | F_SEAL_SHRINK;

			seals |= draw(worker, 3) ? F_SEAL_SEAL : 0;
			note(worker, "seal %d\n", fcntl(object->fd, F_ADD_SEALS, seals));
		}
		object->memory = mmap(NULL, object->pages * PAGE, RW, MAP_SHARED, object->fd, 0);
		struct stat status;
		if (again >= 0) {
			fstat(again, &status);
			note(worker, "a second number %ld\n", (long)status.st_size);
			close(again);
		}
		note(worker, "seals %d", fcntl(object->fd, F_GET_SEALS));
		note(worker, " grows %d\n", ftruncate(object->fd, (off_t)((object->pages + 1) * PAGE)));
	}
	if (object->memory == MAP_FAILED) {
		note(worker, "mmap: %s\n", strerrorname_np(errno));
		object->memory = NULL;
		return;
	}
	note(worker, "mmap zero %d\n", is_zero(object->memory, object->pages * PAGE));
}

static void fork_one(struct worker *worker, struct object *object)
{
	unsigned long before = sum(object);
	pid_t pid = fork();

	if (!pid) {
		bool same = sum(object) == before;

		object->memory[1] = 99;
		_exit(same ? 40 : 41);
	}
	long end = pid < 0 ? -errno : child_end(pid);
	note(worker, "fork %ld then %d\n", end, object->memory[1]);
	object->memory[1] = 0;
}

/* Advice about forks: a child has the first page, or dies of it. */
static void advise_forks(struct worker *worker, struct object *object)
{
	int advice = draw(worker, 2) ? MADV_DONTFORK : MADV_DOFORK;

	note(worker, "advice %d\n", madvise(object->memory, PAGE, advice));
	note(worker, "a child touches %ld\n", touch(object->memory, false));
	madvise(object->memory, PAGE, MADV_DOFORK);
}

static void advise(struct worker *worker, struct object *object)
{
	static const int all[] = { MADV_DONTNEED, MADV_REMOVE, MADV_DONTDUMP, MADV_FREE, MADV_WILLNEED };
	int advice = all[draw(worker, 5)];

	int done = madvise(object->memory, PAGE, advice);
	const char *how = done ? strerrorname_np(errno) : "done";
	note(worker, "madvise %d %s", advice, how);
	note(worker, " %lx\n", sum(object));
}

static void move(struct worker *worker, struct object *object)
{
	unsigned char *room = mmap(NULL, (object->pages + 1) * PAGE, PROT_NONE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	unsigned char *to = (unsigned char *)(((unsigned long)room + PAGE - 1) & ~(PAGE - 1));
	size_t bytes = object->pages * PAGE;
	unsigned char *at = mremap(object->memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to);

	note(worker, "mremap %d\n", at == to);
	if (at == to)
		object->memory = to;
}

static void rights(struct worker *worker, struct object *object)
{
	int prot = draw(worker, 2) ? PROT_READ : PROT_NONE;

	note(worker, "mprotect %d", mprotect(object->memory, PAGE, prot));
	note(worker, " writes %ld", touch(object->memory, true));
	note(worker, " back %d\n", mprotect(object->memory, PAGE, RW));
}

static void start(struct worker *worker)
{
	char *words[] = { "true", NULL };
	pid_t pid;

	note(worker, "spawn %ld\n", posix_spawn(&pid, "/bin/true", NULL, NULL, words, environ)
	     ? -1 : child_end(pid));
}

/* Passed to a child that has closed its own, which maps and writes it. */
static void pass(struct worker *worker, struct object *object)
{
	char byte = 0, space[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1,
				  .msg_control = space, .msg_controllen = sizeof(space) };
	int pair[2];

	if (object->fd < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		return;
	pid_t pid = fork();
	if (!pid) {
		int fd;

		close(object->fd);
		if (recvmsg(pair[1], &message, 0) != 1)
			_exit(50);
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
		unsigned char *theirs = mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0);
		if (theirs == MAP_FAILED)
			_exit(51);
		theirs[2] = 77;
		_exit(52);
	}
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &object->fd, sizeof(int));
	sendmsg(pair[0], &message, MSG_NOSIGNAL);
	note(worker, "pass %ld", pid < 0 ? -errno : child_end(pid));
	note(worker, " %d\n", object->memory[2]);
	object->memory[2] = 0;
	close(pair[0]);
	close(pair[1]);
}

static void on_signal(int number)
{
	unsigned char *memory = mmap(NULL, PAGE, RW, MAP_SHARED | HUGE, -1, 0);

	(void)number;
	if (memory != MAP_FAILED) {
		signals += 1 + memory[0];
		munmap(memory, PAGE);
	}
}

static void interrupt(struct worker *worker)
{
	pthread_kill(pthread_self(), SIGUSR1);
	note(worker, "signals %d\n", (int)signals);
}

static void by_number(struct worker *worker, struct object *object)
{
	size_t bytes = object->pages * PAGE;

	note(worker, "bare munmap %ld\n", syscall(SYS_munmap, object->memory, bytes));
	object->memory = NULL;
	drop(worker, object);
}

static void *work(void *given)
{
	struct worker *worker = given;
	char room[65536];
	stack_t stack = { .ss_sp = room, .ss_size = sizeof(room) };

	sigaltstack(&stack, NULL);
	for (int i = 0; i < MAX_OBJECTS; i++)
		worker->objects[i].fd = -1;
	for (int round = 0; round < ROUNDS; round++) {
		pthread_barrier_wait(&barrier);
		for (int step = 0; step < 3; step++) {
			struct object *object = &worker->objects[draw(worker, MAX_OBJECTS)];
			unsigned long what = draw(worker, 14);

			if (!object->memory || what == 0) {
				take(worker, object);
				continue;
			}
			switch (what) {
			case 1: case 2: case 3: fork_one(worker, object); break;
			case 4: advise(worker, object); break;
			case 5: advise_forks(worker, object); break;
			case 6: move(worker, object); break;
			case 7: rights(worker, object); break;
			case 8: start(worker); break;
			case 9: pass(worker, object); break;
			case 10: interrupt(worker); break;
			case 11: drop(worker, object); break;
			case 12: by_number(worker, object); break;
			default:
				put(worker, object);
				note(worker, "content %lx\n", sum(object));
			}
		}
	}
	for (int i = 0; i < MAX_OBJECTS; i++)
		drop(worker, &worker->objects[i]);
	stack.ss_flags = SS_DISABLE;
	sigaltstack(&stack, NULL);
	return NULL;
}

int main(int argc, char **argv)
{
	static struct worker workers[MAX_THREADS];
	unsigned long seed = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
	unsigned threads = 2 + seed % (MAX_THREADS - 1);
	struct sigaction action = { .sa_handler = on_signal };

	subject = "threads";
	/* Every other seed takes its signals on a stack of its own. */
	action.sa_flags = SA_RESTART | (seed % 2 ? SA_ONSTACK : 0);
	sigaction(SIGUSR1, &action, NULL);
	pthread_barrier_init(&barrier, NULL, threads);
	for (unsigned i = 0; i < threads; i++) {
		workers[i].number = (int)i;
		workers[i].state = seed * 1000003 + i;
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			die("pthread_create");
	}
	for (unsigned i = 0; i < threads; i++)
		pthread_join(workers[i].thread, NULL);
	for (unsigned i = 0; i < threads; i++)
		printf("thread %u\n%s", i, workers[i].text);
	return 0;
}
