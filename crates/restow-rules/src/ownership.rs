//! Whose keys a store contains: those of Restow, none, or those of others, such as a kube-apiserver.
//!
//! Restow writes a format mark under its prefix. If there are keys and no mark, they are inspected, because stores from
//! before the mark was introduced have none. Such a store is Restow's if it has a key that only Restow writes, and none
//! that Restow never writes:
//!
//! - Keys of Restow begin with the group, and the core group is called `core`: `/core/pods/…`. kube-apiserver omits the
//!   groups of built-in resources (`/pods/…`), and the group of a custom resource has a dot, so `/core/…` and `/restow/…`
//!   are never kube-apiserver's.
//! - Restow stores JSON. kube-apiserver stores built-in resources in its protobuf envelope, and may encrypt anything.
//!
//! So the store of a kube-apiserver on which a Restow API server was started by mistake, and left keys, is not mistaken for
//! Restow's.

use crate::census::StoredForm;
use std::fmt;

/// The text of the mark, followed by the format number.
const MARK: &str = "restow-objects ";
/// The suffix of a mark as long as the store was not inspected since it was written.
const PROVISIONAL: &str = " not verified";
/// The newest format that this release knows.
const NEWEST: u32 = 1;
/// How many keys of somebody else are named.
const NAMED: usize = 5;
/// The groups of built-in resources that have no dot.
const PLAIN_GROUPS: [&str; 7] = ["apps", "autoscaling", "batch", "core", "extensions", "policy", "restow"];
/// Keys that only Restow writes. kube-apiserver has its own leases at `/leases/`.
const ONLY_OURS: [&[u8]; 3] = [b"/core/", b"/restow/", b"/coordination.k8s.io/leases/kube-system/"];

/// The format of a store, according to its mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatMark {
    /// A format that this release reads and writes.
    Known,
    /// Such a format, but the store was not inspected since the mark was written.
    Provisional,
    /// The format of a newer release.
    Newer(u32),
    /// Not a valid mark.
    Unreadable,
}

/// Whose keys they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// There are none.
    Nobody,
    /// Restow API servers wrote them.
    Ours,
    /// Others wrote some or all of them.
    SomebodyElse(Foreign),
}

/// Keys that Restow did not write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Foreign {
    /// How many keys there are in all.
    pub keys: u64,
    /// Some of them, with a description of their values.
    pub examples: Vec<(String, String)>,
    /// Whether they look like those of a kube-apiserver.
    pub looks_like_kubernetes: bool,
}

/// Inspects the keys of a store without a mark.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    found: Foreign,
    only_ours: bool,
}

impl FormatMark {
    /// The mark of the format that this release writes.
    pub fn newest() -> String {
        format!("{MARK}{NEWEST}\n")
    }

    /// The same, until the store was inspected.
    pub fn provisional() -> String {
        format!("{MARK}{NEWEST}{PROVISIONAL}\n")
    }

    /// Reads a mark.
    pub fn read(value: &[u8]) -> Self {
        let text = std::str::from_utf8(value).ok().and_then(|text| text.strip_prefix(MARK)).map(str::trim_end);
        let verified = text.and_then(|text| text.strip_suffix(PROVISIONAL)).or(text);
        match verified.and_then(|number| number.parse().ok()) {
            Some(number @ 1..) if number <= NEWEST && verified != text => FormatMark::Provisional,
            Some(number @ 1..) if number <= NEWEST => FormatMark::Known,
            Some(number @ 1..) => FormatMark::Newer(number),
            _ => FormatMark::Unreadable,
        }
    }
}

impl Survey {
    /// Inspects one key, which begins with a slash, and its value.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        self.found.keys += 1;
        let form = StoredForm::of(value);
        let kubernetes = matches!(form, StoredForm::Protobuf { .. } | StoredForm::Encrypted { .. });
        if !kubernetes && is_laid_out_like_ours(key) {
            self.only_ours |= ONLY_OURS.iter().any(|folder| key.starts_with(folder));
            return;
        }
        self.found.looks_like_kubernetes |= !matches!(form, StoredForm::Other);
        if self.found.examples.len() < NAMED {
            self.found.examples.push((String::from_utf8_lossy(key).into_owned(), describe(&form)));
        }
    }

    /// The result.
    pub fn conclude(self) -> Ownership {
        match (self.found.keys, self.found.examples.is_empty(), self.only_ours) {
            (0, ..) => Ownership::Nobody,
            (_, true, true) => Ownership::Ours,
            _ => Ownership::SomebodyElse(self.found),
        }
    }
}

/// Whether a key begins with a group, as Restow's do. Those of kube-apiserver begin with a resource, except for custom
/// resources.
pub fn is_laid_out_like_ours(key: &[u8]) -> bool {
    let parts = key.strip_prefix(b"/").map(|key| key.split(|byte| *byte == b'/').collect::<Vec<_>>());
    let Some([group, _, ..]) = parts.as_deref() else { return false };
    group.contains(&b'.') || PLAIN_GROUPS.iter().any(|plain| plain.as_bytes() == *group)
}

