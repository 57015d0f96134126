// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * module_refusal MODULE - prezero.ko refuses a kernel that is not as it was built for
 *
 * Each case loads a copy of MODULE in which one name differs, as if the kernel had
 * another symbol, another function or another layout. The load has to fail with one
 * line in the kernel's log, and to leave no hook and no file behind. Run as root; the
 * module is loaded when this ends.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "tap.h"

#define TRACING		"/sys/kernel/tracing/"
#define HOOKS		TRACING "enabled_functions"
#define FTRACE		"/proc/sys/kernel/ftrace_enabled"
#define FILES		"/sys/devices/system/node/node0/hugepages/hugepages-2048kB/zeroed_hugepages"

static char *image, *copy;
static size_t image_len;
static int kmsg;

static void read_image(const char *path)
{
	struct stat stat;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &stat))
		bail_out(path);
	image_len = stat.st_size;
	image = malloc(image_len);
	copy = malloc(image_len);
	if (!image || !copy || read(fd, image, image_len) != (ssize_t)image_len)
		bail_out(path);
	close(fd);
	memcpy(copy, image, image_len);
}

/* 0 or the errno of the load. */
static int load(const char *bytes)
{
	return syscall(SYS_init_module, bytes, image_len, "") ? errno : 0;
}

static bool unload(void)
{
	return !syscall(SYS_delete_module, "prezero", O_NONBLOCK);
}

/* Replace the last character of each string @name of the copy. Returns how many. */
static int tamper(const char *name)
{
	size_t len = strlen(name) + 1;
	char *at = copy, *end = copy + image_len;
	int n = 0;

	memcpy(copy, image, image_len);
	while ((at = memmem(at, end - at, name, len))) {
		/* A longer string that ends so is another. */
		if (at == copy || !at[-1]) {
			at[len - 2] = '#';
			n++;
		}
		at += len;
	}
	return n;
}

/* What the module has said since the last call: how many lines, and the last one. */
static int said(char line[256])
{
	char record[1024], *text;
	int lines = 0;
	ssize_t n;

	line[0] = 0;
	while ((n = read(kmsg, record, sizeof(record) - 1)) > 0 ||
	       (n < 0 && errno == EPIPE)) {
		if (n < 0)
			continue;
		record[n] = 0;
		text = strchr(record, ';');
		if (!text || strncmp(text + 1, "prezero: ", 9))
			continue;
		text += 1 + 9;
		text[strcspn(text, "\n")] = 0;
		/* What the kernel says of each module from outside of its tree. */
		if (strstr(text, "taint"))
			continue;
		snprintf(line, 256, "%s", text);
		lines++;
	}
	return lines;
}

/* Functions that ftrace has hooked. */
static int hooks(void)
{
	char text[4096];
	int fd = open(HOOKS, O_RDONLY), lines = 0;
	ssize_t n;

	if (fd < 0)
		bail_out(HOOKS);
	while ((n = read(fd, text, sizeof(text))) > 0)
		for (ssize_t i = 0; i < n; i++)
			lines += text[i] == '\n';
	close(fd);
	return lines;
}

static void refused(int err, int expected, int hooks_before, const char *words,
		    const char *what)
{
	char line[256];
	int lines = said(line), left = hooks() - hooks_before;
	bool ok = err == expected && lines == 1 && strstr(line, words) && !left &&
		  access(FILES, F_OK) && access("/dev/hugepagectl", F_OK);

	if (!ok)
		printf("# %s, %d lines, %d hooks: %s\n", strerror(err), lines, left, line);
	result(ok, "%s: refused with one line and no hook", what);
	if (!err)
		unload();
}

static const struct {
	const char *name, *name_6_1;
	int err;
	const char *words, *what;
} cases[] = {
	{ "hugetlb_lock", NULL, ENOENT, "this kernel has no hugetlb_loc#",
	  "without a variable" },
	{ "node_devices", NULL, ENOENT, "this kernel has no node_device#",
	  "without the last variable" },
	{ "dequeue_hugetlb_folio_nodemask", "dequeue_huge_page_nodemask", ENOENT,
	  "this kernel has no dequeue_hugetlb_folio_nodemask()",
	  "without the function that is replaced" },
	{ "hugepages-%lukB", NULL, ENOEXEC, "struct hstate is not as",
	  "with another layout of struct hstate" },
	{ "free_huge_folio", "free_huge_page", EINVAL, "cannot hook free_huge_",
	  "without the first function to hook" },
	{ "remove_hugetlb_folio", "__remove_hugetlb_page", EINVAL,
	  "cannot hook remove_hugetlb_foli#()", "with two functions hooked" },
	{ "folio_zero_user", "clear_huge_page", EINVAL, "cannot hook ",
	  "with five functions hooked" },
};

/* Both names of a function: the module looks for one, then for the other. */
static bool tamper_with(const char *name, const char *name_6_1)
{
	char *both;
	int n = tamper(name);

	if (!name_6_1)
		return n;
	both = malloc(image_len);
	if (!both)
		bail_out("malloc");
	memcpy(both, copy, image_len);
	n += tamper(name_6_1);
	for (size_t i = 0; i < image_len; i++)
		if (both[i] != image[i])
			copy[i] = both[i];
	free(both);
	return n;
}

static bool put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	bool ok = fd >= 0 && write(fd, text, strlen(text)) > 0;

	if (fd >= 0)
		close(fd);
	return ok;
}

/* Since 7.3 it disables no hook any more. */
static void test_ftrace_disabled(int before)
{
	char line[256];
	int err;

	put(FTRACE, "0");
	said(line);
	err = load(image);
	put(FTRACE, "1");
	if (err) {
		refused(err, EBUSY, before, "kernel.ftrace_enabled is 0",
			"with kernel.ftrace_enabled=0");
		return;
	}
	result(hooks() > before, "with kernel.ftrace_enabled=0: its hooks work");
	unload();
}

int main(int argc, char **argv)
{
	char line[256];
	int before;

	if (argc < 2) {
		fprintf(stderr, "usage: module_refusal MODULE\n");
		return 2;
	}
	read_image(argv[1]);
	unload();
	mount("tracefs", TRACING, "tracefs", 0, NULL);
	kmsg = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (kmsg < 0)
		bail_out("/dev/kmsg");
	lseek(kmsg, 0, SEEK_END);
	before = hooks();

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (!tamper_with(cases[i].name, cases[i].name_6_1)) {
			result(false, "%s: the module has no such string", cases[i].what);
			continue;
		}
		said(line);
		refused(load(copy), cases[i].err, before, cases[i].words, cases[i].what);
	}
	test_ftrace_disabled(before);
	said(line);
	result(!load(image) && hooks() > before && !access(FILES, F_OK) &&
	       said(line) == 1, "as it was built it is loaded (%s)", line);
	return done();
}
