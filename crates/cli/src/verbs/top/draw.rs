// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The screen, from 80 columns by 24 lines on. Every state has a sign of its own besides its
//! colour, for people and terminals without colours.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use wire::{LoanStatus, PoolStatus};

use super::view::{Prompt, Question, View};
use crate::output::loans::{age, borrower, or_dash, size};
use crate::output::{pools, rate};

/// Lines of one pool.
const POOL_LINES: u16 = 3;
/// Columns of a pool's name, before its bar.
const NAME: u16 = 20;

type Sign = (&'static str, &'static str, Color, fn(&PoolStatus) -> u64);

/// States in the order of their life, with sign and colour.
const STATES: [Sign; 6] = [
    ("ready", "█", Color::Green, |pool| pool.ready_pages.0),
    ("zeroing", "▓", Color::Yellow, |pool| pool.zeroing_pages.0),
    ("zeroable", "░", Color::DarkGray, |pool| pool.zeroable_pages.0),
    ("lent", "▒", Color::Blue, |pool| pool.lent_pages.0),
    ("kept", "K", Color::Cyan, |pool| pool.kept_pages.0),
    ("draining", "L", Color::Red, |pool| pool.draining_pages.0),
];

pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let pools = u16::try_from(view.pools().len()).unwrap_or(u16::MAX).max(1);
    // Loans get a third at least; the rest of many pools is scrolled to.
    let most = frame.area().height.saturating_sub(6) * 2 / 3;
    let [head, legend, pool_area, _, loans, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Length(pools.saturating_mul(POOL_LINES).min(most / POOL_LINES * POOL_LINES)),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(heading(view)), head);
    frame.render_widget(Paragraph::new(signs()), legend);
    draw_pools(frame, view, pool_area);
    draw_loans(frame, view, loans);
    frame.render_widget(Paragraph::new(footing(view)), foot);
}

fn heading(view: &View) -> Vec<Line<'static>> {
    let first = match (&view.gone, &view.status) {
        (Some(why), _) => {
            return vec![
                Line::from(format!(" {why}")).red().bold(),
                Line::from(if view.status.is_some() {
                    " waiting for it; below is what was seen last"
                } else {
                    " waiting for it"
                }),
            ];
        }
        (None, None) => return vec![Line::from(format!(" asks {}", view.socket.display()))],
        (None, Some(status)) => {
            let paused = match (status.drained, status.paused_by_pressure) {
                (true, _) => ", drained",
                (false, true) => ", paused by CPU pressure",
                (false, false) => "",
            };
            format!(
                " prezero {}, provider {}, pid {}, {} workers{paused}",
                status.version, status.provider, status.pid, status.workers
            )
        }
    };
    let rates = &view.rates;
    let hits =
        rates.hit_rate.map_or_else(|| "-".to_owned(), |part| format!("{:.0} %", part * 100.0));
    let counters = view.status.as_ref().map(|status| status.counters).unwrap_or_default();
    let second = format!(
        " zeroing {}, {:.1} loans/s, {hits} hits, {:.1} refused/s, {} workers lost",
        rate(rates.zeroed_bytes_per_second),
        rates.loans_per_second,
        rates.refusals_per_second,
        counters.lost_workers
    );
    vec![Line::from(first).bold(), Line::from(second)]
}

fn signs() -> Line<'static> {
    let sign = |(name, sign, color, _): &Sign| {
        [Span::styled(*sign, Style::new().fg(*color)), Span::from(format!(" {name}  "))]
    };
    Line::from_iter(std::iter::once(Span::from(" ")).chain(STATES.iter().flat_map(sign)))
}

fn draw_pools(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let room = usize::from(area.height / POOL_LINES).max(1);
    let first = (view.chosen + 1).saturating_sub(room);
    let lines: Vec<_> = view
        .pools()
        .iter()
        .enumerate()
        .skip(first)
        .take(room)
        .flat_map(|(at, pool)| pool_lines(pool, at == view.chosen, area.width))
        .collect();
    let text = if lines.is_empty() && view.status.is_some() {
        vec![Line::from(" no pool is configured")]
    } else {
        lines
    };
    frame.render_widget(Paragraph::new(text), area);
}

/// The pool's name and bar, its states, its thresholds.
fn pool_lines(pool: &PoolStatus, chosen: bool, width: u16) -> [Line<'static>; 3] {
    let mark = if chosen { ">" } else { " " };
    let page = pool.page_size;
    let name = format!("{mark}node {} {page}{} ", pool.node, pools::times(pool));
    let style = if chosen { Style::new().bold() } else { Style::new() };
    let mut bar = vec![Span::styled(format!("{name:<20}"), style)];
    bar.extend(bar_of(pool, width.saturating_sub(NAME + 1)));
    // Up to 999999 pages of each state, 2 TiB of 2 MiB pages, fit into 80 columns.
    let counts = STATES.iter().map(|(name, _, _, pages)| format!("{name} {:<6}", pages(pool)));
    let max = pool.max_pages.map_or_else(|| "none".to_owned(), |max| max.to_string());
    let kernel = match &pool.resize {
        None => format!(", max {max}; {} free in the kernel", pool.kernel_free_pages),
        // Of 4 TiB in pages of 2 MiB it still fits.
        Some(of) => format!("; kernel {} ({} to {})", of.total_pages, of.min_pages, of.max_pages),
    };
    let thresholds = format!(
        " ready_low {}, ready_high {}, leave_free {}{kernel}",
        pool.ready_low, pool.ready_high, pool.leave_free
    );
    let counts = format!(" {}", counts.collect::<String>());
    [Line::from(bar), Line::from(counts), Line::from(thresholds).dark_gray()]
}

