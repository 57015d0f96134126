// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What keeps the service from its best, with a remedy for each cause.
//!
//! States are read off the pools and the configuration at each look. Incidents (a refused loan, a
//! refused configuration) are recorded as they happen, and told of for [`RECENT_PERIOD`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use book::config::Config;
use book::{Asked, Refusal};
use units::{Bytes, Domain, Node, Pages, Uid};
use wire::{Ailment, AilmentCause, Health, PoolStatus};

use super::Shell;

/// How long an incident is part of the service's health.
const RECENT_PERIOD: Duration = Duration::from_secs(3600);

/// The last incident of a kind.
#[derive(Debug)]
struct Incident {
    uid: Uid,
    /// The process, where it is known.
    pid: Option<u32>,
    /// What was asked for; 0 for a connection.
    bytes: Bytes,
    /// What happened, without the user.
    what: String,
    at: Instant,
    /// How many of its kind there were, and how many of them the log has.
    count: u64,
    logged: u64,
}

/// What happened, the last of each kind.
#[derive(Debug, Default)]
pub(crate) struct Incidents {
    recent: BTreeMap<AilmentCause, Incident>,
    /// Why the configuration on disk does not hold.
    reload: Option<String>,
    /// Parts of the interface that are not served, and why.
    listeners: BTreeMap<&'static str, String>,
    /// The nodes with memory.
    nodes: Vec<Node>,
}

/// One incident, as the log has it.
#[derive(Debug)]
pub(crate) struct LoggedIncident {
    pub(crate) cause: AilmentCause,
    pub(crate) uid: Uid,
    pub(crate) pid: Option<u32>,
    pub(crate) bytes: Bytes,
    pub(crate) what: String,
    /// How many of its kind there were since the last line.
    pub(crate) count: u64,
}

impl Incidents {
    fn record(
        &mut self,
        cause: AilmentCause,
        uid: Uid,
        pid: Option<u32>,
        bytes: Bytes,
        what: String,
    ) {
        let (count, logged) = self.recent.get(&cause).map_or((0, 0), |of| (of.count, of.logged));
        let (at, count) = (Instant::now(), count + 1);
        self.recent.insert(cause, Incident { uid, pid, bytes, what, at, count, logged });
    }

    /// A user that has no right to connect tried to.
    pub(crate) fn stranger(&mut self, uid: Uid, pid: Option<u32>) {
        let what = "is in no group that may borrow".to_owned();
        self.record(AilmentCause::Stranger, uid, pid, Bytes(0), what);
    }

    /// A loan was refused.
    pub(crate) fn refused(&mut self, asked: &Asked, refusal: &Refusal) {
        let (cause, what) = match refusal {
            Refusal::Quota { held, quota } => {
                (AilmentCause::Quota, format!("holds {held} of a quota of {quota}"))
            }
            Refusal::ScopeQuota { held, quota } => (
                AilmentCause::Quota,
                format!("holds {held} of a quota of {quota} in the loan's scope"),
            ),
            Refusal::NotEnough { page_size, ready, free, in_use, .. } => {
                let there = format!("{ready} are ready, {free} free and {in_use} in use");
                (AilmentCause::Shortage, format!("of {page_size} pages {there}"))
            }
            // The borrower's own fault, and no matter of the service's.
            Refusal::Size(_)
            | Refusal::NoSuchPool
            | Refusal::OwnerDraining
            | Refusal::NameTaken
            | Refusal::NameBusy
            | Refusal::TooManyNames => return,
        };
        self.record(cause, asked.account, None, asked.request.bytes, what);
    }

    /// A loan was granted, of `ready` ready pages, while other blocks with as much as it lacks were
    /// ready: none of them is large enough.
    fn partly_ready(
        &mut self,
        uid: Uid,
        bytes: Bytes,
        ready: Bytes,
        elsewhere: Bytes,
        block: Bytes,
    ) {
        let what = format!("found {ready} ready, and {elsewhere} more in other blocks of {block}");
        self.record(AilmentCause::Blocks, uid, None, bytes, what);
    }

