// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What keys do.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use units::Pages;
use wire::PoolChange;
use worker::Which;

use super::feed::FeedRequest;
use super::view::{Prompt, Question, View, shape};

/// More digits than any number of pages has.
const MAX_DIGITS: usize = 12;

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
    let question = match key {
        KeyCode::Char('q') | KeyCode::Esc => return Reaction::Leave,
        KeyCode::Char('s') => return Reaction::Stop,
        KeyCode::Up | KeyCode::Char('k') => {
            view.chosen = view.chosen.saturating_sub(1);
            return Reaction::None;
        }
        KeyCode::Down | KeyCode::Char('j') => {
            let last = view.pools().len().saturating_sub(1);
            view.chosen = (view.chosen + 1).min(last);
            return Reaction::None;
        }
        KeyCode::Char('z') => Question::Zero,
        KeyCode::Char('g') => Question::Release,
        KeyCode::Char('l') => Question::ReadyLow,
        KeyCode::Char('h') => Question::ReadyHigh,
        KeyCode::Char('f') => Question::LeaveFree,
        _ => return Reaction::None,
    };
    if view.pool().is_some() {
        view.prompt = Some(Prompt { question, typed: String::new() });
    } else {
        view.say("there is no pool to choose".into());
    }
    Reaction::None
}

/// A key while a number is being asked for.
fn answer(view: &mut View, mut prompt: Prompt, key: KeyCode) -> Reaction {
    match key {
        KeyCode::Esc => return Reaction::None,
        KeyCode::Enter => return decide(view, &prompt),
        KeyCode::Backspace => drop(prompt.typed.pop()),
        KeyCode::Char(digit) if digit.is_ascii_digit() && prompt.typed.len() < MAX_DIGITS => {
            prompt.typed.push(digit);
        }
        _ => {}
    }
    view.prompt = Some(prompt);
    Reaction::None
}

fn decide(view: &View, prompt: &Prompt) -> Reaction {
    let Some(pool) = view.pool() else { return Reaction::None };
    let (node, page_size) = shape(pool);
    let typed = prompt.typed.parse::<u64>().ok();
    let none = PoolChange {
        node: pool.node,
        page_size: pool.page_size,
        pages_per_block: pool.pages_per_block,
        ..PoolChange::default()
    };
    let change = match (prompt.question, typed) {
        (Question::Zero, Some(0)) | (Question::Release, Some(0)) => return Reaction::None,
        (Question::Zero, pages) => return Reaction::Zero(Which::exact(node, page_size), pages),
        (Question::Release, pages) => {
            let pages = pages.map(Pages);
            return Reaction::Ask(FeedRequest::Release { node, page_size, pages });
        }
        // Nothing typed changes nothing.
        (_, None) => return Reaction::None,
        (Question::ReadyLow, low) => PoolChange { ready_low: low.map(Pages), ..none },
        (Question::ReadyHigh, high) => PoolChange { ready_high: high.map(Pages), ..none },
        (Question::LeaveFree, leave_free) => {
            PoolChange { leave_free: leave_free.map(Pages), ..none }
        }
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
        let Reaction::Zero(which, None) = typed(&mut view, "z\n") else { panic!("all of it") };
        assert_eq!((which.node(), which.page_size), (Some(Node(1)), Some(PageSize::GIB_1)));
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
