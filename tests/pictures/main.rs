// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make pictures`: the commands as they look on a terminal, and the reports in a browser, in
//! docs/pictures. Each picture is of a run on the machine that draws it.
//!
//! A terminal's screen is read by `vt100` and written as SVG: text, so that it stays small and can
//! be searched. Reports are opened in headless Chromium.

mod screen;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use prezero_tests::daemon::binary;
use prezero_tests::{Daemon, Page};
use screen::Screen;
use units::Pages;

const PAGE: Page = Page::Mib2;
const PAGES: u64 = 300;
/// The terminals of the review: the default one, and a wide one.
const SIZES: [(u16, u16); 2] = [(80, 24), (120, 40)];

fn to() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in it");
    let folder = root.join("docs/pictures");
    std::fs::create_dir_all(&folder).expect("the repository can be written");
    folder
}

/// Guests that borrow; they end with this value.
struct Guests(Vec<Child>);

impl Guests {
    fn start(daemon: &Daemon) -> Self {
        let guests = [("web", "64M"), ("database", "128M")].map(|(name, size)| {
            let memory =
                format!("memory-backend-file,id=ram,size={size},mem-path={{path}},share=on");
            let words = [
                "lend",
                size,
                "--",
                "qemu-system-x86_64",
                "-name",
                name,
                "-m",
                size,
                "-machine",
                "q35,memory-backend=ram",
                "-object",
                &memory,
                "-nodefaults",
                "-display",
                "none",
                "-S",
            ];
            let mut guest = daemon.command(&words);
            guest.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("QEMU starts")
        });
        daemon.wait_for("lent", |pool| pool.lent_pages == Pages(96));
        Self(guests.into())
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        for guest in &mut self.0 {
            // It may have ended.
            let _ = guest.kill();
            let _ = guest.wait();
        }
    }
}

/// A command's screen once it has ended.
fn ended(command: &Command, name: &str, columns: u16, rows: u16) {
    let mut screen = Screen::start(command, columns, rows);
    screen.wait_for_end(Duration::from_secs(600));
    let path = to().join(format!("{name}-{columns}x{rows}.svg"));
    std::fs::write(path, screen.svg(name)).expect("the repository can be written");
}

#[test]
fn terminals_are_drawn() {
    // Filled by a command: a busy machine would leave the daemon's workers without a CPU.
    let Some(daemon) = Daemon::start(PAGE, PAGES, &PAGE.pool("pages_per_block = 64")) else {
        return;
    };
    daemon.zero("max");
    let _guests = Guests::start(&daemon);
    for (columns, rows) in SIZES {
        ended(&daemon.command(&["status"]), "status", columns, rows);
        let mut top = Command::new(binary());
        top.args(["top", "--interval", "200ms", "--socket"]).arg(daemon.socket());
        let mut screen = Screen::start(&top, columns, rows);
        std::thread::sleep(Duration::from_secs(3));
        let path = to().join(format!("top-{columns}x{rows}.svg"));
        std::fs::write(path, screen.svg("top")).expect("the repository can be written");
        screen.press("q");
        screen.wait_for_end(Duration::from_secs(5));
    }
    let (columns, rows) = SIZES[1];
    ended(&daemon.command(&["doctor"]), "doctor", columns, rows);
}

fn laboratory() -> Option<PathBuf> {
    let lab = binary().with_file_name("prezero-lab");
    lab.exists().then_some(lab)
}

/// In a release build: a debug build measures the compiler.
#[test]
fn demo_is_drawn() {
    let Some(_) = laboratory() else { return };
    let mut demo = Command::new(binary());
    demo.args(["demo", "--size", "1G", "--rounds", "3"]);
    if let Some(kernel) = std::env::var_os("PREZERO_GUEST_KERNEL") {
        demo.arg("--guest-kernel").arg(kernel);
    }
    ended(&demo, "demo", SIZES[1].0, SIZES[1].1);
}

#[test]
fn reports_are_drawn() {
    let Some(_) = laboratory() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let bench = ["bench", "clear", "--quick", "--size", "64M", "--rounds", "1"];
    let plan = [
        "plan", "--nodes", "48", "--memory", "64G", "--seed", "1", "--loans", "2000", "--used",
        "60",
    ];
    for (name, words) in [("bench", &bench[..]), ("plan", &plan[..])] {
        let page = dir.path().join(format!("{name}.html"));
        let mut command = Command::new(binary());
        let output = command.args(words).arg("--report").arg(&page).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let picture = to().join(format!("{name}.png"));
        let mut chromium = Command::new("chromium");
        chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
        chromium.args(["--window-size=1000,1300", "--force-device-scale-factor=0.75"]);
        chromium.arg(format!("--screenshot={}", picture.display()));
        chromium.arg(format!("file://{}", page.display())).stdin(Stdio::null());
        let output = chromium.output().expect("chromium runs");
        assert!(picture.exists(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
