//! Regular expressions as Go understands them, on the linear-time `regex` crate, compiled when they are first needed.
//!
//! The two dialects differ in small things: Go's `\d`, `\w`, `\s` and `\b` know ASCII only, `[` inside a class is a plain
//! character, and `\Q…\E` quotes. [`translate`] rewrites those. Size limits bound the time and memory of compiling.

use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};

/// The maximum memory of one compiled expression.
const LARGEST_PROGRAM: usize = 4 << 20;
/// The maximum length of an expression.
const LONGEST_SOURCE: usize = 64 << 10;
/// The largest repetition that Go compiles.
const MOST_REPETITIONS: u32 = 1000;

/// An expression whose syntax has been checked.
pub(crate) struct Pattern {
    source: Box<str>,
    compiled: OnceLock<Option<Regex>>,
}

impl std::fmt::Debug for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pattern({})", self.source)
    }
}

impl Pattern {
    /// Checks an expression. It is compiled now to find errors, and compiled again when it is first matched: most
    /// patterns of most schemas are never matched, and compiled patterns would be the largest part of a schema.
    pub(crate) fn new(source: &str) -> Result<Pattern, String> {
        compile(source)?;
        Ok(Pattern { source: source.into(), compiled: OnceLock::new() })
    }

    /// Whether a part of the text matches.
    pub(crate) fn is_match(&self, text: &str) -> bool {
        self.regex().is_some_and(|regex| regex.is_match(text))
    }

    /// The expression, as written.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    fn regex(&self) -> Option<&Regex> {
        self.compiled.get_or_init(|| compile(&self.source).ok()).as_ref()
    }
}

/// Compiles a Go expression.
pub(crate) fn compile(source: &str) -> Result<Regex, String> {
    if source.len() > LONGEST_SOURCE {
        return Err("expression is too large".to_string());
    }
    RegexBuilder::new(&translate(source)?)
        .size_limit(LARGEST_PROGRAM)
        .dfa_size_limit(LARGEST_PROGRAM / 4)
        .nest_limit(200)
        .build()
        .map_err(|error| explain(source, &error))
}

/// Go's messages for the most frequent errors, and a short form of the `regex` crate's message for others.
fn explain(source: &str, error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default().trim_start_matches("error: ").trim();
    if text.contains("unclosed group") {
        return format!("error parsing regexp: missing closing ): `{source}`");
    }
    if text.contains("unopened group") {
        return format!("error parsing regexp: unexpected ): `{source}`");
    }
    if text.contains("unclosed character class") {
        let from = source.find('[').map_or(source, |start| source.get(start..).unwrap_or(source));
        return format!("error parsing regexp: missing closing ]: `{from}`");
    }
    if text.contains("look-around") {
        let from = source.find("(?").map_or("(?", |start| source.get(start..start + 3).unwrap_or("(?"));
        return format!("error parsing regexp: invalid or unsupported Perl syntax: `{from}`");
    }
    if text.contains("repetition operator missing expression") {
        let operator = source.chars().find(|c| "*+?{".contains(*c)).unwrap_or('*');
        return format!("error parsing regexp: missing argument to repetition operator: `{operator}`");
    }
    format!("error parsing regexp: {last}: `{source}`")
}

/// Translates an expression to the syntax of the `regex` crate.
fn translate(source: &str) -> Result<String, String> {
    let mut out = String::with_capacity(source.len() + 16);
    let mut rest = source.chars().peekable();
    let mut in_class = false;
    while let Some(character) = rest.next() {
        match character {
            '\\' => translate_escape(&mut rest, in_class, &mut out),
            '[' if in_class => {
                if rest.peek() == Some(&':') {
                    out.push('[');
                } else {
                    out.push_str("\\[");
                }
            }
            '[' => {
                in_class = true;
                out.push('[');
                if rest.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
                if rest.next_if_eq(&']').is_some() {
                    out.push_str("\\]");
                }
            }
            ':' if in_class && rest.peek() == Some(&']') && ends_named_class(&out) => {
                out.push_str(":]");
                rest.next();
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(character);
            }
            '-' if in_class && rest.peek() == Some(&'-') => out.push_str("\\-"),
            '{' if !in_class => translate_repetition(&mut rest, &mut out)?,
            other => out.push(other),
        }
    }
    Ok(out)
}

