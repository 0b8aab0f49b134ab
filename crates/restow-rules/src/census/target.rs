//! The version in which the API servers write a kind now, as far as it is certain.

use restow_api::{StorageVersionHash, storage_version_hash};

/// The hash of the storage version in force, or why that is not known.
pub type StorageVersionInForce = Result<StorageVersionHash, String>;

/// A kind and the version in which the API servers write it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindTarget {
    /// The group that it is served in; empty for the core group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name of the resource.
    pub resource: String,
    /// The storage version in force.
    pub in_force: StorageVersionInForce,
    /// The versions that the hash may stand for.
    pub candidates: Vec<String>,
    /// The versions of its CRD; `None` for built-in kinds.
    pub defined: Option<Vec<String>>,
}

impl KindTarget {
    /// The name of the resource without its group.
    pub fn plural(&self) -> &str {
        self.resource.split('.').next().unwrap_or_default()
    }
}

/// The versions of a CRD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefinedVersions<'d> {
    /// The group.
    pub group: &'d str,
    /// The kind.
    pub kind: &'d str,
    /// The storage version.
    pub storage: &'d str,
    /// Whether discovery can show it: the storage version of a CRD has a hash only while it is served.
    pub is_served: bool,
}

/// The storage version in force, from the API servers and the CRD, if there is one.
///
/// `told` is what all API servers agree on, or why they do not. `is_everyone_silent` is whether every API server was
/// queried and none of them named any version.
pub fn in_force(
    told: StorageVersionInForce,
    is_everyone_silent: bool,
    crd: Option<DefinedVersions<'_>>,
) -> StorageVersionInForce {
    let Some(crd) = crd else { return told };
    let defined = StorageVersionHash::new(storage_version_hash(crd.group, crd.storage, crd.kind));
    match told {
        Ok(hash) if hash == defined => Ok(defined),
        Ok(_) => {
            Err(format!("the CRD's storage version is {}, but the API servers still write another one", crd.storage))
        }
        Err(_) if is_everyone_silent && !crd.is_served => Ok(defined),
        Err(words) => Err(words),
    }
}

/// What is the same before and after the store was read; what has changed meanwhile is unknown.
pub fn steady(before: &[KindTarget], after: Vec<KindTarget>) -> Vec<KindTarget> {
    let was = |now: &KindTarget| before.iter().find(|was| was.resource == now.resource).map(|was| &was.in_force);
    let checked = |mut now: KindTarget| {
        if now.in_force.is_ok() && was(&now) != Some(&now.in_force) {
            now.in_force = Err("its storage version changed while the store was read; run it again".into());
        }
        now
    };
    after.into_iter().map(checked).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(version: &str) -> StorageVersionHash {
        StorageVersionHash::new(storage_version_hash("example.com", version, "Widget"))
    }

    #[test]
    fn the_storage_version_in_force_needs_agreement_of_servers_and_crd() {
        let crd =
            |storage, is_served| Some(DefinedVersions { group: "example.com", kind: "Widget", storage, is_served });
        let silent = || Err("does not say".to_string());
        assert_eq!(in_force(Ok(hash("v1")), false, None), Ok(hash("v1")));
        assert_eq!(in_force(Ok(hash("v2")), false, crd("v2", true)), Ok(hash("v2")));
        assert!(in_force(Ok(hash("v1")), false, crd("v2", true)).unwrap_err().contains("v2"));
        // A version that is not served has no hash in discovery: only then does silence mean nothing.
        assert_eq!(in_force(silent(), true, crd("v2", false)), Ok(hash("v2")));
        assert_eq!(in_force(silent(), true, crd("v2", true)), silent());
        assert_eq!(in_force(silent(), false, crd("v2", false)), silent());
        assert_eq!(in_force(silent(), true, None), silent());
    }

    #[test]
    fn a_storage_version_that_changes_during_the_census_is_unknown() {
        let target = |in_force| KindTarget {
            group: "example.com".into(),
            kind: "Widget".into(),
            resource: "widgets.example.com".into(),
            in_force,
            candidates: Vec::new(),
            defined: None,
        };
        let one = |before: Vec<KindTarget>, after| steady(&before, vec![target(after)]).remove(0).in_force;
        assert_eq!(one(vec![target(Ok(hash("v1")))], Ok(hash("v1"))), Ok(hash("v1")));
        assert!(one(vec![target(Ok(hash("v1")))], Ok(hash("v2"))).is_err());
        assert!(one(vec![target(Err("no".into()))], Ok(hash("v2"))).is_err());
        assert!(one(Vec::new(), Ok(hash("v2"))).is_err());
    }
}
