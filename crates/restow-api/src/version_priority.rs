//! The priority of versions. Kubernetes prefers stable versions to beta to alpha, and newer to older ones.

use std::cmp::{Ordering, Reverse};

/// The priority of a version; a smaller one is preferred. Two versions are equal only if their texts are equal, except
/// for spellings such as "v1" and "v01", which Kubernetes does not distinguish either.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VersionPriority {
    /// A version that follows Kubernetes' pattern: v, a number, and perhaps alpha or beta with a number.
    Kubernetes {
        /// How stable the version is.
        stability: Stability,
        /// The number after "v"; higher comes first.
        major: Reverse<u64>,
        /// The number after "alpha" or "beta", zero for stable versions; higher comes first.
        minor: Reverse<u64>,
    },
    /// Any other name: after all of the above, in alphabetical order.
    Other(String),
}

/// How stable a version is, the most stable first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// Such as v1.
    Stable,
    /// Such as v1beta1.
    Beta,
    /// Such as v1alpha1.
    Alpha,
}

impl VersionPriority {
    /// The priority of a version such as "v1beta2".
    pub fn of(version: &str) -> Self {
        parse(version).unwrap_or_else(|| VersionPriority::Other(version.to_owned()))
    }
}

/// Orders two versions, the preferred one first.
pub fn compare_versions(left: &str, right: &str) -> Ordering {
    VersionPriority::of(left).cmp(&VersionPriority::of(right))
}

fn parse(version: &str) -> Option<VersionPriority> {
    let (major, rest) = leading_number(version.strip_prefix('v')?)?;
    let (stability, minor) = match (rest.strip_prefix("alpha"), rest.strip_prefix("beta")) {
        _ if rest.is_empty() => (Stability::Stable, 0),
        (Some(number), _) => (Stability::Alpha, whole_number(number)?),
        (_, Some(number)) => (Stability::Beta, whole_number(number)?),
        _ => return None,
    };
    Some(VersionPriority::Kubernetes { stability, major: Reverse(major), minor: Reverse(minor) })
}

fn leading_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

fn whole_number(text: &str) -> Option<u64> {
    leading_number(text).and_then(|(number, rest)| rest.is_empty().then_some(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn versions_are_ordered_as_kubernetes_orders_them() {
        let expected = [
            "v10",
            "v2",
            "v1",
            "v11beta2",
            "v10beta3",
            "v3beta1",
            "v1beta10",
            "v1beta2",
            "v12alpha1",
            "v11alpha2",
            "foo1",
            "foo10",
            "v1alpha",
            "v1beta1x",
            "vbeta1",
            "version2",
        ];
        let mut shuffled = expected;
        shuffled.reverse();
        shuffled.sort_by(|left, right| compare_versions(left, right));
        assert_eq!(shuffled, expected);
    }

    #[test]
    fn a_version_with_too_large_a_number_is_an_ordinary_name() {
        assert_eq!(
            VersionPriority::of("v99999999999999999999999"),
            VersionPriority::Other("v99999999999999999999999".into())
        );
    }

    proptest! {
        #[test]
        fn stable_comes_before_beta_before_alpha(a in 0u64..100, b in 0u64..100, m in 0u64..100, n in 0u64..100) {
            prop_assert_eq!(compare_versions(&format!("v{a}"), &format!("v{b}beta{m}")), Ordering::Less);
            prop_assert_eq!(compare_versions(&format!("v{a}beta{m}"), &format!("v{b}alpha{n}")), Ordering::Less);
            prop_assert_eq!(compare_versions(&format!("v{a}"), &format!("v{b}")), b.cmp(&a));
        }
    }
}
