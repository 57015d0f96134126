// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a test asks the cluster and tells it, by kubectl as a person would.

use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::node::HERE;
use crate::command;

/// How long anything may take. Two cores that others use, too, have needed a tenth of it.
pub(super) const WAIT_TIMEOUT: Duration = Duration::from_secs(300);

/// kubectl, as an administrator.
#[derive(Clone, Debug)]
pub(super) struct Kubectl {
    pub(super) path: String,
    pub(super) config: PathBuf,
}

impl Kubectl {
    fn command(&self, words: &[&str]) -> Command {
        let mut kubectl = Command::new("kube");
        kubectl.env("PATH", &self.path).env("HOME", HERE);
        kubectl.arg("kubectl").arg("--kubeconfig").arg(&self.config).args(words);
        kubectl
    }

    /// Its output; what it refuses is an error with its words.
    pub(super) fn run(&self, words: &[&str]) -> Result<String> {
        command::stdout(&mut self.command(words))
    }

    /// Makes objects, or changes them.
    pub(super) fn apply(&self, objects: &[Value]) -> Result<()> {
        self.feed(&["apply", "--server-side", "-f", "-"], objects)
    }

    /// Makes objects that are not there yet: a third of the work of `apply`.
    pub(super) fn create(&self, objects: &[Value]) -> Result<()> {
        self.feed(&["create", "-f", "-"], objects)
    }

    fn feed(&self, words: &[&str], objects: &[Value]) -> Result<()> {
        let mut command = self.command(words);
        let line = command::shown(&command);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start `{line}`"))?;
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let mut stdin = child.stdin.take().context("kubectl has no stdin")?;
        stdin.write_all(list.to_string().as_bytes())?;
        drop(stdin);
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("`{line}` ended with {}: {}", output.status, why.trim());
        }
        Ok(())
    }

    /// An object or a list; an absent one is `Null`.
    pub(super) fn get(&self, words: &[&str]) -> Result<Value> {
        let mut all = vec!["get", "--ignore-not-found", "-o", "json"];
        all.extend(words);
        let text = self.run(&all)?;
        if text.trim().is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&text).with_context(|| format!("kubectl {}", all.join(" ")))
    }

    /// The items of a list.
    pub(super) fn list(&self, words: &[&str]) -> Result<Vec<Value>> {
        match self.get(words)?["items"].take() {
            Value::Array(items) => Ok(items),
            // A list of nothing is not found.
            Value::Null => Ok(Vec::new()),
            other => bail!("kubectl get {}: no list but {other}", words.join(" ")),
        }
    }

    /// The events of an object until now.
    pub(super) fn events(&self, namespace: &str, name: &str) -> Result<Vec<String>> {
        let field = format!("involvedObject.name={name}");
        let events = self.list(&["events", "-n", namespace, "--field-selector", &field])?;
        let line =
            |event: &Value| format!("{}: {}", text(&event["reason"]), text(&event["message"]));
        Ok(events.iter().map(line).collect())
    }
}

/// Text of an object; absent text is empty.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Waits until `look` finds something. Its last error, or `what`, is why it never did.
pub(super) fn wait_for<T>(what: &str, look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    wait_within(WAIT_TIMEOUT, what, look)
}

/// The same, for this long.
pub(super) fn wait_within<T>(
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let begun = Instant::now();
    loop {
        let found = look();
        match found {
            Ok(Some(found)) => return Ok(found),
            found if begun.elapsed() > limit => {
                let seconds = limit.as_secs();
                found.with_context(|| format!("after {seconds} s still not: {what}"))?;
                bail!("after {seconds} s still not: {what}");
            }
            // kubectl itself takes a tenth of a second of CPU, which the cluster could use.
            _ => thread::sleep(Duration::from_millis(250)),
        }
    }
}
