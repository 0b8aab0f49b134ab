//! Classifies the API server's response to rewriting one object.
//!
//! Codes and reasons decide and, where they are not sufficient, messages. Nothing is retried here: the class says what may
//! be done, and the caller does it.

use std::time::Duration;

/// An error response, reduced to what decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorResponse<'a> {
    /// The HTTP code; zero if there was no answer.
    pub code: u16,
    /// The reason of the Kubernetes status, such as "Conflict".
    pub reason: &'a str,
    /// The message of the Kubernetes status.
    pub message: &'a str,
    /// The Retry-After of the server.
    pub retry_after: Option<Duration>,
    /// The name of the object that the status names; empty when it names none.
    pub about: &'a str,
}

/// The class of an error response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseClass {
    /// A conflict: someone wrote the object meanwhile, or replaced it. It may be in any version: read it again.
    Moved,
    /// Not found: the object, or the resource. Only a read of the object shows which ([`absence`]).
    Absent,
    /// 429: fewer requests, and none before this time has passed.
    Overloaded(Duration),
    /// A conversion or admission webhook of this resource cannot be reached. No object can be rewritten.
    WebhookDown,
    /// A webhook was reached and did not answer for this object: it closed the connection, or timed out. Either it is down,
    /// or it fails on this object; the results of other objects decide ([`after_no_response`]).
    WebhookNoResponse,
    /// A transient error of the network or the server.
    TryAgain,
    /// This object is refused. Others may be accepted.
    Refused,
    /// A webhook does not support dry run, so nothing is known without writing.
    NoDryRun,
    /// Forbidden, whatever the object.
    NotAllowed,
}

impl ResponseClass {
    /// Whether the request may have been executed nevertheless, without an answer.
    pub fn leaves_open_what_was_written(self) -> bool {
        self == ResponseClass::TryAgain
    }
}

/// The delay after a 429 without Retry-After.
const DEFAULT_WAIT: Duration = Duration::from_secs(1);

/// Classifies the response to rewriting one object.
///
/// Admission comes first: a webhook that denies a request chooses the code of the response, which then means nothing.
pub fn classify(response: &ErrorResponse<'_>) -> ResponseClass {
    match denial(response.message) {
        Some(Denial::Request) => return ResponseClass::Refused,
        Some(Denial::DryRun) => return ResponseClass::NoDryRun,
        None => {}
    }
    if let Some(response) = unanswered_call(response) {
        return response;
    }
    match response.code {
        409 => ResponseClass::Moved,
        404 => ResponseClass::Absent,
        429 => ResponseClass::Overloaded(response.retry_after.unwrap_or(DEFAULT_WAIT)),
        401 => ResponseClass::NotAllowed,
        403 if is_about_permission(response) => ResponseClass::NotAllowed,
        0 | 408 | 502..=504 => ResponseClass::TryAgain,
        500 if response.retry_after.is_some() || is_passing(response.message) => ResponseClass::TryAgain,
        _ => ResponseClass::Refused,
    }
}

/// What is not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The object is deleted: the server names it in the status.
    Gone,
    /// The server does not serve the resource, or not in this version. That says nothing about the object.
    NotServed,
}

/// Classifies the response to a read of the object with this name; `None` if it is not a 404.
pub fn absence(response: &ErrorResponse<'_>, name: &str) -> Option<Absence> {
    let names_it = response.reason == "NotFound" && !name.is_empty() && response.about == name;
    (response.code == 404).then_some(if names_it { Absence::Gone } else { Absence::NotServed })
}

/// Classifies the response to a list request. No single object is the cause of a conflict.
pub fn classify_listing(response: &ErrorResponse<'_>) -> ResponseClass {
    match response.code {
        409 => ResponseClass::TryAgain,
        _ => classify(response),
    }
}

/// How often a request with a transient error is retried.
pub const MAX_RETRIES: u32 = 8;

/// What admission denies.
enum Denial {
    /// This request.
    Request,
    /// Any dry run.
    DryRun,
}

/// Whether admission denied a request. The words have to be where the API server itself puts them, at the beginning or
/// after the name of the object, because the message of a webhook or policy can quote anything.
fn denial(message: &str) -> Option<Denial> {
    if let Some(rest) = message.strip_prefix("admission webhook \"") {
        let (_, said) = rest.split_once('"')?;
        return match said {
            _ if said.starts_with(" denied the request") => Some(Denial::Request),
            " does not support dry run" => Some(Denial::DryRun),
            _ => None,
        };
    }
    let (_, cause) = message.split_once(" is forbidden: ")?;
    let is_policy = cause.starts_with("ValidatingAdmissionPolicy '") && cause.contains("' denied request: ");
    is_policy.then_some(Denial::Request)
}

