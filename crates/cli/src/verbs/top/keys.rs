// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What keys do.

use book::config::Amount;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use units::Pages;
use wire::PoolChange;
use worker::Which;

use super::feed::FeedRequest;
use super::view::{Focus, Prompt, Question, View, shape};

/// More characters than any amount has.
const MAX_AMOUNT: usize = 12;
/// How many loans a page key moves over.
const PAGE_STEP: usize = 10;

/// The action for a key, beyond the screen.
#[derive(Debug)]
pub(super) enum Reaction {
    None,
    Leave,
    Ask(FeedRequest),
    /// Zero this number of pages of a shape, or all.
    Zero(Which, Option<u64>),
    /// Stop zeroing.
    Stop,
}

/// Takes a key.
pub(super) fn react(view: &mut View, key: KeyEvent) -> Reaction {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return if key.code == KeyCode::Char('c') { Reaction::Leave } else { Reaction::None };
    }
    match view.prompt.take() {
        Some(prompt) => answer(view, prompt, key.code),
        None => command(view, key.code),
    }
}

fn command(view: &mut View, key: KeyCode) -> Reaction {
    view.message = None;
    if std::mem::take(&mut view.help) {
        return Reaction::None;
    }
    let question = match key {
        KeyCode::Char('q') | KeyCode::Esc => return Reaction::Leave,
        KeyCode::Char('s') => return Reaction::Stop,
        KeyCode::Char('z') => Question::Zero,
        KeyCode::Char('g') => Question::Release,
        KeyCode::Char('r') => Question::Ready,
        KeyCode::Char('l') => Question::ReadyLow,
        KeyCode::Char('h') => Question::ReadyHigh,
        KeyCode::Char('f') => Question::LeaveFree,
        _ => {
            look_elsewhere(view, key);
            return Reaction::None;
        }
    };
    let Some(pool) = view.pool() else {
        view.say("there is no pool to choose".into());
        return Reaction::None;
    };
    let is_mixed = pool.pages_per_block == Pages(0);
    match question {
        Question::ReadyLow | Question::ReadyHigh if is_mixed => {
            view.say("this pool has `ready` in place of both thresholds: press r".into());
        }
        Question::Ready if !is_mixed => {
            view.say("this pool has blocks of one size: press l or h for its thresholds".into());
        }
        _ => view.prompt = Some(Prompt { question, typed: String::new() }),
    }
    Reaction::None
}

/// Keys that change the screen alone.
fn look_elsewhere(view: &mut View, key: KeyCode) {
    let step = match key {
        KeyCode::Up | KeyCode::Char('k') => -1,
        KeyCode::Down | KeyCode::Char('j') => 1,
        KeyCode::PageUp => -PAGE_STEP.cast_signed(),
        KeyCode::PageDown => PAGE_STEP.cast_signed(),
        KeyCode::Home => isize::MIN,
        KeyCode::End => isize::MAX,
        KeyCode::Char('?') => return view.help = true,
        KeyCode::Char('o') => {
            (view.order, view.scrolled) = (view.order.next(), 0);
            return view.say(format!("loans: {}", view.order.name()));
        }
        KeyCode::Tab => {
            view.focus = match view.focus {
                Focus::Pools => Focus::Loans,
                Focus::Loans => Focus::Pools,
            };
            return;
        }
        _ => return,
    };
    let loans = view.status.as_ref().map_or(0, |status| status.loans.len());
    let (at, count) = match view.focus {
        Focus::Pools => (view.chosen, view.pools().len()),
        Focus::Loans => (view.scrolled, loans),
    };
    let moved = at.saturating_add_signed(step).min(count.saturating_sub(1));
    match view.focus {
        Focus::Pools => view.chosen = moved,
        Focus::Loans => view.scrolled = moved,
    }
}

/// A key while a number is being asked for.
fn answer(view: &mut View, mut prompt: Prompt, key: KeyCode) -> Reaction {
    match key {
        KeyCode::Esc => return Reaction::None,
        KeyCode::Enter => return decide(view, &prompt),
        KeyCode::Backspace => drop(prompt.typed.pop()),
        KeyCode::Char(c) if is_of_amount(c) && prompt.typed.len() < MAX_AMOUNT => {
            prompt.typed.push(c);
        }
        _ => {}
    }
    view.prompt = Some(prompt);
    Reaction::None
}

/// Whether a size or a number of pages may have that character.
fn is_of_amount(c: char) -> bool {
    c.is_ascii_digit() || ".kmgtib".contains(c.to_ascii_lowercase())
}

