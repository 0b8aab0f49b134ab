//! How server-side apply merges a value, and who owns its parts.

/// How a value is merged, and so how it is owned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MergeRule {
    /// By its JSON type: objects by field, everything else as a whole.
    #[default]
    ByForm,
    /// As a whole.
    Whole,
    /// By field.
    Fields,
    /// Item by item; these fields are the keys of items.
    Items(Vec<String>),
    /// Value by value.
    Values,
}