    /// The configuration was read again: it holds, or why it does not.
    pub(crate) fn reloaded(&mut self, refused: Option<String>) {
        self.reload = refused;
    }

    /// A part of the interface is served, or why it is not.
    pub(crate) fn listens(&mut self, part: &'static str, failed: Option<String>) {
        match failed {
            Some(why) => self.listeners.insert(part, why),
            None => self.listeners.remove(part),
        };
    }

    /// The nodes with memory.
    pub(crate) fn set_nodes(&mut self, nodes: Vec<Node>) {
        self.nodes = nodes;
    }

    /// Incidents that the log has yet to tell, each at most once an interval: the caller has one.
    pub(crate) fn take_unlogged(&mut self) -> Vec<LoggedIncident> {
        let unlogged = self.recent.iter_mut().filter(|(_, of)| of.count > of.logged);
        unlogged
            .map(|(cause, of)| {
                let count = of.count - std::mem::replace(&mut of.logged, of.count);
                let Incident { uid, pid, bytes, what, .. } = of;
                LoggedIncident {
                    cause: *cause,
                    uid: *uid,
                    pid: *pid,
                    bytes: *bytes,
                    what: what.clone(),
                    count,
                }
            })
            .collect()
    }
}

/// What the health is judged by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Examined<'a> {
    pub(super) pools: &'a [PoolStatus],
    pub(super) config: &'a Config,
    /// Pages of the kernel's pools; none where they are not what limits the daemon.
    pub(super) totals: &'a BTreeMap<Domain, Pages>,
    pub(super) drained: bool,
    pub(super) paused: bool,
    pub(super) fresh_reason: Option<&'a str>,
    pub(super) unknown_files: u64,
}

impl Shell {
    /// The word for the service's health, and the causes behind it.
    pub(super) fn health(&self, seen: Examined<'_>) -> (Health, Vec<Ailment>) {
        let ailments = ailments(&self.incidents, seen);
        let health = match () {
            () if seen.drained => Health::Drained,
            () if seen.paused => Health::Paused,
            () if ailments.iter().any(|ailment| ailment.cause.is_ailing()) => Health::Degraded,
            () => Health::Healthy,
        };
        (health, ailments)
    }

    /// A loan was granted: an incident if it is partly unbacked beside enough ready memory.
    pub(super) fn judge_grant(&mut self, asked: &Asked, loan: &book::Loan) {
        let size = loan.page_size;
        let sum = |of: fn(&book::LoanPart) -> Pages| loan.parts.iter().map(of).sum::<Pages>();
        let (pages, ready) = (sum(|part| part.pages), sum(|part| part.ready));
        let missing = pages.saturating_sub(ready);
        if loan.kept || missing == Pages::ZERO {
            return;
        }
        // A pool of all sizes learns from the loan, and has a block for the next one.
        let nodes = |node| asked.request.node.is_none_or(|wanted| wanted == node);
        let fixed = self
            .book
            .pool_keys()
            .filter(|key| key.page_size == size && !key.is_mixed() && nodes(key.node));
        let counts = fixed.filter_map(|key| {
            let status = self.book.pool_status(key, &self.observed.counts(key.domain()))?;
            Some((status.ready_pages, key.pages_per_block))
        });
        let (left, block) = counts
            .fold((Pages::ZERO, Pages::ZERO), |(left, block), (ready, size)| {
                (left + ready, block.max(size))
            });
        if left >= missing {
            let [all, ready, left, block] = [pages, ready, left, block].map(|of| of.bytes(size));
            self.incidents.partly_ready(asked.account, all, ready, left, block);
        }
    }
}

fn ailment(cause: AilmentCause, found: String, remedy: &str, command: Option<String>) -> Ailment {
    Ailment { cause, found, remedy: remedy.to_owned(), command }
}

