"""Code under test by hidden tests: what a stand-in can do, what a candidate cannot, and what of a
workspace comes along."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path

import boxes
import pytest
from boxes import MIB, Box

from bench.coding_exploits import EXPLOITS
from bench.coding_tasks import HONEST, NUM_FRESH
from rft.errors import InfrastructureError, UserError
from rft.grading.code_under_test.hidden_tests import judge_report, run_hidden_tests
from rft.grading.code_under_test.patch import Patch, source_patch
from rft.grading.code_under_test.verdict import Verdict
from rft.sandbox import command
from rft.sandbox.call import Outcome
from rft.sandbox.limits import Limits
from rft.sandbox.workspace import Base

LIMITS = Limits(wall_s=10, cpu_s=3, memory_bytes=256 * MIB, processes=32, output_bytes=MIB)
SHAPES = """
    from collections import Counter, namedtuple
    from enum import IntEnum

    SIZE = 3
    Point = namedtuple("Point", "x y")
    class Color(IntEnum):
        RED = 1
    class Broken(ValueError):
        pass
    class Worse(Broken):
        pass
    class Stack:
        def __init__(self, items=()):
            self.items = list(items)
            self._name = self._value = "mine"
        def push(self, item):
            self.items.append(item)
            return self
        def __len__(self):
            return len(self.items)
        def __getitem__(self, place):
            return self.items[place]
        def __iter__(self):
            return iter(self.items)
        def __eq__(self, other):
            return isinstance(other, Stack) and self.items == other.items
        def __enter__(self):
            return self
        def __exit__(self, *exc):
            self.items.clear()
        def __str__(self):
            return f"stack of {len(self)}"
    class Tall(Stack):
        pass
    def count(text):
        return Counter(text)
    def apply(function, values):
        return [function(value) for value in values]
    def fail(how):
        raise {"value": ValueError, "broken": Broken, "worse": Worse, "key": KeyError}[how]("no " + how)
    def rows():
        yield 1
        yield 2
    def data():
        return {"a": (1, 2.5), 2: {3}, "b": b"x", "n": float("nan"), "none": None, "yes": True}
    def size():
        return SIZE
    def named(what, self=0, **more):
        return [what, self, more]
