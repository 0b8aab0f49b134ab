//! The CRDs of real projects: every schema and every rule of them compiles, objects made from the schemas are
//! accepted, and objects with something wrong in them are refused.
//!
//! The CRDs are not a part of the repository. They are read from the folder that `RESTOW_TEST_CRDS` names, or from
//! `../shared/data/crds` next to the checkout; without them the tests are skipped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

use restow_schema::Schema;
use serde_json::{Value, json};

mod generate;

use generate::Generator;

fn folder() -> Option<PathBuf> {
    if let Ok(named) = std::env::var("RESTOW_TEST_CRDS") {
        return Some(PathBuf::from(named));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let beside = ["../shared/data/crds", "../../shared/data/crds"].map(|place| root.join(place));
    beside.into_iter().find(|folder| folder.is_dir())
}

/// Every schema, with the name of its CRD and version.
fn schemas() -> Vec<(String, Value)> {
    let Some(folder) = folder() else {
        restow_testkit::skip("set RESTOW_TEST_CRDS to a folder of CustomResourceDefinitions");
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "yaml")) {
        let text = std::fs::read_to_string(file).unwrap();
        for document in text.split("\n---") {
            let document = document.trim_start_matches('-');
            let crd: Value = serde_saphyr::from_str(document).unwrap_or(Value::Null);
            for version in crd["spec"]["versions"].as_array().into_iter().flatten() {
                let name =
                    format!("{} {}", crd["metadata"]["name"].as_str().unwrap(), version["name"].as_str().unwrap());
                found.push((name, version["schema"]["openAPIV3Schema"].clone()));
            }
        }
    }
    found
}

#[test]
fn schemas_of_real_projects_work() {
    let schemas = schemas();
    let (mut accepted, mut refused, mut broken) = (0, 0, Vec::new());
    for (name, written) in &schemas {
        let schema = match Schema::compile(written, "s") {
            Ok(schema) => schema,
            Err(problems) => {
                broken.push(format!(
                    "{name}: {}",
                    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n    ")
                ));
                continue;
            }
        };
        for seed in 0..4 {
            let mut generator = Generator::new(seed);
            let mut object = generator.value(written, 0);
            object["apiVersion"] = json!("example.com/v1");
            object["kind"] = json!("Example");
            object["metadata"] = json!({"name": "example"});
            schema.default(&mut object);
            schema.prune(&mut object);
            let once = object.clone();
            schema.default(&mut object);
            assert!(schema.prune(&mut object).is_empty(), "{name}: pruning twice removes more");
            assert_eq!(object, once, "{name}: defaulting twice changes more");
            let clean = schema.validate(&object, None).is_empty();
            accepted += usize::from(clean);
            assert!(schema.validate(&object, Some(&object)).iter().all(|problem| problem.path != "spec"), "{name}");
            if clean && generator.spoil(written, &mut object) {
                let problems = schema.validate(&object, None);
                assert!(!problems.is_empty(), "{name}: a value of the wrong type is accepted in {object}");
                refused += 1;
            }
        }
    }
    eprintln!("{} schemas, {accepted} objects accepted, {refused} spoilt ones refused", schemas.len());
    assert!(broken.is_empty(), "{} of {} schemas do not compile:\n{}", broken.len(), schemas.len(), broken.join("\n"));
    if !schemas.is_empty() {
        assert!(schemas.len() >= 107 && accepted > 2 * schemas.len(), "too little was generated");
    }
}
