// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Huge pages by calls that no loan can serve. Each case wants 8 pages of 2 MiB, looks whether they
 * are zero, and writes to them.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#define PAGE	(2UL << 20)
#define PIECES	4
#define PIECE	(2 * PAGE)

static int fail(const char *what)
{
	perror(what);
	return 1;
}

static int use(unsigned char *at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 64)
		if (at[i]) {
			fprintf(stderr, "%#x at %zu\n", at[i], i);
			return 1;
		}
	memset(at, 0xa5, bytes);
	return 0;
}

static int mapped(int flags, int fd, size_t bytes, off_t offset)
{
	unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, offset);

	return at == MAP_FAILED ? fail("mmap") : use(at, bytes);
}

/* One file without a name, made longer and mapped piece by piece: shards of a database. */
static int grows(const char *dir)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/shard.XXXXXX", dir);
	fd = mkstemp(path);
	if (fd < 0 || unlink(path))
		return fail(path);
	for (int i = 0; i < PIECES; i++) {
		if (ftruncate(fd, (i + 1) * PIECE))
			return fail("ftruncate");
		if (mapped(MAP_SHARED | MAP_POPULATE, fd, PIECE, i * PIECE))
			return 1;
	}
	return 0;
}

static int named(const char *dir, int allocates)
{
	char path[4096];
	int fd, done;

	snprintf(path, sizeof(path), "%s/map_0", dir);
	fd = open(path, O_RDWR | O_CREAT, 0600);
	if (fd < 0)
		return fail(path);
	done = allocates && fallocate(fd, 0, 0, PIECES * PIECE) ? fail("fallocate") :
		mapped(MAP_SHARED, fd, PIECES * PIECE, 0);
	unlink(path);
	return done;
}

/* Address space for memory that is plugged later, as QEMU's virtio-mem has it. */
static int sparse(void)
{
	int fd = memfd_create("sparse", MFD_HUGETLB | MFD_ALLOW_SEALING);
	unsigned char *at;

	if (fd < 0 || ftruncate(fd, PIECES * PIECE) || fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL))
		return fail("memfd_create");
	at = mmap(NULL, PIECES * PIECE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	return at == MAP_FAILED ? fail("mmap") : 0;
}

static int segment(void)
{
	int id = shmget(getpid(), PIECES * PIECE, IPC_CREAT | IPC_EXCL | SHM_HUGETLB | 0600);
	unsigned char *at;

	if (id < 0)
		return fail("shmget");
	at = shmat(id, NULL, 0);
	shmctl(id, IPC_RMID, NULL);
	return at == (void *)-1 ? fail("shmat") : use(at, PIECES * PIECE);
}

int main(int argc, char **argv)
{
	const char *name = argc == 3 ? argv[1] : "";
	int done = 2;

	if (!strcmp(name, "grows"))
		done = grows(argv[2]);
	else if (!strcmp(name, "named") || !strcmp(name, "allocates"))
		done = named(argv[2], !strcmp(name, "allocates"));
	else if (!strcmp(name, "private"))
		done = mapped(MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, PIECES * PIECE, 0);
	else if (!strcmp(name, "segment"))
		done = segment();
	else if (!strcmp(name, "sparse"))
		done = sparse();
	if (!done)
		puts("zeros");
	return done;
}
