// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Counts the references of a hugetlbfs file's pages.
 *
 * A program of type `syscall`: it is hooked to nothing and runs when the daemon asks, in the
 * daemon's context, on a descriptor of the daemon's. It only reads.
 *
 * The few kernel structures are declared here with the members that are used; their real places
 * are filled in at load time from the running kernel's BTF (CO-RE), so that nothing of one kernel
 * version is compiled in.
 */

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed int __s32;
typedef signed long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

enum bpf_map_type { BPF_MAP_TYPE_UNSPEC };

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define RELOCATED __attribute__((preserve_access_index))

typedef struct {
	int counter;
} RELOCATED atomic_t;

struct xarray {
	void *xa_head;
} RELOCATED;

struct xa_node {
	unsigned char shift;
	void *slots[64];
} RELOCATED;

struct rb_node;

struct rb_root {
	struct rb_node *rb_node;
} RELOCATED;

struct rb_root_cached {
	struct rb_root rb_root;
} RELOCATED;

struct address_space {
	struct xarray i_pages;
	struct rb_root_cached i_mmap;
} RELOCATED;

struct super_block {
	unsigned long s_magic;
} RELOCATED;

struct inode {
	unsigned long i_ino;
	struct super_block *i_sb;
	struct address_space *i_mapping;
	atomic_t i_writecount;
	atomic_t i_readcount;
} RELOCATED;

/* In an anonymous union with a lock. */
struct lockref {
	int count;
} RELOCATED;

struct dentry {
	struct lockref d_lockref;
} RELOCATED;

struct path {
	struct dentry *dentry;
} RELOCATED;

struct file {
	struct inode *f_inode;
	struct address_space *f_mapping;
	struct path f_path;
} RELOCATED;

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
} RELOCATED;

struct files_struct {
	struct fdtable *fdt;
} RELOCATED;

struct task_struct {
	struct files_struct *files;
} RELOCATED;

/* Since Linux 5.16; before it, a hugetlb page is its head page. */
struct folio {
	unsigned long flags;
	atomic_t _refcount;
} RELOCATED;

/* Since Linux 6.18 the flags are a structure. */
typedef struct {
	unsigned long f;
} RELOCATED memdesc_flags_t;

struct folio___memdesc {
	memdesc_flags_t flags;
} RELOCATED;

struct page {
	unsigned long flags;
	atomic_t _refcount;
} RELOCATED;

/* With CONFIG_MEMORY_FAILURE; its place among the flags is the configuration's. */
enum pageflags {
	PG_hwpoison,
};

#define HUGETLBFS_MAGIC 0x958458f6

/* What is asked, and what is answered; `struct Query` in probe.rs. */
struct query {
	__u64 inode;      /* in: of this file, so that a wrong descriptor is no answer */
	__u32 fd;         /* in */
	__u32 step;       /* in: from page to page, in the file's index: 1, or base pages per page */
	__u32 pages;      /* in */
	__s32 idle;       /* in: references of a page that nobody holds */
	/*
	 * Asked with 0, 0, 0, the largest, the largest and the smallest number. They come from outside so
	 * that the verifier knows nothing of them: it would follow a loop over known ones to its end.
	 */
	__u32 found;      /* out: pages that have memory */
	__u32 poisoned;   /* out: of these, pages with a memory error: the kernel holds them for good */
	__u32 held;       /* out: of the others, pages with another count than `idle` */
	__u32 first_held; /* out: the first of them */
	__s32 lowest;     /* out: the fewest references found */
	__s32 highest;    /* out: the most */
	__u32 status;     /* out: see enum status */
	__u32 mapped;     /* out: whether any process maps the file */
	__s32 names;      /* out: references of the file's directory entry */
	__s32 writers;    /* out: descriptions that may write */
	__s32 readers;    /* out: those that may only read; 0 on kernels that do not count them */
	__u32 unused;     /* so that nothing is padding */
};

enum status {
	DONE = 1,
	NO_FILE,       /* the descriptor is no open file */
	OTHER_FILE,    /* of another inode, or not of hugetlbfs */
	CHANGED,       /* the descriptor was changed meanwhile */
};

struct walk {
	void *head;
	void *before;
	__u32 step;
	__s32 idle;
	__u32 found;
	__u32 poisoned;
	__u32 held;
	__u32 first_held;
	__s32 lowest;
	__s32 highest;
};

/* Inner nodes carry 2 in their lowest bits (lib/xarray.c); small ones name a sibling's slot. */
static __always_inline int is_internal(unsigned long entry)
{
	return (entry & 3) == 2;
}

static __always_inline int is_node(unsigned long entry)
{
	return is_internal(entry) && entry > 4096;
}

struct descent {
	unsigned long entry;
	unsigned long index;
};

/*
 * One level down. A callback, so that the verifier follows it once and not once per level.
 *
 * XA_CHUNK_SHIFT is 6, but with CONFIG_BASE_SMALL, where measuring fails at start.
 */
