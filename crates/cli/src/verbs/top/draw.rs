// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The screen, from 40 columns by 10 lines on. Every state has a sign of its own besides its
//! colour, for people and terminals without colours; terminals without UTF-8 get signs of ASCII.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use units::Pages;
use wire::{LoanStatus, PoolStatus};

use super::view::{Focus, Prompt, Question, View};
use crate::output::loans::{age, borrower, or_dash, unit};
use crate::output::table::{self, Column};
use crate::output::{count, pools, rate, text};

/// Lines of one pool where there is room for them, and where there is not.
const POOL_LINES: u16 = 3;
const SHORT_POOL_LINES: u16 = 2;
/// Screens lower than this have short pools, and neither a legend nor a history.
const SHORT_SCREEN: u16 = 20;
/// Columns of a state's amount, with the space behind it.
const COUNT: usize = 13;
/// Columns of a pool's name, before its bar.
const NAME: u16 = 20;

/// A state: its name, its sign, the same in ASCII, its colour and its pages.
type Sign = (&'static str, &'static str, &'static str, Color, fn(&PoolStatus) -> Pages);

/// States in the order of their life.
const STATES: [Sign; 6] = [
    ("ready", "█", "#", Color::Green, |pool| pool.ready_pages),
    ("zeroing", "▓", "+", Color::Yellow, |pool| pool.zeroing_pages),
    ("zeroable", "░", ".", Color::DarkGray, |pool| pool.zeroable_pages),
    ("lent", "▒", "=", Color::Blue, |pool| pool.lent_pages),
    ("kept", "K", "K", Color::Cyan, |pool| pool.kept_pages),
    ("draining", "D", "D", Color::Red, |pool| pool.draining_pages),
];

/// The keys, the more important ones first.
const KEYS: [(&str, &str); 12] = [
    ("q", "leave"),
    ("?", "keys"),
    ("z", "zero"),
    ("s", "stop"),
    ("g", "give back"),
    ("r", "ready"),
    ("o", "order"),
    ("tab", "loans"),
    ("up/down", "choose"),
    ("l", "low"),
    ("h", "high"),
    ("f", "leave free"),
];

const HELP: [&str; 12] = [
    " q, Esc       leave",
    " Tab          arrows move over loans, or over pools again",
    " up, down     choose a pool, or scroll the loans (also k, j)",
    " PgUp, PgDn   the same by ten; Home and End go to the ends",
    " o            order of the loans: newest, largest, unbacked, user, command",
    " z            zero memory of the chosen pool in this process",
    " s            stop that",
    " g            give memory of the pool back to the kernel",
    " r            how much is to be ready, of a pool that has `ready`",
    " l, h         ready_low and ready_high of a pool with one size of blocks",
    " f            leave_free: what stays free in the kernel's pool",
    " Amounts are sizes, as 16G, or numbers of pages. Any key goes back.",
];

pub(super) fn draw(frame: &mut Frame<'_>, view: &View, is_ascii: bool) {
    let area = frame.area();
    let is_short = area.height < SHORT_SCREEN;
    let lines = if is_short { SHORT_POOL_LINES } else { POOL_LINES };
    let extra = u16::from(!is_short);
    let pools = u16::try_from(view.pools().len()).unwrap_or(u16::MAX).max(1);
    // Loans get a third at least; the rest of many pools is scrolled to.
    let most = area.height.saturating_sub(4 + 2 * extra) * 2 / 3;
    let pool_lines = pools.saturating_mul(lines).min((most / lines * lines).max(lines));
    let [head, legend, pool_area, history, loans, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(extra),
        Constraint::Length(pool_lines),
        Constraint::Length(extra),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(heading(view, usize::from(area.width))), head);
    if view.help {
        let height = foot.y.saturating_sub(legend.y);
        let keys: Vec<_> = HELP.map(Line::from).into();
        frame.render_widget(Paragraph::new(keys), Rect { height, ..legend });
    } else {
        frame.render_widget(Paragraph::new(signs(is_ascii)), legend);
        draw_pools(frame, view, pool_area, lines, is_ascii);
        let line = view.history.line(usize::from(area.width), is_ascii);
        frame.render_widget(Paragraph::new(Line::from(line).green()), history);
        draw_loans(frame, view, loans);
    }
    frame.render_widget(Paragraph::new(footing(view, usize::from(area.width))), foot);
}

/// What is going on, and how fast; or why that is unknown.
fn heading(view: &View, width: usize) -> Vec<Line<'static>> {
    let seen = match view.status {
        Some(_) => " waiting for it; below is what was seen last",
        None => " waiting for it",
    };
    let lost =
        |why: String| vec![Line::from(text::cut(&why, width)).red().bold(), Line::from(seen)];
    if let Some(seconds) = view.silent_seconds() {
        return lost(format!(" the daemon has not answered for {}", count(seconds, "second")));
    }
    if let Some(why) = &view.gone {
        return lost(format!(" {why}"));
    }
    let Some(status) = &view.status else {
        return vec![Line::from(format!(" asks {}", view.socket.display()))];
    };
    let workers = count(status.workers.into(), "worker");
    let first = format!(
        " prezero {}, provider {}, pid {}, {workers}: {}",
        status.version, status.provider, status.pid, status.health
    );
    let rates = &view.rates;
    let hits =
        rates.hit_rate.map_or_else(|| "-".to_owned(), |part| format!("{:.0} %", part * 100.0));
    let second = format!(
        " zeroing {}, {:.1} loans/s, {hits} hits, {:.1} refused/s, {} lost",
        rate(rates.zeroed_bytes_per_second),
        rates.loans_per_second,
        rates.refusals_per_second,
        count(status.counters.lost_workers, "worker")
    );
    let line = |line: String| Line::from(text::cut(&line, width));
    vec![line(first).bold(), line(second)]
}

