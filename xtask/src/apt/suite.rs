// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Suites of Debian that the system's own sources don't name, for example the backports of a newer
//! release.
//!
//! apt reads it by a configuration of its own: sources, lists and caches lie in our cache, and
//! nothing of the host's is changed. The mirror and the key are those from which the system gets
//! its own release.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use super::find_deb;
use crate::{cache, command, say};

/// One suite or several, readable once they were updated.
#[derive(Debug)]
pub(crate) struct Suite {
    /// As a source has them: by blanks.
    name: String,
    /// Another architecture than the system's.
    architecture: Option<String>,
    dir: PathBuf,
}

impl Suite {
    /// Writes the configuration; nothing is downloaded yet.
    pub(crate) fn open(name: &str) -> Result<Self> {
        Self::create(name, None, &codename(Path::new("/"))?)
    }

    /// Several at once.
    pub(crate) fn open_all(names: &[&str]) -> Result<Self> {
        Self::create(&names.join(" "), None, &codename(Path::new("/"))?)
    }

    /// The system's own release for another architecture.
    pub(crate) fn from_system(architecture: &str) -> Result<Self> {
        let codename = codename(Path::new("/"))?;
        Self::create(&codename, Some(architecture), &codename)
    }

    /// Its security updates, which newer kernels are among.
    pub(crate) fn of_the_systems_security(architecture: &str) -> Result<Self> {
        let name = format!("{}-security", codename(Path::new("/"))?);
        Self::create(&name, Some(architecture), &name)
    }

    /// `name` from where the system gets its suite `mirrored`.
    fn create(name: &str, architecture: Option<&str>, mirrored: &str) -> Result<Self> {
        let mut dir = name.replace(' ', "+");
        if let Some(architecture) = architecture {
            dir += &format!("-{architecture}");
        }
        let dir = cache::shared("apt")?.join(dir);
        for below in ["lists/partial", "cache/archives/partial", "none"] {
            fs::create_dir_all(dir.join(below))?;
        }
        let Mirror { uri, key } = Mirror::of(mirrored, Path::new("/"))?;
        let mut sources = format!("Types: deb\nURIs: {uri}\nSuites: {name}\nComponents: main\n");
        if let Some(key) = key {
            sources += &format!("Signed-By: {key}\n");
        }
        fs::write(dir.join("suite.sources"), sources)?;
        let architecture = architecture.map(str::to_owned);
        Ok(Self { name: name.to_owned(), architecture, dir })
    }

    /// Downloads the list of packages.
    pub(crate) fn update(&self) -> Result<()> {
        say::step(format_args!("reading the list of {}", self.name));
        let mut update = self.command("apt-get", &["-q", "update"]);
        command::run(update.stdout(Stdio::null()))
    }

    /// The newest version of `package`.
    pub(crate) fn newest(&self, package: &str) -> Result<String> {
        let text = command::stdout(&mut self.command("apt-cache", &["madison", package]))?;
        // `package | version | where`
        let version = text.lines().next().and_then(|line| line.split('|').nth(1));
        let version = version.with_context(|| format!("{} has no package {package}", self.name))?;
        Ok(version.trim().to_owned())
    }

    /// The packages with names that begin with `prefix`.
    pub(crate) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let text = command::stdout(&mut self.command("apt-cache", &["pkgnames", prefix]))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Downloads the newest `package` into `dir`; returns the path of the `.deb`.
    pub(crate) fn download(&self, package: &str, dir: &Path) -> Result<PathBuf> {
        say::step(format_args!("downloading {package} of {}", self.name));
        let mut fetch = self.command("apt-get", &["-q", "download", package]);
        command::run(fetch.current_dir(dir).stdout(Stdio::null()))?;
        find_deb(package, dir)
    }

    /// Downloads packages and all that they depend on into `dir`, as for a system that has nothing;
    /// returns the paths of the `.deb`s.
    pub(crate) fn download_all(&self, packages: &[&str], dir: &Path) -> Result<Vec<PathBuf>> {
        fs::create_dir_all(dir.join("partial"))?;
        let words = ["-q", "-y", "--download-only", "--no-install-recommends"];
        let mut fetch = self.command("apt-get", &words);
        fetch.args(["-o", "Dir::State::status=/dev/null", "-o"]);
        fetch.arg(format!("Dir::Cache::archives={}", dir.display())).arg("install").args(packages);
        command::run(fetch.stdout(Stdio::null()))?;
        let mut debs = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            debs.extend(path.extension().is_some_and(|one| one == "deb").then_some(path));
        }
        Ok(debs)
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let at = |below: &str| self.dir.join(below).display().to_string();
        let options = [
            format!("Dir::Etc::sourcelist={}", at("suite.sources")),
            format!("Dir::Etc::sourceparts={}", at("none")),
            // Pins are about the system's own releases.
            "Dir::Etc::preferences=-".to_owned(),
            format!("Dir::Etc::preferencesparts={}", at("none")),
            format!("Dir::State::lists={}", at("lists")),
            format!("Dir::Cache={}", at("cache")),
            // The cache may lie where another user cannot write.
            "APT::Sandbox::User=".to_owned(),
        ];
        let mut apt = command::new(Path::new("/"), program, arguments);
        for option in options {
            apt.args(["-o", &option]);
        }
        if let Some(architecture) = &self.architecture {
            apt.args(["-o", &format!("APT::Architecture={architecture}")]);
            apt.args(["-o", &format!("APT::Architectures={architecture}")]);
        }
        apt
    }
}