static long descend(__u64 level, void *context)
{
	struct descent *at = context;
	struct xa_node *node = (void *)(at->entry - 2);
	unsigned long entry = 0;
	unsigned char shift;
	void **slots;

	if (!is_node(at->entry))
		return 1;
	shift = BPF_CORE_READ(node, shift);
	slots = (void **)__builtin_preserve_access_index(&node->slots);
	bpf_probe_read_kernel(&entry, sizeof(entry), &slots[(at->index >> (shift & 63)) & 63]);
	if (is_internal(entry) && !is_node(entry))
		bpf_probe_read_kernel(&entry, sizeof(entry), &slots[(entry >> 2) & 63]);
	at->entry = entry;
	return 0;
}

static __always_inline unsigned long lookup(void *head, unsigned long index)
{
	struct descent at = { .entry = (unsigned long)head, .index = index };
	struct xa_node *top = (void *)(at.entry - 2);

	/* An index that the tree is not high enough for has no entry; a single entry is that of 0. */
	if (!is_node(at.entry))
		return index || at.entry & 3 ? 0 : at.entry;
	if (index >> (BPF_CORE_READ(top, shift) & 63) > 63)
		return 0;
	/* 64 bits of index, 6 per level. */
	bpf_loop(11, descend, &at, 0);
	/* Values (shadow entries) carry 1, an unfinished walk still an inner node. */
	return at.entry & 3 ? 0 : at.entry;
}

/* Any part of a huge page with a memory error marks the whole (mm/memory-failure.c). */
static __always_inline int is_poisoned(void *entry)
{
	unsigned long flags;

	if (!bpf_core_enum_value_exists(enum pageflags, PG_hwpoison))
		return 0;
	if (bpf_core_field_exists(((struct folio___memdesc *)entry)->flags.f))
		flags = BPF_CORE_READ((struct folio___memdesc *)entry, flags.f);
	else if (bpf_core_type_exists(struct folio))
		flags = BPF_CORE_READ((struct folio *)entry, flags);
	else
		flags = BPF_CORE_READ((struct page *)entry, flags);
	return flags >> (bpf_core_enum_value(enum pageflags, PG_hwpoison) & 63) & 1;
}

static long count(__u64 at, void *context)
{
	struct walk *walk = context;
	unsigned long entry = lookup(walk->head, at * walk->step);
	__s32 references;

	/* One page found twice is no second page: the step was not this kernel's. */
	if (!entry || (void *)entry == walk->before)
		return 0;
	walk->before = (void *)entry;
	walk->found++;
	if (is_poisoned((void *)entry)) {
		walk->poisoned++;
		return 0;
	}
	if (bpf_core_type_exists(struct folio))
		references = BPF_CORE_READ((struct folio *)entry, _refcount.counter);
	else
		references = BPF_CORE_READ((struct page *)entry, _refcount.counter);
	if (references < walk->lowest)
		walk->lowest = references;
	if (references > walk->highest)
		walk->highest = references;
	if (references != walk->idle) {
		if (at < walk->first_held)
			walk->first_held = at;
		walk->held++;
	}
	return 0;
}

static __always_inline struct file *file_of(__u32 fd)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files = BPF_CORE_READ(table, fd);
	struct file *file = 0;

	if (fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), &files[fd]);
	return file;
}

SEC("syscall")
int references(struct query *query)
{
	struct file *file = file_of(query->fd);
	struct inode *inode;
	struct walk walk = {};

	if (!file) {
		query->status = NO_FILE;
		return 0;
	}
	inode = BPF_CORE_READ(file, f_inode);
	if (BPF_CORE_READ(inode, i_ino) != query->inode ||
	    BPF_CORE_READ(inode, i_sb, s_magic) != HUGETLBFS_MAGIC) {
		query->status = OTHER_FILE;
		return 0;
	}
	walk.head = BPF_CORE_READ(file, f_mapping, i_pages.xa_head);
	walk.step = query->step;
	walk.idle = query->idle;
	walk.found = query->found;
	walk.poisoned = query->poisoned;
	walk.held = query->held;
	walk.first_held = query->first_held;
	walk.lowest = query->lowest;
	walk.highest = query->highest;
	bpf_loop(query->pages, count, &walk, 0);
	query->found = walk.found;
	query->poisoned = walk.poisoned;
	query->held = walk.held;
	query->first_held = walk.first_held;
	query->lowest = walk.lowest;
	query->highest = walk.highest;
	query->mapped = BPF_CORE_READ(file, f_mapping, i_mmap.rb_root.rb_node) != 0;
	query->names = BPF_CORE_READ(file, f_path.dentry, d_lockref.count);
	query->writers = BPF_CORE_READ(inode, i_writecount.counter);
	if (bpf_core_field_exists(inode->i_readcount))
		query->readers = BPF_CORE_READ(inode, i_readcount.counter);
	query->status = file_of(query->fd) == file ? DONE : CHANGED;
	return 0;
}

/* Helpers that read kernel memory are for programs whose licence goes with the GPL. */
char LICENSE[] SEC("license") = "Dual MIT/GPL";
