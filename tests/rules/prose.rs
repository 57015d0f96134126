// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plain English: measures of documents and comments, and the form of some names.
//!
//! Each failure names file, line and sentence. The tables below list what is still to be
//! translated; they only shrink.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::{files, read};

/// Words that stand in for a subject or a field's term, as sequences of words. A star ends a stem.
const PRONOUNS: &[&str] = &[
    "whoever",
    "whomever",
    "whatever",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "no one",
    "someone",
    "those that",
    "those who",
    "those which",
    "so many",
    "so much",
    "so long",
    "such a",
    "such an",
    "of which",
    "in whose",
    "to whom",
    "whose",
    "what is",
    "what was",
    "what has",
    "who has",
    "who is",
    "is to be",
    "are to be",
    "has been told",
    "has be told",
    "as far as",
    "otherwise than",
    "for want of",
    "at that moment",
    "nor does",
    "nor do",
    "nor is",
    "nor are",
    "nor where",
    "heed*",
    "foreign",
    "hopeless",
];

const NEGATIONS: &[&str] = &[
    "not", "no", "nobody", "never", "none", "nothing", "neither", "nor", "without", "cannot",
    "isn't", "doesn't",
];

/// Pronouns for each 1000 words, in tenths.
const MAX_PRONOUNS_TENTHS: usize = 15;
/// Sentences with a negation, in percent.
const MAX_NEGATED_PERCENT: usize = 20;
/// The same in README.md, the first steps and the guides.
const MAX_NEGATED_PERCENT_OF_GUIDES: usize = 15;
const MAX_MEAN_WORDS: usize = 18;
const MAX_SENTENCE_WORDS: usize = 40;
const MAX_COLUMNS: usize = 100;
const MAX_PAGE_WORDS: usize = 1500;
/// A page of the design that answers why.
const MAX_REASON_WORDS: usize = 600;
const MAX_TEST_NAME: usize = 60;

/// Documents that programs write, and those that others translate.
const UNMEASURED: &[&str] = &[
    "docs/evidence/attacks.md",
    "docs/reference/errors.md",
    "docs/reference/verbs.md",
    "kernel/module/DESIGN.md",
    "kernel/module/COSTS.md",
];

/// Rooms with comments that are not translated yet.
const COMMENTS_TO_TRANSLATE: &[&str] = &[];

/// Rooms with names of tests beyond the bound, and how many at most.
const LONG_TEST_NAMES: &[(&str, usize)] = &[];

/// Rooms with durations that have another name than the rule asks for, and how many at most.
const DURATIONS_TO_RENAME: &[(&str, usize)] = &[];

/// Rooms with limits that have another name than the rule asks for, and how many at most.
const LIMITS_TO_RENAME: &[(&str, usize)] = &[];

/// Parts of names that say a limit in other words than `MAX` and `MIN`.
const LIMIT_WORDS: &[&str] =
    &["MOST", "FEW", "FEWEST", "LEAST", "LONGEST", "LARGEST", "WIDEST", "ENOUGH", "DEAF"];

/// A sentence, and the line in which it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sentence {
    line: usize,
    words: Vec<String>,
}

impl Sentence {
    fn new(chars: &[(char, usize)]) -> Self {
        let line = chars.iter().find(|(c, _)| !c.is_whitespace()).map_or(0, |(_, line)| *line);
        let text: String = chars.iter().map(|(c, _)| c).collect();
        Self { line, words: text.split_whitespace().map(str::to_owned).collect() }
    }

    /// The words in lower case, without what stands around them.
    fn plain(&self) -> Vec<String> {
        let bare = |word: &String| {
            word.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_ascii_lowercase()
        };
        self.words.iter().map(bare).collect()
    }

    fn negated(&self) -> bool {
        self.plain().iter().any(|word| NEGATIONS.contains(&word.as_str()))
    }

    fn pronouns(&self) -> usize {
        let plain = self.plain();
        let (mut at, mut found) = (0, 0);
        while at < plain.len() {
            let matches = |pattern: &&str| {
                let mut rest = plain[at..].iter();
                pattern.split(' ').all(|part| {
                    rest.next().is_some_and(|word| match part.strip_suffix('*') {
                        Some(stem) => word.starts_with(stem),
                        None => word == part,
                    })
                })
            };
            let length = PRONOUNS
                .iter()
                .filter(|pattern| matches(pattern))
                .map(|pattern| pattern.split(' ').count());
            let length = length.max();
            found += usize::from(length.is_some());
            at += length.unwrap_or(1);
        }
        found
    }
}