/// The system's release, of `etc/os-release` below `root`.
fn codename(root: &Path) -> Result<String> {
    let release = fs::read_to_string(root.join("etc/os-release"))?;
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let name = name.context("/etc/os-release names no VERSION_CODENAME: is this Debian?")?;
    Ok(name.trim_matches('"').to_owned())
}

/// Where the system gets its own release.
#[derive(Debug, Eq, PartialEq)]
struct Mirror {
    uri: String,
    /// The keyring, if the source names one.
    key: Option<String>,
}

impl Mirror {
    /// Reads `etc/apt` below `root`.
    fn of(codename: &str, root: &Path) -> Result<Self> {
        let mut files = vec![root.join("etc/apt/sources.list")];
        if let Ok(parts) = fs::read_dir(root.join("etc/apt/sources.list.d")) {
            files.extend(parts.filter_map(|entry| Some(entry.ok()?.path())));
        }
        files.sort();
        for file in files {
            let Ok(text) = fs::read_to_string(&file) else { continue };
            let found = if file.extension().is_some_and(|extension| extension == "sources") {
                Self::from_stanzas(&text, codename)
            } else {
                Self::from_lines(&text, codename)
            };
            if let Some(mirror) = found {
                return Ok(mirror);
            }
        }
        bail!("no source in /etc/apt has the suite {codename}: from which mirror shall it come?")
    }

    /// Of a file `*.sources`.
    fn from_stanzas(text: &str, codename: &str) -> Option<Self> {
        text.split("\n\n").find_map(|stanza| {
            let field = |name: &str| {
                stanza.lines().find_map(|line| {
                    let (key, value) = line.split_once(':')?;
                    key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
                })
            };
            let has = |name: &str, word: &str| {
                field(name).is_some_and(|value| value.split_whitespace().any(|one| one == word))
            };
            if field("Enabled").is_some_and(|value| value == "no")
                || !(has("Types", "deb") && has("Suites", codename) && has("Components", "main"))
            {
                return None;
            }
            let uri = field("URIs")?.split_whitespace().next()?.to_owned();
            // A key in the stanza itself has no path: apt's own keyrings must do.
            let key = field("Signed-By").filter(|key| key.starts_with('/'));
            Some(Self { uri, key })
        })
    }

    /// Of a file `*.list`.
    fn from_lines(text: &str, codename: &str) -> Option<Self> {
        text.lines().find_map(|line| {
            let rest = line.trim().strip_prefix("deb ")?.trim_start();
            let (options, rest) = match rest.strip_prefix('[') {
                Some(rest) => rest.split_once(']')?,
                None => ("", rest),
            };
            let words: Vec<&str> = rest.split_whitespace().collect();
            let (&[uri, suite], components) = words.split_first_chunk()?;
            if suite != codename || !components.contains(&"main") {
                return None;
            }
            let key = options.split_whitespace().find_map(|one| one.strip_prefix("signed-by="));
            Some(Self { uri: uri.to_owned(), key: key.map(str::to_owned) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Mirror;

    fn mirror(uri: &str, key: Option<&str>) -> Option<Mirror> {
        Some(Mirror { uri: uri.to_owned(), key: key.map(str::to_owned) })
    }

    #[test]
    fn the_mirror_is_that_of_the_release_itself() {
        let text = "Types: deb\nURIs: http://a/security\nSuites: one-security\nComponents: main\n\n\
                    Types: deb deb-src\nURIs: http://a/debian http://b\nSuites: one one-updates\n\
                    Components: main\nSigned-By: /k.gpg\n";
        assert_eq!(Mirror::from_stanzas(text, "one"), mirror("http://a/debian", Some("/k.gpg")));
        assert_eq!(Mirror::from_stanzas(text, "two"), None);
    }

    #[test]
    fn old_lines_are_read_too() {
        let text = "# deb http://no one main\ndeb-src http://no one main\n\
                    deb [arch=amd64 signed-by=/k] http://a one contrib main\n";
        assert_eq!(Mirror::from_lines(text, "one"), mirror("http://a", Some("/k")));
        assert_eq!(Mirror::from_lines("deb http://a one main\n", "one"), mirror("http://a", None));
        assert_eq!(Mirror::from_lines("deb http://a one contrib\n", "one"), None);
    }
}
