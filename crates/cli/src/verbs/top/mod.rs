// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prezero top`: what goes on, live, with keys for what an operator does about it.
//!
//! Two threads: one talks to the daemon ([`feed`]), so that a daemon that hangs does not freeze the
//! screen. This one draws ([`draw`]) the received state ([`view`]) and reads [`keys`]. Zeroing has
//! a third, in this process's own context as `prezero zero` has it.

mod draw;
mod feed;
mod history;
mod keys;
mod rates;
mod view;
mod zeroing;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::tty::IsTty;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Form, terminal};
use crate::shared::Daemon;

use feed::{Feed, Update};
use keys::Reaction;
use rates::Sampler;
use terminal::Input;
use view::View;
use worker::Stop;
use zeroing::Zeroing;

/// How often keys and signals are looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How often the screen is drawn while the daemon does not answer, which changes no state.
const REDRAW_INTERVAL: Duration = Duration::from_millis(500);
/// How long the screen's loop may take to notice the end of its terminal.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(300);

/// Show pools, loans and rates live, with keys to zero, give back and change thresholds
///
/// For a terminal of 40 by 10 or more; a wide one shows more of each loan. Rates are of the last
/// ten seconds; the hit rate is the part of the bytes lent that was ready. If the daemon goes away
/// or does not answer for 1.5 s, the screen says so and waits for it. With --json: one line per
/// interval for programs, with the fields of `prezero status` and the rates, or `error` while there
/// is no daemon.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Keys:
  q          leave                  ?         all keys
  up, down   choose a pool          Tab, o    scroll and sort the loans
  z, s       zero memory of it, and stop that
  r          set its ready          l, h, f   set its ready_low, ready_high, leave_free
  g          give memory of it back to the kernel

Examples:
  prezero top
  prezero top --interval 250ms
  prezero top --json --interval 10s >> /var/log/prezero.jsonl")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: Daemon,
    /// How often to look, as in 250ms or 2s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// With --json: end after this number of lines
    #[arg(long, value_name = "N", requires = "json")]
    lines: Option<u64>,
    #[command(flatten)]
    form: Form,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let least = Duration::from_millis(50);
    if interval < least { Err("the shortest interval is 50ms".into()) } else { Ok(interval) }
}

pub(crate) fn run(args: &Args) -> Outcome {
    if args.form.json {
        return lines(args);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_tty() {
        return Err(Failure::usage(
            "top needs a terminal: use `prezero top --json`, `prezero status` or `prezero watch`",
        ));
    }
    let stop = Stop::on_signals()?;
    let feed = Feed::start(args.daemon.socket.clone(), args.interval);
    let mut view = View::new(args.daemon.socket.clone());
    leave_with_terminal(&stop);
    let mut screen = ratatui::try_init()?;
    let done = run_screen(&mut screen, &mut view, &feed, &stop);
    // The screen is wiped in every case; its error is the lesser one.
    let restored = ratatui::try_restore();
    if stop.is_set() {
        return Ok(Exit::after(&stop));
    }
    done?;
    restored?;
    Ok(Exit::Done)
}

/// Ends this process with its terminal. crossterm reads on for ever behind the end of one, so that
/// the loop below it may never see the stop.
fn leave_with_terminal(stop: &Stop) {
    let stop = stop.clone();
    terminal::at_end_of(io::stdin(), move || {
        stop.hang_up();
        std::thread::sleep(LEAVE_TIMEOUT);
        signal_hook::low_level::exit(Exit::HungUp as i32);
    });
}

fn run_screen(
    screen: &mut ratatui::DefaultTerminal,
    view: &mut View,
    feed: &Feed,
    stop: &Stop,
) -> io::Result<()> {
    let mut zeroing: Option<Zeroing> = None;
    let (mut drawn, mut drawn_at) = (false, Instant::now());
    let is_ascii = !terminal::is_utf8();
    while !stop.is_set() {
        let is_silent = view.silent_seconds().is_some();
        let mut changed = !drawn || is_silent && drawn_at.elapsed() >= REDRAW_INTERVAL;
        for update in feed.updates() {
            changed |= !matches!(update, Update::Asked);
            view.hear(update);
        }
        if let Some(work) = &mut zeroing {
            changed = true;
            view.zeroing = Some(work.bytes());
            if let Some(message) = work.result() {
                view.say(message);
                (view.zeroing, zeroing) = (None, None);
            }
        }
        if changed {
            screen.draw(|frame| draw::draw(frame, view, is_ascii))?;
            (drawn, drawn_at) = (true, Instant::now());
        }
        match terminal::wait_for_input(io::stdin(), POLL_INTERVAL)? {
            Input::Ended => stop.hang_up(),
            Input::Some | Input::None if event::poll(Duration::ZERO)? => {}
            Input::Some | Input::None => continue,
        }
        if stop.is_set() {
            break;
        }
        drawn = false;
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match keys::react(view, key) {
                Reaction::None => {}
                Reaction::Leave => return Ok(()),
                Reaction::Ask(request) => feed.ask(request),
                Reaction::Zero(which, pages) if zeroing.is_none() => {
                    zeroing = Some(Zeroing::start(view.socket.clone(), which, pages));
                }
                Reaction::Zero(..) => view.say("this top zeroes already: s stops that".into()),
                Reaction::Stop => match &zeroing {
                    Some(work) => work.stop(),
                    None => view.say("this top zeroes nothing".into()),
                },
            },
            _ => {}
        }
    }
    Ok(())
}

/// For programs: a line per interval.
fn lines(args: &Args) -> Outcome {
    let feed = Feed::start(args.daemon.socket.clone(), args.interval);
    let stop = Stop::on_signals()?;
    terminal::stop_at_end_of_output(&stop);
    let mut sampler = Sampler::default();
    let mut left = args.lines.unwrap_or(u64::MAX);
    while left > 0 && !stop.is_set() {
        let Some(update) = feed.next(POLL_INTERVAL) else { continue };
        match update {
            Update::Status(status) => {
                let rates = sampler.add(&status, std::time::Instant::now());
                args.form.print_next(&rates::Line { status: *status, rates })?;
            }
            Update::Gone(error) => args.form.print_next(&rates::NoDaemon { error })?,
            Update::Answer(_) | Update::Asked => continue,
        }
        left -= 1;
    }
    Ok(if stop.is_set() { Exit::after(&stop) } else { Exit::Done })
}