fn sign_of((_, sign, ascii, _, _): &Sign, is_ascii: bool) -> &'static str {
    if is_ascii { ascii } else { sign }
}

fn signs(is_ascii: bool) -> Line<'static> {
    let sign = |state: &Sign| {
        let (name, _, _, color, _) = state;
        let sign = Span::styled(sign_of(state, is_ascii), Style::new().fg(*color));
        [sign, Span::from(format!(" {name}  "))]
    };
    Line::from_iter(std::iter::once(Span::from(" ")).chain(STATES.iter().flat_map(sign)))
}

fn draw_pools(frame: &mut Frame<'_>, view: &View, area: Rect, lines: u16, is_ascii: bool) {
    let room = usize::from(area.height / lines).max(1);
    let first = (view.chosen + 1).saturating_sub(room);
    let shown = view.pools().iter().enumerate().skip(first).take(room);
    let lines = shown.flat_map(|(at, pool)| {
        let all = pool_lines(pool, at == view.chosen, area.width, is_ascii);
        all.into_iter().take(usize::from(lines))
    });
    let lines: Vec<_> = lines.collect();
    let text = if lines.is_empty() && view.status.is_some() {
        vec![Line::from(" no pool is configured")]
    } else {
        lines
    };
    frame.render_widget(Paragraph::new(text), area);
}

/// The pool's name and bar, its states, its thresholds.
fn pool_lines(pool: &PoolStatus, chosen: bool, width: u16, is_ascii: bool) -> [Line<'static>; 3] {
    let mark = if chosen { ">" } else { " " };
    let page = pool.page_size;
    let size = |pages: Pages| pages.bytes(page);
    let name = format!("{mark}node {} {page}{} ", pool.node, pools::times(pool));
    let style = if chosen { Style::new().bold() } else { Style::new() };
    let mut bar = vec![Span::styled(format!("{name:<20}"), style)];
    bar.extend(bar_of(pool, width.saturating_sub(NAME + 1), is_ascii));
    let width = usize::from(width);
    let counts = STATES.iter().map(|(name, .., pages)| format!("{name} {}", size(pages(pool))));
    // In columns where all of them fit; a narrow screen leaves the last ones away.
    let has_room = counts.clone().all(|part| part.len() < COUNT) && width > STATES.len() * COUNT;
    let counts = match has_room {
        true => counts.map(|part| format!("{part:<COUNT$}")).collect(),
        false => fitting(counts, ", ", width.saturating_sub(1)),
    };
    let wanted = match pool.pages_per_block {
        Pages(0) => vec![format!("ready {}", size(pool.ready_high))],
        _ => vec![
            format!("ready_low {}", size(pool.ready_low)),
            format!("ready_high {}", size(pool.ready_high)),
        ],
    };
    let max = pool.max_pages.map_or_else(|| "none".to_owned(), |max| size(max).to_string());
    let kernel = match &pool.resize {
        None => {
            [format!("max {max}"), format!("{} free in the kernel", size(pool.kernel_free_pages))]
        }
        Some(of) => {
            let range = format!("{} to {}", size(of.min_pages), size(of.max_pages));
            [format!("kernel {}", size(of.total_pages)), format!("of {range}")]
        }
    };
    let rest = [format!("leave_free {}", size(pool.leave_free))].into_iter().chain(kernel);
    let thresholds = fitting(wanted.into_iter().chain(rest), ", ", width.saturating_sub(1));
    let line = |text: String| Line::from(format!(" {text}"));
    [Line::from(bar), line(counts), line(thresholds).dark_gray()]
}