/// Gathers lines to paragraphs, and paragraphs to sentences.
#[derive(Default)]
struct Reader {
    paragraph: Vec<(char, usize)>,
    sentences: Vec<Sentence>,
}

impl Reader {
    fn line(&mut self, number: usize, text: &str) {
        self.paragraph.push((' ', number));
        self.paragraph.extend(text.chars().map(|c| (c, number)));
    }

    fn end(&mut self) {
        let plain = without_marks(&std::mem::take(&mut self.paragraph));
        let mut begin = 0;
        for at in 1..plain.len() {
            let ends = ".:?!;".contains(plain[at - 1].0) && plain[at].0.is_whitespace();
            let next = plain[at..].iter().map(|(c, _)| *c).find(|c| !c.is_whitespace());
            if ends && next.is_some_and(|c| c.is_ascii_uppercase() || "*`".contains(c)) {
                self.sentence(&plain[begin..at]);
                begin = at;
            }
        }
        self.sentence(&plain[begin..]);
    }

    fn sentence(&mut self, chars: &[(char, usize)]) {
        let sentence = Sentence::new(chars);
        // A word or two are a label.
        if sentence.words.len() > 3 {
            self.sentences.push(sentence);
        }
    }
}

/// A paragraph with `CODE` for code, and links as their text.
fn without_marks(chars: &[(char, usize)]) -> Vec<(char, usize)> {
    let find = |from: usize, c: char| chars[from..].iter().position(|(d, _)| *d == c);
    let mut plain = Vec::new();
    let mut at = 0;
    while let Some(&(c, line)) = chars.get(at) {
        at += 1;
        let after_link = |chars: &[(char, usize)]| {
            chars.get(at).is_some_and(|(next, _)| c == ']' && *next == '(')
        };
        if c == '`' {
            plain.extend("CODE".chars().map(|c| (c, line)));
            at += find(at, '`').map_or(0, |length| length + 1);
        } else if after_link(chars) {
            at += find(at, ')').map_or(0, |length| length + 1);
        } else if c != '[' && c != ']' {
            plain.push((c, line));
        }
    }
    plain
}

/// The rest of a list item, if a line begins one.
fn item(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let bullet = line.strip_prefix("- ").or_else(|| line.strip_prefix("* "));
    bullet.or_else(|| {
        let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
        (digits.len() < line.len()).then(|| digits.strip_prefix(". ")).flatten()
    })
}

/// The text of a manual's line: macros of a word become `CODE`, all others end a paragraph.
fn of_macro(line: &str) -> Option<String> {
    let inline = ["Ic", "Xr", "Ql", "Dv", "Pa", "Fn", "Em", "Sx", "Pq", "Nm"];
    let mut words = line.strip_prefix('.')?.split(' ');
    let name = words.next()?;
    let end = words.next_back().filter(|word| [".", ",", ";", ":"].contains(word));
    inline.contains(&name).then(|| format!("CODE{}", end.unwrap_or_default()))
}

/// The sentences of Markdown, by lines with their numbers; tables, code and headings are none.
fn sentences<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<Sentence> {
    let mut reader = Reader::default();
    let mut fenced = false;
    for (number, line) in lines {
        let text = line.trim();
        let fence = text.starts_with("```");
        fenced ^= fence;
        // An example of a manual is in a fence, too.
        fenced ^= text.starts_with(".Bd -literal") || (fenced && text == ".Ed");
        if text.is_empty() || fence || fenced {
            reader.end();
        } else if text.starts_with('.') {
            match of_macro(text) {
                Some(word) => reader.line(number, &word),
                None => reader.end(),
            }
        } else if line.starts_with("    ") || text.starts_with(['|', '#', '<', '{', '!']) {
            // A quotation of code, a table's row, a heading or a directive.
        } else if let Some(rest) = item(line) {
            reader.end();
            reader.line(number, rest);
        } else {
            reader.line(number, text);
        }
    }
    reader.end();
    reader.sentences
}

fn of_document(text: &str) -> Vec<Sentence> {
    sentences(text.lines().enumerate().map(|(at, line)| (at + 1, line)))
}

