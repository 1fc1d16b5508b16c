"""The API server, asked as its admin. kubectl would be a process for each question, and the tests ask many times a second."""
import json
import ssl
import urllib.error
import urllib.request

import kit
import yaml

# Where objects of a kind are; {} is their namespace.
PLACES = {
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Event": "/api/v1/namespaces/{}/events",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ResourceClaim": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
    "ResourceClaimTemplate": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates",
    "ResourceSlice": "/apis/resource.k8s.io/v1/resourceslices",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
}


class Api:
    def __init__(self, port, authority, token):
        self.address, self.token = f"https://127.0.0.1:{port}", token
        self.tls = ssl.create_default_context(cafile=authority)

    def open(self, path, method="GET", body=None, kind="application/json", seconds=30):
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind, "Accept": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        return urllib.request.urlopen(request, timeout=seconds, context=self.tls)

    def ask(self, path, method="GET", body=None, kind="application/json"):
        try:
            with self.open(path, method, body, kind) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise kit.Wrong(f"{method} {path}: {error.code} {error.read().decode(errors='replace')[:2000]}") from None

    def is_ready(self):
        try:
            with self.open("/readyz", seconds=5) as answer:
                return answer.read() == b"ok"
        except OSError:
            return False

    def list(self, kind, namespace="default"):
        return self.ask(PLACES[kind].format(namespace))["items"]

    def find(self, kind, name, namespace="default"):
        """The object, or nothing."""
        try:
            with self.open(f"{PLACES[kind].format(namespace)}/{name}") as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            kit.hold(error.code == 404, kind, name, error.code)
            return None

    def apply(self, documents):
        """Makes objects as they are described: a dictionary, or YAML with several."""
        for one in yaml.safe_load_all(documents) if isinstance(documents, str) else [documents]:
            place = PLACES[one["kind"]].format(one["metadata"].get("namespace", "default"))
            path = f"{place}/{one['metadata']['name']}?fieldManager=tests&force=true"
            self.ask(path, "PATCH", one, "application/apply-patch+yaml")

    def delete(self, kind, name, namespace="default", **options):
        return self.ask(f"{PLACES[kind].format(namespace)}/{name}", "DELETE", {"apiVersion": "v1", "kind": "DeleteOptions"} | options)

    def token_of(self, account, namespace):
        """A token of a service account, as a pod has it."""
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86400}}
        path = f"{PLACES['ServiceAccount'].format(namespace)}/{account}/token"
        return self.ask(path, "POST", request)["status"]["token"]

    def may(self, user, verb, resource, group=""):
        """Whether a user may do it in every namespace."""
        attributes = {"verb": verb, "resource": resource, "group": group}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"user": user, "resourceAttributes": attributes}}
        return self.ask("/apis/authorization.k8s.io/v1/subjectaccessreviews", "POST", review)["status"]["allowed"]
