// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a kernel did not take the module, from what `modprobe` and the kernel's log said.

use linux::Roots;

/// In one line, with what to do.
pub(super) fn explain(roots: &Roots, release: &str, said: &str, log: &[String]) -> String {
    let signature = [
        "Key was rejected by service",
        "Required key not available",
        "Key has been revoked",
        "Lockdown:",
        "unsigned module",
    ];
    let of_signature =
        |line: &str| signature.iter().any(|words| line.contains(words)) || is_denied(line);
    if of_signature(said) || log.iter().any(|line| of_signature(line)) {
        return of_key(roots, release);
    }
    let own = log.iter().find_map(|line| line.strip_prefix("prezero: "));
    if let Some(line) = own {
        return format!("the module refuses Linux {release}: {line}");
    }
    let said = said.lines().next().unwrap_or("modprobe said nothing").trim();
    let said = said.strip_prefix("modprobe: ERROR: ").unwrap_or(said);
    match log.last() {
        Some(line) => format!("{said}; the kernel's log says: {line}"),
        None => said.to_owned(),
    }
}

/// Root is refused a module by lockdown alone.
fn is_denied(line: &str) -> bool {
    line.contains("could not insert") && line.contains("Operation not permitted")
}

/// The steps by which a key becomes one that the kernel takes.
fn of_key(roots: &Roots, release: &str) -> String {
    let keys = ["var/lib/shim-signed/mok/MOK.der", "var/lib/dkms/mok.pub"];
    let key = keys.map(|key| roots.root.join(key)).into_iter().find(|key| key.exists());
    let refused = format!("Linux {release} takes modules of an enrolled key alone (Secure Boot)");
    match key {
        Some(key) => format!(
            "{refused}: run `mokutil --import {}`, choose a password, restart the machine and \
             confirm the key at its blue screen, once",
            key.display()
        ),
        None => format!(
            "{refused}, and DKMS has none: install openssl and mokutil, build the module again \
             (`dkms install --force prezero/VERSION`), then `mokutil --import /var/lib/dkms/mok.pub`"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::tree;

    const RELEASE: &str = "6.12.117";

    fn reported(said: &str, log: &[&str]) -> String {
        let tree = tree(&[("var/lib/dkms/mok.pub", "")]);
        let log: Vec<_> = log.iter().map(|&line| line.to_owned()).collect();
        explain(&tree.roots(), RELEASE, said, &log)
    }

    // Promise P295 (operator): A module that cannot be loaded or unloaded is refused with the
    // reason: the signature and the key to enrol, the module's own line, the processes that have
    // its device open.
    #[test]
    fn refused_signature_names_the_key_to_enrol() {
        let insert = "modprobe: ERROR: could not insert 'prezero': ";
        let lockdown = "Lockdown: modprobe: unsigned module loading is restricted; see man";
        for (said, log) in [
            (format!("{insert}Key was rejected by service"), vec![]),
            (format!("{insert}Required key not available"), vec![]),
            (format!("{insert}Operation not permitted"), vec![lockdown]),
        ] {
            let line = reported(&said, &log);
            assert!(line.contains("mokutil --import") && line.contains("dkms/mok.pub`"), "{line}");
        }
        let without = explain(&tree(&[]).roots(), RELEASE, "Key was rejected by service", &[]);
        assert!(without.contains("DKMS has none: install openssl"), "{without}");
    }

    // Promise P295.
    #[test]
    fn line_of_the_module_is_the_reason() {
        let said = "modprobe: ERROR: could not insert 'prezero': Operation not supported";
        let log = ["other: x", "prezero: no node_hstates (-2)"];
        let line = "the module refuses Linux 6.12.117: no node_hstates (-2)";
        assert_eq!(reported(said, &log), line);
    }

    #[test]
    fn other_refusals_are_reported_as_the_kernel_says() {
        let said = "modprobe: ERROR: could not insert 'prezero': Exec format error\n";
        let version = "prezero.ko: version magic '6.1' should be '6.12'";
        let line = reported(said, &[version]);
        let start = "could not insert 'prezero': Exec format error; the kernel's log says: ";
        assert_eq!(line, format!("{start}{version}"));
        assert_eq!(reported("", &[]), "modprobe said nothing");
    }
}
