//! Rules for single texts. Each function returns the errors with Kubernetes' messages; none if the text is valid.

const SUBDOMAIN_MAX_BYTES: usize = 253;
const LABEL_MAX_BYTES: usize = 63;

const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
     '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_RULE: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
     alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
     validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const API_VERSION_RULE: &str = "an apiVersion is a DNS-1035 label, which must consist of lower case alphanumeric \
     characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or \
     'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?') with an optional DNS subdomain prefix and \
     '/' (e.g. 'example.com/MyVersion')";
const LABEL_KEY_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
     alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
     '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const EMPTY: &str = "must be non-empty";

/// Checks for a DNS subdomain (RFC 1123): the form of groups, and of most object names.
pub fn is_dns1123_subdomain(text: &str) -> Vec<String> {
    let mut problems = too_long(text, SUBDOMAIN_MAX_BYTES);
    let valid = text.split('.').all(|label| {
        let ends_well = label.starts_with(is_lower_alphanumeric) && label.ends_with(is_lower_alphanumeric);
        ends_well && label.chars().all(|letter| is_lower_alphanumeric(letter) || letter == '-')
    });
    if !valid {
        problems.push(SUBDOMAIN_RULE.to_owned());
    }
    problems
}

/// Checks for a DNS label (RFC 1035): the form of versions and resources.
pub fn is_dns1035_label(text: &str) -> Vec<String> {
    let mut problems = too_long(text, LABEL_MAX_BYTES);
    let ends_well =
        text.starts_with(|letter: char| letter.is_ascii_lowercase()) && text.ends_with(is_lower_alphanumeric);
    if !ends_well || !text.chars().all(|letter| is_lower_alphanumeric(letter) || letter == '-') {
        problems.push(LABEL_RULE.to_owned());
    }
    problems
}

/// Checks for a label key, also called a qualified name: the form of condition types.
pub fn is_label_key(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            problems.extend(prefixed("prefix part ", non_empty(prefix, is_dns1123_subdomain)));
            name
        }
        _ => {
            let form = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {LABEL_KEY_RULE} {form}")];
        }
    };
    if name.is_empty() {
        problems.push(format!("name part {EMPTY}"));
    }
    problems.extend(prefixed("name part ", too_long(name, LABEL_MAX_BYTES)));
    let is_alphanumeric = |letter: char| letter.is_ascii_alphanumeric();
    let ends_well = name.starts_with(is_alphanumeric) && name.ends_with(is_alphanumeric);
    if !ends_well || !name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter)) {
        problems.push(format!("name part {LABEL_KEY_RULE}"));
    }
    problems
}

/// Checks for an `apiVersion`: a version, with an optional group before it.
pub fn is_valid_api_version(text: &str) -> Vec<String> {
    let parts: Vec<&str> = text.split('/').collect();
    let (mut problems, version) = match parts[..] {
        [version] => (Vec::new(), version),
        [group, version] => (prefixed("group part: ", non_empty(group, is_dns1123_subdomain)), version),
        _ => return vec![API_VERSION_RULE.to_owned()],
    };
    problems.extend(prefixed("version part: ", non_empty(version, is_dns1035_label)));
    problems
}

fn is_lower_alphanumeric(letter: char) -> bool {
    letter.is_ascii_lowercase() || letter.is_ascii_digit()
}

fn too_long(text: &str, limit: usize) -> Vec<String> {
    if text.len() > limit { vec![format!("must be no more than {limit} bytes")] } else { Vec::new() }
}

fn non_empty(text: &str, rule: fn(&str) -> Vec<String>) -> Vec<String> {
    if text.is_empty() { vec![EMPTY.to_owned()] } else { rule(text) }
}

fn prefixed(prefix: &str, problems: Vec<String>) -> Vec<String> {
    problems.into_iter().map(|problem| format!("{prefix}{problem}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rule: fn(&str) -> Vec<String>, good: &[&str], bad: &[&str]) {
        for text in good {
            assert_eq!(rule(text), Vec::<String>::new(), "{text:?} was refused");
        }
        for text in bad {
            assert!(!rule(text).is_empty(), "{text:?} was accepted");
        }
    }

    #[test]
    fn subdomains() {
        check(
            is_dns1123_subdomain,
            &["a", "1", "a-b.c-d", "0.1"],
            &["", ".", "a.", ".a", "a..b", "-a", "a-", "A", "a_b", "é"],
        );
    }

    #[test]
    fn labels() {
        check(is_dns1035_label, &["a", "v1", "a-b"], &["", "1", "-a", "a-", "A", "a.b", "a_b"]);
    }

    #[test]
    fn label_keys() {
        check(is_label_key, &["a", "A.b_c-d", "x.io/Y"], &["", "-a", "a/", "/a", "a/b/c", "X.io/y", "a b"]);
    }

    #[test]
    fn api_versions_explain_which_part_is_wrong() {
        assert_eq!(is_valid_api_version("/v3"), ["group part: must be non-empty"]);
        assert_eq!(is_valid_api_version("mygroup.com/"), ["version part: must be non-empty"]);
        assert_eq!(is_valid_api_version("a/b/c"), [API_VERSION_RULE]);
        assert_eq!(is_valid_api_version("mygroup.com/v2_"), [format!("version part: {LABEL_RULE}")]);
        assert_eq!(is_valid_api_version("mygroup_com/v2"), [format!("group part: {SUBDOMAIN_RULE}")]);
        assert_eq!(is_valid_api_version("mygroup.com/v2"), Vec::<String>::new());
    }

    #[test]
    fn lengths_are_limited() {
        assert_eq!(is_dns1123_subdomain(&"x".repeat(254)), ["must be no more than 253 bytes"]);
        assert_eq!(is_dns1035_label(&"x".repeat(64)), ["must be no more than 63 bytes"]);
        assert_eq!(is_label_key(&"x".repeat(64)), ["name part must be no more than 63 bytes"]);
    }
}