/// As many of the parts as fit into a line whole.
fn fitting(parts: impl Iterator<Item = String>, between: &str, width: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let gap = if line.is_empty() { "" } else { between };
        if line.chars().count() + gap.len() + part.chars().count() > width {
            break;
        }
        line += gap;
        line += &part;
    }
    line
}

/// As many signs of each state as its part of all pages; a state that is there has one at least.
fn bar_of(pool: &PoolStatus, room: u16, is_ascii: bool) -> Vec<Span<'static>> {
    let pages: Vec<u64> = STATES.iter().map(|(.., pages)| pages(pool).0).collect();
    let widths = widths(&pages, room);
    if widths.iter().all(|width| *width == 0) {
        let nothing = if is_ascii { "-" } else { "·" };
        return vec![Span::from(nothing.repeat(usize::from(room))).dark_gray()];
    }
    let span = |(state, width): (&Sign, &u16)| {
        let sign = sign_of(state, is_ascii).repeat(usize::from(*width));
        Span::styled(sign, Style::new().fg(state.3))
    };
    STATES.iter().zip(&widths).map(span).collect()
}

/// Splits `room` in proportion to `parts`, at least 1 for each positive one; all 0 if all are.
fn widths(parts: &[u64], room: u16) -> Vec<u16> {
    let total: u128 = parts.iter().map(|part| u128::from(*part)).sum();
    if total == 0 {
        return vec![0; parts.len()];
    }
    let share = |part: &u64| {
        let exact = u128::from(*part) * u128::from(room) / total;
        u16::try_from(exact).unwrap_or(room).max(u16::from(*part > 0))
    };
    let mut widths: Vec<u16> = parts.iter().map(share).collect();
    // What rounding left or took is the largest part's.
    let sum: u16 = widths.iter().sum();
    if let Some(largest) = widths.iter_mut().max() {
        *largest = (*largest + room).saturating_sub(sum);
    }
    widths
}

