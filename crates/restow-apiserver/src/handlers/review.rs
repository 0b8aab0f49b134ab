//! Kinds that are not stored: access reviews, token reviews, and the `token` subresource of service accounts.

use crate::error::ApiError;
use crate::handlers::{Call, HandlerResponse, subresource};
use crate::request::body;
use crate::resource::strategy::ReviewKind;
use restow_api::GroupResource;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::{self, TypeTable};
use restow_auth::review::{self, ReviewError};
use restow_auth::service_account::{Account, IssueError};

/// Evaluates a review.
pub(super) async fn review(call: &Call<'_>, kind: ReviewKind) -> Result<HandlerResponse, ApiError> {
    let now = restow_host::now();
    let access = call.handlers.access();
    let posted = body::object(call)?.into_value();
    let reviewed = match kind {
        ReviewKind::SubjectAccess => review::subject_access_review(access.authorizer(), &posted),
        ReviewKind::SelfSubjectAccess => review::self_subject_access_review(access.authorizer(), &call.user, &posted),
        ReviewKind::LocalSubjectAccess => {
            review::local_subject_access_review(access.authorizer(), &call.target.namespace, &posted)
        }
        ReviewKind::SelfSubjectRules => review::self_subject_rules_review(access.authorizer(), &call.user, &posted),
        ReviewKind::SelfSubject => Ok(review::self_subject_review(&call.user, &posted, now)),
        ReviewKind::Token => review::token_review(access.authenticators(), access, &posted, now),
    };
    let review = reviewed.map_err(|error| match error {
        ReviewError::BadRequest(message) => ApiError::BadRequest(message),
        ReviewError::Invalid(problems) => call.invalid("", problems),
    })?;
    Ok(HandlerResponse::Object { code: 201, object: Object::from_value(review).unwrap_or_default() })
}

/// Issues a token for a service account.
pub(super) async fn token(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    let access = call.handlers.access();
    let Some(tokens) = &access.authenticators().tokens else { return Err(ApiError::NoSuchResource) };
    let name = &call.target.name;
    let entry = call.handlers.objects().get(call.object_ref(name)).await?.ok_or_else(|| call.not_found(name))?;
    let account = call.resource.decode(&entry, &call.version).await?;
    let account = Account { namespace: &call.target.namespace, name, uid: account.uid() };
    let mut request = body::value(call)?;
    if let Some(kind) = TypeTable::shared().kind("authentication.k8s.io/v1", "TokenRequest") {
        let decoded = types::normalize(kind, request).map_err(|error| ApiError::BadRequest(error.to_string()))?;
        request = decoded.value;
    }
    let request = subresource::admit(call, request).await?.into_value();
    let issued = tokens.issue(&request, &account, access, restow_host::now());
    let issued = issued.map_err(|error| issue_error(call, error))?;
    if let Some(warning) = issued.warning {
        call.warn(warning);
    }
    Ok(HandlerResponse::Object { code: 201, object: Object::from_value(issued.response).unwrap_or_default() })
}

fn issue_error(call: &Call<'_>, error: IssueError) -> ApiError {
    match error {
        IssueError::Invalid(problems) => call.invalid(&call.target.name, problems),
        IssueError::BadRequest(message) => ApiError::BadRequest(message),
        IssueError::NotFound { resource, name } => match GroupResource::new("", resource) {
            Ok(resource) => ApiError::NotFound { resource, name },
            Err(_) => ApiError::NoSuchResource,
        },
        IssueError::Conflict { name, message, .. } => call.conflict(&name, message),
        IssueError::Internal(message) => ApiError::Internal(message),
    }
}
