"""Drives an API server with the official Python client. Arguments: a kubeconfig. Prints "ok" at the end."""

import sys
import threading
import time

from kubernetes import client, config, dynamic, watch
from kubernetes.client.exceptions import ApiException

NAMESPACE = "python"


def refused(code, reason, call, *args, **kwargs):
    """The call must be refused with this code and reason."""
    import json

    try:
        call(*args, **kwargs)
    except ApiException as error:
        status = json.loads(error.body)
        assert error.status == code, (error.status, code, error.body)
        assert status["reason"] == reason, error.body
        return status
    raise AssertionError(f"{call} should have been refused with {code}")


def config_map(name, labels=None, data=None):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels=labels), data=data)


def life_of_an_object(core):
    made = core.create_namespaced_config_map(NAMESPACE, config_map("one", {"app": "a"}, {"x": "1"}))
    assert made.metadata.uid and made.metadata.creation_timestamp
    assert core.read_namespaced_config_map("one", NAMESPACE).data == {"x": "1"}
    patched = core.patch_namespaced_config_map("one", NAMESPACE, {"data": {"y": "2"}})
    assert patched.data == {"x": "1", "y": "2"}, patched.data
    patched.data = {"z": "3"}
    replaced = core.replace_namespaced_config_map("one", NAMESPACE, patched)
    assert replaced.data == {"z": "3"}
    refused(409, "Conflict", core.replace_namespaced_config_map, "one", NAMESPACE, patched)
    refused(409, "AlreadyExists", core.create_namespaced_config_map, NAMESPACE, config_map("one"))
    refused(422, "Invalid", core.create_namespaced_config_map, NAMESPACE, config_map("Not_A_Name"))
    status = refused(404, "NotFound", core.read_namespaced_config_map, "nothing", NAMESPACE)
    assert status["details"]["name"] == "nothing"
    core.create_namespaced_config_map(NAMESPACE, config_map("rehearsed"), dry_run="All")
    refused(404, "NotFound", core.read_namespaced_config_map, "rehearsed", NAMESPACE)
    core.delete_namespaced_config_map("one", NAMESPACE)
    refused(404, "NotFound", core.read_namespaced_config_map, "one", NAMESPACE)


def pages_and_selectors(core):
    for number in range(7):
        labels = {"kind": "even" if number % 2 == 0 else "odd"}
        core.create_namespaced_config_map(NAMESPACE, config_map(f"list-{number}", labels))
    names, pages, token = [], 0, None
    while True:
        page = core.list_namespaced_config_map(NAMESPACE, label_selector="kind", limit=3, _continue=token)
        names += [item.metadata.name for item in page.items]
        pages += 1
        token = page.metadata._continue
        if not token:
            break
    assert names == [f"list-{number}" for number in range(7)], names
    assert pages == 3, pages
    odd = core.list_namespaced_config_map(NAMESPACE, label_selector="kind in (odd)")
    assert len(odd.items) == 3
    one = core.list_namespaced_config_map(NAMESPACE, field_selector="metadata.name=list-4")
    assert [item.metadata.name for item in one.items] == ["list-4"]
    everywhere = core.list_config_map_for_all_namespaces(label_selector="kind=even")
    assert len(everywhere.items) == 4
    refused(400, "BadRequest", core.list_namespaced_config_map, NAMESPACE, label_selector="a b c")
    core.delete_collection_namespaced_config_map(NAMESPACE, label_selector="kind")
    assert core.list_namespaced_config_map(NAMESPACE, label_selector="kind").items == []


def changes_are_watched(core):
    version = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version

    def act():
        core.create_namespaced_config_map(NAMESPACE, config_map("seen", {"watched": "yes"}))
        core.create_namespaced_config_map(NAMESPACE, config_map("unseen"))
        core.patch_namespaced_config_map("seen", NAMESPACE, {"data": {"x": "1"}})
        core.delete_namespaced_config_map("seen", NAMESPACE)

    actor = threading.Thread(target=act)
    actor.start()
    seen = []
    stream = watch.Watch().stream(
        core.list_namespaced_config_map, NAMESPACE, label_selector="watched", resource_version=version,
        timeout_seconds=60,
    )
    for event in stream:
        seen.append((event["type"], event["object"].metadata.name))
        if event["type"] == "DELETED":
            break
    actor.join()
    assert seen == [("ADDED", "seen"), ("MODIFIED", "seen"), ("DELETED", "seen")], seen


def kinds_found_by_discovery(api):
    found = dynamic.DynamicClient(api)
    leases = found.resources.get(api_version="coordination.k8s.io/v1", kind="Lease")
    assert leases.namespaced and "watch" in leases.verbs
    body = {"metadata": {"name": "held"}, "spec": {"holderIdentity": "me"}}
    made = leases.create(body=body, namespace=NAMESPACE)
    assert made.spec.holderIdentity == "me"
    changed = leases.patch(
        name="held", namespace=NAMESPACE, body={"spec": {"holderIdentity": "you"}},
        content_type="application/merge-patch+json",
    )
    assert changed.spec.holderIdentity == "you"
    assert [lease.metadata.name for lease in leases.get(namespace=NAMESPACE).items] == ["held"]
    leases.delete(name="held", namespace=NAMESPACE)
    assert leases.get(namespace=NAMESPACE).items == []


def deployments_are_patched_strategically(apps):
    container = {"name": "web", "image": "web:1"}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    apps.create_namespaced_deployment(NAMESPACE, {"metadata": {"name": "web"}, "spec": spec})
    more = {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "side:1"}]}}}}
    patched = apps.patch_namespaced_deployment("web", NAMESPACE, more)
    names = sorted(container.name for container in patched.spec.template.spec.containers)
    assert names == ["side", "web"], names
    assert patched.metadata.generation == 2


def main():
    config.load_kube_config(sys.argv[1])
    core, apps = client.CoreV1Api(), client.AppsV1Api()
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))
    life_of_an_object(core)
    pages_and_selectors(core)
    changes_are_watched(core)
    kinds_found_by_discovery(client.ApiClient())
    deployments_are_patched_strategically(apps)
    assert client.VersionApi().get_code().major == "1"
    core.delete_namespace(NAMESPACE)
    end = time.monotonic() + 60
    while any(item.metadata.name == NAMESPACE for item in core.list_namespace().items):
        assert time.monotonic() < end, "the namespace does not go"
        time.sleep(0.05)
    print("ok")


main()
