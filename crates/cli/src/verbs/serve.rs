// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero serve`: the daemon.

use std::ffi::OsString;
use std::path::PathBuf;

use book::config::{Config, PoolConfig, Set};
use tracing_subscriber::filter::LevelFilter;
use wire::DEFAULT_SOCKET;

use crate::config_files;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{log, note};
use crate::shared::agent_socket;

/// Run the daemon: own huge pages, keep them zeroed, lend them
///
/// A TOML file (--config) configures it; its keys are in prezero.toml(5). A --set overrides one key
/// of it, and a --pool replaces its pool of the same node, page size and block; both work without a
/// file. It runs in the foreground, logs to standard error, and ends at SIGTERM or SIGINT. Ready
/// and lent memory survives that: the next daemon finds it. At SIGHUP it reads the file again. A
/// refused file changes nothing; an accepted one also replaces the changes made by `prezero set`.
///
/// Started by systemd it takes the socket of a socket unit, reports that it is ready, feeds the
/// watchdog, and has what its next start needs kept.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = after_help())]
pub(crate) struct Args {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only say whether the daemon would take file and keys, on this machine
    #[arg(long)]
    check: bool,
    /// Where to listen
    #[arg(long, value_name = "PATH", env = "PREZERO_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Where to listen to agents, who lend by name; default: --socket with `.agent` behind it
    #[arg(long, value_name = "PATH", env = "PREZERO_AGENT_SOCKET")]
    agent_socket: Option<PathBuf>,
    /// The directory of mounts, leases and the tree
    #[arg(long, value_name = "DIR", default_value = daemon::DEFAULT_RUN_DIR)]
    run_dir: PathBuf,
    /// A pool, as in page_size=1G,ready_high=8; may be repeated
    #[arg(long = "pool", value_name = "FIELD=VALUE,...")]
    pools: Vec<PoolConfig>,
    /// A key of the configuration, as in workers.max=4 or lend_group=kvm; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<Set>,
    /// Plain memory instead of huge pages: for a trial as an ordinary user
    #[arg(long)]
    plain: bool,
    /// What to log: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", env = "PREZERO_LOG_LEVEL", default_value = "info")]
    log: LevelFilter,
}

/// The examples, and the fields of a pool with the defaults that the daemon has for them.
fn after_help() -> String {
    let pool: PoolConfig = "page_size=2M,size_max=2M".parse().expect("a good pool");
    let idle = humantime::format_duration(pool.resize.size_idle);
    format!(
        "\
Examples:
  prezero serve --pool page_size=1G,ready_high=8
  prezero serve --config /etc/prezero/prezero.toml --set workers.max=4 --set workers.cpus=0-3
  prezero serve --config /etc/prezero/prezero.toml --check && systemctl reload prezero
  prezero serve --pool page_size=2M,pages_per_block=512,ready_low=1024,ready_high=4096
  prezero serve --pool page_size=2M,ready=4G,size_max=64G,size_idle=10m

Fields of a pool, with their defaults:
  page_size          required
  node               the NUMA node; default every node with memory
  ready              this much ready, in blocks of all sizes; replaces the next three
  pages_per_block={block}  pages of one block, which is one file
  ready_high={high}       zero in the background up to this; 0 only on request
  ready_low          ... as soon as less than this is ready; default ready_high
  max                the most that the pool may own; default no bound
  leave_free={free}       pages that stay free in the kernel's pool
  recycle={recycle}       how returned blocks become zero: auto, fresh or in-place
  size_max        the kernel's pool grows up to this; default: it keeps its size
  size_min={min}      the kernel's pool stays at least this large
  size_idle={idle}   how long unneeded pages stay in the kernel's pool
  size_free       memory that stays available; default 1/16 of the node's",
        block = pool.pages_per_block,
        high = pool.ready_high,
        free = pool.leave_free,
        recycle = pool.recycle,
        min = pool.resize.size_min,
    )
}

pub(crate) fn run(args: Args) -> Outcome {
    if args.check {
        // An error in the file has the exit code of a bad file, whatever error the daemon would end
        // with.
        for warning in daemon::check(&options(args)?).map_err(Failure::usage)? {
            note(&format!("warning: {warning}"));
        }
        return Ok(Exit::Done);
    }
    let log = log::begin(args.log)?;
    let served = options(args).and_then(|options| Ok(daemon::serve(options)?));
    log.end();
    served.map(|()| Exit::Done)
}

/// The file and the settings over it together; other parts of `args` are ignored.
fn config(args: &Args) -> Result<Config, Failure> {
    let text = match &args.config {
        None => String::new(),
        // An error in a file names the file; an error in a key names the key.
        Some(path) => config_files::read(path)?,
    };
    let mut config = Config::from_toml_and(&text, &args.set).map_err(Failure::usage)?;
    config.pools.retain(|pool| !args.pools.iter().any(|flag| flag.replaces(pool)));
    config.pools.extend(args.pools.iter().cloned());
    config.check().map_err(Failure::usage)?;
    Ok(config)
}

/// The directory that systemd keeps over boots for this service (`StateDirectory=`), the first if
/// there are several.
fn state_dir() -> Option<PathBuf> {
    let dirs = std::env::var_os("STATE_DIRECTORY")?;
    std::env::split_paths(&dirs).next()
}

fn options(args: Args) -> Result<daemon::Options, Failure> {
    let program = std::env::current_exe()?;
    let mut worker_command: Vec<OsString> = vec![program.into()];
    let words = ["zero", "--socket"];
    worker_command.extend(words.map(OsString::from));
    worker_command.push(args.socket.clone().into());
    Ok(daemon::Options {
        socket: args.socket.clone(),
        agent_socket: Some(args.agent_socket.clone().unwrap_or_else(|| agent_socket(&args.socket))),
        run_dir: args.run_dir.clone(),
        state_dir: state_dir(),
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

    #[test]
    fn pool_flag_replaces_the_files_pool_of_its_shape() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("prezero.toml");
        let text = "quota = \"1G\"\n[[pool]]\npage_size = \"1G\"\nready_high = 1\n\
                    [[pool]]\npage_size = \"2M\"\n";
        std::fs::write(&file, text).unwrap();
        let line = "--set quota=2G --set workers.max=0 --pool page_size=1G,ready_high=5";
        let config = config(&args(&format!("--config {} {line}", file.display()))).unwrap();
        assert_eq!((config.quota, config.workers.max), (Some(units::Bytes(2 << 30)), 0));
        assert_eq!(config.pools.len(), 2);
        assert_eq!(config.pools[1].ready_high.0, 5);
        assert_eq!(super::config(&args("")).unwrap(), Config::default());
    }

    #[test]
    fn help_names_every_field_of_a_pool_and_its_default() {
        let pool: PoolConfig = "page_size=2M,size_max=2M".parse().unwrap();
        let help = after_help();
        let (_, fields) = help.split_once("with their defaults:\n").expect("the fields");
        let written = serde_json::to_value(pool).unwrap();
        for (name, value) in written.as_object().unwrap() {
            let field = fields.lines().find_map(|line| {
                let word = line.split_whitespace().next()?;
                let (key, default) = word.split_once('=').unwrap_or((word, ""));
                (key == name).then(|| default.to_owned())
            });
            let expected = match value {
                serde_json::Value::Null => String::new(),
                _ if ["page_size", "size_max"].contains(&name.as_str()) => String::new(),
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            assert_eq!(field, Some(expected), "{name}");
        }
    }
}
