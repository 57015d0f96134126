// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Counts the references of a hugetlbfs file's pages, and what hangs on its inode.
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

enum bpf_map_type { BPF_MAP_TYPE_UNSPEC, BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_ARRAY };

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

struct list_head {
	struct list_head *next;
} RELOCATED;

struct hlist_node {
	struct hlist_node *next;
} RELOCATED;

struct hlist_head {
	struct hlist_node *first;
} RELOCATED;

/* Locks of fcntl(2) and flock(2), and leases. */
struct file_lock_context {
	struct list_head flc_flock;
	struct list_head flc_posix;
	struct list_head flc_lease;
} RELOCATED;

struct fsnotify_group;

/* A watch of inotify(7) or a mark of fanotify(7). */
struct fsnotify_mark {
	struct fsnotify_group *group;
	struct hlist_node obj_list;
} RELOCATED;

struct fsnotify_mark_connector {
	struct hlist_head list;
} RELOCATED;

struct inode {
	unsigned long i_ino;
	struct super_block *i_sb;
	struct address_space *i_mapping;
	atomic_t i_writecount;
	atomic_t i_readcount;
	atomic_t i_count;
	struct file_lock_context *i_flctx;
	struct fsnotify_mark_connector *i_fsnotify_marks; /* with CONFIG_FSNOTIFY */
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
	void *private_data;
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
	struct address_space *mapping;
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
	struct address_space *mapping;
	atomic_t _refcount;
} RELOCATED;

/* Their places are the configuration's; the second is there with CONFIG_MEMORY_FAILURE. */
enum pageflags {
	PG_head,
	PG_hwpoison,
};

#define HUGETLBFS_MAGIC 0x958458f6

/* What is asked, and what is answered; `struct Query` in probe.rs. */
struct query {
	__u64 inode;      /* in: of this file, so that a wrong descriptor is no answer */
	__u64 next;       /* in, out: the index from which on pages are looked at; the largest: none */
	__u64 end;        /* in: the index at which the file ends */
	/*
	 * Asked with 0, the largest, and 0 for the rest of the counts, the largest and the smallest
	 * number. They come from outside so that a walk goes on where the last one ended, and that the
	 * verifier knows nothing of them: it would follow a loop over known ones to its end.
	 */
	__u64 sum;        /* in, out: of which pages these are, and where, in one number */
	__u64 first;      /* in, out: the index of the first page */
	__u64 first_held; /* in, out: the index of the first page with another count than `idle` */
	__u32 fd;         /* in */
	__u32 watcher;    /* in: the caller's inotify descriptor, or one that is not open */
	__u32 step;       /* in: from page to page, in the file's index: 1, or base pages per page */
	__u32 steps;      /* in: of the walk, at most */
	__s32 idle;       /* in: references of a page that nobody holds */
	__u32 keeps;      /* in: whether the pages' addresses go into the map, from its start */
	__u32 found;      /* in, out: pages that have memory */
	__u32 behind;     /* in, out: of these, pages at `end` and behind it */
	__u32 poisoned;   /* in, out: pages with a memory error: the kernel holds them for good */
	__u32 held;       /* in, out: of the others, pages with another count than `idle` */
	__s32 lowest;     /* in, out: the fewest references found */
	__s32 highest;    /* in, out: the most */
	__u32 status;     /* out: see enum status */
	__u32 mapped;     /* out: whether any process maps the file */
	__s32 names;      /* out: references of the file's directory entry */
	__s32 writers;    /* out: descriptions that may write */
	__s32 readers;    /* out: those that may only read; 0 on kernels that do not count them */
	__s32 inodes;     /* out: references of the inode; 0 on kernels that count them otherwise */
	__u32 watches;    /* out: watches and marks of others */
	__u32 own;        /* out: those of the caller's descriptor */
	__u32 locks;      /* out: whether there are locks or leases of any kind */
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
	__u64 next;
	__u64 end;
	__u64 sum;
	__u64 first;
	__u64 first_held;
	__u32 step;
	__s32 idle;
	__u32 keeps;
	__u32 kept;
	__u32 found;
	__u32 behind;
	__u32 poisoned;
	__u32 held;
	__s32 lowest;
	__s32 highest;
};

/* Addresses of pages, of which so many go out or come in at a time; KEPT of probe.rs. */
#define KEPT 4096