fn draw_loans(frame: &mut Frame<'_>, view: &View, area: Rect) {
    if view.status.is_none() || area.height == 0 {
        return;
    }
    let columns = [
        Column::right("LEASE"),
        Column::left("USER").cut(8),
        Column::right("PID").drop(3),
        Column::right("SIZE"),
        Column::right("UNBACKED").drop(4),
        Column::right("AGE").drop(2),
        Column::left("OWNER").cut(6).drop(1),
        Column::left("UNIT").cut(12).drop(5),
        Column::left("COMMAND").cut(8),
    ];
    let row = |loan: &&LoanStatus| {
        vec![
            loan.lease.0.to_string(),
            borrower(loan),
            or_dash(loan.pid),
            loan.pages.bytes(loan.page_size).to_string(),
            loan.unbacked_pages.bytes(loan.page_size).to_string(),
            age(loan.age),
            or_dash(loan.owner.as_ref()),
            unit(loan.cgroup.as_deref()),
            or_dash(loan.command.as_ref()),
        ]
    };
    let loans = view.loans();
    let room = usize::from(area.height.saturating_sub(1));
    let left = loans.len().saturating_sub(view.scrolled);
    let shown = if left > room { room.saturating_sub(1) } else { room };
    let rows: Vec<_> = loans.iter().skip(view.scrolled).take(shown).map(row).collect();
    let width = usize::from(area.width.saturating_sub(1));
    let mut lines: Vec<_> = table::lines(&columns, &rows, width)
        .into_iter()
        .map(|line| Line::from(format!(" {line}")))
        .collect();
    if let Some(heading) = lines.first_mut() {
        let style = Style::new().bold();
        let is_meant = view.focus == Focus::Loans;
        *heading = std::mem::take(heading).style(if is_meant { style.reversed() } else { style });
    }
    if left > shown {
        lines.push(Line::from(format!(" and {} more", left - shown)));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn footing(view: &View, width: usize) -> Line<'static> {
    if let Some(prompt) = &view.prompt {
        return Line::from(question(view, prompt)).reversed();
    }
    if let Some(bytes) = view.zeroing {
        return Line::from(format!(" zeroing here: {bytes} so far; s stops it")).yellow();
    }
    if let Some(message) = &view.message {
        return Line::from(text::cut(&format!(" {message}"), width)).yellow();
    }
    let keys = KEYS.iter().map(|(key, what)| format!("{key} {what}"));
    Line::from(format!(" {}", fitting(keys, "  ", width.saturating_sub(1)))).dark_gray()
}

fn question(view: &View, Prompt { question, typed }: &Prompt) -> String {
    let pool = view.pool();
    let now = |of: fn(&PoolStatus) -> Pages| {
        pool.map(|pool| of(pool).bytes(pool.page_size).to_string()).unwrap_or_default()
    };
    let (what, nothing) = match question {
        Question::Zero => ("zero how much", "all".to_owned()),
        Question::Release => ("give back how much", "all".to_owned()),
        Question::Ready => ("ready", now(|pool| pool.ready_high)),
        Question::ReadyLow => ("ready_low", now(|pool| pool.ready_low)),
        Question::ReadyHigh => ("ready_high", now(|pool| pool.ready_high)),
        Question::LeaveFree => ("leave_free", now(|pool| pool.leave_free)),
    };
    format!(" {what} [{nothing}]: {typed}_   (Enter, or Esc for nothing)")
}

#[cfg(test)]
mod tests {
    use super::super::feed::Update;
    use super::super::view::tests::{status, view};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use units::{LeaseId, Node};
    use wire::Status;

    /// The screen's text, trimmed at the ends of its lines.
    fn screen(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, view, false)).expect("it draws");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        let lines: Vec<_> = (0..height).map(|y| line(y).trim_end().to_owned()).collect();
        lines.join("\n")
    }

    const SCREEN: &str = "\
\x20prezero 0.1.0, provider stock, pid 7, 2 workers: healthy
 zeroing 3.90 GB/s, 1.5 loans/s, 98 % hits, 0.0 refused/s, 1 worker lost
 █ ready  ▓ zeroing  ░ zeroable  ▒ lent  K kept  D draining
