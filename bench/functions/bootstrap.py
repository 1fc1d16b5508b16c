"""A runtime for functions that needs the standard library alone: for machines without awslambdaric.

Speaks the Lambda Runtime API as a program named `bootstrap` does: asks for an invocation, calls the handler, answers, asks again.
"""

import os
import time

os.environ["BENCH_STARTED"] = repr(time.time())

import http.client  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402

ROOT = "/2018-06-01/runtime"


def main():
    connection = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])

    def say(path, value):
        connection.request("POST", ROOT + path, json.dumps(value), {"content-type": "application/json"})
        connection.getresponse().read()

    sys.path.insert(0, os.environ["LAMBDA_TASK_ROOT"])
    module, _, name = os.environ["_HANDLER"].rpartition(".")
    try:
        handler = getattr(importlib.import_module(module), name)
    except Exception as error:  # A function that cannot be imported is told to the service, as any runtime does.
        say("/init/error", {"errorType": type(error).__name__, "errorMessage": str(error)})
        raise
    while True:
        connection.request("GET", ROOT + "/invocation/next")
        answer = connection.getresponse()
        request, event = answer.headers["lambda-runtime-aws-request-id"], json.loads(answer.read())
        try:
            say(f"/invocation/{request}/response", handler(event, None))
        except Exception as error:
            say(f"/invocation/{request}/error", {"errorType": type(error).__name__, "errorMessage": str(error)})


main()
