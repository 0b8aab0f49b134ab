//! CronJobs: the schedule and the time zone. What is shared is in `workloads.rs`.

use crate::builtin::kinds::pod::spec;
use crate::builtin::kinds::workloads;
use crate::resource::strategy::Strategy;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;

pub(super) struct CronJob;

impl Strategy for CronJob {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        let template = object.at(&["spec", "jobTemplate", "spec", "template"]);
        let restart = ["spec", "jobTemplate", "spec", "template", "spec", "restartPolicy"];
        let mut problems = workloads::number_problems(object);
        problems.extend(schedule_problem(object.text(&["spec", "schedule"])));
        problems.extend(spec::template_problems(template, "spec.jobTemplate.spec.template", &[]));
        problems.extend(workloads::restart_problem(object, &restart));
        problems.extend(zone_problem(object));
        problems
    }
}

/// A schedule has five fields, or is a macro such as `@daily`.
fn schedule_problem(schedule: &str) -> Option<FieldError> {
    let field = "spec.schedule";
    if schedule.is_empty() {
        return Some(FieldError::required(field, ""));
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if schedule.starts_with('@') || fields.len() == 5 {
        return None;
    }
    let detail = format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" "));
    Some(FieldError::invalid(field, &schedule.into(), detail))
}

/// A time zone name has letters, digits and `_+-/`.
fn zone_problem(object: &Object) -> Option<FieldError> {
    let (field, zone) = ("spec.timeZone", object.at(&["spec", "timeZone"])?);
    let known = |letter: char| letter.is_ascii_alphanumeric() || "_+-/".contains(letter);
    match zone.as_str()? {
        "" => Some(FieldError::invalid(field, zone, "timeZone must be nil or non-empty string")),
        name if name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.chars().all(known) => None,
        name => Some(FieldError::invalid(field, zone, format!("unknown time zone {name}"))),
    }
}
