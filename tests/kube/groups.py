"""A control group for the kubelet, in every hierarchy: it removes groups that it does not know, also those of another kubelet."""
import contextlib
import os
import pathlib
import time


class ControlGroups:
    def __init__(self):
        self.name = f"/dxpu-kube-{os.urandom(4).hex()}"
        top = pathlib.Path("/sys/fs/cgroup")
        if (top / "cgroup.controllers").exists():
            for controller in (top / "cgroup.controllers").read_text().split():
                with contextlib.suppress(OSError):
                    (top / "cgroup.subtree_control").write_text(f"+{controller}")
            hierarchies = [top]
        else:
            hierarchies = [place for place in top.iterdir() if place.is_dir() and not place.is_symlink()]
        self.places = [place / self.name.lstrip("/") for place in hierarchies]
        for place in self.places:
            place.mkdir()

    def remove(self):
        for place in self.places:
            for folder, _, _ in os.walk(place, topdown=False):
                # Its last processes may be ending.
                for _ in range(50):
                    try:
                        os.rmdir(folder)
                        break
                    except OSError:
                        time.sleep(0.1)
