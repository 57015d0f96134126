// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From source, series and config to a bootable image.
//!
//! One build tree per flavour lies under `target/kernel`; only files with changed content are
//! rewritten in it, so that `make` compiles what the last edit touched. Finished images go to the
//! shared cache, named by the hash of everything they were made from.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::{Context as _, Result, bail};
use rustix::{
    fs::{FlockOperation, flock},
    io::{FdFlags, fcntl_setfd},
};

use super::{
    arch::Arch,
    linux::{self, Linux},
    series::{self, Files, Series},
    source::Source,
};
use crate::{cache, command, say};

/// Which image: a kernel and a configuration, with or without the series.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Flavour {
    pub(crate) linux: Linux,
    pub(crate) arch: Arch,
    /// `default`, or fragments that are merged over it: `debug`, `debug+module`.
    pub(crate) config: String,
    pub(crate) patched: bool,
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.patched { "patched-" } else { "pristine-" })?;
        f.write_str(&self.config)?;
        match self.arch {
            Arch::X86_64 => Ok(()),
            other => write!(f, "-{other}"),
        }
    }
}

/// Builds the image, or finds it in the cache; returns its path.
pub(crate) fn image(flavour: &Flavour) -> Result<PathBuf> {
    let (source, fragments, files) = parts(flavour)?;
    flavour.arch.need_compiler()?;
    let key = key(&source, flavour.arch, &fragments, &files)?;
    let done = cache::shared("kernel/images")?.join(key);
    let made = Path::new(flavour.arch.image());
    let name = made.file_name().unwrap_or_default();
    let image = done.join(name);
    if image.exists() {
        return Ok(image);
    }
    let tree = configured(flavour, &source, &fragments, &files)?;
    say::step(format_args!("building {flavour} from {source} as {}", done.display()));
    tree.make(&[&name.to_string_lossy()])?;

    let staging = tempfile::tempdir_in(cache::shared("kernel/images")?)?;
    fs::copy(tree.dir.join(made), staging.path().join(name))?;
    fs::copy(tree.dir.join("System.map"), staging.path().join("System.map"))?;
    fs::copy(tree.dir.join(".config"), staging.path().join("config"))?;
    match fs::rename(staging.path(), &done) {
        Err(_) if image.exists() => {}
        renamed => renamed.with_context(|| format!("cannot create {}", done.display()))?,
    }
    Ok(image)
}

/// What names the image in the cache.
pub(crate) fn key_of(flavour: &Flavour) -> Result<String> {
    let (source, fragments, files) = parts(flavour)?;
    key(&source, flavour.arch, &fragments, &files)
}

/// Builds the module with its Makefile in `dir` against the flavour's tree.
pub(crate) fn make_module(flavour: &Flavour, dir: &Path) -> Result<()> {
    let (source, fragments, files) = parts(flavour)?;
    let tree = configured(flavour, &source, &fragments, &files)?;
    tree.make(&["modules_prepare"])?;
    let mut make = command::new(dir, "make", ["-s"]);
    // Which symbols there are is known where the whole image was built, which may be long ago.
    make.arg(format!("KDIR={}", tree.dir.display())).env("KBUILD_MODPOST_WARN", "1");
    command::run(&mut make)
}

/// What an image is made from.
fn parts(flavour: &Flavour) -> Result<(Source, Vec<String>, Files)> {
    let fragments = fragments(flavour)?;
    let source = Source::get(flavour.linux)?;
    let series = if flavour.patched { Series::read(flavour.linux)? } else { Series::default() };
    let files = series.result(&source)?;
    Ok((source, fragments, files))
}

/// The tree that the image is built in, configured and prepared for single objects.
pub(crate) fn tree(flavour: &Flavour) -> Result<Tree> {
    let fragments = fragments(flavour)?;
    let source = Source::get(flavour.linux)?;
    let files = Series::read(flavour.linux)?.result(&source)?;
    let tree = configured(flavour, &source, &fragments, &files)?;
    tree.make(&["prepare"])?;
    Ok(tree)
}

fn configured(
    flavour: &Flavour,
    source: &Source,
    fragments: &[String],
    files: &Files,
) -> Result<Tree> {
    let mut tree = Tree::prepare(source, &flavour.to_string(), files)?;
    // Named, the host's own would not be asked for: x86's tinyconfig loses VMAP_STACK that way.
    if flavour.arch != Arch::default() {
        tree = tree.cross(flavour.arch.name(), flavour.arch.prefix());
    }
    tree.configure(Base::Target("tinyconfig"), &fragments.concat())?;
    Ok(tree)
}

