"""Renames by a table: what they change, and what they refuse."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bench import rename
from bench import renamed as figure

CODE = '''"""Uses `say` and says so."""

from shop import till
from shop.till import open_it


def sell(say, book):
    say("say")  # `say(...)`, not: say it
    book.say(say=1)
    label = f"{book.say()} say {{say}} {'say'}"
    till.open_it(), open_it(), book.till
    return label
'''


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for path, text in {
        "a.py": CODE,
        "shop/till.py": "def open_it(): ...\n",
        "page.md": "`say` and say, shop/till.py\n",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def renamed(clone: Path, table: str) -> str:
    rename.rename(clone, rename.read(table))
    return (clone / "a.py").read_text()


def test_a_name_changes_in_code_in_f_strings_and_in_backticks(clone: Path) -> None:
    text = renamed(clone, "name\t*\tsay\treport_line\n")
    assert '"""Uses `report_line` and says so."""' in text
    assert 'report_line("say")  # `report_line(...)`, not: say it' in text
    assert "book.report_line(report_line=1)" in text
    assert "f\"{book.report_line()} say {{say}} {'say'}\"" in text
    assert (clone / "page.md").read_text() == "`report_line` and say, shop/till.py\n"


def test_a_sequence_of_tokens_is_one_meaning_of_a_name(clone: Path) -> None:
    text = renamed(clone, "name\ta.py\tbook . say\tbook . print_line\n")
    assert "book.print_line(say=1)" in text
    assert 'say("say")' in text


def test_a_moved_module_is_followed_by_its_imports_and_paths(clone: Path) -> None:
    text = renamed(clone, "move\t\tshop/till.py\tshop/cash_register.py\n")
    assert "from shop import cash_register\nfrom shop.cash_register import open_it" in text
    assert "cash_register.open_it(), open_it(), book.till" in text
    assert (clone / "page.md").read_text() == "`say` and say, shop/cash_register.py\n"
    assert (clone / "shop/cash_register.py").exists()
    assert not (clone / "shop/till.py").exists()


def test_a_moved_folder(clone: Path) -> None:
    text = renamed(clone, "move\t\tshop\tstore\n")
    assert "from store import till\nfrom store.till import open_it" in text
    assert (clone / "page.md").read_text() == "`say` and say, store/till.py\n"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("name\t*\tabsent\tpresent\n", "line 1: 'absent' is nowhere in *"),
        ("name\ta.py\tsay\tlabel\n", "line 1: a.py has a name label already"),
        ("text\tpage.md\tnowhere\thereabouts\n", "line 1: 'nowhere' is nowhere in page.md"),
        ("name\t*\tsay\treport_line\nmove\t\tshop/tell.py\tshop/it.py\n", "line 2: there is no shop/tell.py to move"),
    ],
)
def test_a_row_that_does_nothing_or_joins_two_names_changes_no_file(clone: Path, table: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("*", r"\*")):
        renamed(clone, table)
    assert (clone / "a.py").read_text() == CODE


@pytest.mark.parametrize("line", ["name\t*\tsay", "rename\t*\ta\tb", "name\t*\ta . b\tc"])
def test_a_row_in_another_form_is_refused_by_its_line(line: str) -> None:
    with pytest.raises(ValueError, match="line 2: "):
        rename.read(f"# rows\n{line}\n")


def test_the_figure_sees_code_that_differs_by_more_than_names(
    clone: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = rename.read("name\t*\tsay\treport_line\nmove\t\tshop\tstore\n")
    after = tmp_path_factory.mktemp("after") / "clone"
    shutil.copytree(clone, after)
    rename.rename(after, rows)
    assert figure.otherwise(clone, after, rows) == []
    changed = (after / "a.py").read_text().replace("report_line=1", "report_line=2")
    (after / "a.py").write_text(changed)
    assert figure.otherwise(clone, after, rows) == ["a.py"]
    (after / "store/till.py").unlink()
    assert figure.otherwise(clone, after, rows) == ["a.py", "shop/till.py"]
