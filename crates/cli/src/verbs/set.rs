// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero set`: a pool's thresholds, changed while the daemon runs.

use std::str::FromStr;

use book::config::{Amount, unknown};
use units::Pages;
use wire::{PoolChange, PoolStatus, Recycle};

use crate::exit::{Exit, Failure, Outcome};
use crate::output::pools;
use crate::shared::{Daemon, WhichPages};

/// Change a pool's thresholds, or add a pool
///
/// Keys, as in the configuration file: ready (bytes wanted ready, in blocks of all sizes), or of a
/// pool with blocks of one size ready_low (background zeroing starts below it) and ready_high (and
/// stops at it). Also max (the most that the pool may own), leave_free (pages that stay free in the
/// kernel's pool), recycle (auto, fresh, in-place). Amounts are sizes, as 16G, or numbers of pages.
/// Unnamed keys stay as they are; if one value is refused, all stay. The configuration file is left
/// alone. The limits of a resizable pool (size_min, size_max and the like) are set there
/// alone: write it and reload the daemon, as by `systemctl reload prezero`.
///
/// With several pools, name the pool by as many parts as tell it apart. If none fits and
/// --page-size is given, a pool is added, which only root may: of blocks of --pages-per-block or,
/// with ready, of all sizes. The page size must be one that the daemon was started with.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  prezero set ready=64G
  prezero set --page-size 1G ready_low=4G ready_high=8G
  prezero set --node 1 --page-size 2M --pages-per-block 1G ready_high=8G recycle=in-place")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    which: WhichPages,
    /// The pool with blocks of this number of pages, or of this size
    #[arg(long, value_name = "N|SIZE")]
    pages_per_block: Option<Amount>,
    /// What to change
    #[arg(value_name = "KEY=VALUE", required = true)]
    changes: Vec<Change>,
}

/// What can be changed.
pub(crate) const KEYS: [&str; 6] =
    ["ready", "ready_low", "ready_high", "max", "leave_free", "recycle"];

/// One `key=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    Ready(Amount),
    ReadyLow(Amount),
    ReadyHigh(Amount),
    Max(Amount),
    LeaveFree(Amount),
    Recycle(Recycle),
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((key, value)) = text.split_once('=') else {
            return Err("write KEY=VALUE, as in ready=64G".into());
        };
        let amount = || {
            let error = |_| format!("`{value}` is neither a size, as 16G, nor a number of pages");
            value.parse::<Amount>().map_err(error)
        };
        Ok(match key {
            "ready" => Self::Ready(amount()?),
            "ready_low" => Self::ReadyLow(amount()?),
            "ready_high" => Self::ReadyHigh(amount()?),
            "max" => Self::Max(amount()?),
            "leave_free" => Self::LeaveFree(amount()?),
            "recycle" => {
                let ways = ["auto", "fresh", "in-place"];
                let error = |_| unknown(value, "way to recycle", &ways);
                Self::Recycle(value.parse().map_err(error)?)
            }
            key if key.starts_with("size_") => {
                return Err(format!(
                    "`{key}` is set in the configuration: write it there, then `systemctl reload prezero`"
                ));
            }
            _ => return Err(unknown(key, "key", &KEYS)),
        })
    }
}

pub(crate) fn run(args: &Args) -> Outcome {
    let mut client = args.daemon.connect()?;
    let pools = client.status()?.pools;
    let mut change = shape(args, &pools).map_err(Failure::usage)?;
    let page_size = change.page_size;
    let pages = |amount: &Amount| amount.pages(page_size).map(Some).map_err(Failure::usage);
    for one in &args.changes {
        match one {
            Change::Ready(amount) => {
                if change.pages_per_block != Pages(0) {
                    let shape = format!("blocks of {} pages", change.pages_per_block);
                    return Err(Failure::usage(format!(
                        "the pool has {shape}: write ready_high, or name no block size in the configuration"
                    )));
                }
                change.ready_high = pages(amount)?;
            }
            Change::ReadyLow(amount) => change.ready_low = pages(amount)?,
            Change::ReadyHigh(amount) => change.ready_high = pages(amount)?,
            Change::Max(amount) => change.max_pages = pages(amount)?,
            Change::LeaveFree(amount) => change.leave_free = pages(amount)?,
            Change::Recycle(how) => change.recycle = Some(*how),
        }
    }
    client.configure(change)?;
    Ok(Exit::Done)
}

