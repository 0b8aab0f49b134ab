//! `restow explain`: the ideas behind storage versions, a page each.

use clap::Args;

/// Explain what the words mean and what to do, a page for each topic.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The topic. Without one, the topics are listed.
    topic: Option<String>,
}

/// Each topic and its page. A page's second line says in one sentence what it is about.
const TOPICS: [(&str, &str); 7] = [
    ("storage-version", include_str!("explain/storage-version.txt")),
    ("agreement", include_str!("explain/agreement.txt")),
    ("fence", include_str!("explain/fence.txt")),
    ("stored-versions", include_str!("explain/stored-versions.txt")),
    ("migration", include_str!("explain/migration.txt")),
    ("removing-a-version", include_str!("explain/removing-a-version.txt")),
    ("troubleshooting", include_str!("explain/troubleshooting.txt")),
];

pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    match &args.topic {
        None => print!("{}", contents()),
        Some(topic) => print!("{}", page(topic)?),
    }
    Ok(())
}

fn contents() -> String {
    let mut text = String::from("restow explain TOPIC\n\n");
    for (name, page) in TOPICS {
        let about = page.lines().nth(1).unwrap_or_default().trim();
        text.push_str(&format!("  {name:<20} {about}\n"));
    }
    text
}

/// The page of a topic, which may be given in part as long as it is clear which one is meant.
fn page(topic: &str) -> anyhow::Result<&'static str> {
    let wanted = topic.to_lowercase().replace([' ', '_'], "-");
    let exact = TOPICS.iter().find(|(name, _)| *name == wanted || name.replace('-', "") == wanted);
    let mut partial = TOPICS.iter().filter(|(name, _)| name.contains(&wanted));
    match (exact, partial.next(), partial.next()) {
        (Some((_, page)), _, _) | (None, Some((_, page)), None) => Ok(page),
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
        assert!(page("fence").unwrap().starts_with("FENCE"));
        assert!(page("Stored Versions").unwrap().starts_with("STORED VERSIONS"));
        assert!(page("removing").unwrap().starts_with("REMOVING"));
        assert!(page("stor").is_err(), "two topics fit");
        assert!(page("nonsense").unwrap_err().to_string().contains("troubleshooting"));
    }
}
