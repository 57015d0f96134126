// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs of a cluster, built from their modules: Debian has none of them new enough.
//!
//! Each directory of `kubernetes/cluster` with a go.mod is one build, cached by all that is in it,
//! by Go's version and by what it is built with. Kubernetes alone is 9 minutes of one core, once.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{apt, cache, command, say};

/// From Debian: what runs containers, and what gives pods a network.
const PACKAGES: &[&str] =
    &["runc", "containernetworking-plugins", "iproute2", "openssl", "util-linux"];

/// One module, and the packages of it that are programs.
struct Build {
    module: &'static str,
    tags: &'static str,
    packages: &'static [&'static str],
    /// Of one core, about: what a person waits for the first time.
    minutes: u32,
}

const BUILDS: &[Build] = &[
    Build { module: "etcd", tags: "", packages: &["."], minutes: 1 },
    Build {
        module: "containerd",
        // File systems that need C libraries.
        tags: "no_btrfs,no_devmapper,no_zfs",
        packages: &[
            "github.com/containerd/containerd/v2/cmd/containerd",
            "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            "github.com/containerd/containerd/v2/cmd/ctr",
        ],
        minutes: 2,
    },
    Build { module: "helm", tags: "", packages: &["helm.sh/helm/v4/cmd/helm"], minutes: 2 },
    Build { module: "kube", tags: "", packages: &["."], minutes: 9 },
];

/// Where the programs are.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    dirs: Vec<PathBuf>,
}

impl Programs {
    /// All of them, from the cache if they are there. The version of Kubernetes is the one in its
    /// go.mod, or one as 1.37 with a `1.37.mod` beside that.
    pub(super) fn build(kube: Option<&str>) -> Result<Self> {
        apt::need(PACKAGES)?;
        let go = command::stdout(&mut command::new(Path::new("/"), "go", ["version"]))
            .context("Go 1.26 is missing: https://go.dev/doc/install")?;
        let dirs = BUILDS.iter().map(|build| build.made(&go, kube)).collect::<Result<_>>()?;
        Ok(Self { dirs })
    }

    /// For $PATH, as containerd looks for its shim there.
    pub(super) fn path(&self) -> String {
        let dirs = self.dirs.iter().map(|dir| format!("{}:", dir.display()));
        dirs.collect::<String>() + "/usr/sbin:/usr/bin:/sbin:/bin"
    }
}

impl Build {
    fn made(&self, go: &str, kube: Option<&str>) -> Result<PathBuf> {
        let source = cache::repo().join("kubernetes/cluster").join(self.module);
        let module = self.module_file(kube);
        let flags = self.flags(&source.join(&module))?;
        let mut key = cache::Key::default();
        key.add("go", go.as_bytes());
        key.add("flags", format!("{flags} {} {:?}", self.tags, self.packages).as_bytes());
        let mut names: Vec<_> =
            fs::read_dir(&source)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        names.sort();
        let stem = module.trim_end_matches("mod");
        let is_of_it = |name: &&PathBuf| {
            let text = name.file_name().unwrap_or_default().to_string_lossy();
            let is_module = [".mod", ".sum"].iter().any(|ending| text.ends_with(ending));
            text != "chart_test.go" && (!is_module || text.starts_with(stem))
        };
        for name in names.iter().filter(is_of_it) {
            key.add(&name.file_name().unwrap_or_default().to_string_lossy(), &fs::read(name)?);
        }
        let cached = cache::shared("cluster")?;
        let dir = cached.join(format!("{}-{}", self.module, key.name()));
        if dir.exists() {
            return Ok(dir);
        }
        let (module, minutes) = (self.module, self.minutes);
        say::step(format_args!("building {module}, once: {minutes} minutes of one core"));
        let scratch = tempfile::tempdir_in(&cached)?;
        let out = scratch.path().join("out");
        fs::create_dir(&out)?;
        let mut make = command::new(&source, "go", ["build", "-trimpath", "-buildvcs=false"]);
        if module != "go.mod" {
            make.arg(format!("-modfile={module}"));
        }
        make.args(["-tags", self.tags, "-ldflags", &flags, "-o"]).arg(&out).args(self.packages);
        command::run(make.env("CGO_ENABLED", "0"))?;
        // The package of a module of our own is named as the module is.
        let own = out.join(format!("prezero-cluster-{}", self.module));
        if own.exists() {
            fs::rename(&own, out.join(self.module))?;
        }
        fs::rename(&out, &dir)?;
        Ok(dir)
    }

    fn module_file(&self, kube: Option<&str>) -> String {
        let version = kube.filter(|_| self.module == "kube").unwrap_or("go");
        format!("{version}.mod")
    }

    /// For the linker: Kubernetes' parts refuse each other where they don't know their version.
    fn flags(&self, module: &Path) -> Result<String> {
        let strip = "-s -w".to_owned();
        if self.module != "kube" {
            return Ok(strip);
        }
        let version = kubernetes(
            &fs::read_to_string(module)
                .with_context(|| format!("cannot read {}", module.display()))?,
        )?;
        let (major, rest) = version.split_once('.').context("a version has a dot")?;
        let minor = rest.split('.').next().unwrap_or_default();
        let names = [
            ("gitVersion", format!("v{version}")),
            ("gitMajor", major.into()),
            ("gitMinor", minor.into()),
        ];
        Ok(names.iter().fold(strip, |flags, (name, value)| {
            format!("{flags} -X k8s.io/component-base/version.{name}={value}")
        }))
    }
}

/// The version of Kubernetes in a go.mod, without the `v`.
fn kubernetes(module: &str) -> Result<String> {
    let mut lines = module.lines().map(str::trim);
    let version = lines.find_map(|line| line.split_once("k8s.io/kubernetes v").map(|(_, v)| v));
    Ok(version.context("go.mod requires no k8s.io/kubernetes")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_that_is_linked_in_is_the_one_that_is_required() {
        assert_eq!(kubernetes("require k8s.io/kubernetes v1.36.3\n").unwrap(), "1.36.3");
        assert_eq!(kubernetes("require (\n\tk8s.io/kubernetes v1.2.0\n)").unwrap(), "1.2.0");
        assert!(kubernetes("require k8s.io/api v1.36.3").is_err());
    }

    #[test]
    fn other_kubernetes_has_its_own_module_file_and_programs_do_not() {
        for build in BUILDS {
            let named = build.module_file(Some("1.37"));
            assert_eq!(named == "1.37.mod", build.module == "kube", "{named}");
            assert_eq!(build.module_file(None), "go.mod");
        }
        let file = cache::repo().join("kubernetes/cluster/kube/1.37.mod");
        assert!(kubernetes(&fs::read_to_string(file).unwrap()).unwrap().starts_with("1.37."));
    }
}
