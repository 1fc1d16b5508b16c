"""A client of Lambda's interface with the standard library alone, for machines without boto3: signs with SigV4."""

import base64
import datetime
import hashlib
import hmac
import http.client
import json


class Client:
    def __init__(self, port, key):
        self.port, self.id, self.secret = port, key["AWS_ACCESS_KEY_ID"], key["AWS_SECRET_ACCESS_KEY"]

    def ask(self, method, path, body=b"", headers=None, timeout=900):
        """The status, the headers and the body of an answer."""
        now = datetime.datetime.now(datetime.timezone.utc)
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        signed = {"host": f"127.0.0.1:{self.port}", "x-amz-date": stamp, **(headers or {})}
        names = ";".join(sorted(signed))
        listed = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
        digest = hashlib.sha256(body).hexdigest()
        scope = f"{day}/pool/lambda/aws4_request"
        request = hashlib.sha256(f"{method}\n{path}\n\n{listed}\n{names}\n{digest}".encode()).hexdigest()
        key = b"AWS4" + self.secret.encode()
        for part in (day, "pool", "lambda", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{request}".encode(), hashlib.sha256).hexdigest()
        signed["authorization"] = f"AWS4-HMAC-SHA256 Credential={self.id}/{scope}, SignedHeaders={names}, Signature={signature}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, signed)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def must(self, method, path, value):
        status, _, body = self.ask(method, path, json.dumps(value).encode())
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {body.decode(errors='replace')}")
        return json.loads(body or b"{}")

    def create(self, name, zip_file, runtime, handler, memory_mb, timeout_s, environment):
        self.must("POST", "/2015-03-31/functions", {
            "FunctionName": name, "Runtime": runtime, "Handler": handler, "Role": "arn:aws:iam::0:role/bench",
            "MemorySize": memory_mb, "Timeout": timeout_s, "Environment": {"Variables": environment},
            "Code": {"ZipFile": base64.b64encode(zip_file).decode()},
        })

    def invoke(self, name, event):
        """The function's answer; an error is raised."""
        path = f"/2015-03-31/functions/{name}/invocations"
        status, headers, body = self.ask("POST", path, json.dumps(event).encode())
        if status != 200 or any(header.lower() == "x-amz-function-error" for header in headers):
            raise RuntimeError(f"{name}: {status} {body.decode(errors='replace')[:500]}")
        return json.loads(body)
