//! Semantic versions.

use std::cmp::Ordering;
use std::fmt;

use super::{FunctionResult, NONE, Opaque};
use crate::cel::eval::EvalError;
use crate::cel::value::Val;

/// A version. Its build metadata is ignored in comparisons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Semver {
    pub(crate) major: u64,
    pub(crate) minor: u64,
    pub(crate) patch: u64,
    pre: Vec<String>,
}

impl Semver {
    /// Parses a version. With `lenient`, a leading `v`, missing parts and leading zeros are accepted.
    fn parse(text: &str, lenient: bool) -> Result<Semver, String> {
        let fault = || format!("semver {text:?} is not a valid version");
        let rest = if lenient { text.trim().strip_prefix('v').unwrap_or(text.trim()) } else { text };
        let rest = rest.split_once('+').map_or(rest, |(version, _)| version);
        let (core, pre) = rest.split_once('-').map_or((rest, None), |(core, pre)| (core, Some(pre)));
        let mut parts: Vec<&str> = core.split('.').collect();
        while lenient && parts.len() < 3 {
            parts.push("0");
        }
        let number = |part: &str| {
            let leading = part.len() > 1 && part.starts_with('0');
            if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) || (leading && !lenient) {
                return Err(fault());
            }
            part.parse::<u64>().map_err(|_| fault())
        };
        let [major, minor, patch] = parts.as_slice() else { return Err(fault()) };
        let pre: Vec<String> = pre.map_or(Vec::new(), |pre| pre.split('.').map(str::to_string).collect());
        let sound =
            |part: &String| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !pre.iter().all(sound) {
            return Err(fault());
        }
        Ok(Semver { major: number(major)?, minor: number(minor)?, patch: number(patch)?, pre })
    }

    pub(crate) fn compare(&self, other: &Semver) -> Ordering {
        let core = |version: &Semver| (version.major, version.minor, version.patch);
        core(self).cmp(&core(other)).then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                let left = self.pre.iter().map(|part| order_key(part));
                left.cmp(other.pre.iter().map(|part| order_key(part)))
            }
        })
    }
}

/// Numeric parts come before text parts, and are compared as numbers.
fn order_key(part: &str) -> (bool, u64, &str) {
    match part.parse::<u64>() {
        Ok(number) => (false, number, ""),
        Err(_) => (true, 0, part),
    }
}

impl fmt::Display for Semver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)?;
        if self.pre.is_empty() { Ok(()) } else { write!(f, "-{}", self.pre.join(".")) }
    }
}

pub(super) fn parsed<'a>(
    arguments: &[Val<'a>],
    result: impl Fn(Result<Semver, EvalError>) -> FunctionResult<'a>,
) -> FunctionResult<'a> {
    let (text, lenient) = match arguments {
        [Val::Text(text)] => (text, false),
        [Val::Text(text), Val::Bool(lenient)] => (text, *lenient),
        _ => return Err(NONE),
    };
    result(Semver::parse(text.as_str(), lenient).map_err(EvalError::failed))
}

pub(super) fn part<'a>(arguments: &[Val<'a>], get: impl Fn(&Semver) -> u64) -> FunctionResult<'a> {
    match arguments {
        [Val::Opaque(opaque)] => match opaque.as_ref() {
            Opaque::Semver(version) => Ok(Val::Int(i64::try_from(get(version)).unwrap_or(i64::MAX))),
            _ => Err(NONE),
        },
        _ => Err(NONE),
    }
}