struct kept {
	__u64 at[KEPT];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kept);
} pages SEC(".maps");

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
	unsigned char shift;
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
	void **slots;

	if (!is_node(at->entry))
		return 1;
	at->shift = BPF_CORE_READ(node, shift);
	slots = (void **)__builtin_preserve_access_index(&node->slots);
	bpf_probe_read_kernel(&entry, sizeof(entry), &slots[(at->index >> (at->shift & 63)) & 63]);
	if (is_internal(entry) && !is_node(entry))
		bpf_probe_read_kernel(&entry, sizeof(entry), &slots[(entry >> 2) & 63]);
	at->entry = entry;
	return 0;
}

/*
 * The entry at an index, or none; and in `skip` how far the next index is at which there may be
 * another one. 0 is the end of the tree.
 */
static __always_inline unsigned long lookup(void *head, unsigned long index, unsigned long *skip)
{
	struct descent at = { .entry = (unsigned long)head, .index = index };
	struct xa_node *top = (void *)(at.entry - 2);

	*skip = 0;
	/* A single entry is that of 0. */
	if (!is_node(at.entry))
		return index || at.entry & 3 ? 0 : at.entry;
	if (index >> (BPF_CORE_READ(top, shift) & 63) > 63)
		return 0;
	/* 64 bits of index, 6 per level. */
	bpf_loop(11, descend, &at, 0);
	/* To the end of the slot at which the walk has ended. */
	*skip = (1UL << (at.shift & 63)) - (index & ((1UL << (at.shift & 63)) - 1));
	/* Values (shadow entries) carry 1, an unfinished walk still an inner node. */
	return at.entry & 3 ? 0 : at.entry;
}

static __always_inline unsigned long flags_of(void *entry)
{
	if (bpf_core_field_exists(((struct folio___memdesc *)entry)->flags.f))
		return BPF_CORE_READ((struct folio___memdesc *)entry, flags.f);
	if (bpf_core_type_exists(struct folio))
		return BPF_CORE_READ((struct folio *)entry, flags);
	return BPF_CORE_READ((struct page *)entry, flags);
}

static __always_inline __s32 references_of(void *entry)
{
	if (bpf_core_type_exists(struct folio))
		return BPF_CORE_READ((struct folio *)entry, _refcount.counter);
	return BPF_CORE_READ((struct page *)entry, _refcount.counter);
}

/* Any part of a huge page with a memory error marks the whole (mm/memory-failure.c). */
static __always_inline int is_poisoned(void *entry)
{
	if (!bpf_core_enum_value_exists(enum pageflags, PG_hwpoison))
		return 0;
	return flags_of(entry) >> (bpf_core_enum_value(enum pageflags, PG_hwpoison) & 63) & 1;
}

static __always_inline void keep(struct walk *walk, unsigned long entry)
{
	__u32 key = 0;
	struct kept *kept = bpf_map_lookup_elem(&pages, &key);

	if (kept)
		kept->at[walk->kept & (KEPT - 1)] = entry;
	walk->kept++;
}

