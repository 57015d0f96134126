/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Asks UCX to be told of memory that is unmapped, and says of which it is. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucm/api/ucm.h>

#define PAGE	(2UL << 20)
#define ANY	(MAP_PRIVATE | MAP_ANONYMOUS)

static int told;

static void on_unmapped(ucm_event_type_t type, ucm_event_t *event, void *arg)
{
	(void)type, (void)event, (void)arg;
	told++;
}

static void say(const char *what)
{
	printf("%s: %s\n", what, told ? "told" : "not told");
	told = 0;
}

static char *map(int flags)
{
	char *at = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, ANY | flags, -1, 0);

	if (at != MAP_FAILED)
		memset(at, 1, 4 * PAGE);
	told = 0;
	return at;
}

int main(void)
{
	ucs_status_t status = ucm_set_event_handler(UCM_EVENT_VM_UNMAPPED, 0, on_unmapped, NULL);

	printf("hooked: %d\n", status);
	char *at = map(0);
	munmap(at, 4 * PAGE);
	say("small pages");
	at = map(0);
	at = mremap(at, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE);
	say("moved");
	munmap(at, 8 * PAGE);
	at = map(MAP_HUGETLB);
	if (at == MAP_FAILED)
		return 3;
	told = 0;
	madvise(at, PAGE, MADV_DONTNEED);
	say("huge pages, given up");
	munmap(at, PAGE);
	say("a part of them");
	munmap(at + PAGE, 3 * PAGE);
	say("the rest of them");
	return 0;
}
