// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * calls TREE SEED COUNT - any calls on the files of one node and page size
 *
 * Makes COUNT random calls on the files of TREE and on hugepagectl, and prints
 * each with what came of it. Nothing that is printed depends on time or on whose
 * files they are, so that the kernel's and a userspace provider's are the same
 * line by line, for every seed, over a pool of as many pages that nobody else
 * uses and none of which is zeroed. Run it as root.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include "hugepagectl.h"
#include "tap.h"

#define FILES 3
static const char *const names[FILES] = {
	"zeroable_hugepages", "zeroed_hugepages", "zeroed_low",
};

/* Node 0, 2 MiB. */
#define SHIFT 21
static char dir[PATH_MAX];
static char device[PATH_MAX];

/* Marsaglia's xorshift64: the same everywhere. */
static unsigned long long state;
static unsigned int below(unsigned int n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 33) % n;
}

#define PICK(array) ((array)[below(sizeof(array) / sizeof((array)[0]))])

static const char *file_path(unsigned int file)
{
	static char path[PATH_MAX + 64];

	snprintf(path, sizeof(path), "%s/%s", dir, names[file]);
	return path;
}

/* What a call returned: its value, or the error. */
static void tell(long value)
{
	if (value < 0)
		printf(" -> %s\n", strerrorname_np(errno));
	else
		printf(" -> %ld\n", value);
}

static const char *const texts[] = {
	"0", "1", "2", "1\n", "3\n", "max", "max\n", "max\n\n", "maxx", "MAX", "-1", "x", "", " ",
	"\n", " 1", "1 ", "1\n\n", "0x1", "01", "+1", "+", "1.5", "1e1", "1,", "1\t", "\t1",
	"18446744073709551615", "18446744073709551616", "9223372036854775808", "4294967296",
	"1 2", "2\n3\n", "00000000000000000000000000000001",
};

static void write_text(int fd)
{
	static const long offsets[] = { -1, -1, -1, -1, 0, 0, 1, 2, 4095, 4096, 1L << 40, LONG_MAX };
	static char large[8192];
	unsigned int kind = below(12);
	long offset = PICK(offsets);
	const char *text = PICK(texts);
	size_t len = strlen(text);

	/* The end of the text's own array, and what is longer than a page. */
	if (kind == 0) {
		len += 1;
	} else if (kind == 1) {
		memset(large, '0', sizeof(large));
		text = large;
		len = 4095 + below(3);
	}
	printf("write %zu of \"", len);
	for (const char *c = text; *c && c < text + 32; c++)
		printf(*c < ' ' ? "\\%d" : "%c", *c);
	printf("\" at %ld", offset);
	struct iovec parts[2] = {
		{ (void *)text, len / 2 }, { (void *)(text + len / 2), len - len / 2 },
	};
	long put;

	if (below(4) == 0) {
		printf(" in two");
		put = offset < 0 ? writev(fd, parts, 2) : pwritev(fd, parts, 2, offset);
	} else {
		put = offset < 0 ? write(fd, text, len) : pwrite(fd, text, len, offset);
	}
	/* A file of sysfs that was not opened to be written cannot be written at an offset, either. */
	if (put < 0 && errno == ESPIPE)
		errno = EBADF;
	tell(put);
}

static void read_text(int fd)
{
	static const long offsets[] = { -1, -1, -1, 0, 0, 1, 2, 3, 4096, 1L << 40 };
	char text[80] = "";
	long offset = PICK(offsets);
	size_t len = below(4) ? 64 : below(8);
	long got = offset < 0 ? read(fd, text, len) : pread(fd, text, len, offset);
	int error = errno;

	printf("read %zu at %ld \"", len, offset);
	for (long at = 0; at < got; at++)
		printf(text[at] < ' ' ? "\\%d" : "%c", text[at]);
	printf("\"");
	errno = error;
	tell(got);
}

