// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The library, from Rust and from C: the same cases, the same answers.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use client::{Bytes, Client, Error, LendRequest, Loan, Node, PageSize};
use linux::Mapping;
use prezero_tests::MapAlone as _;
use prezero_tests::memory::at;
use prezero_tests::{Daemon, Page, c};
use testkit::hugepages;

const PAGE: Page = Page::Mib2;
const POOL: &str = "pages_per_block = 2\nmax = 8";

/// What `tests/c/library.c` prints, done in Rust; then what only C can do wrong.
fn in_rust(socket: &Path) -> String {
    let mut out = String::new();
    let failed = |out: &mut String, what: &str, error: &Error| {
        writeln!(out, "{what}: {}: {error}", name(error)).expect("a string");
    };
    let nobody = Client::connect("/nowhere/socket").expect_err("nobody there");
    failed(&mut out, "nobody there", &nobody);
    let mut client = Client::connect(socket).expect("a daemon");
    writeln!(out, "version: {}", env!("CARGO_PKG_VERSION")).expect("a string");
    status(&mut out, &mut client);

    let loan = lend(&mut out, &mut client, "several blocks", &LendRequest::new(PAGE.times(5)));
    let loan = loan.expect("a loan");
    let memory = loan.map_alone().expect("a mapping");
    writeln!(out, "mapped: {} bytes, sum {}", memory.len(), sum(&memory)).expect("a string");
    memory.fill(memory.len() - 1..memory.len(), 7);
    for (_, part) in loan.parts() {
        let (bytes, ready) = (part.bytes, part.ready_bytes);
        writeln!(
            out,
            "block: {} bytes, {} ready, node {}, descriptor open",
            bytes.0, ready.0, part.node
        )
        .expect("a string");
    }
    let (fd, part) = loan.parts().last().expect("blocks");
    let last = Mapping::map(fd, part.bytes.0, PAGE.size()).expect("a mapping");
    writeln!(out, "the last block: sum {}", sum(&last)).expect("a string");
    writeln!(out, "no such block: EINVAL: the loan has fewer blocks").expect("a string");
    status(&mut out, &mut client);
    drop((last, memory, loan));

    let owned = LendRequest {
        owner: Some("somebody".parse().expect("a name")),
        keep: Some(Duration::from_secs(60)),
        single: true,
        ..LendRequest::new(PAGE.times(2))
    };
    let loan = lend(&mut out, &mut client, "an owner's first", &owned).expect("a loan");
    loan.map_alone().expect("a mapping").fill(5..6, 9);
    drop(loan);
    let loan = lend(&mut out, &mut client, "an owner's second", &owned).expect("a loan");
    writeln!(out, "content: {}", at::<1>(&loan.map_alone().expect("a mapping"), 5)[0])
        .expect("a string");
    drop(loan);

    let large =
        LendRequest { page_size: Some(PageSize::GIB_1), ..LendRequest::new(Bytes(1 << 30)) };
    for (what, request) in [
        ("half a page", LendRequest::new(Bytes(4096))),
        ("too much", LendRequest::new(PAGE.times(4096))),
        ("pages of another size", large),
    ] {
        assert!(lend(&mut out, &mut client, what, &request).is_none(), "{what}");
    }
    out += "no page size: EINVAL\nno name: EINVAL\n";
    out += "a small request: 1\na field of later: 1\nan unknown flag: 1\nnull: 1 1 1 1\n";
    out += "advice: too little memory is ready or free: ask for less, or reserve more pages\n";
    let watch = Client::connect(socket).expect("a daemon");
    let below = Some(client::Pages(1000));
    let mut watch = watch.watch(None::<Node>, None, below, Duration::from_millis(50)).expect("one");
    let report = watch.next().expect("a report").expect("a good one");
    let page_bytes = report.levels[0].page_size.bytes();
    writeln!(out, "watched: {}, pages of {page_bytes}", report.levels.len()).expect("a string");
    out
}

fn name(error: &Error) -> String {
    nix::errno::Errno::from_raw(error.errno().raw_os_error())
        .to_string()
        .split(':')
        .next()
        .map_or_else(String::new, ToOwned::to_owned)
}

fn sum(memory: &Mapping) -> u64 {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes.into_iter().map(u64::from).sum()
}

fn lend(out: &mut String, client: &mut Client, what: &str, request: &LendRequest) -> Option<Loan> {
    match client.lend(request) {
        Ok(loan) => {
            let (bytes, ready, parts) = (loan.bytes().0, loan.ready_bytes().0, loan.parts().len());
            let (page, kept) = (loan.page_size().bytes(), u8::from(loan.is_kept()));
            writeln!(
                out,
                "{what}: {bytes} bytes, {ready} ready, {parts} blocks, pages of {page}, kept {kept}"
            )
            .expect("a string");
            Some(loan)
        }
        Err(error) => {
            writeln!(out, "{what}: {}: {error}", name(&error)).expect("a string");
            None
        }
    }
}

fn status(out: &mut String, client: &mut Client) {
    let status = client.status().expect("a status");
    let pool = &status.pools[0];
    writeln!(
        out,
        "status: 1 levels, node {}, pages of {}: {} ready, {} lent",
        pool.node,
        pool.page_size.bytes(),
        pool.ready_pages,
        pool.lent_pages
    )
    .expect("a string");
}

fn on_a_daemon(body: impl FnOnce(&Path) -> String) -> String {
    let daemon = Daemon::start(PAGE, 8, &PAGE.pool(POOL)).expect("pages, which there were");
    daemon.zero("max");
    body(&daemon.socket())
}

// Promise P74 (programs): C programs get what Rust programs get, by functions with versions, and
// the header is what the sources say.
#[test]
fn c_programs_get_what_rust_programs_get() {
    let Some(pages) = hugepages::reserve(PAGE.size(), 8) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let library = dir.path().to_str().expect("a plain path");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .current_dir(root)
        .args(["xtask", "capi", "--out", library])
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let (include, search) = (format!("-I{library}"), format!("-L{library}"));
    let rpath = format!("-Wl,-rpath,{library}");
    let flags = [include.as_str(), &search, "-lprezero", &rpath];
    let program = c::compile("library", dir.path(), &flags);

    let symbols = Command::new("nm")
        .args(["-D", "--defined-only", "--with-symbol-versions"])
        .arg(dir.path().join("libprezero.so"))
        .output()
        .expect("nm runs");
    let symbols = String::from_utf8_lossy(&symbols.stdout).into_owned();
    let functions: Vec<_> = symbols.lines().filter(|line| line.contains(" T ")).collect();
    assert!(functions.len() >= 15, "{symbols}");
    for function in functions {
        let (_, name) = function.split_once(" T ").expect("a function");
        assert!(name.starts_with("prezero_") && name.ends_with("@@PREZERO_0"), "{name}");
    }

    drop(pages);
    // A daemon for each, since each leaves content that is kept.
    let expected = on_a_daemon(in_rust);
    let found = on_a_daemon(|socket| {
        let output = Command::new(&program).arg(socket).output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {stderr}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    });
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}
