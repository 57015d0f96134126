/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A cache that outlives its process, under `prezero lend SIZE --owner NAME --keep TIME -- cache`.
 *
 * Finds its memory by PREZERO_FD and PREZERO_BYTES. With PREZERO_KEPT=1 the content is what the last
 * process of this owner left; each entry is checked before it counts. Otherwise every byte is zero,
 * which is checked as well.
 */
#include <err.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MARK	0x70727a63u

struct entry {
	uint32_t mark, generation;
	uint64_t key, value;
};

static uint64_t value_of(uint64_t key)
{
	return key * 0x9e3779b97f4a7c15u;
}

static const char *setting(const char *name)
{
	const char *value = getenv(name);

	if (!value)
		errx(2, "%s is not set: run under prezero lend", name);
	return value;
}

int main(void)
{
	size_t bytes = strtoull(setting("PREZERO_BYTES"), NULL, 10), entries = bytes / 4096;
	int fd = atoi(setting("PREZERO_FD")), kept = !strcmp(setting("PREZERO_KEPT"), "1");
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	uint32_t generation = 0;

	if (memory == MAP_FAILED)
		err(1, "mmap");
	if (!kept)
		for (size_t i = 0; i < bytes; i += sizeof(uint64_t))
			if (*(uint64_t *)(memory + i))
				errx(1, "byte %zu of memory that is nobody's is not zero", i);
	for (size_t i = 0; i < entries; i++) {
		struct entry *entry = (struct entry *)(memory + i * 4096);

		if (kept && (entry->mark != MARK || entry->key != i || entry->value != value_of(i)))
			errx(1, "entry %zu is not as it was left", i);
		generation = entry->generation;
		*entry = (struct entry) { MARK, generation + 1, i, value_of(i) };
	}
	if (kept)
		printf("warm: %zu entries of generation %u\n", entries, generation);
	else
		printf("cold: nothing kept, filled %zu entries\n", entries);
	return 0;
}
