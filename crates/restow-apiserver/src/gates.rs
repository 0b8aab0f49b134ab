//! Feature gates, with Kubernetes' names and syntax.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A feature gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The server reports its storage versions, and writes only what it has reported.
    StorageVersionApi,
    /// The server has an identity lease.
    ApiServerIdentity,
    /// Discovery shows the hash of each resource's storage version.
    StorageVersionHash,
    /// Servers may vote on storage versions.
    StorageVersionVoting,
    /// Objects that cannot be decoded can be deleted, with a permission of its own.
    AllowUnsafeMalformedObjectDeletion,
}

/// Which gates are on. By default all but voting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    open: [bool; Gate::ALL.len()],
}

/// An invalid list of gates.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidGates {
    /// No gate has this name.
    #[error("unrecognized feature gate: {name}; there are {}", known_names())]
    Unknown {
        /// The name.
        name: String,
    },
    /// A gate is neither on nor off.
    #[error("invalid value of {name}={value}: write {name}=true or {name}=false")]
    Value {
        /// The gate's name.
        name: String,
        /// What was written for its value.
        value: String,
    },
    /// Something that is not NAME=true or NAME=false.
    #[error("missing bool value for {0}: write {0}=true or {0}=false")]
    Missing(String),
}

impl Gate {
    /// Every gate.
    pub const ALL: [Gate; 5] = [
        Gate::StorageVersionApi,
        Gate::ApiServerIdentity,
        Gate::StorageVersionHash,
        Gate::StorageVersionVoting,
        Gate::AllowUnsafeMalformedObjectDeletion,
    ];

    /// The name, as Kubernetes writes it.
    pub fn name(self) -> &'static str {
        match self {
            Gate::StorageVersionApi => "StorageVersionAPI",
            Gate::ApiServerIdentity => "APIServerIdentity",
            Gate::StorageVersionHash => "StorageVersionHash",
            Gate::StorageVersionVoting => "StorageVersionVoting",
            Gate::AllowUnsafeMalformedObjectDeletion => "AllowUnsafeMalformedObjectDeletion",
        }
    }
}

impl Gates {
    /// Whether a gate is on.
    pub fn is_on(&self, gate: Gate) -> bool {
        self.open[gate as usize]
    }

    /// Turns a gate on or off.
    pub fn set(&mut self, gate: Gate, on: bool) {
        self.open[gate as usize] = on;
    }

    /// Whether this server reports its storage versions. As in Kubernetes, that requires an identity.
    pub fn reports_storage_versions(&self) -> bool {
        self.is_on(Gate::StorageVersionApi) && self.is_on(Gate::ApiServerIdentity)
    }

    /// Changes the gates that a list like `A=true,B=false` names. A later mention of a gate overrides earlier ones.
    pub fn apply(&mut self, list: &str) -> Result<(), InvalidGates> {
        for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, value) = item.split_once('=').ok_or_else(|| InvalidGates::Missing(item.to_string()))?;
            let (name, value) = (name.trim(), value.trim());
            let gate = Gate::ALL.into_iter().find(|gate| gate.name() == name);
            let gate = gate.ok_or_else(|| InvalidGates::Unknown { name: name.to_string() })?;
            let on = match value.to_ascii_lowercase().as_str() {
                "true" | "t" | "1" => true,
                "false" | "f" | "0" => false,
                _ => return Err(InvalidGates::Value { name: name.to_string(), value: value.to_string() }),
            };
            self.set(gate, on);
        }
        Ok(())
    }
}

impl Default for Gates {
    fn default() -> Self {
        let mut gates = Gates { open: [true; Gate::ALL.len()] };
        gates.set(Gate::StorageVersionVoting, false);
        gates
    }
}

impl FromStr for Gates {
    type Err = InvalidGates;

    fn from_str(list: &str) -> Result<Self, InvalidGates> {
        let mut gates = Gates::default();
        gates.apply(list)?;
        Ok(gates)
    }
}

impl fmt::Display for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items: Vec<String> = Gate::ALL.map(|gate| format!("{}={}", gate.name(), self.is_on(gate))).to_vec();
        f.write_str(&items.join(","))
    }
}

fn known_names() -> String {
    Gate::ALL.map(Gate::name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_turns_gates_on_and_off_and_keeps_the_rest() {
        let check = |list: &str, expected: [bool; 5]| {
            let gates: Gates = list.parse().unwrap();
            assert_eq!(Gate::ALL.map(|gate| gates.is_on(gate)), expected, "{list}");
            assert_eq!(gates.to_string().parse(), Ok(gates));
        };
        check("", [true, true, true, false, true]);
        check("StorageVersionAPI=false", [false, true, true, false, true]);
        check(" StorageVersionVoting = True ,StorageVersionHash=0", [true, true, false, true, true]);
        check("APIServerIdentity=false,APIServerIdentity=true", [true, true, true, false, true]);
        check("AllowUnsafeMalformedObjectDeletion=false", [true, true, true, false, false]);
    }

    #[test]
    fn errors_name_the_invalid_gate() {
        let check = |list: &str, expected: &str| {
            let message = list.parse::<Gates>().unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        };
        check("Nonsense=true", "unrecognized feature gate: Nonsense; there are StorageVersionAPI, ");
        check("StorageVersionAPI", "missing bool value for StorageVersionAPI");
        check("StorageVersionAPI=maybe", "invalid value of StorageVersionAPI=maybe");
    }

    #[test]
    fn reporting_requires_an_identity() {
        assert!(Gates::default().reports_storage_versions());
        assert!(!"APIServerIdentity=false".parse::<Gates>().unwrap().reports_storage_versions());
    }
}
