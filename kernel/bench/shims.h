/* SPDX-License-Identifier: GPL-2.0-only */
/* What the kernel's object arch/x86/lib/clear_streaming.o needs of a program. */
#ifndef BENCH_SHIMS_H
#define BENCH_SHIMS_H

#include <cpuid.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define METHODS	3

/* Of clear_streaming.o. */
struct clear_streaming_method {
	const char *name;
	void (*clear)(void *addr, unsigned long len);
	bool weak;
};
extern const struct clear_streaming_method clear_streaming_methods[METHODS];
extern const struct clear_streaming_method *clear_streaming_chosen;
extern unsigned int clear_streaming_turn;
void clear_pages_streaming(void *addr, unsigned int npages);

/*
 * What the kernel would provide. The call of unrolled stores is what alternatives
 * replace by a string instruction when the kernel boots: it comes here instead,
 * with the address in rdi and the bytes in rcx.
 */
char boot_cpu_data[4096];
unsigned int tsc_khz;
void *bench_clear_pages_by;
asm(".globl bench_clear_pages\nbench_clear_pages:\n\tjmp *bench_clear_pages_by\n"
    "stosq_pages:\n\tshrq $3, %rcx\n\txorl %eax, %eax\n\trep stosq\n\tret\n"
    "stosb_pages:\n\txorl %eax, %eax\n\trep stosb\n\tret\n");
extern char stosq_pages[], stosb_pages[];

int _printk(const char *format, ...)
{
	return 0;
}

int _printk_deferred(const char *format, ...)
{
	return 0;
}

__attribute__((force_align_arg_pointer))
void sort(void *base, size_t num, size_t size,
	  int (*compare)(const void *, const void *), void *swap)
{
	qsort(base, num, size, compare);
}

static double seconds(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static unsigned long long cycles(void)
{
	__builtin_ia32_lfence();
	return __builtin_ia32_rdtsc();
}

static bool has_clzero(void)
{
	unsigned int a, b = 0, c, d;

	return __get_cpuid(0x80000008, &a, &b, &c, &d) && b & 1;
}

static bool has_erms(void)
{
	unsigned int a, b = 0, c, d;

	return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & (1 << 9);
}

static const char *cpu_name(void)
{
	static char name[49];
	unsigned int *word = (unsigned int *)name;

	for (unsigned int i = 0; i < 3; i++, word += 4)
		if (!__get_cpuid(0x80000002 + i, word, word + 1, word + 2, word + 3))
			return "unknown";
	return name;
}

/* What alternatives do when the kernel boots. */
static void boot(void)
{
	memset(boot_cpu_data, has_clzero() ? 0xff : 0, sizeof(boot_cpu_data));
	bench_clear_pages_by = has_erms() ? stosb_pages : stosq_pages;
}

#endif /* BENCH_SHIMS_H */