/// The sentences of a Rust source's comments. Code ends a paragraph. Promises are the
/// specification's sentences.
fn of_comments(text: &str) -> Vec<Sentence> {
    let mut is_promise = false;
    let lines = text.lines().enumerate().map(|(at, line)| {
        let comment = line.trim_start().strip_prefix("//");
        let comment = comment.filter(|comment| !comment.contains("SPDX-License-Identifier"));
        is_promise = comment.is_some_and(|said| is_promise || said.starts_with(" Promise P"));
        let comment = comment.filter(|_| !is_promise);
        let comment = comment.map(|comment| comment.strip_prefix(['/', '!']).unwrap_or(comment));
        (at + 1, comment.map_or("", |comment| comment.strip_prefix(' ').unwrap_or(comment)))
    });
    sentences(lines)
}

/// Whether the sentences of one document or room are plain, and those that are not.
#[derive(Default)]
struct Verdict {
    figures: String,
    faults: Vec<String>,
}

fn judge(sentences: &[(&Path, Sentence)], max_negated_percent: usize) -> Verdict {
    let mut verdict = Verdict::default();
    if sentences.is_empty() {
        return verdict;
    }
    let count = sentences.len();
    let words: usize = sentences.iter().map(|(_, s)| s.words.len()).sum();
    let pronouns: usize = sentences.iter().map(|(_, s)| s.pronouns()).sum();
    let negated = sentences.iter().filter(|(_, s)| s.negated()).count();
    let say = |verdict: &mut Verdict, why: &str, what: &dyn Fn(&Sentence) -> bool| {
        for (path, sentence) in sentences.iter().filter(|(_, s)| what(s)).take(20) {
            let place = format!("{}:{}", path.display(), sentence.line);
            verdict.faults.push(format!("{place}: {why}: {}", sentence.words.join(" ")));
        }
    };
    verdict.figures = format!(
        "{words} words, {pronouns} pronouns, {negated} of {count} sentences negated, mean {}.{}",
        words / count,
        words * 10 / count % 10,
    );
    if pronouns * 10_000 > words * MAX_PRONOUNS_TENTHS {
        say(&mut verdict, "name the thing", &|s| s.pronouns() > 0);
    }
    if negated * 100 > count * max_negated_percent {
        say(&mut verdict, "say it positively", &Sentence::negated);
    }
    if words > count * MAX_MEAN_WORDS {
        say(&mut verdict, "long, as most here", &|s| s.words.len() > MAX_MEAN_WORDS + 7);
    }
    say(&mut verdict, "too long", &|s| s.words.len() > MAX_SENTENCE_WORDS);
    verdict
}

/// The room of a Rust source: a crate by its folder, everything else by its first.
fn room(path: &Path) -> String {
    let mut parts = path.components().map(|part| part.as_os_str().to_string_lossy());
    let first = parts.next().unwrap_or_default();
    match parts.next() {
        Some(second) if first == "crates" => format!("{first}/{second}"),
        _ => first.into_owned(),
    }
}

fn with_ending(ending: &'static str) -> impl Iterator<Item = PathBuf> {
    files().into_iter().filter(move |path| path.extension().is_some_and(|e| e == ending))
}

fn documents() -> Vec<PathBuf> {
    let is_measured = |path: &PathBuf| !UNMEASURED.iter().any(|other| path == Path::new(other));
    with_ending("md").filter(is_measured).collect()
}

#[test]
fn documents_are_plain_english() {
    let mut faults = Vec::new();
    let manuals = files().into_iter().filter(|path| path.starts_with("dist/man"));
    for path in documents().into_iter().chain(manuals) {
        let is_guide = path == Path::new("README.md")
            || path.starts_with("docs/guides")
            || path.starts_with("docs/start");
        let bound = if is_guide { MAX_NEGATED_PERCENT_OF_GUIDES } else { MAX_NEGATED_PERCENT };
        let text = read(&path);
        let sentences: Vec<_> =
            of_document(&text).into_iter().map(|s| (path.as_path(), s)).collect();
        let verdict = judge(&sentences, bound);
        if !verdict.faults.is_empty() {
            faults.push(format!("{}: {}", path.display(), verdict.figures));
            faults.extend(verdict.faults);
        }
    }
    assert!(faults.is_empty(), "STYLE: see CONTRIBUTING.md, Prose\n{}", faults.join("\n"));
}

