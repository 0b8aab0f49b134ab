//! `TokenReview`: authenticates a token.

use crate::authenticate::{AuthenticationError, Authenticators, Secret};
use crate::posted::Posted;
use crate::review::{ReviewError, with_status};
use crate::service_account::ServiceAccounts;
use crate::user::Authenticated;
use jiff::Timestamp;
use restow_apimachinery::typed;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenReviewSpec {
    token: String,
    audiences: Vec<String>,
}

/// Answers a `TokenReview`. Without audiences in its spec, the token must be valid for this API server.
pub fn token_review(
    authenticators: &Authenticators,
    accounts: &dyn ServiceAccounts,
    request: &Value,
    now: Timestamp,
) -> Result<Value, ReviewError> {
    let Posted { spec: TokenReviewSpec { token, mut audiences }, .. } = typed::read(request)?;
    if token.is_empty() {
        return Err(ReviewError::BadRequest("token is required for TokenReview in authentication".into()));
    }
    if audiences.is_empty() {
        audiences.clone_from(&authenticators.api_audiences);
    }
    let outcome = authenticators.authenticate_token(Secret(&token), Some(&audiences), accounts, now);
    Ok(with_status(request, status(outcome)))
}

fn status(outcome: Result<Authenticated, AuthenticationError>) -> Value {
    match outcome {
        Ok(Authenticated { user, audiences }) => {
            json!({"authenticated": true, "user": user.authenticated().to_user_info(), "audiences": audiences})
        }
        Err(error) => json!({"user": {}, "error": error.to_string()}),
    }
}