/// All causes, the gravest first.
fn ailments(incidents: &Incidents, seen: Examined<'_>) -> Vec<Ailment> {
    let mut all = Vec::new();
    all.extend(operators(seen));
    all.extend(incidents.reload.as_ref().map(|error| {
        let found = format!("the configuration on disk was refused, and the last good one holds: {error}");
        let command = "sudo prezero serve --config /etc/prezero/prezero.toml --check && sudo systemctl reload prezero";
        ailment(AilmentCause::Reload, found, "mend the file, then reload", Some(command.to_owned()))
    }));
    all.extend(recent(incidents, seen.config));
    all.extend(kernels_pools(seen));
    all.extend(incidents.listeners.iter().map(|(part, why)| {
        let remedy = "free the address or change it, then reload; all else is served";
        let found = format!("{part} is not served: {why}");
        ailment(
            AilmentCause::Listener,
            found,
            remedy,
            Some("sudo systemctl reload prezero".to_owned()),
        )
    }));
    all.extend((seen.unknown_files > 0).then(|| {
        let found = format!("unknown blocks on the daemon's mounts: {}", seen.unknown_files);
        let remedy = "a restart takes them over or gives their pages back, and ends no loan";
        ailment(
            AilmentCause::Files,
            found,
            remedy,
            Some("sudo systemctl restart prezero".to_owned()),
        )
    }));
    all.extend(bare_nodes(incidents, seen));
    // Whether pins are seen is tried on a free page.
    let is_tried = |one: &Ailment| !matches!(one.cause, AilmentCause::Pool | AilmentCause::Taken);
    let fresh_reason = seen.fresh_reason.filter(|_| all.iter().all(is_tried));
    all.extend(fresh_reason.map(|reason| {
        let found = format!("returned memory is cleared anew, at more CPU time: {reason}");
        let remedy =
            "a kernel with BTF, and CAP_BPF and CAP_PERFMON for the daemon, show pinned pages";
        ailment(AilmentCause::Fresh, found, remedy, Some("ls /sys/kernel/btf/vmlinux".to_owned()))
    }));
    all
}

/// What an operator has ordered, perhaps long ago.
fn operators(seen: Examined<'_>) -> Vec<Ailment> {
    let mut all = Vec::new();
    if seen.drained {
        let found =
            "`prezero drain` empties the pools, over restarts: nothing is kept ready".to_owned();
        let command = Some("sudo prezero drain --end".to_owned());
        all.push(ailment(
            AilmentCause::Drained,
            found,
            "end it when the maintenance is over",
            command,
        ));
    }
    if seen.paused {
        let found = match seen.config.workers.pause_above_pressure {
            Some(percent) => format!("zeroing waits for CPU pressure to fall below {percent} %"),
            None => "zeroing waits for CPU pressure to fall".to_owned(),
        };
        let remedy = "it goes on by itself; raise pause_above_pressure, or zero by hand";
        all.push(ailment(
            AilmentCause::Pressure,
            found,
            remedy,
            Some("sudo prezero zero".to_owned()),
        ));
    }
    let missing: Bytes = seen.pools.iter().map(missing).sum();
    if seen.config.workers.max == 0 && missing > Bytes(0) && !seen.drained {
        let found = format!("workers.max is 0, and {missing} are wanted ready and are missing");
        let remedy = "set workers.max to 1 and reload, or zero by hand";
        all.push(ailment(
            AilmentCause::Workers,
            found,
            remedy,
            Some("sudo prezero zero".to_owned()),
        ));
    }
    all
}

/// What a pool lacks.
fn missing(pool: &PoolStatus) -> Bytes {
    match pool.ready_pages < pool.ready_low {
        true => pool.ready_high.saturating_sub(pool.ready_pages).bytes(pool.page_size),
        false => Bytes(0),
    }
}

