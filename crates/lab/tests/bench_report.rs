// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The benchmark runs, its JSON ends in the ratios, and its page can be looked at in a real
//! browser.

use std::path::Path;
use std::process::{Command, Output};

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// The narrowest of common phones, in CSS pixels, held upright.
const PHONE: &str = "--window-size=500,4000";

fn bench(dir: &Path) -> (serde_json::Value, String) {
    let page = dir.join("bench.html");
    let output = Command::new(env!("CARGO_BIN_EXE_prezero-lab"))
        .args(["bench", "clear", "--quick", "--size", "64M", "--rounds", "1", "--threads", "2"])
        .args(["--json", "--report"])
        .arg(&page)
        .output()
        .expect("the binary under test runs");
    assert!(output.status.success(), "{output:?}");
    let json = serde_json::from_slice(&output.stdout).expect("JSON");
    (json, std::fs::read_to_string(page).expect("the page"))
}

fn browse(browser: &str, dir: &Path, more: &[&str], page: &Path) -> Output {
    Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        .args(["--enable-logging=stderr", "--hide-scrollbars"])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .args(more)
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser runs")
}

#[test]
fn the_json_ends_in_the_ratios_and_the_page_loads_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (json, page) = bench(dir.path());
    let keys: Vec<_> = json.as_object().expect("an object").keys().cloned().collect();
    assert!(keys.iter().any(|key| key == "ratios"), "{keys:?}");
    let ratio = json["ratios"]["clear_choice_over_best"].as_f64().expect("measured");
    assert!(ratio > 0.05 && ratio < 20.0, "{ratio}");
    assert!(json["ratios"]["inplace_over_populate_1g"].is_null(), "that part was not asked for");
    // Each says the possible figure, and a missing one says why, in the page as well.
    let reached = json["reached"].as_array().expect("a list");
    assert_eq!(reached.len(), json["ratios"].as_object().expect("an object").len());
    for reach in reached {
        let name = reach["name"].as_str().expect("a name");
        assert_eq!(reach["measured"], json["ratios"][name], "{reach}");
        assert_eq!(reach["fraction"].is_null(), reach["measured"].is_null(), "{reach}");
    }
    let missing = "part populate was not run";
    assert_eq!(reached.iter().filter(|reach| reach["figures"] == missing).count(), 4);
    let left_out = page.split("Parts that were not run would have: ").nth(1);
    let left_out = left_out.and_then(|rest| rest.split('.').next()).expect("one sentence");
    let measured = reached.iter().filter(|reach| !reach["measured"].is_null()).count();
    assert_eq!(left_out.split(", ").count(), reached.len() - measured, "{left_out}");
    let rows = json["parts"][0]["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["values"][1]["median"].as_f64().is_some_and(|v| v > 0.0)));
    // Addresses may stand in the page as the names of XML, never as something to fetch.
    for fetched in ["src=", "href=\"http", "url(", "@import", "<script"] {
        assert!(!page.contains(fetched), "{fetched}");
    }

    let Some(browser) = BROWSERS.into_iter().find(|browser| {
        Command::new(browser).arg("--version").output().is_ok_and(|o| o.status.success())
    }) else {
        testkit::skip("no browser: apt-get install chromium");
        return;
    };
    // What the page looks like to itself, told in its title: a copy with one script more.
    let probe = "<script>addEventListener('load',()=>{const wide=document.documentElement.scrollWidth;\
        const charts=[...document.querySelectorAll('figure svg')];\
        const drawn=charts.filter(c=>{const b=c.getBoundingClientRect();return b.width>200&&b.height>80&&b.right<=innerWidth});\
        document.title=`wide ${wide} of ${innerWidth}, charts ${charts.length}, drawn ${drawn.length}`})</script></body>";
    let copy = dir.path().join("probe.html");
    std::fs::write(&copy, page.replace("</body>", probe)).expect("written");
    let seen = browse(browser, dir.path(), &[PHONE, "--dump-dom"], &copy);
    let dom = String::from_utf8_lossy(&seen.stdout);
    let title = dom.split("<title>").nth(1).and_then(|rest| rest.split('<').next()).unwrap_or("");
    let numbers: Vec<u32> =
        title.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    let [wide, room, charts, drawn] = numbers[..] else { panic!("no measurements: {title:?}") };
    assert!(wide <= room, "wider than a phone: {title}");
    assert_eq!((charts, drawn), (3, 3), "{title}");
    let log = String::from_utf8_lossy(&seen.stderr);
    assert!(!log.contains("CONSOLE"), "{log}");
}
