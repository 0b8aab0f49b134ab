//! Splits Go source into tokens, with the semicolons that Go inserts at line ends. Comments are kept apart, by line.

use std::collections::BTreeMap;

/// The kind of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// An identifier or a keyword.
    Word(String),
    /// A string literal, unquoted.
    Text(String),
    /// A number or a rune, as written.
    Number(String),
    Symbol(char),
}

/// A token and the line that it is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) line: usize,
}

/// A file in tokens. A comment is listed under its line if nothing but space is before it.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    pub(super) tokens: Vec<Token>,
    pub(super) comments: BTreeMap<usize, String>,
}

/// Where and why the text is not Go.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LexError {
    pub(super) line: usize,
    pub(super) problem: &'static str,
}

pub(super) fn tokenize(source: &str) -> Result<Tokens, LexError> {
    let mut lexer = Lexer { rest: source, line: 1, found: Tokens::default() };
    while lexer.next()? {}
    lexer.end_line();
    Ok(lexer.found)
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    found: Tokens,
}

impl Lexer<'_> {
    /// Reads one token, comment or line end. Returns whether there was one.
    fn next(&mut self) -> Result<bool, LexError> {
        let Some(first) = self.rest.chars().next() else { return Ok(false) };
        match first {
            '\n' => {
                self.end_line();
                self.line += 1;
                self.rest = &self.rest[1..];
            }
            space if space.is_whitespace() => self.rest = &self.rest[space.len_utf8()..],
            '/' if self.rest.starts_with("//") => {
                let length = self.rest.find('\n').unwrap_or(self.rest.len());
                let text = self.rest[2..length].to_owned();
                self.comment(text);
                self.rest = &self.rest[length..];
            }
            '/' if self.rest.starts_with("/*") => self.block_comment()?,
            '"' => self.interpreted_string()?,
            '`' => self.raw_string()?,
            '\'' => self.rune()?,
            letter if letter.is_alphabetic() || letter == '_' => {
                let word = self.take_while(|c| c.is_alphanumeric() || c == '_');
                self.push(TokenKind::Word(word));
            }
            digit if digit.is_ascii_digit() => {
                let number = self.take_while(|c| c.is_alphanumeric() || c == '.' || c == '_');
                self.push(TokenKind::Number(number));
            }
            symbol => {
                self.push(TokenKind::Symbol(symbol));
                self.rest = &self.rest[symbol.len_utf8()..];
            }
        }
        Ok(true)
    }

    fn push(&mut self, kind: TokenKind) {
        self.found.tokens.push(Token { kind, line: self.line });
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let length = self.rest.find(|c| !wanted(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        taken.to_owned()
    }

    /// Go's rule: a line that ends in a name, a literal or a closing bracket ends a statement.
    fn end_line(&mut self) {
        let ends = match self.found.tokens.last().map(|token| &token.kind) {
            Some(TokenKind::Symbol(symbol)) => matches!(symbol, ')' | ']' | '}'),
            Some(_) => true,
            None => false,
        };
        if ends {
            self.push(TokenKind::Symbol(';'));
        }
    }

    fn comment(&mut self, text: String) {
        let alone = self.found.tokens.iter().rev().find(|token| token.kind != TokenKind::Symbol(';'));
        if alone.is_none_or(|token| token.line != self.line) {
            self.found.comments.insert(self.line, text.trim().to_owned());
        }
    }

    fn block_comment(&mut self) -> Result<(), LexError> {
        let length = self.rest.find("*/").ok_or(self.error("a comment without its end"))?;
        let (text, rest) = (self.rest[2..length].to_owned(), &self.rest[length + 2..]);
        for (index, line) in text.split('\n').enumerate() {
            if index > 0 {
                self.end_line();
                self.line += 1;
            }
            self.comment(line.to_owned());
        }
        self.rest = rest;
        Ok(())
    }

    fn raw_string(&mut self) -> Result<(), LexError> {
        let length = self.rest[1..].find('`').ok_or(self.error("a string without its end"))?;
        let text = self.rest[1..=length].to_owned();
        self.rest = &self.rest[length + 2..];
        let lines = text.matches('\n').count();
        self.push(TokenKind::Text(text));
        self.line += lines;
        Ok(())
    }

    fn interpreted_string(&mut self) -> Result<(), LexError> {
        let (text, length) = self.quoted('"')?;
        self.rest = &self.rest[length..];
        self.push(TokenKind::Text(text));
        Ok(())
    }

    fn rune(&mut self) -> Result<(), LexError> {
        let (text, length) = self.quoted('\'')?;
        self.rest = &self.rest[length..];
        self.push(TokenKind::Number(text));
        Ok(())
    }

    /// The text between quotes and how much of the source it takes. Only the simplest escapes are resolved: the strings
    /// that tables need (names of groups) have none.
    fn quoted(&self, quote: char) -> Result<(String, usize), LexError> {
        let mut text = String::new();
        let mut letters = self.rest.char_indices().skip(1);
        while let Some((index, letter)) = letters.next() {
            match letter {
                '\n' => break,
                '\\' => text.extend(letters.next().map(|(_, escaped)| escaped)),
                end if end == quote => return Ok((text, index + 1)),
                other => text.push(other),
            }
        }
        Err(self.error("a string without its end"))
    }

    fn error(&self, problem: &'static str) -> LexError {
        LexError { line: self.line, problem }
    }
}
