//! Finds which kinds a package registers: the calls of `AddKnownTypes` and its like, and the lists that they are given.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};

use super::lexer::{Token, TokenKind};
use super::package::Location;

/// Which method of the scheme is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegistrationCall {
    Known,
    KnownWithName,
    Unversioned,
}

/// One call that registers kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) call: RegistrationCall,
    pub(crate) location: Location,
    /// The first argument, as written and without spaces: the group and version, or the kind.
    pub(crate) target: String,
    /// The types that are registered, with their package's name where it is not the file's own.
    pub(crate) types: Vec<(Option<String>, String)>,
    /// The arguments that are neither `&TYPE{}` nor a list of such. Code that is not about API types may have them.
    pub(crate) not_understood: Vec<String>,
}

/// All registrations among the tokens of a file.
pub(super) fn find(path: &Path, tokens: &[Token]) -> Result<Vec<Registration>> {
    let lists = object_lists(tokens);
    let mut found = Vec::new();
    for (index, window) in tokens.windows(3).enumerate() {
        let [dot, method, open] = window else { continue };
        let call = match &method.kind {
            TokenKind::Word(word) if word == "AddKnownTypes" => RegistrationCall::Known,
            TokenKind::Word(word) if word == "AddKnownTypeWithName" => RegistrationCall::KnownWithName,
            TokenKind::Word(word) if word == "AddUnversionedTypes" => RegistrationCall::Unversioned,
            _ => continue,
        };
        if dot.kind != TokenKind::Symbol('.') || open.kind != TokenKind::Symbol('(') {
            continue;
        }
        let location = Location { path: path.to_owned(), line: method.line };
        let arguments = split_arguments(&tokens[index + 3..]);
        let Some((target, objects)) = arguments.split_first() else {
            bail!("{location}: a registration without arguments");
        };
        let (mut types, mut not_understood) = (Vec::new(), Vec::new());
        for object in objects {
            match (spread_name(object).and_then(|name| lists.get(name)), object_type(object)) {
                (Some(list), _) => types.extend(list.iter().cloned()),
                (None, Some(object)) => types.push(object),
                (None, None) => not_understood.push(written(object)),
            }
        }
        found.push(Registration { call, location, target: written(target), types, not_understood });
    }
    Ok(found)
}

/// The lists `NAME = []runtime.Object{&A{}, &B{}}`.
fn object_lists(tokens: &[Token]) -> BTreeMap<String, Vec<(Option<String>, String)>> {
    let mut lists = BTreeMap::new();
    for (index, window) in tokens.windows(8).enumerate() {
        let TokenKind::Word(name) = &window[0].kind else { continue };
        if written(&window[1..]) != "=[]runtime.Object{" {
            continue;
        }
        let objects = split_arguments(&tokens[index + 8..]);
        let types: Option<Vec<_>> = objects.iter().map(|object| object_type(object)).collect();
        lists.extend(types.map(|types| (name.clone(), types)));
    }
    lists
}

/// Splits at the commas of the outermost level, up to the bracket that closes it.
fn split_arguments(tokens: &[Token]) -> Vec<&[Token]> {
    let mut arguments = Vec::new();
    let mut depth = 0usize;
    let mut start = 0;
    for (index, token) in tokens.iter().enumerate() {
        match token.kind {
            TokenKind::Symbol('(' | '[' | '{') => depth += 1,
            TokenKind::Symbol(')' | ']' | '}') if depth == 0 => {
                arguments.push(&tokens[start..index]);
                break;
            }
            TokenKind::Symbol(')' | ']' | '}') => depth -= 1,
            TokenKind::Symbol(',') if depth == 0 => {
                arguments.push(&tokens[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    arguments.retain(|argument| !argument.is_empty());
    arguments
}

/// The name in `name...`.
fn spread_name(argument: &[Token]) -> Option<&str> {
    match argument {
        [Token { kind: TokenKind::Word(name), .. }, dots @ ..] if written(dots) == "..." => Some(name),
        _ => None,
    }
}

/// The type in `&T{}` or `&package.T{}`.
fn object_type(argument: &[Token]) -> Option<(Option<String>, String)> {
    let text = written(argument);
    let name = text.strip_prefix('&')?.strip_suffix("{}")?;
    if name.contains(['{', '(']) {
        return None;
    }
    let (package, name) = name.split_once('.').map_or((None, name), |(package, name)| (Some(package), name));
    Some((package.map(str::to_owned), name.to_owned()))
}

fn written(tokens: &[Token]) -> String {
    tokens
        .iter()
        .map(|token| match &token.kind {
            TokenKind::Word(text) | TokenKind::Number(text) => text.clone(),
            TokenKind::Text(text) => format!("{text:?}"),
            TokenKind::Symbol(symbol) => symbol.to_string(),
        })
        .collect()
}