/// What to do about an object for which a webhook did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterNoResponse {
    /// Try again.
    TryAgain,
    /// The webhook is mistaken for down.
    WebhookDown,
    /// The webhook answers for others, so this object is the cause.
    Refused,
}

/// How often an object is tried for which a webhook does not answer, while it answers for others.
pub const MAX_NO_RESPONSES: u32 = 3;
/// After so many calls in a row without an answer, single objects are not the cause.
const MAX_NO_RESPONSES_IN_A_ROW: u32 = 20;

/// What to do about an object for which a webhook did not answer so many times, and since its last answer for any object so
/// many times. `others` says whether other objects were rewritten in this pass.
pub fn after_no_response(of_object: u32, in_a_row: u32, others: OtherObjects) -> AfterNoResponse {
    match others {
        OtherObjects::GotNothing => AfterNoResponse::WebhookDown,
        OtherObjects::GotThrough if in_a_row >= MAX_NO_RESPONSES_IN_A_ROW => AfterNoResponse::WebhookDown,
        OtherObjects::GotThrough if of_object >= MAX_NO_RESPONSES => AfterNoResponse::Refused,
        OtherObjects::GotThrough => AfterNoResponse::TryAgain,
    }
}

/// The results of other objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherObjects {
    /// Some got through.
    GotThrough,
    /// None did, as far as known.
    GotNothing,
}

/// Classifies a webhook call without an answer; `None` for other errors. A webhook that answered is not down, and its
/// answer can quote anything. So the words have to be where the API server itself puts them, right after the name of the
/// webhook.
fn unanswered_call(response: &ErrorResponse<'_>) -> Option<ResponseClass> {
    let after = |start: &str| response.message.split_once(start).map(|(_, rest)| rest);
    let conversion = after("conversion webhook for ").and_then(|rest| rest.split_once(" failed: "));
    let admission = after("failed calling webhook \"").and_then(|rest| rest.split_once("\": failed to call webhook: "));
    let (_, cause) = conversion.or(admission).filter(|_| matches!(response.code, 500 | 503))?;
    if is_about_service(cause) {
        return Some(ResponseClass::WebhookDown);
    }
    let call = cause.strip_prefix("Post \"http").or_else(|| cause.strip_prefix("Post http"))?;
    let why = call.split_once("\": ").or_else(|| call.split_once(": ")).map_or("", |(_, why)| why);
    Some(if was_not_reached(why) { ResponseClass::WebhookDown } else { ResponseClass::WebhookNoResponse })
}

/// Whether the service of a webhook is not there.
fn is_about_service(cause: &str) -> bool {
    let is_missing = |rest: &str| rest.starts_with('"') && rest.trim_end().ends_with("not found");
    cause.starts_with("no endpoints available for service ")
        || cause.starts_with("no service port ")
        || cause.starts_with("could not get REST client: ")
        || cause.strip_prefix("service ").is_some_and(is_missing)
}

/// Whether the API server could not even send its request: no address, no connection, or no trust. These are the messages
/// of Go and of Rust.
fn was_not_reached(why: &str) -> bool {
    const SIGNS: [&str; 12] = [
        "connection refused",
        "no such host",
        "failed to lookup",
        "no route to host",
        "network is unreachable",
        "no agent available",
        "x509: ",
        "certificate",
        "tls: ",
        "tls handshake",
        "received fatal alert",
        "http response to https client",
    ];
    let lower = why.to_lowercase();
    let is_dialling = lower.starts_with("dial ") || lower.starts_with("proxyconnect ");
    is_dialling || is_about_service(why) || SIGNS.iter().any(|sign| lower.contains(sign))
}

/// The messages of the authorizer; those of admission differ.
fn is_about_permission(response: &ErrorResponse<'_>) -> bool {
    response.message.contains(" cannot patch resource ")
        || response.message.contains(" cannot update resource ")
        || response.message.contains(" cannot list resource ")
        || response.message.contains(" cannot get resource ")
}