/// Everything that decides what the image contains.
fn key(source: &Source, arch: Arch, fragments: &[String], files: &Files) -> Result<String> {
    let mut key = cache::Key::default();
    key.add("source", source.version.as_bytes());
    let gcc = format!("{}gcc", arch.prefix());
    let compiler = command::stdout(&mut command::new(Path::new("/"), &gcc, ["--version"]))?;
    key.add("compiler", compiler.as_bytes());
    for fragment in fragments {
        key.add("config", fragment.as_bytes());
    }
    for (file, content) in files {
        // Programs of user space are in the tree, but not in the image.
        if !file.starts_with("tools/") && !file.starts_with("Documentation/") {
            key.add(file, content);
        }
    }
    Ok(key.name())
}

/// The config fragments of a flavour, in the order in which they are merged.
pub(super) fn fragments(flavour: &Flavour) -> Result<Vec<String>> {
    let mut names = vec!["default".to_owned()];
    names.extend(flavour.config.split('+').filter(|&name| name != "default").map(str::to_owned));
    // Symbols that only the series knows, and those of them for this configuration.
    let ours = format!("series-{}", flavour.config);
    if flavour.patched {
        names.extend(["series".to_owned(), ours.clone()]);
    }
    let mut fragments = Vec::new();
    for name in names {
        // What every tree has, then what only this one has; the same for architectures.
        let before = fragments.len();
        for file in [format!("{name}.config"), format!("{name}.{}.config", flavour.arch)] {
            for home in [linux::home(), flavour.linux.home()] {
                let path = home.join("configs").join(&file);
                if path.exists() {
                    fragments.push(fs::read_to_string(&path)?);
                }
            }
        }
        if fragments.len() == before && name != ours {
            bail!("no configuration {name} for {}: see kernel/configs", flavour.arch);
        }
    }
    Ok(fragments)
}

/// What a configuration begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Base<'a> {
    /// A target of kbuild, for example `defconfig`.
    Target(&'a str),
    /// A whole configuration.
    Config(&'a str),
}

/// A build tree. Its holder has it alone.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) dir: PathBuf,
    /// `ARCH=` and `CROSS_COMPILE=`, for every `make`.
    variables: Vec<String>,
    /// What the compiler's name begins with.
    prefix: String,
    _lock: fs::File,
}

impl Tree {
    /// The tree `name`, with exactly `files` different from the source.
    pub(crate) fn prepare(source: &Source, name: &str, files: &Files) -> Result<Self> {
        let name = format!("{name}-{}", source.version);
        let home = cache::target("kernel")?;
        let lock = fs::File::create(home.join(format!("{name}.lock")))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        // `make` inherits it: when we are killed, the tree stays locked until
        // the last compiler has ended.
        fcntl_setfd(&lock, FdFlags::empty())?;
        let dir = home.join(&name);
        if !dir.exists() {
            say::step(format_args!("making {}", dir.display()));
            let staging = home.join(format!("{name}.new"));
            // Links, not copies: 1.5 GB. Nothing writes into a file of the
            // source: `write` below unlinks first and make only adds files.
            let linked = ["-al", "-a"].iter().any(|mode| {
                // A leftover of an interrupted copy, or none.
                let _ = fs::remove_dir_all(&staging);
                let mut copy = command::new(&home, "cp", [mode]);
                command::output(copy.arg(&source.dir).arg(&staging))
                    .is_ok_and(|output| output.status.success())
            });
            if !linked {
                bail!("cannot copy {} to {}", source.dir.display(), staging.display());
            }
            fs::rename(&staging, &dir)?;
        }
        let tree = Self { dir, variables: Vec::new(), prefix: String::new(), _lock: lock };
        tree.sync(source, files)?;
        Ok(tree)
    }

    /// Compiles for another architecture.
    pub(crate) fn cross(mut self, arch: &str, prefix: &str) -> Self {
        self.variables = vec![format!("ARCH={arch}"), format!("CROSS_COMPILE={prefix}")];
        prefix.clone_into(&mut self.prefix);
        self
    }

