//! Insertions into a text, and which part of the result belongs to which mutant. Expressions are nested: what is inserted for
//! the outer one encloses what is inserted for the inner one.

use std::collections::BTreeSet;
use std::ops::Range;

/// What is inserted for one mutant.
pub(crate) struct Switched {
    pub(crate) mutant: u32,
    pub(crate) text: String,
}

/// A text with switches.
pub(crate) struct Rewritten {
    pub(crate) text: String,
    regions: Vec<Region>,
}

/// A part of the text that is there for these mutants.
struct Region {
    range: Range<usize>,
    mutants: Vec<u32>,
}

/// Insertions, the outermost expression first.
#[derive(Default)]
pub(crate) struct Edits {
    insertions: Vec<Insertion>,
    /// How many groups there are. A group is what is inserted for one expression.
    groups: usize,
}

struct Insertion {
    at: usize,
    group: usize,
    part: Part,
}

/// At the same place, what closes an expression comes before what opens one.
enum Part {
    Close(String),
    Open { before: &'static str, switched: Vec<Switched>, after: &'static str },
    Plain(String),
}

impl Edits {
    /// Encloses an expression.
    pub(crate) fn wrap(
        &mut self,
        expression: Range<usize>,
        before: &'static str,
        switched: Vec<Switched>,
        after: &'static str,
        close: &str,
    ) {
        let group = self.next_group();
        let open = Part::Open { before, switched, after };
        self.insertions.push(Insertion { at: expression.start, group, part: open });
        self.insertions.push(Insertion { at: expression.end, group, part: Part::Close(close.to_owned()) });
    }

    /// Inserts something for each of these mutants.
    pub(crate) fn insert(&mut self, at: usize, switched: Vec<Switched>) {
        let group = self.next_group();
        self.insertions.push(Insertion { at, group, part: Part::Open { before: "", switched, after: "" } });
    }

    /// Inserts something that is there with and without mutants.
    pub(crate) fn insert_plain(&mut self, at: usize, text: String) {
        let group = self.next_group();
        self.insertions.push(Insertion { at, group, part: Part::Plain(text) });
    }

    fn next_group(&mut self) -> usize {
        self.groups += 1;
        self.groups
    }

    /// Inserts everything.
    pub(crate) fn apply(mut self, original: &str) -> Rewritten {
        self.insertions.sort_by_key(|insertion| match insertion.part {
            Part::Close(_) => (insertion.at, 0, usize::MAX - insertion.group),
            Part::Open { .. } | Part::Plain(_) => (insertion.at, 1, insertion.group),
        });
        let mut written = Rewritten { text: String::with_capacity(original.len() * 3), regions: Vec::new() };
        let mut opened = std::collections::BTreeMap::new();
        let mut copied = 0;
        for Insertion { at, group, part } in self.insertions {
            written.text.push_str(original.get(copied..at).unwrap_or_default());
            copied = at;
            match part {
                Part::Plain(text) => written.text.push_str(&text),
                Part::Open { before, switched, after } => {
                    let start = written.text.len();
                    written.text.push_str(before);
                    opened.insert(group, (start, switched.iter().map(|switched| switched.mutant).collect()));
                    switched.into_iter().for_each(|switched| written.push(switched));
                    written.text.push_str(after);
                }
                Part::Close(text) => {
                    written.text.push_str(&text);
                    if let Some((start, mutants)) = opened.remove(&group) {
                        written.regions.push(Region { range: start..written.text.len(), mutants });
                    }
                }
            }
        }
        written.text.push_str(original.get(copied..).unwrap_or_default());
        written
    }
}

impl Rewritten {
    fn push(&mut self, switched: Switched) {
        let start = self.text.len();
        self.text.push_str(&switched.text);
        self.regions.push(Region { range: start..self.text.len(), mutants: vec![switched.mutant] });
    }

    /// The mutants that have a switch.
    pub(crate) fn mutants(&self) -> BTreeSet<u32> {
        self.regions.iter().flat_map(|region| region.mutants.iter().copied()).collect()
    }

    /// The mutants that are to blame if the compiler refuses this part of the text: those of the smallest region around it,
    /// else all in it.
    pub(crate) fn to_blame(&self, refused: Range<usize>) -> Vec<u32> {
        let around = |region: &&Region| region.range.start <= refused.start && refused.end <= region.range.end;
        let smallest = self.regions.iter().filter(around).min_by_key(|region| region.range.len());
        if let Some(region) = smallest {
            return region.mutants.clone();
        }
        let inside = |region: &&Region| region.range.start < refused.end && refused.start < region.range.end;
        self.regions.iter().filter(inside).flat_map(|region| region.mutants.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switched(mutant: u32) -> Vec<Switched> {
        vec![Switched { mutant, text: format!("<{mutant}>") }]
    }

    #[test]
    fn the_outer_expression_encloses_the_inner_one() {
        let mut edits = Edits::default();
        edits.wrap(0..5, "(", switched(1), "[", "])");
        edits.wrap(0..1, "(", switched(2), "[", "])");
        edits.wrap(4..5, "(", switched(3), "[", "])");
        let written = edits.apply("a + b;");
        assert_eq!(written.text, "(<1>[(<2>[a]) + (<3>[b])]);");
        assert_eq!(written.mutants(), BTreeSet::from([1, 2, 3]));
        let at = |text: &str| written.text.find(text).map(|start| start..start + text.len()).unwrap();
        assert_eq!(written.to_blame(at("<2>")), [2], "the text of one mutant");
        assert_eq!(written.to_blame(at("b")), [3], "the smallest expression around it");
        assert_eq!(written.to_blame(at(" + ")), [1]);
        assert_eq!(written.to_blame(0..written.text.len()).len(), 6, "nothing is around it");
    }
}