/// As many signs of each state as its part of all pages; a state that is there has one at least.
fn bar_of(pool: &PoolStatus, room: u16) -> Vec<Span<'static>> {
    let pages: Vec<u64> = STATES.iter().map(|(.., pages)| pages(pool)).collect();
    let widths = widths(&pages, room);
    if widths.iter().all(|width| *width == 0) {
        return vec![Span::from("·".repeat(usize::from(room))).dark_gray()];
    }
    let span = |((_, sign, color, _), width): (&Sign, &u16)| {
        Span::styled(sign.repeat(usize::from(*width)), Style::new().fg(*color))
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
    let Some(status) = &view.status else { return };
    let heading = ["LEASE", "USER", "PID", "COMMAND", "OWNER", "AGE", "SIZE", "UNBACKED"];
    let cells = |loan: &LoanStatus| {
        Row::new([
            loan.lease.0.to_string(),
            borrower(loan),
            or_dash(loan.pid),
            or_dash(loan.command.as_ref()),
            or_dash(loan.owner.as_ref()),
            age(loan.age),
            size(loan.pages.0, loan.page_size.bytes()),
            size(loan.unbacked_pages.0, loan.page_size.bytes()),
        ])
    };
    // The newest first: they are what changes.
    let room = usize::from(area.height.saturating_sub(1));
    let loans = &status.loans;
    let shown = if loans.len() > room { room.saturating_sub(1) } else { room };
    let mut rows: Vec<_> = loans.iter().rev().take(shown).map(cells).collect();
    if loans.len() > shown {
        let more = format!("and {} more", loans.len() - shown);
        rows.push(Row::new([Cell::from(more)]));
    }
    let widths = [
        Constraint::Length(13),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(15),
        Constraint::Min(6),
        Constraint::Length(4),
        Constraint::Length(6),
        Constraint::Length(8),
    ];
    let area = Rect { x: area.x + 1, width: area.width.saturating_sub(1), ..area };
    let table = Table::new(rows, widths).header(Row::new(heading).bold());
    frame.render_widget(table, area);
}

fn footing(view: &View) -> Line<'static> {
    if let Some(prompt) = &view.prompt {
        return Line::from(question(view, prompt)).reversed();
    }
    if let Some(bytes) = view.zeroing {
        return Line::from(format!(" zeroing here: {bytes} so far; s stops it")).yellow();
    }
    if let Some(message) = &view.message {
        return Line::from(format!(" {message}")).yellow();
    }
    Line::from(" z zero  s stop  g give back  l low  h high  f leave free  up/down pool  q leave")
        .dark_gray()
}

fn question(view: &View, Prompt { question, typed }: &Prompt) -> String {
    let pool = view.pool();
    let now = |of: fn(&PoolStatus) -> u64| pool.map(of).unwrap_or_default().to_string();
    let (what, nothing) = match question {
        Question::Zero => ("zero how many pages", "all".to_owned()),
        Question::Release => ("give back how many pages", "all".to_owned()),
        Question::ReadyLow => ("ready_low", now(|pool| pool.ready_low.0)),
        Question::ReadyHigh => ("ready_high", now(|pool| pool.ready_high.0)),
        Question::LeaveFree => ("leave_free", now(|pool| pool.leave_free.0)),
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
        terminal.draw(|frame| draw(frame, view)).expect("it draws");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        let lines: Vec<_> = (0..height).map(|y| line(y).trim_end().to_owned()).collect();
        lines.join("\n")
    }

    const SCREEN: &str = "\
\x20prezero 0.1.0, provider stock, pid 7, 2 workers
 zeroing 3.90 GB/s, 1.5 loans/s, 98 % hits, 0.0 refused/s, 1 workers lost
 █ ready  ▓ zeroing  ░ zeroable  ▒ lent  K kept  L draining
>node 0 1G x 8      ████████████████████████▓▓▓▓▓▓▓░░░░░░░░░░░░░░▒▒▒▒▒▒▒▒▒▒▒KKL
 ready 24    zeroing 8     zeroable 16    lent 12    kept 3     draining 1
 ready_low 8, ready_high 32, leave_free 2, max none; 18 free in the kernel
 node 1 1G x 8      ████████████████████████▓▓▓▓▓▓▓░░░░░░░░░░░░░░▒▒▒▒▒▒▒▒▒▒▒KKL
 ready 24    zeroing 8     zeroable 16    lent 12    kept 3     draining 1
 ready_low 8, ready_high 32, leave_free 2, max none; 18 free in the kernel
 node 1 2M x 512    ···························································
 ready 0     zeroing 0     zeroable 0     lent 0     kept 0     draining 0
 ready_low 8, ready_high 32, leave_free 2, max none; 18 free in the kernel

 LEASE         USER      PID     COMMAND         OWNER      AGE  SIZE   UNBACKED
 18            root      4242    postgres        db         2h   8G     1G
 17            root      4242    postgres        -          2h   8G     1G







 z zero  s stop  g give back  l low  h high  f leave free  up/down pool  q leave";

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
        assert!(text.ends_with("ready_high [32]: 40_   (Enter, or Esc for nothing)"), "{text}");
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
