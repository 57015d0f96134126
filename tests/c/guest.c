/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A guest for QEMU: finds that all of its memory is zero, writes to every page, reads it back, says
 * so on the debug console (port 0xe9), and stops.
 *
 * 32-bit multiboot, built with gcc -m32 -ffreestanding -nostdlib -static -Wl,-Ttext=0x100000. Memory
 * from 16 MiB on is used; the first bytes of the page there hold GUEST_MARK afterwards.
 */
typedef unsigned int u32;

#define FIRST	(16u << 20)
#define MARK	0x5a3c0f69u

__attribute__((section(".text.start"), used, aligned(4)))
static const u32 multiboot[3] = { 0x1BADB002, 2, -(0x1BADB002u + 2) };

static char stack[16384] __attribute__((used, aligned(16)));

struct info {
	u32 flags, lower_kib, upper_kib;
};

static void out(unsigned short port, unsigned char byte)
{
	__asm__ volatile("outb %0, %1" : : "a"(byte), "Nd"(port));
}

static void say(const char *text)
{
	while (*text)
		out(0xe9, *text++);
}

__attribute__((used, noreturn))
static void start(const struct info *info)
{
	/* KiB above the first MiB, up to the hole below 4 GiB; the firmware works at the end of it. */
	u32 end = (info->upper_kib + 1024) / 4 * 4096 - (32u << 20), errors = 0;

	for (u32 at = FIRST; at < end; at += 4096)
		if (*(volatile u32 *)at || *(volatile u32 *)(at + 4092))
			errors++;
	say(errors ? "dirty " : "zero ");
	for (u32 at = FIRST; at < end; at += 4096)
		*(volatile u32 *)at = MARK ^ (at - FIRST);
	errors = 0;
	for (u32 at = FIRST; at < end; at += 4096)
		if (*(volatile u32 *)at != (MARK ^ (at - FIRST)))
			errors++;
	say(errors ? "lost\n" : "kept\n");
	for (;;)
		__asm__ volatile("cli; hlt");
}

__asm__(".globl _start\n_start: mov $stack + 16384, %esp\npush %ebx\ncall start\n");
