//! All output formats of kubectl, describe, api-resources, explain and raw paths.

use restow_testkit::{Cluster, On};

#[tokio::test]
async fn objects_are_shown_in_every_output_format_on_the_embedded_store() {
    objects_are_shown_in_every_output_format(On::Embedded).await;
}

#[tokio::test]
async fn objects_are_shown_in_every_output_format_on_etcd() {
    objects_are_shown_in_every_output_format(On::Etcd).await;
}

async fn objects_are_shown_in_every_output_format(on: On) {
    let cluster = Cluster::one(on).await;
    cluster.kubectl(&["create", "configmap", "one", "--from-literal=x=1", "--from-literal=y=2"]);
    cluster.kubectl(&["create", "configmap", "two"]);
    cluster.kubectl(&["create", "secret", "generic", "hidden", "--from-literal=password=very-secret"]);
    let deployment = ["create", "deployment", "web", "--image=web:1", "--replicas=3"];
    cluster.kubectl(&deployment);
    forms_of_get(&cluster);
    descriptions(&cluster);
    discovery_commands(&cluster);
    raw_paths(&cluster);
}

fn forms_of_get(cluster: &Cluster) {
    let get = |form: &str| cluster.kubectl(&["get", "cm", "one", "-o", form]);
    let json: serde_json::Value = serde_json::from_str(&get("json")).unwrap();
    assert_eq!((&json["kind"], &json["data"]["x"]), (&"ConfigMap".into(), &"1".into()));
    assert!(get("yaml").contains("data:\n  x: \"1\"\n"));
    assert_eq!(get("name"), "configmap/one\n");
    assert_eq!(get("jsonpath={.metadata.name} {.data['x','y']}"), "one 1 2");
    assert_eq!(get("jsonpath-as-json={.data}").split_whitespace().collect::<String>(), r#"[{"x":"1","y":"2"}]"#);
    assert_eq!(get("go-template={{range $k, $v := .data}}{{$k}}={{$v}};{{end}}"), "x=1;y=2;");
    let columns = get("custom-columns=NAME:.metadata.name,X:.data.x");
    assert_eq!(columns.split_whitespace().collect::<Vec<_>>(), ["NAME", "X", "one", "1"]);
    let wide = cluster.kubectl(&["get", "deployments", "-o", "wide"]);
    for word in ["READY", "UP-TO-DATE", "CONTAINERS", "IMAGES", "0/3", "web:1"] {
        assert!(wide.contains(word), "{word} is missing in {wide}");
    }
    let sorted = cluster.kubectl(&["get", "cm", "--sort-by=.metadata.creationTimestamp", "-o", "name"]);
    // The config map that every namespace gets can be created at any time.
    let own: Vec<&str> = sorted.lines().filter(|line| !line.ends_with("kube-root-ca.crt")).collect();
    assert_eq!(own, ["configmap/one", "configmap/two"]);
    // The field to sort by is in the object, which comes with the table.
    let sorted = cluster.kubectl(&["get", "cm", "--sort-by=.data.x", "--no-headers"]);
    assert!(sorted.contains("one ") && sorted.contains("two "), "{sorted}");
    let list: serde_json::Value = serde_json::from_str(&cluster.kubectl(&["get", "cm,secrets", "-o", "json"])).unwrap();
    assert_eq!(list["kind"], "List");
    let labelled = cluster.kubectl(&["get", "deploy", "--show-labels", "--no-headers"]);
    assert!(labelled.contains("app=web"), "{labelled}");
    let chunked = cluster.kubectl(&["get", "clusterroles", "--chunk-size=10", "-o", "name"]);
    assert!(chunked.lines().count() > 20, "pages are put together");
    assert!(cluster.kubectl(&["get", "all", "-o", "name"]).contains("deployment.apps/web\n"));
    assert!(cluster.kubectl(&["get", "cm", "-A", "--no-headers"]).contains("default"));
}

fn descriptions(cluster: &Cluster) {
    let map = cluster.kubectl(&["describe", "cm", "one"]);
    assert!(map.contains("Name:         one") && map.contains("x:\n----\n1\n"), "{map}");
    let secret = cluster.kubectl(&["describe", "secret", "hidden"]);
    assert!(secret.contains("password:  11 bytes") && !secret.contains("very-secret"), "{secret}");
    let deployment = cluster.kubectl(&["describe", "deployment", "web"]);
    assert!(deployment.contains("3 desired") && deployment.contains("web:1"), "{deployment}");
    assert!(cluster.kubectl(&["describe", "namespace", "default"]).contains("Status:       Active"));
    assert!(cluster.kubectl(&["describe", "clusterrole", "view"]).contains("configmaps"));
}

fn discovery_commands(cluster: &Cluster) {
    let server = &cluster.servers[0];
    let resources = cluster.kubectl(&["api-resources", "-o", "wide"]);
    let maps = resources.lines().find(|line| line.starts_with("configmaps ")).unwrap();
    for word in ["cm", "v1", "true", "ConfigMap", "create,delete,deletecollection,get,list,patch,update,watch"] {
        assert!(maps.split_whitespace().any(|found| found == word), "{word} is missing in {maps}");
    }
    let namespaced = cluster.kubectl(&["api-resources", "--namespaced=false", "-o", "name"]);
    assert!(namespaced.contains("nodes\n") && !namespaced.contains("configmaps\n"), "{namespaced}");
    assert!(cluster.kubectl(&["api-versions"]).contains("apps/v1\n"));
    let explained = cluster.kubectl(&["explain", "deployment.spec.template.spec.containers.image"]);
    assert!(explained.contains("FIELD: image <string>"), "{explained}");
    assert!(cluster.kubectl(&["explain", "configmap", "--recursive"]).contains("binaryData"));
    let unknown = server.kubectl_fails(&["explain", "configmap.nothing"]);
    assert!(unknown.contains("does not exist"), "{unknown}");
    assert_eq!(cluster.kubectl(&["auth", "can-i", "create", "deployments"]), "yes\n");
    assert_eq!(server.try_kubectl(&["auth", "can-i", "get", "secrets", "--as=nobody"]).stdout, b"no\n");
    assert!(cluster.kubectl(&["auth", "can-i", "--list"]).contains("*.*"));
    assert!(cluster.kubectl(&["version"]).contains("Server Version: v1.37"));
    assert!(cluster.kubectl(&["cluster-info"]).contains("is running at"));
}

fn raw_paths(cluster: &Cluster) {
    let raw = |path: &str| cluster.kubectl(&["get", "--raw", path]);
    assert_eq!(raw("/livez"), "ok");
    assert!(raw("/readyz?verbose").contains("[+]"));
    let list: serde_json::Value = serde_json::from_str(&raw("/api/v1/namespaces/default/configmaps?limit=1")).unwrap();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert!(list["metadata"]["continue"].as_str().is_some_and(|token| !token.is_empty()));
    let missing = cluster.servers[0].kubectl_fails(&["get", "--raw", "/apis/nothing.example/v1"]);
    assert!(missing.contains("NotFound") || missing.contains("could not find"), "{missing}");
}
