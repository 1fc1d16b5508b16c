"""Who hears of the end of an asynchronous invocation: boto3 sets it, and the function that is told is an ordinary one."""

import json

import pytest
from botocore.exceptions import ClientError
from conftest import deploy, until

WORK = """
def handler(event, context):
    if event.get("fail"):
        raise ValueError("as it was told")
    return {"double": event["n"] * 2}
"""

NOTE = """
import json
def handler(event, context):
    with open(LOG, "a") as log:
        log.write(json.dumps(event) + "\\n")
"""


@pytest.fixture(scope="module")
def log(folder, ada):
    path = folder / "told"
    path.touch()
    path.chmod(0o666)
    deploy(ada, "work", WORK)
    for name in ("glad", "sorry"):
        deploy(ada, name, f"LOG = {str(path) + name!r}\n{NOTE}")
        (folder / f"told{name}").touch()
        (folder / f"told{name}").chmod(0o666)
    return path


def arn(client, name):
    return client.get_function_configuration(FunctionName=name)["FunctionArn"]


def told(log, name):
    return [json.loads(line) for line in open(str(log) + name)]


def send(client, payload):
    answer = client.invoke(FunctionName="work", InvocationType="Event", Payload=json.dumps(payload))
    return answer["ResponseMetadata"]["RequestId"]


def test_a_success_and_a_failure_go_to_their_destinations(ada, service, log):
    config = {"OnSuccess": {"Destination": arn(ada, "glad")}, "OnFailure": {"Destination": arn(ada, "sorry")}}
    put = ada.put_function_event_invoke_config(FunctionName="work", MaximumRetryAttempts=1, DestinationConfig=config)
    assert put["DestinationConfig"] == config and put["MaximumRetryAttempts"] == 1
    assert ada.get_function_event_invoke_config(FunctionName="work")["DestinationConfig"] == config
    listed = ada.list_function_event_invoke_configs(FunctionName="work")["FunctionEventInvokeConfigs"]
    assert [found["MaximumRetryAttempts"] for found in listed] == [1]

    good, bad = send(ada, {"n": 21}), send(ada, {"n": 1, "fail": True})
    glad = until(lambda: told(log, "glad"))[0]
    assert glad["requestContext"]["requestId"] == good and glad["requestContext"]["condition"] == "Success"
    assert glad["requestPayload"] == {"n": 21} and glad["responsePayload"] == {"double": 42}
    sorry = until(lambda: told(log, "sorry"))[0]
    assert sorry["requestContext"]["requestId"] == bad and sorry["requestContext"]["condition"] == "RetriesExhausted"
    assert sorry["requestContext"]["approximateInvokeCount"] == 2 and sorry["responseContext"]["functionError"] == "Unhandled"
    assert sorry["responsePayload"]["errorMessage"] == "as it was told"
    # The report is there as well, and each was told once.
    assert any(report["id"] == bad and not report["succeeded"] for report in service.reports(ada))
    assert len(told(log, "glad")) == 1 and len(told(log, "sorry")) == 1


def test_update_changes_what_it_names_and_put_replaces(ada, log):
    updated = ada.update_function_event_invoke_config(FunctionName="work", MaximumEventAgeInSeconds=90)
    assert updated["MaximumEventAgeInSeconds"] == 90 and updated["MaximumRetryAttempts"] == 1
    assert updated["DestinationConfig"]["OnSuccess"]["Destination"].endswith(":function:glad")
    replaced = ada.put_function_event_invoke_config(FunctionName="work", MaximumRetryAttempts=0)
    assert replaced["DestinationConfig"] == {"OnSuccess": {}, "OnFailure": {}} and replaced["MaximumEventAgeInSeconds"] == 21600
    ada.delete_function_event_invoke_config(FunctionName="work")
    assert ada.get_function_event_invoke_config(FunctionName="work")["MaximumRetryAttempts"] == 2


@pytest.mark.parametrize(
    "destination, why",
    [
        ("arn:aws:lambda:pool:bob:function:glad", "another tenant"),
        ("arn:aws:lambda:pool:ada:function:nobody", "no such function"),
        ("arn:aws:lambda:pool:ada:function:work", "its own destination"),
        ("arn:aws:sqs:pool:ada:queue", "queues"),
    ],
)
def test_what_is_no_function_of_the_tenant_is_refused(ada, log, destination, why):
    with pytest.raises(ClientError) as refused:
        ada.put_function_event_invoke_config(FunctionName="work", DestinationConfig={"OnFailure": {"Destination": destination}})
    assert refused.value.response["Error"]["Code"] == "InvalidParameterValueException"
    assert why in refused.value.response["Error"]["Message"]


def test_functions_that_name_each_other_come_to_an_end(ada, service, log, folder):
    deploy(ada, "ping", "def handler(event, context): return 1")
    deploy(ada, "pong", "def handler(event, context): return 1")
    for name, other in (("ping", "pong"), ("pong", "ping")):
        ada.put_function_event_invoke_config(FunctionName=name, DestinationConfig={"OnSuccess": {"Destination": arn(ada, other)}})
    ada.invoke(FunctionName="ping", InvocationType="Event", Payload=b"{}")

    def count():
        return sum(report["key"]["name"] in ("ping", "pong") for report in service.reports(ada))

    # The first, and sixteen more.
    until(lambda: count() == 17)
