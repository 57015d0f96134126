/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * With -DLIBRARY a library to preload, which sees calls about memory as UCX, libhugetlbfs and profilers
 * do. Without, a program that makes such calls and says which of them it saw.
 *
 *	behind
 *
 * BEHIND=handle in the environment: the library finds the C library's functions by its handle.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>

#define SEEN(call)							\
	call(mmap) call(munmap) call(mremap) call(madvise)		\
	call(shmget) call(shmat) call(shmdt) call(shmctl)

#ifdef LIBRARY

/* How often each was seen, by name; -1 of one that there is not. */
#define COUNT(name) static int seen_##name;
SEEN(COUNT)

int behind_saw(const char *name)
{
#define NAMED(call) if (!strcmp(name, #call)) return seen_##call;
	SEEN(NAMED)
	return -1;
}

static void *real(const char *name)
{
	const char *how = getenv("BEHIND");

	if (how && !strcmp(how, "handle"))
		return dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), name);
	return dlsym(RTLD_NEXT, name);
}

#define PASS(name)							\
	static __typeof__(&name) next;					\
	seen_##name++;							\
	if (!next)							\
		next = (__typeof__(&name))real(#name)

void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	PASS(mmap);
	return next(at, bytes, prot, flags, fd, offset);
}

int munmap(void *at, size_t bytes)
{
	PASS(munmap);
	return next(at, bytes);
}

void *mremap(void *at, size_t bytes, size_t then, int flags, ...)
{
	PASS(mremap);
	va_list list;

	va_start(list, flags);
	void *to = va_arg(list, void *);
	va_end(list);
	return next(at, bytes, then, flags, to);
}

int madvise(void *at, size_t bytes, int advice)
{
	PASS(madvise);
	return next(at, bytes, advice);
}

int shmget(key_t key, size_t bytes, int flags)
{
	PASS(shmget);
	return next(key, bytes, flags);
}

void *shmat(int id, const void *at, int flags)
{
	PASS(shmat);
	return next(id, at, flags);
}

int shmdt(const void *at)
{
	PASS(shmdt);
	return next(at);
}

int shmctl(int id, int command, struct shmid_ds *out)
{
	PASS(shmctl);
	return next(id, command, out);
}

#else

#define RW	(PROT_READ | PROT_WRITE)
#define ANY	(MAP_PRIVATE | MAP_ANONYMOUS)
#define SIZE	(2UL << 20)

static int (*saw)(const char *name);
static int before;

static void about_to(const char *name)
{
	before = saw(name);
	errno = 0;
}

/* Whether it is seen depends on the call alone, not on what else the library had to do for it. */
static void done(const char *what, const char *name, int is_well)
{
	int error = errno;

	printf("%s: %s, %s (%d)\n", what, saw(name) > before ? "seen" : "unseen",
	       is_well ? "well" : "refused", is_well ? 0 : error);
	fflush(stdout);
}

int main(void)
{
	struct shmid_ds info;

	saw = (int (*)(const char *))dlsym(RTLD_DEFAULT, "behind_saw");
	if (!saw)
		return 2;
	about_to("mmap");
	char *at = mmap(NULL, SIZE, RW, ANY, -1, 0);
	done("a mapping", "mmap", at != MAP_FAILED);
	memset(at, 1, SIZE);
	about_to("madvise");
	done("advice", "madvise", !madvise(at, SIZE, MADV_DONTNEED) && !at[0]);
	about_to("madvise");
	done("refused advice", "madvise", !madvise(at + 1, SIZE, MADV_DONTNEED));
	about_to("mremap");
	at = mremap(at, SIZE, 2 * SIZE, MREMAP_MAYMOVE);
	done("a move", "mremap", at != MAP_FAILED);
	about_to("munmap");
	done("an end", "munmap", !munmap(at, 2 * SIZE));
	about_to("munmap");
	done("a refused end", "munmap", !munmap(at + 1, SIZE));
	about_to("mmap");
	done("a refused mapping", "mmap", mmap(NULL, 0, RW, ANY, -1, 0) != MAP_FAILED);

	about_to("shmget");
	int id = shmget(IPC_PRIVATE, 4096, 0600);
	done("a segment", "shmget", id >= 0);
	about_to("shmat");
	at = shmat(id, NULL, 0);
	done("attached", "shmat", at != (char *)-1);
	about_to("shmctl");
	done("asked", "shmctl", !shmctl(id, IPC_STAT, &info) && info.shm_segsz == 4096);
	shmctl(id, IPC_RMID, NULL);
	about_to("shmdt");
	done("detached", "shmdt", !shmdt(at));

	/* Huge pages, of which the mapping itself is whose it is, and what becomes of it is told. */
	at = mmap(NULL, 4 * SIZE, RW, ANY | MAP_HUGETLB, -1, 0);
	if (at == MAP_FAILED)
		return 3;
	memset(at, 1, 4 * SIZE);
	about_to("madvise");
	done("advice on huge pages", "madvise",
	     !madvise(at, SIZE, MADV_DONTNEED) && !at[0] && at[SIZE]);
	about_to("munmap");
	done("the end of a part", "munmap", !munmap(at, SIZE));
	about_to("munmap");
	done("the end of the rest", "munmap", !munmap(at + SIZE, 3 * SIZE));
	return 0;
}

#endif
