"""The files in deploy/kube: what the chart starts is what dxpu has, and what it may do is what it needs."""

import pathlib
import subprocess
import sys

import pytest
import yaml
from conftest import dxpu

KUBE = pathlib.Path(__file__).resolve().parents[2] / "deploy/kube"


def render(*settings):
    command = [sys.executable, KUBE / "render", *(word for setting in settings for word in ("--set", setting))]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}


def containers(objects):
    kinds = ("Deployment", "DaemonSet")
    return [(one["spec"]["template"]["spec"], one["spec"]["template"]["spec"]["containers"][0]) for (kind, _), one in objects.items() if kind in kinds]


def test_every_option_in_the_chart_is_one_of_dxpu():
    started = containers(render("controller.nodeSelector=[a=b]"))
    assert len(started) == 2
    if subprocess.run([dxpu(), "kube", "--help"], capture_output=True).returncode:
        pytest.skip("this dxpu was built without --features kube")
    for _, container in started:
        role, part, *options = container["args"]
        told = subprocess.run([dxpu(), role, part, "--help"], capture_output=True, text=True, check=True).stdout
        for option in options:
            assert f"{option.partition('=')[0]} <" in told, (option, told)


def test_the_parts_start_with_the_options_of_the_chart_and_their_own_defaults():
    if subprocess.run([dxpu(), "kube", "--help"], capture_output=True).returncode:
        pytest.skip("this dxpu was built without --features kube")
    for _, container in containers(render()):
        # There is no secret here. A part that gets as far as to miss it has taken every option.
        told = subprocess.run([dxpu(), *container["args"]], capture_output=True, text=True).stderr
        assert "/etc/dxpu/borrower/credential.json" in told and "invalid value" not in told, told


def test_the_parts_may_do_what_they_need_and_no_more():
    objects = render()
    rules = lambda kind, name: {
        (resource, verb) for rule in objects[kind, name]["rules"] for resource in rule["resources"] for verb in rule["verbs"]
    }
    assert rules("ClusterRole", "dxpu-node") == {("resourceclaims", "get")}
    assert not {verb for _, verb in rules("ClusterRole", "dxpu-controller")} & {"*", "deletecollection", "patch"}
    assert {resource for resource, _ in rules("ClusterRole", "dxpu-controller")} == {
        "resourceslices", "resourceclaims", "resourceclaims/status", "resourceclaims/driver",
    }
    for spec, container in containers(objects):
        secured = container["securityContext"]
        assert secured["capabilities"] == {"drop": ["ALL"]} and secured["readOnlyRootFilesystem"] and not secured["allowPrivilegeEscalation"]
        assert not {"hostPID", "hostIPC", "hostNetwork"} & spec.keys()


def test_what_the_runtime_mounts_is_under_the_same_name_in_the_plugin():
    spec, container = next(one for one in containers(render("node.kubeletDir=/k", "node.cdiDir=/c")) if "node" in one[1]["args"])
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    assert {"/k/plugins", "/k/plugins_registry", "/c"} < set(paths.values())
    for mount in container["volumeMounts"]:
        if mount["name"] in paths:
            assert mount["mountPath"] == paths[mount["name"]]


def test_examples_ask_for_what_the_chart_makes():
    classes = {name: one for (kind, name), one in render().items() if kind == "DeviceClass"}
    extended = {one["spec"]["extendedResourceName"] for one in classes.values()}
    asked, limits = set(), set()
    for path in sorted((KUBE / "examples").glob("*.yaml")):
        for one in yaml.safe_load_all(path.read_text()):
            if one["kind"] == "ResourceClaimTemplate":
                asked |= {request["exactly"]["deviceClassName"] for request in one["spec"]["spec"]["devices"]["requests"]}
            else:
                limits |= {name for container in one["spec"]["containers"] for name in container["resources"].get("limits", {})}
    assert asked == set(classes) and limits == extended
    assert render("deviceClass.extendedResourceName=nvidia.com/gpu")["DeviceClass", "gpu.dxpu.dev"]["spec"]["extendedResourceName"] == "nvidia.com/gpu"
