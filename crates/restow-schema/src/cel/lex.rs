//! The lexer of CEL.

use super::source::ExpressionError;

/// A token, its position and its text.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) at: usize,
    pub(crate) kind: TokenKind,
    pub(crate) text: String,
}

/// The kinds of tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TokenKind {
    Ident(String),
    EscapedIdent(String),
    Int(u64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    Symbol(&'static str),
    End,
}

const SYMBOLS: &[&str] = &[
    "||", "&&", "<=", ">=", "==", "!=", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":", ".", ",", "(", ")", "[", "]",
    "{", "}",
];

/// All tokens of a text.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token>, ExpressionError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(character) = text.get(at..).and_then(|rest| rest.chars().next()) {
        let rest = text.get(at..).unwrap_or_default();
        if character.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        }
        let (kind, length) = token(rest).map_err(|message| ExpressionError::new(at, message))?;
        tokens.push(Token { at, kind, text: rest.get(..length).unwrap_or_default().to_string() });
        at += length;
    }
    tokens.push(Token { at: text.len(), kind: TokenKind::End, text: String::new() });
    Ok(tokens)
}

fn token(rest: &str) -> Result<(TokenKind, usize), String> {
    let first = rest.chars().next().unwrap_or(' ');
    if let Some(found) = text_literal(rest)? {
        return Ok(found);
    }
    if first == '`' {
        let length =
            rest.get(1..).and_then(|body| body.find('`')).ok_or("Syntax error: token recognition error at: '`'")?;
        let name = rest.get(1..=length).unwrap_or_default();
        return Ok((TokenKind::EscapedIdent(name.to_string()), length + 2));
    }
    if first.is_ascii_alphabetic() || first == '_' {
        let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = rest.get(..length).unwrap_or_default();
        let kind = if name == "in" { TokenKind::Symbol("in") } else { TokenKind::Ident(name.to_string()) };
        return Ok((kind, length));
    }
    let second_is_digit = rest.chars().nth(1).is_some_and(|c| c.is_ascii_digit());
    if first.is_ascii_digit() || (first == '.' && second_is_digit) {
        return number(rest);
    }
    match SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
        Some(symbol) => Ok((TokenKind::Symbol(symbol), symbol.len())),
        None => Err(format!("Syntax error: token recognition error at: '{first}'")),
    }
}

fn number(rest: &str) -> Result<(TokenKind, usize), String> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    if let Some(hex) = rest.strip_prefix("0x").or(rest.strip_prefix("0X")) {
        let length = hex.bytes().take_while(u8::is_ascii_hexdigit).count();
        let value =
            u64::from_str_radix(hex.get(..length).unwrap_or_default(), 16).map_err(|_| "invalid int literal")?;
        let unsigned = hex.get(length..).is_some_and(|after| after.starts_with(['u', 'U']));
        let kind = if unsigned { TokenKind::Uint(value) } else { TokenKind::Int(value) };
        return Ok((kind, 2 + length + usize::from(unsigned)));
    }
    let mut length = digits(rest);
    let mut is_double = false;
    let tail = rest.get(length..).unwrap_or_default();
    if let Some(fraction) = tail.strip_prefix('.').filter(|fraction| fraction.starts_with(|c: char| c.is_ascii_digit()))
    {
        is_double = true;
        length += 1 + digits(fraction);
    }
    let tail = rest.get(length..).unwrap_or_default();
    if tail.starts_with(['e', 'E']) {
        let sign = usize::from(tail.get(1..).is_some_and(|after| after.starts_with(['+', '-'])));
        let exponent = digits(tail.get(1 + sign..).unwrap_or_default());
        if exponent > 0 {
            is_double = true;
            length += 1 + sign + exponent;
        }
    }
    let body = rest.get(..length).unwrap_or_default();
    if is_double {
        return Ok((TokenKind::Double(body.parse().map_err(|_| "invalid double literal")?), length));
    }
    let value: u64 = body.parse().map_err(|_| "invalid int literal")?;
    let unsigned = rest.get(length..).is_some_and(|after| after.starts_with(['u', 'U']));
    let kind = if unsigned { TokenKind::Uint(value) } else { TokenKind::Int(value) };
    Ok((kind, length + usize::from(unsigned)))
}

/// A string or bytes literal with its prefix: raw, bytes, one or three quotes of either kind.
fn text_literal(rest: &str) -> Result<Option<(TokenKind, usize)>, String> {
    let prefix = rest.bytes().take_while(|byte| b"rRbB".contains(byte)).count().min(2);
    let (flags, body) = rest.split_at(prefix);
    let quote = match ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| body.starts_with(quote)) {
        Some(quote) => quote,
        None => return Ok(None),
    };
    let raw = flags.contains(['r', 'R']);
    let bytes = flags.contains(['b', 'B']);
    let inner = body.get(quote.len()..).unwrap_or_default();
    let mut end = 0;
    loop {
        let here = inner.get(end..).unwrap_or_default();
        if here.starts_with(quote) {
            break;
        }
        match here.chars().next() {
            None => return Err(format!("Syntax error: token recognition error at: '{quote}'")),
            Some('\n' | '\r') if quote.len() == 1 => {
                return Err(format!("Syntax error: token recognition error at: '{quote}'"));
            }
            Some('\\') if !raw => end += 1 + here.chars().nth(1).map_or(0, char::len_utf8),
            Some(character) => end += character.len_utf8(),
        }
    }
    let content = inner.get(..end).unwrap_or_default();
    let length = prefix + 2 * quote.len() + end;
    let plain = if raw { content.as_bytes().to_vec() } else { unescape(content, bytes)? };
    let kind = if bytes {
        TokenKind::Bytes(plain)
    } else {
        TokenKind::Text(String::from_utf8(plain).map_err(|_| "invalid string literal")?)
    };
    Ok(Some((kind, length)))
}

fn unescape(text: &str, bytes: bool) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.chars();
    let push = |out: &mut Vec<u8>, character: char| out.extend(character.encode_utf8(&mut [0; 4]).bytes());
    while let Some(character) = rest.next() {
        if character != '\\' {
            push(&mut out, character);
            continue;
        }
        let escaped = rest.next().ok_or("unable to unescape string")?;
        let simple = match escaped {
            'a' => Some('\u{7}'),
            'b' => Some('\u{8}'),
            'f' => Some('\u{c}'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\u{b}'),
            '\\' | '\'' | '"' | '`' | '?' => Some(escaped),
            _ => None,
        };
        if let Some(simple) = simple {
            push(&mut out, simple);
            continue;
        }
        let (radix, width, first) = match escaped {
            'x' | 'X' => (16, 2, None),
            'u' => (16, 4, None),
            'U' => (16, 8, None),
            '0'..='3' => (8, 2, Some(escaped)),
            _ => return Err("unable to unescape string: invalid escape sequence".to_string()),
        };
        let digits: String = first.into_iter().chain(rest.by_ref().take(width)).collect();
        let code =
            u32::from_str_radix(&digits, radix).map_err(|_| "unable to unescape string: invalid escape sequence")?;
        match u8::try_from(code) {
            Ok(byte) if bytes && matches!(escaped, 'x' | 'X' | '0'..='3') => out.push(byte),
            _ => push(&mut out, char::from_u32(code).ok_or("unable to unescape string: invalid unicode")?),
        }
    }
    Ok(out)
}
