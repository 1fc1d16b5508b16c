"""A Kubernetes cluster of one node on this machine, of real components, each a process with a log."""
import base64
import hashlib
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tarfile

import kit
from api import Api

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAUSE = "localhost/pause:1"
PROGRAMS = "localhost/programs:1"
NODE = "n1"
# Roles of the components, as the API server knows them by token: user and groups.
USERS = {
    "admin": ("admin", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    "controller-manager": ("system:kube-controller-manager", ""),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
}


class Cluster:
    def __init__(self, programs):
        self.bin = pathlib.Path(programs).resolve()
        self.folder = pathlib.Path(kit.scratch) / "cluster"
        self.folder.mkdir()
        self.processes = {}
        self.kubelet_dir = self.folder / "kubelet"
        self.cdi_dir = self.folder / "cdi"
        self.run_dir = self.folder / "run-dxpu"
        self.socket = f"unix://{self.folder}/containerd.sock"

    def tool(self, name):
        own = self.bin / name
        found = str(own) if own.exists() else shutil.which(name)
        kit.hold(found, f"there is no {name}, neither in {self.bin} nor in PATH")
        return found

    def start(self, name, *command, environment=None):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                    env=environment or os.environ.copy())
        return self.processes[name]

    def log(self, name, characters=3000):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-characters:] if path.exists() else ""

    def kill(self, name):
        process = self.processes[name]
        process.kill()
        process.wait()

    def __enter__(self):
        try:
            self.make_keys()
            self.start_control_plane()
            self.start_node()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if "containerd" in self.processes and self.processes["containerd"].poll() is None:
            self.kill_containers()
        for process in reversed(self.processes.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in reversed(self.processes.values()):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # The control plane.

    def make_keys(self):
        run = lambda *words: subprocess.run(words, cwd=self.folder, check=True, capture_output=True)
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test-ca", "-keyout", "ca.key", "-out", "ca.pem")
        run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kube-apiserver", "-keyout", "api.key", "-out", "api.csr",
            "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default")
        run("openssl", "x509", "-req", "-in", "api.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-out", "api.pem",
            "-copy_extensions", "copy")
        run("openssl", "genrsa", "-out", "accounts.key", "2048")
        self.tokens = {name: os.urandom(16).hex() for name in USERS}
        lines = [f'{self.tokens[name]},{user},{name}' + (f',"{groups}"' if groups else "") for name, (user, groups) in USERS.items()]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")

    def start_control_plane(self):
        at = self.folder
        client, peer, self.port = (kit.free_port() for _ in range(3))
        self.start("etcd", self.tool("etcd"), "--data-dir", at / "etcd", "--listen-client-urls", f"http://127.0.0.1:{client}",
                   "--advertise-client-urls", f"http://127.0.0.1:{client}", "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                   "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}", "--initial-cluster", f"default=http://127.0.0.1:{peer}")
        self.start("kube-apiserver", self.tool("kube-apiserver"), "--etcd-servers", f"http://127.0.0.1:{client}", "--secure-port", self.port,
                   "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--tls-cert-file", at / "api.pem", "--tls-private-key-file", at / "api.key",
                   "--client-ca-file", at / "ca.pem", "--token-auth-file", at / "tokens.csv", "--authorization-mode", "Node,RBAC",
                   "--enable-admission-plugins", "NodeRestriction", "--service-account-issuer", "https://kubernetes.default",
                   "--service-account-key-file", at / "accounts.key", "--service-account-signing-key-file", at / "accounts.key",
                   "--service-cluster-ip-range", "10.96.0.0/16", "--endpoint-reconciler-type", "none")
        for name in USERS:
            self.kubeconfig(name, self.tokens[name])
        self.api = Api(self.port, self.folder / "ca.pem", self.tokens["admin"])
        kit.until(lambda: f"the API server is ready: {self.log('kube-apiserver')}", self.api.is_ready, 180)
        self.start("kube-scheduler", self.tool("kube-scheduler"), "--kubeconfig", at / "scheduler.conf", "--leader-elect=false", "--bind-address", "127.0.0.1",
                   "--secure-port", kit.free_port())
        self.start("kube-controller-manager", self.tool("kube-controller-manager"), "--kubeconfig", at / "controller-manager.conf", "--leader-elect=false",
                   "--bind-address", "127.0.0.1", "--secure-port", kit.free_port(), "--use-service-account-credentials",
                   "--service-account-private-key-file", at / "accounts.key", "--root-ca-file", at / "ca.pem")

    def kubeconfig(self, name, token):
        authority = base64.b64encode((self.folder / "ca.pem").read_bytes()).decode()
        path = self.folder / f"{name}.conf"
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{self.port}", "certificate-authority-data": authority}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }))
        path.chmod(0o600)
        return path

    def account(self, name, namespace="dxpu"):
        """A kubeconfig with a token of a service account, as a pod has it."""
        token = self.api.token_of(name, namespace)
        (self.folder / f"{name}.token").write_text(token)
        return self.kubeconfig(name, token)

    # The node.

    def start_node(self):
        self.start_containerd()
        self.import_images()
        self.start_kubelet()
        ready = lambda: any(one["type"] == "Ready" and one["status"] == "True" for one in self.node_conditions())
        kit.until(lambda: f"the node is ready: {self.node_conditions()}\n{self.log('kubelet')}", ready, 180)

    def node_conditions(self):
        return (self.api.find("Node", NODE) or {}).get("status", {}).get("conditions", [])

    def start_containerd(self):
        at = self.folder
        network = at / "cni"
        network.mkdir()
        # Pods of the tests are in the node's own network; the runtime asks for a configuration nevertheless.
        (network / "10-loopback.conflist").write_text(json.dumps({"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}))
        self.cdi_dir.mkdir()
        # restrict_oom_score_adj: without CAP_SYS_RESOURCE, as in many containers, nobody may be killed later than this process.
        (at / "containerd.toml").write_text(f"""
version = 3
root = "{at}/containerd-root"
state = "{at}/containerd-state"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
  address = "{at}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{at}/containerd-opt"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  cdi_spec_dirs = ["{self.cdi_dir}"]
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni", "/opt/cni/bin"]
  conf_dir = "{network}"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "{self.tool('runc')}"
  SystemdCgroup = false
""")
        path = f"{self.bin}:{os.environ['PATH']}"
        self.start("containerd", self.tool("containerd"), "--config", at / "containerd.toml", environment=os.environ | {"PATH": path})
        kit.until(lambda: f"containerd answers: {self.log('containerd')}", lambda: self.ctr("version").returncode == 0, 60)

    def ctr(self, *words):
        command = [self.tool("ctr"), "--address", f"{self.folder}/containerd.sock", "-n", "k8s.io", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    def kill_containers(self):
        for line in self.ctr("tasks", "ls", "-q").stdout.split():
            self.ctr("tasks", "rm", "--force", line)

    def import_images(self):
        """The sandbox's program, and CUDA programs with the C library, without any registry."""
        source = self.folder / "pause.c"
        source.write_text("#include <unistd.h>\n#include <signal.h>\nstatic void end(int n) { (void)n; _exit(0); }\n"
                          "int main(void) { signal(SIGTERM, end); signal(SIGINT, end); for (;;) pause(); }\n")
        subprocess.run(["cc", "-static", "-O1", "-o", self.folder / "pause", source], check=True)
        self.import_image(PAUSE, {"pause": self.folder / "pause"}, ["/pause"])
        names = ["steady", "devices"]
        files = {f"bin/{name}": pathlib.Path(kit.program(name)) for name in names} | {"bin/idle": self.folder / "pause"}
        client = [pathlib.Path(kit.dxpu)]
        for binary in [*files.values(), *client]:
            told = subprocess.run(["ldd", binary], capture_output=True, text=True).stdout
            for word in told.split():
                if word.startswith("/") and os.path.exists(word):
                    files[word.lstrip("/")] = pathlib.Path(word).resolve()
        self.import_image(PROGRAMS, files, ["/bin/steady"])

    def import_image(self, name, files, entry):
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            for place, path in files.items():
                info = tarfile.TarInfo(place)
                content = path.read_bytes()
                info.mode, info.size = 0o755, len(content)
                tar.addfile(info, io.BytesIO(content))
        layer = layer.getvalue()
        digest = lambda content: "sha256:" + hashlib.sha256(content).hexdigest()
        config = json.dumps({"architecture": "amd64", "os": "linux", "config": {"Entrypoint": entry, "Env": ["PATH=/bin"]},
                             "rootfs": {"type": "layers", "diff_ids": [digest(layer)]}}).encode()
        blob = lambda kind, content: {"mediaType": kind, "digest": digest(content), "size": len(content)}
        manifest = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                               "config": blob("application/vnd.oci.image.config.v1+json", config),
                               "layers": [blob("application/vnd.oci.image.layer.v1.tar", layer)]}).encode()
        of = blob("application/vnd.oci.image.manifest.v1+json", manifest) | {"annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}}
        index = json.dumps({"schemaVersion": 2, "manifests": [of]}).encode()
        path = self.folder / "image.tar"
        with tarfile.open(path, "w") as tar:
            def add(place, content):
                info = tarfile.TarInfo(place)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
            add("index.json", index)
            for content in (config, layer, manifest):
                add("blobs/sha256/" + digest(content).removeprefix("sha256:"), content)
        done = self.ctr("images", "import", "--local", path)
        kit.hold(done.returncode == 0, "the image", name, "cannot be imported:", done.stdout, done.stderr)

    def import_layout(self, name, built):
        """The image of dxpu, as it is shipped; its tag is the version. Gives back its whole name."""
        layout, archive = self.folder / "image", self.folder / "dxpu.tar"
        subprocess.run([ROOT / "deploy/image", "--built", built, "--out", layout], check=True, capture_output=True)
        with tarfile.open(archive, "w") as tar:
            tar.add(layout, arcname=".")
        done = self.ctr("images", "import", "--local", "--base-name", name, archive)
        kit.hold(done.returncode == 0, "the image of dxpu cannot be imported:", done.stdout, done.stderr)
        version = subprocess.run([kit.dxpu, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
        return f"{name}:{version}"

    def start_kubelet(self):
        configuration = self.folder / "kubelet.json"
        self.kubelet_dir.mkdir(exist_ok=True)
        configuration.write_text(json.dumps({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": {"clientCAFile": str(self.folder / "ca.pem")}},
            "authorization": {"mode": "Webhook"}, "containerRuntimeEndpoint": self.socket, "cgroupDriver": "cgroupfs",
            # The machine of the tests may have old control groups and little disk; neither is what they are about.
            "failCgroupV1": False, "failSwapOn": False, "enforceNodeAllocatable": [], "localStorageCapacityIsolation": False,
            "evictionHard": {"memory.available": "1Mi"}, "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
            "cgroupRoot": os.environ["DXPU_KUBE_NAMESPACE"], "port": kit.free_port(), "healthzPort": 0, "syncFrequency": "5s", "nodeStatusUpdateFrequency": "5s",
            "podLogsDir": str(self.folder / "pod-logs"), "volumePluginDir": str(self.folder / "volume-plugins"),
        }))
        self.start("kubelet", self.tool("kubelet"), "--config", configuration, "--kubeconfig", self.folder / "kubelet.conf", "--root-dir", self.kubelet_dir,
                   "--hostname-override", NODE, "--node-ip", "10.99.0.1", "--v", "3")

    def versions(self):
        told = {}
        for name, words in {"kube-apiserver": ["--version"], "kubelet": ["--version"], "kube-scheduler": ["--version"], "kube-controller-manager": ["--version"],
                            "containerd": ["--version"], "runc": ["--version"], "etcd": ["--version"]}.items():
            result = subprocess.run([self.tool(name), *words], capture_output=True, text=True)
            told[name] = (result.stdout or result.stderr).splitlines()[0]
        return told
