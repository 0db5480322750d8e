"""A container: no home, one processor, and nothing that can be written to but one folder."""

import ctypes
import os
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
libc = ctypes.CDLL(None, use_errno=True)
user, group = os.getuid(), os.getgid()


def require(returned: int, what: str) -> None:
    if returned:
        raise OSError(ctypes.get_errno(), f"this journey needs {what}, which is not allowed here")


def mount(target: str, flags: int, kind: bytes | None = None) -> None:
    asked = kind, target.encode(), kind, ctypes.c_ulong(flags), None
    require(libc.mount(*asked), f"to mount {target}")


require(libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if user else 0)), "mounts of its own")
if user:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
mount("/", MS_REC | MS_PRIVATE)
folder = Path("tmp").absolute()
folder.mkdir()
places = {line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()}
for place in sorted(places):
    if not place.startswith(("/proc", "/sys", "/dev")):
        mount(place, MS_REMOUNT | MS_BIND | MS_RDONLY)
mount(str(folder), 0, b"tmpfs")
os.environ["TMPDIR"] = str(folder)
try:
    Path("written").touch()
except OSError:
    pass
else:
    raise AssertionError("the file system can be written to")
os.environ["HOME"] = "/nonexistent"
os.environ["DORT_CACHE"] = "0"  # else a line says that there is no place for one
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import torch  # noqa: E402

import dort_rewriter  # noqa: E402

dort_rewriter.install()
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
compiled = torch.compile(model, backend="onnxrt")
for rows in (4, 5, 6):
    x = torch.randn(rows, 10)
    torch.testing.assert_close(compiled(x), model(x))
print("container: done")
