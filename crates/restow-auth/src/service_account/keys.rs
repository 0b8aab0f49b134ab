//! The keys that sign and verify tokens: ECDSA on P-256, in PEM.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey,
};
use sha2::{Digest, Sha256};
use std::fmt;
use thiserror::Error;

const PRIVATE_KEY: &str = "PRIVATE KEY";
const PUBLIC_KEY: &str = "PUBLIC KEY";
/// The bytes before the point in the DER form (SubjectPublicKeyInfo) of every public key on P-256.
const PUBLIC_KEY_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const POINT_BYTES: usize = 65;
const UNCOMPRESSED_POINT: u8 = 4;

/// A key that cannot be used.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The text is not a key, or a key of an unsupported type.
    #[error("not a usable key: {0}")]
    Format(&'static str),
    /// The system's random number generator failed.
    #[error("cannot read random bytes from the system")]
    Randomness,
}

/// The private key that signs tokens.
pub struct SigningKey {
    pair: EcdsaKeyPair,
    public: VerifyingKey,
}

/// A public key that verifies tokens.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifyingKey {
    point: Vec<u8>,
    id: String,
}

impl SigningKey {
    /// A new key, and its PEM form.
    pub fn generate() -> Result<(Self, String), KeyError> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        let document = document.map_err(|_| KeyError::Randomness)?;
        let text = pem::encode(&pem::Pem::new(PRIVATE_KEY, document.as_ref()));
        Ok((Self::from_pem(&text)?, text))
    }

    /// Reads the PEM form of a key.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let block = pem::parse(text).map_err(|_| KeyError::Format("the file is not PEM"))?;
        if block.tag() != PRIVATE_KEY {
            return Err(KeyError::Format(
                "it must be a PKCS#8 \"PRIVATE KEY\" (openssl pkcs8 -topk8 -nocrypt converts other forms)",
            ));
        }
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, block.contents(), &SystemRandom::new());
        let pair = pair.map_err(|_| KeyError::Format("it must be an ECDSA key on the curve P-256"))?;
        let public = VerifyingKey::from_point(pair.public_key().as_ref())?;
        Ok(SigningKey { pair, public })
    }

    /// The public key that verifies the signatures of this key.
    pub fn verifying_key(&self) -> &VerifyingKey {
        &self.public
    }

    /// Signs a message.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let signature = self.pair.sign(&SystemRandom::new(), message).map_err(|_| KeyError::Randomness)?;
        Ok(signature.as_ref().to_vec())
    }
}

impl VerifyingKey {
    /// Reads the PEM form of a public key.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let block = pem::parse(text).map_err(|_| KeyError::Format("the file is not PEM"))?;
        let point = block.contents().strip_prefix(&PUBLIC_KEY_PREFIX[..]).filter(|_| block.tag() == PUBLIC_KEY);
        Self::from_point(point.ok_or(KeyError::Format("it must be a \"PUBLIC KEY\" on the curve P-256"))?)
    }

    /// The PEM form.
    pub fn to_pem(&self) -> String {
        pem::encode(&pem::Pem::new(PUBLIC_KEY, self.der()))
    }

    /// The key id in tokens and in discovery: a hash of the key.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The two coordinates of the point.
    pub fn coordinates(&self) -> (&[u8], &[u8]) {
        self.point[1..].split_at(POINT_BYTES / 2)
    }

    /// Whether the signature of the message is valid.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &self.point).verify(message, signature).is_ok()
    }

    fn from_point(point: &[u8]) -> Result<Self, KeyError> {
        if point.len() != POINT_BYTES || point[0] != UNCOMPRESSED_POINT {
            return Err(KeyError::Format("it must hold an uncompressed point on the curve P-256"));
        }
        let mut key = VerifyingKey { point: point.into(), id: String::new() };
        key.id = URL_SAFE_NO_PAD.encode(Sha256::digest(key.der()));
        Ok(key)
    }

    fn der(&self) -> Vec<u8> {
        [&PUBLIC_KEY_PREFIX[..], &self.point].concat()
    }
}

/// Never prints the key.
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("id", &self.public.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifyingKey").field("id", &self.id).finish_non_exhaustive()
    }
}
