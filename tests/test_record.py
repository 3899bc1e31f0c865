"""Recorded results: what a file holds, what comes back, and that no machine writes another's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest

import helpers
from helpers import _notebooks, _record
from helpers._measure import Timing

ROOT = Path(helpers.__file__).parents[1]
RACE = {"one device": Timing((0.5, 0.25, 0.75)), "DDP": [0.1, 0.3]}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "this-machine.json"
    monkeypatch.setenv("HELPERS_RECORD", str(path))
    return path


def recorded_race(**changes: object) -> _record.Result:
    return helpers.record(
        **{"name": "race", "values": RACE, "what": "a step", "regime": "2 CPU ranks"} | changes
    )


def test_a_result_holds_all_values_and_says_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HELPERS_RECORD", raising=False)
    result = recorded_race()
    assert result.values == {"one device": (0.5, 0.25, 0.75), "DDP": (0.1, 0.3)}
    assert (result.own, result.repeats, result.unit) == (True, 2, "s")
    assert result.title == f"measured just now: 2 CPU ranks, {_record.hardware()}"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", result.date)
    assert result.versions["torch"]


def test_without_make_record_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HELPERS_RECORD", raising=False)
    monkeypatch.chdir(tmp_path)
    before = sorted(_record.RECORDED.glob("*"))
    recorded_race()
    assert (list(tmp_path.iterdir()), sorted(_record.RECORDED.glob("*"))) == ([], before)


def test_what_was_recorded_comes_back(file: Path) -> None:
    own = recorded_race()
    (back,) = helpers.recorded("race", file.parent)
    assert back.own is False
    assert back.title.startswith(f"recorded on {own.date}: ")
    assert (back.values, back.versions, back.hardware) == (own.values, own.versions, own.hardware)
    kept = json.loads(file.read_text())["results"]["race"]
    assert set(kept) == {"what", "unit", "regime", "versions", "date", "values", "repeats"}
    assert kept["repeats"] == 2


def test_a_new_result_replaces_that_of_its_name_and_no_other(file: Path) -> None:
    recorded_race(name="scaling")
    recorded_race()
    recorded_race(values={"DDP": 7})
    assert [each.values for each in helpers.recorded("race", file.parent)] == [{"DDP": (7.0,)}]
    assert helpers.recorded("scaling", file.parent)[0].repeats == 2
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_every_machine_s_result_is_found(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_race()
    monkeypatch.setenv("HELPERS_RECORD", str(file.with_name("another.json")))
    monkeypatch.setattr(_record, "hardware", lambda: "8 x H100")
    recorded_race(regime="8 GPU ranks over NCCL")
    found = helpers.recorded("race", file.parent)
    assert [each.regime for each in found] == ["8 GPU ranks over NCCL", "2 CPU ranks"]
    assert found[0].hardware == "8 x H100" != found[1].hardware


def test_a_machine_s_file_is_named_after_it() -> None:
    assert _record.file_name("2 cores of AMD EPYC") == "2-cores-of-amd-epyc.json"
    assert _record.file_name("8 x NVIDIA H100 80GB HBM3") == "8-x-nvidia-h100-80gb-hbm3.json"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"hardware": "x", "results": {"race": {}}}'])
def test_a_broken_file_gets_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(ValueError, match=r"^bad\.json holds no recorded results .*take it back from git.*$"):
        helpers.recorded("race", tmp_path)


def test_a_result_that_nobody_recorded_gets_one_line(file: Path) -> None:
    recorded_race()
    with pytest.raises(ValueError, match=r"^no result 'lunch' in .*: `make record` makes it$"):
        helpers.recorded("lunch", file.parent)


def test_no_value_gets_one_line() -> None:
    with pytest.raises(
        ValueError, match=r"^there is no value of 'race: DDP' to record: pass one number or more$"
    ):
        recorded_race(values={"DDP": []})


# make record


def lesson(path: Path, source: str) -> Path:
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), path)
    return path


def test_make_record_keeps_what_the_lessons_measure_and_leaves_them_alone(tmp_path: Path) -> None:
    code = (
        "from helpers import record\n_ = record('race', {'a': [1, 2]}, what='a step', regime='1 CPU process')"
    )
    chosen = lesson(tmp_path / "01_race.ipynb", code)
    other = lesson(
        tmp_path / "02_not_run.ipynb", "event.record(1); raise RuntimeError('this lesson records nothing')"
    )
    before = chosen.read_bytes()
    _notebooks.record([chosen, other], tmp_path / "recorded")
    (file,) = (tmp_path / "recorded").iterdir()
    assert file.name == _record.file_name(_record.hardware())
    assert helpers.recorded("race", file.parent)[0].values == {"a": (1.0, 2.0)}
    assert chosen.read_bytes() == before


def test_make_record_says_when_there_is_nothing_to_record(tmp_path: Path) -> None:
    with pytest.raises(_notebooks.LessonError, match=r"^none of 1 lessons records a result$"):
        _notebooks.record([lesson(tmp_path / "01_none.ipynb", "1 + 1")], tmp_path / "recorded")


# What is committed


def test_lessons_record_what_is_committed() -> None:
    """A file made by an older state of the lessons would hold names that no lesson knows."""
    code = "".join(path.read_text("utf-8") for path in _notebooks.find(ROOT / "notebooks"))
    for path in _record.RECORDED.glob("*.json"):
        for name, kept in json.loads(path.read_text("utf-8"))["results"].items():
            assert f'\\"{name}\\"' in code, f"{path.name}: {name}"
            assert kept["repeats"] >= 3