/// Incidents that are part of the health.
fn recent(incidents: &Incidents, config: &Config) -> Vec<Ailment> {
    let recent = incidents.recent.iter().filter(|(_, of)| of.at.elapsed() < RECENT_PERIOD);
    recent
        .map(|(cause, of)| {
            let Incident { uid, bytes, what, at, count, .. } = of;
            let minutes = at.elapsed().as_secs() / 60;
            let since = format!("{count} times, last {minutes} min ago");
            let (found, remedy, command) = match cause {
                AilmentCause::Stranger => {
                    let (remedy, command) = may_borrow(config, *uid);
                    (format!("user {uid} may not borrow ({since}): it {what}"), remedy, command)
                }
                AilmentCause::Quota => (
                    format!("user {uid} was refused {bytes} ({since}): it {what}"),
                    "raise `quota`, or have the user return memory".to_owned(),
                    "sudo prezero holders".to_owned(),
                ),
                AilmentCause::Blocks => (
                    format!("a loan of {bytes} {what} ({since}): none is large enough"),
                    "write `ready` in place of pages_per_block and ready_high, which learns sizes, \
                     or pages_per_block as large as the guests"
                        .to_owned(),
                    "sudoedit /etc/prezero/prezero.toml && sudo systemctl reload prezero".to_owned(),
                ),
                _ => (
                    format!("user {uid} was refused {bytes} ({since}): {what}"),
                    "reserve more pages, or set size_max, so that the kernel's pool grows".to_owned(),
                    "prezero doctor".to_owned(),
                ),
            };
            ailment(*cause, found, &remedy, Some(command))
        })
        .collect()
}

/// How a user gets the right to borrow.
fn may_borrow(config: &Config, uid: Uid) -> (String, String) {
    match &config.lend_group {
        Some(group) => (
            format!("add it to {group} (lend_group), and start its programs anew"),
            format!("sudo usermod -aG {group} \"$(id -nu {uid})\""),
        ),
        None => (
            "name a group of that user as lend_group, and reload".to_owned(),
            "sudoedit /etc/prezero/prezero.toml && sudo systemctl reload prezero".to_owned(),
        ),
    }
}

/// Where the kernel's pool is too small, or used by others.
fn kernels_pools(seen: Examined<'_>) -> Vec<Ailment> {
    let mut all = Vec::new();
    for (domain, total) in seen.totals {
        let size = domain.page_size;
        let of =
            || seen.pools.iter().filter(|pool| pool.node == domain.node && pool.page_size == size);
        if let Some(why) = of().find_map(|pool| pool.resize.as_ref()?.short_because.as_ref()) {
            let found = format!("{domain}: the kernel's pool is smaller than wanted: {why}");
            let remedy = "free memory on that node, or lower size_free or what is to be ready";
            let command = Some("prezero doctor".to_owned());
            all.push(ailment(AilmentCause::Resize, found, remedy, command));
            continue;
        }
        if seen.drained || of().any(|pool| pool.resize.is_some()) {
            continue;
        }
        let sum = |pages: fn(&PoolStatus) -> Pages| of().map(pages).sum::<Pages>();
        let (wanted, low) = (sum(|pool| pool.ready_high), sum(|pool| pool.ready_low));
        let free = of().map(|pool| pool.kernel_free_pages).max().unwrap_or_default();
        let owned = sum(|pool| {
            pool.ready_pages
                + pool.zeroing_pages
                + pool.lent_pages
                + pool.kept_pages
                + pool.draining_pages
        });
        if *total < wanted {
            let [wanted_bytes, total] = [wanted, *total].map(|pages| pages.bytes(size));
            let found = format!(
                "{domain}: {wanted_bytes} are wanted ready, and the kernel's pool has {total}"
            );
            let command = format!("sudo prezero reserve {}:{size}={wanted_bytes}", domain.node);
            let remedy = "reserve more, by [[reserve]] at boot, or set size_max";
            all.push(ailment(AilmentCause::Pool, found, remedy, Some(command)));
            continue;
        }
        let ready = sum(|pool| pool.ready_pages + pool.zeroing_pages + pool.zeroable_pages);
        let others = total.saturating_sub(free).saturating_sub(owned);
        if low > ready && others >= low.saturating_sub(ready) {
            let [others, total] = [others, *total].map(|pages| pages.bytes(size));
            let found = format!("{domain}: programs without prezero use {others} of {total}");
            let remedy = "end them, or reserve more pages";
            let command = "sudo grep -lE '^(Private|Shared)_Hugetlb: *[1-9]' /proc/[0-9]*/smaps";
            all.push(ailment(AilmentCause::Taken, found, remedy, Some(command.to_owned())));
        }
    }
    all
}

