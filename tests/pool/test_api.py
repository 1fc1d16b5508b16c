"""Judges of the manager's API: schemathesis reads its OpenAPI document and tries everything it allows and forbids;
promtool reads its metrics."""

import http.client
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time

# More are tried by hand: DXPU_API_EXAMPLES=200.
EXAMPLES = os.environ.get("DXPU_API_EXAMPLES", "10")


def schemathesis(pool, *arguments):
    """Every path, within and without its schema; a failure is printed with the request that shows it."""
    command = [str(pathlib.Path(sys.executable).parent / "schemathesis"), "--config-file"]
    command += [str(pathlib.Path(__file__).parent / "schemathesis.toml"), "run", f"{pool.url}/openapi.json"]
    command += ["--tls-verify", str(pool.authority), "--max-examples", EXAMPLES, "--seed", "1", "--workers", "1"]
    command += ["--generation-database", "none", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=pool.folder, timeout=1500)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    return done.stdout


def test_the_api_keeps_what_its_document_promises(pool):
    schemathesis(pool, "--header", f"Authorization: Bearer {pool.token}")
    # It has not worn the manager out, nor broken it.
    assert pool.ask("GET", "/v1/gpus").status_code == 200
    answers = pool.ask("GET", "/metrics").text
    served = {int(code) for code in re.findall(r'dxpu_http_requests_total\{[^}]*code="(\d+)"\}', answers)}
    assert {200, 201, 400, 404, 405} <= served and 500 not in served, served


def test_a_box_may_say_what_it_likes(empty_pool):
    """The one route that only boxes may use, asked by a box."""
    certificate, key = empty_pool.join("rack1-a")
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    arguments = ["--include-operation-id", "boxes_report", "--checks", checks + ",negative_data_rejection"]
    schemathesis(empty_pool, *arguments, "--request-cert", certificate, "--request-cert-key", key)
    assert empty_pool.ask("GET", "/v1/boxes").status_code == 200


def test_a_host_may_say_what_it_likes(empty_pool):
    """The one route that only hosts may use, asked by a host."""
    certificate, key = empty_pool.join("hv-7", kind="host")
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    arguments = ["--include-operation-id", "hosts_report", "--checks", checks + ",negative_data_rejection"]
    schemathesis(empty_pool, *arguments, "--request-cert", certificate, "--request-cert-key", key)
    assert empty_pool.ask("GET", "/v1/hosts").status_code == 200


def test_strangers_and_tenants_are_refused_in_the_words_of_the_document(pool):
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    schemathesis(pool, "--checks", checks, "--phases", "examples,coverage")
    tenant = pool.make_token("user", "spiffe://dxpu/tenant/vision/ada")
    schemathesis(pool, "--checks", checks, "--phases", "examples,coverage", "--header", f"Authorization: Bearer {tenant}")


def test_a_stranger_who_asks_and_asks_is_told_to_connect_anew(empty_pool):
    """A stranger's connection is closed after 10 s. A request that is on its way then would get no answer."""
    host, port = empty_pool.url.removeprefix("https://").split(":")
    context = ssl.create_default_context(cafile=str(empty_pool.authority))
    connection = http.client.HTTPSConnection(host, int(port), timeout=10, context=context)
    connection.connect()
    until = time.monotonic() + 9
    while time.monotonic() < until:
        connection.request("GET", "/v1/gpus")
        answer = connection.getresponse()
        assert answer.status == 401, answer.read()
        answer.read()
        if answer.getheader("Connection") == "close":
            break
        time.sleep(0.05)
    assert connection.sock is None, "the stranger heard nothing, and the connection has a second left"
    connection.request("GET", "/v1/gpus", headers={"Authorization": f"Bearer {empty_pool.token}"})
    answer = connection.getresponse()
    assert answer.status == 200 and answer.getheader("Connection") is None, answer.getheaders()
    connection.close()


def test_a_refused_request_leaves_its_connection_usable(empty_pool):
    """The head comes first and the body a moment later, as many clients send them."""
    host, port = empty_pool.url.removeprefix("https://").split(":")
    context = ssl.create_default_context(cafile=str(empty_pool.authority))
    with socket.create_connection((host, int(port)), timeout=10) as plain:
        with context.wrap_socket(plain, server_hostname=host) as connection:
            # Refused for want of a token, of such a path, of such a method, and of a common protocol.
            for method, path, protocol, code in [
                ("POST", "/v1/leases", 3, 401),
                ("POST", "/v1/nothing", 3, 404),
                ("PUT", "/v1/leases", 3, 405),
                ("POST", "/v1/leases", 99, 400),
                ("POST", "/v1/leases", 3, 401),
            ]:
                head = f"{method} {path} HTTP/1.1\r\nHost: pool\r\nDxpu-Protocol: {protocol}\r\n"
                head += "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n"
                connection.sendall(head.encode())
                time.sleep(0.2)
                connection.sendall(b"{}")
                answer = http.client.HTTPResponse(connection)
                answer.begin()
                assert answer.status == code, (path, protocol, answer.read())
                answer.read()


def test_promtool_accepts_the_metrics(pool):
    assert shutil.which("promtool"), "promtool is missing; run scripts/setup"
    assert pool.ask("POST", "/v1/leases", json={"tenant": "vision"}).status_code == 201
    text = pool.ask("GET", "/metrics").text
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    complaints = (done.stdout + done.stderr).splitlines()
    # NVIDIA's exporter spells this label so, and dashboards ask for it.
    ours = [line for line in complaints if "label names should be written in 'snake_case'" not in line]
    assert not ours, "\n".join(ours)
    assert done.returncode in (0, 3), done.returncode
    measured = ["DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE"]
    for metric in [*measured, "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_OCCUPANCY", "DCGM_FI_PROF_DRAM_ACTIVE"]:
        assert len(re.findall(rf"^{metric}\{{", text, re.MULTILINE)) == 2, metric
    assert re.search(r'^dxpu_gpus\{model="H200",state="leased"\} 1$', text, re.MULTILINE), text
