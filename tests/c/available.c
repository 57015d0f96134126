/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * For each byte of standard input: by how many KiB the MemAvailable that read(2) shows is larger than the
 * kernel's, by one descriptor that stays open. pread(2) shows the kernel's.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long available(char *text, ssize_t bytes)
{
	if (bytes <= 0)
		exit(2);
	text[bytes] = 0;
	return atol(strstr(text, "MemAvailable:") + 13);
}

int main(void)
{
	static char shown[1 << 16], kernel[1 << 16];
	int fd = open("/proc/meminfo", O_RDONLY);
	char byte;

	while (read(0, &byte, 1) == 1) {
		lseek(fd, 0, SEEK_SET);
		ssize_t bytes = read(fd, shown, sizeof(shown) - 1);
		long with = available(shown, bytes);
		long without = available(kernel, pread(fd, kernel, sizeof(kernel) - 1, 0));
		/* Every other line is the kernel's: the text has one length, but for what the kernel changes. */
		printf("%ld\n", with - without);
		fflush(stdout);
	}
	return 0;
}