fn describe(form: &StoredForm<'_>) -> String {
    match form {
        StoredForm::Json { api_version, kind } => format!("{api_version} {kind} in JSON"),
        StoredForm::Protobuf { api_version, kind } => format!("{api_version} {kind} in Kubernetes' protobuf"),
        StoredForm::Encrypted { provider, .. } => format!("encrypted by an API server with {provider}"),
        StoredForm::Other => "no object of Kubernetes".to_owned(),
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match self.looks_like_kubernetes {
            true => "they look like those of a kube-apiserver",
            false => "Restow did not write them",
        };
        write!(f, "the store holds {} keys without the mark of Restow, and {whose}", self.keys)?;
        let named: Vec<String> = self.examples.iter().map(|(key, what)| format!("{key} ({what})")).collect();
        if named.is_empty() { Ok(()) } else { write!(f, ": {}", named.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTOBUF: &[u8] = b"k8s\0\n\x09\n\x02v1\x12\x03Pod\x12\x04\n\x02\x08\x01\x1a\0\"\0";
    const NAMESPACE: &[u8] = br#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"default"}}"#;
    const WIDGET: &[u8] = br#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"}}"#;

    #[test]
    fn a_mark_is_provisional_until_somebody_has_looked() {
        assert_eq!(FormatMark::read(FormatMark::newest().as_bytes()), FormatMark::Known);
        assert_eq!(FormatMark::read(FormatMark::provisional().as_bytes()), FormatMark::Provisional);
        assert_eq!(FormatMark::read(b"restow-objects 9 not verified\n"), FormatMark::Newer(9));
        assert_eq!(FormatMark::read(b"restow-objects not verified\n"), FormatMark::Unreadable);
    }

    fn survey(entries: &[(&str, &[u8])]) -> Ownership {
        let mut survey = Survey::default();
        entries.iter().for_each(|(key, value)| survey.add(key.as_bytes(), value));
        survey.conclude()
    }

    #[test]
    fn a_store_of_ours_is_recognised() {
        assert_eq!(survey(&[]), Ownership::Nobody);
        let ours: [(&str, &[u8]); 5] = [
            ("/core/namespaces/default", NAMESPACE),
            ("/apps/deployments/default/web", br#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{}}"#),
            ("/example.com/widgets/default/a", WIDGET),
            ("/restow/storage-versions-in-force/example.com/widgets", b"v1"),
            ("/coordination.k8s.io/leases/kube-system/damaged", b"{"),
        ];
        assert_eq!(survey(&ours), Ownership::Ours);
        for one in [0, 3, 4] {
            assert_eq!(survey(&ours[one..=one]), Ownership::Ours);
        }
        let only_custom = survey(&ours[2..3]);
        assert!(matches!(only_custom, Ownership::SomebodyElse(_)), "kube-apiserver lays these out in the same way");
    }

    #[test]
    fn keys_of_a_kube_apiserver_are_never_restows() {
        let ours: (&str, &[u8]) = ("/restow/leaders/garbage-collector", b"x");
        let theirs: [(&str, &[u8]); 4] = [
            ("/pods/default/web", PROTOBUF),
            ("/namespaces/default", br#"{"kind":"Namespace","apiVersion":"v1","metadata":{}}"#),
            ("/apps/secrets/odd", b"k8s:enc:aescbc:v1:key1:xyz"),
            ("/core/pods/default/web", PROTOBUF),
        ];
        for one in theirs {
            for entries in [vec![one], vec![ours, one], vec![one, ("/core/namespaces/default", NAMESPACE)]] {
                let Ownership::SomebodyElse(found) = survey(&entries) else { panic!("{entries:?}") };
                assert!(found.looks_like_kubernetes, "{found:?}");
                assert_eq!(found.examples[0].0, one.0);
            }
        }
    }

    #[test]
    fn foreign_keys_are_described() {
        let mut survey = Survey::default();
        (0..7).for_each(|number| survey.add(format!("/pods/default/{number}").as_bytes(), PROTOBUF));
        let Ownership::SomebodyElse(found) = survey.conclude() else { panic!("pods of kube-apiserver") };
        let said = found.to_string();
        assert!(said.starts_with("the store holds 7 keys without the mark of Restow, and they look like"), "{said}");
        assert!(said.contains("/pods/default/0 (v1 Pod in Kubernetes' protobuf), "), "{said}");
        assert!(!said.contains("/pods/default/5"), "a few are enough: {said}");
        let Ownership::SomebodyElse(found) = self::survey(&[("/photos", b"x")]) else { panic!("somebody's photos") };
        assert!(found.to_string().ends_with("Restow did not write them: /photos (no object of Kubernetes)"), "{found}");
    }

    #[test]
    fn a_mark_is_known_newer_or_unreadable() {
        assert_eq!(FormatMark::read(FormatMark::newest().as_bytes()), FormatMark::Known);
        assert_eq!(FormatMark::read(b"restow-objects 2\n"), FormatMark::Newer(2));
        for unreadable in [&b""[..], b"restow-objects", b"restow-objects 0", b"restow-objects -1", b"2", b"\xff"] {
            assert_eq!(FormatMark::read(unreadable), FormatMark::Unreadable, "{unreadable:?}");
        }
    }

    proptest::proptest! {
        /// Whatever else lies there: one key that a kube-apiserver wrote is enough.
        #[test]
        fn one_foreign_key_is_enough(before in 0..40_usize, after in 0..40_usize) {
            let mut survey = Survey::default();
            (0..before).for_each(|_| survey.add(b"/core/namespaces/default", NAMESPACE));
            survey.add(b"/serviceaccounts/default/default", PROTOBUF);
            (0..after).for_each(|_| survey.add(b"/restow/addresses/10.0.0.1", b"x"));
            proptest::prop_assert!(matches!(survey.conclude(), Ownership::SomebodyElse(_)));
        }
    }
}
