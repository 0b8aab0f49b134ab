//! `kubectl restow`: the same program under the names by which kubectl finds its plugins.
//!
//! kubectl runs `kubectl-NAME` for `kubectl NAME`, and `kubectl_complete-NAME` to complete its arguments. Both are links to
//! this program, which checks the name in its first argument.

use clap::{Arg, Command};
use std::io::Write;
use std::path::Path;

/// The name by which kubectl runs us.
const PLUGIN: &str = "kubectl-restow";

/// The name by which kubectl runs us to complete arguments.
pub(crate) const COMPLETER: &str = "kubectl_complete-restow";

/// The directive for kubectl after the completions: do not complete file names.
const NO_FILES: &str = ":4";

/// The name by which this program was started.
pub(crate) fn program_name() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    Path::new(&path).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The command under the name that was typed: as a plugin, its help says `kubectl restow`.
pub(crate) fn with_plugin_name(command: Command, name: &str) -> Command {
    match name == PLUGIN {
        true => command.bin_name("kubectl restow"),
        false => command,
    }
}

/// Prints completions for kubectl, which passes the words that were typed so far. The last word is incomplete, or empty.
pub(crate) fn complete(command: &Command) {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut answer = completions(command, &words);
    answer.push(NO_FILES.to_string());
    let _ = writeln!(std::io::stdout(), "{}", answer.join("\n"));
}

/// The completions of the last word, each with its description after a tab.
fn completions(command: &Command, words: &[String]) -> Vec<String> {
    let (beginning, before) = words.split_last().map_or(("", words), |(last, before)| (last.as_str(), before));
    let mut reached = command;
    for word in before {
        reached = reached.find_subcommand(word).unwrap_or(reached);
    }
    let open = before.last().and_then(|flag| reached.get_arguments().find(|argument| takes_value(argument, flag)));
    let all: Vec<String> = match open {
        Some(flag) => values(flag),
        None if beginning.starts_with('-') => reached.get_arguments().filter_map(long_flag).collect(),
        None => subcommands(reached).chain(reached.get_positionals().flat_map(values)).collect(),
    };
    all.into_iter().filter(|one| one.starts_with(beginning)).collect()
}

/// Whether this is the flag, and it takes a value.
fn takes_value(argument: &Arg, flag: &str) -> bool {
    let is_it = match flag.strip_prefix("--") {
        Some(long) => argument.get_long() == Some(long),
        None => argument.get_short().is_some_and(|short| flag == format!("-{short}")),
    };
    is_it && argument.get_action().takes_values()
}

fn subcommands(command: &Command) -> impl Iterator<Item = String> {
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.map(|command| described(command.get_name(), command.get_about().map(ToString::to_string)))
}

fn long_flag(argument: &Arg) -> Option<String> {
    Some(described(&format!("--{}", argument.get_long()?), argument.get_help().map(ToString::to_string)))
}

fn values(argument: &Arg) -> Vec<String> {
    argument.get_possible_values().iter().map(|value| value.get_name().to_string()).collect()
}

fn described(word: &str, about: Option<String>) -> String {
    match about {
        Some(about) => format!("{word}\t{about}"),
        None => word.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::completions;
    use clap::CommandFactory;

    fn check(typed: &[&str], expected: &[&str]) {
        let words: Vec<String> = typed.iter().map(ToString::to_string).collect();
        let found = completions(&crate::Args::command(), &words);
        let found: Vec<&str> = found.iter().filter_map(|line| line.split('\t').next()).collect();
        assert_eq!(found, expected, "{typed:?}");
    }

    #[test]
    fn commands_flags_and_values_are_completed() {
        check(&["ver"], &["verify"]);
        check(&["status", "--kube"], &["--kubeconfig"]);
        check(&["status", "-o", ""], &["table", "wide", "json", "yaml"]);
        check(&["status", "--output", "y"], &["yaml"]);
        check(&["explain", "fe"], &["fence"]);
        check(&["status", "--kubeconfig", ""], &[]);
        check(&["bench", "s"], &["store"]);
        check(&["nonsense", "--nonsense"], &[]);
    }
}