/// Whether the output ends with the beginning of a class such as `[:alpha`.
fn ends_named_class(out: &str) -> bool {
    out.rfind("[:").is_some_and(|start| {
        let name = out.get(start + 2..).unwrap_or_default();
        !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '^')
    })
}

fn translate_escape(rest: &mut std::iter::Peekable<std::str::Chars<'_>>, in_class: bool, out: &mut String) {
    let Some(escaped) = rest.next() else {
        out.push('\\');
        return;
    };
    let ascii = match escaped {
        'd' => Some("0-9"),
        'w' => Some("0-9A-Za-z_"),
        's' => Some("\\t\\n\\f\\r "),
        _ => None,
    };
    match (ascii, escaped, in_class) {
        (Some(set), _, true) => out.push_str(set),
        (Some(set), _, false) => {
            out.push('[');
            out.push_str(set);
            out.push(']');
        }
        (None, 'D', _) => out.push_str("[^0-9]"),
        (None, 'W', _) => out.push_str("[^0-9A-Za-z_]"),
        (None, 'S', _) => out.push_str("[^\\t\\n\\f\\r ]"),
        (None, 'b', false) => out.push_str("(?-u:\\b)"),
        (None, 'Q', _) => {
            let mut quoted = String::new();
            while let Some(character) = rest.next() {
                if character == '\\' && rest.next_if_eq(&'E').is_some() {
                    break;
                }
                quoted.push(character);
            }
            out.push_str(&regex::escape(&quoted));
        }
        (None, other, _) => {
            out.push('\\');
            out.push(other);
        }
    }
}

/// Go treats a `{` that begins no repetition as a character, and refuses repetitions above its limit.
fn translate_repetition(rest: &mut std::iter::Peekable<std::str::Chars<'_>>, out: &mut String) -> Result<(), String> {
    let body: String = rest.clone().take_while(|c| *c != '}').collect();
    let closed = rest.clone().any(|c| c == '}');
    let bounds: Vec<&str> = body.split(',').collect();
    let number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let repetition = closed
        && match bounds.as_slice() {
            [exact] => number(exact),
            [least, most] => number(least) && (most.is_empty() || number(most)),
            _ => false,
        };
    let escape_of_class = out.ends_with("\\p") || out.ends_with("\\P") || out.ends_with("\\x");
    if !repetition {
        out.push_str(if escape_of_class { "{" } else { "\\{" });
        return Ok(());
    }
    let too_many =
        bounds.iter().any(|text| !text.is_empty() && text.parse::<u32>().map_or(true, |n| n > MOST_REPETITIONS));
    if too_many && !escape_of_class {
        return Err(format!("error parsing regexp: invalid repeat count: `{{{body}}}`"));
    }
    out.push('{');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_expressions_match_as_in_go() {
        let cases = [
            (r"^\d+$", "12", true),
            (r"^\d+$", "١٢", false),
            (r"^[\w.]+$", "a_b.c", true),
            (r"^[[]a]$", "[a]", true),
            (r"^[[:alpha:]]+$", "abc", true),
            (r"^[a&&b]$", "&", true),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"^a{,2}$", "a{,2}", true),
            (r"^[^\s]+$", "a b", false),
            (r"^\p{L}+$", "é", true),
            (r"\bfoo\b", "a foo b", true),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(Pattern::new(pattern).unwrap().is_match(text), expected, "{pattern} on {text}");
        }
    }

    #[test]
    fn invalid_and_too_large_regular_expressions_are_refused() {
        let deep = format!("{}a{}", "(".repeat(5000), ")".repeat(5000));
        let exploding = "((((((a{1,900}){1,900}){1,900}){1,900}){1,900}){1,900})";
        for pattern in ["(", ")", "[a", "a(?=b)", "*a", "a{2000}", exploding, &deep, &"a".repeat(100_000)] {
            let error = Pattern::new(pattern).unwrap_err();
            assert!(error.contains("error parsing") || error.contains("too large"), "{error}");
        }
    }
}
