// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What several verbs ask for: which daemon, and which pages.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use book::config::Amount;
use clap::Args;
use client::{Client, DEFAULT_SOCKET};
use units::{Node, PageSize, Pages};
use wire::PoolStatus;

use crate::exit::Failure;

/// Which daemon.
#[derive(Debug, Args)]
pub(crate) struct Daemon {
    /// The daemon's socket
    #[arg(long, value_name = "PATH", env = "PREZERO_SOCKET", default_value = DEFAULT_SOCKET)]
    pub(crate) socket: PathBuf,
}

/// Which pages.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct WhichPages {
    /// Only pages of this NUMA node
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// Only pages of this size, as in 2M or 1G
    #[arg(long, value_name = "SIZE")]
    page_size: Option<PageSize>,
}

impl WhichPages {
    pub(crate) fn get(&self) -> worker::Which {
        worker::Which::new(self.node.map(Node), self.page_size)
    }
}

/// An amount, or the word for no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    All,
    Some(Amount),
}

impl Limit {
    /// Reads an amount of at least a page, or `word`.
    pub(crate) fn parse(text: &str, word: &str) -> Result<Self, String> {
        if text == word {
            return Ok(Self::All);
        }
        match text.parse() {
            Ok(Amount::Pages(Pages(0)) | Amount::Bytes(units::Bytes(0))) => {
                Err(format!("nothing was asked for: write at least one page, or `{word}`"))
            }
            Ok(amount) => Ok(Self::Some(amount)),
            Err(error @ units::ParseError::TooLarge(_)) => Err(error.to_string()),
            Err(_) => Err(format!(
                "`{text}` is no amount: write a size, as in 4G, a number of pages, or `{word}`"
            )),
        }
    }
}

/// An amount in pages. A size needs one page size: the one that is named, or the only one of the
/// pools that are meant.
pub(crate) fn in_pages(
    amount: Amount,
    which: WhichPages,
    pools: impl FnOnce() -> Result<Vec<PoolStatus>, Failure>,
) -> Result<Pages, Failure> {
    let which = which.get();
    if let Amount::Pages(pages) = amount {
        return Ok(pages);
    }
    let page_size = match which.page_size {
        Some(page_size) => page_size,
        None => {
            let meant = pools()?.into_iter().filter(|pool| which.fits(pool.node, pool.page_size));
            let sizes: BTreeSet<_> = meant.map(|pool| pool.page_size).collect();
            match sizes.iter().collect::<Vec<_>>()[..] {
                [one] => *one,
                [] => {
                    return Err(Failure::usage(
                        "no pool has such pages: `prezero status` lists the pools",
                    ));
                }
                ref several => {
                    let several: Vec<_> = several.iter().map(ToString::to_string).collect();
                    let sizes = several.join(" and ");
                    return Err(Failure::usage(format!(
                        "there are pages of {sizes}: name one by --page-size, or write a number of pages"
                    )));
                }
            }
        }
    };
    amount.pages(page_size).map_err(Failure::usage)
}

/// Where agents are listened to, unless that is said.
pub(crate) fn agent_socket(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(client::AGENT_SOCKET_ENDING);
    path.into()
}

/// Which daemon, for what only agents may.
#[derive(Debug, Args)]
pub(crate) struct AgentDaemon {
    /// The daemon's socket for agents; default: its other socket's path with `.agent` behind it
    #[arg(long, value_name = "PATH", env = "PREZERO_AGENT_SOCKET")]
    agent_socket: Option<PathBuf>,
}

impl AgentDaemon {
    pub(crate) fn connect(&self, daemon: &Daemon) -> Result<Client, Failure> {
        let path = self.agent_socket.clone().unwrap_or_else(|| agent_socket(&daemon.socket));
        Ok(Client::connect(path)?)
    }
}

impl Daemon {
    pub(crate) fn connect(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.socket)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(sizes: &[PageSize]) -> Vec<PoolStatus> {
        let pool =
            |page_size: &PageSize| PoolStatus { page_size: *page_size, ..PoolStatus::default() };
        sizes.iter().map(pool).collect()
    }

    #[test]
    fn limits_are_amounts_or_the_word() {
        assert_eq!(Limit::parse("max", "max"), Ok(Limit::All));
        assert_eq!(Limit::parse("7", "max"), Ok(Limit::Some(Amount::Pages(Pages(7)))));
        assert_eq!(
            Limit::parse("4Gi", "max"),
            Ok(Limit::Some(Amount::Bytes(units::Bytes(4 << 30))))
        );
        for text in ["0", "0G", "-1", "", "all", "G"] {
            assert!(Limit::parse(text, "max").unwrap_err().contains("`max`"), "{text}");
        }
        assert!(Limit::parse("99999999T", "max").unwrap_err().contains("too large"));
    }

    // Promise P324.
    #[test]
    fn a_size_is_pages_of_the_one_page_size_that_is_meant() {
        let size = |text: &str| text.parse::<Amount>().unwrap();
        let of = |text, sizes: &[PageSize], page_size| {
            let which = WhichPages { node: None, page_size };
            in_pages(size(text), which, || Ok(pools(sizes))).map_err(|failure| failure.to_string())
        };
        let both = [PageSize::MIB_2, PageSize::GIB_1];
        assert_eq!(of("4G", &both[..1], None), Ok(Pages(2048)));
        assert_eq!(of("4G", &both, Some(PageSize::GIB_1)), Ok(Pages(4)));
        assert_eq!(of("4", &both, None), Ok(Pages(4)));
        assert!(of("4G", &both, None).unwrap_err().contains("2M and 1G: name one by --page-size"));
        assert!(of("4G", &[], None).unwrap_err().contains("no pool has such pages"));
        assert!(of("1M", &both[..1], None).unwrap_err().contains("the next larger size is 2M"));
    }
}