/// Whether the server reports a transient error of its own. The answer of a webhook is not.
fn is_passing(message: &str) -> bool {
    !message.contains("webhook")
        && ["etcdserver: ", "context deadline exceeded", "connection refused", "leader changed", "request timed out"]
            .iter()
            .any(|sign| message.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(code: u16, reason: &str, message: &str, expected: ResponseClass) {
        let response = ErrorResponse { code, reason, message, retry_after: None, about: "" };
        assert_eq!(classify(&response), expected, "{code} {reason}: {message}");
    }

    #[test]
    fn an_object_that_someone_else_wrote_or_removed_is_no_failure() {
        check(
            409,
            "Conflict",
            "Operation cannot be fulfilled on widgets.example.com \"a\": the object has been modified; please apply your \
             changes to the latest version and try again",
            ResponseClass::Moved,
        );
        check(
            409,
            "Conflict",
            "Operation cannot be fulfilled on widgets.example.com \"a\": Precondition failed: UID in precondition: x, \
             UID in object meta: y",
            ResponseClass::Moved,
        );
        check(404, "NotFound", "widgets.example.com \"a\" not found", ResponseClass::Absent);
    }

    #[test]
    fn an_object_is_gone_only_if_a_read_names_it() {
        let read = |code, reason, about| {
            absence(&ErrorResponse { code, reason, message: "not found", retry_after: None, about }, "a")
        };
        assert_eq!(read(404, "NotFound", "a"), Some(Absence::Gone));
        // "the server could not find the requested resource" names nothing.
        assert_eq!(read(404, "NotFound", ""), Some(Absence::NotServed));
        assert_eq!(read(404, "NotFound", "b"), Some(Absence::NotServed));
        assert_eq!(read(404, "", "a"), Some(Absence::NotServed), "a proxy, not an API server");
        assert_eq!(read(410, "Gone", "a"), None);
        assert_eq!(read(500, "NotFound", "a"), None);
        let nameless = ErrorResponse { code: 404, reason: "NotFound", message: "", retry_after: None, about: "" };
        assert_eq!(absence(&nameless, ""), Some(Absence::NotServed));
    }

    #[test]
    fn an_object_that_is_not_accepted_is_refused_and_the_rest_go_on() {
        check(422, "Invalid", "Widget.example.com \"a\" is invalid: spec.size: Required value", ResponseClass::Refused);
        // A webhook may speak of a field of that name anywhere in the object.
        let template = "w \"a\" is invalid: spec.template.metadata.uid: Invalid value: field is immutable";
        check(422, "Invalid", template, ResponseClass::Refused);
        check(
            422,
            "Invalid",
            "w \"a\" is invalid: metadata.uid: Invalid value: field is immutable",
            ResponseClass::Refused,
        );
        check(410, "Gone", "gone", ResponseClass::Refused);
        check(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728", ResponseClass::Refused);
        check(403, "Forbidden", "widgets \"a\" is forbidden: ValidatingAdmissionPolicy denied", ResponseClass::Refused);
        check(400, "BadRequest", "admission webhook \"v.example.com\" denied the request: no", ResponseClass::Refused);
        check(
            500,
            "InternalError",
            "conversion webhook for example.com/v1, Kind=Widget failed: I cannot convert this",
            ResponseClass::Refused,
        );
    }

    #[test]
    fn a_denial_by_admission_is_a_refusal_with_any_code() {
        let webhook = "admission webhook \"v.example.com\" denied the request: try again later";
        let policy = "widgets \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no";
        for code in [400, 401, 403, 404, 408, 409, 422, 429, 500, 503] {
            check(code, "", webhook, ResponseClass::Refused);
            check(code, "", "admission webhook \"v\" denied the request without explanation", ResponseClass::Refused);
            check(code, "", policy, ResponseClass::Refused);
        }
        check(400, "BadRequest", "admission webhook \"v\" does not support dry run", ResponseClass::NoDryRun);
        let quota = "widgets \"a\" is forbidden: somebody wrote ' denied request: no";
        check(503, "", quota, ResponseClass::TryAgain);
        // The server itself, quoting somebody.
        let quoting = "the object has been modified: admission webhook \"v\" denied the request";
        check(409, "Conflict", quoting, ResponseClass::Moved);
    }

    #[test]
    fn a_webhook_that_cannot_be_reached_stops_everything() {
        check(
            500,
            "InternalError",
            "conversion webhook for example.com/v1, Kind=Widget failed: Post \"https://w.d.svc:443/c?timeout=30s\": dial \
             tcp 10.0.0.1:443: connect: connection refused",
            ResponseClass::WebhookDown,
        );
        check(
            500,
            "InternalError",
            "Internal error occurred: failed calling webhook \"v.example.com\": failed to call webhook: Post \
             \"https://w.d.svc:443/v?timeout=10s\": service \"w\" not found",
            ResponseClass::WebhookDown,
        );
    }

    #[test]
    fn a_webhook_that_answers_is_not_down_whatever_it_says() {
        let conversion = "conversion webhook for example.com/v1, Kind=Widget failed: ";
        for answer in [
            "configmaps \"defaults\" not found",
            "cannot ask the registry: Post \"https://registry/v2\": connection refused",
            "no defaults: no endpoints available for service \"x\"",
            "the service \"defaults\" is not found",
            "service \"defaults\" is slow",
            "the server is currently unable to handle the request",
        ] {
            check(500, "InternalError", &format!("{conversion}{answer}"), ResponseClass::Refused);
        }
        let denied = "admission webhook \"v\" denied the request: failed to call webhook: Post \"https://x\": refused";
        check(500, "InternalError", denied, ResponseClass::Refused);
        for (cause, expected) in [
            ("service \"w\" not found", ResponseClass::WebhookDown),
            ("no endpoints available for service \"w\"", ResponseClass::WebhookDown),
            ("Post \"https://w\": dial tcp 10.0.0.1:443: i/o timeout", ResponseClass::WebhookDown),
            ("Post \"https://w\": dial tcp: lookup w.d.svc on 10.0.0.10:53: no such host", ResponseClass::WebhookDown),
            (
                "Post \"https://w\": tls: failed to verify certificate: x509: unknown authority",
                ResponseClass::WebhookDown,
            ),
            ("Post \"https://w\": Connection refused (os error 111)", ResponseClass::WebhookDown),
            ("Post \"https://w\": invalid peer certificate: UnknownIssuer", ResponseClass::WebhookDown),
            ("Post \"https://w\": EOF", ResponseClass::WebhookNoResponse),
            ("Post \"https://w\": read tcp 10.0.0.1:443: connection reset by peer", ResponseClass::WebhookNoResponse),
            ("Post \"https://w\": context deadline exceeded", ResponseClass::WebhookNoResponse),
            ("Post \"https://w\": connection closed before message completed", ResponseClass::WebhookNoResponse),
        ] {
            check(500, "InternalError", &format!("{conversion}{cause}"), expected);
            let admission = format!(
                "Internal error occurred: failed calling webhook \"v.example.com\": failed to call webhook: {cause}"
            );
            check(500, "InternalError", &admission, expected);
        }
    }

    #[test]
    fn a_webhook_that_gives_no_answer_is_down_unless_others_get_through() {
        for (of_object, in_a_row, others, expected) in [
            (1, 1, OtherObjects::GotNothing, AfterNoResponse::WebhookDown),
            (9, 9, OtherObjects::GotNothing, AfterNoResponse::WebhookDown),
            (1, 1, OtherObjects::GotThrough, AfterNoResponse::TryAgain),
            (3, 3, OtherObjects::GotThrough, AfterNoResponse::Refused),
            (3, 20, OtherObjects::GotThrough, AfterNoResponse::WebhookDown),
        ] {
            assert_eq!(after_no_response(of_object, in_a_row, others), expected, "{of_object} {in_a_row} {others:?}");
        }
    }

    #[test]
    fn the_server_can_ask_for_patience_or_lack_permission() {
        check(429, "TooManyRequests", "too many requests", ResponseClass::Overloaded(DEFAULT_WAIT));
        let asks =
            ErrorResponse { code: 429, reason: "", message: "", retry_after: Some(Duration::from_secs(7)), about: "" };
        assert_eq!(classify(&asks), ResponseClass::Overloaded(Duration::from_secs(7)));
        check(401, "Unauthorized", "Unauthorized", ResponseClass::NotAllowed);
        let conflict = ErrorResponse { code: 409, reason: "Conflict", message: "", retry_after: None, about: "" };
        assert_eq!(classify_listing(&conflict), ResponseClass::TryAgain, "no object is the cause of it");
        check(0, "", "connection reset", ResponseClass::TryAgain);
        check(503, "ServiceUnavailable", "", ResponseClass::TryAgain);
        check(500, "InternalError", "etcdserver: leader changed", ResponseClass::TryAgain);
        check(
            403,
            "Forbidden",
            "widgets.example.com \"a\" is forbidden: User \"u\" cannot patch resource \"widgets\" in API group",
            ResponseClass::NotAllowed,
        );
    }

    #[test]
    fn only_an_answer_of_the_server_itself_says_that_nothing_was_written() {
        for (code, is_open) in
            [(0, true), (408, true), (502, true), (503, true), (504, true), (409, false), (429, false)]
        {
            let response = ErrorResponse { code, reason: "", message: "", retry_after: None, about: "" };
            assert_eq!(classify(&response).leaves_open_what_was_written(), is_open, "{code}");
        }
    }
}