>node 0 1G x 8      ████████████████████████▓▓▓▓▓▓▓░░░░░░░░░░░░░░▒▒▒▒▒▒▒▒▒▒▒KKD
 ready 24G    zeroing 8G   zeroable 16G lent 12G     kept 3G      draining 1G
 ready_low 8G, ready_high 32G, leave_free 2G, max none, 18G free in the kernel
 node 1 1G x 8      ████████████████████████▓▓▓▓▓▓▓░░░░░░░░░░░░░░▒▒▒▒▒▒▒▒▒▒▒KKD
 ready 24G    zeroing 8G   zeroable 16G lent 12G     kept 3G      draining 1G
 ready_low 8G, ready_high 32G, leave_free 2G, max none, 18G free in the kernel
 node 1 2M x 512    ···························································
 ready 0      zeroing 0    zeroable 0   lent 0       kept 0       draining 0
 ready_low 16M, ready_high 64M, leave_free 4M, max none, 36M free in the kernel
 ready                            █ 48G  lent                             █ 24G
 LEASE  USER   PID  SIZE  UNBACKED  AGE  OWNER  UNIT         COMMAND
    18  root  4242    8G        1G   2h  db     vm-17.scope  postgres
    17  root  4242    8G        1G   2h  -      vm-17.scope  postgres







 q leave  ? keys  z zero  s stop  g give back  r ready  o order  tab loans";

    /// Leases, sizes and keys are whole on every screen, and a wide one shows the guest.
    // Promise P323.
    #[test]
    fn screens_of_every_size_show_whole_numbers_within_their_width() {
        let mut view = view();
        let loan = &mut view.status.as_mut().expect("it was seen").loans[0];
        loan.lease = LeaseId(1_618_412_445);
        loan.command = Some("qemu-system-x86_64 -name guest=database-7 -m 8G".into());
        loan.cgroup = Some("/machine.slice/machine-qemu-7-database.scope".into());
        for (width, height) in [(40, 10), (60, 15), (80, 24), (120, 40), (200, 50)] {
            for ascii in [false, true] {
                let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("one");
                terminal.draw(|frame| draw(frame, &view, ascii)).expect("it draws");
                let text = terminal.backend().to_string();
                assert!(text.contains("q leave") && text.contains("? keys"), "{text}");
                assert!(text.contains("1618412445 ") && text.contains(" 8G "), "{text}");
                assert!(text.contains(">node 0 1G x 8") && text.contains("ready 24G"), "{text}");
                assert!(!ascii || text.lines().all(drawn_in_ascii), "{text}");
                if width >= 80 {
                    assert!(text.contains("machine-qemu") && text.contains("8G"), "{text}");
                }
                if width >= 120 {
                    assert!(text.contains("qemu-system-x86_64 -name guest=data"), "{text}");
                }
            }
        }
    }

    /// A cut text has its own sign, by the locale.
    fn drawn_in_ascii(line: &str) -> bool {
        line.chars().all(|c| c.is_ascii() || c == '\u{2026}')
    }

    #[test]
    fn help_names_every_key_of_the_footer() {
        let mut view = view();
        view.help = true;
        let text = screen(&view, 80, 24);
        for (key, _) in KEYS.iter().filter(|(key, _)| key.len() == 1 && *key != "?") {
            let is_named = |line: &&str| line.get(..14).is_some_and(|keys| keys.contains(key));
            assert!(text.lines().any(|line| is_named(&line)), "{key}: {text}");
        }
    }

    #[test]
    fn daemon_that_hangs_is_named_above_the_last_values() {
        let mut view = view();
        view.hear(Update::Asked);
        std::thread::sleep(std::time::Duration::from_millis(1600));
        let text = screen(&view, 80, 24);
        assert!(text.starts_with(" the daemon has not answered for 1 second\n"), "{text}");
    }

    // Promise P66 (years): `prezero top` fits into 80 by 24, says when the daemon is gone, waits
    // for it, and restores the terminal at every end.
    #[test]
    fn everything_fits_into_80_columns_and_24_lines() {
        assert_eq!(screen(&view(), 80, 24), SCREEN);
    }

    #[test]
    fn lost_daemon_is_named_above_the_last_values() {
        let mut view = view();
        view.hear(Update::Gone("no daemon at /run/prezero/io.prezero".into()));
        let text = screen(&view, 80, 24);
        assert!(
            text.starts_with(" no daemon at /run/prezero/io.prezero\n waiting for it;"),
            "{text}"
        );
        assert!(text.contains("node 0 1G x 8") && text.contains("LEASE"), "{text}");
    }

    #[test]
    fn questions_show_what_holds_now() {
        let mut view = view();
        view.prompt = Some(Prompt { question: Question::ReadyHigh, typed: "40".into() });
        let text = screen(&view, 80, 24);
        assert!(text.ends_with("ready_high [32G]: 40_   (Enter, or Esc for nothing)"), "{text}");
    }

    #[test]
    fn more_pools_and_loans_than_lines_are_scrolled_and_counted() {
        let one = status();
        let pools: Vec<_> =
            (0..30).map(|node| PoolStatus { node: Node(node), ..one.pools[0].clone() }).collect();
        let loans: Vec<_> = (0..100)
            .map(|lease| LoanStatus { lease: LeaseId(lease), ..one.loans[0].clone() })
            .collect();
        let mut view = view();
        view.hear(Update::Status(Box::new(Status { pools, loans, ..one })));
        view.chosen = 29;
        let text = screen(&view, 80, 24);
        assert!(text.contains(">node 29 1G x 8") && !text.contains("node 0 "), "{text}");
        assert!(text.contains("and 9") && text.contains(" more"), "{text}");
        // Below its design size it is ugly, and works.
        for (width, height) in [(1, 1), (20, 5), (79, 7)] {
            screen(&view, width, height);
        }
    }

    #[test]
    fn every_state_that_is_there_is_in_the_bar_and_the_bar_is_full() {
        for parts in [[1, 0, 0, 0, 0, 0], [1_000_000, 1, 1, 1, 1, 1], [7, 7, 7, 7, 7, 7]] {
            let widths = widths(&parts, 40);
            assert_eq!(widths.iter().sum::<u16>(), 40, "{parts:?}");
            let seen = widths.iter().zip(parts).all(|(width, part)| (*width > 0) == (part > 0));
            assert!(seen, "{parts:?}: {widths:?}");
        }
        assert_eq!(widths(&[0; 6], 40), [0; 6]);
        assert_eq!(widths(&[u64::MAX, u64::MAX, 0, 0, 0, 0], 40)[..2], [20, 20]);
    }
}
