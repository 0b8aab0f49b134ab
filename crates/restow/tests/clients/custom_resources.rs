//! CRDs and custom resources with kubectl, on each store.

use restow_testkit::{Cluster, On, Server, eventually_blocking};

/// A CRD with two versions, the first of which is stored.
pub(crate) const CRONTABS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: crontabs.stable.example.com}
spec:
  group: stable.example.com
  scope: Namespaced
  names: {plural: crontabs, kind: CronTab, shortNames: [ct], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: &schema {type: object, properties: {spec: {type: object, properties: {
      cronSpec: {type: string}, replicas: {type: integer, minimum: 1}}}, status: {type: object, properties: {
      replicas: {type: integer}}}}}}
    subresources: {status: {}}
  - name: v2
    served: true
    storage: false
    schema: {openAPIV3Schema: *schema}
    subresources: {status: {}}
";

pub(crate) fn storage_version(v1: bool, v2: bool) -> String {
    CRONTABS.replacen("storage: true", &format!("storage: {v1}"), 1).replacen(
        "    storage: false\n    schema: {openAPIV3Schema: *",
        &format!("    storage: {v2}\n    schema: {{openAPIV3Schema: *"),
        1,
    )
}

pub(crate) fn crontab(version: &str, name: &str, spec: &str) -> String {
    format!(
        "apiVersion: stable.example.com/{version}\nkind: CronTab\nmetadata: {{name: {name}, namespace: default}}\n\
         spec: {spec}\n"
    )
}

fn established(server: &Server, name: &str) {
    server.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", &format!("crd/{name}")]);
}

#[tokio::test]
async fn crds_are_created_changed_and_deleted_on_the_embedded_store() {
    crds_are_created_changed_and_deleted(On::Embedded).await;
}

#[tokio::test]
async fn crds_are_created_changed_and_deleted_on_etcd() {
    crds_are_created_changed_and_deleted(On::Etcd).await;
}

/// One after the other on the same server, which costs less than a server each.
async fn crds_are_created_changed_and_deleted(on: On) {
    let cluster = Cluster::one(on).await;
    a_crd_is_created_changed_and_deleted(&cluster);
    a_deleted_crd_waits_for_its_objects(&cluster);
    names_that_are_taken_are_refused_until_they_are_free(&cluster);
    schemas_validate_default_and_prune(&cluster);
}

