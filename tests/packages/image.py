"""The container image: every digest is right, skopeo reads it, and its files are enough to run `dxpu`."""
import gzip
import hashlib
import json
import pathlib
import shutil
import subprocess
import tarfile

import kit

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
IMAGE_BYTES_MAX = 25_000_000


def tell(built, folder):
    layout, again = folder / "image", folder / "image-again"
    for place in (layout, again):
        subprocess.run([DEPLOY / "image", "--built", built, "--out", place, "--version", "0.1.0"], check=True, capture_output=True)
    index = json.loads((layout / "index.json").read_text())
    kit.hold(index == json.loads((again / "index.json").read_text()), "the same files make the same image")
    manifest = json.loads(blob(layout, index["manifests"][0]))
    config = json.loads(blob(layout, manifest["config"]))
    root = folder / "image-root"
    size = 0
    for described, unpacked in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        packed = blob(layout, described)
        size += len(packed)
        content = gzip.decompress(packed)
        kit.hold("sha256:" + hashlib.sha256(content).hexdigest() == unpacked, unpacked)
        tar = folder / "layer.tar"
        tar.write_bytes(content)
        with tarfile.open(tar) as archive:
            archive.extractall(root, filter="fully_trusted") if hasattr(tarfile, "fully_trusted_filter") else archive.extractall(root)
    kit.hold(size <= IMAGE_BYTES_MAX, f"the image has {size} bytes")
    for place in ("proc", "dev"):
        (root / place).mkdir()
        subprocess.run(["mount", "--rbind", f"/{place}", root / place], check=True)
    command = [shutil.which("chroot"), f"--userspec={config['config']['User']}", root, *config["config"]["Entrypoint"]]
    environment = dict(pair.split("=", 1) for pair in config["config"]["Env"])
    done = subprocess.run([*command, "--version"], env=environment, capture_output=True, text=True)
    kit.hold(done.returncode == 0 and done.stdout.startswith("dxpu "), done)
    pool(command, environment)
    if not shutil.which("skopeo"):
        return f"{size / 1e6:.1f} MB; there is no skopeo here to judge it"
    done = subprocess.run(["skopeo", "inspect", f"oci:{layout}:0.1.0"], capture_output=True, text=True)
    kit.hold(done.returncode == 0, done.stderr)
    seen = json.loads(done.stdout)
    kit.hold(seen["Labels"]["org.opencontainers.image.title"] == "dxpu" and len(seen["Layers"]) == 2, seen)
    done = subprocess.run(["skopeo", "copy", f"oci:{layout}:0.1.0", f"dir:{folder / 'copied'}"], capture_output=True, text=True)
    kit.hold(done.returncode == 0, done.stderr)
    return f"{size / 1e6:.1f} MB"


def pool(command, environment):
    """Manager and box with nothing but what the image has."""
    port = kit.free_port()
    up = [*command, "up", "--boxes", "1", "--gpus", "1", "--memory", "64MiB", "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(up, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if "Ctrl-C stops" in line:
                break
        kit.hold("The pool is up: 1 box, 1 GPU." in "".join(said), *said)
    finally:
        process.terminate()
        process.wait(30)


def blob(layout, described):
    kind, digest = described["digest"].split(":")
    content = (layout / "blobs" / kind / digest).read_bytes()
    kit.hold(hashlib.sha256(content).hexdigest() == digest and len(content) == described["size"], digest)
    return content
