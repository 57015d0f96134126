// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The book in docs/: it can be built, each of its pages is in the summary, and all links of all
//! documents lead somewhere. The picture of README.md is drawn from its file of figures.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use super::{files, read, root};

/// The program that builds the book.
const MDBOOK: &str = "0.5.4";

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = plain.pop(),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// The text without what stands in fences, in indented code and between backquotes.
fn without_code(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if fence || fenced || line.starts_with("    ") {
            continue;
        }
        let outside: String = line.split('`').step_by(2).collect();
        lines.push((at + 1, outside));
    }
    lines
}

/// The links of a document with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    // A link may be broken after its text.
    let lines = without_code(text);
    let mut found = Vec::new();
    for (number, line) in &lines {
        for rest in line.split("](").skip(1) {
            if let Some((to, _)) = rest.split_once(')') {
                found.push((*number, to.to_owned()));
            }
        }
    }
    found
}

/// The anchors of a document: its headings as mdBook and forges spell them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading.trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        found.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
    }
    found
}

fn documents() -> impl Iterator<Item = PathBuf> {
    files().into_iter().filter(|path| path.extension().is_some_and(|e| e == "md"))
}

#[test]
fn links_of_documents_lead_somewhere() {
    let mut broken = String::new();
    let mut seen = 0;
    for path in documents() {
        let text = read(&path);
        for (line, link) in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            seen += 1;
            let place = format!("{}:{line}", path.display());
            let (to, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let folder = path.parent().expect("a file lies in a folder");
            let target = if to.is_empty() { path.clone() } else { plain(&folder.join(to)) };
            if !root().join(&target).exists() {
                let _ = writeln!(broken, "{place}: there is no {}", target.display());
            } else if path.starts_with("docs") && !target.starts_with("docs") {
                let _ = writeln!(broken, "{place}: {link} is not in the book: name it in `code`");
            } else if !anchor.is_empty() && !anchors(&read(&target)).contains(anchor) {
                let _ = writeln!(broken, "{place}: {} has no #{anchor}", target.display());
            }
        }
    }
    assert!(seen > 100, "only {seen} links");
    assert!(broken.is_empty(), "{broken}");
}

#[test]
fn files_named_in_documents_exist() {
    let folders = ["crates/", "dist/", "docs/", "kernel/", "kubernetes/", "tests/", "xtask/"];
    let mut gone = String::new();
    for path in documents().filter(|path| !path.starts_with("kernel")) {
        for (at, line) in read(&path).lines().enumerate() {
            for word in line.split('`').skip(1).step_by(2) {
                let is_path = folders.iter().any(|folder| word.starts_with(folder))
                    && word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
                if is_path && !root().join(word).exists() {
                    let _ = writeln!(gone, "{}:{}: there is no {word}", path.display(), at + 1);
                }
            }
        }
    }
    assert!(gone.is_empty(), "{gone}");
}

/// The pages that the summary names, below docs/.
fn summary() -> Vec<PathBuf> {
    let pages = links(&read(Path::new("docs/SUMMARY.md")));
    pages.into_iter().map(|(_, page)| PathBuf::from(page)).collect()
}

#[test]
fn each_page_is_once_in_the_summary() {
    let named = summary();
    let set: BTreeSet<_> = named.iter().map(|page| Path::new("docs").join(page)).collect();
    assert_eq!(set.len(), named.len(), "a page stands twice in docs/SUMMARY.md");
    let is_page = |path: &PathBuf| path.starts_with("docs") && !path.ends_with("SUMMARY.md");
    let pages: BTreeSet<_> = documents().filter(is_page).collect();
    assert_eq!(pages, set, "the pages there are, and those in docs/SUMMARY.md");
}

/// `mdbook`, installed for this user's checkouts if it is missing.
fn mdbook() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = set("PREZERO_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("prezero")))
        .or_else(|| Some(set("HOME")?.join(".cache/prezero")))?;
    let tools = cache.join("tools");
    let known = |program: &Path| {
        let version = Command::new(program).arg("--version").output();
        version.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains(MDBOOK))
    };
    let ours = tools.join("bin/mdbook");
    if let Some(found) = [Path::new("mdbook"), &ours].into_iter().find(|p| known(p)) {
        return Some(found.to_owned());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let words = ["install", "mdbook", "--locked", "--no-default-features", "--version", MDBOOK];
    let mut install = Command::new("nice");
    install.arg(cargo).args(words).arg("--root").arg(&tools).current_dir("/");
    // Another workspace's directory and flags are not for a tool.
    install.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
    let output = install.output().ok()?;
    known(&ours).then_some(ours).or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        testkit::skip(&format!("mdbook {MDBOOK} cannot be had: {}", said.trim_end()));
        None
    })
}

