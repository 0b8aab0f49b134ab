//! Validation of the names of objects, namespaces, labels and finalizers, with Kubernetes' messages.

/// The validation rule of an object's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// A DNS subdomain: most kinds.
    Subdomain,
    /// A DNS label: namespaces.
    Label,
    /// A DNS label that begins with a letter: services.
    ServiceLabel,
    /// Any path segment: RBAC and others.
    PathSegment,
}

const SUBDOMAIN: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SERVICE_LABEL: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

impl NameRule {
    /// All validation errors of a name.
    pub fn check(self, name: &str) -> Vec<String> {
        match self {
            NameRule::Subdomain => subdomain_problems(name),
            NameRule::Label => label_problems(name),
            NameRule::ServiceLabel => service_label_problems(name),
            NameRule::PathSegment => path_segment_problems(name),
        }
    }

    /// The maximum length of the base of a generated name, so that the random suffix fits.
    pub fn longest_base(self) -> usize {
        match self {
            NameRule::Label | NameRule::ServiceLabel => 63 - GENERATED_SUFFIX,
            NameRule::Subdomain | NameRule::PathSegment => 253 - GENERATED_SUFFIX,
        }
    }
}

/// The length of the random suffix of a generated name.
pub const GENERATED_SUFFIX: usize = 5;

fn subdomain_problems(name: &str) -> Vec<String> {
    let mut problems = too_long(name, 253);
    if !is_subdomain(name) {
        problems.push(format!(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '{SUBDOMAIN}')"
        ));
    }
    problems
}

fn label_problems(name: &str) -> Vec<String> {
    let mut problems = too_long(name, 63);
    if name.contains('.') && is_subdomain(name) {
        problems.push("must not contain dots".into());
    } else if !is_label(name) {
        problems.push(format!(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
             end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
             '{LABEL}')"
        ));
    }
    problems
}

fn service_label_problems(name: &str) -> Vec<String> {
    let mut problems = too_long(name, 63);
    if !is_service_label(name) {
        problems.push(format!(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
             validation is '{SERVICE_LABEL}')"
        ));
    }
    problems
}

fn path_segment_problems(name: &str) -> Vec<String> {
    if name == "." || name == ".." {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"].iter().filter(|part| name.contains(**part)).map(|part| format!("may not contain '{part}'")).collect()
}

/// All validation errors of the key of a label or annotation, or of a finalizer.
pub fn qualified_name_problems(key: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let name = match key.split_once('/') {
        None => key,
        Some((_, name)) if name.contains('/') => {
            return vec![format!(
                "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
                 with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for \
                 validation is '{QUALIFIED}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some(("", _)) => return vec!["prefix part must be non-empty".into()],
        Some((prefix, name)) => {
            problems.extend(subdomain_problems(prefix).into_iter().map(|problem| format!("prefix part {problem}")));
            name
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        problems.push("name part must be no more than 63 bytes".into());
    }
    if !is_qualified(name) {
        problems.push(format!(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
             alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
             '{QUALIFIED}')"
        ));
    }
    problems
}

/// All validation errors of a label's value.
pub fn label_value_problems(value: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if value.len() > 63 {
        problems.push("must be no more than 63 bytes".into());
    }
    if !value.is_empty() && !is_qualified(value) {
        problems.push(format!(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
             for validation is '({QUALIFIED})?')"
        ));
    }
    problems
}

/// All validation errors of a key of a ConfigMap or Secret.
pub fn config_key_problems(key: &str) -> Vec<String> {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let mut problems = too_long(key, 253);
    if key.is_empty() || !key.chars().all(allowed) {
        problems.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
             'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                .into(),
        );
    } else if key == "." || key == ".." {
        problems.push(format!("must not be '{key}'"));
    } else if key.starts_with("..") {
        problems.push("must not start with '..'".into());
    }
    problems
}

fn too_long(name: &str, limit: usize) -> Vec<String> {
    match name.len() > limit {
        true => vec![format!("must be no more than {limit} characters")],
        false => Vec::new(),
    }
}

// Names are checked in every request, so the patterns above are written as code.

fn is_label(text: &str) -> bool {
    let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    begins_and_ends(text, inner) && text.bytes().all(|byte| inner(&byte) || byte == b'-')
}

fn is_service_label(text: &str) -> bool {
    is_label(text) && text.starts_with(|letter: char| letter.is_ascii_lowercase())
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_qualified(text: &str) -> bool {
    begins_and_ends(text, u8::is_ascii_alphanumeric)
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn begins_and_ends(text: &str, with: impl Fn(&u8) -> bool) -> bool {
    text.as_bytes().first().is_some_and(&with) && text.as_bytes().last().is_some_and(&with)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rule_of_their_kind() {
        for (rule, good, bad) in [
            (NameRule::Subdomain, vec!["a", "a.b", "1-a"], vec!["", "A", "a_b", "-a", "a-", ".a"]),
            (NameRule::Label, vec!["a", "1-a"], vec!["", "a.b", "A"]),
            (NameRule::ServiceLabel, vec!["a", "a-1"], vec!["1a", "a."]),
            (NameRule::PathSegment, vec!["system:node", "A b"], vec![".", "..", "a/b", "a%b"]),
        ] {
            for name in good {
                assert_eq!(rule.check(name), Vec::<String>::new(), "{rule:?} {name}");
            }
            for name in bad {
                assert!(!rule.check(name).is_empty(), "{rule:?} {name}");
            }
        }
        assert!(NameRule::Subdomain.check(&"a".repeat(253)).is_empty());
        assert_eq!(NameRule::Subdomain.check(&"a".repeat(254)), ["must be no more than 253 characters"]);
    }

    #[test]
    fn labels_and_finalizers_are_qualified_names() {
        for good in ["app", "example.com/app", "a.b/c_d"] {
            assert_eq!(qualified_name_problems(good), Vec::<String>::new(), "{good}");
        }
        for bad in ["", "/a", "a/", "a/b/c", "Example.com/a", "-a", "a b"] {
            assert!(!qualified_name_problems(bad).is_empty(), "{bad}");
        }
        assert!(label_value_problems("").is_empty());
        assert!(!label_value_problems("a b").is_empty());
        assert!(!label_value_problems(&"a".repeat(64)).is_empty());
    }
}
