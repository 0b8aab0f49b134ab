//! The bindings of one scope (the cluster, or one namespace), indexed by subject.

use crate::User;
use crate::rbac::objects::{Binding, Subject};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The bindings of one scope.
#[derive(Clone, Debug, Default)]
pub(super) struct Bindings {
    by_name: BTreeMap<String, Arc<Binding>>,
    /// By user name, service accounts included.
    by_user: HashMap<String, Vec<Arc<Binding>>>,
    by_group: HashMap<String, Vec<Arc<Binding>>>,
}

impl Bindings {
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.by_name.keys()
    }

    /// Replaces the binding of this name; `None` removes it.
    pub(super) fn set(&mut self, name: &str, binding: Option<Binding>) {
        if let Some(old) = self.by_name.remove(name) {
            for subject in &old.subjects {
                self.unlink(subject, name);
            }
        }
        if let Some(binding) = binding {
            let binding = Arc::new(binding);
            for subject in &binding.subjects {
                self.link(subject, &binding);
            }
            self.by_name.insert(name.into(), binding);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The bindings that apply to the user: first those of the user name, then those of the groups, in the order of the
    /// user's groups. A binding with several matching subjects is returned several times.
    pub(super) fn applying_to<'a>(&'a self, user: &'a User) -> impl Iterator<Item = &'a Arc<Binding>> {
        let by_user = self.by_user.get(&user.name).into_iter();
        let by_group = user.groups.iter().filter_map(|group| self.by_group.get(group));
        by_user.chain(by_group).flatten()
    }

    fn link(&mut self, subject: &Subject, binding: &Arc<Binding>) {
        let (index, key) = self.index_of(subject);
        let linked = index.entry(key).or_default();
        // A binding that names a subject twice is listed once. The order by name makes reasons deterministic.
        if let Err(place) = linked.binary_search_by(|other| other.name.cmp(&binding.name)) {
            linked.insert(place, Arc::clone(binding));
        }
    }

    fn unlink(&mut self, subject: &Subject, name: &str) {
        let (index, key) = self.index_of(subject);
        if let Some(linked) = index.get_mut(&key) {
            linked.retain(|binding| binding.name != name);
            if linked.is_empty() {
                index.remove(&key);
            }
        }
    }

    fn index_of(&mut self, subject: &Subject) -> (&mut HashMap<String, Vec<Arc<Binding>>>, String) {
        match subject {
            Subject::Group(group) => (&mut self.by_group, group.clone()),
            other => (&mut self.by_user, other.username().unwrap_or_default()),
        }
    }
}

/// The first subject of the binding that matches the user; reasons name it.
pub(super) fn first_matching_subject<'a>(binding: &'a Binding, user: &User) -> Option<&'a Subject> {
    binding.subjects.iter().find(|subject| match subject {
        Subject::Group(group) => user.is_in(group),
        other => other.username().is_some_and(|name| name == user.name),
    })
}
