// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which of the three ways to zeroed pages this host uses and can have, and the one command that
//! leads to the better one. The ways are a *stock* kernel with blocks of the daemon's, the *module*
//! in a stock kernel, or a kernel with the *series*.

mod facts;

use linux::kernel::{Implementation, Offer, module};
use linux::{Result, Roots};
use serde::Serialize;

use self::facts::Facts;
use super::doctor::{Finding, Severity};

/// One of the three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    /// The daemon owns what it keeps ready.
    Stock,
    /// The kernel's pool knows its zeroed pages, by the module.
    Module,
    /// The same, by the patches that the kernel was built with.
    Series,
}

/// How far the module is from being used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stage {
    /// It works.
    Loaded,
    /// This kernel has what it gives.
    Needless,
    /// `modprobe` finds it.
    Built,
    /// DKMS has its sources, and has not built it for this kernel.
    Unbuilt,
    /// This kernel can have it.
    Possible,
    /// This kernel cannot have it.
    Impossible,
}

/// What this host uses, and what it could.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Ways {
    /// What it uses.
    pub(crate) uses: Way,
    /// The release of the kernel that runs.
    pub(crate) kernel: String,
    /// Whether it can have the module.
    pub(crate) module: Stage,
    /// What stands in the way of the module, or of its loading.
    pub(crate) because: Option<String>,
    /// What to change.
    #[serde(skip)]
    change: Option<String>,
    /// The command that leads to the better way.
    pub(crate) command: Option<String>,
}

/// Looks at this host.
///
/// # Errors
/// A release that cannot be read.
pub(crate) fn find(roots: &Roots, offer: &Offer) -> Result<Ways> {
    let facts = facts::look(roots)?;
    let origin = offer.origin.as_ref().map(|origin| &origin.implementation);
    Ok(match origin {
        Some(Implementation::Series) => Ways::new(Way::Series, Stage::Needless, &facts),
        Some(Implementation::Module(_)) => Ways::new(Way::Module, Stage::Loaded, &facts),
        // Its device is root's.
        None if module::loaded(roots)?.is_some() => Ways::new(Way::Module, Stage::Loaded, &facts),
        None => of_stock(&facts, Installer::find(roots)),
    })
}

/// What a stock kernel without the module can have.
fn of_stock(facts: &Facts, installer: Installer) -> Ways {
    let Facts { release, .. } = facts;
    let signed = facts.signed_only.as_ref().map(|why| format!("{why}: signed modules alone"));
    // A module built for this kernel is better evidence than a list of names.
    if facts.built {
        return Ways { because: signed, ..Ways::new(Way::Stock, Stage::Built, facts) }
            .change("load it: ready pages are free pages then, for every program")
            .command("sudo prezero module load");
    }
    if let Some(obstacle) = obstacle(facts) {
        return Ways { because: Some(obstacle), ..Ways::new(Way::Stock, Stage::Impossible, facts) }
            .change("a kernel with the series (kernel/README.md) needs no module");
    }
    let headers = installer.headers(release);
    match &facts.sources {
        Some(version) if !facts.headers => Ways {
            because: Some(format!("the headers of {release} are missing")),
            ..Ways::new(Way::Stock, Stage::Unbuilt, facts)
        }
        .change(format!("install them: DKMS builds prezero-dkms {version} then"))
        .command(installer.command(&headers)),
        Some(version) => Ways {
            because: Some(format!("DKMS has not built prezero-dkms {version} for {release}")),
            ..Ways::new(Way::Stock, Stage::Unbuilt, facts)
        }
        .change(format!(
            "build it; /var/lib/dkms/prezero/{version}/build/make.log says what failed"
        ))
        .command(format!("sudo dkms install prezero/{version} -k {release}")),
        None => {
            let mut packages = "prezero-dkms".to_owned();
            if !facts.headers {
                packages = format!("{headers} {packages}");
            }
            Ways { because: signed, ..Ways::new(Way::Stock, Stage::Possible, facts) }
                .change(
                    "with it ready pages are free pages, for every program: docs/guides/kernel-module.md",
                )
                .command(format!("{} && sudo prezero module load", installer.command(&packages)))
        }
    }
}

/// Why this kernel cannot have the module at all.
fn obstacle(facts: &Facts) -> Option<String> {
    let Facts { release, arch, missing_option, missing_symbol, .. } = facts;
    match (missing_option, missing_symbol) {
        _ if !["x86_64", "aarch64"].contains(arch) => {
            Some(format!("the module is for x86_64 and aarch64, this is {arch}"))
        }
        (Some(option), _) => Some(format!("{release} was built without {option}")),
        (None, Some(symbol)) => Some(format!("{release} has no {symbol} in /proc/kallsyms")),
        (None, None) => None,
    }
}

impl Ways {
    fn new(uses: Way, module: Stage, facts: &Facts) -> Self {
        let kernel = facts.release.clone();
        Self { uses, kernel, module, because: None, change: None, command: None }
    }

    fn change(self, change: impl Into<String>) -> Self {
        Self { change: Some(change.into()), ..self }
    }

    fn command(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), ..self }
    }

    /// Why the module is not loaded, in one line with what to do.
    pub(crate) fn why_not(&self) -> String {
        let Finding { found, command, .. } = self.finding();
        match command {
            Some(command) => format!("{found}: {command}"),
            None => found,
        }
    }

    /// The same as a finding. A warning where the module is installed and not in use; a host
    /// without its package is as it should be.
    pub(crate) fn finding(&self) -> Finding {
        let (level, found) = match self.module {
            Stage::Loaded => (Severity::Ok, "the module is loaded"),
            Stage::Needless => (Severity::Ok, "this kernel has the series, and needs no module"),
            Stage::Built => (Severity::Warn, "stock; the module is built and not loaded"),
            Stage::Unbuilt => (Severity::Warn, "stock; the module is installed and not built"),
            Stage::Possible => (Severity::Ok, "stock; this kernel can have the module"),
            Stage::Impossible => (Severity::Ok, "stock; this kernel cannot have the module"),
        };
        let because = self.because.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        let mut finding = Finding::new(level, "module", format!("{found}{because}"));
        finding.change.clone_from(&self.change);
        finding.command.clone_from(&self.command);
        finding
    }
}

/// What installs packages here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Installer {
    Apt,
    Dnf,
}

impl Installer {
    fn find(roots: &Roots) -> Self {
        if roots.root.join("usr/bin/dnf").exists() { Self::Dnf } else { Self::Apt }
    }

    fn command(self, packages: &str) -> String {
        match self {
            Self::Apt => format!("sudo apt install {packages}"),
            Self::Dnf => format!("sudo dnf install {packages}"),
        }
    }

    fn headers(self, release: &str) -> String {
        match self {
            Self::Apt => format!("linux-headers-{release}"),
            Self::Dnf => format!("kernel-devel-{release}"),
        }
    }
}

#[cfg(test)]
mod tests;
