// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hostile users: each attack by a real user of this machine against the real daemon, with its
//! effects on the attacker, on a victim beside it, and on the machine afterwards.
//!
//! Every attack goes through [`attack::Attack::run`], which documents its measurements. One file
//! per subject; new attacks belong into the file of theirs. Attacks without needs of their own
//! share a daemon, by the tables here; `PREZERO_HOSTILE_ONLY=WORDS` runs those with the words in
//! their name. `make attacks` runs all of them and writes docs/evidence/attacks.md, a row for each
//! attack; with `PREZERO_HOSTILE_TABLE=docs/evidence/attacks.md` any run replaces its own rows.

mod answers;
mod attack;
mod files;
mod groups;
mod hiding;
mod inodes;
mod interfaces;
mod leaks;
mod locks;
mod many_groups;
mod memory;
mod names;
mod paths;
#[cfg(target_arch = "x86_64")]
mod programs;
mod quota;
mod raw;
mod removed;
mod requests;
mod scene;
mod scrapes;
mod socket;
mod stage;
mod storm;
mod strange;
mod table;
mod tree;
mod tree_calls;
mod tree_files;
mod users;
mod victim;
mod workers;

use stage::Stage;

/// What attacks some subject on a daemon that others attack as well.
type Subject = fn(&mut Stage);

/// What depends on how blocks are recycled.
const RECYCLING: &[Subject] = &[
    files::lease_on_a_returned_file_delays_no_user,
    files::locks_on_returned_files_delay_no_user,
    inodes::watches_of_blocks_show_no_other_loan_and_delay_no_user,
    inodes::watches_of_loans_delay_no_user_more_than_of_any_file,
    memory::changing_the_mode_between_return_and_proof_opens_nothing,
    memory::no_reference_reaches_the_next_borrower,
    #[cfg(target_arch = "x86_64")]
    programs::programs_in_returned_blocks_delay_no_user_and_fill_no_log,
    strange::borrowers_that_die_at_every_step_leave_nothing,
    strange::notices_and_faults_of_returned_blocks_delay_no_user,
];

/// What does not.
const OTHERS: &[Subject] = &[
    answers::odd_watches_delay_no_user,
    answers::watches_of_one_user_delay_no_other_user,
    interfaces::switching_drain_on_and_off_costs_no_loan,
    interfaces::pools_and_numbers_without_bound_are_refused,
    interfaces::root_only_calls_are_refused_to_others,
    files::seals_links_and_attributes_are_refused,
    many_groups::connections_of_many_groups_cost_no_more_memory,
    many_groups::connecting_strangers_of_many_groups_delay_no_user,
    quota::numbers_without_bound_are_refused,
    requests::an_owner_of_the_same_name_is_another_users,
    requests::garbage_costs_only_its_connection,
    requests::names_of_owners_are_no_paths,
    socket::a_mapping_of_a_lease_is_refused,
    socket::socket_that_wakes_many_delays_no_user,
    socket::stranger_learns_nothing,
    socket::unread_answers_return_their_loans,
    socket::descriptors_in_an_unfinished_message_cause_no_shortage,
    socket::half_closed_and_oversized_sockets_delay_no_user,
    socket::half_messages_cost_no_memory_for_good,
    socket::idle_crowds_lock_no_user_out,
    socket::endless_callers_delay_no_other_user,
    socket::peers_that_do_not_read_delay_no_user,
    socket::unread_watches_delay_no_user,
    strange::poison_and_permission_events_are_roots,
    strange::root_of_a_namespace_is_a_stranger,
    strange::the_daemons_directories_are_closed_to_users,
    strange::the_daemons_process_is_closed_to_users,
    strange::the_lease_has_one_end_for_its_borrower,
    tree::tree_file_that_wakes_many_delays_no_user,
    tree::reads_of_the_tree_delay_no_user,
    tree::the_tree_is_written_by_its_group_only,
    tree::writers_of_the_tree_leave_room_for_root,
    tree_calls::queries_open_no_file,
    tree_calls::ioctls_of_the_zeroing_group_are_granted,
    tree_calls::queries_beside_holders_of_sysfs_delay_no_user,
    tree_calls::refused_ioctls_delay_no_user,
    tree_calls::refused_ioctls_of_many_groups_delay_no_user,
    tree_files::names_of_the_tree_cost_the_daemon_no_memory,
    tree_files::open_files_of_the_tree_are_bounded_by_user,
    workers::a_report_of_anothers_job_makes_nothing_ready,
    workers::hoarded_jobs_keep_no_user_from_borrowing,
    workers::only_root_says_how_blocks_are_recycled,
    // The daemon of before is gone then.
    files::leases_on_files_do_not_hold_up_a_start,
];

fn attack(recycle: &'static str, subjects: &[Subject]) {
    let Some(mut stage) = Stage::usual(recycle) else { return };
    subjects.iter().for_each(|attack| attack(&mut stage));
}

// Promise P25.
// Promise P247.
// Promise P248.
#[test]
fn attacks_on_a_daemon_get_errors_and_delay_no_user() {
    attack("auto", &[RECYCLING, OTHERS].concat());
}

#[test]
fn attacks_on_fresh_pools_get_errors_and_delay_no_user() {
    attack("fresh", RECYCLING);
}

#[test]
fn attacks_on_in_place_pools_get_errors_and_delay_no_user() {
    attack("in-place", RECYCLING);
}
