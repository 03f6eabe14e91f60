"""What is built for a release: files and metadata of wheel and sdist."""

import email
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile

from pathlib import Path

import pytest

import amc_pymc

ROOT = Path(amc_pymc.__file__).parents[1]
VERSION = amc_pymc.__version__
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILD = "import sys, hatchling.build as b; print(b.build_wheel(sys.argv[1])); print(b.build_sdist(sys.argv[1]))"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Wheel and sdist, made by the backend that pyproject.toml names."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    run = [sys.executable, "-c", BUILD, str(folder)]
    names = subprocess.run(run, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    wheel, sdist = (folder / name for name in names.split())
    return wheel, sdist


def test_the_version_is_stated_in_one_place():
    """CITATION.cff has a copy, and the changelog a section."""
    assert PROJECT["dynamic"] == ["version"] and "version" not in PROJECT
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == VERSION
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{VERSION}]" in changelog


def test_dependencies_are_complete_and_bounded():
    """PyMC's progress bar imports Matplotlib, files need a backend, and private parts change with versions."""
    needed = {re.match(r"[\w-]+", d)[0]: d for d in PROJECT["dependencies"]}
    assert {"h5netcdf", "h5py", "matplotlib"} <= set(needed)
    assert all("<" in needed[name] for name in ("numba", "pymc", "pytensor"))


def test_the_conda_recipe_has_the_same_version_and_dependencies():
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == VERSION
    run = {r.replace("matplotlib-base", "matplotlib") for r in recipe["requirements"]["run"]}
    needed = {re.sub(r"^([\w-]+)", r"\1 ", d) for d in PROJECT["dependencies"]}
    assert run == needed | {f"python {PROJECT['requires-python']}"}


@pytest.mark.slow
def test_the_wheel_has_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = {n for n in wheel.namelist() if not n.endswith("/")}
    modules = {p.relative_to(ROOT).as_posix() for p in (ROOT / "amc_pymc").rglob("*.py")}
    info = f"amc_pymc-{VERSION}.dist-info"
    expected = {f"{info}/{n}" for n in ("METADATA", "WHEEL", "RECORD", "licenses/LICENSE")}
    assert names == modules | {"amc_pymc/py.typed"} | expected


@pytest.mark.slow
def test_metadata_of_the_wheel(built):
    with zipfile.ZipFile(built[0]) as wheel:
        text = wheel.read(f"amc_pymc-{VERSION}.dist-info/METADATA").decode()
    found = email.message_from_string(text)
    assert found["Name"] == "amc-pymc" and found["Version"] == VERSION
    assert found["License-Expression"] == "Apache-2.0"
    assert set(found.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert found.get_all("Classifier") == PROJECT["classifiers"]
    labels = {url.split(",")[0] for url in found.get_all("Project-URL")}
    assert labels == {"Changelog", "Documentation", "Issues", "Source"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert found["Description-Content-Type"] == "text/markdown"
    assert readme.splitlines()[0] in found.get_payload()


@pytest.mark.slow
def test_the_sdist_has_what_tests_need(built):
    with tarfile.open(built[1]) as sdist:
        names = {n.split("/", 1)[1] for n in sdist.getnames() if "/" in n}
    for file in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt",
                 "Makefile", "amc_pymc/py.typed", "docs/conf.py", "models/__init__.py"):  # fmt: skip
        assert file in names, file
    tests = {p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").rglob("*.py")}
    assert tests <= names
    hidden = {n for n in names if re.search(r"(^|/)(\.venv|__pycache__|\.ci|_build)(/|$)", n)}
    assert not hidden