fn a_crd_is_created_changed_and_deleted(cluster: &Cluster) {
    let server = &cluster.servers[0];
    let definition = cluster.file("crd.yaml", CRONTABS);
    cluster.kubectl(&["apply", "-f", &definition]);
    established(server, "crontabs.stable.example.com");
    let get = |what: &str, path: &str| cluster.kubectl(&["get", what, "-o", &format!("jsonpath={path}")]);
    let crd = |path: &str| get("crd/crontabs.stable.example.com", path);
    assert_eq!(
        crd("{.status.acceptedNames.listKind} {.status.storedVersions} {.spec.conversion.strategy}"),
        r#"CronTabList ["v1"] None"#
    );
    let object = cluster.file("object.yaml", &crontab("v1", "mine", "{cronSpec: '* * * * *', replicas: 2}"));
    assert!(cluster.kubectl(&["apply", "-f", &object]).contains("created"));
    assert!(cluster.kubectl(&["apply", "-f", &object]).contains("unchanged"));
    assert!(cluster.kubectl(&["get", "ct"]).contains("mine"));
    assert!(cluster.kubectl(&["get", "all"]).contains("crontab.stable.example.com/mine"));
    assert_eq!(get("crontabs.v2.stable.example.com/mine", "{.apiVersion}"), "stable.example.com/v2");
    let hash = |version: &str| {
        let list = cluster.kubectl(&["get", "--raw", &format!("/apis/stable.example.com/{version}")]);
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        list["resources"][0]["storageVersionHash"].as_str().unwrap().to_string()
    };
    let first = hash("v1");
    assert_eq!(hash("v2"), first, "the hash is the storage version's in every version");

    let patch = ["patch", "ct", "mine", "--type=merge", "-p"];
    cluster.kubectl(&[patch.as_slice(), &[r#"{"spec":{"replicas":3}}"#]].concat());
    cluster.kubectl(&[patch.as_slice(), &[r#"{"status":{"replicas":3}}"#, "--subresource=status"]].concat());
    assert_eq!(get("ct/mine", "{.metadata.generation} {.status.replicas}"), "2 3");

    let definition = cluster.file("crd.yaml", &storage_version(false, true));
    cluster.kubectl(&["apply", "-f", &definition]);
    assert_eq!(crd("{.status.storedVersions}"), r#"["v1","v2"]"#);
    eventually_blocking("the hash follows", || hash("v1") != first);
    let before = get("ct/mine", "{.metadata.resourceVersion}");
    cluster.kubectl(&[patch.as_slice(), &["{}"]].concat());
    let migrated = get("ct/mine", "{.metadata.resourceVersion}");
    assert_ne!(migrated, before, "a write that changes nothing moves the object to the new version");
    cluster.kubectl(&[patch.as_slice(), &["{}"]].concat());
    assert_eq!(get("ct/mine", "{.metadata.resourceVersion}"), migrated, "after which it is current");

    let without = storage_version(false, true).replacen("name: v1", "name: v3", 1);
    let refused = server.kubectl_fails(&["apply", "-f", &cluster.file("crd.yaml", &without)]);
    assert!(refused.contains("v1 was previously a storage version, and must remain in spec.versions"), "{refused}");
    let status = |versions: &str| format!(r#"{{"status":{{"storedVersions":{versions}}}}}"#);
    let trim = ["patch", "crd", "crontabs.stable.example.com", "--subresource=status", "--type=merge", "-p"];
    let refused = server.kubectl_fails(&[trim.as_slice(), &[&status(r#"["v1"]"#)]].concat());
    assert!(refused.contains("must have the storage version v2"), "{refused}");
    cluster.kubectl(&[trim.as_slice(), &[&status(r#"["v2"]"#)]].concat());
    cluster.kubectl(&["apply", "-f", &cluster.file("crd.yaml", &without)]);
    eventually_blocking("the removed version is not served", || {
        !cluster.kubectl(&["api-versions"]).contains("stable.example.com/v1\n")
    });

    cluster.kubectl(&["delete", "crd", "crontabs.stable.example.com", "--timeout=60s"]);
    // Read by its path, because kubectl caches the earlier versions.
    let listed = || server.try_kubectl(&["get", "--raw", "/apis/stable.example.com/v1/namespaces/default/crontabs"]);
    eventually_blocking("the resource is gone", || !listed().status.success());
    cluster.kubectl(&["apply", "-f", &cluster.file("crd.yaml", CRONTABS)]);
    established(server, "crontabs.stable.example.com");
    eventually_blocking("it is served again", || listed().status.success());
    let list: serde_json::Value = serde_json::from_slice(&listed().stdout).unwrap();
    assert_eq!(list["items"], serde_json::json!([]), "its objects went with the definition");
}

fn a_deleted_crd_waits_for_its_objects(cluster: &Cluster) {
    let server = &cluster.servers[0];
    cluster.kubectl(&["apply", "-f", &cluster.file("crd.yaml", CRONTABS)]);
    established(server, "crontabs.stable.example.com");
    let held = crontab("v1", "held", "{}").replace("name: held", "name: held, finalizers: [example.com/hold]");
    cluster.kubectl(&["apply", "-f", &cluster.file("held.yaml", &held)]);
    cluster.kubectl(&["delete", "crd", "crontabs.stable.example.com", "--wait=false"]);
    let late = cluster.file("late.yaml", &crontab("v1", "late", "{}"));
    eventually_blocking("no new objects are taken", || !server.try_kubectl(&["create", "-f", &late]).status.success());
    eventually_blocking("what is held is marked", || {
        !cluster.kubectl(&["get", "ct", "held", "-o", "jsonpath={.metadata.deletionTimestamp}"]).is_empty()
    });
    cluster.kubectl(&["patch", "ct", "held", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#]);
    cluster.kubectl(&["wait", "--for=delete", "crd/crontabs.stable.example.com", "--timeout=60s"]);
}

fn names_that_are_taken_are_refused_until_they_are_free(cluster: &Cluster) {
    let server = &cluster.servers[0];
    cluster.kubectl(&["apply", "-f", &cluster.file("crd.yaml", CRONTABS)]);
    established(server, "crontabs.stable.example.com");
    let other = CRONTABS.replace("crontabs", "others").replace("shortNames: [ct]", "shortNames: [ot]");
    cluster.kubectl(&["apply", "-f", &cluster.file("other.yaml", &other)]);
    let condition = |kind: &str, field: &str| {
        let path = format!("jsonpath={{.status.conditions[?(@.type==\"{kind}\")].{field}}}");
        cluster.kubectl(&["get", "crd", "others.stable.example.com", "-o", &path])
    };
    eventually_blocking("the conflict is reported", || condition("NamesAccepted", "reason") == "ListKindConflict");
    assert_eq!(condition("NamesAccepted", "message"), "\"CronTabList\" is already in use");
    assert_eq!(condition("Established", "status"), "False");
    cluster.kubectl(&["delete", "crd", "crontabs.stable.example.com", "--timeout=60s"]);
    established(server, "others.stable.example.com");
    eventually_blocking("the freed names are served", || server.try_kubectl(&["get", "ot"]).status.success());
}

#[tokio::test]
async fn a_crd_is_served_by_every_server_on_the_same_etcd() {
    let cluster = Cluster::on_etcd(&["1.37", "1.37"]).await;
    let [first, second] = cluster.servers.as_slice() else { panic!("two servers were started") };
    first.kubectl(&["apply", "-f", &cluster.file("crd.yaml", CRONTABS)]);
    established(second, "crontabs.stable.example.com");
    let object = cluster.file("object.yaml", &crontab("v1", "mine", "{}"));
    eventually_blocking("the other server serves it", || {
        second.try_kubectl(&["apply", "-f", &object]).status.success()
    });
    assert!(first.kubectl(&["get", "ct"]).contains("mine"));
}

/// A CRD with everything that one version can have.
pub(crate) const WIDGETS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.shop.example.com}
spec:
  group: shop.example.com
  scope: Cluster
  names: {plural: widgets, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        description: Something to sell.
        properties:
          spec:
            type: object
            required: [color]
            properties:
              color: {type: string, enum: [red, green], description: What it looks like.}
              size: {type: integer, minimum: 1, default: 3}
          status: {type: object, properties: {size: {type: integer}}}
    subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}}
    additionalPrinterColumns:
    - {name: Color, type: string, jsonPath: .spec.color}
    - {name: Size, type: integer, jsonPath: .spec.size}
    selectableFields: [{jsonPath: .spec.color}]
";

pub(crate) fn widget(name: &str, spec: &str) -> String {
    format!("apiVersion: shop.example.com/v1\nkind: Widget\nmetadata: {{name: {name}}}\nspec: {spec}\n")
}

fn schemas_validate_default_and_prune(cluster: &Cluster) {
    let server = &cluster.servers[0];
    cluster.kubectl(&["apply", "-f", &cluster.file("crd.yaml", WIDGETS)]);
    established(server, "widgets.shop.example.com");
    let file = |name: &str, spec: &str| cluster.file("widget.yaml", &widget(name, spec));
    eventually_blocking("it is served", || {
        server.try_kubectl(&["apply", "-f", &file("a", "{color: red}")]).status.success()
    });
    let get = |path: &str| cluster.kubectl(&["get", "widget", "a", "-o", &format!("jsonpath={path}")]);
    assert_eq!(get("{.spec.size}"), "3", "the default is filled in");
    let refused = server.kubectl_fails(&["apply", "-f", &file("b", "{color: blue}")]);
    assert!(
        refused.contains("spec.color: Unsupported value: \"blue\": supported values: \"red\", \"green\""),
        "{refused}"
    );
    let refused = server.kubectl_fails(&["apply", "-f", &file("b", "{size: 1}")]);
    assert!(refused.contains("spec.color: Required value"), "{refused}");
    let refused = server.kubectl_fails(&["apply", "-f", &file("b", "{color: red, colour: red}")]);
    assert!(refused.contains("unknown field \"spec.colour\""), "{refused}");
    let pruned = ["apply", "--validate=false", "-f", &file("b", "{color: green, colour: red}")];
    cluster.kubectl(&pruned);
    let spec = cluster.kubectl(&["get", "widget", "b", "-o", "jsonpath={.spec}"]);
    assert_eq!(spec, r#"{"color":"green","size":3}"#, "what the schema does not know is dropped");

    let table = cluster.kubectl(&["get", "widgets"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows, [vec!["NAME", "COLOR", "SIZE"], vec!["a", "red", "3"], vec!["b", "green", "3"]]);
    assert_eq!(
        cluster.kubectl(&["get", "widgets", "--field-selector=spec.color=green", "-o", "name"]),
        "widget.shop.example.com/b\n"
    );
    cluster.kubectl(&["scale", "--replicas=5", "widget/a"]);
    assert_eq!(get("{.spec.size} {.metadata.generation}"), "5 2");
    let explained = cluster.kubectl(&["explain", "widget.spec.color"]);
    assert!(explained.contains("What it looks like."), "{explained}");
}
