/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A guest for QEMU: drives its virtio-mem device. It plugs as much memory as the device asks for, in
 * one request, unplugs it when the device asks for none, and says each on the debug console (port
 * 0xe9).
 *
 * 32-bit multiboot, built as guest.c is. The firmware has given the device its addresses, below 4 GiB.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define PCI_ID		0x10581af4u	/* virtio-mem */
#define CAP_VENDOR	9
#define CAP_COMMON	1
#define CAP_NOTIFY	2
#define CAP_DEVICE	4
#define PLUG		0
#define UNPLUG		1
#define NEXT		1
#define WRITE		2

__attribute__((section(".text.start"), used, aligned(4)))
static const u32 multiboot[3] = { 0x1BADB002, 2, -(0x1BADB002u + 2) };

static char stack[16384] __attribute__((used, aligned(16)));

static struct {
	u64 addr;
	u32 len;
	u16 flags, next;
} desc[2] __attribute__((aligned(4096)));
static volatile struct {
	u16 flags, idx, ring[2], event;
} avail __attribute__((aligned(4096)));
static volatile struct {
	u16 flags, idx;
	struct {
		u32 id, len;
	} ring[2];
} used __attribute__((aligned(4096)));

static struct {
	u16 type, pad[3];
	u64 addr;
	u16 blocks, pad2[3];
} request;
static volatile struct {
	u16 type, pad[3], state;
} response;

static volatile u8 *common, *notify, *config;
static u32 multiplier;

static void say(const char *text)
{
	for (; *text; text++)
		__asm__ volatile("outb %0, %1" : : "a"(*text), "Nd"((u16)0xe9));
}

__attribute__((noreturn))
static void stop(const char *text)
{
	say(text);
	for (;;)
		__asm__ volatile("cli; hlt");
}

static u32 pci(u32 slot, u32 at)
{
	u32 value;

	__asm__ volatile("outl %0, %1" : : "a"(0x80000000u | slot << 11 | (at & 0xfc)), "Nd"((u16)0xcf8));
	__asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"((u16)0xcfc));
	return value >> 8 * (at & 3);
}

static void find(void)
{
	u32 slot, cap;

	for (slot = 0; pci(slot, 0) != PCI_ID; slot++)
		if (slot == 31)
			stop("no virtio-mem\n");
	/* Memory, and the device's own access to it. */
	pci(slot, 4);
	__asm__ volatile("outl %0, %1" : : "a"(6), "Nd"((u16)0xcfc));
	for (cap = pci(slot, 0x34) & 0xff; cap; cap = pci(slot, cap + 1) & 0xff) {
		u32 bar = 0x10 + 4 * (pci(slot, cap + 4) & 0xff);
		volatile u8 *at = (u8 *)((pci(slot, bar) & ~15u) + pci(slot, cap + 8));

		if ((pci(slot, cap) & 0xff) != CAP_VENDOR)
			continue;
		switch (pci(slot, cap + 3) & 0xff) {
		case CAP_COMMON:
			common = at;
			break;
		case CAP_NOTIFY:
			notify = at;
			multiplier = pci(slot, cap + 16);
			break;
		case CAP_DEVICE:
			config = at;
			break;
		}
	}
	if (!common || !notify || !config)
		stop("no capabilities\n");
}

static void put32(u32 at, u32 value)
{
	*(volatile u32 *)(common + at) = value;
}

static void put16(u32 at, u16 value)
{
	*(volatile u16 *)(common + at) = value;
}

static void start_device(void)
{
	common[20] = 0;
	common[20] = 1;
	common[20] = 3;
	/* All that it offers of its own, and VIRTIO_F_VERSION_1. */
	put32(0, 0);
	put32(8, 0);
	put32(12, *(volatile u32 *)(common + 4) & 3);
	put32(8, 1);
	put32(12, 1);
	common[20] = 11;
	if (common[20] != 11)
		stop("no such features\n");
	put16(22, 0);
	put16(24, 2);
	put32(32, (u32)desc);
	put32(36, 0);
	put32(40, (u32)&avail);
	put32(44, 0);
	put32(48, (u32)&used);
	put32(52, 0);
	put16(28, 1);
	notify += *(volatile u16 *)(common + 30) * multiplier;
	common[20] = 15;
}

static u64 field(u32 at)
{
	volatile u32 *words = (volatile u32 *)(config + at);

	return words[0] | (u64)words[1] << 32;
}

static void ask(u16 type, u64 bytes)
{
	u16 before = used.idx;

	request.type = type;
	request.addr = field(16);
	request.blocks = (u32)bytes / (u32)field(0);
	desc[0].addr = (u32)&request;
	desc[0].len = sizeof(request);
	desc[0].flags = NEXT;
	desc[0].next = 1;
	desc[1].addr = (u32)&response;
	desc[1].len = sizeof(response);
	desc[1].flags = WRITE;
	avail.ring[avail.idx % 2] = 0;
	__sync_synchronize();
	avail.idx++;
	__sync_synchronize();
	*(volatile u16 *)notify = 0;
	while (used.idx == before)
		__asm__ volatile("pause");
	if (response.type)
		stop("refused\n");
	say(type == PLUG ? "plugged\n" : "unplugged\n");
}

__attribute__((used, noreturn))
static void start(void)
{
	find();
	start_device();
	for (;;) {
		u64 plugged = field(40), requested = field(48);

		if (!plugged && requested)
			ask(PLUG, requested);
		else if (plugged && !requested)
			ask(UNPLUG, plugged);
		__asm__ volatile("pause");
	}
}

__asm__(".globl _start\n_start: mov $stack + 16384, %esp\ncall start\n");
