//! When `status.storedVersions` of a CRD may be trimmed.
//!
//! The mark (an annotation) shows that a migration runs, and makes the guard refuse changes of the storage version. The
//! stored versions are trimmed only after a proven migration, and only if the CRD is unchanged since the migration began.

/// The annotation that marks a CRD while its objects are migrated.
pub const MIGRATING_ANNOTATION: &str = "ksvm.sigs.k8s.io/migrating";

/// The fields of a CRD that decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrdView {
    /// Distinguishes this CRD from an earlier one with the same name.
    pub uid: String,
    /// Increases with each change of its spec.
    pub generation: i64,
    /// The version that objects are stored in.
    pub storage_version: String,
    /// The versions in which objects may be stored, as its status says.
    pub stored_versions: Vec<String>,
    /// Whether it carries the mark.
    pub is_marked: bool,
}

/// What to do about the stored versions after a proven migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trim {
    /// Write these.
    To(Vec<String>),
    /// They are trimmed already.
    Nothing,
    /// The CRD has changed since the start, so nothing is proven about it.
    Changed(String),
}

/// What to do about the stored versions, given the CRD at the start and at the end of a proven migration.
///
/// Any change of the spec counts, even if the storage version is the same: it may have been another one in between.
pub fn trim(start: &CrdView, end: &CrdView) -> Trim {
    if start.uid != end.uid {
        return Trim::Changed("the CRD was deleted and created again".to_owned());
    }
    if start.generation != end.generation || start.storage_version != end.storage_version {
        return Trim::Changed(format!(
            "the CRD was changed meanwhile (generation {} became {}, storage version {} became {})",
            start.generation, end.generation, start.storage_version, end.storage_version
        ));
    }
    let only = vec![end.storage_version.clone()];
    if end.stored_versions == only { Trim::Nothing } else { Trim::To(only) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crd(generation: i64, storage: &str, stored: &[&str]) -> CrdView {
        CrdView {
            uid: "u".into(),
            generation,
            storage_version: storage.into(),
            stored_versions: stored.iter().map(ToString::to_string).collect(),
            is_marked: true,
        }
    }

    #[test]
    fn stored_versions_shrink_to_the_storage_version_of_an_unchanged_crd() {
        let start = crd(2, "v2", &["v1", "v2"]);
        assert_eq!(trim(&start, &start), Trim::To(vec!["v2".into()]));
        assert_eq!(trim(&start, &crd(2, "v2", &["v2"])), Trim::Nothing);
    }

    #[test]
    fn stored_versions_of_a_changed_crd_are_not_trimmed() {
        let start = crd(2, "v2", &["v1", "v2"]);
        for end in [
            crd(3, "v2", &["v1", "v2"]),
            crd(3, "v1", &["v1", "v2"]),
            CrdView { uid: "another".into(), ..start.clone() },
        ] {
            assert!(matches!(trim(&start, &end), Trim::Changed(_)), "{end:?}");
        }
    }
}
