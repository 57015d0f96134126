// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A terminal's screen, and its picture.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prezero_tests::terminal::Terminal;

/// The place of a cell, in pixels of a font of 14.
const CELL: (f32, f32) = (8.4, 17.0);
const MARGIN: f32 = 10.0;
/// The sixteen colors that programs name.
const COLORS: [&str; 16] = [
    "#1e1e1e", "#cd3131", "#0dbc79", "#e5e510", "#2472c8", "#bc3fbc", "#11a8cd", "#e5e5e5",
    "#666666", "#f14c4c", "#23d18b", "#f5f543", "#3b8eea", "#d670d6", "#29b8db", "#ffffff",
];
const TEXT: &str = "#d4d4d4";
const GROUND: &str = "#1e1e1e";

/// A program on a terminal.
pub(crate) struct Screen {
    parser: Arc<Mutex<vt100::Parser>>,
    terminal: Terminal,
    keys: File,
    reader: Option<JoinHandle<()>>,
    size: (u16, u16),
    command: String,
}

impl Screen {
    pub(crate) fn start(command: &Command, columns: u16, rows: u16) -> Self {
        let terminal = Terminal::start(command, columns, rows);
        let mut output = terminal.other_end();
        let parser = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let fed = Arc::clone(&parser);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                fed.lock().expect("no panic").process(&bytes[..read]);
            }
        });
        let keys = terminal.other_end();
        let shown = |word: &std::ffi::OsStr| word.to_string_lossy().into_owned();
        let mut words = vec!["prezero".to_owned()];
        let mut given = command.get_args().map(shown);
        while let Some(word) = given.next() {
            if word == "--socket" {
                given.next();
            } else {
                words.push(word);
            }
        }
        let command = words.join(" ");
        Self { parser, terminal, keys, reader: Some(reader), size: (columns, rows), command }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("a terminal");
    }

    pub(crate) fn wait_for_end(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        while self.terminal.child.try_wait().expect("our own child").is_none() {
            assert!(Instant::now() < deadline, "{} goes on", self.command);
            std::thread::sleep(Duration::from_millis(20));
        }
        // What it wrote last is on its way.
        std::thread::sleep(Duration::from_millis(100));
        if self.reader.as_ref().is_some_and(JoinHandle::is_finished) {
            self.reader.take().expect("it is there").join().expect("no panic");
        }
    }

    /// The screen as a picture; `name` is its title.
    pub(crate) fn svg(&self, name: &str) -> String {
        let (columns, rows) = self.size;
        let parser = self.parser.lock().expect("no panic");
        let screen = parser.screen();
        let (width, height) =
            (f32::from(columns) * CELL.0 + 2.0 * MARGIN, f32::from(rows) * CELL.1 + 2.0 * MARGIN);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\">\n<title>{name}: {} at {columns} x {rows}</title>\n\
             <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{GROUND}\"/>\n\
             <g font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"14\" \
             fill=\"{TEXT}\">\n",
            escaped(&self.command)
        );
        for row in 0..rows {
            let mut column = 0;
            while column < columns {
                let style = style(screen.cell(row, column));
                let (begin, mut text) = (column, String::new());
                while column < columns && self::style(screen.cell(row, column)) == style {
                    let cell = screen.cell(row, column).map(vt100::Cell::contents);
                    text.push_str(cell.filter(|text| !text.is_empty()).unwrap_or(" "));
                    column += 1;
                }
                draw(&mut svg, (row, begin), &text, &style);
            }
        }
        svg + "</g>\n</svg>\n"
    }
}

/// Text, ground and weight of a cell.
type Style = (String, String, bool);

fn style(cell: Option<&vt100::Cell>) -> Style {
    let Some(cell) = cell else { return (TEXT.to_owned(), GROUND.to_owned(), false) };
    let (text, ground) = (color(cell.fgcolor(), TEXT), color(cell.bgcolor(), GROUND));
    match cell.inverse() {
        true => (ground, text, cell.bold()),
        false => (text, ground, cell.bold()),
    }
}

fn color(color: vt100::Color, default: &str) -> String {
    match color {
        vt100::Color::Default => default.to_owned(),
        vt100::Color::Idx(at) => (*COLORS.get(usize::from(at)).unwrap_or(&default)).to_owned(),
        vt100::Color::Rgb(red, green, blue) => format!("#{red:02x}{green:02x}{blue:02x}"),
    }
}

fn draw(svg: &mut String, (row, column): (u16, u16), text: &str, (color, ground, bold): &Style) {
    let (x, y) = (MARGIN + f32::from(column) * CELL.0, MARGIN + f32::from(row) * CELL.1);
    let width = text.chars().count() as f32 * CELL.0;
    if ground != GROUND {
        let height = CELL.1;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{ground}\"/>"
        );
    }
    let shown = text.trim_end();
    if shown.is_empty() {
        return;
    }
    let indent = shown.len() - shown.trim_start().len();
    let x = x + indent as f32 * CELL.0;
    let shown = shown.trim_start();
    let length = shown.chars().count() as f32 * CELL.0;
    let fill = if color == TEXT { String::new() } else { format!(" fill=\"{color}\"") };
    let weight = if *bold { " font-weight=\"bold\"" } else { "" };
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{:.1}\" textLength=\"{length:.1}\"{fill}{weight}>{}</text>",
        y + 13.0,
        escaped(shown)
    );
}

/// As text of XML, with spaces that browsers keep.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace(' ', "\u{a0}")
}
