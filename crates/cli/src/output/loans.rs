// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loans and users as people read them.

use std::time::Duration;

use std::cell::RefCell;
use std::collections::BTreeMap;

use nix::unistd::User;
use units::Bytes;
use wire::LoanStatus;

thread_local! {
    /// Each name is asked for once: it may come from afar.
    static NAMES: RefCell<BTreeMap<u32, Option<String>>> = RefCell::default();
}

/// A user's name on this machine.
pub(crate) fn name_of(uid: u32) -> Option<String> {
    let ask =
        |_: &mut BTreeMap<_, _>| User::from_uid(uid.into()).ok().flatten().map(|user| user.name);
    NAMES.with_borrow_mut(|names| match names.get(&uid) {
        Some(known) => known.clone(),
        None => {
            let name = ask(names);
            names.insert(uid, name.clone());
            name
        }
    })
}

/// A user's name, or number where it has none.
pub(crate) fn user(uid: u32) -> String {
    name_of(uid).unwrap_or_else(|| uid.to_string())
}

/// The user of a loan: `user of other` if the quota of `other` pays.
pub(crate) fn borrower(loan: &LoanStatus) -> String {
    if loan.account == loan.uid {
        user(loan.uid.0)
    } else {
        format!("{} of {}", user(loan.uid.0), user(loan.account.0))
    }
}

/// The text, or a dash if it is absent.
pub(crate) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// `7s`, `3m`, `2h`, `5d`: the largest unit with at least one.
pub(crate) fn age(age: Option<Duration>) -> String {
    let text = |seconds| match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    };
    or_dash(age.map(|age| text(age.as_secs())))
}

/// Of a control group's path the unit of systemd's, which may have groups below it (a virtual
/// machine of libvirt's is in `X.scope/libvirt/emulator`); where there is none its last part.
pub(crate) fn unit(cgroup: Option<&str>) -> String {
    let mut parts = cgroup.into_iter().flat_map(|path| path.rsplit('/')).filter(|p| !p.is_empty());
    let last = parts.clone().next();
    let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
    or_dash(parts.find(is_unit).or(last))
}

/// Pages of that size, as bytes.
pub(crate) fn size(pages: u64, page_bytes: u64) -> String {
    Bytes(pages.saturating_mul(page_bytes)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_units_are_short() {
        let ages = [Some(0), Some(59), Some(60), Some(7_199), Some(7_200), Some(200_000), None];
        let age = |seconds: Option<u64>| age(seconds.map(Duration::from_secs));
        assert_eq!(ages.map(age), ["0s", "59s", "1m", "1h", "2h", "2d", "-"]);
        assert_eq!(unit(Some("/system.slice/a.service/")), "a.service");
        assert_eq!(unit(Some("/a.slice/vm.scope/libvirt/emulator")), "vm.scope");
        assert_eq!(unit(Some("/machine/vm/emulator")), "emulator");
        assert_eq!((unit(Some("/")), unit(None)), ("-".to_owned(), "-".to_owned()));
        assert_eq!((user(0), user(4_000_000_001)), ("root".to_owned(), "4000000001".to_owned()));
    }
}
