//! Static bearer tokens from a file: one line each, `token,user,uid,"group1,group2"`. Only hashes of the tokens stay in
//! memory.

use crate::User;
use crate::authenticate::Secret;
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

/// Static tokens and their users.
#[derive(Clone, Default)]
pub struct TokenFile {
    entries: Vec<Entry>,
}

#[derive(Clone)]
struct Entry {
    hash: [u8; 32],
    user: User,
}

impl TokenFile {
    /// Parses the text of a file. An error has its line number, from 1.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut entries: Vec<Entry> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let with_line = |problem| (index + 1, problem);
            let fields = split_fields(line).map_err(with_line)?;
            let [token, name, uid, rest @ ..] = fields.as_slice() else {
                let found = fields.len();
                let problem = format!("must have at least 3 columns (token, user name, user uid), found {found}");
                return Err(with_line(problem));
            };
            if token.is_empty() {
                return Err(with_line("the token is empty".into()));
            }
            if name.is_empty() {
                return Err(with_line("the user name is empty".into()));
            }
            let hash = hash(token);
            if entries.iter().any(|entry| entry.hash == hash) {
                return Err(with_line("the token occurs twice".into()));
            }
            let groups =
                rest.first().into_iter().flat_map(|groups| groups.split(',')).filter(|group| !group.is_empty());
            let groups = groups.map(String::from).collect();
            entries.push(Entry { hash, user: User { uid: uid.clone(), groups, ..User::named(name) } });
        }
        Ok(TokenFile { entries })
    }

    /// The user of a token. The comparison takes constant time: it does not depend on how much of a token matches, nor on
    /// its line.
    pub fn user_of(&self, token: Secret<'_>) -> Option<&User> {
        let hash = hash(token.0);
        let mut found = None;
        for entry in &self.entries {
            if bool::from(entry.hash.ct_eq(&hash)) {
                found = Some(&entry.user);
            }
        }
        found
    }
}

/// Prints the number of tokens, and no token.
impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenFile").field("tokens", &self.entries.len()).finish()
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// Splits a line at its commas. A field in double quotes may hold commas, and a quote written twice.
fn split_fields(line: &str) -> Result<Vec<String>, String> {
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        let (field, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_field(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                let (field, after) = rest.split_at(end);
                if field.contains('"') {
                    return Err("a quote inside a field that does not begin with one".into());
                }
                (field.to_string(), after)
            }
        };
        fields.push(field);
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None if after.is_empty() => return Ok(fields),
            None => return Err("text after a closing quote".into()),
        }
    }
}

/// The field before the closing quote, and what comes after it.
fn quoted_field(mut rest: &str) -> Result<(String, &str), String> {
    let mut field = String::new();
    loop {
        let Some((before, after)) = rest.split_once('"') else { return Err("a quote is not closed".into()) };
        field.push_str(before);
        match after.strip_prefix('"') {
            Some(next) => {
                field.push('"');
                rest = next;
            }
            None => return Ok((field, after)),
        }
    }
}
