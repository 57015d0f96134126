// SPDX-License-Identifier: GPL-2.0-only
/*
 * The functions of the kernel that are hooked.
 *
 * Two are replaced (IPMODIFY), which ftrace grants to one user per function. No
 * handler takes a lock: handlers of functions that run under hugetlb_lock run under
 * it, the others use atomic bit operations. The hooks are permanent: while the module
 * is loaded, the kernel refuses kernel.ftrace_enabled=0, which would disable them and
 * leave the marks.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include "mark.h"

/* While false, marks are removed and no folio counts as zero. */
static bool prezero_armed;

static void *prezero_arg(struct ftrace_regs *fregs, int n)
{
	return (void *)ftrace_regs_get_argument(fregs, n);
}

static void prezero_on_zero_user(unsigned long ip, unsigned long parent,
				 struct ftrace_ops *ops,
				 struct ftrace_regs *fregs)
{
	struct folio *folio = prezero_arg(fregs, 0);
	struct prezero_pool *pool = NULL;
	unsigned long done = 0;

	if (folio_test_hugetlb(folio)) {
		pool = prezero_folio_pool(folio);
		if (!pool || !READ_ONCE(prezero_armed)) {
			prezero_unmark(folio);
			return;
		}
		done = prezero_marked(folio);
	}
	if (done == folio_nr_pages(folio) && !READ_ONCE(prezero_verify)) {
		prezero_unmark(folio);
		atomic_long_inc(&pool->zero.hits);
		ftrace_regs_set_instruction_pointer(fregs, (unsigned long)
						    prezero_skip_zero_user);
		return;
	}
	if (done || prezero_ranges) {
		ftrace_regs_set_instruction_pointer(fregs, (unsigned long)
						    prezero_zero_user);
		return;
	}
	if (!pool)
		return;
	prezero_unmark(folio);
	atomic_long_inc(&pool->zero.misses);
	if (test_and_clear_bit(PREZERO_WAITED, prezero_bits(folio)))
		atomic_long_inc(&pool->zero.waits);
}

static void prezero_on_dequeue(unsigned long ip, unsigned long parent,
			       struct ftrace_ops *ops,
			       struct ftrace_regs *fregs)
{
	if (READ_ONCE(prezero_armed) && !within_module(parent, THIS_MODULE))
		ftrace_regs_set_instruction_pointer(fregs, (unsigned long)
						    prezero_dequeue);
}

/* In any context. A folio that is freed is dirty, whatever its mark says. */
static void prezero_on_free(unsigned long ip, unsigned long parent,
			    struct ftrace_ops *ops, struct ftrace_regs *fregs)
{
	struct folio *folio = prezero_arg(fregs, 0);

	if (!test_bit(PREZERO_MARK, prezero_bits(folio)))
		return;
	prezero_count(prezero_unmark(folio) ? PREZERO_FREED : PREZERO_OUTLIVED);
}

static void prezero_on_enqueue(unsigned long ip, unsigned long parent,
			       struct ftrace_ops *ops,
			       struct ftrace_regs *fregs)
{
	struct folio *folio = prezero_arg(fregs, 1);
	struct prezero_pool *pool =
		prezero_pool_of(prezero_arg(fregs, 0), folio);

	if (pool)
		prezero_arrive(pool, folio);
}

/* The pool shrinks, the folio is demoted, or its memory goes offline. */
static void prezero_on_remove(unsigned long ip, unsigned long parent,
			      struct ftrace_ops *ops,
			      struct ftrace_regs *fregs)
{
	struct folio *folio = prezero_arg(fregs, 1);
	struct prezero_pool *pool =
		prezero_pool_of(prezero_arg(fregs, 0), folio);

	prezero_unmark(folio);
	if (pool && test_bit(HPG_freed, prezero_bits(folio)))
		prezero_depart(pool, folio);
}

