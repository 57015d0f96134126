// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the size of the kernel's pool depends on.

use super::*;

/// A pool that may resize the kernel's, with blocks of `pages` pages.
fn growing(pages_per_block: u64, ready_high: u64, leave_free: u64) -> PoolConfig {
    let text = format!(
        "page_size=2M,pages_per_block={pages_per_block},ready_high={ready_high},\
         leave_free={leave_free},size_max=64"
    );
    text.parse().expect("a good pool")
}

/// Unowned pages.
fn spare(book: &Book) -> Pages {
    book.available(HERE) + book.idle(HERE)
}

const HERE: Domain = Domain { node: Node(0), page_size: PAGE };

#[test]
fn unheld_pages_are_free_or_in_unlent_blocks() {
    let mut book = book([growing(2, 4, 0)]);
    assert_eq!(book.pool_sizes().keys().collect::<Vec<_>>(), [&HERE]);
    make_ready(&mut book, key(0, 2), 3);
    book.configure(growing(2, 4, 1)).expect("a good pool");
    book.has_free(Node(0), PAGE, Pages(5));
    assert_eq!(spare(&book), Pages(11));
    let (loan, _) = book.lend(&ask(2)).expect("a block is ready");
    assert_eq!(spare(&book), Pages(9), "what is lent is somebody's");
    book.take_zeroing(Requester::User, None, None).expect("pages are free");
    assert_eq!(spare(&book), Pages(9), "what a worker has is nobody's yet");
    book.end_lease(loan.lease);
    assert_eq!(spare(&book), Pages(9), "nor is it known who has what was returned");
    assert_eq!(book.wanted(HERE), Pages(5));
}

#[test]
fn ready_target_is_whole_blocks_within_max() {
    assert_eq!(book([growing(4, 5, 0)]).wanted(HERE), Pages(8));
    let mut bounded = book([PoolConfig { max: Some(Pages(6)), ..growing(2, 6, 0) }]);
    make_ready(&mut bounded, key(0, 2), 2);
    assert_eq!(bounded.wanted(HERE), Pages(6));
    bounded.lend(&ask(2)).expect("a block is ready");
    assert_eq!(bounded.wanted(HERE), Pages(4), "two of the six are lent");
}

// Promise P197.
#[test]
fn only_unneeded_blocks_are_released() {
    let mut book = book([growing(2, 4, 0)]);
    make_ready(&mut book, key(0, 2), 4);
    book.configure(growing(2, 4, 1)).expect("a good pool");
    book.has_free(Node(0), PAGE, Pages(3));
    assert_eq!(book.free_up(HERE, Pages(2)), [], "two are free beside the one that stays so");
    let gone = book.free_up(HERE, Pages(3));
    assert_eq!(gone.len(), 1, "{gone:?}");
    assert_eq!(book.free_up(HERE, Pages(100)).len(), 1, "four are to be ready");
    assert_eq!(book.in_state(StateName::Ready).count(), 2);
    assert_eq!(spare(&book), Pages(11), "they are free now");
}

#[test]
fn a_refused_loan_is_served_where_the_kernels_pool_may_grow() {
    let book = book([growing(1, 0, 0), pool(1, 1)]);
    let sizes = [HERE];
    assert_eq!(book.growth_needed(&ask(5), &sizes), Some((HERE, Pages(5))));
    let mut elsewhere = ask(5);
    elsewhere.request.node = Some(Node(1));
    assert_eq!(book.growth_needed(&elsewhere, &sizes), None);
}

#[test]
fn shortage_is_reduced_by_other_nodes_of_the_same_size() {
    let large = PoolKey { page_size: PageSize::GIB_1, ..key(2, 1) };
    let mut book = book([growing(1, 0, 0), pool(1, 1), PoolConfig::new(large)]);
    book.has_free(Node(0), PAGE, Pages(3));
    book.has_free(Node(1), PAGE, Pages(2));
    book.has_free(Node(2), PageSize::GIB_1, Pages(1));
    let sizes = [HERE];
    assert_eq!(book.growth_needed(&ask(8), &sizes), Some((HERE, Pages(6))));
    assert_eq!(book.growth_needed(&ask_one_file(8), &sizes), Some((HERE, Pages(8))));
    assert_eq!(book.growth_needed(&ask(8).on(0), &sizes), Some((HERE, Pages(8))));
}
