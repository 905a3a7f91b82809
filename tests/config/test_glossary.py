"""The glossary explains the words of the rules, in every place where it is shown."""

import importlib.util
import re
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.config.glossary import FORMS, GLOSSARY, find_word
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.lifecycle.stages import Stage

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "word", [*HEAD_NAMES, *(op.name for op in Op), *(stage.name for stage in Stage)]
)
def test_every_head_op_and_stage_is_explained(word: str) -> None:
    assert find_word(word) is not None


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ("Slots", "slot"),
        ("NO_GROWTH", "no growth"),
        ("flops", "reference run"),
        ("tamiyo", "Tamiyo"),
    ],
)
def test_words_are_found_in_any_case_and_form(given: str, word: str) -> None:
    assert find_word(given) == word


def test_every_form_leads_to_an_entry() -> None:
    assert set(FORMS.values()) <= GLOSSARY.keys()
    assert not GLOSSARY.keys() & FORMS.keys()


def test_its_page_and_the_copy_of_the_dashboard_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("tool", ROOT / "tools/write_glossary.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.PAGE.read_text() == tool.glossary_page(), "run tools/write_glossary.py"
    assert tool.SCRIPT.read_text() == tool.glossary_script(), "run tools/write_glossary.py"
    headings = re.findall(r"^### (.+)$", tool.PAGE.read_text(), flags=re.MULTILINE)
    assert headings == list(GLOSSARY)


def test_esper_explain_prints_a_definition(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "reference", "run"]) == 0
    assert capsys.readouterr().out.startswith("reference run: ")
    assert main(["explain"]) == 0
    listed = capsys.readouterr().out
    assert all(word in listed for word in GLOSSARY)


def test_an_unknown_word_is_reported_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "blueprnt"]) == 2
    error = capsys.readouterr().err
    assert "'blueprnt'" in error
    assert "'blueprint'" in error
    assert error.count("\n") == 1
