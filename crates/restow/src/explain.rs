//! `restow explain`: pages on storage versions and migrations.

use crate::output::Output;
use clap::Args;
use clap::builder::{NonEmptyStringValueParser, PossibleValue, TypedValueParser};
use serde::Serialize;
use std::ffi::OsStr;

/// Explain storage versions, migrations and what to do, one page for each topic.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The topic, or a unique part of its name. Without one, the topics are listed.
    #[arg(value_parser = TopicParser, hide_possible_values = true)]
    topic: Option<String>,
    /// The output format.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// Accepts any text, so that part of a name is enough, and offers the full names to shell completion.
#[derive(Clone)]
struct TopicParser;

/// A topic, for -o json.
#[derive(Serialize)]
struct Topic {
    name: &'static str,
    about: &'static str,
    text: &'static str,
}

/// The topics and their pages. The second line of a page is its summary.
const TOPICS: [(&str, &str); 8] = [
    ("storage-version", include_str!("explain/storage-version.txt")),
    ("agreement", include_str!("explain/agreement.txt")),
    ("fence", include_str!("explain/fence.txt")),
    ("stored-versions", include_str!("explain/stored-versions.txt")),
    ("migration", include_str!("explain/migration.txt")),
    ("proof", include_str!("explain/proof.txt")),
    ("removing-a-version", include_str!("explain/removing-a-version.txt")),
    ("troubleshooting", include_str!("explain/troubleshooting.txt")),
];

pub(crate) fn run(args: ExplainArgs) -> anyhow::Result<()> {
    match args.topic {
        None => args.output.print(&TOPICS.map(topic), contents),
        Some(wanted) => {
            let (name, text) = page(&wanted)?;
            args.output.print(&topic((name, text)), || text.to_string())
        }
    }
}

impl TypedValueParser for TopicParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        NonEmptyStringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(TOPICS.into_iter().map(|(name, _)| PossibleValue::new(name))))
    }
}

fn topic((name, text): (&'static str, &'static str)) -> Topic {
    Topic { name, about: about(text), text }
}

fn about(page: &'static str) -> &'static str {
    page.lines().nth(1).unwrap_or_default().trim()
}

fn contents() -> String {
    let mut text = String::from("restow explain TOPIC\n\n");
    for (name, page) in TOPICS {
        text.push_str(&format!("  {name:<20} {}\n", about(page)));
    }
    text
}

/// The page of a topic, given by its name or a unique part of it.
fn page(topic: &str) -> anyhow::Result<(&'static str, &'static str)> {
    let wanted = topic.to_lowercase().replace([' ', '_'], "-");
    let exact = TOPICS.iter().find(|(name, _)| *name == wanted || name.replace('-', "") == wanted);
    let mut partial = TOPICS.iter().filter(|(name, _)| name.contains(&wanted));
    match (exact, partial.next(), partial.next()) {
        (Some(found), _, _) | (None, Some(found), None) => Ok(*found),
        _ => anyhow::bail!("there is no page about {topic:?}\n\n{}", contents()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_says_what_it_is_about_and_fits_a_wide_terminal() {
        for (name, page) in TOPICS {
            assert!(page.lines().nth(1).is_some_and(|line| line.starts_with("    ")), "{name}");
            assert!(page.lines().all(|line| line.chars().count() <= 120), "{name}");
        }
    }

    #[test]
    fn topics_are_found_by_part_of_their_name() {
        assert!(page("fence").unwrap().1.starts_with("FENCE"));
        assert!(page("Stored Versions").unwrap().1.starts_with("STORED VERSIONS"));
        assert!(page("removing").unwrap().1.starts_with("REMOVING"));
        assert!(page("stor").is_err(), "two topics fit");
        assert!(page("nonsense").unwrap_err().to_string().contains("troubleshooting"));
    }
}
