//! What a migration after a change of the encryption key proves about the old key.
//!
//! Only the API servers see which key an object is encrypted with. Clients see that a server rewrote an object and then
//! left it unchanged. So "the old key is not needed" follows only if objects were rewritten: a server that has not loaded
//! the new key yet leaves everything unchanged too, except for objects of even older keys or versions. Therefore all
//! objects of a resource count: each was rewritten, or written by someone else since the run began.

/// The result of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotatedResource {
    /// Its name.
    pub resource: String,
    /// Whether a last pass through every API server changed nothing.
    pub is_proven: bool,
    /// How many objects it has.
    pub objects: u64,
    /// How many of them were rewritten.
    pub rewritten: u64,
    /// How many of them nobody has written since the run began.
    pub unwritten: u64,
}

/// Which resources were gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationScope {
    /// All that the cluster serves.
    Everything,
    /// The resources that the user named.
    Named,
}

/// What is known about the old key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OldKey {
    /// No current object needs it, if the encryption configuration covers none of these resources, of which no object was
    /// rewritten.
    NotNeeded {
        /// The resources that were left unchanged.
        untouched: Vec<String>,
    },
    /// The named resources do not need it. Others may.
    OthersMayNeedIt {
        /// The named resources that were left unchanged.
        untouched: Vec<String>,
    },
    /// It has to be kept: these resources were not proven.
    Keep {
        /// Which.
        unproven: Vec<String>,
    },
    /// It has to be kept: some objects of these resources were rewritten, and others that are as old were left unchanged.
    Partly {
        /// Which, how many were left unchanged, and how many there are.
        left_alone: Vec<(String, u64, u64)>,
    },
    /// Nothing was rewritten, so the new key is not in use, or was in use before.
    NothingRewritten,
}

/// What is known about the old key after these resources were migrated.
pub fn old_key(resources: &[RotatedResource], scope: RotationScope) -> OldKey {
    let names = |which: &dyn Fn(&RotatedResource) -> bool| -> Vec<String> {
        resources.iter().filter(|one| which(one)).map(|one| one.resource.clone()).collect()
    };
    let unproven = names(&|one| !one.is_proven);
    if !unproven.is_empty() {
        return OldKey::Keep { unproven };
    }
    if resources.iter().all(|one| one.rewritten == 0) {
        return OldKey::NothingRewritten;
    }
    let is_partly = |one: &&RotatedResource| one.rewritten > 0 && one.unwritten > 0;
    let left_alone: Vec<(String, u64, u64)> =
        resources.iter().filter(is_partly).map(|one| (one.resource.clone(), one.unwritten, one.objects)).collect();
    if !left_alone.is_empty() {
        return OldKey::Partly { left_alone };
    }
    let untouched = names(&|one| one.rewritten == 0 && one.objects > 0);
    match scope {
        RotationScope::Everything => OldKey::NotNeeded { untouched },
        RotationScope::Named => OldKey::OthersMayNeedIt { untouched },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(name: &str, is_proven: bool, objects: u64, rewritten: u64) -> RotatedResource {
        RotatedResource { resource: name.into(), is_proven, objects, rewritten, unwritten: objects - rewritten }
    }

    #[test]
    fn the_old_key_is_given_up_only_where_objects_were_rewritten() {
        let secrets = |rewritten| resource("secrets", true, 5, rewritten);
        let empty = resource("leases", true, 0, 0);
        let pods = resource("pods", true, 3, 0);
        let gone = resource("widgets.x.io", false, 0, 0);
        let partly = |left_alone| OldKey::Partly { left_alone: vec![("secrets".into(), left_alone, 5)] };
        // Somebody else has written one of them meanwhile.
        let busy = RotatedResource { unwritten: 0, ..secrets(4) };
        // Nobody covers these with a key, and somebody writes them all the time.
        let leases = RotatedResource { unwritten: 1, ..resource("leases", true, 9, 0) };
        let (all, named) = (RotationScope::Everything, RotationScope::Named);
        for (resources, scope, expected) in [
            (vec![secrets(5), empty.clone()], all, OldKey::NotNeeded { untouched: vec![] }),
            (vec![secrets(5), pods.clone()], all, OldKey::NotNeeded { untouched: vec!["pods".into()] }),
            (vec![secrets(5)], named, OldKey::OthersMayNeedIt { untouched: vec![] }),
            (vec![secrets(0), pods.clone()], all, OldKey::NothingRewritten),
            (vec![secrets(0)], named, OldKey::NothingRewritten),
            (vec![empty], named, OldKey::NothingRewritten),
            (vec![], all, OldKey::NothingRewritten),
            (vec![secrets(1)], all, partly(4)),
            (vec![secrets(4), pods.clone()], named, partly(1)),
            (vec![busy], all, OldKey::NotNeeded { untouched: vec![] }),
            (vec![secrets(5), leases], all, OldKey::NotNeeded { untouched: vec!["leases".into()] }),
            (vec![secrets(1), gone.clone()], all, OldKey::Keep { unproven: vec!["widgets.x.io".into()] }),
            (vec![secrets(5), gone], all, OldKey::Keep { unproven: vec!["widgets.x.io".into()] }),
        ] {
            assert_eq!(old_key(&resources, scope), expected, "{resources:?}");
        }
    }
}
