"""Copy a virtual environment, its Python and every library they need into an otherwise empty root file system.

    python3 rootfs.py /opt/llmobs /rootfs

Runs while the image is built, in the build stage; standard library only. What the environment does not need (shell,
package managers, pip, tests, headers) stays behind. For scanners, the Debian packages that files were taken from are
listed in /var/lib/dpkg/status.d, as distroless images do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

#: Parts of the standard library that a server does not import.
LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "pydoc_data", "dist-packages",
            "site-packages", "distutils"}  # fmt: skip
#: Libraries that the NVIDIA runtime's libnvidia-ml.so.1 wants and nothing here links against.
FOR_NVML = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/debian_version", "/etc/os-release", "/usr/lib/os-release")


def main(environment: Path, root: Path) -> None:
    """Fill `root`."""
    root.mkdir(parents=True)
    for link in ("bin", "lib", "lib64", "sbin"):  # as in the base: /lib -> usr/lib
        if Path("/", link).is_symlink():
            (root / link).symlink_to(Path("/", link).readlink())
    python = Path(sys.executable).resolve()
    taken = [copy(python, root)]
    name = Path(f"{python.parent}/python3")
    if name.exists() and name != python:
        taken.append(copy(name, root))
    taken += copy_tree(Path(sysconfig.get_path("stdlib")), root, LEFT_OUT | {f"config-{sys.version_info[0]}"})
    taken += copy_tree(environment, root, {"pip", "setuptools", "pkg_resources", "include", "__pycache__"})
    taken += [copy(Path(p), root) for p in FILES if Path(p).exists()]
    taken += libraries(taken, root)
    compile_all(root)
    accounts(root)
    packages(taken, root)
    shutil.copytree("/etc/ld.so.conf.d", root / "etc/ld.so.conf.d", dirs_exist_ok=True)
    shutil.copy("/etc/ld.so.conf", root / "etc/ld.so.conf")
    subprocess.run(["/sbin/ldconfig", "-r", str(root)], check=True)
    (root / "tmp").mkdir(mode=0o1777)
    (root / "tmp").chmod(0o1777)
    state = root / "var/lib/llmobs"
    state.mkdir(parents=True)
    # Group 0 may write, whatever the uid: the volume that is mounted here takes these over where it is empty.
    state.chmod(0o775)


def copy(path: Path, root: Path) -> Path:
    """Copy one file below `root`, symbolic links as links together with what they point to; return its real path."""
    real_parent = path.parent.resolve()
    target = root / real_parent.relative_to("/") / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        if not target.is_symlink():
            target.symlink_to(path.readlink())
        return copy(real_parent / path.readlink(), root)
    if not target.exists():
        shutil.copy2(path, target)
    return real_parent / path.name


def copy_tree(folder: Path, root: Path, without: set[str]) -> list[Path]:
    """Copy a folder without the parts named in `without`; return the files."""
    found = []
    for here, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in without and not f.startswith(("config-3", "pip-", "setuptools-"))]
        for file in files:
            if file.endswith((".a", ".pyc", ".pyi", ".h")) or file.startswith(("pip", "activate", "Activate")):
                continue
            found.append(copy(Path(here, file), root))
    return found


def libraries(files: list[Path], root: Path) -> list[Path]:
    """Copy every shared library that the given files are linked against, the loader included."""
    elves = [f for f in files if f.suffix == ".so" or ".so." in f.name or os.access(f, os.X_OK)]
    elves = [f for f in elves if f.open("rb").read(4) == b"\x7fELF"]
    needed: set[str] = set()
    for elf in elves:
        listed = subprocess.run(["ldd", str(elf)], capture_output=True, text=True, check=False).stdout
        needed.update(re.findall(r"(?:=> |^\s+)(/\S+)", listed, flags=re.MULTILINE))
    libc = next(Path(p).parent for p in needed if p.endswith("/libc.so.6"))
    needed.update(str(libc / name) for name in FOR_NVML if (libc / name).exists())
    return [copy(Path(path), root) for path in sorted(needed)]


def compile_all(root: Path) -> None:
    """Compile to byte code once: the root is read-only at run time."""
    command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(root)]
    subprocess.run([*command, str(root)], check=False, stdout=subprocess.DEVNULL)


def accounts(root: Path) -> None:
    """Write the few files that name users and say how hosts are resolved."""
    etc = root / "etc"
    etc.mkdir(exist_ok=True)
    (etc / "passwd").write_text("root:x:0:0:root:/:/\nllmobs:x:65532:0:llmobs:/tmp:/\n")
    (etc / "group").write_text("root:x:0:\n")
    (etc / "nsswitch.conf").write_text("hosts: files dns\n")


def packages(files: list[Path], root: Path) -> None:
    """List the Debian packages that the files come from, one file a package."""
    query = ["dpkg-query", "--search", *{str(f) for f in files}, *{str(f).removeprefix("/usr") for f in files}]
    listed = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    folder = root / "var/lib/dpkg/status.d"
    folder.mkdir(parents=True)
    for name in sorted({line.split(":")[0] for line in listed.splitlines() if ": /" in line}):
        status = subprocess.run(["dpkg-query", "--status", name], capture_output=True, text=True, check=False).stdout
        (folder / name).write_text(status)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