/* One slot of the tree, wherever the file ends. */
static long count(__u64 nth, void *context)
{
	struct walk *walk = context;
	unsigned long skip, index = walk->next;
	unsigned long entry = lookup(walk->head, index, &skip);
	__s32 references;

	/* No file is so long that this overflows. */
	walk->next = skip ? index + skip : ~0ULL;
	/* One page found twice is no second page. */
	if (!entry || (void *)entry == walk->before)
		return !skip;
	if (walk->step > skip && skip)
		walk->next = index + walk->step;
	walk->before = (void *)entry;
	walk->found++;
	/* A page elsewhere, and another page there, is another sum. */
	walk->sum += (entry ^ index * 0x9e3779b97f4a7c15ULL) * 0xff51afd7ed558ccdULL;
	if (index < walk->first)
		walk->first = index;
	if (index >= walk->end)
		walk->behind++;
	if (walk->keeps)
		keep(walk, entry);
	if (is_poisoned((void *)entry)) {
		walk->poisoned++;
		goto next;
	}
	references = references_of((void *)entry);
	if (references < walk->lowest)
		walk->lowest = references;
	if (references > walk->highest)
		walk->highest = references;
	if (references != walk->idle) {
		if (index < walk->first_held)
			walk->first_held = index;
		walk->held++;
	}
next:
	return !skip || (walk->keeps && walk->kept >= KEPT);
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

struct watches {
	struct hlist_node *at;
	void *own;
	__u32 others;
	__u32 owned;
};

static long count_watch(__u64 nth, void *context)
{
	struct watches *watches = context;
	unsigned long offset =
		__builtin_preserve_field_info(((struct fsnotify_mark *)0)->obj_list, BPF_FIELD_BYTE_OFFSET);
	struct hlist_node *at = watches->at;
	struct fsnotify_mark *mark = (void *)at - offset;

	if (!at)
		return 1;
	if (watches->own && (void *)BPF_CORE_READ(mark, group) == watches->own)
		watches->owned++;
	else
		watches->others++;
	watches->at = BPF_CORE_READ(at, next);
	return 0;
}

static __always_inline int is_empty(struct list_head *list)
{
	return BPF_CORE_READ(list, next) == list;
}

static __always_inline int has_locks(struct inode *inode)
{
	struct file_lock_context *locks;

	if (!bpf_core_field_exists(inode->i_flctx))
		return 0;
	locks = BPF_CORE_READ(inode, i_flctx);
	return locks && !(is_empty(__builtin_preserve_access_index(&locks->flc_flock)) &&
			  is_empty(__builtin_preserve_access_index(&locks->flc_posix)) &&
			  is_empty(__builtin_preserve_access_index(&locks->flc_lease)));
}

/* More watches than these are as good as one. */
#define WATCHES 64

static __always_inline void look_at_inode(struct inode *inode, struct query *query)
{
	struct file *watcher = file_of(query->watcher);
	struct watches watches = {};

	if (bpf_core_field_exists(inode->i_count.counter))
		query->inodes = BPF_CORE_READ(inode, i_count.counter);
	query->locks = has_locks(inode);
	if (!bpf_core_field_exists(inode->i_fsnotify_marks))
		return;
	watches.at = BPF_CORE_READ(inode, i_fsnotify_marks, list.first);
	if (watcher)
		watches.own = BPF_CORE_READ(watcher, private_data);
	bpf_loop(WATCHES, count_watch, &watches, 0);
	query->watches = watches.others;
	query->own = watches.owned;
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
	walk.next = query->next;
	walk.end = query->end;
	walk.sum = query->sum;
	walk.first = query->first;
	walk.first_held = query->first_held;
	walk.step = query->step;
	walk.idle = query->idle;
	walk.keeps = query->keeps;
	walk.found = query->found;
	walk.behind = query->behind;
	walk.poisoned = query->poisoned;
	walk.held = query->held;
	walk.lowest = query->lowest;
	walk.highest = query->highest;
	if (walk.next != ~0ULL)
		bpf_loop(query->steps, count, &walk, 0);
	query->next = walk.next;
	query->sum = walk.sum;
	query->first = walk.first;
	query->first_held = walk.first_held;
	query->found = walk.found;
	query->behind = walk.behind;
	query->poisoned = walk.poisoned;
	query->held = walk.held;
	query->lowest = walk.lowest;
	query->highest = walk.highest;
	query->mapped = BPF_CORE_READ(file, f_mapping, i_mmap.rb_root.rb_node) != 0;
	query->names = BPF_CORE_READ(file, f_path.dentry, d_lockref.count);
	query->writers = BPF_CORE_READ(inode, i_writecount.counter);
	if (bpf_core_field_exists(inode->i_readcount))
		query->readers = BPF_CORE_READ(inode, i_readcount.counter);
	/* After the names: who has none any more adds no watch. */
	look_at_inode(inode, query);
	query->status = file_of(query->fd) == file ? DONE : CHANGED;
	return 0;
}

/* What is asked of pages by their addresses; `struct Asked` in probe.rs. */
struct asked {
	__u32 pages; /* in: of the map, from its start */
	__u32 held;  /* out: of these, pages that are in no file and that somebody has all the same */
};

/*
 * A page that has left its file and is not free: somebody pins it. One that is free has no
 * references, one that is in use again has a mapping. All others become 0 in the map.
 */
static long look_at_page(__u64 nth, void *context)
{
	struct asked *asked = context;
	__u32 key = 0;
	struct kept *kept = bpf_map_lookup_elem(&pages, &key);
	void *entry, *mapping;

	if (!kept)
		return 1;
	entry = (void *)kept->at[nth & (KEPT - 1)];
	if (bpf_core_type_exists(struct folio))
		mapping = BPF_CORE_READ((struct folio *)entry, mapping);
	else
		mapping = BPF_CORE_READ((struct page *)entry, mapping);
	if (!mapping && references_of(entry) > 0 &&
	    flags_of(entry) >> (bpf_core_enum_value(enum pageflags, PG_head) & 63) & 1)
		asked->held++;
	else
		kept->at[nth & (KEPT - 1)] = 0;
	return 0;
}

SEC("syscall")
int stray(struct asked *query)
{
	struct asked asked = {};

	bpf_loop(query->pages, look_at_page, &asked, 0);
	query->held = asked.held;
	return 0;
}

/* Helpers that read kernel memory are for programs whose licence goes with the GPL. */
char LICENSE[] SEC("license") = "Dual MIT/GPL";