/// The one pool that is meant, without changes.
fn shape(args: &Args, pools: &[PoolStatus]) -> Result<PoolChange, String> {
    let has_blocks = |pool: &PoolStatus| {
        let Some(wanted) = args.pages_per_block else { return true };
        let pages = wanted.pages(pool.page_size);
        pages.is_ok_and(|pages| pages == pool.pages_per_block)
    };
    let meant: Vec<_> = pools
        .iter()
        .filter(|pool| args.which.get().fits(pool.node, pool.page_size))
        .filter(|pool| has_blocks(pool))
        .collect();
    match (&meant[..], args.which.get().page_size) {
        ([pool], _) => Ok(PoolChange {
            node: pool.node,
            page_size: pool.page_size,
            pages_per_block: pool.pages_per_block,
            ..PoolChange::default()
        }),
        ([], Some(page_size)) => {
            let is_mixed = args.changes.iter().any(|one| matches!(one, Change::Ready(_)));
            let pages_per_block = match args.pages_per_block {
                Some(amount) => amount.pages(page_size).map_err(|error| error.to_string())?,
                None => Pages(u64::from(!is_mixed)),
            };
            Ok(PoolChange {
                node: args.which.get().node().unwrap_or_default(),
                page_size,
                pages_per_block,
                ..PoolChange::default()
            })
        }
        ([], None) => {
            Err(format!("no pool is meant: there are {}; name --page-size to add one", list(pools)))
        }
        (several, _) => {
            let several: Vec<_> = several.iter().map(|pool| (*pool).clone()).collect();
            let flags = "--node, --page-size and --pages-per-block";
            Err(format!("several pools are meant: {}; name one by {flags}", list(&several)))
        }
    }
}

fn list(pools: &[PoolStatus]) -> String {
    if pools.is_empty() {
        return "none".into();
    }
    let name =
        |pool: &PoolStatus| format!("node {} {}{}", pool.node, pool.page_size, pools::times(pool));
    pools.iter().map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::{Bytes, Node, PageSize, Pages};

    #[test]
    fn bad_changes_name_allowed_values() {
        assert_eq!("ready_low=4".parse(), Ok(Change::ReadyLow(Amount::Pages(Pages(4)))));
        assert_eq!("ready=64G".parse(), Ok(Change::Ready(Amount::Bytes(Bytes(64 << 30)))));
        assert_eq!("recycle=in-place".parse(), Ok(Change::Recycle(Recycle::InPlace)));
        for (text, part) in [
            ("ready_low", "KEY=VALUE"),
            ("ready_low=-1", "`-1`"),
            ("colour=red", "leave_free"),
            ("size_max=64G", "systemctl reload prezero"),
            ("recycle=never", "auto, fresh, in-place"),
            ("recycle=in_place", "did you mean `in-place`?"),
            ("ready_hihg=4", "did you mean `ready_high`?"),
        ] {
            let error = text.parse::<Change>().unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    fn pool(node: u32, page_bytes: u64, pages_per_block: u64) -> PoolStatus {
        PoolStatus {
            node: Node(node),
            page_size: PageSize::new(page_bytes).expect("a page size"),
            pages_per_block: Pages(pages_per_block),
            recycle: Recycle::Fresh,
            ..PoolStatus::default()
        }
    }

    fn shape_of(line: &str, pools: &[PoolStatus]) -> Result<(u32, u64, u64), String> {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let line: Line = clap::Parser::parse_from(format!("set {line} max=1").split_whitespace());
        shape(&line.args, pools).map(|c| (c.node.0, c.page_size.bytes(), c.pages_per_block.0))
    }

    #[test]
    fn pool_name_has_only_the_necessary_parts() {
        let pools = [pool(0, 2 << 20, 1), pool(0, 1 << 30, 1), pool(1, 1 << 30, 8)];
        assert_eq!(shape_of("--page-size 2M", &pools), Ok((0, 2 << 20, 1)));
        assert_eq!(shape_of("--node 1", &pools), Ok((1, 1 << 30, 8)));
        assert_eq!(shape_of("", &pools[..1]), Ok((0, 2 << 20, 1)));
        let several = shape_of("--page-size 1G", &pools).unwrap_err();
        assert!(several.contains("node 1 1G x 8"), "{several}");
    }

    #[test]
    fn a_pool_that_is_not_there_is_added_only_by_its_page_size() {
        assert_eq!(shape_of("--page-size 2M --pages-per-block 4", &[]), Ok((0, 2 << 20, 4)));
        assert_eq!(shape_of("--page-size 2M --pages-per-block 1G", &[]), Ok((0, 2 << 20, 512)));
        assert_eq!(shape_of("--page-size 2M ready=1G", &[]), Ok((0, 2 << 20, 0)));
        assert!(shape_of("--node 3", &[]).unwrap_err().contains("--page-size"));
    }
}
