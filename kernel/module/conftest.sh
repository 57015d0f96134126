#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Prints macros for the features of a kernel, or, on stderr, one line that says why
# that kernel is not supported. PREZERO_CC is its compiler with all flags.
# PREZERO_BTF may name a vmlinux, whose type information is compared with the
# prototypes that the hooks assume.
set -u

errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

refuse() {
	echo "prezero: $*" >&2
	exit 1
}

# CODE, the body of a function, compiles after the INCLUDEs.
compiles() {
	code=$1
	shift
	{
		printf '#include <%s>\n' linux/kconfig.h linux/mm.h "$@"
		printf 'void conftest(void);\nvoid conftest(void)\n{\n%s\n}\n' \
			"$code"
	} | eval "$PREZERO_CC -Werror -Wno-unused -x c -c - -o /dev/null" \
		2>"$errors"
}

has() {
	name=$1
	shift
	if compiles "$@"; then
		echo "#define $name 1"
		return 0
	fi
	return 1
}

# CONFIG reason
needs() {
	compiles "_Static_assert(IS_ENABLED($1), \"\");" ||
		refuse "needs a kernel with $1: $2"
}

compiles '' ||
	refuse "cannot compile for this kernel: $(grep -m1 error "$errors")"
compiles '#if !defined(CONFIG_X86_64) && !defined(CONFIG_ARM64)
#error
#endif' || refuse 'x86-64 and arm64 only'
needs CONFIG_HUGETLB_PAGE 'there are no huge pages'
needs CONFIG_SYSFS 'the interface is there'
needs CONFIG_NUMA 'the files are beside those of the nodes'
needs CONFIG_KPROBES 'symbols are looked up with it'
needs CONFIG_KALLSYMS_ALL 'symbols are looked up with it'
needs CONFIG_DYNAMIC_FTRACE 'functions are hooked with it'
compiles '#if !defined(CONFIG_DYNAMIC_FTRACE_WITH_ARGS) && \
	!defined(CONFIG_DYNAMIC_FTRACE_WITH_REGS)
#error
#endif' || refuse 'needs a kernel whose ftrace passes arguments'

# Before 6.2 they are in struct ftrace_regs.
has PREZERO_FTRACE_ARGUMENTS \
	'struct ftrace_regs *fregs = NULL;
	unsigned long arg = ftrace_regs_get_argument(fregs, 1);
	ftrace_regs_set_instruction_pointer(fregs, arg);' linux/ftrace.h

# The function that clears a huge page before its first use.
has PREZERO_FOLIO_ZERO_USER \
	'void (*f)(struct folio *, unsigned long) = folio_zero_user;' ||
	compiles 'void (*f)(struct page *, unsigned long, unsigned int) =
		clear_huge_page;' ||
	refuse 'neither folio_zero_user() nor clear_huge_page() is known'

# The function that frees a huge page.
has PREZERO_FREE_HUGE_FOLIO \
	'void (*f)(struct folio *) = free_huge_folio;' linux/hugetlb.h ||
	compiles 'void (*f)(struct page *) = free_huge_page;' linux/hugetlb.h ||
	refuse 'neither free_huge_folio() nor free_huge_page() is known'

# The pool and its members.
compiles 'struct hstate *h = NULL; struct folio *folio = NULL;
	struct list_head *list = &h->hugepage_freelists[0];
	h->free_huge_pages_node[0] += h->nr_huge_pages_node[0];
	list_move(&folio->lru, &h->hugepage_activelist);
	_Static_assert(sizeof(folio->private) == sizeof(long), "");
	_Static_assert(sizeof(folio->index) == sizeof(long), "");
	_Static_assert(sizeof(h->name) >= 16, "");
	_Static_assert(__NR_HPAGEFLAGS <= 24, "");' \
	linux/hugetlb.h linux/list.h ||
	refuse 'struct hstate or struct folio is not as expected'

has PREZERO_CLEAR_PAGES 'clear_pages(NULL, 2);'
has PREZERO_SYSTEM_DFL_WQ 'struct workqueue_struct **wq = &system_dfl_wq;' linux/workqueue.h
has PREZERO_PREEMPT_MODEL 'bool b = preempt_model_preemptible();' linux/preempt.h
has PREZERO_NR_HUGETLB 'lruvec_stat_mod_folio(NULL, NR_HUGETLB, 1L);' \
	linux/vmstat.h

# The types of static functions are in no header, but in BTF.
compare() {
	proto=$(pfunct -F btf -P -f "$1" "$PREZERO_BTF" 2>/dev/null | tr -s ' \t\n' ' ')
	[ -z "$proto" ] && return
	case $proto in
	*"$1($2"*) ;;
	*) refuse "$1() is not as expected: $proto" ;;
	esac
}

if [ -r "${PREZERO_BTF-}" ] && command -v pfunct >/dev/null; then
	compare dequeue_hugetlb_folio_nodemask 'struct hstate * h, gfp_t gfp_mask, int nid, nodemask_t * nmask)'
	compare enqueue_hugetlb_folio 'struct hstate * h, struct folio * folio)'
	compare remove_hugetlb_folio 'struct hstate * h, struct folio * folio, bool'
	compare remove_pool_hugetlb_folio 'struct hstate * h, nodemask_t *'
	compare alloc_hugetlb_folio 'struct vm_area_struct * vma,'
fi
exit 0