"""
TESTS = """
    import math
    import pytest
    import shapes
    from shapes import Stack, Tall, apply, count, data, fail, rows

    def test_values():
        found = data()
        assert found["a"] == (1, 2.5) and type(found["a"]) is tuple
        assert found[2] == {3} and found["b"] == b"x" and math.isnan(found["n"])
        assert found["none"] is None and found["yes"] is True
        assert count("aab") == {"a": 2, "b": 1}
        assert shapes.SIZE == 3
        assert shapes.named(what=1, self=2, name=3) == [1, 2, {"name": 3}]

    def test_objects():
        stack = Stack([1]).push(2)
        assert len(stack) == 2 and stack[1] == 2 and list(stack) == [1, 2] and str(stack) == "stack of 2"
        assert stack == Stack([1, 2]) and stack != Stack()
        assert isinstance(stack, Stack) and not isinstance(stack, Tall) and not isinstance(3, Stack)
        assert issubclass(Tall, Stack) and stack.items == [1, 2] and not hasattr(stack, "pop")
        stack.items = [7]
        with stack as inside:
            assert list(inside) == [7]
        assert not stack and (stack._name, stack._value) == ("mine", "mine")

    def test_kinds_of_builtins():
        point = shapes.Point(1, 2)
        assert point == (1, 2) and point.x == 1 and (1, 2) == point
        assert shapes.Color.RED == 1 and shapes.Color.RED + 1 == 2 and 3 - shapes.Color.RED == 2
        assert shapes.Color.RED.name == "RED" and int(shapes.Color.RED) == 1

    @pytest.mark.parametrize("how, kind", [("value", ValueError), ("broken", shapes.Broken), ("worse", shapes.Broken),
                                           ("worse", shapes.Worse), ("key", KeyError)])
    def test_errors(how, kind):
        with pytest.raises(kind, match="no " + how):
            fail(how)

    def test_functions_of_the_tests():
        assert apply(lambda value: value + 1, [1, 2]) == [2, 3]
        with pytest.raises(ZeroDivisionError):
            apply(lambda value: 1 // value, [0])

    def test_generators():
        assert list(rows()) == [1, 2] and sum(rows()) == 3
        shapes.SIZE = 5
        assert shapes.size() == 5

    @pytest.mark.skip
    def test_later():
        assert False
"""


def check(files: dict[str, str], tests: dict[str, str], folder: str = ".", num_tests: int | None = None) -> Verdict:
    async def play() -> Verdict:
        base = await Base.empty(command.python_folders())
        try:
            written = {path: textwrap.dedent(text).encode() for path, text in files.items()}
            given = {name: textwrap.dedent(text) for name, text in tests.items()}
            modules = ["shapes", "solution"]
            return await run_hidden_tests(
                base, Patch(written), given, modules, folder, num_tests, limits=LIMITS, allow_weaker=True
            )
        finally:
            base.close()

    return boxes.run(play())


def one(solution: str, test: str, num_tests: int | None = None) -> Verdict:
    return check({"solution.py": solution}, {"test_it.py": test}, num_tests=num_tests)


# -- the report ------------------------------------------------------------------------------------
STARTED = b'{"started": true}\n'
GOOD = b'{"nonce": "n", "passed": 2, "failed": 0, "skipped": 0, "failures": []}\n'


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome(0, STARTED + GOOD, b""), Verdict(2, 2, "ok")),
        (Outcome(0, STARTED + GOOD.replace(b'"n"', b'"m"'), b""), None),
        (Outcome(0, STARTED + GOOD + GOOD, b""), None),
        (Outcome(0, STARTED + b"x" + GOOD, b""), None),
        (Outcome(0, STARTED + GOOD[:-1], b""), None),
        (Outcome(0, STARTED, b""), None),
        (Outcome(1, STARTED + GOOD, b""), None),
        (Outcome(0, STARTED + GOOD, b"", timed_out=True), None),
        (Outcome(0, STARTED + GOOD, b"", oom=True), None),
    ],
)
def test_only_a_whole_report_with_its_nonce_counts(outcome: Outcome, verdict: Verdict | None) -> None:
    found = judge_report(outcome, "n")
    assert found == verdict if verdict else (found.status, found.solved) == ("unjudgeable_answer", False)


def test_another_number_of_tests_counts_nothing() -> None:
    assert judge_report(Outcome(0, STARTED + GOOD, b""), "n", 2).solved
    assert judge_report(Outcome(0, STARTED + GOOD, b""), "n", 3) == Verdict(0, 3, "ok", "2 tests ran, of 3")
    none = GOOD.replace(b'"passed": 2', b'"passed": 0')
    assert not judge_report(Outcome(0, STARTED + none, b""), "n").solved


@pytest.mark.parametrize("printed", [b"", b'{"started": false, "why": "pytest is not installed"}\n'])
def test_tests_that_never_began_are_no_fault_of_the_candidate(printed: bytes) -> None:
    with pytest.raises(InfrastructureError, match="pytest is not installed" if printed else "did not start"):
        judge_report(Outcome(0, printed, b""), "n")


# -- in a sandbox ----------------------------------------------------------------------------------
@pytest.mark.slow
@boxes.needs_sandbox
def test_a_stand_in_is_like_the_module() -> None:
    verdict = check({"src/shapes.py": SHAPES}, {"test_shapes.py": TESTS}, "src")
    assert verdict == Verdict(10, 10, "ok"), verdict.failures


@boxes.needs_sandbox
def test_a_package_and_two_files_of_tests() -> None:
    files = {"solution/__init__.py": "from solution.deep import f", "solution/deep.py": "def f(): return 1"}
    first = "from solution import f\ndef test_f():\n    assert f() == 1"
    second = "import solution.deep\nfrom solution import deep\ndef test_g():\n    assert deep.f() == 2"
    verdict = check(files, {"test_a.py": first, "test_b.py": second})
    assert (verdict.passed, verdict.of, verdict.status) == (1, 2, "ok")
    assert verdict.failures[0].startswith("test_b.py::test_g: ")


EXPECTS = "from solution import f\ndef test_f():\n    assert {}"


@boxes.needs_sandbox
@pytest.mark.parametrize(
    ("test", "method"),
    [
        ("f() == 4", "__eq__(self, other): return True"),
        ("4 == f()", "__eq__(self, other): return True"),
        ("not f() != 4", "__ne__(self, other): return False"),
        ("f() in (4, 5)", "__eq__(self, other): return True"),
        ("[f()] == [4]", "__eq__(self, other): return True"),
        ("4 in f()", "__contains__(self, item): return True"),
        ("3 < f() < 5", "__gt__(self, other): return True"),
        ("abs(f() - 4) < 1e-9", "__sub__(self, other): return 0"),
        ("abs(4 - f()) < 1e-9", "__rsub__(self, other): return 0"),
        ("isinstance(f(), int)", "__class__(self): return int"),
        ("f() == __import__('pytest').approx(4)", "__eq__(self, other): return True"),
    ],
)
def test_an_object_does_not_decide_what_it_is_equal_to(test: str, method: str) -> None:
    decorator = "@property" if "class" in method else ""
    solution = f"class Anything:\n    {decorator}\n    def {method}\ndef f():\n    return Anything()"
    verdict = one(solution, EXPECTS.format(test))
    assert (verdict.passed, verdict.of) == (0, 1), verdict


@pytest.mark.slow
@boxes.needs_sandbox
@pytest.mark.parametrize(
    "solution",
    [
        "raise SystemExit(0)",
        "import os\nos._exit(0)",
        "def f():\n    raise SystemExit(0)",
        "def f():\n    raise KeyboardInterrupt",
        "class Skipped(BaseException): pass\ndef f():\n    raise Skipped",
        "import os, signal\ndef f():\n    os.kill(os.getppid(), signal.SIGKILL)",
        "import os, signal\ndef f():\n    os.kill(os.getppid(), signal.SIGINT)\n    return 4",
        "import os, signal\ndef f():\n    os.kill(os.getppid(), signal.SIGTERM)\n    return 4",
    ],
)
def test_the_end_of_either_process_is_no_success(solution: str) -> None:
    assert not one(solution, EXPECTS.format("f() == 5")).solved


@pytest.mark.slow
@boxes.needs_sandbox
def test_cases_that_the_candidate_takes_away() -> None:
    test = """
        import pytest, solution
        @pytest.mark.parametrize("value", solution.VALUES)
        def test_f(value):
            assert solution.f(value) == value
        def test_g():
            assert True
    """
    honest = "VALUES = [1, 2]\ndef f(value):\n    return value"
    assert one(honest, test, 3).solved
    assert not one(honest.replace("[1, 2]", "[]"), test, 3).solved


@pytest.mark.slow
@boxes.needs_sandbox
@pytest.mark.parametrize("task", HONEST, ids=lambda task: task.name)
def test_an_honest_solution_is_accepted(task: object) -> None:
    tests = {"test_it.py": task.tests(task.cases(NUM_FRESH, 3))}  # type: ignore[attr-defined]
    assert check({"solution.py": task.honest}, tests).solved  # type: ignore[attr-defined]


@pytest.mark.slow
@boxes.needs_sandbox
def test_no_exploit_is_accepted() -> None:
    """The figure plays all of them; these are the ones that fool tests in one process."""
    names = ("an object that equals", "pytest patched", "found by gc", "the memory of every process", "caller's frame")
    played = [exploit for exploit in EXPLOITS if any(name in exploit.name for name in names)]
    assert len(played) == len(names)
    for exploit in played:
        files = {path: content.decode() for path, content in exploit.files.items()}
        verdict = check(files, {"test_it.py": exploit.task.tests(exploit.task.cases(NUM_FRESH, 4))})
        assert not verdict.solved, exploit.name


@boxes.needs_sandbox
def test_tests_that_cannot_be_run() -> None:
    async def play(binds: bool, tests: dict[str, str], modules: list[str]) -> None:
        base = await Base.empty(command.python_folders() if binds else ())
        try:
            await run_hidden_tests(base, Patch({}), tests, modules, limits=LIMITS, allow_weaker=True)
        finally:
            base.close()

    good = {"test_it.py": "def test_f(): pass"}
    for binds, tests, modules, message in (
        (True, {}, ["solution"], "at least one file"),
        (True, good, [], "at least one file"),
        (True, {"../test_it.py": ""}, ["solution"], "not a name for a file"),
        (True, {"check.py": ""}, ["solution"], "not a name for a file"),
        (False, good, ["solution"], "lacks the folders of this Python"),
    ):
        with pytest.raises(UserError, match=message):
            asyncio.run(play(binds, tests, modules))


# -- the patch -------------------------------------------------------------------------------------
@boxes.needs_sandbox
def test_only_allowed_source_files_come_along(tmp_path: Path) -> None:
    for path in ("src/a.py", "src/old.py", "tests/test_a.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("1", encoding="utf-8")
    written = (
        "src/a.py", "src/deep/b.py", "src/conftest.py", "src/Conftest.py", "src/pytest.ini", "setup.cfg", "src/x.pth",
        "src/sitecustomize.py", "pyproject.toml", "tests/test_a.py", "src/test_b.py", "src/tests/helper.py", "other.py",
    )  # fmt: skip

    async def play() -> Patch:
        async with Box(tmp_path) as sandbox:
            for path in written:
                await sandbox.write_file(path, b"new")
            await sandbox.write_file("src/large.py", b"x" * 2 * MIB)
            await sandbox.exec(["sh", "-c", "rm src/old.py; ln -s /etc/passwd src/link.py; mkfifo src/pipe.py"])
            with pytest.raises(UserError, match="files that it may change"):
                await source_patch(sandbox, [])
            return await source_patch(sandbox, ["src/*.py", "tests/*", "*.toml"])

    patch = boxes.run(play())
    assert patch.files == {"src/a.py": b"new", "src/deep/b.py": b"new"}
    assert patch.deleted == ("src/old.py",)
    left = dict(line.split(": ", 1) for line in patch.left_out)
    assert set(left) == {*written, "src/large.py", "src/link.py", "src/pipe.py"} - set(patch.files)
    assert left["src/link.py"] == left["src/pipe.py"] == "not a regular file"
    assert left["other.py"] == "not allowed"
    assert "at most 1,048,576 are read" in left["src/large.py"]


@pytest.mark.slow
@boxes.needs_sandbox
def test_a_patch_is_laid_over_the_base(tmp_path: Path) -> None:
    (tmp_path / "solution.py").write_text("from helper import f", encoding="utf-8")
    (tmp_path / "helper.py").write_text("def f(): return 3", encoding="utf-8")
    (tmp_path / "old.py").write_text("", encoding="utf-8")
    test = "import os, solution\ndef test_f():\n    assert solution.f() == 4\n    assert not os.path.exists('old.py')"

    async def play(patch: Patch) -> Verdict:
        base = await Base.of_folder(tmp_path, command.python_folders())
        try:
            return await run_hidden_tests(
                base, patch, {"test_f.py": test}, ["solution"], limits=LIMITS, allow_weaker=True
            )
        finally:
            base.close()

    assert boxes.run(play(Patch({"helper.py": b"def f(): return 4"}, ("old.py",)))).solved
    assert not boxes.run(play(Patch({}, ("old.py",)))).solved
    assert not boxes.run(play(Patch({"helper.py": b"def f(): return 4"}))).solved
    assert boxes.run(play(Patch({"../x.py": b""}))).status == "unjudgeable_answer"
