//! Objects made from schemas, repeatably: the same seed gives the same object.

use serde_json::{Map, Value, json};

/// A source of objects.
pub(crate) struct Generator {
    state: u64,
}

impl Generator {
    /// A generator that begins at a seed.
    pub(crate) fn new(seed: u64) -> Generator {
        Generator { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    /// A number below a limit.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % limit.max(1)
    }

    /// A value that a schema probably allows: what is required is there, and little else.
    pub(crate) fn value(&mut self, schema: &Value, depth: usize) -> Value {
        if let Some(default) = schema.get("default") {
            return default.clone();
        }
        if let Some(choices) = schema["enum"].as_array().filter(|choices| !choices.is_empty()) {
            let place = self.below(choices.len() as u64) as usize;
            return choices[place].clone();
        }
        if schema["x-kubernetes-int-or-string"] == true {
            return json!(1);
        }
        match schema["type"].as_str() {
            Some("string") => self.text(schema),
            Some("integer") => json!(schema["minimum"].as_i64().unwrap_or(1).max(1)),
            Some("number") => json!(schema["minimum"].as_f64().unwrap_or(1.0)),
            Some("boolean") => json!(self.below(2) == 0),
            Some("array") => {
                let count = schema["minItems"].as_u64().unwrap_or(0).min(3);
                Value::Array((0..count).map(|_| self.value(&schema["items"], depth + 1)).collect())
            }
            Some("object") => self.object(schema, depth),
            _ => json!({}),
        }
    }

    fn text(&mut self, schema: &Value) -> Value {
        let sample = match schema["format"].as_str() {
            Some("date-time") => "2024-01-01T00:00:00Z",
            Some("date") => "2024-01-01",
            Some("duration") => "5s",
            Some("uri") => "https://example.com/x",
            Some("ipv4") => "10.0.0.1",
            Some("ipv6") => "::1",
            Some("byte") => "aGVsbG8=",
            Some("hostname") => "example.com",
            _ => "abc",
        };
        let pattern = schema["pattern"].as_str().and_then(|pattern| regex::Regex::new(pattern).ok());
        let samples =
            [sample, "abc", "1", "5s", "https://example.com", "/x", "a.b/c", "example.com", "1Gi", "ABC", "", "100m"];
        let fits = |text: &&&str| pattern.as_ref().is_none_or(|pattern| pattern.is_match(text));
        let mut text = samples.iter().find(fits).copied().unwrap_or("abc").to_string();
        while (text.len() as u64) < schema["minLength"].as_u64().unwrap_or(0) {
            text.push('a');
        }
        if let Some(most) = schema["maxLength"].as_u64() {
            text.truncate(most as usize);
        }
        json!(text)
    }

    fn object(&mut self, schema: &Value, depth: usize) -> Value {
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut fields = Map::new();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let wanted = required.contains(&name.as_str()) || (depth < 2 && self.below(4) == 0);
            if wanted && depth < 20 {
                fields.insert(name.clone(), self.value(property, depth + 1));
            }
        }
        if schema["additionalProperties"].is_object() && depth < 20 && self.below(2) == 0 {
            fields.insert("key".to_string(), self.value(&schema["additionalProperties"], depth + 1));
        }
        Value::Object(fields)
    }

    /// Puts a value of the wrong type somewhere under `spec`; whether there was a place for it.
    pub(crate) fn spoil(&mut self, schema: &Value, object: &mut Value) -> bool {
        let Some(spec) = schema["properties"]["spec"]["properties"].as_object() else { return false };
        let typed: Vec<&String> = spec
            .iter()
            .filter(|(_, property)| {
                matches!(property["type"].as_str(), Some("integer" | "boolean" | "object" | "array"))
            })
            .map(|(name, _)| name)
            .collect();
        if typed.is_empty() || !object["spec"].is_object() {
            return false;
        }
        let place = self.below(typed.len() as u64) as usize;
        object["spec"][typed[place]] = json!("of the wrong type");
        true
    }
}
