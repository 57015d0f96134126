// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The expectations under a real Kubernetes. Each test begins with a node without loans and ends
//! with one; the node is checked after it.

mod counts;
mod failures;
mod fleet;
mod life;
mod owner;
mod program;
mod ready;
mod scale;

pub(super) use fleet::build_e2e;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::bed::Bed;

/// Says in a line what a person may want to know of it.
pub(super) type Test = fn(&mut Bed) -> Result<String>;

/// In the order in which they run; docs/evidence/kubernetes.md has them by name.
pub(super) const ALL: &[(&str, Test)] = &[
    ("a_real_kubelet_registers_the_driver_that_runs_in_a_pod", life::registered),
    ("a_pod_on_lent_memory_reads_zeros", life::zeros),
    ("a_pod_on_native_huge_pages_is_what_a_claim_is_measured_by", life::measured),
    ("a_container_that_restarts_finds_what_it_left", life::restart),
    ("two_pods_have_each_their_own_memory_and_the_next_one_reads_zeros", life::isolation),
    ("a_descriptor_kept_over_the_end_of_its_pod_opens_nothing", life::thief),
    ("a_descriptor_handed_out_of_a_pod_that_shares_its_processes_opens_nothing", life::smuggler),
    ("a_claim_that_is_counted_as_ready_finds_all_of_it_ready", ready::promised),
    ("a_loan_larger_than_a_block_is_whole", ready::larger),
    ("a_claim_of_three_requests_is_three_files_that_were_ready", ready::several),
    ("what_is_kept_out_of_ready_is_there_for_a_claim_larger_than_a_block", ready::rest),
    ("what_an_owner_leaves_is_found_by_the_next_pod_on_its_claim", owner::found),
    ("a_virtual_machine_has_its_claim_for_memory", program::qemu),
    ("a_pod_that_is_deleted_by_force_gives_its_memory_back", failures::forced),
    ("a_kubelet_that_is_killed_changes_nothing_for_pods", failures::kubelet),
    ("a_daemon_that_is_killed_leaves_pods_their_memory_and_is_tainted", failures::daemon),
    (
        "a_driver_that_is_killed_is_replaced_and_containers_restart_on_their_memory",
        failures::driver,
    ),
    ("an_update_of_the_driver_leaves_loans_alone", failures::update),
    ("a_node_that_lost_power_lends_again_to_the_same_pod", failures::power),
    ("a_quota_refuses_with_its_numbers_in_an_event", counts::quota),
    ("a_native_pod_that_does_not_fit_is_refused_with_the_placeholder", counts::placeholder),
    ("a_native_pod_that_does_not_fit_is_refused_with_the_mapping", counts::mapping),
    ("two_pods_share_a_claim_and_with_the_mapping_do_not", counts::shared),
    ("a_thousand_nodes_are_ranked_by_what_they_have_ready", scale::ranked),
    ("a_hundred_pods_at_once_leave_the_ledger_exact", scale::ledger),
    ("two_nodes_keep_no_loan_of_a_claim_that_is_not_theirs", fleet::two_nodes),
    ("four_hundred_nodes_in_a_storm_write_within_their_budget", fleet::storm),
    ("an_api_server_without_consumable_capacity_is_named_in_an_event", fleet::gate),
];

/// What the tenant has found in its memory: `bytes N content C ...`.
fn found(said: &str) -> Result<(u64, &str)> {
    let mut words = said.split_whitespace();
    let mut after = |name: &str| words.find(|word| *word == name).and_then(|_| words.next());
    let (bytes, content) = (after("bytes").and_then(|n| n.parse().ok()), after("content"));
    match (bytes, content) {
        (Some(bytes), Some(content)) => Ok((bytes, content)),
        _ => anyhow::bail!("the tenant said {said:?}"),
    }
}

/// Fails unless all of the file had this byte.
fn holds(said: &str, bytes: u64, byte: u8) -> Result<()> {
    let (had, content) = found(said)?;
    ensure!(had == bytes, "the file has {had} bytes, and {bytes} were asked for");
    ensure!(content == byte.to_string(), "its content is {content}, and {byte} was expected");
    Ok(())
}

/// Fails unless both are the same loan: by name, path and size.
fn same(before: &Value, after: &Value) -> Result<()> {
    ensure!(before == after, "the loan was {before} and is {after}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_words_are_read_and_others_are_errors() {
        let said = "bytes 4096 content 0 touched_us 12 at_us 3";
        assert_eq!(found(said).unwrap(), (4096, "0"));
        holds(said, 4096, 0).unwrap();
        assert!(holds(said, 4096, 1).is_err());
        assert!(holds(said, 8192, 0).is_err());
        for said in ["", "bytes", "bytes x content 0", "content 0", "mmap of 5 bytes: no"] {
            assert!(found(said).is_err(), "{said:?}");
        }
    }
}