fn decide(view: &mut View, prompt: &Prompt) -> Reaction {
    let Some(pool) = view.pool() else { return Reaction::None };
    let (node, page_size) = shape(pool);
    let none = PoolChange {
        node: pool.node,
        page_size: pool.page_size,
        pages_per_block: pool.pages_per_block,
        ..PoolChange::default()
    };
    let pages = match prompt.typed.as_str() {
        "" => None,
        text => match text.parse::<Amount>().and_then(|amount| amount.pages(page_size)) {
            Ok(pages) => Some(pages),
            Err(error) => {
                view.say(error.to_string());
                return Reaction::None;
            }
        },
    };
    let change = match (prompt.question, pages) {
        (Question::Zero | Question::Release, Some(Pages(0))) => return Reaction::None,
        (Question::Zero, pages) => {
            return Reaction::Zero(Which::exact(node, page_size), pages.map(|pages| pages.0));
        }
        (Question::Release, pages) => {
            return Reaction::Ask(FeedRequest::Release { node, page_size, pages });
        }
        // Nothing typed changes nothing.
        (_, None) => return Reaction::None,
        (Question::ReadyLow, ready_low) => PoolChange { ready_low, ..none },
        (Question::Ready | Question::ReadyHigh, ready_high) => PoolChange { ready_high, ..none },
        (Question::LeaveFree, leave_free) => PoolChange { leave_free, ..none },
    };
    Reaction::Ask(FeedRequest::Configure(change))
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::view;
    use super::*;
    use units::{Node, PageSize};

    /// Types keys, `\n` for Enter and `\u{1b}` for Esc; the last reaction.
    fn typed(view: &mut View, keys: &str) -> Reaction {
        let key = |c| match c {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            '<' => KeyCode::Backspace,
            '\t' => KeyCode::Tab,
            c => KeyCode::Char(c),
        };
        keys.chars().map(|c| react(view, KeyEvent::from(key(c)))).last().expect("some keys")
    }

    #[test]
    fn numbers_are_asked_for_and_change_the_chosen_pool() {
        let mut view = view();
        typed(&mut view, "j");
        let Reaction::Ask(FeedRequest::Configure(change)) = typed(&mut view, "h4x<32\n") else {
            panic!("a threshold is changed")
        };
        assert_eq!(
            (change.node.0, change.page_size.bytes(), change.pages_per_block.0),
            (1, 1 << 30, 8)
        );
        assert_eq!((change.ready_high, change.ready_low), (Some(Pages(32)), None));
        assert_eq!(view.prompt, None);
        let release =
            |pages| FeedRequest::Release { node: Node(1), page_size: PageSize::GIB_1, pages };
        for (keys, pages) in [("g5\n", Some(Pages(5))), ("g\n", None)] {
            let Reaction::Ask(request) = typed(&mut view, keys) else { panic!("{keys}") };
            assert_eq!(request, release(pages));
        }
        let Reaction::Ask(request) = typed(&mut view, "g2G\n") else { panic!("a size") };
        assert_eq!(request, release(Some(Pages(2))));
        for (keys, part) in [("g1.5G\n", "next larger size is 2G"), ("h5GG\n", "`5GG`")] {
            assert!(matches!(typed(&mut view, keys), Reaction::None), "{keys}");
            assert!(view.message.as_ref().is_some_and(|said| said.contains(part)), "{view:?}");
        }
        let Reaction::Zero(which, None) = typed(&mut view, "z\n") else { panic!("all of it") };
        assert_eq!((which.node(), which.page_size), (Some(Node(1)), Some(PageSize::GIB_1)));
    }

    #[test]
    fn a_pool_is_asked_only_for_thresholds_that_it_has() {
        let mut view = view();
        typed(&mut view, "r");
        assert!(view.prompt.is_none() && view.message.is_some());
        view.status.as_mut().expect("it was seen").pools[0].pages_per_block = Pages(0);
        for key in ["l", "h"] {
            typed(&mut view, key);
            assert!(view.message.as_ref().is_some_and(|said| said.contains("press r")), "{key}");
        }
        let Reaction::Ask(FeedRequest::Configure(change)) = typed(&mut view, "r16G\n") else {
            panic!("it has that one")
        };
        assert_eq!((change.ready_high, change.ready_low), (Some(Pages(16)), None));
    }

    #[test]
    fn keys_scroll_sort_and_show_help() {
        let mut view = view();
        typed(&mut view, "j\tj");
        assert_eq!((view.chosen, view.scrolled), (1, 1));
        typed(&mut view, "jjjk");
        assert_eq!(view.scrolled, 0);
        typed(&mut view, "o");
        assert_eq!(view.order, super::super::view::Order::Largest);
        typed(&mut view, "?");
        assert!(view.help);
        assert!(matches!(typed(&mut view, "q"), Reaction::None), "a key ends the help first");
        assert!(!view.help);
        react(&mut view, KeyEvent::from(KeyCode::End));
        assert_eq!(view.scrolled, 1);
    }

    #[test]
    fn empty_input_and_esc_change_nothing() {
        let mut view = view();
        for keys in ["l\n", "h\u{1b}", "z0\n", "g0\n", "f1\u{1b}", "x"] {
            assert!(matches!(typed(&mut view, keys), Reaction::None), "{keys:?}");
            assert_eq!(view.prompt, None, "{keys:?}");
        }
        assert!(matches!(typed(&mut view, "q"), Reaction::Leave));
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        typed(&mut view, "z1");
        assert!(matches!(react(&mut view, interrupt), Reaction::Leave));
    }

    #[test]
    fn without_a_pool_there_is_nothing_to_ask() {
        let mut view = View::new("/nowhere".into());
        assert!(matches!(typed(&mut view, "z"), Reaction::None));
        assert!(view.prompt.is_none() && view.message.is_some());
    }
}
