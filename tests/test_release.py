"""What a release holds: what a deployment needs, the version and the commit, and the same bytes for the same commit."""

import re
import subprocess
import tarfile

import pytest

from hopbase_site import release
from tests.packages import ROOT

IN_GIT = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=False).returncode == 0
pytestmark = pytest.mark.skipif(not IN_GIT, reason="releases are made from a git checkout")


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """HEAD as `make release` packs it, without its look at what is not committed; twice."""
    folder = tmp_path_factory.mktemp("dist")
    for name in ("one", "two"):
        subprocess.run(
            ["make", "--silent", "pack", f"DIST={folder / name}"], cwd=ROOT, check=True, capture_output=True, text=True
        )
    return folder


@pytest.fixture(scope="module")
def files(packed):
    """Its files by name, without the folder that all are in."""
    with tarfile.open(packed / "one" / f"hopbase-{release.VERSION}.tar.gz") as archive:
        found = {one.name: archive.extractfile(one).read() for one in archive if one.isfile()}
    assert {name.partition("/")[0] for name in found} == {f"hopbase-{release.VERSION}"}
    return {name.partition("/")[2]: content for name, content in found.items()}


def test_same_commit_same_bytes(packed):
    one, two = ({path.name: path.read_bytes() for path in (packed / name).iterdir()} for name in ("one", "two"))
    assert one == two
    assert one.keys() == {"SHA256SUMS", f"hopbase-{release.VERSION}.tar.gz"}


def test_it_holds_what_runs(files):
    tracked = git("ls-tree", "-r", "--name-only", "HEAD").split()
    runs = {
        name
        for name in tracked
        if name.startswith(("billing/", "streaming/", "hopbase_site/", "templates/", "locale/"))
    }
    assert runs | {"manage.py", "requirements-runtime.txt", "LICENSE", "docs/api/en/quickstart.md"} <= files.keys()
    assert not [name for name in files if name.startswith(("tests/", "bench/", ".git", ".env", "var/", "dist/"))]


def test_it_names_its_commit(files):
    assert f'COMMIT = "{git("rev-parse", "HEAD").strip()}"' in files["hopbase_site/release.py"].decode()


def test_container_is_built_of_it(files):
    """Each COPY finds its source, and `.dockerignore` lets it through."""
    sources = re.findall(r"^COPY (\S+)", files["deploy/Containerfile"].decode(), re.MULTILINE)
    assert "manage.py" in sources
    assert [name for name in sources if not any((one + "/").startswith(name + "/") for one in files)] == []
    assert set(sources) == set(re.findall(r"^!(\S+)", files[".dockerignore"].decode(), re.MULTILINE))
