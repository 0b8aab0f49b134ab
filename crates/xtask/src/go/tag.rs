//! Struct tags: `json:"name,omitempty" protobuf:"bytes,1,opt,name=name"`.

/// The tag of a field, as pairs of a key and its quoted text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StructTag(Vec<(String, String)>);

impl StructTag {
    /// Reads Go's convention; the error says what does not follow it.
    pub(crate) fn parse(text: &str) -> Result<StructTag, String> {
        let mut pairs = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (key, quoted) = rest.split_once(":\"").ok_or_else(|| format!("`{rest}` is not KEY:\"VALUE\""))?;
            let (value, after) = quoted.split_once('"').ok_or_else(|| format!("`{quoted}` has no closing quote"))?;
            if key.is_empty() || key.contains(char::is_whitespace) || value.contains('\\') {
                return Err(format!("`{key}` is not a plain key with a plain value"));
            }
            pairs.push((key.to_owned(), value.to_owned()));
            rest = after.trim_start();
        }
        Ok(StructTag(pairs))
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }
}