/* Not to read and append: in FUSE the next read is then behind what was appended to 4096 bytes. */
static const int flags[] = {
	O_RDONLY, O_WRONLY, O_RDWR, O_RDWR, O_RDWR, O_WRONLY | O_TRUNC, O_WRONLY | O_APPEND,
	O_RDONLY | O_TRUNC, O_WRONLY | O_CREAT, O_WRONLY | O_CREAT | O_EXCL,
	O_RDONLY | O_DIRECTORY, O_RDONLY | O_NOFOLLOW, O_RDONLY | O_NONBLOCK, O_PATH, O_WRONLY | O_SYNC,
};

static int open_one(unsigned int file)
{
	int how = PICK(flags);
	int fd = open(file_path(file), how | O_CLOEXEC, 0600);
	int error = errno;

	printf("open %s %x", names[file], how);
	errno = error;
	tell(fd < 0 ? -1 : 0);
	return fd;
}

static void one_of_the_rest(int fd, unsigned int file)
{
	struct hugepagectl_query query = { .size = sizeof(query) };
	struct stat st;

	switch (below(9)) {
	case 0: {
		static const int whence[] = { SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, 77 };
		static const long offsets[] = { 0, 1, 2, 4095, 4097, -1 };
		int from = PICK(whence);
		long offset = PICK(offsets);

		/* What is behind the end, and where that is, is each file system's own affair. */
		if (from == SEEK_END || from == SEEK_DATA)
			from = SEEK_SET;
		printf("lseek %ld %d", offset, from);
		/* Behind what was appended that is each file system's own affair, too. */
		tell(lseek(fd, offset, from) < 0 ? -1 : 0);
		break;
	}
	case 1:
		printf("stat");
		if (fstat(fd, &st))
			tell(-1);
		else
			printf(" %o %lld %u %u\n", st.st_mode, (long long)st.st_size, st.st_uid, st.st_gid);
		break;
	case 2: {
		/* A private mapping of a file that cannot be mapped is FUSE's own affair. */
		void *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);

		printf("mmap");
		tell(map == MAP_FAILED ? -1 : 0);
		if (map != MAP_FAILED)
			munmap(map, 4096);
		break;
	}
	case 3:
		printf("unlink %s", names[file]);
		tell(unlink(file_path(file)));
		break;
	case 4: {
		char path[PATH_MAX + 64];

		snprintf(path, sizeof(path), "%s/other", dir);
		printf("mkdir, create, rename");
		if (mkdir(path, 0700))
			printf(" %s", strerrorname_np(errno));
		if (open(path, O_CREAT | O_WRONLY, 0600) < 0)
			printf(" %s", strerrorname_np(errno));
		if (rename(file_path(file), path))
			printf(" %s", strerrorname_np(errno));
		printf("\n");
		break;
	}
	case 5:
		printf("truncate");
		tell(ftruncate(fd, below(3)));
		break;
	case 6:
		printf("fallocate");
		tell(fallocate(fd, 0, 0, 4096));
		break;
	case 7:
		printf("flock");
		tell(flock(fd, LOCK_EX | LOCK_NB));
		break;
	default:
		printf("ioctl on %s", names[file]);
		tell(ioctl(fd, HUGEPAGECTL_QUERY, &query));
		break;
	}
}

