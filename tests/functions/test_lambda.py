"""Functions deployed and invoked by boto3, run by awslambdaric."""

import base64
import json

import pytest
from botocore.exceptions import ClientError
from conftest import deploy, invoke, zipped

ECHO = """
import os
count = 0
def handler(event, context):
    global count
    count += 1
    print("handling", event)
    return {"event": event, "name": context.function_name, "memory": context.memory_limit_in_mb,
            "id": context.aws_request_id, "count": count, "left": context.get_remaining_time_in_millis(),
            "variable": os.environ.get("COLOUR"), "user": os.getuid(), "argv": __file__}
"""


def code_of(error):
    return error.value.response["Error"]["Code"]


def test_a_handler_packaged_for_lambda_runs_unmodified(ada):
    made = deploy(ada, "echo", ECHO, Environment={"Variables": {"COLOUR": "blue"}})
    assert made["State"] == "Active" and made["FunctionArn"].endswith(":function:echo")
    answer, error = invoke(ada, "echo", {"a": [1, "é", None]})
    assert error is None
    assert answer["event"] == {"a": [1, "é", None]} and answer["variable"] == "blue" and answer["name"] == "echo"
    assert answer["memory"] == "256" and 15_000 < answer["left"] <= 20_000
    again, _ = invoke(ada, "arn:aws:lambda:pool:ada:function:echo", {})
    assert again["count"] == 2 and again["id"] != answer["id"], "the instance was kept warm"


def test_what_is_deployed_is_listed_changed_and_deleted(ada):
    deploy(ada, "short", "def handler(event, context): return 1")
    ada.get_waiter("function_active_v2").wait(FunctionName="short")
    assert "short" in [found["FunctionName"] for found in ada.list_functions()["Functions"]]
    before = ada.get_function(FunctionName="short")["Configuration"]["CodeSha256"]
    changed = ada.update_function_code(FunctionName="short", ZipFile=zipped(app__py="def handler(e, c): return 2"))
    assert changed["CodeSha256"] != before
    assert invoke(ada, "short", {}) == (2, None)
    ada.update_function_configuration(FunctionName="short", Timeout=7, Environment={"Variables": {"A": "b"}})
    shown = ada.get_function_configuration(FunctionName="short")
    assert shown["Timeout"] == 7 and shown["Environment"]["Variables"] == {"A": "b"}
    ada.delete_function(FunctionName="short")
    with pytest.raises(ClientError) as error:
        ada.invoke(FunctionName="short")
    assert code_of(error) == "ResourceNotFoundException"


def test_errors_of_a_function_are_its_own(ada):
    deploy(ada, "fails", "def handler(event, context): raise ValueError('too red')")
    answer, error = invoke(ada, "fails", {})
    assert error == "Unhandled" and answer["errorType"] == "ValueError" and answer["errorMessage"] == "too red"
    deploy(ada, "broken", "import no_such_module")
    answer, error = invoke(ada, "broken", {})
    assert error == "Unhandled" and "no_such_module" in answer["errorMessage"], answer


def test_logs_are_returned_with_the_answer(ada):
    answer = ada.invoke(FunctionName="echo", Payload=json.dumps({"x": 1}), LogType="Tail")
    assert "handling {'x': 1}" in base64.b64decode(answer["LogResult"]).decode()


def test_a_dry_run_runs_nothing_and_tells_the_wait(ada):
    answer = ada.invoke(FunctionName="echo", InvocationType="DryRun")
    assert answer["StatusCode"] == 204
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-dxpu-queue-ahead"] == "0"


def test_limits_are_lambda_s(ada):
    with pytest.raises(ClientError) as error:
        ada.create_function(
            FunctionName="echo", Runtime="python3.11", Role="arn:aws:iam::0:role/a", Handler="a.b", Code={"ZipFile": zipped(a="")}
        )
    assert code_of(error) == "ResourceConflictException"
    with pytest.raises(ClientError) as error:
        deploy(ada, "long", "x = 1", Timeout=901)
    assert code_of(error) == "InvalidParameterValueException"
    with pytest.raises(ClientError) as error:
        ada.invoke(FunctionName="echo", Payload=json.dumps("x" * (7 << 20)))
    assert code_of(error) == "RequestTooLargeException"
    with pytest.raises(ClientError) as error:
        ada.invoke(FunctionName="echo", InvocationType="Event", Payload=json.dumps("x" * (300 << 10)))
    assert code_of(error) == "RequestTooLargeException"
    ada.put_function_concurrency(FunctionName="echo", ReservedConcurrentExecutions=0)
    with pytest.raises(ClientError) as error:
        ada.invoke(FunctionName="echo")
    assert code_of(error) == "TooManyRequestsException"
    ada.delete_function_concurrency(FunctionName="echo")
    assert invoke(ada, "echo", {})[1] is None


def test_people_use_the_command_line(service, ada, folder):
    (folder / "app.zip").write_bytes(zipped(app__py="def handler(event, context):\n print('seen')\n return event['n'] + 1"))
    key = ada.dxpu_key
    done = service.dxpu(key, "deploy", "plus", "--zip", str(folder / "app.zip"), "--memory", "256", "--timeout", "20")
    assert done.returncode == 0, done.stderr
    assert service.dxpu(key, "invoke", "plus", "--payload", '{"n": 41}').stdout.strip() == "42"
    assert "plus  python3.11  256 MB" in service.dxpu(key, "ls").stdout
    assert "seen" in service.dxpu(key, "logs", "plus").stdout
    assert service.dxpu(key, "deploy", "plus", "--zip", str(folder / "app.zip")).stdout == "plus is changed\n"
    assert service.dxpu(key, "rm", "plus").returncode == 0
    refused = service.dxpu(key, "invoke", "plus")
    assert refused.returncode == 65 and "ResourceNotFoundException" in refused.stderr


def test_instances_have_users_of_their_own(service, ada):
    answer, _ = invoke(ada, "echo", {})
    assert (answer["user"] >= 2_000_000) == service.is_private
