// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero serve`: the daemon.

use std::ffi::OsString;
use std::path::PathBuf;

use book::config::{Config, Listen, PoolConfig, Provider};
use tracing_subscriber::filter::LevelFilter;
use units::{Bytes, Uid};
use wire::DEFAULT_SOCKET;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::log;

/// Run the daemon: own huge pages, keep them zeroed, lend them
///
/// What it does is said by a TOML file (--config), by flags, or both; a flag overrides its field of
/// the file, and a --pool replaces the file's pool of the same node, page size and block. It runs in
/// the foreground, logs to standard error, and ends at SIGTERM or SIGINT. Ready and lent memory
/// survives that: the next daemon finds it. At SIGHUP it reads the file again; one that is refused
/// changes nothing, and one that is not replaces what `prezero set` has changed, too.
///
/// Started by systemd it takes the socket of a socket unit, reports that it is ready, feeds the
/// watchdog, and has what its next start needs kept.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Examples:
  prezero serve --pool page_size=1G,ready_high=8
  prezero serve --config /etc/prezero/prezero.toml --workers 4 --worker-cpus 0-3
  prezero serve --config /etc/prezero/prezero.toml --check && systemctl reload prezero
  prezero serve --pool page_size=2M,pages_per_block=512,ready_low=1024,ready_high=4096

Fields of a pool, with their defaults:
  node=0, page_size, pages_per_block=1, leave_free=0, max (none)
  ready_high=0       zero in the background up to so many pages; 0 only on request
  ready_low          ... as soon as fewer than this are ready; default ready_high
  recycle=fresh      or in-place: several times as fast, for one trust domain")]
pub(crate) struct Args {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only say whether file and flags are good
    #[arg(long)]
    check: bool,
    /// Where to listen
    #[arg(long, value_name = "PATH", env = "PREZERO_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// The directory of mounts, leases and the tree
    #[arg(long, value_name = "DIR", default_value = "/run/prezero")]
    run_dir: PathBuf,
    /// A pool, as in page_size=1G,ready_high=8; may be repeated
    #[arg(long = "pool", value_name = "FIELD=VALUE,...")]
    pools: Vec<PoolConfig>,
    /// Where ready pages come from: the `kernel`'s own pool, on one that knows which of its pages are
    /// zero, or blocks that the daemon owns (`stock`); `auto` takes the kernel's if it is there
    #[arg(long, value_name = "stock|kernel|auto", conflicts_with = "plain")]
    provider: Option<Provider>,
    /// Plain memory instead of huge pages: for trying it out, without root
    #[arg(long)]
    plain: bool,
    /// The most workers of its own at a time; 0 leaves zeroing to `prezero zero`
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
    /// CPUs for its workers, as in 0-3,8 (default: those of the pool's node)
    #[arg(long, value_name = "LIST")]
    worker_cpus: Option<String>,
    /// Their nice value, -20 to 19 (default: 19)
    #[arg(long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(-20..=19))]
    worker_nice: Option<i32>,
    /// Whether they run only when nobody else wants the CPU (default: true)
    #[arg(long, value_name = "BOOL")]
    worker_sched_idle: Option<bool>,
    /// A cgroup for them, made if it is missing
    #[arg(long, value_name = "DIR")]
    worker_cgroup: Option<PathBuf>,
    /// Pause them while CPU pressure (PSI, some avg10) is above so many percent
    #[arg(long, value_name = "PERCENT")]
    pause_above_pressure: Option<u8>,
    /// Members of this group may borrow, besides root
    #[arg(long, value_name = "GROUP")]
    lend_group: Option<String>,
    /// Members of this group may zero and configure, besides root
    #[arg(long, value_name = "GROUP")]
    zero_group: Option<String>,
    /// Trust that group as root: its workers get blocks that others borrow (default: false)
    #[arg(long, value_name = "BOOL")]
    trust_zero_group: Option<bool>,
    /// Mount the control tree here (default: tree in the run directory, if it can be mounted)
    #[arg(long, value_name = "DIR", conflicts_with = "no_tree")]
    tree: Option<PathBuf>,
    /// Do without the control tree
    #[arg(long)]
    no_tree: bool,
    /// The group of its files, whose members may write them (default: --zero-group)
    #[arg(long, value_name = "GROUP")]
    tree_group: Option<String>,
    /// The mode of its files that can be written, as in 664
    #[arg(long, value_name = "OCTAL", value_parser = octal)]
    tree_mode: Option<u32>,
    /// The most that one user may hold
    #[arg(long, value_name = "SIZE")]
    quota: Option<Bytes>,
    /// The same for one user; may be repeated
    #[arg(long, value_name = "UID=SIZE", value_parser = quota_of)]
    quota_of: Vec<(Uid, Bytes)>,
    /// Serve metrics for Prometheus there: an address with a port, or an absolute path
    #[arg(long, value_name = "ADDR|PATH")]
    metrics: Option<Listen>,
    /// What to log: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", env = "PREZERO_LOG", default_value = "info")]
    log: LevelFilter,
}

fn quota_of(text: &str) -> Result<(Uid, Bytes), String> {
    let (uid, size) = text.split_once('=').ok_or("write UID=SIZE, as in 1000=8G")?;
    let uid = uid.parse().map_err(|_| format!("`{uid}` is not a user number"))?;
    let size = size.parse().map_err(|error: units::ParseError| error.to_string())?;
    Ok((Uid(uid), size))
}

fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8).map_err(|_| format!("`{text}` is not an octal number, as in 664"))
}

pub(crate) fn run(args: Args) -> Outcome {
    if args.check {
        config(&args)?;
        return Ok(Exit::Done);
    }
    log::to_standard_error(args.log);
    daemon::serve(options(args)?)?;
    Ok(Exit::Done)
}

/// What file and flags say together; of `args` nothing else is looked at.
fn config(args: &Args) -> Result<Config, Failure> {
    let file = match &args.config {
        None => Config::default(),
        Some(path) => {
            let failed = |error: &dyn std::fmt::Display| {
                Failure::usage(format!("{}: {error}", path.display()))
            };
            let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
            Config::from_toml(&text).map_err(|error| failed(&error))?
        }
    };
    let config = merge(file, args.clone());
    config.check().map_err(Failure::usage)?;
    Ok(config)
}

fn options(args: Args) -> Result<daemon::Options, Failure> {
    let program = std::env::current_exe()?;
    let mut worker_command: Vec<OsString> = vec![program.into()];
    let words = ["zero", "--socket"];
    worker_command.extend(words.map(OsString::from));
    worker_command.push(args.socket.clone().into());
    Ok(daemon::Options {
        socket: args.socket.clone(),
        run_dir: args.run_dir.clone(),
        config: config(&args)?,
        plain: args.plain,
        worker_command,
        source: Some(daemon::ConfigSource::new(move || {
            config(&args).map_err(|failure| failure.to_string())
        })),
        managed: true,
        roots: linux::Roots::default(),
    })
}

/// The file with every flag that was given over it.
fn merge(mut config: Config, args: Args) -> Config {
    fn over<T>(field: &mut T, flag: Option<T>) {
        if let Some(value) = flag {
            *field = value;
        }
    }
    over(&mut config.provider, args.provider);
    let workers = &mut config.workers;
    over(&mut workers.max, args.workers);
    over(&mut workers.cpus, args.worker_cpus.map(Some));
    over(&mut workers.nice, args.worker_nice);
    over(&mut workers.sched_idle, args.worker_sched_idle);
    over(&mut workers.cgroup, args.worker_cgroup.map(Some));
    over(&mut workers.pause_above_pressure, args.pause_above_pressure.map(Some));
    over(&mut config.lend_group, args.lend_group.map(Some));
    over(&mut config.zero_group, args.zero_group.map(Some));
    over(&mut config.trust_zero_group, args.trust_zero_group);
    let tree = &mut config.tree;
    let named = args.tree.is_some().then_some(true);
    over(&mut tree.enabled, named.or(args.no_tree.then_some(false)).map(Some));
    over(&mut tree.path, args.tree.map(Some));
    over(&mut tree.group, args.tree_group.map(Some));
    over(&mut tree.mode, args.tree_mode.map(Some));
    over(&mut config.quota, args.quota.map(Some));
    over(&mut config.metrics.listen, args.metrics.map(Some));
    config.quota_of.extend(args.quota_of);
    config.pools.retain(|pool| args.pools.iter().all(|flag| flag.key() != pool.key()));
    config.pools.extend(args.pools);
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        Line::parse_from(format!("serve {line}").split_whitespace()).args
    }

    const FILE: &str = r#"
        quota = "1G"
        quota_of = { 7 = "2G" }
        [workers]
        max = 3
        cpus = "0-1"
        [[pool]]
        page_size = "1G"
        ready_high = 1
        [[pool]]
        page_size = "2M"
    "#;

    #[test]
    fn every_flag_says_the_same_as_its_field() {
        let flags = args(
            "--workers 4 --worker-cpus 0-3 --worker-nice -5 --worker-sched-idle false \
             --worker-cgroup /a --pause-above-pressure 40 --lend-group kvm --zero-group wheel \
             --quota 64G --quota-of 1000=8G --metrics [::1]:9464 --provider stock \
             --tree /run/zero --tree-group kvm --tree-mode 660 \
             --pool page_size=1G,ready_high=8",
        );
        let file = Config::from_toml(
            r#"
            provider = "stock"
            lend_group = "kvm"
            zero_group = "wheel"
            quota = "64G"
            quota_of = { 1000 = "8G" }
            [workers]
            max = 4
            cpus = "0-3"
            nice = -5
            sched_idle = false
            cgroup = "/a"
            pause_above_pressure = 40
            [tree]
            enabled = true
            path = "/run/zero"
            group = "kvm"
            mode = 0o660
            [metrics]
            listen = "[::1]:9464"
            [[pool]]
            page_size = "1G"
            ready_high = 8
            "#,
        );
        assert_eq!(merge(Config::default(), flags), file.unwrap());
    }

    #[test]
    fn flags_override_the_file_and_leave_the_rest() {
        let file = Config::from_toml(FILE).unwrap();
        let config = merge(
            file.clone(),
            args("--quota-of 8=3G --pool page_size=1G,ready_high=5 --workers 0"),
        );
        assert_eq!((config.workers.max, config.workers.cpus.as_deref()), (0, Some("0-1")));
        assert_eq!(config.quota_of.len(), 2);
        assert_eq!(config.pools.len(), 2);
        assert_eq!(config.pools[1].ready_high.0, 5);
        assert_eq!(merge(file.clone(), args("")), file);
        assert_eq!(merge(file, args("--no-tree")).tree.enabled, Some(false));
    }
}