/* A struct of any size, with anything behind what is known of it. */
static void one_ioctl(int fd)
{
	static const unsigned int sizes[] = { 0, 1, 24, 31, 32, 33, 40, 41, 48, 87, 88, 104, 112, 4096, 4097, 5000 };
	static const int nodes[] = { 0, 0, 0, 0, 0, 0, 7, -1, INT_MIN, 1 << 20 };
	static const unsigned int shifts[] = { SHIFT, SHIFT, SHIFT, SHIFT, SHIFT, SHIFT, 12, 0, 63, 64, 22, UINT_MAX };
	static const unsigned int bits[] = { 0, 0, 0, 0, 0, 1, 2, 1U << 31 };
	static const unsigned long long many[] = { 0, 0, 1, 2, 3, HUGEPAGECTL_ALL, 1ULL << 63 };
	static const size_t known[] = {
		sizeof(struct hugepagectl_query), sizeof(struct hugepagectl_zero), sizeof(struct hugepagectl_watch),
	};
	static char room[8192] __attribute__((aligned(8)));
	unsigned int nr = below(16) ? below(3) : below(256);
	unsigned int type = below(16) ? HUGEPAGECTL_IOC_TYPE : below(256);
	unsigned int turn = below(16) ? _IOC_READ | _IOC_WRITE : below(4);
	unsigned int size = below(4) && nr < 3 ? known[nr] : PICK(sizes);
	unsigned int told = below(4) ? size : PICK(sizes);
	unsigned int words[4] = { told, (unsigned int)PICK(nodes), PICK(shifts), PICK(bits) };
	unsigned long long first = PICK(many);
	unsigned int third = below(4) ? 0 : below(3) ? below(100) : HUGEPAGECTL_WATCH_INTERVAL_MAX + below(2);
	unsigned int fourth = below(8) ? 0 : 1;
	unsigned long long last = below(4) ? 0 : 5;
	bool dirty = below(8) == 0;
	/* Whether it is a call at all, or its size would do, is looked at before, but not by FUSE. */
	bool is_known = nr < 3 && type == HUGEPAGECTL_IOC_TYPE && turn == (_IOC_READ | _IOC_WRITE) && size == known[nr];
	void *arg = below(24) || !is_known ? room : NULL;
	long got;

	memset(room, 0, sizeof(room));
	memcpy(room, words, sizeof(words));
	memcpy(room + 16, &first, 8);
	memcpy(room + 24, &third, 4);
	memcpy(room + 28, &fourth, 4);
	memcpy(room + 32, &last, 8);
	if (dirty)
		room[(nr < 3 ? known[nr] : 0) + below(64)] = 1;
	got = ioctl(fd, _IOC(turn, type, nr, size & _IOC_SIZEMASK), arg);
	printf("ioctl %u.%u.%u %u told %u node %d shift %u flags %x %llu %u %u %llu%s%s", turn, type, nr, size,
	       told, (int)words[1], words[2], words[3], first, third, fourth, last, dirty ? " dirty" : "",
	       arg ? "" : " null");
	if (got == 0 && nr == 0 && size >= 64) {
		struct hugepagectl_query q;

		memcpy(&q, room, sizeof(q));
		printf(" size %u total %llu free %llu zeroed %llu zeroable %llu zeroing %llu", q.size, q.total,
		       q.free, q.zeroed, q.zeroable, q.zeroing);
	} else if (got == 0 && nr == 1) {
		struct hugepagectl_zero z;

		memcpy(&z, room, sizeof(z));
		printf(" size %u zeroed %llu", z.size, z.zeroed);
	} else if (got == 0 && nr == 2) {
		printf(" size %u", *(unsigned int *)room);
	}
	tell(got);
}

int main(int argc, char **argv)
{
	int files[FILES], ctl;
	long count;

	if (argc != 4) {
		fprintf(stderr, "usage: calls TREE SEED COUNT\n");
		return 2;
	}
	snprintf(dir, sizeof(dir), "%.3000s/node0/hugepages/hugepages-2048kB", argv[1]);
	state = (strtoull(argv[2], NULL, 10) + 1) * 0x9e3779b97f4a7c15ULL;
	count = strtol(argv[3], NULL, 10);
	snprintf(device, sizeof(device), "%.4000s/hugepagectl", argv[1]);
	ctl = open(device, O_RDWR | O_CLOEXEC);
	if (ctl < 0)
		ctl = open("/dev/hugepagectl", O_RDWR | O_CLOEXEC);
	if (ctl < 0)
		bail_out("hugepagectl");
	for (int file = 0; file < FILES; file++) {
		files[file] = open(file_path(file), (file == 1 ? O_RDONLY : O_RDWR) | O_CLOEXEC);
		if (files[file] < 0)
			bail_out(file_path(file));
	}
	for (long call = 0; call < count; call++) {
		unsigned int file = below(FILES), what = below(20);
		int fd;

		printf("%ld %s ", call, names[file]);
		if (what < 6) {
			write_text(files[file]);
		} else if (what < 12) {
			read_text(files[file]);
		} else if (what < 16) {
			one_ioctl(ctl);
		} else if (what < 18) {
			one_of_the_rest(files[file], file);
		} else {
			fd = open_one(file);
			if (fd >= 0) {
				close(files[file]);
				files[file] = fd;
			}
		}
		fflush(stdout);
	}
	return 0;
}