/// The values of an attribute in a page of HTML.
fn attributes(html: &str, name: &str) -> BTreeSet<String> {
    let begin = format!(" {name}=\"");
    html.split(&begin).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
}

#[test]
fn the_book_is_built_and_its_links_lead_somewhere() {
    let Some(mdbook) = mdbook() else { return };
    let to = tempfile::tempdir().expect("a directory");
    let output = Command::new(mdbook)
        .args(["build", "docs", "--dest-dir"])
        .arg(to.path())
        .current_dir(root())
        .output()
        .expect("mdbook runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("WARN") && !said.contains("ERROR"), "{said}");
    let mut pages = BTreeMap::new();
    for page in summary() {
        let html = match page.file_name() {
            Some(name) if name == "README.md" => page.with_file_name("index.html"),
            _ => page.with_extension("html"),
        };
        let text = std::fs::read_to_string(to.path().join(&html)).expect("the page was built");
        assert!(!text.contains("{{#"), "{}: a directive is left", html.display());
        pages.insert(html, text);
    }
    let mut broken = String::new();
    for (page, html) in &pages {
        let folder = page.parent().expect("a file lies in a folder");
        for link in attributes(html, "href").union(&attributes(html, "src")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            if link.contains(":") || link.starts_with("//") {
                continue;
            }
            let target = if file.is_empty() { page.clone() } else { plain(&folder.join(file)) };
            let is_there = to.path().join(&target).exists();
            let has = |html: &String| attributes(html, "id").contains(anchor);
            let is_page = pages.get(&target).is_some_and(|html| !anchor.is_empty() && !has(html));
            if !is_there || is_page {
                let _ = writeln!(broken, "{}: {link} leads nowhere", page.display());
            }
        }
    }
    assert!(broken.is_empty(), "{broken}");
}

/// Bars of the figures in a file: a line for each, `label,milliseconds`; notes begin with `#`.
fn picture(figures: &str) -> String {
    const WIDTH: f64 = 560.0;
    let rows: Vec<(&str, f64)> = figures
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (label, value) = line.split_once(',').expect("label,milliseconds");
            (label, value.parse().expect("a number"))
        })
        .collect();
    let notes: Vec<_> = figures.lines().filter_map(|line| line.strip_prefix("# ")).collect();
    let longest = rows.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"150\" \
         font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"760\" height=\"150\" fill=\"#ffffff\"/>\n",
    );
    for (at, (label, value)) in rows.iter().enumerate() {
        let y = 12 + at * 44;
        let width = (value / longest * WIDTH).max(1.0);
        let color = if at == 0 { "#9aa0a6" } else { "#1a73e8" };
        let _ = writeln!(svg, "<text x=\"10\" y=\"{}\" fill=\"#202124\">{label}</text>", y + 10);
        let bar = y + 16;
        let _ = writeln!(
            svg,
            "<rect x=\"10\" y=\"{bar}\" width=\"{width:.1}\" height=\"16\" fill=\"{color}\"/>"
        );
        let (x, y) = (18.0 + width, bar + 13);
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" fill=\"#202124\">{value} ms</text>");
    }
    for (at, note) in notes.iter().rev().enumerate() {
        let y = 118 + at * 18;
        let _ = writeln!(
            svg,
            "<text x=\"10\" y=\"{y}\" font-size=\"11\" fill=\"#5f6368\">{note}</text>"
        );
    }
    svg + "</svg>\n"
}

#[test]
fn the_picture_of_the_readme_is_of_its_figures() {
    let drawn = picture(&read(Path::new("docs/start/start.csv")));
    let path = Path::new("docs/start/start.svg");
    if std::env::var_os("PREZERO_DRAW").is_some() {
        std::fs::write(root().join(path), &drawn).expect("the repository can be written");
    }
    assert_eq!(read(path), drawn, "PREZERO_DRAW=1 draws it anew");
}

#[test]
fn links_and_anchors_are_found() {
    let text = "See [a](b.md#c) and `[no](x.md)`.\n\n## Who's there? `user_queues` 2\n";
    assert_eq!(links(text), [(1, "b.md#c".to_owned())]);
    assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), ["whos-there-user_queues-2"]);
}
