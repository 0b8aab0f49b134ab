//! Which objects of a collection a request is about: label selectors and field selectors.

mod fields;
mod labels;

pub(crate) use fields::FieldSelector;
pub(crate) use labels::LabelSelector;

use crate::object::Object;

/// A label selector and a field selector together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    /// What the labels must be.
    pub labels: LabelSelector,
    /// What the fields must be.
    pub fields: FieldSelector,
}

impl Selector {
    /// Whether everything matches, so that objects need not be looked at.
    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// Whether an object matches.
    pub(crate) fn matches(&self, object: &Object) -> bool {
        self.labels.matches(object) && self.fields.matches(object)
    }
}
