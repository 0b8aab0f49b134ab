//! The JSON values that tables hold: no fractions, no escapes in strings.

use std::iter::Peekable;
use std::str::CharIndices;

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Json<'t> {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A string.
    Text(&'t str),
    /// A list.
    List(Vec<Json<'t>>),
    /// An object, in the order of the text.
    Object(Vec<(&'t str, Json<'t>)>),
}

impl<'t> Json<'t> {
    /// Reads one value, which is all of the text.
    ///
    /// # Errors
    /// The text is not such a value.
    pub fn parse(text: &'t str) -> Result<Json<'t>, String> {
        let mut reader = Reader { text, rest: text.char_indices().peekable() };
        let value = reader.value().and_then(|value| match reader.rest.next() {
            None => Some(value),
            Some(_) => None,
        });
        value.ok_or_else(|| format!("{text:?} is not a JSON value (without spaces, escapes and fractions)"))
    }
}

struct Reader<'t> {
    text: &'t str,
    rest: Peekable<CharIndices<'t>>,
}

impl<'t> Reader<'t> {
    fn value(&mut self) -> Option<Json<'t>> {
        match self.rest.peek()?.1 {
            '"' => self.string().map(Json::Text),
            '[' => self.items('[', ']', Self::value).map(Json::List),
            '{' => {
                let member = |reader: &mut Self| {
                    let name = reader.string()?;
                    reader.expect(':')?;
                    Some((name, reader.value()?))
                };
                self.items('{', '}', member).map(Json::Object)
            }
            _ => match self.take_while(|letter| letter.is_ascii_alphanumeric() || letter == '-') {
                "true" => Some(Json::Bool(true)),
                "false" => Some(Json::Bool(false)),
                number => number.parse().ok().map(Json::Integer),
            },
        }
    }

    fn items<T>(&mut self, open: char, close: char, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        self.expect(open)?;
        let mut items = Vec::new();
        if self.rest.next_if(|(_, letter)| *letter == close).is_some() {
            return Some(items);
        }
        loop {
            items.push(item(self)?);
            match self.rest.next()?.1 {
                ',' => {}
                last if last == close => return Some(items),
                _ => return None,
            }
        }
    }

    fn string(&mut self) -> Option<&'t str> {
        self.expect('"')?;
        let text = self.take_while(|letter| letter != '"' && letter != '\\');
        self.expect('"')?;
        Some(text)
    }

    fn expect(&mut self, wanted: char) -> Option<()> {
        self.rest.next_if(|(_, letter)| *letter == wanted).map(drop)
    }

    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'t str {
        let start = self.rest.peek().map_or(self.text.len(), |(index, _)| *index);
        while self.rest.next_if(|(_, letter)| belongs(*letter)).is_some() {}
        let end = self.rest.peek().map_or(self.text.len(), |(index, _)| *index);
        &self.text[start..end]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn values_are_read() {
        assert_eq!(Json::parse("true"), Ok(Json::Bool(true)));
        assert_eq!(Json::parse("-12"), Ok(Json::Integer(-12)));
        assert_eq!(Json::parse("\"a b\""), Ok(Json::Text("a b")));
        assert_eq!(Json::parse("{}"), Ok(Json::Object(Vec::new())));
        let expected = Json::List(vec![Json::Object(vec![("a", Json::Integer(1)), ("b", Json::List(Vec::new()))])]);
        assert_eq!(Json::parse("[{\"a\":1,\"b\":[]}]"), Ok(expected));
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for text in ["", "tru", "\"a", "{\"a\"}", "[1,]", "{\"a\":1", "1 2", "1.5", "\"a\\n\""] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
    }
}