    fn sync(&self, source: &Source, files: &Files) -> Result<()> {
        let list = self.dir.join(".prezero-files");
        let before = fs::read_to_string(&list).unwrap_or_default();
        let gone = |file: &&str| !file.is_empty() && !files.contains_key(*file);
        for file in before.lines().filter(gone) {
            let original = source.dir.join(file);
            if original.exists() {
                self.write(file, &fs::read(original)?)?;
            } else {
                fs::remove_file(self.dir.join(file))?;
            }
        }
        // Listed before they are written: an interrupted sync is repaired by the next.
        let names: Vec<&str> = files.keys().map(String::as_str).collect();
        fs::write(&list, before + &names.join("\n") + "\n")?;
        for (file, content) in files {
            self.write(file, content)?;
        }
        fs::write(&list, names.join("\n") + "\n")?;
        Ok(())
    }

    /// Replaces a file if its content differs; keeps its time stamp if not.
    fn write(&self, file: &str, content: &[u8]) -> Result<()> {
        let path = self.dir.join(file);
        if fs::read(&path).is_ok_and(|old| old == content) {
            return Ok(());
        }
        series::make_parent(&path)?;
        let mode = fs::metadata(&path).map(|old| old.permissions());
        let _ = fs::remove_file(&path);
        fs::write(&path, content)?;
        if let Ok(mode) = mode {
            fs::set_permissions(&path, mode)?;
        }
        Ok(())
    }

    /// `base` plus `fragment`; fails if a line of the latter is lost.
    pub(crate) fn configure(&self, base: Base<'_>, fragment: &str) -> Result<()> {
        let begin = match base {
            Base::Target(name) => format!("# {name}\n"),
            Base::Config(text) => {
                let mut key = cache::Key::default();
                key.add("config", text.as_bytes());
                format!("# {}\n", key.name())
            }
        };
        let wanted = begin + fragment;
        let merged = self.dir.join(".prezero-config");
        if fs::read_to_string(&merged).is_ok_and(|old| old == wanted)
            && self.dir.join(".config").exists()
        {
            return self.make(&["olddefconfig"]);
        }
        match base {
            Base::Target(name) => self.make(&[name])?,
            Base::Config(text) => fs::write(self.dir.join(".config"), text)?,
        }
        let file = tempfile::NamedTempFile::new()?;
        fs::write(file.path(), &wanted)?;
        let mut merge = command::new(
            &self.dir,
            "scripts/kconfig/merge_config.sh",
            ["-m", "-O", ".", ".config"],
        );
        command::stdout(merge.arg(file.path()))?;
        self.make(&["olddefconfig"])?;

        let config = fs::read_to_string(self.dir.join(".config"))?;
        let settings = settings(&config);
        for (symbol, value) in self::settings(&wanted) {
            let got = settings.get(symbol).copied().unwrap_or("n");
            // Of a string that is empty, a symbol may be left out.
            if got != value && !(value == "\"\"" && got == "n") {
                bail!("the config asks for {symbol}={value}, the kernel makes it {got}");
            }
        }
        fs::write(&merged, wanted)?;
        Ok(())
    }

    /// `make -s` with all CPUs.
    pub(crate) fn make(&self, arguments: &[&str]) -> Result<()> {
        command::run(&mut self.make_command(arguments))
    }

    /// The command behind [`make`](Self::make).
    pub(crate) fn make_command(&self, arguments: &[&str]) -> Command {
        let jobs = thread::available_parallelism().map_or(1, usize::from);
        let mut make = command::new(&self.dir, "make", ["-s"]);
        make.arg(format!("-j{jobs}")).args(&self.variables);
        if Path::new("/usr/bin/ccache").exists() {
            // Depend mode: a miss costs no second run of the preprocessor.
            make.arg(format!("CC=ccache {}gcc", self.prefix)).env("CCACHE_DEPEND", "1");
        }
        // The same sources give the same image, on any machine and at any time.
        make.env("KBUILD_BUILD_TIMESTAMP", "1970-01-01")
            .env("KBUILD_BUILD_USER", "prezero")
            .env("KBUILD_BUILD_HOST", "prezero");
        make.args(arguments);
        make
    }
}

/// The last value of each symbol in a config or fragment.
fn settings(config: &str) -> BTreeMap<&str, &str> {
    config
        .lines()
        .filter(|line| line.starts_with("CONFIG_"))
        .filter_map(|line| line.split_once('='))
        .collect()
}