#[test]
fn comments_are_plain_english_room_by_room() {
    let mut rooms: BTreeMap<String, Vec<(PathBuf, Sentence)>> = BTreeMap::new();
    for path in with_ending("rs") {
        let found = of_comments(&read(&path)).into_iter().map(|s| (path.clone(), s));
        rooms.entry(room(&path)).or_default().extend(found);
    }
    assert!(rooms.len() > 10, "only {} rooms", rooms.len());
    let mut faults = String::new();
    for (room, sentences) in &rooms {
        let sentences: Vec<_> = sentences.iter().map(|(p, s)| (p.as_path(), s.clone())).collect();
        let verdict = judge(&sentences, MAX_NEGATED_PERCENT);
        match (COMMENTS_TO_TRANSLATE.contains(&room.as_str()), verdict.faults.is_empty()) {
            (false, false) => {
                let _ = writeln!(faults, "{room}: {}", verdict.figures);
                let _ = writeln!(faults, "{}", verdict.faults.join("\n"));
            }
            (true, true) => {
                let _ = writeln!(faults, "{room} is plain: take it from COMMENTS_TO_TRANSLATE");
            }
            _ => {}
        }
    }
    let gone = COMMENTS_TO_TRANSLATE.iter().filter(|room| !rooms.contains_key(**room));
    for room in gone {
        let _ = writeln!(faults, "{room} is gone: take it from COMMENTS_TO_TRANSLATE");
    }
    assert!(faults.is_empty(), "{faults}");
}

#[test]
fn markdown_lines_fit_100_columns() {
    let mut wide = Vec::new();
    for path in documents() {
        let mut fenced = false;
        for (at, line) in read(&path).lines().enumerate() {
            fenced ^= line.trim_start().starts_with("```");
            let free = fenced || line.starts_with("    ") || line.starts_with('|');
            // An address cannot be broken.
            let breaks = line.trim().contains(' ');
            if line.chars().count() > MAX_COLUMNS && !free && breaks {
                wide.push(format!("{}:{}: {line}", path.display(), at + 1));
            }
        }
    }
    assert!(wide.is_empty(), "wider than {MAX_COLUMNS} columns:\n{}", wide.join("\n"));
}

#[test]
fn pages_of_the_book_are_short() {
    let mut long = Vec::new();
    let mut pages = 0;
    for path in documents().into_iter().filter(|path| path.starts_with("docs")) {
        let is_reason = path.starts_with("docs/design");
        let bound = if is_reason { MAX_REASON_WORDS } else { MAX_PAGE_WORDS };
        let text = read(&path);
        let has_letter = |word: &&str| word.chars().any(char::is_alphanumeric);
        let words = text.split_whitespace().filter(has_letter).count();
        if words > bound {
            long.push(format!("{}: {words} words, at most {bound}", path.display()));
        }
        pages += 1;
    }
    let text = read(Path::new("ARCHITECTURE.md"));
    let words = text.split("<!-- ANCHOR").nth(1).expect("the page of the book");
    let words = words.split_whitespace().filter(|w| w.chars().any(char::is_alphanumeric)).count();
    if words > MAX_PAGE_WORDS {
        long.push(format!("ARCHITECTURE.md: {words} words, at most {MAX_PAGE_WORDS}"));
    }
    assert!(pages > 40, "only {pages} pages");
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// Names that break a rule, by their rooms, against the table of exceptions.
fn check(what: &str, found: &BTreeMap<String, Vec<String>>, table: &[(&str, usize)]) {
    let mut faults = String::new();
    for (room, places) in found {
        let allowed = table.iter().find(|(name, _)| name == room).map_or(0, |(_, count)| *count);
        if places.len() > allowed {
            let _ = writeln!(faults, "{room}: {} {what}, at most {allowed}:", places.len());
            let _ = writeln!(faults, "{}", places.join("\n"));
        }
    }
    for (room, allowed) in table.iter().filter(|(room, _)| !found.contains_key(*room)) {
        let _ = writeln!(faults, "{room} has no {what} ({allowed} are allowed): take it away");
    }
    assert!(faults.is_empty(), "{faults}");
}

/// The name of the test that a line declares, after a line with its attribute.
fn test_name<'a>(ending: &str, line: &'a str, is_test: bool) -> Option<&'a str> {
    let rest = match ending {
        "rs" if is_test => line.trim_start_matches("async ").strip_prefix("fn ")?,
        "go" => line.strip_prefix("func ").filter(|rest| rest.starts_with("Test"))?,
        "c" => line.strip_prefix("TEST(")?,
        _ => return None,
    };
    rest.split(['(', ')', '<']).next()
}