/* A pool loses the folio in front of a list: make that a dirty one. */
static void prezero_on_shrink(unsigned long ip, unsigned long parent,
			      struct ftrace_ops *ops,
			      struct ftrace_regs *fregs)
{
	struct hstate *h = prezero_arg(fregs, 0);
	nodemask_t *allowed = prezero_arg(fregs, 1);
	struct prezero_pool *pool;
	int nid;

	if (!READ_ONCE(prezero_armed))
		return;
	for_each_node_state(nid, N_MEMORY) {
		if (!node_isset(nid, *allowed))
			continue;
		pool = to_prezero(hugetlb_zero_pool(h, nid));
		if (list_empty(hugetlb_zero_freelist(&pool->zero)))
			prezero_take_back(pool);
		else
			prezero_dirty_first(pool);
	}
}

/* The caller is known here, and decides at the dequeue. */
static void prezero_on_alloc(unsigned long ip, unsigned long parent,
			     struct ftrace_ops *ops, struct ftrace_regs *fregs)
{
	prezero_remember(parent);
}

struct prezero_hook {
	struct ftrace_ops	ops;
	const char		*names[2];
};

#define PREZERO_HOOK(handler, modify, ...) {				\
	.ops = {							\
		.func = handler,					\
		.flags = PREZERO_FTRACE_FLAGS | (modify),		\
	},								\
	.names = { __VA_ARGS__ },					\
}

/* In this order; the second name is that of Linux 6.1. */
static struct prezero_hook prezero_hooks[] = {
	PREZERO_HOOK(prezero_on_free, 0, PREZERO_FREE_FUNCTION),
	PREZERO_HOOK(prezero_on_enqueue, 0, "enqueue_hugetlb_folio",
		     "enqueue_huge_page"),
	PREZERO_HOOK(prezero_on_remove, 0, "remove_hugetlb_folio",
		     "__remove_hugetlb_page"),
	PREZERO_HOOK(prezero_on_shrink, 0, "remove_pool_hugetlb_folio",
		     "remove_pool_huge_page"),
	PREZERO_HOOK(prezero_on_alloc, 0, "alloc_hugetlb_folio",
		     "alloc_huge_page"),
	PREZERO_HOOK(prezero_on_zero_user, FTRACE_OPS_FL_IPMODIFY,
		     PREZERO_ZERO_FUNCTION),
	PREZERO_HOOK(prezero_on_dequeue, FTRACE_OPS_FL_IPMODIFY,
		     "dequeue_hugetlb_folio_nodemask",
		     "dequeue_huge_page_nodemask"),
};

static int prezero_hook_one(struct prezero_hook *hook)
{
	const char *name = hook->names[0];
	int err;

	err = ftrace_set_filter(&hook->ops, (unsigned char *)name,
				strlen(name), 1);
	if (err && hook->names[1]) {
		name = hook->names[1];
		err = ftrace_set_filter(&hook->ops, (unsigned char *)name,
					strlen(name), 1);
	}
	if (err) {
		pr_err("cannot hook %s(): it is inlined or has another name here (%d)\n",
		       hook->names[0], err);
		return err;
	}
	err = register_ftrace_function(&hook->ops);
	if (err == -EBUSY)
		pr_err("cannot hook %s(): a live patch has it, or kernel.ftrace_enabled is 0\n",
		       name);
	else if (err)
		pr_err("cannot hook %s() (%d)\n", name, err);
	return err;
}

static void prezero_unhook_from(int i)
{
	while (--i >= 0)
		unregister_ftrace_function(&prezero_hooks[i].ops);
}

int prezero_hook(void)
{
	int i, err;

	for (i = 0; i < ARRAY_SIZE(prezero_hooks); i++) {
		err = prezero_hook_one(&prezero_hooks[i]);
		if (err) {
			prezero_unhook_from(i);
			return err;
		}
	}
	return 0;
}

void prezero_arm(void)
{
	WRITE_ONCE(prezero_armed, true);
}

/* In reverse order: the hook that removes marks at free goes last. */
void prezero_unhook(void)
{
	WRITE_ONCE(prezero_armed, false);
	prezero_unhook_from(ARRAY_SIZE(prezero_hooks));
}