/// Nodes whose programs find nothing ready.
fn bare_nodes(incidents: &Incidents, seen: Examined<'_>) -> Vec<Ailment> {
    let has_pool = |node: &&Node| seen.pools.iter().any(|pool| pool.node == **node);
    let bare = incidents.nodes.iter().filter(|node| !has_pool(node));
    let found = |node: &Node| {
        let found = format!("node {node} has memory and no pool: nothing is ready there");
        let remedy = "leave `node` out of a [[pool]], which is for all nodes then";
        ailment(AilmentCause::Node, found, remedy, None)
    };
    bare.filter(|_| !seen.pools.is_empty()).map(found).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::PageSize;
    use wire::ResizeStatus;

    const SIZE: PageSize = PageSize::MIB_2;

    fn pool(ready: u64, low: u64, high: u64, free: u64) -> PoolStatus {
        PoolStatus {
            page_size: SIZE,
            ready_pages: Pages(ready),
            zeroable_pages: Pages(free),
            ready_low: Pages(low),
            ready_high: Pages(high),
            kernel_free_pages: Pages(free),
            ..PoolStatus::default()
        }
    }

    /// The causes with that pool, where the kernel's has `total` pages.
    fn causes_with(
        pool: PoolStatus,
        total: u64,
        change: impl FnOnce(&mut Incidents, &mut Config, &mut Examined<'_>),
    ) -> Vec<Ailment> {
        let (mut incidents, mut config) = (Incidents::default(), Config::default());
        let totals = [(Domain { node: Node(0), page_size: SIZE }, Pages(total))].into();
        let pools = [pool];
        let empty = Config::default();
        let mut seen = Examined {
            pools: &pools,
            config: &empty,
            totals: &totals,
            drained: false,
            paused: false,
            fresh_reason: None,
            unknown_files: 0,
        };
        incidents.set_nodes(vec![Node(0)]);
        change(&mut incidents, &mut config, &mut seen);
        ailments(&incidents, Examined { config: &config, ..seen })
    }

    fn only(all: &[Ailment], cause: AilmentCause, parts: &[&str]) {
        assert_eq!(all.iter().map(|one| one.cause).collect::<Vec<_>>(), [cause], "{all:#?}");
        let Ailment { found, remedy, command, .. } = &all[0];
        let text = format!("{found}; {remedy}; {}", command.as_deref().unwrap_or(""));
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn full_pool_and_pool_without_a_target_are_healthy() {
        for pool in [pool(8, 4, 8, 0), pool(0, 0, 0, 0), pool(4, 4, 8, 4), pool(0, 8, 8, 8)] {
            assert_eq!(causes_with(pool, 16, |_, _, _| {}), []);
        }
    }

    // Promise P325 (operator): Each cause that keeps the service from its best is named by the word
    // of `status`, by `doctor` with remedy and command, by the log and by a metric.
    #[test]
    fn each_state_names_cause_remedy_and_command() {
        let healthy = || pool(8, 4, 8, 0);
        let drained = causes_with(pool(0, 8, 8, 8), 16, |_, _, seen| seen.drained = true);
        only(&drained, AilmentCause::Drained, &["prezero drain --end"]);
        let paused = causes_with(healthy(), 16, |_, config, seen| {
            (config.workers.pause_above_pressure, seen.paused) = (Some(40), true);
        });
        only(&paused, AilmentCause::Pressure, &["40 %"]);
        let workers = causes_with(pool(0, 8, 8, 16), 16, |_, config, _| config.workers.max = 0);
        only(&workers, AilmentCause::Workers, &["workers.max is 0", "16M", "prezero zero"]);
        let reload = causes_with(healthy(), 16, |incidents, _, _| {
            incidents.reloaded(Some("line 3: `redy` is no key".into()));
        });
        only(&reload, AilmentCause::Reload, &["line 3", "--check"]);
        let small = causes_with(pool(0, 8, 8, 4), 4, |_, _, _| {});
        only(
            &small,
            AilmentCause::Pool,
            &["16M are wanted ready", "pool has 8M", "reserve 0:2M=16M"],
        );
        let taken = causes_with(pool(1, 8, 8, 0), 16, |_, _, _| {});
        only(&taken, AilmentCause::Taken, &["use 30M of 32M", "smaps"]);
        let lent = PoolStatus { lent_pages: Pages(15), ..pool(1, 8, 8, 0) };
        assert_eq!(causes_with(lent, 16, |_, _, _| {}), [], "its own loans use them");
        let resize =
            ResizeStatus { short_because: Some("memory".into()), ..ResizeStatus::default() };
        let short = PoolStatus { resize: Some(resize), ..pool(0, 8, 8, 0) };
        only(&causes_with(short, 4, |_, _, _| {}), AilmentCause::Resize, &["memory"]);
        let listener = causes_with(healthy(), 16, |incidents, _, _| {
            incidents.listens("metrics", Some("address in use".into()));
        });
        only(&listener, AilmentCause::Listener, &["metrics is not served: address in use"]);
        let bare = causes_with(healthy(), 16, |incidents, _, _| {
            incidents.set_nodes(vec![Node(0), Node(1)]);
        });
        only(&bare, AilmentCause::Node, &["node 1 has memory and no pool"]);
        let untried =
            causes_with(pool(1, 8, 8, 0), 16, |_, _, seen| seen.fresh_reason = Some("no page"));
        only(&untried, AilmentCause::Taken, &["smaps"]);
        let fresh = causes_with(healthy(), 16, |_, _, seen| seen.fresh_reason = Some("no BTF"));
        only(&fresh, AilmentCause::Fresh, &["no BTF", "CAP_BPF"]);
        let files = causes_with(healthy(), 16, |_, _, seen| seen.unknown_files = 3);
        only(&files, AilmentCause::Files, &["mounts: 3", "restart"]);
    }

    #[test]
    fn incidents_have_user_size_and_remedy_and_are_logged_once() {
        let stranger = |incidents: &mut Incidents, config: &mut Config, _: &mut Examined<'_>| {
            config.lend_group = Some("kvm".into());
            incidents.stranger(Uid(64_055), Some(7));
            incidents.stranger(Uid(64_055), Some(8));
            let logged = incidents.take_unlogged();
            assert_eq!((logged[0].count, logged[0].pid), (2, Some(8)));
            assert!(incidents.take_unlogged().is_empty());
        };
        let parts = ["user 64055 may not borrow (2 times", "kvm", "usermod -aG kvm"];
        only(&causes_with(pool(8, 4, 8, 0), 16, stranger), AilmentCause::Stranger, &parts);
        let blocks = |incidents: &mut Incidents, _: &mut Config, _: &mut Examined<'_>| {
            let [all, ready, left, block] = [1 << 30, 256 << 20, 1 << 30, 256 << 20].map(Bytes);
            incidents.partly_ready(Uid(0), all, ready, left, block);
        };
        let parts = ["a loan of 1G found 256M ready, and 1G more in other blocks of 256M"];
        only(&causes_with(pool(8, 4, 8, 0), 16, blocks), AilmentCause::Blocks, &parts);
        let old = |incidents: &mut Incidents, _: &mut Config, _: &mut Examined<'_>| {
            incidents.stranger(Uid(1), None);
            let incident =
                incidents.recent.get_mut(&AilmentCause::Stranger).expect("it was recorded");
            if let Some(then) = Instant::now().checked_sub(RECENT_PERIOD) {
                incident.at = then;
                assert!(incident.at.elapsed() >= RECENT_PERIOD);
            } else {
                incidents.recent.clear();
            }
        };
        assert_eq!(causes_with(pool(8, 4, 8, 0), 16, old), []);
    }
}