#[test]
fn names_of_tests_have_at_most_60_characters() {
    let mut long: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut seen = 0;
    for ending in ["rs", "go", "c"] {
        for path in with_ending(ending).filter(|path| !path.starts_with("kernel")) {
            let mut is_test = false;
            for (at, line) in read(&path).lines().enumerate() {
                let line = line.trim();
                is_test |= line.starts_with("#[test") || line.starts_with("#[tokio::test");
                if let Some(name) = test_name(ending, line, is_test) {
                    seen += 1;
                    if name.len() > MAX_TEST_NAME {
                        let place = format!("{}:{}: {name}", path.display(), at + 1);
                        long.entry(room(&path)).or_default().push(place);
                    }
                }
                is_test &= line.starts_with(['#', '/']) || line.ends_with([']', ',']);
            }
        }
    }
    assert!(seen > 1000, "only {seen} tests");
    check("long names of tests", &long, LONG_TEST_NAMES);
}

/// Name and type of the constant that a line declares.
fn constant(line: &str) -> Option<(&str, &str)> {
    let code = line.trim_start();
    let code = match code.strip_prefix("pub") {
        Some(rest) => rest.split_once("const ")?.1,
        None => code.strip_prefix("const ")?,
    };
    let (name, rest) = code.split_once(':')?;
    let is_name = name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    let kind = rest.split('=').next().unwrap_or_default().trim();
    is_name.then_some((name, kind))
}

fn is_limit(name: &str) -> bool {
    name.starts_with("MAX_") || name.starts_with("MIN_")
}

fn is_duration(name: &str) -> bool {
    let endings = ["_TIMEOUT", "_INTERVAL", "_PERIOD"];
    is_limit(name) || endings.iter().any(|ending| name.ends_with(ending))
}

fn constants_that(breaks: impl Fn(&str, &str) -> bool) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in with_ending("rs") {
        for (at, line) in read(&path).lines().enumerate() {
            if let Some((name, kind)) = constant(line).filter(|(name, kind)| breaks(name, kind)) {
                let place = format!("{}:{}: {name}: {kind}", path.display(), at + 1);
                found.entry(room(&path)).or_default().push(place);
            }
        }
    }
    found
}

#[test]
fn durations_are_a_timeout_an_interval_or_a_period() {
    let found = constants_that(|name, kind| kind == "Duration" && !is_duration(name));
    check("constants of type Duration with another name", &found, DURATIONS_TO_RENAME);
}

#[test]
fn limits_begin_with_max_or_min() {
    let is_number = |kind: &str| {
        let kinds = ["usize", "u8", "u16", "u32", "u64", "i32", "i64", "f64", "Pages", "Bytes"];
        kinds.contains(&kind)
    };
    let is_said = |name: &str| name.split('_').any(|part| LIMIT_WORDS.contains(&part));
    let found = constants_that(|name, kind| is_number(kind) && is_said(name) && !is_limit(name));
    check("limits with another name", &found, LIMITS_TO_RENAME);
}

#[test]
fn sentences_are_found_with_their_lines() {
    let text = "# A heading that is none\n\nThe first one is here. The `code of two` is\n[a \
                link](to/it.md) here: It goes on.\n\n- An item of the list\n  that goes on\n\n    \
                no code is read\n```\nnor this fenced one here\n```\n| no row of it |\n";
    let found: Vec<_> =
        of_document(text).into_iter().map(|s| (s.line, s.words.join(" "))).collect();
    let expected = [
        (3, "The first one is here."),
        (3, "The CODE is a link here:"),
        (6, "An item of the list that goes on"),
    ];
    assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    let comment = "//! One sentence stands here.\n//! Another one follows it.\nfn code() {}\n\
                   /// A third one, of code.\n";
    let found: Vec<_> = of_comments(comment).into_iter().map(|s| s.line).collect();
    assert_eq!(found, [1, 2, 4]);
}

#[test]
fn pronouns_and_negations_are_counted_once() {
    let sentence = |text: &str| of_document(text).remove(0);
    assert_eq!(sentence("It is so many pages, of which the owner has some.").pronouns(), 2);
    assert_eq!(sentence("A page in whose hands it is, heeded.").pronouns(), 2);
    assert_eq!(sentence("The borrower names the page.").pronouns(), 0);
    assert!(sentence("It cannot be had here.").negated());
    assert!(!sentence("It is a note of knots.").negated());
}

#[test]
fn a_constants_name_and_type_are_found() {
    assert_eq!(constant("    pub(crate) const A_B: Duration = X;"), Some(("A_B", "Duration")));
    assert_eq!(constant("const MOST: usize = 3;"), Some(("MOST", "usize")));
    assert_eq!(constant("const fn of(a: u64) -> Self {"), None);
}
